/* A stand-in for CUDA's public runtime library, libcudart.so.13, over whatever driver the program finds: NVIDIA's own
 * asks the driver for private tables, which nobody outside knows. What PyTorch's CUDA build calls has an answer here; what
 * it only links to is added by tests/torch_cuda/libraries.py and answers "not supported".
 *
 * The driver is found as the real one finds it, by dlopen and cuGetProcAddress, so that an interposer sees the same calls.
 * Error numbers are the driver's: the runtime's are the same. Kernels are what the compiler registers when a library is
 * loaded; the driver is asked for one at its first launch.
 *
 * Threads: any. Lock: `lock` for the registered names. The current device and the newest error are the thread's. */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../driver.h"

#define API __attribute__((visibility("default"))) int
#define NOTHING __attribute__((visibility("default"))) void
#define VERSION 13000
#define DRIVER_VERSION 12080 /* of the calls below: some have other parameters since */
#define DEVICES_MAX 16
#define PTR(p) ((CUdeviceptr)(uintptr_t)(p))

/* The driver: CALL(name, parameters) by its name without a version. */

#define DRIVER                                                                                                          \
    CALL(cuInit, (unsigned))                                                                                            \
    CALL(cuDriverGetVersion, (int *))                                                                                   \
    CALL(cuGetErrorName, (CUresult, const char **))                                                                     \
    CALL(cuGetErrorString, (CUresult, const char **))                                                                   \
    CALL(cuDeviceGetCount, (int *))                                                                                     \
    CALL(cuDeviceGetName, (char *, int, CUdevice))                                                                      \
    CALL(cuDeviceGetUuid, (void *, CUdevice))                                                                           \
    CALL(cuDeviceTotalMem, (size_t *, CUdevice))                                                                        \
    CALL(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                  \
    CALL(cuDeviceGetPCIBusId, (char *, int, CUdevice))                                                                  \
    CALL(cuDeviceCanAccessPeer, (int *, CUdevice, CUdevice))                                                            \
    CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))                                                         \
    CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                             \
    CALL(cuCtxSetCurrent, (CUcontext))                                                                                  \
    CALL(cuCtxSynchronize, (void))                                                                                      \
    CALL(cuCtxGetStreamPriorityRange, (int *, int *))                                                                   \
    CALL(cuMemGetInfo, (size_t *, size_t *))                                                                            \
    CALL(cuMemAlloc, (CUdeviceptr *, size_t))                                                                           \
    CALL(cuMemFree, (CUdeviceptr))                                                                                      \
    CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                                            \
    CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                                       \
    CALL(cuMemHostAlloc, (void **, size_t, unsigned))                                                                   \
    CALL(cuMemFreeHost, (void *))                                                                                       \
    CALL(cuMemHostRegister, (void *, size_t, unsigned))                                                                 \
    CALL(cuMemHostUnregister, (void *))                                                                                 \
    CALL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))                                                            \
    CALL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *))                                                            \
    CALL(cuMemPoolSetAccess, (CUmemoryPool, const void *, size_t))                                                      \
    CALL(cuMemPoolTrimTo, (CUmemoryPool, size_t))                                                                       \
    CALL(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))                                                                  \
    CALL(cuMemcpyHtoD, (CUdeviceptr, const void *, size_t))                                                             \
    CALL(cuMemcpyDtoH, (void *, CUdeviceptr, size_t))                                                                   \
    CALL(cuMemcpyDtoD, (CUdeviceptr, CUdeviceptr, size_t))                                                              \
    CALL(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                                   \
    CALL(cuMemcpyHtoDAsync, (CUdeviceptr, const void *, size_t, CUstream))                                              \
    CALL(cuMemcpyDtoHAsync, (void *, CUdeviceptr, size_t, CUstream))                                                    \
    CALL(cuMemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                               \
    CALL(cuMemsetD8, (CUdeviceptr, unsigned char, size_t))                                                              \
    CALL(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                               \
    CALL(cuPointerGetAttributes, (unsigned, const int *, void **, CUdeviceptr))                                         \
    CALL(cuIpcGetMemHandle, (cudaIpcMemHandle_t *, CUdeviceptr))                                                        \
    CALL(cuIpcOpenMemHandle, (CUdeviceptr *, cudaIpcMemHandle_t, unsigned))                                             \
    CALL(cuIpcCloseMemHandle, (CUdeviceptr))                                                                            \
    CALL(cuStreamCreateWithPriority, (CUstream *, unsigned, int))                                                       \
    CALL(cuStreamDestroy, (CUstream))                                                                                   \
    CALL(cuStreamSynchronize, (CUstream))                                                                               \
    CALL(cuStreamQuery, (CUstream))                                                                                     \
    CALL(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                              \
    CALL(cuStreamGetPriority, (CUstream, int *))                                                                        \
    CALL(cuStreamIsCapturing, (CUstream, int *))                                                                        \
    CALL(cuStreamBeginCapture, (CUstream, int))                                                                         \
    CALL(cuStreamEndCapture, (CUstream, CUgraph *))                                                                     \
    CALL(cuStreamGetCaptureInfo, (CUstream, int *, cuuint64_t *, CUgraph *, const CUgraphNode **, const void **, size_t *)) \
    CALL(cuThreadExchangeStreamCaptureMode, (int *))                                                                    \
    CALL(cuEventCreate, (CUevent *, unsigned))                                                                          \
    CALL(cuEventDestroy, (CUevent))                                                                                     \
    CALL(cuEventRecord, (CUevent, CUstream))                                                                            \
    CALL(cuEventRecordWithFlags, (CUevent, CUstream, unsigned))                                                         \
    CALL(cuEventQuery, (CUevent))                                                                                       \
    CALL(cuEventSynchronize, (CUevent))                                                                                 \
    CALL(cuEventElapsedTime, (float *, CUevent, CUevent))                                                               \
    CALL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                                           \
    CALL(cuGraphDestroy, (CUgraph))                                                                                     \
    CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                     \
    CALL(cuGraphExecDestroy, (CUgraphExec))                                                                             \
    CALL(cuGraphLaunch, (CUgraphExec, CUstream))                                                                        \
    CALL(cuLibraryLoadData, (CUmodule *, const void *, int *, void **, unsigned, int *, void **, unsigned))             \
    CALL(cuLibraryUnload, (CUmodule))                                                                                   \
    CALL(cuLibraryGetKernel, (CUfunction *, CUmodule, const char *))                                                    \
    CALL(cuFuncGetAttribute, (int *, int, CUfunction))                                                                  \
    CALL(cuFuncSetAttribute, (CUfunction, int, int))                                                                    \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *, CUfunction, int, size_t, unsigned))              \
    CALL(cuLaunchHostFunc, (CUstream, void (*)(void *), void *))                                                        \
    CALL(cuLaunchCooperativeKernel, (CUfunction, SHAPE, SHAPE, unsigned, CUstream, void **))                            \
    CALL(cuLaunchKernel, (CUfunction, SHAPE, SHAPE, unsigned, CUstream, void **, void **))                              \
    CALL(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))
#define SHAPE unsigned, unsigned, unsigned

static struct {
#define CALL(name, params) CUresult(*name) params;
    DRIVER
#undef CALL
} driver;
typedef CUresult (*finder)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
static finder find_call;
static int driver_error;

static CUresult nobody(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void open_driver(void) {
    static const char *const names[] = {
#define CALL(name, params) #name,
        DRIVER
#undef CALL
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), **calls = (void **)(void *)&driver;
    void *found = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    memcpy(&find_call, &found, sizeof found);
    if (!find_call) {
        driver_error = 35; /* cudaErrorInsufficientDriver: what programs without a driver get */
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (find_call(names[i], &calls[i], DRIVER_VERSION, 0, NULL) || !calls[i])
            calls[i] = (void *)nobody;
    driver_error = driver.cuInit(0);
}

static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int device, newest;

static int said(int error) {
    if (error)
        newest = error;
    return error;
}

static int need_driver(void) {
    pthread_once(&driver_once, open_driver);
    return driver_error;
}

/* The primary context of the thread's device, made at its first use. */
static int need_context(void) {
    static CUcontext contexts[DEVICES_MAX];
    static _Thread_local CUcontext own;
    int error = need_driver();
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    if (!contexts[device])
        error = driver.cuDevicePrimaryCtxRetain(&contexts[device], device);
    CUcontext wanted = contexts[device];
    if (error)
        contexts[device] = NULL;
    pthread_mutex_unlock(&lock);
    if (!error && own != wanted)
        error = driver.cuCtxSetCurrent(own = wanted);
    return error;
}

/* Ask the driver once it and a context are there; what it says is also kept as the thread's newest error. */
#define WITH_DRIVER(call)             \
    do {                              \
        int trouble = need_driver();  \
        return said(trouble ? trouble : driver.call); \
    } while (0)
#define WITH_CONTEXT(call)            \
    do {                              \
        int trouble = need_context(); \
        return said(trouble ? trouble : driver.call); \
    } while (0)

/* Errors */

API cudaGetLastError(void) {
    int error = newest;
    return newest = 0, error;
}
API cudaPeekAtLastError(void) { return newest; }
static const char *text_of(int error, bool is_name) {
    const char *text = NULL;
    if (error == 35)
        return is_name ? "cudaErrorInsufficientDriver" : "CUDA driver version is insufficient for CUDA runtime version";
    if (!need_driver())
        (is_name ? driver.cuGetErrorName : driver.cuGetErrorString)(error, &text);
    return text ? text : "unrecognized error code";
}
__attribute__((visibility("default"))) const char *cudaGetErrorName(int error) { return text_of(error, true); }
__attribute__((visibility("default"))) const char *cudaGetErrorString(int error) { return text_of(error, false); }

/* Devices */

API cudaRuntimeGetVersion(int *out) { return *out = VERSION, 0; }
API cudaDriverGetVersion(int *out) {
    if (need_driver())
        return *out = 0; /* as the real one: no driver is version 0 */
    return said(driver.cuDriverGetVersion(out));
}
API cudaGetDeviceCount(int *out) {
    *out = 0;
    WITH_DRIVER(cuDeviceGetCount(out));
}
API cudaGetDevice(int *out) {
    int trouble = need_driver();
    return *out = device, said(trouble);
}
API cudaSetDevice(int wanted) {
    int count = 0, trouble = need_driver();
    trouble = trouble ? trouble : driver.cuDeviceGetCount(&count);
    if (!trouble && (wanted < 0 || wanted >= count || wanted >= DEVICES_MAX))
        trouble = CUDA_ERROR_INVALID_DEVICE;
    if (!trouble)
        device = wanted;
    return said(trouble ? trouble : need_context());
}
API cudaDeviceSynchronize(void) { WITH_CONTEXT(cuCtxSynchronize()); }
API cudaDeviceGetAttribute(int *out, int which, int dev) { WITH_DRIVER(cuDeviceGetAttribute(out, which, dev)); }
API cudaDeviceGetPCIBusId(char *out, int length, int dev) { WITH_DRIVER(cuDeviceGetPCIBusId(out, length, dev)); }
API cudaDeviceCanAccessPeer(int *out, int dev, int peer) { WITH_DRIVER(cuDeviceCanAccessPeer(out, dev, peer)); }
API cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return (void)peer, (void)flags, 0; }
API cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { WITH_CONTEXT(cuCtxGetStreamPriorityRange(least, greatest)); }
API cudaDeviceGetDefaultMemPool(CUmemoryPool *out, int dev) { WITH_DRIVER(cuDeviceGetDefaultMemPool(out, dev)); }
API cudaProfilerStart(void) { return 0; }
API cudaProfilerStop(void) { return 0; }

static int attribute(int which, int dev) {
    int value = 0;
    driver.cuDeviceGetAttribute(&value, which, dev);
    return value;
}

API cudaGetDeviceProperties(struct cudaDeviceProp *out, int dev) {
    static const struct {
        int which;
        size_t at;
    } ints[] = {
#define INT(which, field) {which, offsetof(struct cudaDeviceProp, field)}
        INT(12, regsPerBlock), INT(10, warpSize), INT(1, maxThreadsPerBlock), INT(2, maxThreadsDim[0]),
        INT(3, maxThreadsDim[1]), INT(4, maxThreadsDim[2]), INT(5, maxGridSize[0]), INT(6, maxGridSize[1]),
        INT(7, maxGridSize[2]), INT(75, major), INT(76, minor), INT(16, multiProcessorCount), INT(18, integrated),
        INT(19, canMapHostMemory), INT(31, concurrentKernels), INT(32, ECCEnabled), INT(33, pciBusID), INT(34, pciDeviceID),
        INT(50, pciDomainID), INT(40, asyncEngineCount), INT(41, unifiedAddressing), INT(37, memoryBusWidth),
        INT(38, l2CacheSize), INT(39, maxThreadsPerMultiProcessor), INT(78, streamPrioritiesSupported),
        INT(82, regsPerMultiprocessor), INT(83, managedMemory), INT(95, cooperativeLaunch),
        INT(106, maxBlocksPerMultiProcessor), INT(115, memoryPoolsSupported),
#undef INT
    };
    int trouble = need_driver();
    if (trouble)
        return said(trouble);
    memset(out, 0, sizeof *out);
    if ((trouble = driver.cuDeviceGetName(out->name, sizeof out->name, dev)) ||
        (trouble = driver.cuDeviceTotalMem(&out->totalGlobalMem, dev)) ||
        (trouble = driver.cuDeviceGetUuid(out->uuid, dev)))
        return said(trouble);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        *(int *)((char *)out + ints[i].at) = attribute(ints[i].which, dev);
    out->sharedMemPerBlock = (size_t)attribute(8, dev);
    out->totalConstMem = (size_t)attribute(9, dev);
    out->memPitch = (size_t)attribute(11, dev);
    out->textureAlignment = (size_t)attribute(14, dev);
    out->texturePitchAlignment = (size_t)attribute(51, dev);
    out->sharedMemPerMultiprocessor = (size_t)attribute(81, dev);
    out->sharedMemPerBlockOptin = (size_t)attribute(97, dev);
    out->reservedSharedMemPerBlock = (size_t)attribute(111, dev);
    return 0;
}

API cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *status) {
    int trouble = need_driver();
    return said(trouble ? trouble : find_call(name, out, (int)version, flags, status));
}

/* Memory */

API cudaMemGetInfo(size_t *free_out, size_t *total) { WITH_CONTEXT(cuMemGetInfo(free_out, total)); }
API cudaMalloc(void **out, size_t size) {
    *out = NULL;
    WITH_CONTEXT(cuMemAlloc((CUdeviceptr *)out, size));
}
API cudaFree(void *at) { WITH_CONTEXT(cuMemFree(PTR(at))); }
API cudaMallocAsync(void **out, size_t size, CUstream s) {
    *out = NULL;
    WITH_CONTEXT(cuMemAllocAsync((CUdeviceptr *)out, size, s));
}
API cudaFreeAsync(void *at, CUstream s) { WITH_CONTEXT(cuMemFreeAsync(PTR(at), s)); }
API cudaHostAlloc(void **out, size_t size, unsigned flags) { WITH_CONTEXT(cuMemHostAlloc(out, size, flags)); }
API cudaFreeHost(void *at) { WITH_CONTEXT(cuMemFreeHost(at)); }
API cudaHostRegister(void *at, size_t size, unsigned flags) { WITH_CONTEXT(cuMemHostRegister(at, size, flags)); }
API cudaHostUnregister(void *at) { WITH_CONTEXT(cuMemHostUnregister(at)); }
API cudaMemPoolGetAttribute(CUmemoryPool pool, int which, void *out) { WITH_CONTEXT(cuMemPoolGetAttribute(pool, which, out)); }
API cudaMemPoolSetAttribute(CUmemoryPool pool, int which, void *value) { WITH_CONTEXT(cuMemPoolSetAttribute(pool, which, value)); }
API cudaMemPoolSetAccess(CUmemoryPool pool, const void *desc, size_t n) { WITH_CONTEXT(cuMemPoolSetAccess(pool, desc, n)); }
API cudaMemPoolTrimTo(CUmemoryPool pool, size_t keep) { WITH_CONTEXT(cuMemPoolTrimTo(pool, keep)); }
API cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *at) { WITH_CONTEXT(cuIpcGetMemHandle(out, PTR(at))); }
API cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags) { WITH_CONTEXT(cuIpcOpenMemHandle((CUdeviceptr *)out, handle, flags)); }
API cudaIpcCloseMemHandle(void *at) { WITH_CONTEXT(cuIpcCloseMemHandle(PTR(at))); }

API cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at) {
    unsigned type = 0, is_managed = 0;
    int dev = 0, which[] = {2, 8, 9}, trouble = need_context();
    trouble = trouble ? trouble : driver.cuPointerGetAttributes(3, which, (void *[]){&type, &is_managed, &dev}, PTR(at));
    if (trouble)
        return said(trouble);
    bool is_device = type == 2;
    *out = (struct cudaPointerAttributes){
        .type = is_managed ? cudaMemoryTypeManaged : is_device ? cudaMemoryTypeDevice : type == 1 ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered,
        .device = is_device ? dev : type == 1 ? device : -2, /* the runtime's word for a pointer it does not know */
        .devicePointer = type ? (void *)(uintptr_t)at : NULL,
        .hostPointer = is_device ? NULL : (void *)(uintptr_t)at,
    };
    return 0;
}

API cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, CUstream s) {
    if (kind == cudaMemcpyHostToDevice)
        WITH_CONTEXT(cuMemcpyHtoDAsync(PTR(to), from, n, s));
    if (kind == cudaMemcpyDeviceToHost)
        WITH_CONTEXT(cuMemcpyDtoHAsync(to, PTR(from), n, s));
    if (kind == cudaMemcpyDeviceToDevice)
        WITH_CONTEXT(cuMemcpyDtoDAsync(PTR(to), PTR(from), n, s));
    WITH_CONTEXT(cuMemcpyAsync(PTR(to), PTR(from), n, s));
}
API cudaMemcpy(void *to, const void *from, size_t n, int kind) {
    if (kind == cudaMemcpyHostToDevice)
        WITH_CONTEXT(cuMemcpyHtoD(PTR(to), from, n));
    if (kind == cudaMemcpyDeviceToHost)
        WITH_CONTEXT(cuMemcpyDtoH(to, PTR(from), n));
    if (kind == cudaMemcpyDeviceToDevice)
        WITH_CONTEXT(cuMemcpyDtoD(PTR(to), PTR(from), n));
    WITH_CONTEXT(cuMemcpy(PTR(to), PTR(from), n));
}
API cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n, CUstream s) {
    return (void)to_device, (void)from_device, cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, s);
}
API cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, CUstream s) {
    int trouble = 0;
    for (size_t line = 0; line < height && !trouble; line++)
        trouble = cudaMemcpyAsync((char *)to + line * to_pitch, (const char *)from + line * from_pitch, width, kind, s);
    return trouble;
}
API cudaMemset(void *at, int value, size_t n) { WITH_CONTEXT(cuMemsetD8(PTR(at), (unsigned char)value, n)); }
API cudaMemsetAsync(void *at, int value, size_t n, CUstream s) { WITH_CONTEXT(cuMemsetD8Async(PTR(at), (unsigned char)value, n, s)); }

/* Streams, events, graphs */

API cudaStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) { WITH_CONTEXT(cuStreamCreateWithPriority(out, flags, priority)); }
API cudaStreamCreateWithFlags(CUstream *out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
API cudaStreamCreate(CUstream *out) { return cudaStreamCreateWithPriority(out, 0, 0); }
API cudaStreamDestroy(CUstream s) { WITH_CONTEXT(cuStreamDestroy(s)); }
API cudaStreamSynchronize(CUstream s) { WITH_CONTEXT(cuStreamSynchronize(s)); }
API cudaStreamQuery(CUstream s) { WITH_CONTEXT(cuStreamQuery(s)); }
API cudaStreamWaitEvent(CUstream s, CUevent e, unsigned flags) { WITH_CONTEXT(cuStreamWaitEvent(s, e, flags)); }
API cudaStreamGetPriority(CUstream s, int *out) { WITH_CONTEXT(cuStreamGetPriority(s, out)); }
API cudaStreamIsCapturing(CUstream s, int *out) { WITH_CONTEXT(cuStreamIsCapturing(s, out)); }
API cudaStreamBeginCapture(CUstream s, int mode) { WITH_CONTEXT(cuStreamBeginCapture(s, mode)); }
API cudaStreamEndCapture(CUstream s, CUgraph *out) { WITH_CONTEXT(cuStreamEndCapture(s, out)); }
API cudaStreamGetCaptureInfo(CUstream s, int *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, const void **edges, size_t *count) {
    WITH_CONTEXT(cuStreamGetCaptureInfo(s, status, id, graph, after, edges, count));
}
API cudaThreadExchangeStreamCaptureMode(int *mode) { WITH_CONTEXT(cuThreadExchangeStreamCaptureMode(mode)); }
API cudaLaunchHostFunc(CUstream s, void (*run)(void *), void *with) { WITH_CONTEXT(cuLaunchHostFunc(s, run, with)); }
API cudaEventCreateWithFlags(CUevent *out, unsigned flags) { WITH_CONTEXT(cuEventCreate(out, flags)); }
API cudaEventCreate(CUevent *out) { return cudaEventCreateWithFlags(out, 0); }
API cudaEventDestroy(CUevent e) { WITH_CONTEXT(cuEventDestroy(e)); }
API cudaEventRecord(CUevent e, CUstream s) { WITH_CONTEXT(cuEventRecord(e, s)); }
API cudaEventRecordWithFlags(CUevent e, CUstream s, unsigned flags) { WITH_CONTEXT(cuEventRecordWithFlags(e, s, flags)); }
API cudaEventQuery(CUevent e) { WITH_CONTEXT(cuEventQuery(e)); }
API cudaEventSynchronize(CUevent e) { WITH_CONTEXT(cuEventSynchronize(e)); }
API cudaEventElapsedTime(float *ms, CUevent from, CUevent to) { WITH_CONTEXT(cuEventElapsedTime(ms, from, to)); }
API cudaGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { WITH_CONTEXT(cuGraphGetNodes(graph, nodes, count)); }
API cudaGraphDestroy(CUgraph graph) { WITH_CONTEXT(cuGraphDestroy(graph)); }
API cudaGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) { WITH_CONTEXT(cuGraphInstantiateWithFlags(out, graph, flags)); }
API cudaGraphExecDestroy(CUgraphExec exec) { WITH_CONTEXT(cuGraphExecDestroy(exec)); }
API cudaGraphLaunch(CUgraphExec exec, CUstream s) { WITH_CONTEXT(cuGraphLaunch(exec, s)); }

/* What the compiler registers: a kernel by the address of its host function, a variable by its own. */

struct entry {
    const void *host;
    const char *name;
    const void *image;
    size_t bytes; /* of a variable */
    void *at;     /* the variable, or the driver's kernel once it was asked for */
};
static struct entry *entries;
static size_t entries_used, entries_room;
static CUmodule program; /* every kernel is found by its name, so one library is enough */

static struct entry *slot_of(struct entry *table, size_t room, const void *host) {
    size_t i = ((uintptr_t)host >> 4) * 0x9E3779B97F4A7C15ull & (room - 1);
    while (table[i].host && table[i].host != host)
        i = (i + 1) & (room - 1);
    return &table[i];
}

static void add_entry(const void *host, const char *name, const void *image, size_t bytes) {
    pthread_mutex_lock(&lock);
    if (entries_used * 2 >= entries_room) {
        size_t room = entries_room ? entries_room * 2 : 4096;
        struct entry *larger = calloc(room, sizeof *larger);
        if (!larger)
            abort();
        for (size_t i = 0; i < entries_room; i++)
            if (entries[i].host)
                *slot_of(larger, room, entries[i].host) = entries[i];
        free(entries);
        entries = larger;
        entries_room = room;
    }
    struct entry *own = slot_of(entries, entries_room, host);
    entries_used += own->host == NULL;
    *own = (struct entry){.host = host, .name = name, .image = image, .bytes = bytes};
    pthread_mutex_unlock(&lock);
}

__attribute__((visibility("default"))) void **__cudaRegisterFatBinary(void *image) {
    void **handle = malloc(sizeof *handle);
    return handle ? *handle = image, handle : NULL;
}
NOTHING __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
NOTHING __cudaUnregisterFatBinary(void **handle) { free(handle); }
__attribute__((visibility("default"))) char __cudaInitModule(void **handle) { return (void)handle, 1; }
NOTHING __cudaRegisterFunction(void **handle, const char *host, char *fun, const char *name, int limit, void *tid, void *bid, void *block, void *grid, int *warp) {
    (void)fun, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    add_entry(host, name, *handle, 0);
}
NOTHING __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int is_extern, size_t bytes, int is_constant, int is_global) {
    (void)address, (void)is_extern, (void)is_constant, (void)is_global;
    add_entry(host, name, *handle, bytes);
}

/* The driver's kernel or the variable's memory (the host's: a module's own bytes are not counted). */
static int find_entry(void **out, const void *host) {
    int error = need_context();
    pthread_mutex_lock(&lock);
    struct entry *e = entries_room ? slot_of(entries, entries_room, host) : NULL;
    bool is_known = !error && e && e->host;
    if (!error && !is_known)
        error = 98; /* cudaErrorInvalidDeviceFunction */
    if (is_known && !e->at && e->bytes)
        error = (e->at = calloc(1, e->bytes)) ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
    else if (is_known && !e->at) {
        CUfunction found = NULL;
        if (!program)
            error = driver.cuLibraryLoadData(&program, e->image, NULL, NULL, 0, NULL, NULL, 0);
        error = error ? error : driver.cuLibraryGetKernel(&found, program, e->name);
        e->at = found;
    }
    *out = is_known ? e->at : NULL;
    pthread_mutex_unlock(&lock);
    return error;
}

API cudaGetSymbolAddress(void **out, const void *symbol) { return said(find_entry(out, symbol)); }
API cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t offset, int kind) {
    void *at;
    int error = find_entry(&at, symbol);
    return error ? said(error) : cudaMemcpy((char *)at + offset, from, n, kind);
}

/* Launches */

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    CUstream stream;
} configuration;

__attribute__((visibility("default"))) unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream s) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = s;
    return 0;
}
API __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *s) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *(CUstream *)s = configuration.stream;
    return 0;
}
API __cudaGetKernel(const void **out, const void *host) { return *out = host, 0; } /* asked for at the launch */

#define DIMS(d) d.x, d.y, d.z
API cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, CUstream s) {
    void *f;
    int error = find_entry(&f, host);
    return said(error ? error : driver.cuLaunchKernel(f, DIMS(grid), DIMS(block), (unsigned)shared, s, args, NULL));
}
API __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, CUstream s) { return cudaLaunchKernel(kernel, grid, block, args, shared, s); }
API cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared, CUstream s) {
    void *f;
    int error = find_entry(&f, host);
    return said(error ? error : driver.cuLaunchCooperativeKernel(f, DIMS(grid), DIMS(block), (unsigned)shared, s, args));
}
API cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args) {
    void *f;
    int error = find_entry(&f, host);
    CUlaunchConfig config = {c->gridDim.x, c->gridDim.y, c->gridDim.z, c->blockDim.x, c->blockDim.y, c->blockDim.z,
                             (unsigned)c->dynamicSmemBytes, c->stream, c->attrs, c->numAttrs};
    return said(error ? error : driver.cuLaunchKernelEx(&config, f, args, NULL));
}

API cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host) {
    void *f;
    int error = find_entry(&f, host), values[9] = {0};
    for (int which = 0; which < 9 && !error; which++)
        error = driver.cuFuncGetAttribute(&values[which], which, f);
    *out = (struct cudaFuncAttributes){.maxThreadsPerBlock = values[0], .sharedSizeBytes = (size_t)values[1], .constSizeBytes = (size_t)values[2],
        .localSizeBytes = (size_t)values[3], .numRegs = values[4], .ptxVersion = values[5], .binaryVersion = values[6], .cacheModeCA = values[7],
        .maxDynamicSharedSizeBytes = values[8]};
    return said(error);
}
API cudaFuncSetAttribute(const void *host, int which, int value) {
    void *f;
    int error = find_entry(&f, host);
    return said(error ? error : driver.cuFuncSetAttribute(f, which, value));
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *host, int block, size_t shared, unsigned flags) {
    void *f;
    int error = find_entry(&f, host);
    return said(error ? error : driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, block, shared, flags));
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *host, int block, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, host, block, shared, 0);
}
