/* Answers about cards, contexts, streams and pointers: what programs ask before they do anything. Part of cuda.c. */

struct attribute {
    int which, value;
};
/* In the numbers of cuda.h, as of a card with 108 multiprocessors; what is not here is 0: the card cannot do it. */
static const struct attribute attributes[] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64},                       /* threads of a block: all, and each way */
    {5, 2147483647}, {6, 65535}, {7, 65535},                        /* blocks of a grid, each way */
    {8, 49152}, {81, 167936}, {97, 166912}, {111, 1024},            /* shared memory */
    {9, 65536}, {10, 32}, {11, 2147483647}, {12, 65536}, {82, 65536}, /* constants, warp, pitch, registers */
    {13, 1410000}, {36, 1215000}, {37, 5120}, {38, 40 << 20},       /* clocks in kHz, bus width, cache */
    {14, 512}, {15, 1}, {16, 108}, {19, 1}, {31, 1}, {39, 2048}, {40, 3}, {41, 1}, {51, 32},
    {75, 8}, {76, 0}, {78, 1}, {79, 1}, {80, 1}, {89, 1}, {90, 1}, {91, 1}, {95, 1}, {106, 32},
    {83, 1}, {102, 1}, {103, 1}, {115, 1}, {119, 1}, {144, 1},      /* managed, virtual memory, pools, their handles, host pools */
};

API cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice dev) {
    NEED_DEVICE(dev);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = which == 33 ? (int)card_of[dev] + 1 : 0; /* the PCI bus */
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].which == which)
            *out = attributes[i].value;
    return CUDA_SUCCESS;
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    NEED_DEVICE(dev);
    return *major = 8, *minor = 0, CUDA_SUCCESS;
}
API cuDeviceGetPCIBusId(char *out, int length, CUdevice dev) {
    NEED_DEVICE(dev);
    snprintf(out, (size_t)length, "0000:%02X:00.0", card_of[dev] + 1);
    return CUDA_SUCCESS;
}
API cuDeviceGetByPCIBusId(CUdevice *out, const char *text) {
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) == 2)
        for (unsigned d = 0; d < devices; d++)
            if (card_of[d] + 1 == bus)
                return *out = (CUdevice)d, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE;
}
API cuDeviceCanAccessPeer(int *out, CUdevice dev, CUdevice peer) {
    NEED_DEVICE(dev);
    NEED_DEVICE(peer);
    return *out = dev != peer, CUDA_SUCCESS;
}
API cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    NEED_DEVICE(dev);
    return (void)flags, CUDA_SUCCESS;
}

/* Nobody here writes profiles. */
API cuProfilerInitialize(const char *config, const char *output, int mode) { return (void)config, (void)output, (void)mode, CUDA_SUCCESS; }
API cuProfilerStart(void) { return CUDA_SUCCESS; }
API cuProfilerStop(void) { return CUDA_SUCCESS; }

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
};

static int error_row(CUresult error) {
    int row_of_it = sizeof errors / sizeof *errors - 1;
    while (row_of_it >= 0 && errors[row_of_it].code != error)
        row_of_it--;
    return row_of_it;
}
API cuGetErrorName(CUresult error, const char **out) {
    int found = error_row(error);
    return *out = found < 0 ? NULL : errors[found].name, found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
API cuGetErrorString(CUresult error, const char **out) {
    int found = error_row(error);
    return *out = found < 0 ? NULL : errors[found].text, found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Contexts and streams */

API cuCtxGetFlags(unsigned int *out) {
    NEED_CONTEXT;
    return *out = 0, CUDA_SUCCESS;
}
API cuCtxGetApiVersion(CUcontext c, unsigned int *out) { return (void)c, *out = 13000, CUDA_SUCCESS; }
API cuCtxGetId(CUcontext c, unsigned long long *out) {
    if (!c && !(c = context()))
        return CUDA_ERROR_INVALID_CONTEXT;
    return *out = PTR(c), CUDA_SUCCESS;
}
API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    NEED_CONTEXT;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}
API cuStreamGetPriority(CUstream s, int *out) { return (void)s, *out = 0, CUDA_SUCCESS; }
API cuStreamGetFlags(CUstream s, unsigned int *out) { return *out = (uintptr_t)s > 2, CUDA_SUCCESS; }
API cuStreamGetCtx(CUstream s, CUcontext *out) {
    NEED_CONTEXT;
    return *out = (uintptr_t)s > 2 ? s->context : context(), CUDA_SUCCESS;
}
API cuStreamGetCtx_v2(CUstream s, CUcontext *out, void **green) {
    if (green)
        *green = NULL;
    return cuStreamGetCtx(s, out);
}
API cuStreamGetDevice(CUstream s, CUdevice *out) {
    NEED_CONTEXT;
    return *out = (CUdevice)((uintptr_t)s > 2 ? s->context : context())->device, CUDA_SUCCESS;
}
API cuStreamGetId(CUstream s, unsigned long long *out) { return *out = PTR(stream_of(s)), CUDA_SUCCESS; }
API cuEventRecordWithFlags(CUevent e, CUstream s, unsigned int flags) { return (void)flags, cuEventRecord(e, s); }
API cuEventElapsedTime_v2(float *ms, CUevent from, CUevent to) { return cuEventElapsedTime(ms, from, to); }
API cuLaunchHostFunc(CUstream s, void (*run)(void *), void *with) {
    NEED_CONTEXT;
    CUresult result = wait_for(stream_of(s));
    if (!result)
        run(with);
    return result;
}

/* Pointers */

/* With the lock held: what an address lies in, at its beginning or anywhere else. */
static struct block *block_at(uint64_t at) {
    struct block *b = *find(at, PLAIN);
    b = b ? b : *find(at, POOLED);
    b = b ? b : *find(at, RANGE);
    for (unsigned i = 0; i < BUCKETS && !b; i++)
        for (b = buckets[i]; b; b = b->next) {
            bool has_address = b->kind == PLAIN || b->kind == POOLED || b->kind == RANGE || b->kind == HOST;
            if (has_address && at >= b->at && at - b->at < (b->span ? b->span : b->bytes))
                break;
        }
    return b;
}

/* One attribute of a pointer; one the driver did not make belongs to the host. */
API cuPointerGetAttribute(void *out, int which, CUdeviceptr at) {
    NEED_CONTEXT;
    pthread_mutex_lock(&lock);
    struct block *b = block_at(at);
    CUresult result = b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (b && which == CU_POINTER_ATTRIBUTE_CONTEXT)
        *(CUcontext *)out = b->context;
    else if (b && which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned int *)out = b->kind == HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (b && (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER || which == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                   which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR))
        *(CUdeviceptr *)out = at;
    else if (b && which == CU_POINTER_ATTRIBUTE_IS_MANAGED)
        *(unsigned int *)out = 0;
    else if (b && which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)out = (int)b->device;
    else if (b && which == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        *(size_t *)out = b->bytes;
    else if (b)
        result = CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_unlock(&lock);
    return result;
}
API cuPointerGetAttributes(unsigned int count, const int *which, void **out, CUdeviceptr at) {
    for (unsigned i = 0; i < count; i++)
        if (cuPointerGetAttribute(out[i], which[i], at) != CUDA_SUCCESS) {
            bool is_int = which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || which[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                          which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            memset(out[i], 0, is_int ? sizeof(int) : sizeof(void *));
        }
    return CUDA_SUCCESS;
}
API cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *host, unsigned int flags) { return (void)flags, *out = PTR(host), CUDA_SUCCESS; }
API cuMemHostGetFlags(unsigned int *out, void *host) { return (void)host, *out = 0, CUDA_SUCCESS; }
API cuMemAdvise(CUdeviceptr at, size_t size, int advice, CUdevice dev) { return (void)at, (void)size, (void)advice, (void)dev, CUDA_SUCCESS; }
API cuMemAdvise_v2(CUdeviceptr at, size_t size, int advice, CUmemLocation to) { return (void)at, (void)size, (void)advice, (void)to, CUDA_SUCCESS; }
API cuMemPoolSetAccess(CUmemoryPool pool, const void *desc, size_t count) { return (void)pool, (void)desc, (void)count, CUDA_SUCCESS; }
API cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) { return (void)pool, (void)location, *flags = 3, CUDA_SUCCESS; }
