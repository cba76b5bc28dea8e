/* The hooks: what stands between the program and the driver. hooks.def says which body each has: one of the macros here,
 * or a function of its own. Each is short: ask the account, call the driver, record.
 *
 * Threads: whichever the program calls on. Lock: `cp_map_lock`, over the driver's call and our note of it where handles
 * and mappings of virtual memory change. */
#define _GNU_SOURCE
#include "guest.h"

#include <pthread.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define GRAIN 512 /* the driver's own smallest step */
#define DEVICES_MAX 64
#define LARGE_COPY (1u << 20)
#define PER_THREAD ((CUstream)2)
#define OR_PER_THREAD(stream) (stream ? stream : PER_THREAD) /* of a form whose default stream is the thread's */
#define KEY(handle) ((uint64_t)(uintptr_t)(handle))

static atomic_bool has_graph_memory; /* a graph of this process allocates: graph launches must be looked at */
static _Atomic uint64_t primary[DEVICES_MAX];

static uint64_t rounded(uint64_t size) { return size > UINT64_MAX / 4 ? UINT64_MAX / 4 : (size + GRAIN - 1) / GRAIN * GRAIN; }

uint64_t cp_context(void) {
    CUcontext context = NULL;
    return real_cuCtxGetCurrent(&context) == CUDA_SUCCESS ? KEY(context) : 0;
}

static int current_device(void) {
    CUdevice device = 0;
    return real_cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0;
}

/* Something before the driver's, and something after it that may look at its result. */
#define AROUND(symbol, params, args, before, ...) \
    CUresult cp_##symbol params {                 \
        before;                                   \
        CUresult result = real_##symbol args;     \
        __VA_ARGS__;                              \
        return result;                            \
    }

/* Another thread, or the driver itself where two pointers lead to one place, may change what we look at between our look
 * and the driver's, or between the driver's answer and our note of it. So both look at a copy of what goes in (OWN), and
 * answer into a place of ours (HIDE), from where it is handed on last (GIVE). */
#define OWN(type, at)                           \
    type own_##at;                              \
    if (at) {                                   \
        memcpy(&own_##at, at, sizeof own_##at); \
        __asm__ volatile("" : "+m"(own_##at));  \
        at = &own_##at;                         \
    }
#define HIDE(out)                                               \
    __typeof__(out) their_##out = out;                          \
    __typeof__(*out) own_##out;                                 \
    if (out) {                                                  \
        memcpy(&own_##out, out, sizeof own_##out);              \
        __asm__ volatile("" : "+m"(own_##out));                 \
        out = &own_##out;                                       \
    }
#define GIVE(out) if (their_##out) *their_##out = own_##out

#define NOTE(symbol, params, args, ...) AROUND(symbol, params, args, HIDE(out), __VA_ARGS__; GIVE(out))
#define LOOKUP(symbol, params, args, ...) NOTE(symbol, params, args, if (!result && out) *out = cp_swap(*out))

/* Memory of a size that is known before. Inside a capture nothing is allocated: it becomes a node, whose bytes appear
 * before the graph's launch. A pool of host memory gives nothing of the device's. */

/* What neither the cap nor the card has room for, if the user allowed it; a graph's node (UINT64_MAX)
 * cannot be had so, and beside a capture managed memory would break it. */
static CUresult spill(CUdeviceptr *out, uint64_t bytes) {
    if (!cp_may_spill || !bytes || bytes == UINT64_MAX || GET(cp_captures) || real_cuMemAllocManaged(out, bytes, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    cp_note(CP_SPILLED, *out, cp_context(), bytes);
    cp_spill(bytes);
    return CUDA_SUCCESS;
}

bool cp_is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = 0;
    return GET(cp_captures) && (real_cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != 0);
}

/* A node that could never be given its bytes is refused when it is made, as the driver does. */
static bool fits_now(uint64_t size) {
    bool fits = cp_reserve(rounded(size));
    if (fits)
        cp_unreserve(rounded(size));
    PUT(has_graph_memory, true);
    return fits;
}

static bool is_host_pool(CUmemoryPool pool, int change) {
    struct cp_entry entry;
    return cp_change_refs(CP_HOST_POOL, KEY(pool), change, &entry);
}

/* What a node takes is not taken yet. */
static uint64_t async_bytes(uint64_t size, CUstream stream, bool is_free) {
    bool is_node = !is_free && cp_is_capturing(stream);
    return is_node && !fits_now(size) ? UINT64_MAX : is_free || is_node ? 0 : rounded(size);
}

/* The reserved bytes become the real ones; false if that is too much. */
static bool correct(uint64_t *bytes, uint64_t needed) {
    if (needed > *bytes && !cp_reserve(needed - *bytes))
        return false;
    if (needed < *bytes)
        cp_unreserve(*bytes - needed);
    *bytes = needed;
    return true;
}

/* What a pool gave outlives the context: it has no owner. */
#define COUNT(symbol, params, args, before, after, kind, key, owner, at_least, needed, destroy, on_refusal) \
    static CUresult count_##symbol params {                                              \
        uint64_t bytes = at_least;                                                       \
        if (bytes == UINT64_MAX || (bytes && !cp_reserve(bytes)))                           \
            return on_refusal;                                                           \
        CUresult result = real_##symbol args;                                            \
        if (result == CUDA_SUCCESS && !correct(&bytes, needed)) {                        \
            destroy(*out);                                                               \
            cp_unreserve(bytes);                                                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                             \
        }                                                                                \
        if (result != CUDA_SUCCESS)                                                      \
            cp_unreserve(bytes);                                                         \
        else if (bytes)                                                                  \
            cp_note(kind, key, owner, bytes);                                            \
        return result == CUDA_ERROR_OUT_OF_MEMORY ? on_refusal : result;                 \
    }                                                                                    \
    CUresult cp_##symbol params {                                                        \
        before;                                                                          \
        HIDE(out);                                                                       \
        CUresult result = count_##symbol args;                                           \
        GIVE(out);                                                                       \
        after;                                                                           \
        return result;                                                                   \
    }
#define ALLOCATE(symbol, params, args, on_refusal) \
    COUNT(symbol, params, args, , , CP_POINTER, KEY(*out), cp_context(), rounded(size), bytes, real_cuMemFree_v2, on_refusal)
#define ALLOCATE_ASYNC(symbol, params, args, is_free, into)                                                           \
    COUNT(symbol, params, args, , , CP_POINTER, KEY(*out), 0, async_bytes(size, into, is_free), bytes, real_cuMemFree_v2, \
          spill(out, bytes))
#define MAKE(symbol, params, args, before, after, kind, at_least, needed, destroy) \
    COUNT(symbol, params, args, before, after, kind, KEY(*out), cp_context(), at_least, needed, destroy, CUDA_ERROR_OUT_OF_MEMORY)

static void drop_backing(uint64_t id) {
    struct cp_entry backing;
    if (id && cp_change_refs(CP_BACKING, id, -1, &backing) && backing.refs == 0)
        cp_unreserve(backing.bytes);
}

/* The entry goes before the bytes: another thread may get the same address at once. */
#define FREE(symbol, params, args, kind)                                                                          \
    CUresult cp_##symbol params {                                                                                 \
        struct cp_entry entry;                                                                                    \
        if (kind == CP_HANDLE)                                                                                    \
            cp_take_lock(&cp_map_lock);                                                                           \
        bool is_known = cp_change_refs(kind, KEY(at), -1, &entry);                                                \
        if (!is_known && kind == CP_POINTER && cp_may_spill && cp_change_refs(CP_SPILLED, KEY(at), -1, &entry))   \
            return cp_spill(-entry.bytes), real_cuMemFree_v2(KEY(at));                                            \
        CUresult result = real_##symbol args;                                                                     \
        if (is_known && result == CUDA_SUCCESS)                                                                   \
            kind == CP_HANDLE ? drop_backing(entry.owner) : cp_unreserve(entry.bytes);                            \
        else if (is_known && !cp_change_refs(kind, KEY(at), 1, &entry))                                           \
            cp_note(kind, KEY(at), entry.owner, entry.bytes);                                                     \
        if (kind == CP_HANDLE)                                                                                    \
            cp_drop_lock(&cp_map_lock);                                                                           \
        return result;                                                                                            \
    }

static void note_pool(CUresult result, CUmemoryPool *out, const CUmemLocation *location, int type) {
    if (result == CUDA_SUCCESS && location->type != CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED &&
        !is_host_pool(*out, 0))
        cp_note(CP_HOST_POOL, KEY(*out), 0, 0);
}
#define POOL(symbol, params, args, own, place, kind) \
    AROUND(symbol, params, args, own; HIDE(out), note_pool(result, out, place, kind); GIVE(out))

/* A pool that keeps what was freed would hold bytes that nobody counts. */
#define KEEP_NOTHING value = value && which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && cp_is_capped() ? &(cuuint64_t){0} : value

/* Memory whose bytes only the driver knows, and only once it exists: what it needs at least is reserved first. */

static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX / 4 : result;
}

/* The driver tells what an array needs only where it has no memory (cuArrayGetMemoryRequirements), so it is counted by the
 * largest layout that is known of these cards (Mesa, src/nouveau/nil): tiles of 64 bytes by up to 256 rows by up to 32
 * slices, powers of two that are less than twice the level; layers in steps of 16 KiB, the whole in pages of 64 KiB. */
static uint64_t stepped(uint64_t size, uint64_t step) { return (size + step - 1) / step * step; }
static uint64_t tiled(uint64_t extent, uint64_t tile, uint64_t most) {
    while (tile < extent && tile < most)
        tile *= 2;
    return stepped(extent + !extent, tile);
}
static uint64_t bytes_3d(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels) {
    if (!d || d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    uint64_t each = cu_element_bytes[d->Format & 255] * (d->Format <= CU_AD_FORMAT_FLOAT ? d->NumChannels : 1), bytes = 0;
    uint64_t edge = CU_AD_IS_COMPRESSED(d->Format) ? 4 : 1, step = CU_AD_IS_VIDEO(d->Format) ? 64 : edge;
    uint64_t layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) ? d->Depth : 0;
    for (unsigned int i = 0; i == 0 || (i < levels && i < 32 && (d->Width | d->Height | d->Depth) >> i); i++)
        bytes += product(stepped(product(tiled(d->Width >> i, step, step) / edge, each ? each : 16), 64),
                         product(tiled(stepped(d->Height >> i, edge) / edge, 8, 256), layers ? 1 : tiled(d->Depth >> i, 1, 32)));
    return stepped(product(stepped(bytes, 16384), layers ? layers : 1), 65536);
}
#define BYTES_2D(d) ((d) ? bytes_3d(&(CUDA_ARRAY3D_DESCRIPTOR){(d)->Width, (d)->Height, 0, (d)->Format, (d)->NumChannels, 0}, 1) : 0)

/* Virtual memory management. A backing lives while handles or mapped ranges refer to it; handle numbers may be given
 * out again while an old range is still mapped, so backings have numbers of our own. */

/* Somebody who maps, releases or unmaps the same at the same time would otherwise be noted in another order than the
 * driver's, and what is mapped be taken for free. */
#define MAPPING(symbol, params, args, before, ...) \
    AROUND(symbol, params, args, before; cp_take_lock(&cp_map_lock), __VA_ARGS__; cp_drop_lock(&cp_map_lock))

static uint64_t note_handle(CUmemGenericAllocationHandle handle) {
    static atomic_uint_fast64_t last_id;
    uint64_t id = ++last_id;
    cp_note(CP_HANDLE, handle, id, 0);
    return id;
}

/* One more reference to the backing of a handle or range, whose own change `by`; 0: it is not ours. */
static uint64_t refer(enum cp_kind kind, uint64_t key, int by) {
    struct cp_entry entry, backing;
    return cp_change_refs(kind, key, by, &entry) && cp_change_refs(CP_BACKING, entry.owner, 1, &backing) ? entry.owner : 0;
}

static void retain(CUmemGenericAllocationHandle handle, void *at) {
    uint64_t id = refer(CP_HANDLE, handle, 1) ? 0 : refer(CP_RANGE, cp_range_around(KEY(at)), 0);
    if (id)
        cp_note(CP_HANDLE, handle, id, 0);
}

static void unmap(CUdeviceptr at, size_t size) {
    struct cp_entry range;
    for (CUdeviceptr end = at + size; at < end && cp_change_refs(CP_RANGE, at, -1, &range) && range.bytes; at += range.bytes)
        drop_backing(range.owner);
}

/* Graphs */

static uint64_t settle_graphs(int device) {
    cuuint64_t held = 0;
    if (real_cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &held) == CUDA_SUCCESS)
        cp_settle_graph(held);
    return held;
}

/* Before a launch the graph's memory is mapped: what is too much then is given back, and what other graphs do not use.
 * A graph that gets nothing more is launched, however the cap has changed since. */
static bool graph_fits(CUgraphExec exec, CUstream stream) {
    if (!GET(has_graph_memory) || !cp_is_capped() || cp_is_capturing(stream))
        return true;
    uint64_t before = settle_graphs(current_device());
    for (int tries = 0; tries < 2; tries++) {
        real_cuGraphUpload(exec, stream);
        if (settle_graphs(current_device()) <= before || !cp_is_over())
            return true;
        real_cuStreamSynchronize(stream);
        cp_cuDeviceGraphMemTrim(current_device());
    }
    return false;
}

/* An upload while the graph is made would pass the cap: it is left to the launch. */
#define UPLOAD_LATER if (params && cp_is_capped()) params->flags &= ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
#define HIDE_PARAMS HIDE(params) /* where a macro's own parameter has this name */
#define GIVE_PARAMS GIVE(params)

static bool node_fits(const CUgraphNodeParams *params) {
    return !params || params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || fits_now(params->alloc.bytesize);
}
#define IF_FITS(symbol, params, args, fits) \
    CUresult cp_##symbol params { return (fits) ? real_##symbol args : CUDA_ERROR_OUT_OF_MEMORY; }
#define ADD_NODE(symbol, params, args, fits)                                           \
    CUresult cp_##symbol params {                                                      \
        HIDE_PARAMS;                                                                   \
        CUresult result = (fits) ? real_##symbol args : CUDA_ERROR_OUT_OF_MEMORY;      \
        GIVE_PARAMS;                                                                   \
        return result;                                                                 \
    }

/* Contexts */

#define PRIMARY (device >= 0 && device < DEVICES_MAX ? atomic_load(&primary[device]) : 0)
static void drop_primary(CUresult result, CUdevice device) {
    unsigned int flags;
    int is_active = 1;
    if (!result && PRIMARY && !real_cuDevicePrimaryCtxGetState(device, &flags, &is_active) && !is_active)
        cp_drop_context(PRIMARY);
}
#define END_PRIMARY(symbol, params, args, ...) \
    AROUND(symbol, params, args, if (PRIMARY) cp_end_samples(PRIMARY), drop_primary(result, device))
/* Samples and lines first: their events and streams end with the context. */
#define END_CONTEXT(symbol, params, args, ...) \
    AROUND(symbol, params, args, if (context) cp_forget_context(KEY(context)), if (!result) cp_drop_context(KEY(context)))

/* Figures */

/* `free` and `total`, where the driver has said them of the job's card, become the job's own as `left` and `whole`. */
#define SHOW(symbol, params, args, is_ours, free, total, ...)        \
    AROUND(symbol, params, args, , if (result == 0 && (is_ours)) {   \
        uint64_t left = (free), whole = (total), used = 0;           \
        if (cp_view(&left, &whole, &used)) {                         \
            __VA_ARGS__;                                             \
        }                                                            \
    })
/* A single size, in units of 1 << `shift` bytes. */
#define SHOW_SIZE(symbol, params, args, is_ours, size, shift) \
    SHOW(symbol, params, args, is_ours, 0, (uint64_t)(size) << (shift), size = whole >> (shift))

/* NVML shows every card of the machine; the cap is of the one the job may use. */
static bool is_job_device(nvmlDevice_t device) {
    char uuid[96] = "";
    if (strncmp(cp_device, "GPU-", 4) != 0 || !cp_is_capped())
        return cp_is_capped();
    return real_nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS || strstr(cp_device, uuid) != NULL;
}

/* A list of processes keeps the job's own, with the bytes that its account has of each: they add up to what is used. */
#define KEEP_OWN(list, count)                                           \
    unsigned int kept = 0;                                              \
    for (unsigned int i = 0; i < (count); i++)                          \
        if (cp_holds((list)[i].pid, &(list)[i].usedGpuMemory))          \
            (list)[kept++] = (list)[i];                                 \
    (count) = kept

/* Launches */

#define MUST_PAY (GET(*atomic_load_explicit(&cp_gate, memory_order_acquire)) != 0)
#define KERNEL(f, x, y, z)                                                                                                 \
    ((struct cp_work){KEY(f) + (uint64_t)(x) * 0x2545F491 + (uint64_t)(y) * 0x4F6CDD1D + (uint64_t)(z) * 0x5851F42D, KEY(f), \
                      (uint64_t)(x) * (uint64_t)(y) * (uint64_t)(z)})
#define GRAPH(exec) ((struct cp_work){KEY(exec), KEY(exec), 1})
#define CONFIG(field) (config ? config->field : 0)
#define FIRST(field) (list && count ? list->field : 0) /* of the devices; they begin and end together */
#define OWN_LIST                                                  \
    CUDA_LAUNCH_PARAMS own[DEVICES_MAX];                          \
    if (list && count <= DEVICES_MAX)                             \
        list = memcpy(own, list, count * sizeof *list);           \
    __asm__ volatile("" : : "r"(own) : "memory")

/* What most launches under a compute limit come to: a known kernel, and money enough in the purse. */
static inline __attribute__((always_inline)) bool pays_quickly(uint64_t key, CUstream stream) {
    struct cp_kernel *kernel = &cp_kernels[cp_home_of(key)];
    int64_t cost = (int64_t)GET(kernel->cost_ns);
    int left = GET(kernel->until_sample) - 1;
    if (GET(kernel->key) != key || left <= 0 || GET(cp_captures) || GET(*GET(cp_turn)) ||
        (stream != GET(cp_only_stream) && !GET(cp_has_streams)) || !cp_take_from_purse(cost))
        return false;
    PUT(kernel->until_sample, left);
    return true;
}

#define PAY_AND_GO(symbol, is_ptsz, params, args, work, on, ...)                                 \
    __attribute__((noinline)) static CUresult measured_##symbol params {                         \
        CUstream into = is_ptsz && !(on) ? PER_THREAD : (on);                                    \
        struct cp_sample *sample = cp_pay(work, into);                                           \
        CUresult result = real_##symbol args;                                                    \
        if (sample)                                                                              \
            cp_end_sample(sample, into, result);                                                 \
        return result;                                                                           \
    }                                                                                            \
    __attribute__((used)) CUresult cp_slow_##symbol params {                                     \
        __VA_ARGS__;                                                                             \
        return pays_quickly((work).key, is_ptsz && !(on) ? PER_THREAD : (on)) ? real_##symbol args      \
                                                                       : measured_##symbol args; \
    }

/* Four instructions where the turn is held and there is no compute limit: a C function would save and restore eleven
 * arguments around a call that is hardly ever made. */
/* Five of forms whose default stream is the thread's: no other thread can ask what is on it. */
#define MARK(is_ptsz) if (is_ptsz) PUT(cp_has_unseen, true)
#if defined(__x86_64__)
#define GATE(symbol, name, since, is_ptsz, params, args, work, on, ...)                                   \
    PAY_AND_GO(symbol, is_ptsz, params, args, work, on, __VA_ARGS__)                                      \
    __asm__(".text\n.globl cp_" #symbol "\n.hidden cp_" #symbol "\n.type cp_" #symbol ", @function\n"    \
            "cp_" #symbol ":\n.if " #is_ptsz "\n  movb $1, cp_has_unseen(%rip)\n.endif\n"                            \
            "  mov cp_gate(%rip), %rax\n  cmpq $0, (%rax)\n  jne cp_slow_" #symbol "\n" \
            "  jmp *real_" #symbol "(%rip)\n.size cp_" #symbol ", .-cp_" #symbol "\n"                    \
            ".globl " #symbol "\n.type " #symbol ", @function\n.set " #symbol ", cp_" #symbol "\n");
#else
#define GATE(symbol, name, since, is_ptsz, params, args, work, on, ...)                            \
    PAY_AND_GO(symbol, is_ptsz, params, args, work, on, __VA_ARGS__)                               \
    CUresult cp_##symbol params { MARK(is_ptsz); return MUST_PAY ? cp_slow_##symbol args : real_##symbol args; } \
    EXPORT CUresult symbol params __attribute__((alias("cp_" #symbol)));
#endif

#define LAUNCH_GRAPH(symbol, params, args, is_ptsz)                              \
    PAY_AND_GO(symbol, is_ptsz, params, args, GRAPH(exec), stream)               \
    CUresult cp_##symbol params {                                                \
        if (!graph_fits(exec, is_ptsz && !stream ? PER_THREAD : stream))         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                     \
        MARK(is_ptsz);                                                           \
        CUresult result = MUST_PAY ? cp_slow_##symbol args : real_##symbol args; \
        if (GET(has_graph_memory))                                               \
            settle_graphs(current_device());                                     \
        return result;                                                           \
    }

/* Copies, waits, captures */

/* `after`: a copy back to the host returns when the data is there, and is a wait for what was launched before it. */
#define COPY(symbol, params, args, bytes, on, after)                                                    \
    AROUND(symbol, params, args, MARK((on) == PER_THREAD); if ((bytes) >= LARGE_COPY) cp_pass_turn(on); COPY_BEGINS(bytes), after)
#define COPY_BEGINS(bytes) __attribute__((unused)) uint64_t began = (bytes) < LARGE_COPY ? WAIT_BEGINS : 0
#define WAIT_BEGINS (GET(cp_queued_until) ? cp_now() : 0) /* under a compute limit; a large copy takes its own time */
#define END_COPY (cp_end_step(0), began ? cp_end_wait(began) : (void)0)
#define SHAPE(copy, depth) (copy ? product(product(copy->WidthInBytes, copy->Height), depth) : 0)
#define TO_HOST(copy) (copy && copy->dstMemoryType == CU_MEMORYTYPE_HOST)
#define WAIT(symbol, params, args, finished)                                  \
    AROUND(symbol, params, args, cp_read_samples(); uint64_t began = WAIT_BEGINS, \
           cp_end_step(result ? 0 : finished); if (began) cp_end_wait(began))

/* Each thread has its own stream of the name 0 or 2. */
static uint64_t capture_key(CUstream stream) { return KEY(stream) > 2 ? KEY(stream) : KEY(stream) ^ (uint64_t)pthread_self(); }

static void begin_capture(CUresult result, CUstream stream) {
    if (result == CUDA_SUCCESS)
        cp_note(CP_CAPTURE, capture_key(stream), cp_context(), 0);
}
/* A failed end ends the capture too, but for one from a thread that may not; and so does the stream's own end. */
static void end_capture(CUresult result, CUstream stream) {
    struct cp_entry known;
    if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        cp_change_refs(CP_CAPTURE, capture_key(stream), -1, &known);
}
#define CAPTURE(symbol, params, args, change, before) AROUND(symbol, params, args, before, change##_capture(result, stream))

#define HOOK(symbol, name, since, stream, params, args, body, ...) body(symbol, params, args, __VA_ARGS__)
#include "hooks.def"

/* The names the program links against */
#define HOOK(symbol, name, since, stream, params, args, ...) EXPORT CUresult symbol params __attribute__((alias("cp_" #symbol)));
#define GATE(...)
#include "hooks.def"
