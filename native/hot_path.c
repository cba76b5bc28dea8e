/* What the agent does in every iteration, as an extension module; agent/turns/hot_path.py says when it is used.
 *
 * Only what happens in every iteration of a job that keeps its turn is here; every other case is handed to Python,
 * which decides. An iteration's own work empties the caches, and bytecode is dear then: 10 to 25 us for what takes
 * 3 us in a tight loop (docs/design/0002-boundaries.md).
 *
 * TurnState   the state of turn_taking.py that these tests need; Turns and Link set its fields, and there is no copy
 * SoonHook    the optimizer's pre-step hook: wakes the job that has the turn after this step
 * StepHook    the optimizer's post-step hook: counts, stamps, looks for a recall
 * ModuleCall  stands in for torch.nn.Module.__call__: inner calls pass, the outermost is a begin point
 * FetchCall   stands in for the DataLoader's __next__: how long input took, then a begin point
 *
 * Threads: every field is touched under the interpreter's lock, but for the bell's while the taker waits. The page's
 * words have one writer each (rule G1).
 */
#define _GNU_SOURCE /* sched_getcpu and the sets of processors in bell.h */
#define Py_LIMITED_API 0x030B0000 /* one library for every Python from 3.11 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bell.h"
#include "page.h"
#include "protocol.h"

/* One library serves every Python from 3.11 on (Py_LIMITED_API, abi3). These have had one form since 3.11 and are in that
 * interface since 3.12; PyMethod_New is not, and is as old as Python. */
typedef PyObject *(*vectorcallfunc)(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames);
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames);
PyAPI_FUNC(PyObject *) PyVectorcall_Call(PyObject *callable, PyObject *tuple, PyObject *dict);
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#define ARGUMENTS_OFFSET ((size_t)1 << (CHAR_BIT * sizeof(size_t) - 1))
#define PyVectorcall_NARGS(nargsf) ((Py_ssize_t)((nargsf) & ~ARGUMENTS_OFFSET))
PyAPI_FUNC(PyObject *) PyMethod_New(PyObject *function, PyObject *self);

/* None is immortal since 3.12, and a count of our own would grow with every boundary: let the interpreter do it. */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_IncRef(Py_None), Py_None

#define POINTS_MAX 8 /* a program with more optimizers pays Python's price for the rest */

enum { AFTER_STEP, AFTER_YIELD, AFTER_BLOCK, PAUSE_KINDS }; /* as in agent/turns/pauses.py */
enum { LIKELY = 2 };

/* --- TurnState ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Word *slot; /* into `view`, which is held as long as this object lives */
    char held, is_off;
    int depth;
    unsigned long taker;
    long long stall_ns;
    int points_known;
    struct {
        uintptr_t point;
        bool is_clean;
    } points[POINTS_MAX];
    Py_ssize_t base;
    Py_buffer view;
    PyObject *words;
    struct bell bell;
    char is_instant, is_waiting;
    long long left_ns, away_ns;
    int64_t update_began_ns, update_ns; /* the newest update of the optimizer: its start, and how long the last took */
    unsigned long long sampled_at;
    long long steady_bytes;
    long long pause_from, pause_cpu_ns; /* the running pause; the processor time at its begin, 0 if nobody looked */
    char pauses[PAUSE_KINDS];           /* how likely an idle pause is after each kind of point (T6) */
    char pause_kind, is_timed, is_shown;
    int turn_steps;    /* iterations of this turn, counted up to CP_CHANGE_STEPS; those say what the change of turn cost */
    char is_compared;  /* this turn's first ones are compared with the usual iteration, which is known */
    int64_t iterated_ns, usual_ns, excess_ns; /* the last boundary or grant; a usual iteration; what the first ones took beyond */
    int64_t compared_ns; /* the usual iteration as it was when the turn began: what is learnt in a turn is not compared in it */
} TurnState;

static PyTypeObject *turn_state_type;

static PyObject *state_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    PyObject *words;
    (void)kwds;
    if (!PyArg_ParseTuple(args, "O:TurnState", &words))
        return NULL;
    TurnState *state = (TurnState *)PyType_GenericAlloc(type, 0);
    if (state == NULL)
        return NULL;
    state->bell.peer = state->bell.own = state->bell.line = -1;
    state->pauses[AFTER_STEP] = state->pauses[AFTER_YIELD] = LIKELY - 1;
    state->pauses[AFTER_BLOCK] = LIKELY;
    if (PyObject_GetBuffer(words, &state->view, PyBUF_WRITABLE) < 0) {
        Py_DECREF(state);
        return NULL;
    }
    if (state->view.len < CP_SLOT_WORDS * (Py_ssize_t)sizeof(Word) || (uintptr_t)state->view.buf % sizeof(Word)) {
        PyErr_SetString(PyExc_ValueError, "the words of a page are aligned and at least one slot");
        Py_DECREF(state);
        return NULL;
    }
    state->words = Py_NewRef(words);
    state->slot = state->view.buf;
    return (PyObject *)state;
}

/* The last word of a dealloc: the object's memory goes, and its hold on its type. */
static void release(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static void state_dealloc(TurnState *state)
{
    bell_take_down(&state->bell);
    PyBuffer_Release(&state->view);
    Py_XDECREF(state->words);
    release((PyObject *)state);
}

/* --- what a change of turn costs; agent/turns/hot_path.py has the rules (PlainTurnState) ---------------------------- */

enum { USUAL_SHIFT = 4, LESS_SHIFT = 7, EXCESS_MAX = 16 }; /* as USUAL_PART, LESS_PART and EXCESS_MAX there */

static void note_turn_began(TurnState *state, int64_t now)
{
    state->iterated_ns = now;
    state->excess_ns = 0;
    state->compared_ns = state->usual_ns;
    state->is_compared = state->usual_ns != 0;
    state->turn_steps = state->is_compared ? 0 : CP_CHANGE_STEPS;
}

static void book_change(TurnState *state)
{
    if (state->base != 0) {
        state->slot[CP_S_CHANGE_NS] += (uint64_t)state->excess_ns;
        state->slot[CP_S_CHANGES] += 1;
    }
}

static void note_iteration(TurnState *state, int64_t now)
{
    int64_t took = now - state->iterated_ns, usual = state->usual_ns;
    state->iterated_ns = now;
    if (state->turn_steps >= CP_CHANGE_STEPS) { /* always so while it is alone */
        state->usual_ns = usual == 0 ? took : usual + (((took < 2 * usual ? took : 2 * usual) - usual) >> USUAL_SHIFT);
        return;
    }
    int64_t beyond = took - state->compared_ns, most = EXCESS_MAX * state->compared_ns;
    state->excess_ns += beyond < most ? beyond : most;
    if (took < usual - (usual >> LESS_SHIFT))
        state->usual_ns = usual + ((took - usual) >> USUAL_SHIFT);
    if (++state->turn_steps == CP_CHANGE_STEPS)
        book_change(state);
}

/* The program waited for its input, or for somebody outside: no part of an iteration's cost. */
static void note_wait(TurnState *state, int64_t waited)
{
    if (state->held && PyThread_get_thread_ident() == state->taker)
        state->iterated_ns += waited;
}

static void note_turn_ended(TurnState *state, int64_t drained)
{
    bool is_short = state->turn_steps > 0 && state->turn_steps < CP_CHANGE_STEPS;
    if (state->is_compared && is_short)
        book_change(state);
    if (state->is_compared && state->turn_steps > 0 && state->base != 0)
        state->slot[CP_S_CHANGE_NS] += (uint64_t)drained;
    state->is_compared = 0;
    state->turn_steps = CP_CHANGE_STEPS;
}

static PyObject *state_turn_began(TurnState *state, PyObject *args)
{
    long long now;
    if (!PyArg_ParseTuple(args, "L:turn_began", &now))
        return NULL;
    note_turn_began(state, now);
    Py_RETURN_NONE;
}

static PyObject *state_iterated(TurnState *state, PyObject *args)
{
    long long now;
    if (!PyArg_ParseTuple(args, "L:iterated", &now))
        return NULL;
    note_iteration(state, now);
    Py_RETURN_NONE;
}

static PyObject *state_waited(TurnState *state, PyObject *args)
{
    long long waited;
    if (!PyArg_ParseTuple(args, "L:waited", &waited))
        return NULL;
    note_wait(state, waited);
    Py_RETURN_NONE;
}

static PyObject *state_turn_ended(TurnState *state, PyObject *args)
{
    long long drained;
    if (!PyArg_ParseTuple(args, "L:turn_ended", &drained))
        return NULL;
    note_turn_ended(state, drained);
    Py_RETURN_NONE;
}

static PyObject *state_get_base(TurnState *state, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(state->base);
}

static int state_set_base(TurnState *state, PyObject *value, void *unused)
{
    (void)unused;
    Py_ssize_t base = value == NULL ? -1 : PyNumber_AsSsize_t(value, PyExc_IndexError);
    if (base == -1 && PyErr_Occurred())
        return -1;
    if (base < 0 || base > state->view.len / (Py_ssize_t)sizeof(Word) - CP_SLOT_WORDS) {
        PyErr_SetString(PyExc_IndexError, "a slot lies inside its page");
        return -1;
    }
    state->base = base;
    state->slot = (Word *)state->view.buf + base;
    return 0;
}

static PyObject *state_know(TurnState *state, PyObject *args)
{
    unsigned long long point;
    int is_clean;
    if (!PyArg_ParseTuple(args, "Kp:know", &point, &is_clean))
        return NULL;
    int at = 0;
    while (at < state->points_known && state->points[at].point != (uintptr_t)point)
        at++;
    if (at < POINTS_MAX) {
        state->points[at].point = (uintptr_t)point;
        state->points[at].is_clean = is_clean;
        if (at == state->points_known)
            state->points_known++;
    }
    Py_RETURN_NONE;
}

static PyObject *state_forget(TurnState *state, PyObject *unused)
{
    (void)unused;
    state->points_known = 0;
    Py_RETURN_NONE;
}

static PyObject *state_hang_bell(TurnState *state, PyObject *args)
{
    int own;
    const char *directory;
    if (!PyArg_ParseTuple(args, "iy:hang_bell", &own, &directory))
        return NULL;
    if (strlen(directory) >= sizeof state->bell.directory) {
        PyErr_SetString(PyExc_OSError, "the bells' directory has too long a name");
        return NULL;
    }
    state->bell.own = own;
    state->bell.own_inode = bell_inode(own);
    strcpy(state->bell.directory, directory);
    Py_RETURN_NONE;
}

static PyObject *state_take_bell_down(TurnState *state, PyObject *unused)
{
    (void)unused;
    bell_take_down(&state->bell);
    Py_RETURN_NONE;
}

static PyObject *state_pass_on(TurnState *state, PyObject *unused)
{
    bool is_rung; /* Python tells the daemon of every pass */
    (void)unused;
    return PyLong_FromUnsignedLongLong(bell_pass_on(&state->bell, state->slot, &is_rung));
}

static PyObject *state_hear(TurnState *state, PyObject *unused)
{
    uint64_t pass;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    bool is_knocked = false;
    pass = bell_hear(&state->bell, state->slot, &is_knocked);
    if (is_knocked && pass == 0) {
        bell_step_aside(&state->bell);
        pass = bell_listen(&state->bell, state->slot, BELL_SOON_NS);
    }
    Py_END_ALLOW_THREADS
    return PyLong_FromUnsignedLongLong(pass);
}

static PyMemberDef state_members[] = {
    {"words", T_OBJECT_EX, offsetof(TurnState, words), READONLY, "the page's words"},
    {"held", T_BOOL, offsetof(TurnState, held), 0, "whether the turn is held"},
    {"is_off", T_BOOL, offsetof(TurnState, is_off), 0, "whether the program is left alone from now on"},
    {"depth", T_INT, offsetof(TurnState, depth), 0, "how many explicit turns are open"},
    {"stall_ns", T_LONGLONG, offsetof(TurnState, stall_ns), 0, "how long the input takes, a fading mean"},
    {"taker", T_ULONG, offsetof(TurnState, taker), 0, "the thread that takes turns (T4)"},
    {"peer", T_INT, offsetof(TurnState, bell.peer), 0, "the connection to the daemon, or -1"},
    {"peer_inode", T_ULONGLONG, offsetof(TurnState, bell.peer_inode), 0, "by which it is known"},
    {"rung", T_ULONGLONG, offsetof(TurnState, bell.rung), 0, "serial of the newest grant that was rung"},
    {"is_instant", T_BOOL, offsetof(TurnState, is_instant), 0, "a turn goes with nothing to wait for or to give back"},
    {"is_waiting", T_BOOL, offsetof(TurnState, is_waiting), 0, "StepHook returned the turn; Python waits for the next"},
    {"left_ns", T_LONGLONG, offsetof(TurnState, left_ns), 0, "when StepHook last returned the turn"},
    {"away_ns", T_LONGLONG, offsetof(TurnState, away_ns), 0, "how long the turn was away by StepHook, in all"},
    {"sampled_at", T_ULONGLONG, offsetof(TurnState, sampled_at), 0, "the step at which the memory was last looked at"},
    {"steady_bytes", T_LONGLONG, offsetof(TurnState, steady_bytes), 0, "who holds more at a boundary has grown; 0: unknown"},
    {"pause_from", T_LONGLONG, offsetof(TurnState, pause_from), 0, "since when it pauses; 0: it computes"},
    {"pause_cpu_ns", T_LONGLONG, offsetof(TurnState, pause_cpu_ns), 0, "processor time when the pause began; 0: unknown"},
    {"pause_kind", T_BYTE, offsetof(TurnState, pause_kind), 0, "after which kind of point"},
    {"after_step", T_BYTE, offsetof(TurnState, pauses[AFTER_STEP]), 0, "how likely an idle pause is after a boundary"},
    {"after_yield", T_BYTE, offsetof(TurnState, pauses[AFTER_YIELD]), 0, "the same after a yield point"},
    {"after_block", T_BYTE, offsetof(TurnState, pauses[AFTER_BLOCK]), 0, "the same after an explicit turn"},
    {"iterated_ns", T_LONGLONG, offsetof(TurnState, iterated_ns), READONLY, "the last boundary or grant, and waits since"},
    {"is_timed", T_BOOL, offsetof(TurnState, is_timed), 0, "whether processor time is read when a pause begins"},
    {"is_shown", T_BOOL, offsetof(TurnState, is_shown), 0, "whether nothing is on the device in a pause, so others may know"},
    {NULL},
};

static PyGetSetDef state_getset[] = {
    {"base", (getter)state_get_base, (setter)state_set_base, "word index of the slot; 0 until there is one", NULL},
    {NULL},
};

static PyMethodDef state_methods[] = {
    {"know", (PyCFunction)state_know, METH_VARARGS, "Let StepHook take care of this point."},
    {"hang_bell", (PyCFunction)state_hang_bell, METH_VARARGS, "hang_bell(socket, directory): see agent/turns/bell.py"},
    {"take_bell_down", (PyCFunction)state_take_bell_down, METH_NOARGS, "Nobody rings here any more, nor from here."},
    {"pass_on", (PyCFunction)state_pass_on, METH_NOARGS, "Ring the next job; the pass that was used, or 0."},
    {"hear", (PyCFunction)state_hear, METH_NOARGS, "The pass by which this process was rung, or 0."},
    {"turn_began", (PyCFunction)state_turn_began, METH_VARARGS, "turn_began(now): the turn is held from now on."},
    {"iterated", (PyCFunction)state_iterated, METH_VARARGS, "iterated(now): an iteration ended that Python counted."},
    {"waited", (PyCFunction)state_waited, METH_VARARGS, "waited(ns): so much of this iteration was a wait."},
    {"turn_ended", (PyCFunction)state_turn_ended, METH_VARARGS, "turn_ended(drained_ns): the turn goes."},
    {"forget", (PyCFunction)state_forget, METH_NOARGS, "Let Python take care of every point again."},
    {NULL},
};

/* Whether a begin point has nothing to do. */
static bool may_compute(const TurnState *state)
{
    return state->is_off || (state->held && state->slot[CP_S_RECALL] < CP_LAPSED);
}

static void show_pause(TurnState *state, uint64_t from, bool is_foretold)
{
    if (state->is_shown && state->base != 0)
        state->slot[CP_S_PAUSE_FROM] = from | (is_foretold ? CP_PAUSE_FORETOLD : 0);
}

static bool is_likely(const TurnState *state)
{
    return state->pauses[(unsigned)state->pause_kind % PAUSE_KINDS] >= LIKELY;
}

/* How long this thread wanted a processor and had none, since it began; 0 on a kernel that does not count it. */
static int64_t delay_ns(void)
{
    char text[96];
    int file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[length < 0 ? 0 : length] = 0;
    const char *second = strchr(text, ' ');
    return second == NULL ? 0 : strtoll(second, NULL, 10);
}

/* A boundary: nothing is on the device from here to the next begin point (agent/turns/pauses.py). */
static void begin_pause(TurnState *state, int64_t now)
{
    state->pause_from = now & ~(int64_t)CP_PAUSE_BITS;
    state->pause_kind = AFTER_STEP;
    state->pause_cpu_ns = state->is_timed ? clock_ns(CLOCK_PROCESS_CPUTIME_ID) + delay_ns() : 0;
    show_pause(state, (uint64_t)state->pause_from, is_likely(state));
}

/* Whether there is no pause, or only a short one, which is over now; a long one is left to Python. */
static bool end_pause(TurnState *state)
{
    if (state->pause_from == 0 || state->is_off || state->depth || PyThread_get_thread_ident() != state->taker)
        return true;
    if (clock_ns(CLOCK_MONOTONIC) - state->pause_from > CP_STALL_NS)
        return false;
    char *likely = &state->pauses[(unsigned)state->pause_kind % PAUSE_KINDS];
    *likely -= *likely > 0;
    state->is_timed = state->is_timed && *likely > 0;
    state->pause_from = 0;
    show_pause(state, 0, false);
    return true;
}

/* Whether somebody could use the pause that began just now, and it will likely be idle. */
static bool is_pause_wanted(const TurnState *state)
{
    const Word *header = state->view.buf;
    return header[CP_H_WAITERS] != 0 && is_likely(state);
}

static PyType_Slot state_slots[] = {
    {Py_tp_doc, "What the points must know of this process's turn."},
    {Py_tp_new, state_new},
    {Py_tp_dealloc, state_dealloc},
    {Py_tp_members, state_members},
    {Py_tp_getset, state_getset},
    {Py_tp_methods, state_methods},
    {0, NULL},
};

static PyType_Spec state_spec = {
    .name = "carpool._native.hot_path.TurnState",
    .basicsize = sizeof(TurnState),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
};

/* --- what the three callables have in common ------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    TurnState *state; /* NULL until Python made one, and again in a forked child */
    PyObject *slow;  /* Python's whole hook; or what it does before the real call */
    PyObject *after; /* a step was counted and more is due; or what Python does after the real call */
    PyObject *after_graded; /* of ModuleCall: the same with gradients on, given module and result, while that may matter */
    PyObject *rehearse; /* what StepHook runs when the turn comes soon */
    PyObject *real, *attach; /* of the two stand-ins */
    PyObject *is_grad_enabled;
    PyObject *dict, *weak;
    PyObject *watch; /* of the stand-ins: called before a call in a thread that takes no turns, if there is one */
    unsigned long taker; /* of ModuleCall: the thread whose outermost calls are points */
    int depth;
    char is_graded_told;
    unsigned long count;
} Point;

static int point_traverse(Point *point, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE((PyObject *)point));
    Py_VISIT(point->state);
    Py_VISIT(point->real);
    Py_VISIT(point->attach);
    Py_VISIT(point->is_grad_enabled);
    Py_VISIT(point->slow);
    Py_VISIT(point->after);
    Py_VISIT(point->after_graded);
    Py_VISIT(point->rehearse);
    Py_VISIT(point->watch);
    Py_VISIT(point->dict);
    return 0;
}

static int point_clear(Point *point)
{
    Py_CLEAR(point->state);
    Py_CLEAR(point->watch);
    Py_CLEAR(point->dict);
    return 0; /* the callables stay until the end: this object can be called as long as it can be reached */
}

static void point_dealloc(Point *point)
{
    PyObject_GC_UnTrack(point);
    if (point->weak != NULL)
        PyObject_ClearWeakRefs((PyObject *)point);
    point_clear(point);
    Py_XDECREF(point->real);
    Py_XDECREF(point->attach);
    Py_XDECREF(point->is_grad_enabled);
    Py_XDECREF(point->slow);
    Py_XDECREF(point->after);
    Py_XDECREF(point->after_graded);
    Py_XDECREF(point->rehearse);
    release((PyObject *)point);
}

static PyObject *point_get_state(Point *point, void *unused)
{
    (void)unused;
    return Py_NewRef(point->state != NULL ? (PyObject *)point->state : Py_None);
}

static int point_set_state(Point *point, PyObject *value, void *unused)
{
    (void)unused;
    if (value != NULL && value != Py_None && !Py_IS_TYPE(value, turn_state_type)) {
        PyErr_SetString(PyExc_TypeError, "a TurnState or None");
        return -1;
    }
    TurnState *before = point->state;
    point->state = value == NULL || value == Py_None ? NULL : (TurnState *)Py_NewRef(value);
    Py_XDECREF((PyObject *)before);
    return 0;
}

/* --- SoonHook and StepHook -------------------------------------------------------------------------------------------------- */

static PyObject *soon_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    const Point *hook = (Point *)self;
    TurnState *state = hook->state;
    (void)args, (void)nargsf, (void)kwnames;
    if (state != NULL && state->held && state->is_instant && !state->depth && PyThread_get_thread_ident() == state->taker) {
        uint64_t recall = state->slot[CP_S_RECALL];
        state->update_began_ns = clock_ns(CLOCK_MONOTONIC);
        if (state->update_ns < BELL_SOON_NS) {
            atomic_fetch_or(&state->slot[CP_S_FLAGS], CP_FLAG_SOON);
            if (recall != 0 && recall <= state->slot[CP_S_STEPS] + 1)
                bell_knock(&state->bell, state->slot);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *soon_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    (void)kwds;
    if (!PyArg_ParseTuple(args, ":SoonHook"))
        return NULL;
    Point *hook = (Point *)PyType_GenericAlloc(type, 0);
    if (hook != NULL)
        hook->call = soon_call;
    return (PyObject *)hook;
}

/* Counts a step at a point that is known: 0, or the count if more is due. Else -1: nothing was done. */
static int64_t count_step(TurnState *state, PyObject *optimizer)
{
    if (state == NULL || state->is_off || state->depth || state->base == 0 || PyThread_get_thread_ident() != state->taker)
        return -1;
    atomic_fetch_and(&state->slot[CP_S_FLAGS], ~(uint64_t)CP_FLAG_SOON);
    for (int at = 0; at < state->points_known; at++) {
        if (state->points[at].point != (uintptr_t)optimizer)
            continue;
        if (!state->points[at].is_clean)
            return 0;
        uint64_t steps = state->slot[CP_S_STEPS] + 1;
        int64_t now = clock_ns(CLOCK_MONOTONIC);
        state->slot[CP_S_STEPS] = steps;
        state->slot[CP_S_BOUNDARY_NS] = (uint64_t)now;
        note_iteration(state, now);
        state->update_ns = now - state->update_began_ns;
        begin_pause(state, now);
        bool is_due = state->slot[CP_S_RECALL] != 0 || (steps & CP_RESAMPLE_MASK) == 0 || is_pause_wanted(state);
        return is_due ? (int64_t)steps : 0;
    }
    return -1;
}

enum { REHEARSALS = 2 }; /* the first finds what it needs, the second runs through it */

/* Waits until the turn is rung: 1. 0 leaves the rest to Python, and -1 says that it raised. A job that was knocked at runs
 * the code that comes next for nothing: its caches are cold (B4). */
static int wait_rung(TurnState *state, PyObject *rehearse)
{
    bool is_rung, is_knocked;
    Py_BEGIN_ALLOW_THREADS
    is_rung = bell_wait(&state->bell, state->slot, &is_knocked);
    Py_END_ALLOW_THREADS
    while (is_knocked && !is_rung) {
        bell_step_aside(&state->bell);
        for (int times = 0; times < REHEARSALS && !is_rung; times++) {
            PyObject *done = PyObject_CallNoArgs(rehearse);
            if (done == NULL)
                return -1;
            Py_DECREF(done);
            is_rung = bell_listen(&state->bell, state->slot, 0) != 0;
        }
        Py_BEGIN_ALLOW_THREADS
        is_rung = is_rung || bell_listen(&state->bell, state->slot, BELL_SOON_NS)
            || bell_wait(&state->bell, state->slot, &is_knocked);
        Py_END_ALLOW_THREADS
    }
    return is_rung;
}

/* A recalled turn for which the daemon named a successor: ring it, and wait for the next turn. 1 if it is held again and
 * there is nothing more to do; 0 leaves the rest to Python, and -1 says that it raised. */
static int hand_over(TurnState *state, uint64_t steps, PyObject *rehearse)
{
    Word *slot = state->slot;
    uint64_t recall = slot[CP_S_RECALL];
    if (!state->held || !state->is_instant || recall == 0 || recall >= CP_LAPSED || steps < recall)
        return 0;
    if (is_pause_wanted(state) || state->stall_ns > CP_STALL_NS)
        return 0; /* it wants no other turn yet */
    if (state->steady_bytes && (int64_t)slot[CP_S_LIVE] > state->steady_bytes)
        return 0; /* what it needs now is told before others decide by it */
    bool is_heard;
    uint64_t pass = bell_pass_on(&state->bell, slot, &is_heard);
    if (pass == 0)
        return 0;
    note_turn_ended(state, 0);
    state->held = 0;
    state->is_waiting = 1;
    state->left_ns = clock_ns(CLOCK_MONOTONIC);
    slot[CP_S_LEASE] = CP_LEASE_ASKED;
    bool is_quiet = is_heard && (pass & CP_PASS_QUIET) != 0; /* the daemon finds it in the page (B6) */
    int is_rung = is_quiet || bell_say_passed(&state->bell, steps, pass) ? wait_rung(state, rehearse) : 0;
    if (is_rung != 1)
        return is_rung;
    state->is_waiting = 0;
    state->held = 1;
    slot[CP_S_LEASE] = CP_LEASE_HELD;
    slot[CP_S_PEAK] = slot[CP_S_LIVE];
    int64_t now = clock_ns(CLOCK_MONOTONIC);
    state->away_ns += now - state->left_ns;
    begin_pause(state, now);
    note_turn_began(state, now);
    return steps - state->sampled_at <= CP_RESAMPLE_MASK;
}

static PyObject *step_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Point *hook = (Point *)self;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    int64_t due = count == 3 && kwnames == NULL ? count_step(hook->state, args[0]) : -1;
    if (due == 0)
        Py_RETURN_NONE;
    if (due < 0)
        return PyObject_Vectorcall(hook->slow, args, (size_t)count, kwnames);
    int is_done = hand_over(hook->state, (uint64_t)due, hook->rehearse);
    if (is_done > 0)
        Py_RETURN_NONE;
    if (is_done < 0)
        return NULL;
    return PyObject_CallFunction(hook->after, "L", (long long)due);
}

static PyObject *step_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    PyObject *slow, *after, *rehearse;
    (void)kwds;
    if (!PyArg_ParseTuple(args, "OOO:StepHook", &slow, &after, &rehearse))
        return NULL;
    Point *hook = (Point *)PyType_GenericAlloc(type, 0);
    if (hook == NULL)
        return NULL;
    hook->call = step_call;
    hook->slow = Py_NewRef(slow);
    hook->after = Py_NewRef(after);
    hook->rehearse = Py_NewRef(rehearse);
    return (PyObject *)hook;
}

/* --- the stand-ins: ModuleCall and FetchCall ------------------------------------------------------------------- */

/* Each of these is false with an error set if Python raised. */
static bool call_python(PyObject *function)
{
    PyObject *done = PyObject_CallNoArgs(function);
    Py_XDECREF(done);
    return done != NULL;
}

/* The program said which of its threads compute (agent/threads.py); this one may be another. */
static bool watch_thread(Point *call)
{
    return call->watch == Py_None || call_python(call->watch);
}

static bool begin(Point *call)
{
    TurnState *state = call->state;
    return (state != NULL && may_compute(state) && end_pause(state)) || call_python(call->slow);
}

/* A data-loading worker takes no turns: its calls pass. */
static bool find_worker(Point *call, bool *is_worker)
{
    *is_worker = false;
    if (call->state != NULL)
        return true;
    PyObject *is_attached = PyObject_CallNoArgs(call->attach);
    Py_XDECREF(is_attached);
    *is_worker = is_attached == Py_False;
    return is_attached != NULL;
}

/* Which module was called, and with gradients on, what came of it. */
static bool tell_after(Point *call, PyObject *module, PyObject *result)
{
    PyObject *done = result == NULL ? PyObject_CallFunctionObjArgs(call->after, module, NULL)
                                    : PyObject_CallFunctionObjArgs(call->after_graded, module, result, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

static PyObject *call_outermost(Point *call, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    call->depth = 1;
    call->count++;
    PyObject *result = begin(call) ? PyObject_Vectorcall(call->real, args, nargsf, kwnames) : NULL;
    call->depth = 0;
    if (result == NULL)
        return NULL;
    PyObject *has_grad = PyObject_CallNoArgs(call->is_grad_enabled);
    Py_XDECREF(has_grad);
    if (has_grad == NULL || (has_grad == Py_False && !tell_after(call, args[0], NULL))
        || (has_grad == Py_True && call->is_graded_told && !tell_after(call, args[0], result)))
        Py_CLEAR(result);
    return result;
}

static PyObject *module_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Point *call = (Point *)self;
    bool is_worker;
    if (call->watch != NULL && PyThread_get_thread_ident() != call->taker && !watch_thread(call))
        return NULL;
    if (call->depth || PyThread_get_thread_ident() != call->taker)
        return PyObject_Vectorcall(call->real, args, nargsf, kwnames);
    if (!find_worker(call, &is_worker))
        return NULL;
    if (is_worker)
        return PyObject_Vectorcall(call->real, args, nargsf, kwnames);
    return call_outermost(call, args, nargsf, kwnames);
}

/* Whether the turn may have to go before a wait for input. */
static bool may_give_back(const TurnState *state)
{
    const Word *header = state->view.buf;
    return state->slot[CP_S_RECALL] != 0 || (header[CP_H_WAITERS] != 0 && state->stall_ns > CP_STALL_NS);
}

/* The thread that takes the turns waits for input from now on; 0: no more. Not with the graph of a step in memory. */
static void show_input_wait(TurnState *state, uint64_t from)
{
    if (state == NULL || state->is_off || state->depth || PyThread_get_thread_ident() != state->taker)
        return;
    bool is_clean = state->steady_bytes == 0 || (int64_t)state->slot[CP_S_LIVE] <= state->steady_bytes;
    bool is_shown = from != 0 && is_clean;
    uint64_t begun = (from & ~(uint64_t)CP_PAUSE_BITS) | CP_PAUSE_INPUT;
    show_pause(state, is_shown ? begun : 0, is_shown && state->stall_ns > CP_STALL_NS);
}

static PyObject *fetch_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Point *call = (Point *)self;
    bool is_worker;
    if (call->watch != NULL && !watch_thread(call))
        return NULL;
    if (!find_worker(call, &is_worker))
        return NULL;
    if (is_worker)
        return PyObject_Vectorcall(call->real, args, nargsf, kwnames);
    if ((call->state == NULL || may_give_back(call->state) || !end_pause(call->state)) && !call_python(call->slow))
        return NULL;
    int64_t began = clock_ns(CLOCK_MONOTONIC), busy = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    show_input_wait(call->state, (uint64_t)began);
    PyObject *item = PyObject_Vectorcall(call->real, args, nargsf, kwnames);
    if (item == NULL) { /* the end of the data is no reason to ask for a turn */
        show_input_wait(call->state, 0);
        return NULL;
    }
    call->count++;
    /* A fetch that computes in this thread is work, not a wait for input. */
    int64_t waited = clock_ns(CLOCK_MONOTONIC) - began - (clock_ns(CLOCK_THREAD_CPUTIME_ID) - busy);
    TurnState *state = call->state;
    if (state != NULL && state->held && waited <= CP_STALL_NS && may_compute(state)) {
        state->stall_ns += (waited - state->stall_ns) >> 2; /* rounds down, as Python does */
        note_wait(state, waited);
        show_input_wait(state, 0);
        return item;
    }
    PyObject *done = PyObject_CallFunction(call->after, "L", (long long)waited);
    Py_XDECREF(done);
    if (done == NULL)
        Py_CLEAR(item);
    return item;
}

static PyObject *module_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"real", "attach", "begin", "after", "after_graded", "is_grad_enabled", "taker", NULL};
    PyObject *real, *attach, *slow, *after, *after_graded, *is_grad_enabled;
    unsigned long taker;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "OOOOOOk:ModuleCall", names, &real, &attach, &slow, &after,
                                     &after_graded, &is_grad_enabled, &taker))
        return NULL;
    Point *call = (Point *)PyType_GenericAlloc(type, 0);
    if (call == NULL)
        return NULL;
    call->call = module_call;
    call->real = Py_NewRef(real);
    call->attach = Py_NewRef(attach);
    call->slow = Py_NewRef(slow);
    call->after = Py_NewRef(after);
    call->after_graded = Py_NewRef(after_graded);
    call->is_graded_told = 1;
    call->is_grad_enabled = Py_NewRef(is_grad_enabled);
    call->taker = taker;
    return (PyObject *)call;
}

static PyObject *fetch_new(PyTypeObject *type, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"real", "attach", "before", "after", NULL};
    PyObject *real, *attach, *slow, *after;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "OOOO:FetchCall", names, &real, &attach, &slow, &after))
        return NULL;
    Point *call = (Point *)PyType_GenericAlloc(type, 0);
    if (call == NULL)
        return NULL;
    call->call = fetch_call;
    call->real = Py_NewRef(real);
    call->attach = Py_NewRef(attach);
    call->slow = Py_NewRef(slow);
    call->after = Py_NewRef(after);
    return (PyObject *)call;
}

/* Binds as a function does, so that module.__call__ is an ordinary bound method. */
static PyObject *stand_in_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* A function in every other respect too: torch's compiler and `inspect` take it for the one it stands in for. */
static PyObject *stand_in_getattr(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return found;
    PyErr_Clear();
    return PyObject_GetAttr(((Point *)self)->real, name);
}

static PyObject *stand_in_class(Point *call, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)Py_TYPE(call->real));
}

static PyObject *stand_in_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyObject_GetAttrString(self, "__qualname__"); /* by name, as a function is: a copy is itself */
}

static PyMethodDef stand_in_methods[] = {
    {"__reduce__", stand_in_reduce, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef point_members[] = {
    {"depth", T_INT, offsetof(Point, depth), 0, "1 inside an outermost module call"},
    {"count", T_ULONG, offsetof(Point, count), 0, "how many outermost calls, or items, there were"},
    {"taker", T_ULONG, offsetof(Point, taker), 0, "the thread whose outermost calls are points"},
    {"watch", T_OBJECT, offsetof(Point, watch), 0, "called before a call in a thread that takes no turns, or None"},
    {"is_graded_told", T_BOOL, offsetof(Point, is_graded_told), 0, "whether a call with gradients may end an iteration"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Point, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Point, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Point, weak), READONLY, NULL},
    {NULL},
};

static PyGetSetDef point_getset[] = {
    {"state", (getter)point_get_state, (setter)point_set_state, "the TurnState of this process, or None", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyGetSetDef stand_in_getset[] = {
    {"state", (getter)point_get_state, (setter)point_set_state, "the TurnState of this process, or None", NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__class__", (getter)stand_in_class, NULL, NULL, NULL},
    {NULL},
};

#define POINT_SLOTS(doc, make)                                                                                      \
    {Py_tp_doc, doc}, {Py_tp_new, make}, {Py_tp_dealloc, point_dealloc}, {Py_tp_traverse, point_traverse},          \
        {Py_tp_clear, point_clear}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, point_members}

#define STAND_IN_SLOTS(doc, make)                                                                                   \
    POINT_SLOTS(doc, make), {Py_tp_getset, stand_in_getset}, {Py_tp_descr_get, stand_in_get},                       \
        {Py_tp_getattro, stand_in_getattr}, {Py_tp_methods, stand_in_methods}

#define POINT_SPEC(type, more)                                                                                      \
    {.name = "carpool._native.hot_path." type, .basicsize = sizeof(Point),                                          \
     .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | (more)}

static PyType_Slot soon_slots[] = {
    POINT_SLOTS("hook(optimizer, args, kwargs)", soon_new), {Py_tp_getset, point_getset}, {0, NULL}};
static PyType_Slot step_slots[] = {
    POINT_SLOTS("hook(optimizer, args, kwargs)", step_new), {Py_tp_getset, point_getset}, {0, NULL}};
static PyType_Slot module_slots[] = {STAND_IN_SLOTS("Stands in for torch.nn.Module.__call__.", module_new), {0, NULL}};
static PyType_Slot fetch_slots[] = {
    STAND_IN_SLOTS("Stands in for the __next__ of a DataLoader's iterator.", fetch_new), {0, NULL}};

static struct PyModuleDef hot_path_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "carpool._native.hot_path",
    .m_doc = "What the agent does in every iteration.",
    .m_size = -1,
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec spec, PyType_Slot *slots)
{
    spec.slots = slots;
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(&spec);
    return type != NULL && PyModule_AddType(module, type) == 0 ? type : NULL; /* the module, or we, keep it for good */
}

PyMODINIT_FUNC PyInit_hot_path(void)
{
    const PyType_Spec soon = POINT_SPEC("SoonHook", 0), step = POINT_SPEC("StepHook", 0);
    const PyType_Spec call = POINT_SPEC("ModuleCall", Py_TPFLAGS_METHOD_DESCRIPTOR);
    const PyType_Spec fetch = POINT_SPEC("FetchCall", Py_TPFLAGS_METHOD_DESCRIPTOR);
    PyObject *module = PyModule_Create(&hot_path_module);
    if (module == NULL || (turn_state_type = add_type(module, state_spec, state_slots)) == NULL
        || add_type(module, soon, soon_slots) == NULL || add_type(module, step, step_slots) == NULL
        || add_type(module, call, module_slots) == NULL || add_type(module, fetch, fetch_slots) == NULL
        || PyModule_AddIntConstant(module, "CONTRACT", CP_HOT_PATH_CONTRACT) < 0)
        Py_CLEAR(module);
    return module;
}
