/* The byte meter of the CPU device. It is preloaded (LD_PRELOAD) into every process of a job, counts the bytes that
 * the process holds into its slot of the shared page (page.h), and refuses what would go over the job's cap.
 *
 * Threads: every hook runs on whichever thread of the program calls it, also before this library's
 *   constructor and after its destructor. Load and unload run on one thread, the fork handler on the child's
 *   only thread. There are no threads of ours.
 * Lock: none. Shared words are atomics. cp_page is written once, before cp_slot is published; a slot belongs to
 *   the process that exchanged its pid into it (G2). A block's bit (Y2) is changed by whoever has the block.
 *
 * Y1  A block counts if its usable size is at least COUNTED_FROM. Giving out and taking back ask the same
 *     question of the same block, so there is no table of blocks.
 * Y2  What a forked child inherited is counted where it was made, and stays there: giving it back makes the child no
 *     room, as its parent still holds it. So a child notes which blocks are its own, one bit for each page of its
 *     memory: no two counted blocks begin in one page. A process that was not forked notes nothing. An inherited block
 *     that is resized is the child's own from then on. Blocks from before the constructor were never counted. Giving
 *     those back may take the live count below zero; it is signed, and a sum takes a negative count for zero.
 * Y3  The meter looks at the cap before an allocation and counts after it. Threads and processes that ask in the
 *     same instant may pass together, by at most one allocation each. A lock here would cost every
 *     allocation, and a killed process could hold it.
 * Y4  With CARPOOL_WAIT_MEMORY_NS an allocation over the cap waits for room, on its own thread, and looks again every few
 *     milliseconds. The daemon raises the cap when there is room, and says when there will be none (H_DENIED_NS). What
 *     goes over H_CAPACITY fails at once: the device does not have it, or the job's user set the limit there.
 *     What it waits for stands in the slot (S_PENDING, and in S_LIVE, so that another thread cannot slip in). The meter
 *     knocks at the daemon (CARPOOL_KNOCK), which then looks there: at the first look without room, and again now and
 *     then, because the daemon may be a new one. After so many nanoseconds the allocation fails by itself, because the
 *     daemon may be gone.
 * Y5  At a boundary the thread that takes the turns (T4) stands still, and carpool works on it, perhaps to move memory
 *     away. There that thread waits for nothing, and small blocks are not refused to it: the job may hold more than its
 *     cap already, having grown. The program's other threads go on meanwhile, and are refused what any thread is. They
 *     wait, but no longer than ASIDE_NS while that thread stands there: a thread that waits with the interpreter's lock
 *     keeps the process from hearing of its turn, or that it must make room.
 * Y6  The meter is a guest: any trouble turns it off for this process, it says so in one line, and passes calls on. It
 *     says nothing where the page is gone: the job is over. Nor with another C library than glibc: carpool run said it.
 * Y7  A warm parent (src/carpool/agent/warm) has no job's page and counts on one of its own. A program that it forks takes
 *     its job's page (carpool_join) with nothing counted. The bytes of an import that the parent made are added when the
 *     program imports the same (carpool_took), so its cap is reached where it would be in a cold start.
 *
 * Not seen: mmap by the program itself, inherited memory that a child writes to or keeps longer than its parent,
 * children made by a raw clone (they count into their parent's slot),
 * and a slot whose process executes a program without the meter (its last count stands until it ends). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "protocol.h"
#include "slots.h"

#define COUNTED_FROM 4096
#define SMALL_BYTES (1 << 20) /* carpool's own blocks are smaller */
#define ASIDE_NS 2000000000 /* Y5; most turns come sooner */
#define LOOK_NS 5000000 /* between two looks for room; a granted one is late by as much */
#define EXPORT __attribute__((visibility("default")))

static cp_word *_Atomic cp_slot; /* our slot; NULL passes every call through */
static uint64_t cp_wait_ns;      /* how long an allocation may wait for room; written once, by the constructor */
static bool cp_began_capped;     /* by its user, from the start. Written once, too */
static struct sockaddr_un cp_door; /* where to knock; no path where nobody listens. Written once, too */
static _Thread_local bool cp_takes_turns __attribute__((tls_model("initial-exec"))); /* set by the agent */
static atomic_flag cp_denial_said = ATOMIC_FLAG_INIT; /* the cap's sentence is written once a process */

/* The real functions */

/* reallocarray has no row: libc's own calls realloc, which would come back to us and count twice. */
#define REALS(X)                                                                     \
    X(malloc, void *, (size_t)) X(calloc, void *, (size_t, size_t))                  \
    X(realloc, void *, (void *, size_t)) X(free, void, (void *))                     \
    X(memalign, void *, (size_t, size_t)) X(aligned_alloc, void *, (size_t, size_t)) \
    X(posix_memalign, int, (void **, size_t, size_t))                                \
    X(valloc, void *, (size_t)) X(pvalloc, void *, (size_t))                         \
    X(malloc_usable_size, size_t, (void *))
#define DECLARE(name, result, args) static result(*_Atomic real_##name) args;
REALS(DECLARE)

/* Finding them may allocate (dlsym keeps its error text on the heap): those calls get bytes from cp_boot,
 * which is never given back. The flag must not itself allocate, so it lives in the initial TLS block. */
static _Thread_local bool cp_finding __attribute__((tls_model("initial-exec")));
static _Alignas(16) unsigned char cp_boot[8192];
static atomic_size_t cp_boot_used;

__attribute__((cold, noinline)) static void cp_find_reals(void) {
    if (cp_finding)
        return;
    cp_finding = true;
    int saved = errno;
#define FIND(name, result, args) PUT(real_##name, (result(*) args)dlsym(RTLD_NEXT, #name));
    REALS(FIND) /* two threads may both do this; they store the same values */
    errno = saved;
    cp_finding = false;
}

#define FOUND(real) (GET(real) || (cp_find_reals(), GET(real)))

static void *cp_out_of_memory(void) {
    errno = ENOMEM;
    return NULL;
}

static void *cp_boot_alloc(size_t size) {
    if (size > sizeof cp_boot)
        return cp_out_of_memory();
    size_t rounded = (size + 15) & ~(size_t)15, start = atomic_fetch_add(&cp_boot_used, rounded);
    return start + rounded <= sizeof cp_boot ? cp_boot + start : cp_out_of_memory();
}

static bool cp_is_boot(const void *block) { return (uintptr_t)block - (uintptr_t)cp_boot < sizeof cp_boot; }

/* Counting and the cap */

static cp_word *cp_my_slot(void) { return atomic_load_explicit(&cp_slot, memory_order_acquire); }

/* A forked child's own blocks (Y2), as bits in regions that are mapped when they are first wanted. Where there is no
 * memory for one, its blocks are taken for inherited: their bytes stay counted. Not inlined: a process that was not
 * forked pays three instructions a call for this. */
#define BLOCK_SHIFT 12 /* COUNTED_FROM: the bytes a bit stands for */
#define REGION_SHIFT 35
#define REGIONS (1 << (48 - REGION_SHIFT))
#define REGION_BYTES (1 << (REGION_SHIFT - BLOCK_SHIFT - 3))

static bool cp_is_forked; /* written by the fork handler */
static cp_word *_Atomic cp_regions[REGIONS];

__attribute__((cold, noinline)) static cp_word *cp_open_region(size_t region) {
    int saved = errno;
    cp_word *made = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cp_word *seen = NULL;
    if (made == MAP_FAILED)
        made = NULL;
    else if (!atomic_compare_exchange_strong(&cp_regions[region], &seen, made)) { /* another thread was first */
        munmap(made, REGION_BYTES);
        made = seen;
    }
    errno = saved;
    return made;
}

__attribute__((noinline)) static void cp_note_own(const void *block) {
    uintptr_t bit = (uintptr_t)block >> BLOCK_SHIFT;
    size_t region = ((uintptr_t)block >> REGION_SHIFT) % REGIONS;
    cp_word *bits = atomic_load(&cp_regions[region]);
    if (bits || (bits = cp_open_region(region)))
        atomic_fetch_or(&bits[bit / 64 % (REGION_BYTES / 8)], (uint64_t)1 << bit % 64);
}

/* Was it, until now? */
__attribute__((noinline)) static bool cp_forget_own(const void *block) {
    uintptr_t bit = (uintptr_t)block >> BLOCK_SHIFT;
    uint64_t mask = (uint64_t)1 << bit % 64;
    cp_word *bits = atomic_load(&cp_regions[((uintptr_t)block >> REGION_SHIFT) % REGIONS]);
    return bits && atomic_fetch_and(&bits[bit / 64 % (REGION_BYTES / 8)], ~mask) & mask;
}

/* In the child: what its parent noted is not its own. */
static void cp_forget_all(void) {
    for (size_t region = 0; cp_is_forked && region < REGIONS; region++) {
        cp_word *bits = GET(cp_regions[region]);
        if (bits && madvise(bits, REGION_BYTES, MADV_DONTNEED) != 0)
            PUT(cp_regions[region], NULL);
    }
    cp_is_forked = true;
}

static size_t cp_counted_size(void *block) {
    size_t size = block ? GET(real_malloc_usable_size)(block) : 0;
    return size >= COUNTED_FROM ? size : 0;
}

/* What giving it out adds to the count. */
static size_t cp_size_given(void *block) {
    size_t size = cp_counted_size(block);
    if (size && cp_is_forked)
        cp_note_own(block);
    return size;
}

/* What giving it back takes from the count. It is asked before the block is given back: then another thread may get it. */
static size_t cp_size_taken(void *block) {
    size_t size = cp_counted_size(block);
    return size && cp_is_forked && !cp_forget_own(block) ? 0 : size;
}

static void cp_add(cp_word *slot, size_t after, size_t before) {
    if (after == before)
        return;
    uint64_t change = (uint64_t)after - before;
    uint64_t live = atomic_fetch_add_explicit(&slot[CP_S_LIVE], change, memory_order_relaxed) + change;
    if (after > before)
        cp_raise(&slot[CP_S_PEAK], (int64_t)live);
}

static void *cp_count(void *block) {
    cp_word *slot = cp_my_slot();
    if (slot)
        cp_add(slot, cp_size_given(block), 0);
    return block;
}

/* In the unit that suits `scale`. Whole numbers only: printf may allocate for a double. */
static void cp_print_bytes(char out[48], uint64_t bytes, uint64_t scale) {
    unsigned shift = scale >> 30 ? 30 : scale >> 20 ? 20 : 10;
    int digits = shift == 30 ? 2 : 1;
    unsigned long long whole = bytes >> shift, rest = bytes - (whole << shift);
    snprintf(out, 48, "%llu.%0*llu %ciB", whole, digits, (rest * (shift == 30 ? 100 : 10)) >> shift,
             shift == 30 ? 'G' : shift == 20 ? 'M' : 'K');
}

/* Is the cap its user's? Else it is what others leave of the device. */
static bool cp_is_capped(void) { return cp_began_capped || GET(cp_page[CP_H_CAPACITY]) & CP_OWN_CAP; }

/* Once a process: the daemon's sentence, if there is one, or what is known here. */
__attribute__((cold, noinline)) static void cp_deny(uint64_t cap, uint64_t asked, bool by_daemon, bool has_waited) {
    atomic_fetch_add_explicit(&cp_page[CP_H_DENIED_COUNT], 1, memory_order_relaxed);
    PUT(cp_page[CP_H_DENIED_BYTES], asked);
    if (atomic_flag_test_and_set(&cp_denial_said))
        return;
    char line[CP_TEXT_BYTES + 80], cap_text[48], held_text[48], asked_text[48];
    if (by_daemon) {
        const char *said = (const char *)cp_page + CP_TEXT_AT;
        snprintf(line, sizeof line, "carpool: %.*s; the program gets its own out-of-memory error\n",
                 CP_TEXT_BYTES - 1, said);
    } else {
        cp_print_bytes(cap_text, cap, cap);
        cp_print_bytes(held_text, cp_held(false), cap);
        cp_print_bytes(asked_text, asked, asked);
        bool is_capped = cp_is_capped();
        snprintf(line, sizeof line,
                 "carpool: %s: this job %s hold %s, holds %s and asked for %s more%s; the program gets its own "
                 "out-of-memory error%s\n",
                 is_capped ? "memory cap reached" : "out of memory", is_capped ? "may" : "can", cap_text, held_text,
                 asked_text, has_waited ? ", and waited as long as it may" : "",
                 is_capped ? " (raise the cap with --memory)" : "");
    }
    cp_say(line);
}

static uint64_t cp_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static bool cp_is_denied(uint64_t since) {
    return atomic_load_explicit(&cp_page[CP_H_DENIED_NS], memory_order_acquire) >= since;
}

static bool cp_at_boundary(void) { return GET(cp_my_slot()[CP_S_LEASE]) > CP_LEASE_HELD; }

/* A datagram that says nothing but that something waits; inside malloc nothing can be held, sent in part or waited for. One
 * that is lost is followed by another. */
static void cp_knock(void) {
    int line = cp_door.sun_path[0] ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (line < 0)
        return;
    (void)!sendto(line, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&cp_door, sizeof cp_door);
    close(line);
}

/* Wait until all that the job holds, with what we ask for, is under its cap; false if that is not to be. */
__attribute__((cold, noinline)) static bool cp_wait_for_room(uint64_t asked, uint64_t since) {
    cp_word *slot = cp_my_slot();
    uint64_t now = since, knocked = 0, went_on = since; /* when the thread that takes turns was last seen to go on */
    bool is_free = false;
    atomic_fetch_add(&slot[CP_S_LIVE], asked);
    atomic_fetch_add(&slot[CP_S_PENDING], asked);
    do {
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        uint64_t cap = GET(cp_page[CP_H_CAP]);
        is_free = cap == 0 || cp_held(true) <= cap;
        now = cp_now();
        if (!cp_at_boundary())
            went_on = now;
        if (!is_free && now - knocked >= CP_KNOCK_NS) {
            knocked = now;
            cp_knock();
        }
    } while (!is_free && !cp_is_denied(since) && now - since < cp_wait_ns && now - went_on < ASIDE_NS);
    atomic_fetch_sub(&slot[CP_S_PENDING], asked);
    atomic_fetch_sub(&slot[CP_S_LIVE], asked);
    return is_free;
}

/* Could waiting help: does the device have so much, and would its user let it? */
static bool cp_may_wait(uint64_t held, uint64_t asked) {
    uint64_t most = GET(cp_page[CP_H_CAPACITY]) & ~CP_OWN_CAP;
    return cp_wait_ns && (most == 0 || (asked <= most && held <= most - asked));
}

/* May the program not have `size` bytes in place of the `before` counted ones? The dead are looked for only
 * when the answer would be no: that takes system calls. */
static bool cp_denied(size_t size, size_t before) {
    if (size < COUNTED_FROM || size <= before || !cp_my_slot())
        return false;
    uint64_t cap = GET(cp_page[CP_H_CAP]), asked = size - before;
    if (cap == 0)
        return false;
    uint64_t held = cp_held(false);
    if (held <= cap && asked <= cap - held)
        return false;
    bool is_carpools = cp_takes_turns && cp_at_boundary();
    if (is_carpools && asked < SMALL_BYTES)
        return false;
    int saved = errno;
    held = cp_held(true);
    bool denied = held > cap || asked > cap - held, waits = denied && !is_carpools && cp_may_wait(held, asked);
    uint64_t since = waits ? cp_now() : 0;
    if (waits && cp_wait_for_room(asked, since))
        denied = false;
    if (denied) /* the cap as it was: while a job waits the daemon keeps it at what the job holds */
        cp_deny(cap, asked, waits && cp_is_denied(since), waits);
    errno = saved;
    return denied;
}

/* Hooks */

/* dlsym calls malloc, calloc and realloc at most; the others are not found only where libc has none. */
#define HOOK(name, params, args, when_not_found)                                          \
    EXPORT void *name params {                                                            \
        if (!FOUND(real_##name))                                                          \
            return when_not_found;                                                        \
        return cp_denied(size, 0) ? cp_out_of_memory() : cp_count(GET(real_##name) args); \
    }
HOOK(malloc, (size_t size), (size), cp_boot_alloc(size))
HOOK(valloc, (size_t size), (size), cp_out_of_memory())
HOOK(pvalloc, (size_t size), (size), cp_out_of_memory())
HOOK(memalign, (size_t alignment, size_t size), (alignment, size), cp_out_of_memory())
HOOK(aligned_alloc, (size_t alignment, size_t size), (alignment, size), cp_out_of_memory())

EXPORT int posix_memalign(void **out, size_t alignment, size_t size) {
    if (!FOUND(real_posix_memalign) || cp_denied(size, 0))
        return ENOMEM;
    int error = GET(real_posix_memalign)(out, alignment, size);
    if (error == 0)
        cp_count(*out);
    return error;
}

EXPORT void *calloc(size_t count, size_t each) {
    size_t size;
    if (__builtin_mul_overflow(count, each, &size))
        return cp_out_of_memory();
    if (!FOUND(real_calloc))
        return cp_boot_alloc(size);
    return cp_denied(size, 0) ? cp_out_of_memory() : cp_count(GET(real_calloc)(count, each));
}

EXPORT void *realloc(void *old, size_t size) {
    if (cp_is_boot(old)) { /* its size is not kept: whatever follows it in cp_boot comes along */
        size_t room = (size_t)(cp_boot + sizeof cp_boot - (unsigned char *)old);
        void *block = malloc(size);
        return block ? memcpy(block, old, size < room ? size : room) : NULL;
    }
    if (!FOUND(real_realloc))
        return old ? cp_out_of_memory() : cp_boot_alloc(size);
    cp_word *slot = cp_my_slot();
    size_t held = slot ? cp_counted_size(old) : 0, before = slot ? cp_size_taken(old) : 0;
    bool denied = size > held && cp_denied(size, before);
    void *block = denied ? cp_out_of_memory() : GET(real_realloc)(old, size);
    if (slot && (block || (size == 0 && !denied))) /* size 0 gave the old block back; otherwise NULL left it alone */
        cp_add(slot, cp_size_given(block), before);
    else if (before && cp_is_forked)
        cp_note_own(old);
    return block;
}

EXPORT void *reallocarray(void *old, size_t count, size_t each) {
    size_t size;
    return __builtin_mul_overflow(count, each, &size) ? cp_out_of_memory() : realloc(old, size);
}

EXPORT void free(void *block) {
    if (!block || cp_is_boot(block) || !FOUND(real_free))
        return;
    cp_word *slot = cp_my_slot();
    if (slot)
        cp_add(slot, 0, cp_size_taken(block));
    GET(real_free)(block);
}

/* The agent says that it is this thread which takes the turns (Y5). */
EXPORT void carpool_takes_turns(void);
void carpool_takes_turns(void) { cp_takes_turns = true; }

/* Load, fork, exit */

static void cp_claim(void) {
    cp_word *slot = cp_claim_slot();
    atomic_store(&cp_slot, slot);
    if (!slot)
        cp_say("carpool: every slot of the shared page is taken; " NOT_COUNTED "\n");
}

static void cp_after_fork(void) {
    int saved = errno;
    atomic_flag_clear(&cp_denial_said);
    cp_forget_all();
    if (cp_page)
        cp_claim();
    errno = saved;
}

/* A page that is gone is that of a job that is over: what it left behind is nobody's, and nothing is said of it. */
static bool cp_is_job_over(const char *path) { return access(path, F_OK) != 0 && errno == ENOENT; }

/* The page of this process's job; NULL, and why, if there is none to count on. */
static cp_word *cp_find_page(const char *path, const char **why) {
    static bool is_following;
    void *volatile probe = malloc(1); /* finds the reals, if it reaches us at all */
    free(probe);
    if (!GET(real_malloc) || !GET(real_malloc_usable_size)) {
        *why = "another library serves malloc before the meter can see it";
        return NULL;
    }
    cp_word *page = path ? cp_map_page(path, why)
                         : mmap(NULL, CP_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!page || (void *)page == MAP_FAILED)
        return NULL;
    if (is_following || (is_following = cp_follow_forks(cp_after_fork)))
        return page;
    *why = "a fork could not be followed"; /* whoever has the page mapped is taken for counted (daemon/limits.py) */
    munmap(page, CP_PAGE_BYTES);
    return NULL;
}

__attribute__((constructor)) static void cp_load(void) {
    const char *path = getenv(CP_ENV_PAGE), *wait = getenv(CP_ENV_WAIT_MEMORY_NS), *why = NULL;
    const char *door = getenv(CP_ENV_KNOCK);
    if (!path || !*path)
        return;
    cp_wait_ns = wait ? strtoull(wait, NULL, 10) : 0;
    cp_began_capped = getenv(CP_ENV_IS_CAPPED) != NULL;
    cp_door.sun_family = AF_UNIX;
    if (door && strlen(door) < sizeof cp_door.sun_path)
        memcpy(cp_door.sun_path, door, strlen(door));
    cp_page = cp_find_page(path, &why);
    if (cp_page)
        cp_claim();
    if (why && __register_atfork && !cp_is_job_over(path)) { /* musl: carpool run has said it */
        char line[512];
        snprintf(line, sizeof line, "carpool: %s (shared page %.300s); %s\n", why, path, NOT_COUNTED);
        cp_say(line);
    }
}

/* What a warm parent holds more than at its first call, from which on it counts (Y7). */
EXPORT uint64_t carpool_counted(void);
uint64_t carpool_counted(void) {
    const char *why = NULL;
    if (!cp_page && (cp_page = cp_find_page(NULL, &why)))
        cp_claim();
    return cp_page ? cp_held(false) : 0;
}

/* A program that was forked from a warm parent has its job's variables now. */
EXPORT void carpool_join(void);
void carpool_join(void) {
    cp_word *before = cp_page;
    atomic_store(&cp_slot, NULL);
    cp_page = NULL;
    if (before)
        munmap(before, CP_PAGE_BYTES);
    cp_load();
}

/* It imports what its parent had imported. */
EXPORT void carpool_took(uint64_t bytes);
void carpool_took(uint64_t bytes) {
    cp_word *slot = cp_my_slot();
    if (slot)
        cp_add(slot, bytes, 0);
}

/* A thread that is inside a hook just now may still add one block to the slot; its next owner wipes it. */
__attribute__((destructor)) static void cp_unload(void) {
    cp_word *slot = atomic_exchange(&cp_slot, NULL);
    if (slot && GET(slot[CP_S_PID]) == (uint64_t)getpid()) { /* not in a child made by a raw clone */
        PUT(slot[CP_S_LIVE], 0);
        atomic_store(&slot[CP_S_PID], 0);
    }
}
