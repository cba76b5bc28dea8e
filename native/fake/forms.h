/* Other forms of the same functions. Part of cuda.c.
 *
 * Those for per-thread default streams are the same here as the others, but functions of their own, as in the real
 * library. Those of CUDA 2 know addresses and sizes of 32 bits: what they allocate lies below 4 GiB. */

API cuLaunchKernel_ptsz(CUfunction f, DIMS, CUstream s, void **params, void **extra) { return (void)shared, (void)extra, launch(f, s, params, SHAPE(gx, gy, gz), SHAPE(bx, by, bz)); }
API cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) { return (void)extra, launch(f, config->hStream, params, DIMS_OF(config)); }
API cuLaunchCooperativeKernel_ptsz(CUfunction f, DIMS, CUstream s, void **params) { return (void)shared, launch(f, s, params, SHAPE(gx, gy, gz), SHAPE(bx, by, bz)); }
API cuGraphLaunch_ptsz(CUgraphExec exec, CUstream s) { return cuGraphLaunch(exec, s); }
API cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream s) { return cuMemAllocAsync(out, size, s); }
API cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream s) { return cuMemAllocFromPoolAsync(out, size, pool, s); }
API cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream s) { return cuMemFreeAsync(at, s); }
API cuStreamSynchronize_ptsz(CUstream s) { return cuStreamSynchronize(s); }
API cuStreamBeginCapture_ptsz(CUstream s) { return cuStreamBeginCapture(s); }
API cuStreamBeginCapture_v2_ptsz(CUstream s, CUstreamCaptureMode mode) { return cuStreamBeginCapture_v2(s, mode); }
API cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) { return cuStreamBeginCaptureToGraph(s, graph, after, edges, count, mode); }
API cuStreamEndCapture_ptsz(CUstream s, CUgraph *out) { return cuStreamEndCapture(s, out); }

/* CUDA 2 */

static unsigned int short_of(uint64_t bytes) { return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes; }

API cuMemAlloc(CUdeviceptr_v1 *out, unsigned int size) {
    uint64_t at = 0;
    CUresult result = out ? allocate(&at, size, PLAIN, map_low) : CUDA_ERROR_INVALID_VALUE;
    return result ? result : (*out = (CUdeviceptr_v1)at, CUDA_SUCCESS);
}
API cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element) {
    (void)element;
    if (!pitch || !width || !height || round_up(width, GRAIN) * height > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (unsigned int)round_up(width, GRAIN);
    return cuMemAlloc(out, *pitch * height);
}
API cuMemFree(CUdeviceptr_v1 at) { return cuMemFree_v2(at); }
API cuMemGetInfo(unsigned int *free_out, unsigned int *total) {
    size_t left, whole;
    CUresult result = cuMemGetInfo_v2(&left, &whole);
    return result ? result : (*free_out = short_of(left), *total = short_of(whole), CUDA_SUCCESS);
}
API cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    NEED_DEVICE(dev);
    return *bytes = short_of(books->card_bytes), CUDA_SUCCESS;
}
API cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }
API cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }
API cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice dev) { return cuCtxCreate_v2(out, flags, dev); }
API cuCtxDestroy(CUcontext c) { return cuCtxDestroy_v2(c); }
API cuStreamDestroy(CUstream s) { return cuStreamDestroy_v2(s); }
