/* The job's compute limit, in device nanoseconds paid before each launch from one bucket in the shared page.
 *
 * H_PRICE is the wall time that device time costs (the daemon sets it; 0: no limit). H_PAID_UNTIL is the time up to
 * which the job has paid: while that lies in the future nobody of it launches, and whoever then takes a slice moves it on
 * by slice x price. A launch takes its cost from this process's purse, which holds the rest of its last slice.
 *
 * C1  The bucket is one word, changed by compare-and-exchange: whoever is killed leaves it right, and loses his slice.
 * C2  No more than BURST_NS of unused time is kept, none of it in the device's queue beyond BACKLOG_NS; what was launched beyond the limit is repaid before anything else.
 * C3  Costs are learnt, by kernel and grid or by graph: the first launch, and then one in 64 or in a millisecond of device
 *     time, is put between two events, read later. If the job has one process with one stream, a fading mean counts; else
 *     the least, for then the others' work lies between the events too.
 * C4  The second launch of what was never measured waits for the first's end, so that nobody gets far on a guess.
 * C5  While its stream is being captured a launch is neither paid nor measured: the graph is, when it runs. Captures of
 *     other streams stay whole: the driver breaks them when any thread asks for an event, unless that is relaxed.
 *
 * Threads: any. Lock: `sample_lock` guards the samples, and is never held while somebody waits for the device; costs are
 * words that threads may overwrite for each other. */
#define _GNU_SOURCE
#include "guest.h"

#include "page.h"

#define BURST_NS 100000000u
#define BACKLOG_NS 20000000u /* a process has no more than this in the device's queue: its turn can be taken back soon */
#define SLICE_NS 500000u
#define GUESS_NS 100000u
#define COST_NS_MIN 500u
#define RESUME_NS 10000000u /* who gave his turn back asks for it when there is this much to spend: no turn for one kernel */
#define REST_NS_MAX 5000000u
#define EVERY 64
#define EVERY_NS 1000000
#define RISE_AFTER 32
#define PROBES 4 /* what does not fit pushes out what is there */
#define SAMPLES 16

struct cp_sample {
    CUcontext context; /* of the events; NULL: never used */
    CUevent from, to;
    struct cp_kernel *kernel;
    uint64_t key, begun;
    _Atomic enum { FREE, BEGUN, RECORDED } state; /* who began it has it to himself until it is recorded */
};

struct cp_kernel cp_kernels[CP_KERNELS];
static struct cp_sample samples[SAMPLES];
static cp_lock sample_lock;
_Atomic int64_t cp_purse;
static _Atomic uint64_t not_before, queued_until;
_Atomic(CUstream) cp_only_stream;
atomic_bool cp_has_streams;

static struct cp_kernel *find(uint64_t key) {
    size_t home = cp_home_of(key);
    for (size_t at = home; at < home + PROBES; at++) {
        struct cp_kernel *kernel = &cp_kernels[at & (CP_KERNELS - 1)];
        if (GET(kernel->key) == key)
            return kernel;
    }
    struct cp_kernel *kernel = &cp_kernels[home];
    for (size_t at = home; at < home + PROBES && GET(kernel->key); at++)
        kernel = &cp_kernels[at & (CP_KERNELS - 1)];
    kernel = GET(kernel->key) ? &cp_kernels[home] : kernel;
    PUT(kernel->is_known, false);
    PUT(kernel->is_begun, false);
    PUT(kernel->until_sample_ns, 0);
    PUT(kernel->cost_ns, GUESS_NS);
    PUT(kernel->least_ns, UINT64_MAX);
    PUT(kernel->sampled, 0);
    PUT(kernel->key, key);
    return kernel;
}

/* What is not known yet is not launched quickly either. */
static void set_next_sample(struct cp_kernel *kernel) {
    int64_t every = GET(kernel->is_known) ? (int64_t)GET(kernel->cost_ns) * EVERY : 0;
    PUT(kernel->until_sample_ns, every < EVERY_NS ? every : EVERY_NS);
}

/* If others of the job were busy too, some of a sample is theirs: what lies after the last end that they know of is not,
 * and neither is our equal part. */
static uint64_t own_part(uint64_t begun, uint64_t ns, cp_word *header) {
    unsigned busy = cp_launching();
    uint64_t ended = GET(header[CP_H_ENDED_NS]), end = begun + ns, equal = busy ? ns / busy : ns;
    if (ended >= end) /* theirs is later than ours: nothing is known */
        return ns;
    atomic_compare_exchange_strong(&header[CP_H_ENDED_NS], &ended, end);
    return ended <= begun ? ns : end - ended > equal ? end - ended : equal;
}

/* Falls at once. Rises when none of many samples was as short, by an eighth; at first, when little is known, sooner and
 * more: what is too much leaves the device idle, and the next sample is short. */
static uint64_t least_of(struct cp_kernel *kernel, uint64_t cost, uint64_t ns) {
    unsigned count = atomic_fetch_add(&kernel->sampled, 1) + 1;
    uint64_t before = GET(kernel->least_ns), least = ns < before ? ns : before, most = cost;
    bool is_enough = count < RISE_AFTER ? (count & (count - 1)) == 0 : count % RISE_AFTER == 0;
    if (is_enough)
        most += count < RISE_AFTER ? cost : cost / 8;
    PUT(kernel->least_ns, is_enough ? UINT64_MAX : least);
    return least < most ? least : most;
}

static void learn(struct cp_kernel *kernel, uint64_t begun, uint64_t ns) {
    cp_word *header = cp_header();
    uint64_t cost = GET(kernel->cost_ns), own = header ? own_part(begun, ns, header) : ns;
    ns = ns < COST_NS_MIN ? COST_NS_MIN : ns;
    if (!GET(kernel->is_known)) { /* later ones go by the least, which cannot be too little */
        ns = own < COST_NS_MIN ? COST_NS_MIN : own;
        atomic_fetch_sub(&cp_purse, (int64_t)ns - (int64_t)cost); /* it was paid by guess */
    } else if (!GET(cp_has_streams) && cp_launching() < 2)
        ns = (7 * cost + ns) / 8;
    else
        ns = least_of(kernel, cost, ns);
    PUT(kernel->cost_ns, ns);
    if (!atomic_exchange(&kernel->is_known, true))
        set_next_sample(kernel);
}

/* Take in what has ended; true: what would make `kernel` known has not (C4). */
static bool read_samples(struct cp_kernel *kernel) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool is_awaited = false;
    if (!cp_try_lock(&sample_lock))
        return !GET(kernel->is_known) && GET(kernel->is_begun);
    real_cuThreadExchangeStreamCaptureMode(&mode);
    for (struct cp_sample *s = samples; s < samples + SAMPLES; s++) {
        float ms;
        if (atomic_load(&s->state) != RECORDED)
            continue;
        CUresult result = real_cuEventQuery(s->to);
        is_awaited |= result == CUDA_ERROR_NOT_READY && s->kernel == kernel;
        if (result == CUDA_SUCCESS && GET(s->kernel->key) == s->key &&
            real_cuEventElapsedTime(&ms, s->from, s->to) == CUDA_SUCCESS)
            learn(s->kernel, s->begun, (uint64_t)((double)ms * 1e6));
        if (result != CUDA_ERROR_NOT_READY)
            atomic_store(&s->state, FREE);
    }
    real_cuThreadExchangeStreamCaptureMode(&mode);
    cp_drop_lock(&sample_lock);
    return is_awaited && !GET(kernel->is_known);
}

__attribute__((noinline)) static struct cp_sample *begin_sample(struct cp_kernel *kernel, CUstream stream) {
    CUcontext context = NULL;
    struct cp_sample *found = NULL;
    set_next_sample(kernel);
    if (cp_is_capturing(stream) || real_cuCtxGetCurrent(&context) != CUDA_SUCCESS || !cp_try_lock(&sample_lock))
        return NULL;
    for (struct cp_sample *s = samples; s < samples + SAMPLES && !found; s++)
        if (atomic_load(&s->state) == FREE && (!s->context || s->context == context))
            found = s;
    /* where an event cannot be made, the other may be lost; so is the context, then */
    bool is_made = found && (found->context || !(real_cuEventCreate(&found->from, 0) || real_cuEventCreate(&found->to, 0)));
    if (is_made)
        found->context = context;
    if (!is_made || real_cuEventRecord(found->from, stream) != CUDA_SUCCESS)
        found = NULL;
    else {
        found->kernel = kernel;
        found->key = GET(kernel->key);
        found->begun = cp_now();
        atomic_store(&found->state, BEGUN);
        PUT(kernel->is_begun, true);
    }
    cp_drop_lock(&sample_lock);
    return found;
}

void cp_end_sample(struct cp_sample *sample, CUstream stream) {
    bool is_recorded = !cp_is_capturing(stream) && real_cuEventRecord(sample->to, stream) == CUDA_SUCCESS;
    atomic_store(&sample->state, is_recorded ? RECORDED : FREE);
}

void cp_forget_samples(uint64_t context) {
    if (!context) { /* a forked child: nothing of the parent's is ours */
        atomic_store(&sample_lock, 0);
        atomic_store(&cp_purse, 0);
    }
    cp_take_lock(&sample_lock);
    for (struct cp_sample *s = samples; s < samples + SAMPLES; s++)
        if (!context || (uint64_t)(uintptr_t)s->context == context)
            *s = (struct cp_sample){0};
    cp_drop_lock(&sample_lock);
}

/* The purse is empty: take a slice that covers what is owed. */
__attribute__((noinline)) static void earn(cp_word *header) {
    cp_word *slot = cp_my_slot();
    for (int64_t owed; slot && (owed = -GET(cp_purse)) > 0;) {
        uint64_t price = GET(header[CP_H_PRICE]), now = cp_now(), until = GET(header[CP_H_PAID_UNTIL]);
        if (!price) {
            cp_set_gates();
            return;
        }
        uint64_t queued = GET(queued_until);
        if (queued > now + BACKLOG_NS) {
            queued -= now + BACKLOG_NS;
            cp_sleep(queued < REST_NS_MAX ? queued : REST_NS_MAX);
            continue;
        }
        uint64_t ready = until > GET(not_before) ? until : GET(not_before);
        if (ready > now) {
            if (cp_rest(ready - now < REST_NS_MAX ? ready - now : REST_NS_MAX))
                PUT(not_before, until + RESUME_NS);
            continue;
        }
        uint64_t slice = (uint64_t)owed < SLICE_NS ? SLICE_NS : (uint64_t)owed;
        uint64_t from = until < now - BURST_NS ? now - BURST_NS : until;
        if (atomic_compare_exchange_strong(&header[CP_H_PAID_UNTIL], &until, from + slice * price / CP_PRICE_ONE)) {
            PUT(queued_until, (queued > now ? queued : now) + slice);
            atomic_fetch_add(&cp_purse, (int64_t)slice);
            atomic_fetch_add(&slot[CP_S_DEVICE_NS], slice);
            atomic_fetch_add(&header[CP_H_DEVICE_NS], slice);
        }
    }
}

struct cp_sample *cp_pay(uint64_t key, CUstream stream) {
    cp_word *header = cp_header();
    struct cp_sample *sample = NULL;
    if (header && GET(header[CP_H_PRICE]) && !cp_is_capturing(stream)) {
        struct cp_kernel *kernel = find(key);
        if (stream != GET(cp_only_stream)) { /* the first one is written down, the second noted */
            CUstream none = NULL;
            PUT(cp_has_streams, GET(cp_has_streams) || !atomic_compare_exchange_strong(&cp_only_stream, &none, stream));
        }
        while (read_samples(kernel))
            cp_sleep(20000);
        int64_t cost = (int64_t)GET(kernel->cost_ns);
        if (atomic_fetch_sub(&cp_purse, cost) < cost)
            earn(header);
        cp_pass_turn();
        if (atomic_fetch_sub_explicit(&kernel->until_sample_ns, cost, memory_order_relaxed) <= cost)
            sample = begin_sample(kernel, stream);
    } else
        cp_pass_turn();
    return sample;
}
