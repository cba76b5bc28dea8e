/* The hooks: what stands between the program and the driver. Each is short: ask the account, call the driver, record.
 *
 * Threads: whichever the program calls on. Lock: none here. */
#define _GNU_SOURCE
#include "guest.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define GRAIN 512 /* the driver's own smallest step */
#define DEVICES_MAX 64
#define LARGE_COPY (1u << 20)
#define READY                                                              \
    do {                                                                   \
        if (!atomic_load_explicit(&cp_is_ready, memory_order_acquire))     \
            cp_find_driver();                                              \
    } while (0)
#define KEY(handle) ((uint64_t)(uintptr_t)(handle))

static atomic_bool has_graph_memory; /* a graph of this process allocates: graph launches must be looked at */
static atomic_int captures;          /* streams being captured */
static _Atomic uint64_t primary[DEVICES_MAX];

static uint64_t rounded(uint64_t size) { return size > UINT64_MAX / 4 ? UINT64_MAX / 4 : (size + GRAIN - 1) / GRAIN * GRAIN; }

static uint64_t current_context(void) {
    CUcontext context = NULL;
    return real_cuCtxGetCurrent(&context) == CUDA_SUCCESS ? KEY(context) : 0;
}

static int current_device(void) {
    CUdevice device = 0;
    return real_cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0;
}

/* After the driver was asked for bytes that are reserved already. */
static CUresult record(CUresult result, enum cp_kind kind, uint64_t key, uint64_t bytes) {
    if (result == CUDA_SUCCESS)
        cp_note(kind, key, current_context(), bytes);
    else
        cp_unreserve(bytes);
    return result;
}

/* Lookup */

CUresult cp_cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
    READY;
    CUresult result = real_cuGetProcAddress(name, out, version, flags);
    if (result == CUDA_SUCCESS && out)
        *out = cp_swap(*out);
    return result;
}

CUresult cp_cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    READY;
    CUresult result = real_cuGetProcAddress_v2(name, out, version, flags, status);
    if (result == CUDA_SUCCESS && out)
        *out = cp_swap(*out);
    return result;
}

/* Plain, pitched, managed */

/* What neither the cap nor the card has room for, if the user allowed it. */
static CUresult spill(CUdeviceptr *out, uint64_t bytes) {
    if (!cp_may_spill || real_cuMemAllocManaged(out, bytes, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    cp_note(CP_SPILLED, *out, current_context(), bytes);
    cp_spill(bytes);
    return CUDA_SUCCESS;
}

#define ALLOCATE(symbol, params, args, on_refusal)                    \
    CUresult cp_##symbol params {                                     \
        READY;                                                        \
        uint64_t bytes = rounded(size);                               \
        if (!cp_reserve(bytes))                                       \
            return on_refusal;                                        \
        CUresult result = real_##symbol args;                         \
        record(result, CP_POINTER, result ? 0 : *out, bytes);         \
        return result == CUDA_ERROR_OUT_OF_MEMORY ? on_refusal : result; \
    }
ALLOCATE(cuMemAlloc, (CUdeviceptr_v1 *out, unsigned int size), (out, size), CUDA_ERROR_OUT_OF_MEMORY)
ALLOCATE(cuMemAlloc_v2, (CUdeviceptr *out, size_t size), (out, size), spill(out, bytes))
ALLOCATE(cuMemAllocManaged, (CUdeviceptr *out, size_t size, unsigned int flags), (out, size, flags), spill(out, bytes))

static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX / 4 : result;
}

/* How wide a line becomes only the driver knows: the least is asked for first, the rest after. */
#define ALLOCATE_PITCH(symbol, pointer, word)                                                              \
    CUresult cp_##symbol(pointer *out, word *pitch, word width, word height, unsigned int element) {       \
        READY;                                                                                             \
        uint64_t bytes = rounded(product(rounded(width), height));                                         \
        if (!cp_reserve(bytes))                                                                            \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
        CUresult result = real_##symbol(out, pitch, width, height, element);                               \
        uint64_t whole = result ? bytes : rounded(product(*pitch, height));                                \
        if (whole < bytes)                                                                                 \
            cp_unreserve(bytes - whole);                                                                   \
        else if (whole > bytes && !cp_reserve(whole - bytes)) {                                            \
            real_cuMemFree_v2(*out);                                                                       \
            cp_unreserve(bytes);                                                                           \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                               \
        }                                                                                                  \
        return record(result, CP_POINTER, result ? 0 : *out, whole);                                       \
    }
ALLOCATE_PITCH(cuMemAllocPitch, CUdeviceptr_v1, unsigned int)
ALLOCATE_PITCH(cuMemAllocPitch_v2, CUdeviceptr, size_t)

/* The entry goes before the bytes: another thread may get the same address at once. */
#define FREE(symbol, kind, params, key, args)            \
    CUresult cp_##symbol params {                        \
        READY;                                           \
        struct cp_entry entry;                           \
        bool is_known = cp_take_entry(kind, key, &entry); \
        if (!is_known && kind == CP_POINTER && cp_may_spill && cp_take_entry(CP_SPILLED, key, &entry)) \
            return cp_spill(-entry.bytes), real_cuMemFree_v2(key); \
        CUresult result = real_##symbol args;            \
        if (is_known && result == CUDA_SUCCESS)          \
            cp_unreserve(entry.bytes);                   \
        else if (is_known)                               \
            cp_note(kind, key, entry.owner, entry.bytes); \
        return result;                                   \
    }
FREE(cuMemFree, CP_POINTER, (CUdeviceptr_v1 at), at, (at))
FREE(cuMemFree_v2, CP_POINTER, (CUdeviceptr at), at, (at))
FREE(cuMemFreeAsync, CP_POINTER, (CUdeviceptr at, CUstream stream), at, (at, stream))
FREE(cuMemFreeAsync_ptsz, CP_POINTER, (CUdeviceptr at, CUstream stream), at, (at, stream))
FREE(cuArrayDestroy, CP_ARRAY, (CUarray array), KEY(array), (array))
FREE(cuMipmappedArrayDestroy, CP_MIPMAP, (CUmipmappedArray array), KEY(array), (array))
FREE(cuDestroyExternalMemory, CP_EXTERNAL, (CUexternalMemory memory), KEY(memory), (memory))

/* Stream-ordered. Inside a capture nothing is allocated: it becomes a node, whose bytes appear at the graph's launch. */

static bool is_captured(CUstream stream) {
    CUstreamCaptureStatus status = 0;
    if (!atomic_load_explicit(&captures, memory_order_relaxed))
        return false;
    if (real_cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || !status)
        return false;
    atomic_store(&has_graph_memory, true);
    return true;
}

/* A pool of host memory gives nothing of the device's. */
static CUresult note_pool(CUresult result, CUmemoryPool *out, const CUmemLocation *location, int type) {
    struct cp_entry known;
    if (result == CUDA_SUCCESS && location->type != CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED &&
        !cp_find_entry(CP_HOST_POOL, KEY(*out), &known))
        cp_note(CP_HOST_POOL, KEY(*out), 0, 0);
    return result;
}

CUresult cp_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
    READY;
    return note_pool(real_cuMemPoolCreate(out, props), out, props ? &props->location : NULL, props ? props->allocType : 0);
}
CUresult cp_cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
    READY;
    return note_pool(real_cuMemGetMemPool(out, location, type), out, location, type);
}
CUresult cp_cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
    READY;
    return note_pool(real_cuMemGetDefaultMemPool(out, location, type), out, location, type);
}
CUresult cp_cuMemPoolDestroy(CUmemoryPool pool) {
    READY;
    struct cp_entry entry;
    cp_take_entry(CP_HOST_POOL, KEY(pool), &entry);
    return real_cuMemPoolDestroy(pool);
}

static bool is_host_pool(CUmemoryPool pool) {
    struct cp_entry entry;
    return cp_find_entry(CP_HOST_POOL, KEY(pool), &entry);
}

#define ALLOCATE_ASYNC(symbol, params, is_free, args)                \
    CUresult cp_##symbol params {                                    \
        READY;                                                       \
        if (is_free || is_captured(stream))                          \
            return real_##symbol args;                               \
        uint64_t bytes = rounded(size);                              \
        if (!cp_reserve(bytes))                                      \
            return CUDA_ERROR_OUT_OF_MEMORY;                         \
        CUresult result = real_##symbol args;                        \
        return record(result, CP_POINTER, result ? 0 : *out, bytes); \
    }
#define FROM_POOL (CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
ALLOCATE_ASYNC(cuMemAllocAsync, (CUdeviceptr *out, size_t size, CUstream stream), false, (out, size, stream))
ALLOCATE_ASYNC(cuMemAllocAsync_ptsz, (CUdeviceptr *out, size_t size, CUstream stream), false, (out, size, stream))
ALLOCATE_ASYNC(cuMemAllocFromPoolAsync, FROM_POOL, is_host_pool(pool), (out, size, pool, stream))
ALLOCATE_ASYNC(cuMemAllocFromPoolAsync_ptsz, FROM_POOL, is_host_pool(pool), (out, size, pool, stream))

/* A pool that keeps what was freed would hold bytes that nobody counts. */
CUresult cp_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
    READY;
    cuuint64_t nothing = 0;
    bool is_threshold = which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && cp_is_capped();
    return real_cuMemPoolSetAttribute(pool, which, is_threshold && value ? &nothing : value);
}

/* Virtual memory management. A backing lives while handles or mapped ranges refer to it; handle numbers may be given
 * out again while an old range is still mapped, so backings have numbers of our own. */

static void drop_backing(uint64_t id) {
    struct cp_entry backing;
    if (id && cp_change_refs(CP_BACKING, id, -1, &backing) && backing.refs == 0)
        cp_unreserve(backing.bytes);
}

CUresult cp_cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    READY;
    bool is_counted = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (is_counted && !cp_reserve(size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real_cuMemCreate(out, size, prop, flags);
    if (is_counted && result == CUDA_SUCCESS) {
        uint64_t id = cp_new_id();
        cp_note(CP_BACKING, id, 0, size);
        cp_note(CP_HANDLE, *out, id, 0);
    } else if (is_counted)
        cp_unreserve(size);
    return result;
}

CUresult cp_cuMemRelease(CUmemGenericAllocationHandle handle) {
    READY;
    struct cp_entry entry;
    bool is_known = cp_change_refs(CP_HANDLE, handle, -1, &entry);
    CUresult result = real_cuMemRelease(handle);
    if (is_known && result == CUDA_SUCCESS)
        drop_backing(entry.owner);
    else if (is_known && entry.refs == 0)
        cp_note(CP_HANDLE, handle, entry.owner, 0);
    else if (is_known)
        cp_change_refs(CP_HANDLE, handle, 1, &entry);
    return result;
}

CUresult cp_cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    READY;
    CUresult result = real_cuMemMap(at, size, offset, handle, flags);
    struct cp_entry entry = {0}, backing;
    if (result == CUDA_SUCCESS) {
        if (cp_find_entry(CP_HANDLE, handle, &entry))
            cp_change_refs(CP_BACKING, entry.owner, 1, &backing);
        cp_note(CP_RANGE, at, entry.owner, size); /* also for imported memory: an unmap walks over it */
    }
    return result;
}

CUresult cp_cuMemUnmap(CUdeviceptr at, size_t size) {
    READY;
    CUresult result = real_cuMemUnmap(at, size);
    struct cp_entry range;
    for (CUdeviceptr end = at + size; result == CUDA_SUCCESS && at < end; at += range.bytes) {
        if (!cp_take_entry(CP_RANGE, at, &range) || !range.bytes)
            break;
        drop_backing(range.owner);
    }
    return result;
}

CUresult cp_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at) {
    READY;
    CUresult result = real_cuMemRetainAllocationHandle(out, at);
    struct cp_entry range, other;
    if (result != CUDA_SUCCESS)
        return result;
    if (cp_change_refs(CP_HANDLE, *out, 1, &other))
        cp_change_refs(CP_BACKING, other.owner, 1, &other);
    else if (cp_find_entry(CP_RANGE, KEY(at), &range) && cp_change_refs(CP_BACKING, range.owner, 1, &other))
        cp_note(CP_HANDLE, *out, range.owner, 0);
    return result;
}

/* Arrays. Only the driver knows their bytes, and only once they exist: the plain product is reserved first. */

static uint64_t array_bytes(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned int channels) {
    uint64_t each = format == 0x01 || format == 0x08 ? 1 : format == 0x02 || format == 0x09 || format == 0x10 ? 2 : 4;
    return product(product(width, height ? height : 1), product(depth ? depth : 1, each * channels));
}

/* The reserved bytes become the real ones; false if that is too much. */
static bool correct(uint64_t *bytes, CUresult asked, const CUDA_ARRAY_MEMORY_REQUIREMENTS *needs) {
    if (asked != CUDA_SUCCESS)
        return true;
    if (needs->size > *bytes && !cp_reserve(needs->size - *bytes))
        return false;
    if (needs->size < *bytes)
        cp_unreserve(*bytes - needs->size);
    *bytes = needs->size;
    return true;
}

#define MAKE_ARRAY(symbol, kind, params, bytes_of, args, ask, destroy)        \
    CUresult cp_##symbol params {                                             \
        READY;                                                                \
        uint64_t bytes = desc ? bytes_of : 0;                                 \
        CUDA_ARRAY_MEMORY_REQUIREMENTS needs;                                 \
        if (!cp_reserve(bytes))                                               \
            return CUDA_ERROR_OUT_OF_MEMORY;                                  \
        CUresult result = real_##symbol args;                                 \
        if (!result && !correct(&bytes, ask(&needs, *out, current_device()), &needs)) { \
            destroy(*out);                                                    \
            cp_unreserve(bytes);                                              \
            return CUDA_ERROR_OUT_OF_MEMORY;                                  \
        }                                                                     \
        return record(result, kind, result ? 0 : KEY(*out), bytes);           \
    }
#define IS_EMPTY(desc) ((desc)->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
#define BYTES_3D (IS_EMPTY(desc) ? 0 : array_bytes(desc->Width, desc->Height, desc->Depth, desc->Format, desc->NumChannels))
MAKE_ARRAY(cuArrayCreate_v2, CP_ARRAY, (CUarray *out, const CUDA_ARRAY_DESCRIPTOR *desc),
           array_bytes(desc->Width, desc->Height, 1, desc->Format, desc->NumChannels), (out, desc),
           real_cuArrayGetMemoryRequirements, real_cuArrayDestroy)
MAKE_ARRAY(cuArray3DCreate_v2, CP_ARRAY, (CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc), BYTES_3D, (out, desc),
           real_cuArrayGetMemoryRequirements, real_cuArrayDestroy)
MAKE_ARRAY(cuMipmappedArrayCreate, CP_MIPMAP,
           (CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels), BYTES_3D,
           (out, desc, levels), real_cuMipmappedArrayGetMemoryRequirements, real_cuMipmappedArrayDestroy)

CUresult cp_cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    READY;
    uint64_t bytes = desc ? desc->size : 0;
    if (!cp_reserve(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = real_cuImportExternalMemory(out, desc);
    return record(result, CP_EXTERNAL, result ? 0 : KEY(*out), bytes);
}

/* Graphs */

static void settle_graphs(int device) {
    cuuint64_t held = 0;
    if (real_cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &held) == CUDA_SUCCESS)
        cp_settle_graph(held);
}

/* A node that could never be given its bytes is refused when it is made, as the driver does. */
static bool fits_now(uint64_t bytes) {
    bool fits = cp_reserve(bytes);
    if (fits)
        cp_unreserve(bytes);
    atomic_store(&has_graph_memory, true);
    return fits;
}

CUresult cp_cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    READY;
    if (params && !fits_now(rounded(params->bytesize)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return real_cuGraphAddMemAllocNode(out, graph, after, count, params);
}

/* The parameters of any node begin with its type and three reserved words. */
static bool node_fits(const CUgraphNodeParams *params) {
    int type = 0;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    if (params)
        memcpy(&type, params, sizeof type);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return true;
    memcpy(&alloc, (const char *)params + 16, sizeof alloc);
    return fits_now(rounded(alloc.bytesize));
}

CUresult cp_cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params) {
    READY;
    return node_fits(params) ? real_cuGraphAddNode(out, graph, after, count, params) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cp_cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    READY;
    return node_fits(params) ? real_cuGraphAddNode_v2(out, graph, after, edges, count, params) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cp_cuDeviceGraphMemTrim(CUdevice device) {
    READY;
    CUresult result = real_cuDeviceGraphMemTrim(device);
    settle_graphs(device);
    return result;
}

/* Contexts */

CUresult cp_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    READY;
    CUresult result = real_cuDevicePrimaryCtxRetain(out, device);
    if (result == CUDA_SUCCESS && device >= 0 && device < DEVICES_MAX)
        atomic_store(&primary[device], KEY(*out));
    return result;
}

static CUresult drop_primary(CUresult result, CUdevice device) {
    unsigned int flags;
    int is_active = 1;
    if (result == CUDA_SUCCESS && device >= 0 && device < DEVICES_MAX && atomic_load(&primary[device]) &&
        real_cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS && !is_active)
        cp_drop_context(atomic_load(&primary[device]));
    return result;
}

#define END_PRIMARY(symbol)                                 \
    CUresult cp_##symbol(CUdevice device) {                 \
        READY;                                              \
        return drop_primary(real_##symbol(device), device); \
    }
END_PRIMARY(cuDevicePrimaryCtxRelease)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2)
END_PRIMARY(cuDevicePrimaryCtxReset)
END_PRIMARY(cuDevicePrimaryCtxReset_v2)

#define END_CONTEXT(symbol)                       \
    CUresult cp_##symbol(CUcontext context) {     \
        READY;                                    \
        CUresult result = real_##symbol(context); \
        if (result == CUDA_SUCCESS)               \
            cp_drop_context(KEY(context));        \
        return result;                            \
    }
END_CONTEXT(cuCtxDestroy)
END_CONTEXT(cuCtxDestroy_v2)

/* Figures */

CUresult cp_cuMemGetInfo_v2(size_t *free, size_t *total) {
    READY;
    CUresult result = real_cuMemGetInfo_v2(free, total);
    uint64_t left = result || !free ? 0 : *free, whole = result || !total ? 0 : *total;
    if (result == CUDA_SUCCESS && free && total && cp_view(&left, &whole)) {
        *free = left;
        *total = whole;
    }
    return result;
}

CUresult cp_cuMemGetInfo(unsigned int *free, unsigned int *total) {
    READY;
    CUresult result = real_cuMemGetInfo(free, total);
    uint64_t left = result || !free ? 0 : *free, whole = result || !total ? 0 : *total;
    if (result == CUDA_SUCCESS && free && total && cp_view(&left, &whole)) {
        *free = (unsigned int)left;
        *total = (unsigned int)whole;
    }
    return result;
}

#define TOTAL(symbol, word)                                                  \
    CUresult cp_##symbol(word *bytes, CUdevice device) {                     \
        READY;                                                               \
        CUresult result = real_##symbol(bytes, device);                      \
        uint64_t left = 0, whole = result || !bytes ? 0 : *bytes;            \
        if (result == CUDA_SUCCESS && bytes && cp_view(&left, &whole))       \
            *bytes = (word)whole;                                            \
        return result;                                                       \
    }
TOTAL(cuDeviceTotalMem, unsigned int)
TOTAL(cuDeviceTotalMem_v2, size_t)

/* NVML shows every card of the machine; the cap is of the one the job may use. */
static bool is_job_device(nvmlDevice_t device) {
    char uuid[96] = "";
    if (strncmp(cp_device, "GPU-", 4) != 0)
        return true;
    return real_nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS || strstr(cp_device, uuid) != NULL;
}

#define NVML_MEMORY(symbol, type)                                                                         \
    nvmlReturn_t cp_##symbol(nvmlDevice_t device, type *out) {                                            \
        if (!real_##symbol)                                                                               \
            cp_find_driver();                                                                             \
        nvmlReturn_t result = real_##symbol(device, out);                                                 \
        uint64_t left = result ? 0 : out->free, whole = result ? 0 : out->total;                          \
        if (result == NVML_SUCCESS && cp_is_capped() && is_job_device(device) && cp_view(&left, &whole)) { \
            out->free = left;                                                                             \
            out->total = whole;                                                                           \
            out->used = whole - left;                                                                     \
        }                                                                                                 \
        return result;                                                                                    \
    }
NVML_MEMORY(nvmlDeviceGetMemoryInfo, nvmlMemory_t)
NVML_MEMORY(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t)

/* Launches, waits, captures */

#define PASS_TURN                                                                                              \
    do {                                                                                                       \
        cp_word *word = atomic_load_explicit(&cp_turn, memory_order_acquire);                                  \
        if (__builtin_expect(atomic_load_explicit(word, memory_order_relaxed) != 0, 0))                        \
            cp_wait_turn();                                                                                    \
    } while (0)
#define MUST_PAY (atomic_load_explicit(atomic_load_explicit(&cp_gate, memory_order_acquire), memory_order_relaxed) != 0)
#define KERNEL(f, x, y, z) (KEY(f) ^ (uint64_t)(x) << 48 ^ (uint64_t)(y) << 40 ^ (uint64_t)(z) << 56)
#define CONFIG(field) (config ? config->field : 0)
#define PER_THREAD ((CUstream)2)

/* What most launches under a compute limit come to: a known kernel, and money enough in the purse. */
static inline __attribute__((always_inline)) bool pays_quickly(uint64_t key, CUstream stream) {
    struct cp_kernel *kernel = &cp_kernels[cp_home_of(key)];
    int64_t cost = (int64_t)GET(kernel->cost_ns), left = GET(kernel->until_sample_ns) - cost;
    if (GET(kernel->key) != key || left <= 0 || GET(captures) || GET(*GET(cp_turn)) ||
        (stream != GET(cp_only_stream) && !GET(cp_has_streams)))
        return false;
    if (atomic_fetch_sub(&cp_purse, cost) < cost)
        return atomic_fetch_add(&cp_purse, cost), false;
    PUT(kernel->until_sample_ns, left);
    return true;
}

#define PAY_AND_GO(symbol, is_ptsz, params, args, key, on)                                              \
    __attribute__((noinline)) static CUresult measured_##symbol params {                                 \
        CUstream into = is_ptsz && !(on) ? PER_THREAD : (on);                                            \
        struct cp_sample *sample = cp_pay(key, into);                                                    \
        CUresult result = real_##symbol args;                                                            \
        if (sample)                                                                                      \
            cp_end_sample(sample, into);                                                                 \
        return result;                                                                                   \
    }                                                                                                    \
    __attribute__((used)) CUresult cp_slow_##symbol params {                                             \
        return pays_quickly(key, is_ptsz && !(on) ? PER_THREAD : (on)) ? real_##symbol args              \
                                                                       : measured_##symbol args;         \
    }

/* Four instructions where the turn is held and there is no compute limit: a C function would save and restore eleven
 * arguments around a call that is hardly ever made. */
#if defined(__x86_64__)
#define GATE(symbol, name, since, is_ptsz, params, args, key, on)                                                \
    PAY_AND_GO(symbol, is_ptsz, params, args, key, on)                                                           \
    __asm__(".text\n.globl cp_" #symbol "\n.hidden cp_" #symbol "\n.type cp_" #symbol ", @function\n"             \
            "cp_" #symbol ":\n  mov cp_gate(%rip), %rax\n  cmpq $0, (%rax)\n  jne cp_slow_" #symbol "\n"          \
            "  jmp *real_" #symbol "(%rip)\n.size cp_" #symbol ", .-cp_" #symbol "\n"                             \
            ".globl " #symbol "\n.type " #symbol ", @function\n.set " #symbol ", cp_" #symbol "\n");
#else
#define GATE(symbol, name, since, is_ptsz, params, args, key, on)                       \
    PAY_AND_GO(symbol, is_ptsz, params, args, key, on)                                  \
    CUresult cp_##symbol params { return MUST_PAY ? cp_slow_##symbol args : real_##symbol args; } \
    EXPORT CUresult symbol params __attribute__((alias("cp_" #symbol)));
#endif
#include "hooks.def"

#define COPY_BLOCKING(symbol, to_type, from_type)                          \
    CUresult cp_##symbol(to_type to, from_type from, size_t size) {        \
        READY;                                                             \
        if (size >= LARGE_COPY)                                            \
            PASS_TURN;                                                     \
        return real_##symbol(to, from, size);                              \
    }
#define COPY_ASYNC(symbol, to_type, from_type)                                       \
    CUresult cp_##symbol(to_type to, from_type from, size_t size, CUstream stream) { \
        READY;                                                                       \
        if (size >= LARGE_COPY)                                                      \
            PASS_TURN;                                                               \
        return real_##symbol(to, from, size, stream);                                \
    }
#define COPIES(name, version, to_type, from_type)                  \
    COPY_BLOCKING(name##version, to_type, from_type)               \
    COPY_BLOCKING(name##version##_ptds, to_type, from_type)        \
    COPY_ASYNC(name##Async##version, to_type, from_type)           \
    COPY_ASYNC(name##Async##version##_ptsz, to_type, from_type)
COPIES(cuMemcpyHtoD, _v2, CUdeviceptr, const void *)
COPIES(cuMemcpyDtoH, _v2, void *, CUdeviceptr)
COPIES(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr)
COPIES(cuMemcpy, , CUdeviceptr, CUdeviceptr)

#define LAUNCH_GRAPH(symbol, is_ptsz)                                                                              \
    PAY_AND_GO(symbol, is_ptsz, (CUgraphExec exec, CUstream stream), (exec, stream), KEY(exec), stream)        \
    CUresult cp_##symbol(CUgraphExec exec, CUstream stream) {                                                       \
        CUresult result = MUST_PAY ? cp_slow_##symbol(exec, stream) : real_##symbol(exec, stream);                  \
        if (atomic_load_explicit(&has_graph_memory, memory_order_relaxed))                                          \
            settle_graphs(current_device());                                                                        \
        return result;                                                                                              \
    }
LAUNCH_GRAPH(cuGraphLaunch, 0)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, 1)

#define WAIT(symbol, params, args)            \
    CUresult cp_##symbol params {             \
        READY;                                \
        CUresult result = real_##symbol args; \
        cp_end_step();                        \
        return result;                        \
    }
WAIT(cuCtxSynchronize, (void), ())
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context))
WAIT(cuStreamSynchronize, (CUstream stream), (stream))
WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAIT(cuEventSynchronize, (CUevent event), (event))

bool cp_is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = 0;
    return atomic_load(&captures) > 0 && (real_cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != 0);
}
bool cp_has_capture(void) { return atomic_load(&captures) > 0; }

/* A failed end ends the capture too, unless there was none. */
static CUresult count_captures(CUresult result, bool is_begin) {
    if (is_begin && result == CUDA_SUCCESS)
        atomic_fetch_add(&captures, 1);
    int open = atomic_load(&captures);
    while (!is_begin && open > 0 && !atomic_compare_exchange_weak(&captures, &open, open - 1))
        ;
    return result;
}

#define CAPTURE(symbol, is_begin, params, args)               \
    CUresult cp_##symbol params {                             \
        READY;                                                \
        return count_captures(real_##symbol args, is_begin);  \
    }
CAPTURE(cuStreamBeginCapture, 1, (CUstream stream), (stream))
CAPTURE(cuStreamBeginCapture_ptsz, 1, (CUstream stream), (stream))
CAPTURE(cuStreamBeginCapture_v2, 1, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
CAPTURE(cuStreamBeginCapture_v2_ptsz, 1, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
#define TO_GRAPH (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
CAPTURE(cuStreamBeginCaptureToGraph, 1, TO_GRAPH, (stream, graph, after, edges, count, mode))
CAPTURE(cuStreamBeginCaptureToGraph_ptsz, 1, TO_GRAPH, (stream, graph, after, edges, count, mode))
CAPTURE(cuStreamEndCapture, 0, (CUstream stream, CUgraph *out), (stream, out))
CAPTURE(cuStreamEndCapture_ptsz, 0, (CUstream stream, CUgraph *out), (stream, out))

/* The names the program links against */
#define HOOK(symbol, name, since, stream, params, args) EXPORT CUresult symbol params __attribute__((alias("cp_" #symbol)));
#define NVML(symbol, params, args) EXPORT nvmlReturn_t symbol params __attribute__((alias("cp_" #symbol)));
#include "hooks.def"
