/* A CUDA program that does as it is told: one command a line on stdin, one line of answer. It finds the driver through
 * the door its first argument names: link (its own symbols), dlsym, path (dlopen of the file given as second argument),
 * proc (cuGetProcAddress), thread (the same with per-thread default streams).
 *
 * Also built as a library, for `carpool bench interposer`: whoever loads it calls main.
 *
 * Answers are `RESULT VALUE`: the driver's code, and a number. Slots 0 to 9999 hold what was allocated. What one probe
 * exports another imports through a pair of sockets that both were started with (PROBE_SOCKETS="WRITE READ"). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../driver.h"

#define DIMS unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
/* What is used here: symbol, name and version for cuGetProcAddress, parameters. */
#define FUNCTIONS(X)                                                                                              \
    X(cuInit, cuInit, 2000, (unsigned))                                                                           \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                          \
    X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, (CUdevice))                                     \
    X(cuCtxCreate_v2, cuCtxCreate, 3020, (CUcontext *, unsigned, CUdevice))                                       \
    X(cuCtxDestroy_v2, cuCtxDestroy, 4000, (CUcontext))                                                           \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext))                                                        \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void))                                                           \
    X(cuMemAlloc_v2, cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                   \
    X(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))             \
    X(cuMemAllocManaged, cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned))                              \
    X(cuMemFree_v2, cuMemFree, 3020, (CUdeviceptr))                                                               \
    X(cuMemAllocAsync, cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream))                                 \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))   \
    X(cuMemFreeAsync, cuMemFreeAsync, 11020, (CUdeviceptr, CUstream))                                             \
    X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice))                    \
    X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, (CUmemoryPool, CUmemPool_attribute, void *))           \
    X(cuMemPoolCreate, cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *))                          \
    X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, (CUmemoryPool))                                                  \
    X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t))                                            \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (struct ipc *, CUdeviceptr))                                    \
    X(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000, (CUdeviceptr *, struct ipc, unsigned))                    \
    X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (CUdeviceptr))                                              \
    X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020,                                          \
      (void *, CUmemGenericAllocationHandle, int, unsigned long long))                                            \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020,                                      \
      (CUmemGenericAllocationHandle *, void *, int))                                                              \
    X(cuMemCreate, cuMemCreate, 10020,                                                                            \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                  \
    X(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                          \
    X(cuMemMap, cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
    X(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr, size_t))                                                       \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020,                                                            \
      (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                                           \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *, void *))  \
    X(cuArrayCreate_v2, cuArrayCreate, 3020, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))                          \
    X(cuArrayDestroy, cuArrayDestroy, 2000, (CUarray))                                                            \
    X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000,                                                       \
      (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned))                                            \
    X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, (CUmipmappedArray))                                 \
    X(cuImportExternalMemory, cuImportExternalMemory, 10000,                                                      \
      (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *))                                             \
    X(cuDestroyExternalMemory, cuDestroyExternalMemory, 10000, (CUexternalMemory))                                \
    X(cuMemGetInfo_v2, cuMemGetInfo, 3020, (size_t *, size_t *))                                                  \
    X(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, (size_t *, CUdevice))                                          \
    X(cuModuleLoadData, cuModuleLoadData, 2000, (CUmodule *, const void *))                                       \
    X(cuModuleGetFunction, cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                     \
    X(cuLaunchKernel, cuLaunchKernel, 4000, (CUfunction, DIMS, CUstream, void **, void **))                       \
    X(cuLaunchKernelEx, cuLaunchKernelEx, 11060, (const CUlaunchConfig *, CUfunction, void **, void **))          \
    X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, (CUfunction, DIMS, CUstream, void **))          \
    X(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t))                                   \
    X(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t))                                         \
    X(cuEventCreate, cuEventCreate, 2000, (CUevent *, unsigned))                                                  \
    X(cuEventRecord, cuEventRecord, 2000, (CUevent, CUstream))                                                    \
    X(cuStreamCreate, cuStreamCreate, 2000, (CUstream *, unsigned))                                               \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream))                                                 \
    X(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, (CUstream, CUstreamCaptureMode))                      \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream, CUgraph *))                                       \
    X(cuGraphCreate, cuGraphCreate, 10000, (CUgraph *, unsigned))                                                 \
    X(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040,                                                      \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *))                        \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040,                                            \
      (CUgraphExec *, CUgraph, unsigned long long))                                                               \
    X(cuGraphLaunch, cuGraphLaunch, 10000, (CUgraphExec, CUstream))                                               \
    X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, (CUgraphExec))                                               \
    X(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, (CUdevice))

struct ipc {
    char bytes[64];
};
#define DECLARE(symbol, name, since, params) \
    CUresult symbol params;                  \
    static CUresult(*p_##symbol) params;
FUNCTIONS(DECLARE)
CUresult cuGetProcAddress_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static struct {
    char kind;
    uint64_t at, handle, size;
} held[10000];
static CUcontext context;
static CUmodule module;
static CUstream stream, other_stream;
static CUgraph graph;
static int sockets[2] = {-1, -1}; /* to write to, to read from */
static uint64_t start_ns; /* cuInit, and the first context */

static void find_functions(const char *door, const char *path) {
    void *library = NULL;
    CUresult (*find)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = cuGetProcAddress_v2;
    if (strcmp(door, "link") != 0 && !(library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "%s\n", dlerror());
        exit(9);
    }
    int by_proc = strcmp(door, "proc") == 0 || strcmp(door, "thread") == 0;
    if (by_proc)
        *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
#define FIND(symbol, name, since, params)                                                          \
    if (!library)                                                                                  \
        p_##symbol = symbol;                                                                       \
    else if (by_proc)                                                                              \
        find(#name, (void **)&p_##symbol, since < 7000 ? 7000 : since, strcmp(door, "thread") ? 1 : 2, NULL); \
    else                                                                                           \
        *(void **)&p_##symbol = dlsym(library, #symbol);                                           \
    if (!p_##symbol)                                                                               \
        fprintf(stderr, "no %s\n", #symbol), exit(9);
    FUNCTIONS(FIND)
}

/* At an address of its own; the handle goes, the mapping keeps the memory. */
static CUresult map_and_release(uint64_t *at, uint64_t size, CUmemGenericAllocationHandle handle) {
    CUresult result = p_cuMemAddressReserve((CUdeviceptr *)at, size, 0, 0, 0);
    result = result ? result : p_cuMemMap(*at, size, 0, handle, 0);
    p_cuMemRelease(handle);
    return result;
}

static CUresult allocate(const char *how, int slot, uint64_t size) {
    uint64_t at = 0;
    size_t pitch;
    CUresult result = 999;
    char kind = 'p';
    CUmemAllocationProp prop = {.type = 1, .location = {.type = strcmp(how, "host_vmm") ? 1 : 3}};
    if (strcmp(how, "plain") == 0)
        result = p_cuMemAlloc_v2((CUdeviceptr *)&at, size);
    else if (strcmp(how, "pitch") == 0)
        result = p_cuMemAllocPitch_v2((CUdeviceptr *)&at, &pitch, 1000, size / 1000, 4);
    else if (strcmp(how, "managed") == 0)
        result = p_cuMemAllocManaged((CUdeviceptr *)&at, size, 1);
    else if (strcmp(how, "async") == 0)
        result = p_cuMemAllocAsync((CUdeviceptr *)&at, size, stream);
    else if (strcmp(how, "pool") == 0) {
        CUmemoryPool pool;
        p_cuDeviceGetDefaultMemPool(&pool, 0);
        result = p_cuMemAllocFromPoolAsync((CUdeviceptr *)&at, size, pool, stream);
    } else if (strcmp(how, "own_pool") == 0 || strcmp(how, "host_pool") == 0) { /* a pool for it alone */
        CUmemPoolProps props = {.allocType = 1, .location = {.type = *how == 'o' ? 1 : 3}};
        CUmemoryPool pool = NULL;
        kind = 'o';
        result = p_cuMemPoolCreate(&pool, &props);
        result = result ? result : p_cuMemAllocFromPoolAsync((CUdeviceptr *)&at, size, pool, stream);
        if (result)
            p_cuMemPoolDestroy(pool);
        held[slot].handle = (uint64_t)(uintptr_t)pool;
    } else if (strcmp(how, "exported") == 0) {
        struct ipc handle;
        result = p_cuMemAlloc_v2((CUdeviceptr *)&at, size);
        result = result ? result : p_cuIpcGetMemHandle(&handle, at);
    } else if (strcmp(how, "twice") == 0) { /* one handle, mapped at two addresses that follow each other */
        kind = 'w';
        result = p_cuMemCreate((CUmemGenericAllocationHandle *)&held[slot].handle, size, &prop, 0);
        if (!result) {
            p_cuMemAddressReserve((CUdeviceptr *)&at, 2 * size, 0, 0, 0);
            result = p_cuMemMap(at, size, 0, held[slot].handle, 0) | p_cuMemMap(at + size, size, 0, held[slot].handle, 0);
            p_cuMemRelease(held[slot].handle);
        }
    } else if (strcmp(how, "vmm") == 0 || strcmp(how, "host_vmm") == 0 || strcmp(how, "shareable") == 0) {
        kind = 'v';
        prop.requestedHandleTypes = *how == 's';
        result = p_cuMemCreate((CUmemGenericAllocationHandle *)&at, size, &prop, 0);
    } else if (strcmp(how, "mapped") == 0) {
        kind = 'm';
        result = p_cuMemCreate((CUmemGenericAllocationHandle *)&held[slot].handle, size, &prop, 0);
        result = result ? result : map_and_release(&at, size, held[slot].handle);
    } else if (strcmp(how, "array") == 0) {
        kind = 'a';
        CUDA_ARRAY_DESCRIPTOR desc = {.Width = 1000, .Height = size / 4000, .Format = 0x20, .NumChannels = 1};
        result = p_cuArrayCreate_v2((CUarray *)&at, &desc);
    } else if (strcmp(how, "mipmap") == 0) {
        kind = 'i';
        CUDA_ARRAY3D_DESCRIPTOR desc = {.Width = 1000, .Height = size / 4000, .Format = 0x20, .NumChannels = 1};
        result = p_cuMipmappedArrayCreate((CUmipmappedArray *)&at, &desc, 4);
    } else if (strcmp(how, "external") == 0) {
        kind = 'x';
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = 1, .size = size};
        result = p_cuImportExternalMemory((CUexternalMemory *)&at, &desc);
    } else if (strcmp(how, "graph") == 0) {
        kind = 'g';
        CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytesize = size};
        CUgraphNode node;
        p_cuGraphCreate(&graph, 0);
        result = p_cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
        if (!result)
            result = p_cuGraphInstantiateWithFlags((CUgraphExec *)&at, graph, 0);
        if (!result)
            result = p_cuGraphLaunch((CUgraphExec)at, stream);
    } else if (strcmp(how, "captured") == 0) { /* a graph with a node of memory, not launched yet */
        kind = 'g';
        result = p_cuStreamBeginCapture_v2(stream, 2);
        result = result ? result : p_cuMemAllocAsync((CUdeviceptr *)&held[slot].handle, size, stream);
        result = p_cuStreamEndCapture(stream, &graph) | result;
        result = result ? result : p_cuGraphInstantiateWithFlags((CUgraphExec *)&at, graph, 0);
    } else if (strcmp(how, "beside") == 0 || strcmp(how, "under") == 0) { /* a capture that it is not part of */
        result = p_cuStreamBeginCapture_v2(stream, 2);
        if (!result)
            result = *how == 'b' ? p_cuMemAllocAsync((CUdeviceptr *)&at, size, other_stream) : p_cuMemAlloc_v2((CUdeviceptr *)&at, size);
        result = p_cuStreamEndCapture(stream, &graph) | result;
    }
    if (!result) {
        held[slot].kind = kind;
        held[slot].at = at;
        held[slot].size = size;
    }
    return result;
}

static CUresult release(int slot, int is_async) {
    uint64_t at = held[slot].at;
    CUresult result;
    switch (held[slot].kind) {
    case 'p': result = is_async ? p_cuMemFreeAsync(at, stream) : p_cuMemFree_v2(at); break;
    case 'o':
        result = is_async ? p_cuMemFreeAsync(at, stream) : p_cuMemFree_v2(at);
        result = result ? result : p_cuMemPoolDestroy((CUmemoryPool)(uintptr_t)held[slot].handle);
        break;
    case 'w': result = p_cuMemUnmap(at, 2 * held[slot].size); break;
    case 'v': result = p_cuMemRelease(at); break;
    case 'm': result = p_cuMemUnmap(at, held[slot].size); break;
    case 'a': result = p_cuArrayDestroy((CUarray)at); break;
    case 'i': result = p_cuMipmappedArrayDestroy((CUmipmappedArray)at); break;
    case 'c': result = p_cuIpcCloseMemHandle(at); break;
    case 'x': result = p_cuDestroyExternalMemory((CUexternalMemory)at); break;
    case 'g':
        result = p_cuGraphExecDestroy((CUgraphExec)at);
        p_cuDeviceGraphMemTrim(0);
        break;
    default: result = 998;
    }
    held[slot].kind = 0;
    return result;
}

/* Memory of this process for another one: an IPC handle, or an exported allocation, which is a file. */
static CUresult export_to(int socket, int slot) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } with = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct ipc handle = {{0}};
    struct iovec body = {&handle, sizeof handle};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1};
    int fd = -1;
    CUresult result = held[slot].kind == 'v' ? p_cuMemExportToShareableHandle(&fd, held[slot].at, 1, 0)
                                             : p_cuIpcGetMemHandle(&handle, held[slot].at);
    if (fd >= 0) {
        memcpy(CMSG_DATA(&with.head), &fd, sizeof fd);
        message.msg_control = &with;
        message.msg_controllen = sizeof with;
    }
    if (!result && sendmsg(socket, &message, 0) != sizeof handle)
        result = 996;
    if (fd >= 0)
        close(fd);
    return result;
}

static CUresult import_from(int socket, int slot, uint64_t size, bool is_mapped) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } with;
    struct ipc handle;
    struct iovec body = {&handle, sizeof handle};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &with, .msg_controllen = sizeof with};
    uint64_t at = 0;
    int fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof handle)
        return 996;
    struct cmsghdr *found = CMSG_FIRSTHDR(&message);
    CUresult result = 0;
    held[slot].kind = found ? is_mapped ? 'm' : 'v' : 'c';
    if (found) {
        memcpy(&fd, CMSG_DATA(found), sizeof fd);
        result = p_cuMemImportFromShareableHandle((CUmemGenericAllocationHandle *)&at, (void *)(intptr_t)fd, 1);
        close(fd);
        result = result || !is_mapped ? result : map_and_release(&at, size, at);
    } else
        result = p_cuIpcOpenMemHandle_v2((CUdeviceptr *)&at, handle, 1);
    held[slot].at = at;
    held[slot].size = size;
    held[slot].kind = result ? 0 : held[slot].kind;
    return result;
}

static CUresult launch(const char *how, const char *kernel, CUstream on) {
    static CUfunction f;
    static char name[64];
    CUlaunchConfig config = {.gridDimX = 1, .hStream = on};
    if (strcmp(name, kernel) != 0)
        p_cuModuleGetFunction(&f, module, strcpy(name, kernel));
    if (strcmp(how, "ex") == 0)
        return p_cuLaunchKernelEx(&config, f, NULL, NULL);
    if (strcmp(how, "cooperative") == 0)
        return p_cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, on, NULL);
    return p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Allocates and frees all kinds at random, forever or `count` times. */
static void churn(unsigned seed, long count) {
    static const char *const kinds[] = {"plain", "pitch", "managed", "async", "pool", "vmm", "mapped", "array", "mipmap", "external", "graph"};
    for (long i = 0; count == 0 || i < count; i++) {
        int slot = rand_r(&seed) % 32;
        if (held[slot].kind)
            release(slot, rand_r(&seed) % 2);
        else
            allocate(kinds[rand_r(&seed) % 11], slot, (uint64_t)(1 + rand_r(&seed) % 8) * (2u << 20));
    }
}

static void *churn_thread(void *seed) {
    p_cuCtxSetCurrent(context);
    uint64_t at[16] = {0};
    unsigned state = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 1000; i++) {
        int slot = rand_r(&state) % 16;
        if (at[slot] && p_cuMemFree_v2(at[slot]) == 0)
            at[slot] = 0;
        else if (p_cuMemAlloc_v2((CUdeviceptr *)&at[slot], 4096u * (1 + (unsigned)rand_r(&state) % 64)))
            at[slot] = 0;
    }
    for (int slot = 0; slot < 16; slot++)
        if (at[slot])
            p_cuMemFree_v2(at[slot]);
    return NULL;
}

/* Launches two kernels on a stream of its own, for as long as it is told. */
static void *launch_thread(void *until_ns) {
    CUfunction f[2];
    CUstream own;
    p_cuCtxSetCurrent(context);
    p_cuStreamCreate(&own, 0);
    p_cuModuleGetFunction(&f[0], module, "busy_20us");
    p_cuModuleGetFunction(&f[1], module, "busy_1ms");
    for (unsigned i = 0; now_ns() < *(uint64_t *)until_ns; i++) {
        p_cuLaunchKernel(f[i % 8 == 0], 1 + i % 3, 1, 1, 1, 1, 1, 0, own, NULL, NULL);
        if (i % 32 == 0)
            p_cuStreamSynchronize(own);
    }
    p_cuStreamSynchronize(own);
    return NULL;
}

/* Launches one long kernel twice. */
static void *long_thread(void *is_over) {
    CUfunction f;
    CUstream own;
    p_cuCtxSetCurrent(context);
    p_cuStreamCreate(&own, 0);
    p_cuModuleGetFunction(&f, module, "busy_1s");
    for (int i = 0; i < 2; i++)
        p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, own, NULL, NULL);
    atomic_store((atomic_bool *)is_over, true);
    return NULL;
}

static void answer(CUresult result, unsigned long long value) {
    printf("%d %llu\n", result, value);
    fflush(stdout);
}

/* One function of its own: callgrind counts what is inside it. */
__attribute__((noinline)) uint64_t probe_bench(int what, long count, CUfunction f, CUevent event, CUresult *result) {
    CUdeviceptr at;
    uint64_t start = now_ns();
    for (long i = 0; i < count && !*result; i++)
        if (what == 0)
            *result = p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        else if (what == 1)
            *result = p_cuMemAlloc_v2(&at, 4096) || p_cuMemFree_v2(at);
        else
            *result = p_cuEventRecord(event, stream);
    return now_ns() - start;
}

static void bench(int what, long count) {
    CUfunction f;
    CUevent event;
    CUresult result = 0;
    p_cuModuleGetFunction(&f, module, "nothing");
    p_cuEventCreate(&event, 0);
    uint64_t passed = probe_bench(what, count, f, event, &result);
    answer(result, passed);
}

static void obey(const char *verb, char words[3][64]) {
    size_t left = 0, total = 0;
    long a = atol(words[0]), b = atol(words[1]);
    if (strcmp(verb, "alloc") == 0)
        answer(allocate(words[0], (int)b, strtoull(words[2], NULL, 10)), held[b].at);
    else if (strcmp(verb, "free") == 0)
        answer(release((int)a, (int)b), 0);
    else if (strcmp(verb, "info") == 0) {
        CUresult result = p_cuMemGetInfo_v2(&left, &total);
        answer(result, a ? total : left);
    } else if (strcmp(verb, "total") == 0) {
        CUresult result = p_cuDeviceTotalMem_v2(&total, 0);
        answer(result, total);
    } else if (strcmp(verb, "launch") == 0)
        answer(launch(words[0], words[1], stream), 0);
    else if (strcmp(verb, "copy") == 0) { /* `a` bytes there and back; answers how many came back changed */
        char *out = calloc(2, (size_t)a), *back = out + a;
        CUdeviceptr at = 0;
        for (long i = 0; i < a; i++)
            out[i] = (char)(i * 7);
        CUresult result = p_cuMemAlloc_v2(&at, (size_t)a);
        result = result ? result : p_cuMemcpyHtoD_v2(at, out, (size_t)a);
        result = result ? result : p_cuMemcpyDtoH_v2(back, at, (size_t)a);
        p_cuMemFree_v2(at);
        answer(result, memcmp(out, back, (size_t)a) != 0);
        free(out);
    } else if (strcmp(verb, "export") == 0)
        answer(export_to(sockets[0], (int)a), 0);
    else if (strcmp(verb, "import") == 0) /* into the slot `a` what has `b` bytes; the third word: mapped, or kept */
        answer(import_from(sockets[1], (int)a, (uint64_t)b, strcmp(words[2], "mapped") == 0), 0);
    else if (strcmp(verb, "run") == 0) /* the graph in this slot */
        answer(p_cuGraphLaunch((CUgraphExec)held[a].at, stream), 0);
    else if (strcmp(verb, "sync") == 0)
        answer(p_cuCtxSynchronize(), 0);
    else if (strcmp(verb, "threshold") == 0) {
        CUmemoryPool pool;
        cuuint64_t all = ~0ull;
        p_cuDeviceGetDefaultMemPool(&pool, 0);
        answer(p_cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all), 0);
    } else if (strcmp(verb, "capture") == 0) { /* a graph of `b` kernels, one byte range, launched `a` times */
        CUgraphExec exec = NULL;
        CUresult result = p_cuStreamBeginCapture_v2(stream, 0);
        for (long i = 0; i < b && !result; i++)
            result = launch("plain", words[2], stream);
        result = p_cuStreamEndCapture(stream, &graph) | result;
        result = result ? result : p_cuGraphInstantiateWithFlags(&exec, graph, 0);
        for (long i = 0; i < a && !result; i++)
            result = p_cuGraphLaunch(exec, stream);
        answer(result, 0);
    } else if (strcmp(verb, "loop") == 0) { /* launches for `a` ms, a wait after every `b`; answers how many */
        unsigned long long count = 0;
        CUfunction f;
        p_cuModuleGetFunction(&f, module, words[2]);
        for (uint64_t end = now_ns() + (uint64_t)a * 1000000u; now_ns() < end;) {
            p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
            if (++count % (unsigned long)b == 0)
                p_cuStreamSynchronize(stream);
        }
        answer(p_cuCtxSynchronize(), count);
    } else if (strcmp(verb, "grids") == 0) { /* launches for `a` ms in `b` grids, a wait after every 50th; answers how many */
        unsigned long long count = 0;
        CUfunction f;
        p_cuModuleGetFunction(&f, module, words[2]);
        for (uint64_t end = now_ns() + (uint64_t)a * 1000000u; now_ns() < end;) {
            p_cuLaunchKernel(f, 1 + (unsigned)(count * 7919 % (unsigned long)b), 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
            if (++count % 50 == 0)
                p_cuStreamSynchronize(stream);
        }
        answer(p_cuCtxSynchronize(), count);
    } else if (strcmp(verb, "graphs") == 0) { /* the same with a graph of four such kernels; answers how many graphs */
        unsigned long long count = 0;
        CUgraphExec exec = NULL;
        CUresult result = p_cuStreamBeginCapture_v2(stream, 0);
        for (int i = 0; i < 4; i++)
            launch("plain", words[2], stream);
        result = p_cuStreamEndCapture(stream, &graph) | result;
        result = result ? result : p_cuGraphInstantiateWithFlags(&exec, graph, 0);
        for (uint64_t end = now_ns() + (uint64_t)a * 1000000u; !result && now_ns() < end;) {
            result = p_cuGraphLaunch(exec, stream);
            if (++count % (unsigned long)b == 0)
                p_cuStreamSynchronize(stream);
        }
        answer(result ? result : p_cuCtxSynchronize(), count);
    } else if (strcmp(verb, "first") == 0) { /* how long the first calls took, and an allocation */
        CUdeviceptr at;
        uint64_t start = now_ns();
        CUresult result = p_cuMemAlloc_v2(&at, 4096);
        answer(result, start_ns + now_ns() - start);
    } else if (strcmp(verb, "bench") == 0) /* `b` times the thing `a`; answers with the time, in ns */
        bench((int)a, b);
    else if (strcmp(verb, "churn") == 0) {
        churn((unsigned)a, b);
        answer(0, 0);
    } else if (strcmp(verb, "threads") == 0) {
        pthread_t threads[8];
        for (uintptr_t i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, churn_thread, (void *)(i + 1));
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        answer(0, 0);
    } else if (strcmp(verb, "launchers") == 0) { /* four threads that launch for `a` ms */
        pthread_t threads[4];
        uint64_t until_ns = now_ns() + (uint64_t)a * 1000000u;
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], NULL, launch_thread, &until_ns);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        answer(p_cuCtxSynchronize(), 0);
    } else if (strcmp(verb, "beside") == 0) { /* graphs captured for `a` ms while a thread launches; answers how many */
        pthread_t thread;
        unsigned long long count = 0;
        uint64_t until_ns = now_ns() + (uint64_t)a * 1000000u;
        CUresult result = 0;
        pthread_create(&thread, NULL, launch_thread, &until_ns);
        for (; !result && now_ns() < until_ns; count++) {
            result = p_cuStreamBeginCapture_v2(stream, 0) | launch("plain", "busy_20us", stream);
            usleep(2000);
            result |= p_cuStreamEndCapture(stream, &graph);
        }
        pthread_join(thread, NULL);
        answer(result, count);
    } else if (strcmp(verb, "aside") == 0) { /* a launch while a thread waits for its own; answers if that is over */
        pthread_t thread;
        atomic_bool is_over = false;
        CUresult result = launch("plain", words[0], stream);
        pthread_create(&thread, NULL, long_thread, &is_over);
        usleep(300000); /* the first is over, and nobody has read so: the thread waits for its own */
        result |= launch("plain", words[0], stream);
        bool was_over = atomic_load(&is_over);
        pthread_join(thread, NULL);
        answer(result, was_over);
    } else if (strcmp(verb, "context") == 0) { /* a context of its own, `a` bytes in it and of a pool, and its end */
        CUcontext other;
        CUdeviceptr at, pooled = 0;
        CUresult result = p_cuCtxCreate_v2(&other, 0, 0);
        CUresult asked = result ? result : p_cuMemAlloc_v2(&at, (size_t)a);
        asked = asked ? asked : p_cuMemAllocAsync(&pooled, (size_t)a, NULL);
        result = result ? result : p_cuCtxDestroy_v2(other);
        p_cuCtxSetCurrent(context);
        size_t left = 0, total = 0;
        p_cuMemGetInfo_v2(&left, &total);
        result = result || !pooled ? result : p_cuMemFreeAsync(pooled, NULL);
        answer(result ? result : asked, total - left);
    } else if (strcmp(verb, "reset") == 0)
        answer(p_cuDevicePrimaryCtxReset_v2(0) | p_cuDevicePrimaryCtxRetain(&context, 0), 0);
    else if (strcmp(verb, "retain") == 0) {
        CUmemGenericAllocationHandle handle;
        CUresult result = p_cuMemRetainAllocationHandle(&handle, (void *)held[a].at);
        answer(result, result ? 0 : handle);
    } else if (strcmp(verb, "release") == 0)
        answer(p_cuMemRelease((CUmemGenericAllocationHandle)a), 0);
    else if (strcmp(verb, "fork") == 0) { /* a child that lives `a` ms; answers with what it could allocate */
        CUdeviceptr at;
        pid_t child = fork();
        if (child == 0) {
            CUresult result = p_cuMemAlloc_v2(&at, 4096);
            usleep((useconds_t)a * 1000);
            _exit(result);
        }
        int status = 0;
        waitpid(child, &status, 0);
        answer(WEXITSTATUS(status), 0);
    } else if (strcmp(verb, "next") == 0) /* who finds what behind this program */
        answer(dlsym(RTLD_NEXT, words[0]) == dlsym(RTLD_DEFAULT, words[0]), dlsym(RTLD_NEXT, words[0]) != NULL);
    else
        answer(997, 0);
}

__attribute__((visibility("default"))) int main(int count, char **arguments) {
    char line[256], verb[64], words[3][64];
    if (count < 2)
        return 9;
    find_functions(arguments[1], count > 2 ? arguments[2] : NULL);
    uint64_t start = now_ns();
    CUresult result = p_cuInit(0);
    result = result ? result : p_cuDevicePrimaryCtxRetain(&context, 0);
    result = result ? result : p_cuCtxSetCurrent(context);
    start_ns = now_ns() - start;
    result = result ? result : p_cuStreamCreate(&stream, 0);
    result = result ? result : p_cuStreamCreate(&other_stream, 1); /* 1: does not wait for the default one */
    if (getenv("PROBE_SOCKETS"))
        sscanf(getenv("PROBE_SOCKETS"), "%d %d", &sockets[0], &sockets[1]);
    result = result ? result : p_cuModuleLoadData(&module, "");
    answer(result, (unsigned long long)getpid());
    while (fgets(line, sizeof line, stdin)) {
        memset(words, 0, sizeof words);
        if (sscanf(line, "%63s %63s %63s %63s", verb, words[0], words[1], words[2]) >= 1)
            obey(verb, words);
    }
    return 0;
}
