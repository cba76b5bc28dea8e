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
 *     time, is put between two events, which are read later. Which one is drawn by lot, each with the same chance: nobody
 *     can be quick just when somebody looks. What counts is the time after the end of all that the process launched before
 *     on its other streams, which a third event marks. If the job has one process, a fading mean counts. Else the least
 *     counts, because the others' work lies between the events too. While this thread asked for the launch and the
 *     second event, the device may have been idle: the host kept the thread from its processor, or the driver loaded the
 *     kernel. That time is in doubt: it counts little, and of a first launch REST_NS_MAX at most; otherwise the job would
 *     pay long for nothing.
 * C4  A kernel that was never measured is launched by one process at a time (H_TRIAL), and no process of the job pays for
 *     another launch meanwhile. It is paid by guess, and the rest when its end was seen, as of its begin, so that nobody
 *     gets far on a guess. A process that is gone, or has not come back after PATIENCE_NS, is not waited for: its kernel
 *     may be waiting for ours. A process that neither waits for the device nor launches is waited for AWAY_NS less,
 *     because nobody sees the end then. Only the next launch of the same kernel by the same process waits as long as it
 *     takes.
 * C5  While its stream is being captured, a launch is neither paid nor measured: the graph is, when it runs. Captures of
 *     other streams stay whole: the driver breaks them when any thread asks for an event, unless that is relaxed.
 * C6  A new grid of a function that was measured pays what that function costs, by its blocks, and is measured itself: it
 *     is foreseen. So many are on their way at once as foresight was right before, and one after it was wrong.
 * C7  What a measured launch paid too little or too much is settled when its end is seen, whatever the table has forgotten
 *     by then. A launch that was drawn by lot stands for the others of its kind, and settles for all of them if it was
 *     more than twice off; but for no more time than has passed since the last settlement, and LOOK_NS at most.
 * C8  A launch whose end nobody will see (its context or its process ends, the driver does not say) is paid by the time
 *     since its begin. Of a process that died in a trial, whoever comes next pays PATIENCE_NS at most.
 * C9  A wait that is longer than all that was paid for, by REST_NS_MAX or more, means that some launch was longer than
 *     thought. Then every launch is measured, for WATCH times as long as that wait was.
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
#define SAMPLES 64
#define UNREADY_MAX 4 /* of the oldest samples, before the newer ones are left for later */
#define LOOK_NS 10000000000u
#define WATCH 16
#define FAR 8 /* times a function's cost: no grid is foreseen to be further off */

struct cp_sample {
    CUcontext context; /* of the events; NULL: never used */
    CUevent from, to, others; /* others: all that was launched before on other streams is done */
    struct cp_kernel *kernel;
    struct cp_work work;
    uint64_t begun, asked_ns; /* asked: how long the driver was, for the launch and the second event */
    uint64_t paid_ns;
    unsigned weight; /* how many launches it stands for */
    bool has_others;
    enum cp_knowledge knowledge;
    _Atomic enum { FREE, BEGUN, RECORDED } state; /* the thread that began it has it to itself until it is recorded */
};

struct cp_kernel cp_kernels[CP_KERNELS];
static struct cp_sample samples[SAMPLES]; /* used in turn */
static struct { CUcontext context; CUstream stream; CUevent mark; } aside; /* ours: it only waits for the program's streams */
static unsigned next_sample;
static atomic_uint recorded; /* samples whose end is not seen yet */
static uint64_t settled_until; /* until then all the time that passed is paid for; 0: nothing was launched */
static _Atomic uint64_t watched_until; /* until then every launch is measured (C9) */
static cp_lock sample_lock;
_Atomic int64_t cp_purse;
_Atomic uint64_t cp_queued_until;
static _Atomic uint64_t not_before, own_trial; /* trial: begin and pid of ours, as in H_TRIAL */
static struct cp_kernel *_Atomic tried; /* by us, while that is not 0 */
static atomic_uint foresight = 1; /* so many samples may be on their way when a foreseen kernel is launched (C6) */
_Atomic(CUstream) cp_only_stream;
atomic_bool cp_has_streams;

static struct cp_kernel *place_of(uint64_t key) {
    size_t home = cp_home_of(key);
    struct cp_kernel *kernel = &cp_kernels[home];
    for (size_t at = home + PROBES; at-- > home;) {
        struct cp_kernel *here = &cp_kernels[at & (CP_KERNELS - 1)];
        if (GET(here->key) == key)
            return here;
        kernel = GET(here->key) ? kernel : here;
    }
    return kernel;
}

static void renew(struct cp_kernel *kernel, uint64_t key, uint64_t cost, uint64_t blocks, enum cp_knowledge knowledge) {
    PUT(kernel->knowledge, knowledge);
    PUT(kernel->until_sample, 0);
    PUT(kernel->weight, 1);
    PUT(kernel->cost_ns, cost);
    PUT(kernel->blocks, blocks);
    PUT(kernel->least_ns, UINT64_MAX);
    PUT(kernel->sampled, 0);
    PUT(kernel->key, key);
}

/* A function has a row of its own, of all its grids. */
static uint64_t key_of_function(struct cp_work work) { return ~work.function; }

static struct cp_kernel *find(struct cp_work work) {
    struct cp_kernel *kernel = place_of(work.key), *function = place_of(key_of_function(work));
    if (GET(kernel->key) == work.key)
        return kernel;
    uint64_t cost = GET(function->cost_ns), blocks = GET(function->blocks) | 1;
    bool is_foreseen = GET(function->key) == key_of_function(work);
    uint64_t foreseen = (uint64_t)((double)cost * (double)(work.blocks | 1) / (double)blocks);
    foreseen = foreseen > cost * FAR ? cost * FAR : foreseen < cost / FAR ? cost / FAR : foreseen;
    renew(kernel, work.key, is_foreseen ? foreseen + COST_NS_MIN : GUESS_NS, work.blocks, is_foreseen ? CP_FORESEEN : CP_UNKNOWN);
    return kernel;
}

static uint64_t draw(void) {
    static _Atomic uint64_t state;
    uint64_t x = GET(state) ^ (GET(state) ? 0 : cp_now() * 0x9E3779B97F4A7C15ull ^ (uint64_t)getpid() << 32 ^ (uintptr_t)&x);
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    PUT(state, x);
    return x | 1;
}

/* Every launch has the same chance, one in `weight`; so the number of launches until then falls off like a power, whose
 * exponent is taken from the lot's place and its first bits. What is not known is measured. */
static void set_next_sample(struct cp_kernel *kernel) {
    uint64_t cost = GET(kernel->cost_ns), weight = cost * EVERY < EVERY_NS ? EVERY : cost < EVERY_NS ? EVERY_NS / cost : 1;
    uint64_t lot = draw();
    unsigned zeros = (unsigned)__builtin_clzll(lot), halvings = 256 * (zeros + 1) - (unsigned)(lot << zeros >> 55 & 255);
    bool is_known = GET(kernel->knowledge) == CP_KNOWN && GET(watched_until) < cp_now();
    PUT(kernel->weight, is_known ? (unsigned)weight : 1);
    PUT(kernel->until_sample, is_known && weight > 1 ? 1 + (int)(weight * halvings * 177 >> 16) : 0); /* 177 / 65536: ln 2 / 256 */
}

static bool is_alone(void) { return cp_launching() < 2; }

/* If others of the job were busy too, some of a sample is theirs: what lies after the last end that is
 * known is not, and neither is our equal part. */
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

static void owe(cp_word *header, uint64_t begun, uint64_t ns) {
    while (ns && !charge(header, GET(header[CP_H_PAID_UNTIL]), begun, ns))
        ;
}

/* So much of the time that passed since then is not paid for yet, and now is; device time as of its begin. */
static uint64_t take_passed(uint64_t since, uint64_t most) {
    uint64_t now = cp_now(), from = settled_until > since ? settled_until : since;
    from = from + LOOK_NS < now ? now - LOOK_NS : from;
    uint64_t taken = from > now ? 0 : now - from < most ? now - from : most;
    settled_until = taken ? from + taken : settled_until;
    return taken;
}

/* Nobody will see the end of what was begun then (C8). */
static void lose(uint64_t begun) {
    cp_word *header = begun ? cp_header() : NULL;
    uint64_t ns = header && GET(header[CP_H_PRICE]) ? take_passed(begun, LOOK_NS) : 0;
    owe(header, begun, ns);
}

/* What was paid too little is paid as of its begin, what was too much goes back to the purse (C7). */
static void settle(cp_word *header, struct cp_sample *sample, uint64_t used) {
    int64_t owed = (int64_t)(used - sample->paid_ns) * (int64_t)sample->weight;
    if (sample->weight > 1 && owed > 0)
        owed = (int64_t)take_passed(0, (uint64_t)owed);
    int64_t has = GET(cp_purse), part = has < owed ? has : owed; /* what the purse has is paid for: it must not be spent on others first */
    if (part > 0 && cp_take_from_purse(part))
        owed -= part;
    if (owed < 0)
        atomic_fetch_sub(&cp_purse, owed);
    owe(header, sample->begun, owed > 0 ? (uint64_t)owed : 0);
}

/* A fading mean, in which time in doubt counts little. */
static uint64_t faded(uint64_t cost, uint64_t ns, uint64_t doubt) {
    uint64_t near = cost < ns - doubt ? ns - doubt : cost < ns ? cost : ns;
    return (7 * cost + near) / 8 + (ns - near) / EVERY;
}

static void learn_function(struct cp_work work, uint64_t ns, uint64_t doubt) {
    struct cp_kernel *function = place_of(key_of_function(work));
    if (GET(function->key) != key_of_function(work))
        return renew(function, key_of_function(work), ns, work.blocks, CP_KNOWN);
    PUT(function->cost_ns, faded(GET(function->cost_ns), ns, doubt));
    PUT(function->blocks, (7 * GET(function->blocks) + work.blocks) / 8);
}

static void learn(cp_word *header, struct cp_sample *sample, uint64_t ns) {
    uint64_t paid = sample->paid_ns, doubt = sample->asked_ns < ns ? sample->asked_ns : ns;
    uint64_t own = own_part(sample->begun, ns - doubt + (doubt < REST_NS_MAX ? doubt : REST_NS_MAX), header);
    uint64_t near = paid < ns - doubt ? ns - doubt : paid < ns ? paid : ns;
    bool is_first = sample->knowledge != CP_KNOWN, is_mean = is_alone(), is_right = near < 4 * paid + EVERY_NS;
    uint64_t used = sample->knowledge == CP_UNKNOWN || (is_first && !is_mean) ? own : near;
    if (is_first || (is_mean && (near / 2 > paid || near < paid / 2)))
        settle(header, sample, used);
    if (used > paid)
        PUT(cp_queued_until, (sample->begun > GET(cp_queued_until) ? sample->begun : GET(cp_queued_until)) + used - paid);
    if (sample->knowledge == CP_FORESEEN)
        PUT(foresight, !is_right ? 1 : GET(foresight) < SAMPLES ? 2 * GET(foresight) : SAMPLES);
    if (is_first || is_mean)
        learn_function(sample->work, is_first ? used : ns, is_first ? 0 : doubt);
    struct cp_kernel *kernel = sample->kernel;
    if (GET(kernel->key) != sample->work.key) /* it made room for others */
        return;
    uint64_t cost = GET(kernel->cost_ns); /* of those that are not alone the least, which cannot be too little */
    ns = is_first ? used : is_mean ? faded(cost, ns, doubt) : least_of(kernel, cost, ns);
    PUT(kernel->cost_ns, ns < COST_NS_MIN ? COST_NS_MIN : ns);
    PUT(kernel->knowledge, CP_KNOWN);
    set_next_sample(kernel); /* with the chance that is right now; the lot has no memory */
}

static void end_trial(void) {
    uint64_t trial = atomic_exchange(&own_trial, 0);
    cp_word *header = trial ? cp_header() : NULL;
    uint64_t seen = header ? GET(header[CP_H_TRIAL]) : 0;
    if (seen && (seen & CP_TRIAL_PID) == (trial & CP_TRIAL_PID)) /* else another process lost its patience, and the trial is its own */
        atomic_compare_exchange_strong(&header[CP_H_TRIAL], &seen, 0);
}

static void drop_sample(struct cp_sample *sample) {
    if (sample->knowledge == CP_UNKNOWN)
        end_trial();
    if (atomic_exchange(&sample->state, FREE) == RECORDED)
        atomic_fetch_sub(&recorded, 1);
}

/* By how much a launch made the device's time for this process longer. Work on other streams that is not done yet may be
 * held up by the program itself, and is no excuse. */
static uint64_t added_ns(const struct cp_sample *sample, float ms) {
    float before = 0;
    if (sample->has_others && (real_cuEventQuery(sample->others) || real_cuEventElapsedTime(&before, sample->from, sample->others)))
        before = 0;
    return (uint64_t)((double)(before < 0 ? ms : before < ms ? ms - before : 0) * 1e6);
}

void cp_read_samples(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cp_word *header = cp_header();
    if (!header || !GET(header[CP_H_PRICE]) || !GET(recorded) || !cp_try_lock(&sample_lock))
        return;
    uint64_t away = GET(own_trial) - AWAY_NS; /* we are back */
    atomic_compare_exchange_strong(&header[CP_H_TRIAL], &away, away + AWAY_NS);
    real_cuThreadExchangeStreamCaptureMode(&mode);
    for (unsigned i = 0, unready = 0; i < SAMPLES && GET(recorded) > unready && unready < UNREADY_MAX; i++) { /* the oldest first */
        struct cp_sample *s = &samples[(next_sample + i) % SAMPLES];
        float ms;
        if (atomic_load(&s->state) != RECORDED)
            continue;
        CUresult result = real_cuEventQuery(s->to);
        if (result == CUDA_SUCCESS && real_cuEventElapsedTime(&ms, s->from, s->to) == CUDA_SUCCESS)
            learn(header, s, added_ns(s, ms));
        else if (result != CUDA_ERROR_NOT_READY)
            lose(s->begun);
        if (result != CUDA_ERROR_NOT_READY)
            drop_sample(s);
        unready += result == CUDA_ERROR_NOT_READY;
    }
    real_cuThreadExchangeStreamCaptureMode(&mode);
    cp_drop_lock(&sample_lock);
}

/* The end of what was launched before, on other streams of this context. The program's streams wait for nothing. */
static bool mark_others(CUcontext context, CUevent others, CUstream stream) {
    if (!GET(cp_has_streams) || GET(cp_captures))
        return false;
    if (aside.context && aside.context != context)
        real_cuStreamDestroy_v2(aside.stream), real_cuEventDestroy_v2(aside.mark), aside.context = NULL;
    if (!aside.context && !(real_cuStreamCreate(&aside.stream, CU_STREAM_NON_BLOCKING) || real_cuEventCreate(&aside.mark, 0)))
        aside.context = context;
    return aside.context && cp_line_up(stream, aside.stream, aside.mark) && !real_cuEventRecord(others, aside.stream);
}

__attribute__((noinline)) static struct cp_sample *begin_sample(struct cp_kernel *kernel, struct cp_work work, uint64_t paid, CUstream stream) {
    CUcontext context = NULL;
    struct cp_sample *found = NULL;
    if (cp_is_capturing(stream) || real_cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return NULL;
    cp_take_lock(&sample_lock);
    for (unsigned i = 0; i < SAMPLES && !found; i++)
        if (atomic_load(&samples[(next_sample + i) % SAMPLES].state) == FREE) {
            found = &samples[(next_sample + i) % SAMPLES];
            next_sample += i + 1;
        }
    if (found && found->context && found->context != context) { /* its events are of no use here */
        real_cuEventDestroy_v2(found->from), real_cuEventDestroy_v2(found->to), real_cuEventDestroy_v2(found->others);
        found->context = NULL;
    }
    /* where an event cannot be made, the others may be lost; so is the context, then */
    bool is_made = found && (found->context || !(real_cuEventCreate(&found->from, 0) || real_cuEventCreate(&found->to, 0) ||
                                                 real_cuEventCreate(&found->others, 0)));
    if (is_made)
        found->context = context;
    if (!is_made || real_cuEventRecord(found->from, stream) != CUDA_SUCCESS)
        found = NULL;
    else {
        found->kernel = kernel;
        found->work = work;
        found->paid_ns = paid;
        found->has_others = mark_others(context, found->others, stream);
        found->weight = GET(kernel->weight);
        found->knowledge = GET(kernel->knowledge);
        found->begun = cp_now();
        settled_until = settled_until ? settled_until : found->begun;
        atomic_store(&found->state, BEGUN);
        set_next_sample(kernel);
    }
    cp_drop_lock(&sample_lock);
    return found;
}

/* What failed was not launched, and says nothing of what it costs. */
void cp_end_sample(struct cp_sample *sample, CUstream stream, CUresult result) {
    if (!result && !cp_is_capturing(stream) && !real_cuEventRecord(sample->to, stream) && (sample->asked_ns = cp_now() - sample->begun))
        atomic_fetch_add(&recorded, 1), atomic_store(&sample->state, RECORDED);
    else
        drop_sample(sample);
}

/* As the driver does it, the end of a context waits for what runs in it; what is not over then is lost (C8). */
void cp_end_samples(uint64_t context) {
    cp_word *header = cp_header();
    uint64_t began = cp_now(), oldest;
    do {
        cp_read_samples();
        oldest = 0;
        for (struct cp_sample *s = samples; s < samples + SAMPLES; s++)
            if (atomic_load(&s->state) == RECORDED && (!context || (uint64_t)(uintptr_t)s->context == context))
                oldest = oldest && oldest < s->begun ? oldest : s->begun;
    } while (context && oldest && header && GET(header[CP_H_PRICE]) && cp_now() - began < LOOK_NS && (cp_sleep(PAUSE_NS), true));
    cp_take_lock(&sample_lock);
    lose(oldest);
    cp_drop_lock(&sample_lock);
}

void cp_forget_context(uint64_t context) {
    if (!context) { /* a forked child: nothing of the parent's is ours */
        atomic_store(&sample_lock, 0);
        atomic_store(&cp_purse, 0);
        atomic_store(&own_trial, 0);
        settled_until = 0;
    } else
        cp_end_samples(context), cp_forget_line(context, NULL);
    cp_take_lock(&sample_lock);
    for (struct cp_sample *s = samples; s < samples + SAMPLES; s++)
        if (!context || (uint64_t)(uintptr_t)s->context == context) {
            drop_sample(s);
            s->context = NULL;
        }
    if (!context || (uint64_t)(uintptr_t)aside.context == context)
        aside.context = NULL;
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

/* Every cost may be another's now: functions went, and their addresses come back with others (C4). All are measured again. */
void cp_forget_kernels(void) {
    PUT(foresight, 1);
    for (struct cp_kernel *kernel = cp_kernels; kernel < cp_kernels + CP_KERNELS; kernel++) {
        PUT(kernel->knowledge, GET(kernel->knowledge) == CP_UNKNOWN ? CP_UNKNOWN : CP_FORESEEN);
        PUT(kernel->until_sample, 0);
        PUT(kernel->weight, 1);
    }
}

/* Whether one more that is foreseen may be launched (C6). */
static bool may_foresee(void) {
    unsigned busy = 0;
    for (struct cp_sample *s = samples; s < samples + SAMPLES; s++)
        busy += atomic_load(&s->state) != FREE;
    return busy < GET(foresight) && busy < SAMPLES;
}

/* Its kernel ended with it, or before; it was away, or somebody would have seen that. */
static void end_trial_of_dead(cp_word *header, uint64_t trial, uint64_t now) {
    uint64_t begun = (trial & ~(uint64_t)CP_TRIAL_PID) + AWAY_NS, ns = begun < now ? now - begun : 0;
    if (atomic_compare_exchange_strong(&header[CP_H_TRIAL], &trial, 0))
        owe(header, begun, ns < PATIENCE_NS ? ns : PATIENCE_NS);
}

/* Wait until the job may launch this kernel, and pay for it from the purse; where that does not hold enough, a slice that
 * does is taken first. What was paid; the guess of a trial is not from the purse. */
__attribute__((noinline)) static uint64_t pay_slowly(cp_word *header, struct cp_kernel *kernel, CUstream stream, bool *is_trial) {
    uint64_t began = cp_now();
    while (GET(header[CP_H_PRICE])) {
        enum cp_knowledge knowledge = GET(kernel->knowledge);
        bool is_known = knowledge != CP_UNKNOWN, is_waited_for = GET(own_trial) && GET(tried) == kernel && !is_known;
        int64_t cost = (int64_t)GET(kernel->cost_ns), owed = cost - GET(cp_purse);
        uint64_t now = cp_now(), until = atomic_load(&header[CP_H_PAID_UNTIL]), queued = GET(cp_queued_until);
        if (knowledge == CP_FORESEEN && !may_foresee() && now - began < PATIENCE_NS)
            is_waited_for = true;
        else if (is_known && cp_take_from_purse(cost))
            return (uint64_t)cost;
        uint64_t ready = until > GET(not_before) ? until : GET(not_before), other = GET(header[CP_H_TRIAL]);
        uint64_t slice = owed < SLICE_NS ? SLICE_NS : (uint64_t)owed;
        if (other && !cp_is_alive(other & CP_TRIAL_PID))
            end_trial_of_dead(header, other, now);
        else if (queued > now + BACKLOG_NS)
            cp_sleep(REST_NS_MAX);
        else if (ready > now || is_waited_for ||
                 (other && (int64_t)(now - other) < PATIENCE_NS)) {
            uint64_t ns = ready > now ? ready - now : PAUSE_NS;
            if (cp_rest(ns < REST_NS_MAX ? ns : REST_NS_MAX))
                PUT(not_before, ready + RESUME_NS);
            cp_read_samples();
        } else if (!is_known && begin_trial(header, kernel, until, other, stream)) {
            *is_trial = true;
            return GUESS_NS;
        } else if (is_known && charge(header, until, now, slice)) {
            PUT(cp_queued_until, (queued > now ? queued : now) + slice);
            atomic_fetch_add(&cp_purse, (int64_t)slice);
        }
    }
    return GET(kernel->cost_ns);
}

/* C9; where nobody else may have kept the device busy, or this thread from its processor, that is exact, and else costs little. */
void cp_end_wait(uint64_t began) {
    uint64_t now = cp_now(), until = now + (now - began) * WATCH;
    if (now - began < REST_NS_MAX || now - REST_NS_MAX < GET(cp_queued_until) || until < GET(watched_until) || !is_alone())
        return;
    PUT(watched_until, until);
    for (struct cp_kernel *kernel = cp_kernels; kernel < cp_kernels + CP_KERNELS; kernel++)
        PUT(kernel->until_sample, 0);
}

struct cp_sample *cp_pay(struct cp_work work, CUstream stream) {
    cp_word *header = cp_header();
    if (!header || !GET(header[CP_H_PRICE]) || cp_is_capturing(stream) || cp_is_agents_turn()) {
        cp_pass_turn(stream);
        if (header && !GET(header[CP_H_PRICE]))
            cp_set_gates();
        return NULL;
    }
    struct cp_kernel *kernel = find(work);
    if (stream != GET(cp_only_stream)) { /* the first one is written down, the second noted */
        CUstream none = NULL;
        PUT(cp_has_streams, GET(cp_has_streams) || !atomic_compare_exchange_strong(&cp_only_stream, &none, stream));
    }
    cp_read_samples();
    bool is_trial = false;
    uint64_t paid = pay_slowly(header, kernel, stream, &is_trial);
    cp_pass_turn(stream);
    bool is_due = atomic_fetch_sub_explicit(&kernel->until_sample, 1, memory_order_relaxed) <= 1;
    struct cp_sample *sample = is_due ? begin_sample(kernel, work, paid, stream) : NULL;
    if (is_trial && !(sample && sample->knowledge == CP_UNKNOWN)) /* nobody else would end it */
        end_trial();
    return sample;
}
