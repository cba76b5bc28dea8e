/* What the files of the CUDA guest (gpu.so) share. hooks.c stands in the program's way, resolve.c finds the driver and
 * is found in its place, budget.c keeps the account of bytes, link.c takes turns, share.c pays for device time. */
#ifndef CARPOOL_GUEST_H
#define CARPOOL_GUEST_H

#include <stdbool.h>
#include <time.h>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"
#include "page.h"
#include "protocol.h"
#include "words.h"

/* A lock of this process: 0 free, 1 taken, 2 taken and waited for. Not a pthread one: since glibc 2.34 some of its
 * functions have new versions, and this one needs no call where nobody waits. */
typedef atomic_int cp_lock;
static inline bool cp_try_lock(cp_lock *lock) {
    int free = 0;
    return atomic_compare_exchange_strong(lock, &free, 1);
}
static inline void cp_take_lock(cp_lock *lock) {
    if (!cp_try_lock(lock))
        while (atomic_exchange(lock, 2) != 0)
            syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}
static inline void cp_drop_lock(cp_lock *lock) {
    if (atomic_exchange(lock, 0) == 2)
        syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static inline uint64_t cp_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline void cp_sleep(uint64_t ns) { nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL); } /* < 1 s */

#pragma GCC visibility push(hidden)

/* resolve.c */
void *cp_swap(void *function); /* our hook in place of this function of the driver, or the function itself */
#define HOOK(symbol, name, since, stream, params, args, ...) \
    extern CUresult(*real_##symbol) params;                  \
    CUresult cp_##symbol params;
#define CALL(symbol, params, args) extern CUresult(*real_##symbol) params;
#include "hooks.def"

/* budget.c */
/* Up to CP_MIPMAP the bytes of an entry are in the account; CP_POINTER to CP_CAPTURE end with the context that owns them. */
enum cp_kind { CP_EXTERNAL = 1, CP_POINTER, CP_ARRAY, CP_MIPMAP, CP_SPILLED, CP_CAPTURE, CP_HANDLE, CP_BACKING, CP_RANGE, CP_HOST_POOL };
struct cp_entry {
    uint64_t key, owner; /* owner: the context of a pointer or array, the backing of a handle or range */
    uint64_t bytes;
    uint32_t kind, refs;
};
bool cp_reserve(uint64_t bytes);    /* before the driver allocates: false is out of memory */
void cp_unreserve(uint64_t bytes);  /* after a free, or when the driver refused */
void cp_spill(uint64_t bytes);      /* so much more is in managed memory; may be negative */
void cp_settle_graph(uint64_t bytes); /* the graph pool holds this much now */
bool cp_view(uint64_t *free, uint64_t *total, uint64_t *used); /* real figures in, this job's own out; false: no cap to show */
bool cp_holds(uint64_t pid, unsigned long long *bytes); /* so much is held by this process; false: it is not of the job */
bool cp_is_capped(void);
bool cp_is_over(void); /* the job holds more than its cap: graphs did it, whose bytes the driver alone knows */
void cp_note(enum cp_kind kind, uint64_t key, uint64_t owner, uint64_t bytes);
bool cp_change_refs(enum cp_kind kind, uint64_t key, int by, struct cp_entry *out); /* false: unknown */
uint64_t cp_range_around(uint64_t at); /* the key of the mapped range that this address lies in, or 0 */
void cp_drop_context(uint64_t context);
void cp_leave_context(uint64_t context); /* before the end of a green one: its memory is the primary one's, and outlives it */
extern cp_lock cp_map_lock; /* hooks.c has it */
extern atomic_int cp_captures; /* streams being captured */
cp_word *cp_my_slot(void); /* NULL: not of a job, or turned off */
cp_word *cp_header(void); /* of the page, also without a slot; NULL: there is no page */
void cp_count(uint64_t ns); /* device time that this process had */
unsigned cp_launching(void); /* how many processes of the job have had device time and live */
bool cp_is_alive(uint64_t pid);
__attribute__((format(printf, 2, 3))) void cp_say_unless(atomic_flag *is_said, const char *format, ...);
#define cp_say_once(...) \
    do { static atomic_flag is_said = ATOMIC_FLAG_INIT; cp_say_unless(&is_said, __VA_ARGS__); } while (0)
extern char cp_job[80], cp_socket_path[108], cp_version[32], cp_device[80];
extern bool cp_is_configured, cp_must_cap, cp_may_spill;

/* link.c */
extern cp_word *_Atomic cp_gate; /* what a launch looks at: 0 is go on */
extern cp_word *_Atomic cp_turn; /* what a copy looks at: the same without the compute limit */
void cp_wait_turn(CUstream stream); /* the slow side of the turn, for work on this stream */
static inline void cp_pass_turn(CUstream stream) {
    if (__builtin_expect(GET(*atomic_load_explicit(&cp_turn, memory_order_acquire)) != 0, 0))
        cp_wait_turn(stream);
}
bool cp_is_agents_turn(void);    /* the Python agent has this process's turn, and keeps to the limit by it */
void cp_set_gates(void);         /* a compute limit came or went */
bool cp_rest(uint64_t ns);       /* wait for the compute limit; true: others want the turn, it was given back */
void cp_end_step(uint64_t finished); /* the program waited for the device; for all of this context, if it is not 0 */
void cp_note_line(uint64_t context, CUstream stream);   /* there may be work on it; NULL: the context's own */
void cp_forget_line(uint64_t context, CUstream stream); /* before its end; NULL: all of the context */
bool cp_line_up(CUstream but, CUstream aside, CUevent mark); /* aside waits for all other streams of the context; false: not now */
extern atomic_bool cp_has_unseen; /* there may be work on streams that cannot be asked */
bool cp_is_capturing(CUstream stream); /* hooks.c: it is this one */
uint64_t cp_context(void);             /* hooks.c: the current one, or 0 */
void cp_forget_link(void); /* in a forked child */
void cp_leave(void);

/* share.c */
struct cp_work { uint64_t key, function, blocks; }; /* a kernel with its grid, or a graph, which is its own function */
struct cp_sample *cp_pay(struct cp_work work, CUstream stream); /* before a launch; what it returns wants to hear of its end */
void cp_end_sample(struct cp_sample *sample, CUstream stream, CUresult result); /* of the launch */
void cp_forget_context(uint64_t context); /* before its end: its samples and lines; 0: a forked child, all samples */
void cp_end_samples(uint64_t context); /* before its end: how long they took is learnt now, or never; 0: before this process's end */
extern _Atomic uint64_t cp_queued_until; /* what was paid for takes the device until then; 0: nothing was paid for */
void cp_end_wait(uint64_t began);   /* the program waited for the device since then */
void cp_forget_kernels(void);             /* code was unloaded */
void cp_read_samples(void);               /* learn from what has ended */
#define CP_KERNELS 4096 /* a power of two */
enum cp_knowledge { CP_UNKNOWN, CP_FORESEEN, CP_KNOWN }; /* foreseen by its function, known by measuring */
struct cp_kernel {
    _Alignas(64) _Atomic uint64_t key; /* a size that is quick to multiply by */
    _Atomic uint64_t cost_ns, least_ns; /* least: of the newest samples */
    _Atomic uint64_t blocks;
    atomic_int until_sample; /* launches up to the one that is measured, with it */
    atomic_uint weight, sampled; /* weight: one launch in so many is measured */
    _Atomic enum cp_knowledge knowledge;
};
extern struct cp_kernel cp_kernels[CP_KERNELS];
extern _Atomic int64_t cp_purse;
extern _Atomic(CUstream) cp_only_stream;
extern atomic_bool cp_has_streams;
static inline bool cp_take_from_purse(int64_t cost) {
    return atomic_fetch_sub(&cp_purse, cost) >= cost || (atomic_fetch_add(&cp_purse, cost), false);
}
static inline size_t cp_home_of(uint64_t key) { return (size_t)(key * 0x9E3779B97F4A7C15ull >> 52); }

#pragma GCC visibility pop
#endif
