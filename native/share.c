/* The job's compute limit. Each launch is paid for beforehand, in device nanoseconds, from one bucket in the shared page.
 *
 * H_PRICE is the wall time that device time costs; the daemon sets it, and 0 is no limit. H_PAID_UNTIL is the time up to
 * which the job has paid. While that lies in the future, no process of the job launches. A process that then takes a
 * slice moves it on by slice x price. A launch takes its cost from this process's purse, which holds the rest of its last
 * slice.
 *
 * C1  The bucket is one word, changed by compare-and-exchange. A killed process leaves it right, and loses its slice.
 * C2  No more than BURST_NS of unused time is kept, none of it in the device's queue beyond BACKLOG_NS. What was launched
 *     beyond the limit is repaid before anything else.
 * C3  Costs are learnt, by kernel and grid or by graph. The first launch, and then one in 96 or in a millisecond of device
 *     time, is put between two events, which are read later. If the job has one process with one stream, a fading mean
 *     counts. Else the least counts, because the others' work lies between the events too. While this thread asked for
 *     the launch and the second event, the device may have been idle: the host kept the thread from its processor, or
 *     the driver loaded the kernel. That time is in doubt: it counts little, and of a first launch REST_NS_MAX at most;
 *     otherwise the job would pay long for nothing.
 * C4  A kernel that was never measured is launched by one process at a time (H_TRIAL), and no process of the job pays for
 *     another launch meanwhile. It is paid by guess, and the rest when its end was seen, as of its begin, so that nobody
 *     gets far on a guess. A process that is gone, or has not come back after PATIENCE_NS, is not waited for: its kernel
 *     may be waiting for ours. A process that neither waits for the device nor launches is waited for AWAY_NS less,
 *     because nobody sees the end then. Only the next launch of the same kernel by the same process waits as long as it
 *     takes.
 * C5  While its stream is being captured, a launch is neither paid nor measured: the graph is, when it runs. Captures of
 *     other streams stay whole: the driver breaks them when any thread asks for an event, unless that is relaxed.
 *
 * Threads: any. Lock: `sample_lock` guards the samples, and is never held while somebody waits for the device; costs are
 * words that threads may overwrite for each other. */
#define _GNU_SOURCE
#include "guest.h"

#define BURST_NS 100000000u
#define BACKLOG_NS 20000000u /* no more of a process is in the device's queue, so its turn can be taken back soon */
#define SLICE_NS 500000u
#define GUESS_NS 100000u
#define COST_NS_MIN 500u
#define RESUME_NS 10000000u /* a process that gave its turn back asks again when it has this much to spend: no turn for one kernel */
#define PAUSE_NS 200000u /* how often the end of a trial is looked for */
#define REST_NS_MAX 5000000u /* nothing shorter is worth hurrying for */
#define PATIENCE_NS 2000000000
#define AWAY_NS (450ull << 22) /* 1.9 s: so much less for a process that does something else meanwhile; leaves the pid as it is */
#define EVERY 96
#define EVERY_NS 1000000
#define RISE_AFTER 32
#define PROBES 4 /* what does not fit pushes out what is there */
#define SAMPLES 16

struct cp_sample {
    CUcontext context; /* of the events; NULL: never used */
    CUevent from, to;
    struct cp_kernel *kernel;
    uint64_t key, begun, asked_ns; /* how long the driver was asked for the launch and the second event */
    bool is_trial;
    _Atomic enum { FREE, BEGUN, RECORDED } state; /* the thread that began it has it to itself until it is recorded */
};

struct cp_kernel cp_kernels[CP_KERNELS];
static struct cp_sample samples[SAMPLES];
static cp_lock sample_lock;
_Atomic int64_t cp_purse;
static _Atomic uint64_t not_before, queued_until, own_trial; /* trial: begin and pid of ours, as in H_TRIAL */
static struct cp_kernel *_Atomic tried; /* by us, while that is not 0 */
_Atomic(CUstream) cp_only_stream;
atomic_bool cp_has_streams;

static struct cp_kernel *find(uint64_t key) {
    size_t home = cp_home_of(key);
    struct cp_kernel *kernel = &cp_kernels[home];
    for (size_t at = home + PROBES; at-- > home;) {
        struct cp_kernel *here = &cp_kernels[at & (CP_KERNELS - 1)];
        if (GET(here->key) == key)
            return here;
        kernel = GET(here->key) ? kernel : here;
    }
    PUT(kernel->is_known, false);
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

/* Pay for device time that began at `begun`, if the bucket is still as it was seen. A job that begins has saved nothing. */
static bool charge(cp_word *header, uint64_t until, uint64_t begun, uint64_t ns) {
    uint64_t least = until ? begun - BURST_NS : begun, from = until < least ? least : until;
    uint64_t to = from + ns * GET(header[CP_H_PRICE]) / CP_PRICE_ONE;
    if (!atomic_compare_exchange_strong(&header[CP_H_PAID_UNTIL], &until, to))
        return false;
    cp_count(ns);
    return true;
}

static void learn(cp_word *header, struct cp_sample *sample, uint64_t ns) {
    struct cp_kernel *kernel = sample->kernel;
    uint64_t cost = GET(kernel->cost_ns), doubt = sample->asked_ns < ns ? sample->asked_ns : ns;
    uint64_t own = own_part(sample->begun, ns - doubt + (doubt < REST_NS_MAX ? doubt : REST_NS_MAX), header);
    uint64_t near = cost < ns - doubt ? ns - doubt : cost < ns ? cost : ns;
    if (sample->is_trial && own < GUESS_NS)
        atomic_fetch_add(&cp_purse, (int64_t)(GUESS_NS - own));
    while (sample->is_trial && own > GUESS_NS && !charge(header, GET(header[CP_H_PAID_UNTIL]), sample->begun, own - GUESS_NS))
        ;
    if (!GET(kernel->is_known)) /* later ones go by the least, which cannot be too little */
        ns = own;
    else if (!GET(cp_has_streams) && cp_launching() < 2)
        ns = (7 * cost + near) / 8 + (ns - near) / EVERY;
    else
        ns = least_of(kernel, cost, ns);
    PUT(kernel->cost_ns, ns < COST_NS_MIN ? COST_NS_MIN : ns);
    if (!atomic_exchange(&kernel->is_known, true))
        set_next_sample(kernel);
}

static void end_trial(void) {
    uint64_t trial = atomic_exchange(&own_trial, 0);
    cp_word *header = trial ? cp_header() : NULL;
    uint64_t seen = header ? GET(header[CP_H_TRIAL]) : 0;
    if (seen && (seen & CP_TRIAL_PID) == (trial & CP_TRIAL_PID)) /* else another process lost its patience, and the trial is its own */
        atomic_compare_exchange_strong(&header[CP_H_TRIAL], &seen, 0);
}

static void drop_sample(struct cp_sample *sample) {
    if (sample->is_trial)
        end_trial();
    atomic_store(&sample->state, FREE);
}

void cp_read_samples(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cp_word *header = cp_header();
    if (!header || !GET(header[CP_H_PRICE]) || !cp_try_lock(&sample_lock))
        return;
    uint64_t away = GET(own_trial) - AWAY_NS; /* we are back */
    atomic_compare_exchange_strong(&header[CP_H_TRIAL], &away, away + AWAY_NS);
    real_cuThreadExchangeStreamCaptureMode(&mode);
    for (struct cp_sample *s = samples; s < samples + SAMPLES; s++) {
        float ms;
        CUresult result = atomic_load(&s->state) == RECORDED ? real_cuEventQuery(s->to) : CUDA_ERROR_NOT_READY;
        if (result == CUDA_SUCCESS && GET(s->kernel->key) == s->key &&
            real_cuEventElapsedTime(&ms, s->from, s->to) == CUDA_SUCCESS)
            learn(header, s, (uint64_t)((double)ms * 1e6));
        if (result != CUDA_ERROR_NOT_READY)
            drop_sample(s);
    }
    real_cuThreadExchangeStreamCaptureMode(&mode);
    cp_drop_lock(&sample_lock);
}

__attribute__((noinline)) static struct cp_sample *begin_sample(struct cp_kernel *kernel, CUstream stream) {
    CUcontext context = NULL;
    struct cp_sample *found = NULL;
    set_next_sample(kernel);
    if (cp_is_capturing(stream) || real_cuCtxGetCurrent(&context) != CUDA_SUCCESS || !cp_try_lock(&sample_lock))
        return NULL;
    for (struct cp_sample *s = samples; s < samples + SAMPLES && !(found && found->context == context); s++)
        if (atomic_load(&s->state) == FREE && (!found || !s->context || s->context == context))
            found = s;
    if (found && found->context && found->context != context) { /* its events are of no use here */
        real_cuEventDestroy_v2(found->from), real_cuEventDestroy_v2(found->to);
        found->context = NULL;
    }
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
        found->is_trial = !GET(kernel->is_known);
        atomic_store(&found->state, BEGUN);
    }
    cp_drop_lock(&sample_lock);
    return found;
}

void cp_end_sample(struct cp_sample *sample, CUstream stream) {
    if (!cp_is_capturing(stream) && !real_cuEventRecord(sample->to, stream) && (sample->asked_ns = cp_now() - sample->begun))
        atomic_store(&sample->state, RECORDED);
    else
        drop_sample(sample);
}

void cp_forget_context(uint64_t context) {
    if (!context) { /* a forked child: nothing of the parent's is ours */
        atomic_store(&sample_lock, 0);
        atomic_store(&cp_purse, 0);
        atomic_store(&own_trial, 0);
    } else
        cp_forget_line(context, NULL);
    cp_take_lock(&sample_lock);
    for (struct cp_sample *s = samples; s < samples + SAMPLES; s++)
        if (!context || (uint64_t)(uintptr_t)s->context == context) {
            drop_sample(s);
            s->context = NULL;
        }
    cp_drop_lock(&sample_lock);
}

/* Alone in the job, and paid by guess (C4). */
static bool begin_trial(cp_word *header, struct cp_kernel *kernel, uint64_t until, uint64_t other, CUstream stream) {
    cp_pass_turn(stream);
    uint64_t now = cp_now(), trial = (now & ~(uint64_t)CP_TRIAL_PID) | (uint64_t)getpid();
    if (!atomic_compare_exchange_strong(&header[CP_H_TRIAL], &other, trial - AWAY_NS))
        return false;
    PUT(tried, kernel);
    PUT(own_trial, trial);
    return charge(header, until, now, GUESS_NS) || (end_trial(), false);
}

/* Wait until the job may launch this kernel, and pay for it from the purse; where that does not hold enough, a slice that
 * does is taken first. True: it is a trial. */
__attribute__((noinline)) static bool pay_slowly(cp_word *header, struct cp_kernel *kernel, CUstream stream) {
    while (GET(header[CP_H_PRICE])) {
        bool is_known = GET(kernel->is_known), is_waited_for = GET(own_trial) && GET(tried) == kernel && !is_known;
        int64_t cost = (int64_t)GET(kernel->cost_ns), owed = cost - GET(cp_purse);
        if (is_known && cp_take_from_purse(cost))
            return false;
        uint64_t now = cp_now(), until = atomic_load(&header[CP_H_PAID_UNTIL]), queued = GET(queued_until);
        uint64_t ready = until > GET(not_before) ? until : GET(not_before), other = GET(header[CP_H_TRIAL]);
        uint64_t slice = owed < SLICE_NS ? SLICE_NS : (uint64_t)owed;
        if (queued > now + BACKLOG_NS)
            cp_sleep(REST_NS_MAX);
        else if (ready > now || is_waited_for ||
                 (other && (int64_t)(now - other) < PATIENCE_NS && cp_is_alive(other & CP_TRIAL_PID))) {
            uint64_t ns = ready > now ? ready - now : PAUSE_NS;
            if (cp_rest(ns < REST_NS_MAX ? ns : REST_NS_MAX))
                PUT(not_before, ready + RESUME_NS);
            cp_read_samples();
        } else if (!is_known && begin_trial(header, kernel, until, other, stream))
            return true;
        else if (is_known && charge(header, until, now, slice)) {
            PUT(queued_until, (queued > now ? queued : now) + slice);
            atomic_fetch_add(&cp_purse, (int64_t)slice);
        }
    }
    return false;
}

struct cp_sample *cp_pay(uint64_t key, CUstream stream) {
    cp_word *header = cp_header();
    if (!header || !GET(header[CP_H_PRICE]) || cp_is_capturing(stream)) {
        cp_pass_turn(stream);
        if (header && !GET(header[CP_H_PRICE]))
            cp_set_gates();
        return NULL;
    }
    struct cp_kernel *kernel = find(key);
    if (stream != GET(cp_only_stream)) { /* the first one is written down, the second noted */
        CUstream none = NULL;
        PUT(cp_has_streams, GET(cp_has_streams) || !atomic_compare_exchange_strong(&cp_only_stream, &none, stream));
    }
    cp_read_samples();
    bool is_trial = pay_slowly(header, kernel, stream);
    cp_pass_turn(stream);
    int64_t cost = (int64_t)GET(kernel->cost_ns);
    bool is_due = atomic_fetch_sub_explicit(&kernel->until_sample_ns, cost, memory_order_relaxed) <= cost;
    struct cp_sample *sample = is_due ? begin_sample(kernel, stream) : NULL;
    if (is_trial && !(sample && sample->is_trial)) /* nobody else would end it */
        end_trial();
    return sample;
}
