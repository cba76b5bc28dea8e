/* Taking turns at kernel launches, with the messages of docs/protocol.md. src/carpool/agent does the same for PyTorch.
 *
 * A launch looks at one word, through `cp_gate`. While this process holds the turn, that is its recall word in the shared
 * page. It is a constant 0 when there are no turns to take, and a constant 1 when the turn is away. Anything but 0 leads
 * to share.c; if the word behind `cp_turn` is not 0 either, from there to here. Under a compute limit cp_gate is always 1.
 *
 * Threads: any. Those that launch while the turn is away queue at `turn_lock`, which guards everything below it.
 * `line_lock` guards the list of contexts and streams, and is held while they are asked, so that none ends meanwhile.
 *
 * U1  While the turn is held and not recalled, a launch makes no system call.
 * U2  A recalled turn goes back after the device has finished what this process has in flight, in all of its contexts. A
 *     process is called idle, and may lose its turn without being asked, only when all its streams have said they are done.
 * U3  A launch into a stream that is being captured does not wait. While any stream is, the guest does not wait for the
 *     device, because that would break the capture: a recalled turn is kept until the capture ends, but for CAPTURE_NS at
 *     most. Then it goes back without that wait, and a little of this process's work runs in the next job's turn. A
 *     process without a turn asks for one even then.
 * U4  A program whose turns the Python agent takes (a flag of its slot) is left to it. A program that it executes is not.
 *     What such a program launches outside the agent's turns, or after one was taken away, is under the compute limit.
 * U5  The guest waits for a daemon that is away. After a while the program goes on alone, and tries again now and then. */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define LEARN_STEPS 3 /* after so many steps the daemon is told what the program holds; then every CP_RESAMPLE_STEPS, if it has grown */

#define CAPTURE_NS 250000000u

static cp_word go_on = 0, stop = 1, look = 1; /* look: the turn is held, and the program has not launched since it waited */
cp_word *_Atomic cp_gate = &stop, *_Atomic cp_turn = &stop;

/* Where this process may have work: streams, and after them contexts, which stand for their default streams. */
#define LINES 64
static struct line { uint64_t context; CUstream stream; } lines[2 * LINES];
static cp_lock line_lock;
atomic_bool cp_has_unseen;

static cp_lock turn_lock;
static int fd = -1;
static ino_t fd_inode; /* the program may have closed our descriptor and opened another with its number */
static atomic_bool is_held, is_off, is_alone, is_reported; /* some are read without the lock */
static uint64_t kept_since_ns; /* for a capture, a turn that is wanted back; 0: none is */
static uint64_t reported_bytes, granted_ns, granted_steps, counted_ns;
static _Atomic uint64_t alone_since_ns;

/* The connection */

/* By its number: fstat itself is a new symbol since glibc 2.33. */
static bool is_up(void) {
    struct stat facts;
    if (fd >= 0 && (syscall(SYS_fstat, fd, &facts) != 0 || facts.st_ino != fd_inode || !S_ISSOCK(facts.st_mode)))
        fd = -1; /* not ours to close any more */
    return fd >= 0;
}

static void hang_up(void) {
    if (is_up())
        close(fd);
    fd = -1;
}

/* All of it, there or back; a connection that fails is given up. */
static bool carry(void *data, size_t size, bool is_out) {
    for (char *at = data; size;) {
        ssize_t some = !is_up() ? -1 : is_out ? send(fd, at, size, MSG_NOSIGNAL) : recv(fd, at, size, 0);
        if (some < 0 && fd >= 0 && errno == EINTR)
            continue;
        if (some <= 0) {
            hang_up();
            return false;
        }
        at += some;
        size -= (size_t)some;
    }
    return true;
}

__attribute__((format(printf, 2, 3))) static bool send_text(struct cp_frame head, const char *format, ...) {
    char text[512];
    va_list facts;
    va_start(facts, format);
    vsnprintf(text, sizeof text, format, facts);
    va_end(facts);
    head.length = (uint32_t)strlen(text);
    return carry(&head, sizeof head, true) && carry(text, head.length, true);
}

static bool send_frame(struct cp_frame frame) { return carry(&frame, sizeof frame, true); }

static bool send_measured(uint64_t held, uint64_t step_ns) {
    struct cp_frame head = {
        .kind = CP_M_MEASURED, .word = {[CP_MEASURED_PERSISTENT_BYTES] = held, [CP_MEASURED_STEP_NS] = step_ns}};
    return send_text(head, CP_MEASURED_BODY, 0); /* nobody looks at the loops of a program that is not Python */
}

static bool send_return(uint64_t steps, bool wants_more) {
    return send_frame((struct cp_frame){
        .kind = CP_M_RETURN, .word = {[CP_RETURN_STEPS] = steps, [CP_RETURN_WANTS_MORE] = wants_more}});
}

/* The next message; of its body the beginning, as text. */
static bool next_frame(struct cp_frame *frame, char *text, uint32_t size) {
    if (!carry(frame, sizeof *frame, false))
        return false;
    uint32_t kept = frame->length < size ? frame->length : size - 1;
    bool is_whole = carry(text, kept, false);
    text[kept] = 0;
    for (char rest; is_whole && kept < frame->length; kept++)
        is_whole = carry(&rest, 1, false);
    return is_whole;
}

static void set_patience(int seconds) {
    struct timeval patience = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

/* A refusal is for good: the program runs on without turns. */
static bool attach(cp_word *slot, bool holding) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat facts;
    struct cp_frame answer;
    char text[300];
    snprintf(address.sun_path, sizeof address.sun_path, "%s", cp_socket_path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || syscall(SYS_fstat, fd, &facts) != 0)
        return false;
    fd_inode = facts.st_ino;
    set_patience(CP_ATTACH_SECONDS);
    atomic_fetch_or(&slot[CP_S_FLAGS], CP_FLAG_PACED);
    bool is_answered = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                       send_text((struct cp_frame){.kind = CP_M_ATTACH}, CP_ATTACH_BODY, cp_job, (int)getpid(),
                                 (int)((slot - cp_header()) / CP_SLOT_WORDS), holding ? "true" : "false", cp_version,
                                 CP_PROTOCOL) &&
                       next_frame(&answer, text, sizeof text);
    set_patience(0);
    is_reported = false; /* a new daemon may not know */
    if (is_answered && answer.kind == CP_M_ATTACHED)
        return true;
    is_off = is_answered;
    if (is_off)
        cp_say_once("job %s runs unmanaged: %s", cp_job, answer.kind == CP_M_REFUSE ? text : "no answer to an attach");
    hang_up();
    return false;
}

/* Contexts and streams */

void cp_note_line(uint64_t context, CUstream stream) {
    struct line *line = stream ? lines : lines + LINES, *end = line + LINES;
    cp_take_lock(&line_lock);
    while (line < end && line->context && (stream || line->context != context))
        line++;
    if (line < end)
        *line = (struct line){context, stream};
    else
        PUT(cp_has_unseen, true);
    cp_drop_lock(&line_lock);
}

void cp_forget_line(uint64_t context, CUstream stream) {
    cp_take_lock(&line_lock);
    for (struct line *line = lines; line < lines + 2 * LINES; line++)
        if (stream ? line->stream == stream : line->context == context) {
            if (stream && (GET(cp_captures) || real_cuStreamQuery(stream) == CUDA_ERROR_NOT_READY))
                PUT(cp_has_unseen, true); /* it works on without its name */
            *line = (struct line){0};
        }
    cp_drop_lock(&line_lock);
}

bool cp_line_up(CUstream but, CUstream aside, CUevent mark) {
    uint64_t context = cp_context();
    if (!cp_try_lock(&line_lock)) /* somebody may be waiting for the device with it */
        return false;
    for (struct line *line = lines; line < lines + LINES; line++)
        if (line->context == context && line->stream != but && !real_cuEventRecord(mark, line->stream))
            real_cuStreamWaitEvent(aside, mark, 0);
    cp_drop_lock(&line_lock);
    return true;
}

static bool is_done(CUstream stream) {
    return !GET(cp_has_unseen) && !GET(cp_captures) && real_cuStreamQuery(stream) != CUDA_ERROR_NOT_READY;
}
static bool is_waited_for(CUstream stream) { return (void)stream, real_cuCtxSynchronize(), true; }

/* Whether this is so of each line from there on, but for one context's; each is asked in its own context. Drops the lock. */
static bool are_all(struct line *line, uint64_t but, bool (*is_so)(CUstream)) {
    CUcontext popped;
    bool is = true;
    for (; is && line < lines + 2 * LINES; line++)
        if (line->context && line->context != but && !real_cuCtxPushCurrent_v2((CUcontext)line->context)) {
            is = is_so(line->stream);
            real_cuCtxPopCurrent_v2(&popped);
        }
    cp_drop_lock(&line_lock);
    return is;
}

/* Wait for all; false: that may not be (U3). The lock is not held for the current context, for most programs the only one. */
static bool finish(void) {
    if (GET(cp_captures))
        return false;
    real_cuCtxSynchronize();
    cp_take_lock(&line_lock);
    return are_all(lines + LINES, cp_context(), is_waited_for);
}

/* Turns, with turn_lock held */

static bool is_left_to_agent(void) {
    cp_word *slot = cp_my_slot();
    return slot && atomic_load(&slot[CP_S_FLAGS]) & CP_FLAG_AGENT;
}

bool cp_is_agents_turn(void) {
    cp_word *slot = is_left_to_agent() ? cp_my_slot() : NULL;
    return slot && GET(slot[CP_S_LEASE]) == CP_LEASE_HELD && GET(slot[CP_S_RECALL]) < CP_LAPSED;
}

static bool is_limited(void) {
    cp_word *header = cp_header();
    return header && atomic_load(&header[CP_H_PRICE]);
}

static void set_turn(cp_word *turn) {
    atomic_store(&cp_turn, turn);
    atomic_store(&cp_gate, is_limited() ? &stop : turn);
}

void cp_set_gates(void) {
    cp_take_lock(&turn_lock);
    set_turn(atomic_load(&cp_turn));
    cp_drop_lock(&turn_lock);
}

static void set_lease(cp_word *slot, uint64_t lease) {
    is_held = lease == CP_LEASE_HELD;
    atomic_store(&slot[CP_S_LEASE], lease);
    set_turn(is_held ? &slot[CP_S_RECALL] : &stop);
}

/* Orders that come meanwhile are answered: nothing of ours can be moved to the host; to come back from there is no work. */
static bool wait_granted(cp_word *slot) {
    struct cp_frame frame;
    char text[300];
    while (next_frame(&frame, text, sizeof text)) {
        if (frame.kind == CP_M_GRANT)
            return true;
        if (frame.kind == CP_M_PARK)
            send_text((struct cp_frame){.kind = CP_M_PARKED}, CP_PARKED_BODY,
                      "its program is not PyTorch: nobody knows what points to its memory", "");
        if (frame.kind == CP_M_UNPARK)
            send_text((struct cp_frame){.kind = CP_M_UNPARKED}, CP_UNPARKED_BODY, "");
        if (frame.kind == CP_M_TRIM) /* it has no cache of ours: it holds what it holds */
            send_measured(atomic_load(&slot[CP_S_LIVE]), 0);
    }
    return false;
}

static void go_alone(cp_word *slot) {
    is_alone = !is_off;
    if (is_alone) /* else it was said why it was refused */
        cp_say_once("job %s: no daemon answers; the program goes on without taking turns", cp_job);
    atomic_store(&alone_since_ns, cp_now());
    set_lease(slot, CP_LEASE_NONE);
    set_turn(&go_on);
}

/* Ask until the turn is granted. `is_asked`: a Return that wants more was sent on this connection. */
static void acquire(cp_word *slot, bool is_asked) {
    for (uint64_t started = cp_now();;) {
        set_lease(slot, CP_LEASE_ASKED);
        if (!is_asked)
            is_asked = (is_up() || attach(slot, false)) && send_frame((struct cp_frame){.kind = CP_M_ASK});
        if (is_asked && wait_granted(slot))
            break;
        is_asked = false;
        uint64_t patience = access(cp_socket_path, F_OK) == 0 ? CP_ORPHAN_PATIENCE_NS : CP_STOPPED_PATIENCE_NS;
        if (is_off || is_alone || cp_now() - started > patience)
            return go_alone(slot);
        cp_sleep(CP_RECONNECT_NS);
    }
    is_alone = false;
    granted_ns = counted_ns = cp_now();
    granted_steps = atomic_load(&slot[CP_S_STEPS]);
    atomic_fetch_and(&slot[CP_S_FLAGS], ~(uint64_t)CP_FLAG_IDLE); /* it is here to compute (U2) */
    set_lease(slot, CP_LEASE_HELD);
}

/* What a program that is no loop of ours holds, it holds between turns too: all of it is persistent. */
static void report(cp_word *slot) {
    uint64_t held = atomic_load(&slot[CP_S_LIVE]), steps = atomic_load(&slot[CP_S_STEPS]), now = cp_now();
    uint64_t step_ns = steps > granted_steps ? (now - granted_ns) / (steps - granted_steps) : 0;
    if ((int64_t)held < 0 || (is_reported && held <= reported_bytes + reported_bytes * CP_GROWTH_PERCENT / 100))
        return;
    if (send_measured(held, step_ns)) {
        is_reported = true;
        reported_bytes = held;
    }
}

/* Without a limit nobody measures kernels; then the time of the turn stands for the device's. */
static void count_turn(void) {
    uint64_t now = cp_now(), had = now - counted_ns;
    counted_ns = now;
    if (!is_limited())
        cp_count(had);
}

static void give_back(cp_word *slot, bool wants_more) {
    report(slot);
    count_turn();
    uint64_t steps = atomic_load(&slot[CP_S_STEPS]);
    bool is_told = send_return(steps, wants_more) || /* a new daemon has read in the page that we hold it */
                   (attach(slot, true) && send_return(steps, wants_more));
    set_lease(slot, CP_LEASE_NONE);
    atomic_fetch_and(&slot[CP_S_FLAGS], ~(uint64_t)CP_FLAG_IDLE);
    if (wants_more)
        acquire(slot, is_told);
}

/* After the device has finished (U2). One that was taken away is nobody's to keep. */
static bool hand_back(cp_word *slot, bool wants_more) {
    bool is_given = finish() || atomic_load(&slot[CP_S_RECALL]) & CP_LAPSED;
    if (!is_given && !kept_since_ns)
        kept_since_ns = cp_now();
    else if (!is_given)
        is_given = cp_now() - kept_since_ns > CAPTURE_NS;
    if (is_given) {
        kept_since_ns = 0;
        give_back(slot, wants_more);
    }
    return is_given;
}

/* Also when we hold the turn: the agent attaches for the same process and answers for it from then on. */
static void step_aside(cp_word *slot) {
    hang_up();
    is_held = false;
    if (slot)
        atomic_fetch_and(&slot[CP_S_FLAGS], ~(uint64_t)CP_FLAG_PACED);
    set_turn(&go_on);
}

__attribute__((cold, noinline)) void cp_wait_turn(CUstream stream) {
    if (cp_is_capturing(stream))
        return;
    int saved = errno;
    cp_note_line(cp_context(), NULL); /* whoever made it */
    cp_take_lock(&turn_lock);
    cp_word *turn = atomic_load(&cp_turn), *slot = cp_my_slot();
    if (turn == &look && slot) { /* first the flag, then the word: the daemon looks at them the other way round */
        atomic_fetch_and(&slot[CP_S_FLAGS], ~(uint64_t)CP_FLAG_IDLE);
        set_turn(turn = &slot[CP_S_RECALL]);
    }
    if (is_off || !slot || !cp_job[0] || !cp_socket_path[0] || is_left_to_agent())
        step_aside(slot);
    else if (!is_held && turn == &stop)
        acquire(slot, false);
    else if (is_held && atomic_load(&slot[CP_S_RECALL]))
        hand_back(slot, true); /* else another thread did it while we queued */
    cp_drop_lock(&turn_lock);
    errno = saved;
}

/* The program waited for the device: that is a step, if it launched since the last one. A recalled turn goes back here,
 * and the next launch asks for it. A program that went on alone looks for a daemon again. */
void cp_end_step(uint64_t finished) {
    cp_read_samples(); /* others may be waiting for it */
    cp_word *turn = atomic_load(&cp_turn), *slot = turn == &go_on || turn == &stop ? NULL : cp_my_slot();
    bool must_retry = turn == &go_on && is_alone && cp_now() - atomic_load(&alone_since_ns) > CP_RETRY_NS;
    if (must_retry)
        atomic_store(&cp_turn, &stop);
    if (must_retry || (turn == &go_on && atomic_load(&cp_gate) == turn && is_limited()))
        cp_set_gates();
    if (!slot)
        return;
    bool is_step = turn != &look;
    atomic_store_explicit(&slot[CP_S_BOUNDARY_NS], cp_now(), memory_order_relaxed);
    if (is_step && atomic_compare_exchange_strong(&cp_turn, &turn, &look))
        atomic_store(&cp_gate, &look);
    if (cp_try_lock(&line_lock) && are_all(lines, finished, is_done) && cp_try_lock(&turn_lock)) {
        if (atomic_load(&cp_turn) == &look) /* else another thread has launched meanwhile */
            atomic_fetch_or(&slot[CP_S_FLAGS], CP_FLAG_IDLE);
        cp_drop_lock(&turn_lock);
    }
    uint64_t steps = atomic_fetch_add_explicit(&slot[CP_S_STEPS], is_step, memory_order_relaxed) + is_step;
    bool is_sample = is_step && (steps == LEARN_STEPS || steps % CP_RESAMPLE_STEPS == 0);
    if (!atomic_load(&slot[CP_S_RECALL]) && !is_sample)
        return;
    int saved = errno;
    cp_take_lock(&turn_lock);
    if (is_left_to_agent())
        step_aside(slot);
    else if (is_held && atomic_load(&slot[CP_S_RECALL])) {
        hand_back(slot, false);
    } else if (is_held) {
        report(slot);
        count_turn();
    }
    cp_drop_lock(&turn_lock);
    errno = saved;
}

static bool is_wanted(cp_word *slot) {
    return slot && is_held && (atomic_load(&cp_header()[CP_H_WAITERS]) || atomic_load(&slot[CP_S_RECALL]));
}

bool cp_rest(uint64_t ns) {
    cp_word *slot = cp_my_slot();
    bool is_returned = false;
    int saved = errno;
    if (is_wanted(slot)) {
        cp_take_lock(&turn_lock); /* it may be another turn by now */
        is_returned = is_wanted(slot) && !is_left_to_agent() && hand_back(slot, false);
        cp_drop_lock(&turn_lock);
    }
    cp_sleep(ns);
    errno = saved;
    return is_returned;
}

void cp_forget_link(void) {
    turn_lock = line_lock = cp_has_unseen = 0;
    memset(lines, 0, sizeof lines);
    hang_up();
    is_held = is_off = is_alone = is_reported = false;
    atomic_store(&cp_turn, &stop);
    atomic_store(&cp_gate, &stop);
}

/* At the end of the program the turn goes back at once, not when the last library is unloaded. */
void cp_leave(void) {
    if (cp_try_lock(&turn_lock)) {
        cp_word *slot = is_held ? cp_my_slot() : NULL;
        if (slot)
            give_back(slot, false);
        is_off = true;
        set_turn(&go_on);
        cp_drop_lock(&turn_lock);
    }
}
