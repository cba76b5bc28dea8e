/* A stand-in for NVIDIA's driver, libcuda.so.1, for machines without a GPU: what a program allocates is really
 * there (in host memory), counted byte for byte against the card's size, and what it launches takes time on the card.
 *
 * A kernel is its name: `busy_250us` occupies the card for 250 µs (ns, us, ms or s), `increment` adds one to the n
 * ints at p for parameters (p, n), `each_2us` takes 2 µs for each block of its grid, `told` takes as many nanoseconds as
 * its first parameter says (64 bits), `fault` breaks its context for good, anything else takes no time, or
 * CARPOOL_STUB_KERNEL=20us. One card does one thing at a time, in the order of launches, for all processes.
 * A name that is a C function of the library CARPOOL_STUB_KERNELS runs it: void f(void **params, const unsigned grid[3],
 * const unsigned block[3]).
 * CARPOOL_STUB_LOAD=300ms is how long the first launch of a kernel keeps its thread, as loading it does.
 * CARPOOL_STUB_FAIL_ALLOC=N lets the N-th allocation of the process fail as if the card were full, -N every N-th.
 * CARPOOL_STUB_SHARED_FAULT=1 makes a fault break every process's contexts on that card, as under a shared server.
 *
 * Threads: any. Locks: `lock` for every list and count of this process, inside it
 * `file_lock` for the file, whose own lock (books.h) keeps out other processes only.
 * Link with -Bsymbolic, or an interposer would catch the calls this library makes to itself. */
#define _GNU_SOURCE
#include "books.h"

#include <dlfcn.h>
#include <pthread.h>

#include "../driver.h"

#define EXPORT __attribute__((visibility("default")))
#define API EXPORT CUresult
#define GRAIN 512
#define CHUNK (2u << 20) /* granularity of virtual memory management */
#define BUCKETS 16384
#define PTR(p) ((CUdeviceptr)(uintptr_t)(p))

enum kind { PLAIN, POOLED, ARRAY, MIPMAP, EXTERNAL, HANDLE, RANGE, IMPORTED, HOST };

struct CUctx_st {
    unsigned device;
    int error, uses;
    bool is_primary;
    uint64_t faults; /* of the card, when the context was made */
    struct CUstream_st *streams;
};
struct CUstream_st {
    CUcontext context;
    _Atomic uint64_t tail_ns;
    _Atomic(CUgraph) capturing;
    bool is_programs; /* that graph was there before */
    CUstreamCaptureMode mode;
    unsigned breaks; /* of all captures, when this one began */
    CUstream next;
};
struct CUevent_st {
    CUcontext context;
    uint64_t at_ns;
    bool is_recorded, is_captured;
};
struct CUmod_st {
    CUfunction functions;
};
typedef void (*kernel_body)(void **params, const unsigned grid[3], const unsigned block[3]);
struct CUfunc_st {
    uint64_t ns;
    bool is_fault, is_by_block, is_told;
    _Atomic uint64_t load_ns; /* what its first launch takes before it begins */
    kernel_body body;
    char *name;
    CUmodule module;
    CUfunction next;
};
struct CUmemPoolHandle_st {
    unsigned device;
    bool is_host; /* holds no byte of a card */
    uint64_t threshold, reserved, used, reserved_high, used_high;
};
struct keep;
struct CUgraph_st {
    uint64_t ns, kernels, alloc_bytes;
    struct keep *objects;
};
struct CUgraphExec_st {
    uint64_t ns, kernels, alloc_bytes;
    struct keep *objects;
    bool is_mapped;
    unsigned device;
    struct CUgraphExec_st *next; /* of those that were uploaded and not launched since */
};
struct block {
    uint64_t at;
    enum kind kind;
    unsigned device, refs;
    size_t bytes, span; /* charged, and mapped on the host */
    CUcontext context;
    CUmemoryPool pool;
    int shared_fd; /* of a block that other processes may open */
    size_t whole; /* of a handle, and of an array without memory: what it has, or would need */
    uint64_t offset; /* of a handle's bytes in their file */
    size_t element, line, lines, slices; /* of an array: bytes, bytes, and how many */
    char *data; /* what is in the array, once there was something */
    struct block *backing, *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_ready, is_forked;
static unsigned devices, card_of[CARDS_MAX];
static struct CUctx_st primary[CARDS_MAX];
static struct CUmemPoolHandle_st default_pool[CARDS_MAX], managed_pool[CARDS_MAX];
static CUmemoryPool current_pool[CARDS_MAX];
static struct CUstream_st default_stream[CARDS_MAX];
static uint64_t graph_mapped[CARDS_MAX], graph_cached[CARDS_MAX], context_bytes, next_handle = 1;
static struct block *buckets[BUCKETS];
static long fails_at;
static atomic_long allocations;
static unsigned row = ROWS;
static _Thread_local CUcontext current[16];
static _Thread_local int depth = -1;

/* Bytes */

static bool claim_row(void) {
    uint64_t pid = (uint64_t)getpid();
    if (row < ROWS)
        return true;
    books_bury();
    for (unsigned r = 0; r < ROWS; r++)
        if (!books->row[r].pid || books->row[r].pid == pid) { /* the same pid: what an exec left */
            books_end(r);
            books->row[r].birth = birth_of(pid);
            books->row[r].pid = pid;
            row = r;
            return true;
        }
    return false;
}

/* The file's lock is the process's, not the thread's. */
static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;

static bool charge(unsigned device, uint64_t bytes) {
    unsigned card = card_of[device];
    pthread_mutex_lock(&file_lock);
    if (!books_lock()) {
        pthread_mutex_unlock(&file_lock);
        return false;
    }
    bool fits = bytes <= books->card_bytes && books_used(card) <= books->card_bytes - bytes;
    if (!fits) {
        books_bury();
        fits = bytes <= books->card_bytes && books_used(card) <= books->card_bytes - bytes;
    }
    struct card_row *own = &books->row[row].card[card];
    if (fits && (own->bytes += bytes) > own->peak)
        own->peak = own->bytes;
    books_unlock();
    pthread_mutex_unlock(&file_lock);
    return fits;
}

static void uncharge(unsigned device, uint64_t bytes) {
    pthread_mutex_lock(&file_lock);
    if (books_lock()) {
        books->row[row].card[card_of[device]].bytes -= bytes;
        books_unlock();
    }
    pthread_mutex_unlock(&file_lock);
}

static struct block **find(uint64_t at, enum kind kind) {
    struct block **b = &buckets[(at >> 9 ^ at >> 21 ^ at) % BUCKETS];
    while (*b && ((*b)->at != at || (*b)->kind != kind))
        b = &(*b)->next;
    return b;
}

static struct block *note(uint64_t at, enum kind kind, unsigned device, size_t bytes, size_t span) {
    struct block *b = calloc(1, sizeof *b), **head = &buckets[(at >> 9 ^ at >> 21 ^ at) % BUCKETS];
    if (!b)
        abort();
    *b = (struct block){.at = at, .kind = kind, .device = device, .bytes = bytes, .span = span, .refs = 1};
    b->context = depth >= 0 ? current[depth] : NULL;
    b->next = *head;
    return *head = b;
}

/* A few small pieces of host memory are kept for the next allocation: mapping costs more than all the rest of it. */
#define SPARES 16
#define SPARE_BYTES_MAX 65536
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t at;
    size_t span;
} spares[SPARES];

static bool keep_spare(uint64_t at, size_t span) {
    bool is_kept = false;
    pthread_mutex_lock(&spare_lock);
    for (int i = 0; i < SPARES && span <= SPARE_BYTES_MAX && !is_kept; i++)
        if (!spares[i].at) {
            spares[i].at = at;
            spares[i].span = span;
            is_kept = true;
        }
    pthread_mutex_unlock(&spare_lock);
    return is_kept;
}

static uint64_t map_host(size_t bytes) {
    uint64_t found = 0;
    pthread_mutex_lock(&spare_lock);
    for (int i = 0; i < SPARES && bytes <= SPARE_BYTES_MAX && !found; i++)
        if (spares[i].at && spares[i].span == bytes) {
            found = spares[i].at;
            spares[i].at = 0;
        }
    pthread_mutex_unlock(&spare_lock);
    if (found)
        return found;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)at;
}

/* The same below 4 GiB, for those who have only 32 bits for an address. */
static uint64_t map_low(size_t bytes) {
    for (uint64_t hint = 1ull << 28; hint + bytes <= 1ull << 32; hint += 1ull << 24) {
        void *at = mmap((void *)(uintptr_t)hint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (at != MAP_FAILED && PTR(at) == hint)
            return hint;
        if (at != MAP_FAILED)
            munmap(at, bytes);
    }
    return 0;
}

static void forget(struct block **b) {
    struct block *gone = *b;
    *b = gone->next;
    if (gone->shared_fd > 0)
        close(gone->shared_fd);
    bool is_shared = gone->shared_fd || gone->kind == IMPORTED;
    if (gone->span && (is_shared || !keep_spare(gone->at, gone->span)))
        munmap((void *)(uintptr_t)gone->at, gone->span);
    if (gone->data)
        munmap(gone->data, gone->line * gone->lines * gone->slices);
    free(gone);
}

static size_t round_up(size_t size, size_t grain) { return (size + grain - 1) / grain * grain; }

/* Contexts */

static bool shares_faults;

static bool is_broken(CUcontext c) {
    if (shares_faults && atomic_load(&books->faults[card_of[c->device]]) != c->faults)
        c->error = CUDA_ERROR_LAUNCH_FAILED;
    return c->error != 0;
}

static CUcontext context(void) { return depth >= 0 ? current[depth] : NULL; }

#define NEED_CONTEXT                                                              \
    do {                                                                          \
        if (!is_ready)                                                            \
            return CUDA_ERROR_NOT_INITIALIZED;                                    \
        if (!context())                                                           \
            return CUDA_ERROR_INVALID_CONTEXT;                                    \
        if (is_broken(context()))                                                 \
            return context()->error;                                              \
    } while (0)
#define NEED_DEVICE(dev)                          \
    do {                                          \
        if (!is_ready)                            \
            return CUDA_ERROR_NOT_INITIALIZED;    \
        if ((dev) < 0 || (unsigned)(dev) >= devices) \
            return CUDA_ERROR_INVALID_DEVICE;     \
    } while (0)

static _Thread_local bool was_injected; /* the newest failure of this thread was asked for */

static bool injected(void) {
    long number = fails_at ? atomic_fetch_add(&allocations, 1) + 1 : 0;
    return was_injected = fails_at > 0 ? number == fails_at : fails_at < 0 && number % -fails_at == 0;
}

/* An allocation of host memory that stands for the card's. */
static CUresult allocate(uint64_t *out, size_t size, enum kind kind, uint64_t (*map)(size_t)) {
    NEED_CONTEXT;
    if (!out || !size)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned device = context()->device;
    size_t bytes = round_up(size, GRAIN);
    if (bytes < size || injected() || !charge(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!(*out = map(bytes))) {
        uncharge(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    note(*out, kind, device, bytes, bytes);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static void pool_settle(CUmemoryPool pool, uint64_t keep) {
    uint64_t wanted = pool->used > keep ? pool->used : keep;
    if (pool->reserved > wanted) {
        uncharge(pool->device, pool->is_host ? 0 : pool->reserved - wanted);
        pool->reserved = wanted;
    }
}

static CUresult release(uint64_t at, enum kind kind) {
    pthread_mutex_lock(&lock);
    struct block **b = find(at, kind);
    if (!*b && kind == PLAIN)
        b = find(at, POOLED);
    if (!*b) {
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((*b)->kind == POOLED)
        (*b)->pool->used -= (*b)->bytes;
    else
        uncharge((*b)->device, (*b)->bytes);
    forget(b);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUgraph leave_capture(CUstream s);
static CUresult break_captures(CUresult result);

static void release_all(CUcontext of) {
    for (CUstream s = of->streams; s; s = s->next)
        if (s->capturing)
            leave_capture(s);
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct block **b = &buckets[i]; *b;) {
            if ((*b)->context == of && ((*b)->kind == PLAIN || (*b)->kind == ARRAY || (*b)->kind == MIPMAP)) {
                uncharge((*b)->device, (*b)->bytes);
                forget(b);
            } else
                b = &(*b)->next;
        }
}

static void after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&file_lock, NULL);
    pthread_mutex_init(&spare_lock, NULL);
    is_ready = false;
    is_forked = true;
    row = ROWS;
    depth = -1;
}

static void choose_devices(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char text[2048], *rest = text, uuid[64];
    devices = 0;
    snprintf(text, sizeof text, "%s", visible ? visible : "");
    for (char *name; visible && (name = strtok_r(rest, ",", &rest)) && devices < CARDS_MAX;) {
        unsigned card = 0;
        for (; card < books->cards; card++) {
            card_uuid_text(card, uuid);
            char *end;
            if (strcmp(uuid, name) == 0 || (strtoul(name, &end, 10) == card && end != name && !*end))
                break;
        }
        if (card == books->cards)
            break; /* as the real one: everything after an unknown name is hidden */
        card_of[devices++] = card;
    }
    for (; !visible && devices < books->cards; devices++)
        card_of[devices] = devices;
}

__attribute__((destructor)) static void leave(void) {
    if (books && row < ROWS && !is_forked && books_lock()) {
        books_end(row);
        books_unlock();
    }
}

API cuInit(unsigned int flags) {
    (void)flags;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (is_forked || !books_open())
        result = CUDA_ERROR_NOT_INITIALIZED;
    else if (!is_ready) {
        const char *fail = getenv("CARPOOL_STUB_FAIL_ALLOC"), *each = getenv("CARPOOL_STUB_CONTEXT");
        char *end;
        fails_at = fail ? atol(fail) : 0;
        context_bytes = each ? parse_size(each, &end) : CONTEXT_BYTES;
        shares_faults = getenv("CARPOOL_STUB_SHARED_FAULT") != NULL;
        choose_devices();
        if (devices == 0)
            result = 100; /* CUDA_ERROR_NO_DEVICE */
        else if (!books_lock())
            result = CUDA_ERROR_NOT_INITIALIZED;
        else {
            is_ready = claim_row();
            books_unlock();
            pthread_atfork(NULL, NULL, after_fork);
            for (unsigned d = 0; d < devices; d++) {
                primary[d] = (struct CUctx_st){.device = d, .is_primary = true};
                default_pool[d] = managed_pool[d] = (struct CUmemPoolHandle_st){.device = d};
                current_pool[d] = &default_pool[d];
                default_stream[d].context = &primary[d];
            }
            result = is_ready ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

API cuDriverGetVersion(int *version) { return *version = 13000, CUDA_SUCCESS; }

API cuGetExportTable(const void **table, const CUuuid *id) {
    (void)table, (void)id;
    return CUDA_ERROR_NOT_FOUND; /* private tables are nobody's business */
}

API cuDeviceGetCount(int *count) {
    if (!is_ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    return *count = (int)devices, CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *out, int ordinal) {
    NEED_DEVICE(ordinal);
    return *out = ordinal, CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int length, CUdevice dev) {
    NEED_DEVICE(dev);
    snprintf(name, (size_t)length, "carpool stand-in GPU");
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    NEED_DEVICE(dev);
    card_uuid(card_of[dev], uuid->bytes);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) { return cuDeviceGetUuid(uuid, dev); }

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    NEED_DEVICE(dev);
    return *bytes = books->card_bytes, CUDA_SUCCESS;
}

static bool open_context(CUcontext c) {
    c->faults = atomic_load(&books->faults[card_of[c->device]]);
    return !context_bytes || charge(c->device, context_bytes);
}

API cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev) {
    NEED_DEVICE(dev);
    pthread_mutex_lock(&lock);
    bool is_open = primary[dev].uses > 0 || open_context(&primary[dev]);
    primary[dev].uses += is_open;
    pthread_mutex_unlock(&lock);
    *out = &primary[dev];
    return is_open ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void close_primary(CUdevice dev) {
    release_all(&primary[dev]);
    uncharge((unsigned)dev, context_bytes);
    primary[dev].uses = primary[dev].error = 0;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    NEED_DEVICE(dev);
    pthread_mutex_lock(&lock);
    bool was_held = primary[dev].uses > 0;
    if (primary[dev].uses == 1)
        close_primary(dev);
    else
        primary[dev].uses -= was_held;
    pthread_mutex_unlock(&lock);
    return was_held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    NEED_DEVICE(dev);
    pthread_mutex_lock(&lock);
    if (primary[dev].uses > 0)
        close_primary(dev);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    NEED_DEVICE(dev);
    *flags = 0;
    *active = primary[dev].uses > 0;
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext c) {
    if (depth >= 15)
        return CUDA_ERROR_INVALID_VALUE;
    return current[++depth] = c, CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *out) {
    if (depth < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out)
        *out = current[depth];
    return depth--, CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext c) {
    if (!c)
        return depth = depth < 0 ? -1 : depth - 1, CUDA_SUCCESS;
    if (depth < 0)
        depth = 0;
    return current[depth] = c, CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *out) { return *out = context(), CUDA_SUCCESS; }

API cuCtxGetDevice(CUdevice *out) {
    NEED_CONTEXT;
    return *out = (CUdevice)context()->device, CUDA_SUCCESS;
}

API cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice dev) {
    (void)flags;
    NEED_DEVICE(dev);
    CUcontext made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUctx_st){.device = (unsigned)dev, .uses = 1};
    if (!open_context(made)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return cuCtxPushCurrent_v2(*out = made);
}

API cuCtxCreate_v4(CUcontext *out, void *params, unsigned int flags, CUdevice dev) {
    (void)params;
    return cuCtxCreate_v2(out, flags, dev);
}

API cuCtxCreate_v3(CUcontext *out, void *list, int count, unsigned int flags, CUdevice dev) {
    (void)list, (void)count;
    return cuCtxCreate_v2(out, flags, dev);
}

API cuCtxDestroy_v2(CUcontext c) {
    if (!c || c->is_primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    release_all(c);
    uncharge(c->device, context_bytes);
    pthread_mutex_unlock(&lock);
    if (context() == c)
        depth--;
    free(c);
    return CUDA_SUCCESS;
}

/* A green context is a context like any other here, but that it is not current when it is made, and that its memory is the
 * primary one's: it outlives it. */
API cuGreenCtxCreate(CUgreenCtx *out, void *resources, CUdevice dev, unsigned int flags) {
    (void)resources;
    CUcontext made = NULL;
    CUresult result = cuCtxCreate_v2(&made, flags, dev);
    if (!result)
        depth--;
    return *out = (CUgreenCtx)made, result;
}
API cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green) { return *out = (CUcontext)green, CUDA_SUCCESS; }
API cuGreenCtxDestroy(CUgreenCtx green) {
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; green && i < BUCKETS; i++)
        for (struct block *b = buckets[i]; b; b = b->next)
            if (b->context == (CUcontext)green)
                b->context = &primary[((CUcontext)green)->device];
    pthread_mutex_unlock(&lock);
    return cuCtxDestroy_v2((CUcontext)green);
}

/* A context is the process's as often as it was created and attached to; the last detach is its end. */
API cuCtxAttach(CUcontext *out, unsigned int flags) {
    NEED_CONTEXT;
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    context()->uses++;
    return *out = context(), CUDA_SUCCESS;
}
API cuCtxDetach(CUcontext c) {
    if (!c || c->is_primary || c != context())
        return CUDA_ERROR_INVALID_CONTEXT;
    return c->uses > 1 ? (c->uses--, CUDA_SUCCESS) : cuCtxDestroy_v2(c);
}

API cuCtxSetLimit(CUlimit which, size_t value) { return (void)which, (void)value, CUDA_SUCCESS; }
API cuCtxGetLimit(size_t *value, CUlimit which) { return (void)which, *value = 0, CUDA_SUCCESS; }

/* Plain memory */

API cuMemGetInfo_v2(size_t *free_out, size_t *total) {
    NEED_CONTEXT;
    pthread_mutex_lock(&file_lock);
    bool is_locked = books_lock();
    if (is_locked)
        books_bury();
    uint64_t used = books_used(card_of[context()->device]);
    books_unlock();
    pthread_mutex_unlock(&file_lock);
    *total = books->card_bytes;
    *free_out = used < *total ? *total - used : 0;
    return CUDA_SUCCESS;
}

API cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
    uint64_t at = 0;
    CUresult result = out ? allocate(&at, size, PLAIN, map_host) : CUDA_ERROR_INVALID_VALUE;
    return result ? result : (*out = at, CUDA_SUCCESS);
}

API cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element) {
    (void)element;
    if (!pitch || !width || !height)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = round_up(width, GRAIN);
    return cuMemAlloc_v2(out, *pitch * height);
}

/* What does not fit the card stays on the host. */
API cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags) {
    (void)flags;
    CUresult result = cuMemAlloc_v2(out, size);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || was_injected || !(*out = map_host(round_up(size, GRAIN))))
        return result;
    pthread_mutex_lock(&lock);
    note(*out, PLAIN, context()->device, 0, round_up(size, GRAIN));
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuMemFree_v2(CUdeviceptr at) {
    NEED_CONTEXT;
    return at ? release(at, PLAIN) : CUDA_SUCCESS;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
    pthread_mutex_lock(&lock);
    struct block *b = *find(at, PLAIN);
    if (base && b)
        *base = b->at;
    if (size && b)
        *size = b->bytes;
    pthread_mutex_unlock(&lock);
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Page-locked host memory: counted on no card, but the driver knows it again. */
static CUresult lock_host(void *at, size_t size) {
    NEED_CONTEXT;
    pthread_mutex_lock(&lock);
    note(PTR(at), HOST, context()->device, size, 0);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
static CUresult unlock_host(void *at) {
    pthread_mutex_lock(&lock);
    struct block **b = find(PTR(at), HOST);
    bool is_known = *b != NULL;
    if (is_known)
        forget(b);
    pthread_mutex_unlock(&lock);
    return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
    (void)flags;
    if (!(*out = malloc(size)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = lock_host(*out, size);
    if (result)
        free(*out);
    return result;
}
API cuMemAllocHost_v2(void **out, size_t size) { return cuMemHostAlloc(out, size, 0); }
API cuMemFreeHost(void *at) {
    CUresult result = unlock_host(at);
    if (!result)
        free(at);
    return result;
}
API cuMemHostRegister_v2(void *at, size_t size, unsigned int flags) { return (void)flags, lock_host(at, size); }
API cuMemHostUnregister(void *at) { return unlock_host(at); }

/* The time line */

static CUstream stream_of(CUstream s) {
    if ((uintptr_t)s > 2)
        return s;
    CUstream own = &default_stream[context()->device];
    return own;
}

static void enqueue(CUstream s, uint64_t ns) {
    unsigned card = card_of[context()->device];
    struct card_row *own = &books->row[row].card[card];
    uint64_t start, now = card_now_ns(card), idle = atomic_load(&books->idle_at_ns[card]);
    bool is_first = own->tail_ns <= now;
    do {
        start = idle > now ? idle : now;
        if (s->tail_ns > start)
            start = s->tail_ns;
        if (is_first)
            own->begin_ns = start;
        own->tail_ns = start + ns; /* before it is on the line, or whoever buries the dead might not see it */
    } while (!atomic_compare_exchange_weak(&books->idle_at_ns[card], &idle, start + ns));
    s->tail_ns = start + ns;
    atomic_fetch_add(&books->busy_ns[card], ns);
    own->busy_ns += ns;
    own->launches++;
}

/* Who has long to wait looks whether he waits for the dead: one of all who wait, 20 times a second. */
#define LOOK_NS 50000000u
static void look_for_dead(void) {
    uint64_t now = now_ns(), before = atomic_load(&books->looked_at_ns);
    if (now - before < LOOK_NS || !atomic_compare_exchange_strong(&books->looked_at_ns, &before, now))
        return;
    pthread_mutex_lock(&file_lock);
    if (books_lock()) {
        books_bury();
        books_unlock();
    }
    pthread_mutex_unlock(&file_lock);
}

/* How long it still is until a time on a card's time line. */
static uint64_t left_until(unsigned card, uint64_t at_ns) {
    uint64_t now = card_now_ns(card);
    if (now < at_ns && at_ns - now > LOOK_NS) {
        look_for_dead();
        now = card_now_ns(card);
    }
    return now < at_ns ? at_ns - now : 0;
}

static CUresult wait_until(unsigned card, uint64_t at_ns) {
    for (uint64_t left; (left = left_until(card, at_ns)) > 0;) {
        left = left > LOOK_NS ? LOOK_NS : left;
        struct timespec pause = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
        nanosleep(&pause, NULL);
    }
    return context() && is_broken(context()) ? context()->error : CUDA_SUCCESS;
}

static unsigned card_of_stream(CUstream s) { return card_of[s->context->device]; }
static unsigned card_of_event(CUevent e) { return card_of[e->context->device]; }
static CUresult wait_for(CUstream s) { return wait_until(card_of_stream(s), s->tail_ns); }

static void trim_pools(void) {
    pthread_mutex_lock(&lock);
    for (unsigned d = 0; d < devices; d++) {
        pool_settle(current_pool[d], current_pool[d]->threshold);
        pool_settle(&managed_pool[d], managed_pool[d].threshold);
    }
    pthread_mutex_unlock(&lock);
}

API cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    (void)flags, (void)priority;
    NEED_CONTEXT;
    if (!(*out = calloc(1, sizeof **out)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*out)->context = context();
    pthread_mutex_lock(&lock);
    (*out)->next = context()->streams;
    context()->streams = *out;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
API cuStreamCreate(CUstream *out, unsigned int flags) { return cuStreamCreateWithPriority(out, flags, 0); }

API cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority) {
    CUresult result = cuCtxPushCurrent_v2((CUcontext)green);
    if (result)
        return result;
    result = cuStreamCreateWithPriority(out, flags, priority);
    cuCtxPopCurrent_v2(NULL);
    return result;
}

/* With it ends its capture. */
API cuStreamDestroy_v2(CUstream s) {
    if (s->capturing)
        leave_capture(s);
    pthread_mutex_lock(&lock);
    CUstream *at = &s->context->streams;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at)
        *at = s->next;
    pthread_mutex_unlock(&lock);
    free(s);
    return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream s) {
    NEED_CONTEXT;
    if (stream_of(s)->capturing)
        return break_captures(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUresult result = wait_for(stream_of(s));
    trim_pools();
    return result;
}

API cuStreamQuery(CUstream s) {
    NEED_CONTEXT;
    if (stream_of(s)->capturing)
        return break_captures(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return left_until(card_of_stream(stream_of(s)), stream_of(s)->tail_ns) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext c) {
    uint64_t last = default_stream[c->device].tail_ns;
    bool is_capturing = default_stream[c->device].capturing != NULL;
    pthread_mutex_lock(&lock);
    for (CUstream s = c->streams; s; s = s->next) {
        last = s->tail_ns > last ? s->tail_ns : last;
        is_capturing |= s->capturing != NULL;
    }
    pthread_mutex_unlock(&lock);
    if (is_capturing)
        return break_captures(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUresult result = wait_until(card_of[c->device], last);
    trim_pools();
    return result;
}
API cuCtxSynchronize(void) {
    NEED_CONTEXT;
    return synchronize(context());
}
API cuCtxSynchronize_v2(CUcontext c) {
    if (c)
        return is_broken(c) ? c->error : synchronize(c);
    NEED_CONTEXT;
    return synchronize(context());
}

/* What might wait for the device is not for everybody while a stream is captured: it fails, and so does the capture. */
static atomic_int global_captures;
static atomic_uint breaks;
static _Thread_local int own_captures;
static _Thread_local CUstreamCaptureMode thread_mode;
static CUresult break_captures(CUresult result) {
    atomic_fetch_add(&breaks, 1);
    return result;
}
#define NEED_LEAVE                                                                                      \
    if ((thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && global_captures > 0) ||                        \
        (thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED && own_captures > 0))                            \
        return break_captures(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

API cuEventCreate(CUevent *out, unsigned int flags) {
    (void)flags;
    NEED_CONTEXT;
    if (!(*out = calloc(1, sizeof **out)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return (*out)->context = context(), CUDA_SUCCESS;
}
API cuEventDestroy_v2(CUevent e) { return free(e), CUDA_SUCCESS; }

API cuEventRecord(CUevent e, CUstream s) {
    NEED_CONTEXT;
    uint64_t tail = stream_of(s)->tail_ns, now = card_now_ns(card_of_stream(stream_of(s)));
    e->at_ns = tail > now ? tail : now;
    e->is_captured = stream_of(s)->capturing != NULL;
    return e->is_recorded = true, CUDA_SUCCESS;
}
API cuEventQuery(CUevent e) {
    NEED_LEAVE;
    if (e->is_captured)
        return break_captures(CUDA_ERROR_CAPTURED_EVENT);
    return left_until(card_of_event(e), e->at_ns) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
API cuEventSynchronize(CUevent e) {
    NEED_LEAVE;
    return e->is_captured ? break_captures(CUDA_ERROR_CAPTURED_EVENT) : wait_until(card_of_event(e), e->at_ns);
}
API cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
    if (!from->is_recorded || !to->is_recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    return *ms = (float)((double)(int64_t)(to->at_ns - from->at_ns) / 1e6), CUDA_SUCCESS;
}
API cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags) {
    (void)flags;
    NEED_CONTEXT;
    CUstream own = stream_of(s);
    uint64_t at_ns = e->at_ns - books->skipped_ns[card_of_event(e)] + books->skipped_ns[card_of_stream(own)]; /* by its clock */
    if (own->tail_ns < at_ns)
        own->tail_ns = at_ns;
    return CUDA_SUCCESS;
}

/* Pools */

/* Where a graph's memory will be, in addresses that nothing else has. */
#define PLACES 0x7000000000ull
static CUdeviceptr new_place(void) { return PLACES + next_handle++ * 4096; }

API cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream s) {
    NEED_CONTEXT;
    if (!out || !size)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph into = stream_of(s)->capturing; /* another thread may end it meanwhile */
    if (into) { /* becomes a node of the graph */
        into->alloc_bytes += round_up(size, GRAIN);
        return *out = new_place(), CUDA_SUCCESS;
    }
    size_t bytes = round_up(size, GRAIN);
    pthread_mutex_lock(&lock);
    uint64_t wanted = pool->used + bytes, more = wanted > pool->reserved ? wanted - pool->reserved : 0;
    uint64_t at = 0;
    bool fits = bytes >= size && !injected() && (!more || pool->is_host || charge(pool->device, more)) && (at = map_host(bytes));
    if (fits) {
        pool->reserved += more;
        pool->used = wanted;
        pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
        pool->used_high = wanted > pool->used_high ? wanted : pool->used_high;
        note(at, POOLED, pool->device, bytes, bytes)->pool = pool;
        *out = at;
    }
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream s) {
    NEED_CONTEXT;
    return cuMemAllocFromPoolAsync(out, size, current_pool[context()->device], s);
}

API cuMemFreeAsync(CUdeviceptr at, CUstream s) {
    NEED_CONTEXT;
    if (stream_of(s)->capturing) /* a node frees what a node allocated, and nothing else */
        return at > PLACES && at < 2 * PLACES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return release(at, PLAIN);
}

API cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
    if (!out || !props)
        return CUDA_ERROR_INVALID_VALUE;
    bool is_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (is_device)
        NEED_DEVICE(props->location.id);
    if (!(*out = calloc(1, sizeof **out)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    **out = (struct CUmemPoolHandle_st){.device = is_device ? (unsigned)props->location.id : 0, .is_host = !is_device};
    return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    pthread_mutex_lock(&lock);
    pool_settle(pool, keep);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

API cuMemPoolDestroy(CUmemoryPool pool) {
    if (pool->used)
        return CUDA_ERROR_INVALID_VALUE;
    cuMemPoolTrimTo(pool, 0);
    for (unsigned d = 0; d < devices; d++)
        if (current_pool[d] == pool)
            current_pool[d] = &default_pool[d];
    return free(pool), CUDA_SUCCESS;
}

API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
    if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    else if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->reserved_high = pool->reserved; /* the only value allowed is 0: from now on */
    else if (which == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
    *(uint64_t *)value = which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD      ? pool->threshold
                         : which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->reserved
                         : which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT     ? pool->used
                         : which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH                        ? pool->reserved_high
                         : which == CU_MEMPOOL_ATTR_USED_MEM_HIGH                            ? pool->used_high
                                                                         : 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev) {
    NEED_DEVICE(dev);
    return *out = &default_pool[dev], CUDA_SUCCESS;
}
API cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev) {
    NEED_DEVICE(dev);
    return *out = current_pool[dev], CUDA_SUCCESS;
}
API cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    NEED_DEVICE(dev);
    return current_pool[dev] = pool, CUDA_SUCCESS;
}

/* The pool of a place and kind: managed memory counts on a card, host memory does not. */
API cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
    static struct CUmemPoolHandle_st host_pool = {.is_host = true};
    NEED_CONTEXT;
    bool is_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE, is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    CUdevice dev = is_device ? location->id : (CUdevice)context()->device;
    NEED_DEVICE(dev);
    return *out = is_managed ? &managed_pool[dev] : is_device ? current_pool[dev] : &host_pool, CUDA_SUCCESS;
}
API cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type) { return cuMemGetMemPool(out, location, type); }

#include "virtual.h"

/* External memory and arrays: bytes without an address. What is in external memory cannot be read here. */

static CUresult hold(void **out, size_t bytes, size_t whole, enum kind kind, const struct block *shape) {
    NEED_CONTEXT;
    unsigned device = context()->device;
    if (injected() || !charge(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *out = (void *)(uintptr_t)(0x100000 + next_handle++ * 16);
    struct block *made = note(PTR(*out), kind, device, bytes, 0);
    made->whole = whole;
    if (shape)
        made->element = shape->element, made->line = shape->line, made->lines = shape->lines, made->slices = shape->slices;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

#include "arrays.h"
#include "copies.h"

API cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d) { return hold((void **)out, d->size, d->size, EXTERNAL, NULL); }
API cuDestroyExternalMemory(CUexternalMemory memory) { return release(PTR(memory), EXTERNAL); }

/* Kernels */

#include "code.h"

#define SHAPE(x, y, z) (const unsigned[]){x, y, z}
static CUresult launch(CUfunction f, CUstream s, void **params, const unsigned grid[3], const unsigned block[3]) {
    NEED_CONTEXT;
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    s = stream_of(s);
    uint64_t ns = f->is_told && params ? *(uint64_t *)params[0] : f->is_by_block ? f->ns * grid[0] * grid[1] * grid[2] : f->ns;
    CUgraph into = s->capturing; /* another thread may end it meanwhile */
    if (into) {
        into->ns += ns;
        into->kernels++;
        return CUDA_SUCCESS;
    }
    if (atomic_load(&f->load_ns))
        wait_until(card_of[context()->device], card_now_ns(card_of[context()->device]) + atomic_exchange(&f->load_ns, 0));
    if (f->body)
        f->body(params, grid, block);
    if (f->is_fault) {
        context()->error = CUDA_ERROR_LAUNCH_FAILED;
        atomic_fetch_add(&books->faults[card_of[context()->device]], 1);
    }
    if (ns)
        enqueue(s, ns);
    else
        books->row[row].card[card_of[context()->device]].launches++;
    return CUDA_SUCCESS;
}

#define DIMS unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared
#define DIMS_OF(config) SHAPE((config)->gridDimX, (config)->gridDimY, (config)->gridDimZ), SHAPE((config)->blockDimX, (config)->blockDimY, (config)->blockDimZ)
API cuLaunchKernel(CUfunction f, DIMS, CUstream s, void **params, void **extra) {
    (void)shared, (void)extra;
    return launch(f, s, params, SHAPE(gx, gy, gz), SHAPE(bx, by, bz));
}
API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    (void)extra;
    return launch(f, config->hStream, params, DIMS_OF(config));
}
API cuLaunchCooperativeKernel(CUfunction f, DIMS, CUstream s, void **params) {
    (void)shared;
    return launch(f, s, params, SHAPE(gx, gy, gz), SHAPE(bx, by, bz));
}
/* At most one kernel for each device, as the driver's manual has it; each in its stream's own context. */
API cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags) {
    (void)flags;
    CUresult result = list && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    unsigned seen = 0;
    for (unsigned i = 0; i < count && !result; i++) {
        if ((uintptr_t)list[i].hStream <= 2)
            return CUDA_ERROR_INVALID_HANDLE;
        unsigned bit = 1u << list[i].hStream->context->device;
        if (seen & bit)
            return CUDA_ERROR_INVALID_DEVICE;
        seen |= bit;
    }
    for (unsigned i = 0; i < count && !result; i++) {
        if ((result = cuCtxPushCurrent_v2(list[i].hStream->context)) == CUDA_SUCCESS) {
            result = launch(list[i].function, list[i].hStream, list[i].kernelParams, DIMS_OF(&list[i]));
            cuCtxPopCurrent_v2(NULL);
        }
    }
    return result;
}
API cuLaunch(CUfunction f) { return launch(f, NULL, NULL, SHAPE(1, 1, 1), SHAPE(1, 1, 1)); }
API cuLaunchGrid(CUfunction f, int w, int h) { return launch(f, NULL, NULL, SHAPE((unsigned)w, (unsigned)h, 1), SHAPE(1, 1, 1)); }
API cuLaunchGridAsync(CUfunction f, int w, int h, CUstream s) { return launch(f, s, NULL, SHAPE((unsigned)w, (unsigned)h, 1), SHAPE(1, 1, 1)); }

/* Graphs */

#include "objects.h"

API cuGraphCreate(CUgraph *out, unsigned int flags) {
    (void)flags;
    return (*out = calloc(1, sizeof **out)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API cuGraphDestroy(CUgraph graph) {
    drop_objects(graph->objects);
    return free(graph), CUDA_SUCCESS;
}

static CUgraphNode new_node(void) { return (CUgraphNode)(uintptr_t)(0x1000 + 16 * next_handle++); }

API cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, const CUfunction *params) {
    (void)after, (void)n;
    graph->ns += params[0]->ns;
    graph->kernels++;
    return *out = new_node(), CUDA_SUCCESS;
}

API cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    (void)after, (void)n;
    graph->alloc_bytes += round_up(params->bytesize, GRAIN);
    params->dptr = new_place();
    return *out = new_node(), CUDA_SUCCESS;
}

API cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUdeviceptr at) {
    (void)graph, (void)after, (void)n, (void)at;
    return *out = new_node(), CUDA_SUCCESS;
}

/* A node of any kind that this driver can run. */
API cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *params) {
    (void)edges;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphAddKernelNode_v2(out, graph, after, n, &params->kernel.func);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return cuGraphAddMemAllocNode(out, graph, after, n, &params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(out, graph, after, n, 0);
    case CU_GRAPH_NODE_TYPE_EMPTY: return *out = new_node(), CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}
API cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *params) { return cuGraphAddNode_v2(out, graph, after, edges, n, params); }
API cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t n, CUgraphNodeParams *params) { return cuGraphAddNode_v2(out, graph, after, NULL, n, params); }

API cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    (void)flags;
    NEED_CONTEXT;
    if (!(*out = calloc(1, sizeof **out)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*out)->ns = graph->ns;
    (*out)->kernels = graph->kernels;
    (*out)->alloc_bytes = graph->alloc_bytes;
    (*out)->device = context()->device;
    for (struct keep *k = graph->objects; k; k = k->next) {
        cuUserObjectRetain(k->object, 1);
        keep_object(&(*out)->objects, k->object, 1);
    }
    return CUDA_SUCCESS;
}
API cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *text, size_t size) { return (void)bad, (void)text, (void)size, cuGraphInstantiateWithFlags(out, graph, 0); }

static CUgraphExec uploaded;

static CUresult map_graph(CUgraphExec exec) {
    unsigned d = exec->device;
    if (exec->is_mapped || !exec->alloc_bytes)
        return CUDA_SUCCESS;
    uint64_t reused = exec->alloc_bytes < graph_cached[d] ? exec->alloc_bytes : graph_cached[d];
    if (injected() || !charge(d, exec->alloc_bytes - reused))
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph_cached[d] -= reused;
    graph_mapped[d] += exec->alloc_bytes;
    return exec->is_mapped = true, CUDA_SUCCESS;
}

static void unmap_graph(CUgraphExec exec) {
    uint64_t bytes = exec->is_mapped ? exec->alloc_bytes : 0;
    graph_mapped[exec->device] -= bytes;
    graph_cached[exec->device] += bytes;
    exec->is_mapped = false;
}

static void forget_upload(CUgraphExec exec) {
    for (CUgraphExec *at = &uploaded; *at; at = &(*at)->next)
        if (*at == exec) {
            *at = exec->next;
            return;
        }
}

API cuGraphUpload(CUgraphExec exec, CUstream s) {
    (void)s;
    NEED_CONTEXT;
    bool was_mapped = exec->is_mapped;
    CUresult result = map_graph(exec);
    if (!was_mapped && exec->is_mapped) {
        exec->next = uploaded;
        uploaded = exec;
    }
    return result;
}

API cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    CUresult result = cuGraphInstantiateWithFlags(out, graph, 0);
    bool uploads = params && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    return result || !uploads ? result : cuGraphUpload(*out, NULL);
}
API cuGraphUpload_ptsz(CUgraphExec exec, CUstream s) { return cuGraphUpload(exec, s); }
API cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) { return cuGraphInstantiateWithParams(out, graph, params); }

API cuGraphLaunch(CUgraphExec exec, CUstream s) {
    NEED_CONTEXT;
    CUresult result = map_graph(exec);
    forget_upload(exec);
    if (result == CUDA_SUCCESS && exec->ns)
        enqueue(stream_of(s), exec->ns);
    return result;
}

API cuGraphExecDestroy(CUgraphExec exec) {
    forget_upload(exec);
    unmap_graph(exec);
    drop_objects(exec->objects);
    return free(exec), CUDA_SUCCESS;
}

API cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute which, void *value) {
    NEED_DEVICE(dev);
    bool is_reserved = which >= CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
    return *(uint64_t *)value = graph_mapped[dev] + (is_reserved ? graph_cached[dev] : 0), CUDA_SUCCESS;
}

API cuDeviceGraphMemTrim(CUdevice dev) {
    NEED_DEVICE(dev);
    for (CUgraphExec *at = &uploaded, exec; (exec = *at);)
        if (exec->device == (unsigned)dev) {
            *at = exec->next;
            unmap_graph(exec);
        } else
            at = &exec->next;
    uncharge((unsigned)dev, graph_cached[dev]);
    return graph_cached[dev] = 0, CUDA_SUCCESS;
}

static CUresult begin_capture(CUstream s, CUstreamCaptureMode mode, CUgraph into, bool is_programs) {
    s->capturing = into;
    s->is_programs = is_programs;
    s->mode = mode;
    s->breaks = breaks;
    global_captures += mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    own_captures += mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}
API cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode mode) {
    NEED_CONTEXT;
    CUgraph made;
    CUresult result = stream_of(s)->capturing ? CUDA_ERROR_INVALID_VALUE : cuGraphCreate(&made, 0);
    return result ? result : begin_capture(stream_of(s), mode, made, false);
}
API cuStreamBeginCapture(CUstream s) { return cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL); }
API cuStreamBeginCaptureToGraph(CUstream s, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    (void)after, (void)edges, (void)count;
    NEED_CONTEXT;
    if (!graph || stream_of(s)->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    return begin_capture(stream_of(s), mode, graph, true);
}
/* Nothing here compares a graph with what is captured again, or records for a graphics library. */
API cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback call, void *data) { return (void)s, (void)mode, (void)graph, (void)call, (void)data, CUDA_ERROR_NOT_SUPPORTED; }
API cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback call, void *data) { return cuStreamBeginRecaptureToGraph(s, mode, graph, call, data); }
API cuStreamBeginCaptureToCig(CUstream s, CUstreamCigCaptureParams *params) { return (void)s, (void)params, CUDA_ERROR_NOT_SUPPORTED; }
API cuStreamBeginCaptureToCig_ptsz(CUstream s, CUstreamCigCaptureParams *params) { return cuStreamBeginCaptureToCig(s, params); }
API cuStreamEndCaptureToCig(CUstream s) { return (void)s, CUDA_ERROR_NOT_SUPPORTED; }
API cuStreamEndCaptureToCig_ptsz(CUstream s) { return cuStreamEndCaptureToCig(s); }

static CUgraph leave_capture(CUstream s) {
    CUgraph made = s->capturing;
    global_captures -= s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    own_captures -= s->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    s->capturing = NULL;
    return made;
}
API cuStreamEndCapture(CUstream s, CUgraph *out) {
    NEED_CONTEXT;
    s = stream_of(s);
    *out = NULL;
    if (!s->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph made = leave_capture(s);
    if (s->breaks == breaks)
        return *out = made, CUDA_SUCCESS;
    if (!s->is_programs)
        cuGraphDestroy(made);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}
API cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *out) {
    NEED_CONTEXT;
    return *out = stream_of(s)->capturing != NULL, CUDA_SUCCESS;
}

/* A captured stream's graph; it depends on nothing here. */
API cuStreamGetCaptureInfo_v3(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count) {
    NEED_CONTEXT;
    CUgraph own = stream_of(s)->capturing;
    *status = own != NULL;
    if (id)
        *id = PTR(own);
    if (graph)
        *graph = own;
    if (after)
        *after = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return CUDA_SUCCESS;
}
API cuStreamGetCaptureInfo_v2(CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, size_t *count) {
    return cuStreamGetCaptureInfo_v3(s, status, id, graph, after, NULL, count);
}
API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    return *mode = before, CUDA_SUCCESS;
}
/* A graph here is what it takes, not a list: its nodes are counted, not kept. */
API cuGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count) {
    for (size_t i = 0; out && i < *count; i++)
        out[i] = i < graph->kernels ? new_node() : NULL;
    return *count = graph->kernels, CUDA_SUCCESS;
}

#include "facts.h"
#include "sharing.h"

#include "forms.h"

/* Lookup */

API cuGetProcAddress_v2(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
API cuGetProcAddress(const char *, void **, int, cuuint64_t);

#define ABSENT(symbol, name, since, stream) \
    API symbol(void) { return CUDA_ERROR_NOT_SUPPORTED; }
#include "doors.def"

struct door {
    const char *base;
    int since;
    bool is_per_thread;
    void *function;
};
static const struct door doors[] = {
#define DOOR(symbol, base, since, per_thread) {#base, since, per_thread, (void *)symbol},
#define ABSENT DOOR
#include "doors.def"
};

API cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    const struct door *best = NULL, *end = doors + sizeof doors / sizeof *doors, *first = doors;
    for (size_t count = (size_t)(end - first); count > 0;) { /* the first of this name */
        bool is_later = strcmp(first[count / 2].base, name) < 0;
        first += is_later ? count / 2 + 1 : 0;
        count = is_later ? count - count / 2 - 1 : count / 2;
    }
    bool is_known = first < end && strcmp(first->base, name) == 0;
    for (const struct door *d = first; d < end && strcmp(d->base, name) == 0; d++) {
        bool wanted = !d->is_per_thread || flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
        if (!wanted || d->since > version)
            continue;
        if (!best || d->since > best->since || (d->since == best->since && d->is_per_thread))
            best = d;
    }
    *out = best ? best->function : NULL;
    if (status)
        *status = best ? 0 : is_known ? 2 : 1;
    return best || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) { return cuGetProcAddress_v2(name, out, version, flags, NULL); }
