/* What Python cannot do with the shared page: exchange a word in one atomic step, and live on when a program cuts the
 * page's file short. wire/page.py says when each is used.
 *
 * A read beyond the end of a mapped file raises SIGBUS. Once `guard` was called, the handler below puts empty memory in
 * place of a guarded page, and the read goes on and finds zeroes. A SIGBUS anywhere else ends the process as ever. Only
 * the daemon guards pages: a program's signals are its own. A guard is an object; wire/page.py lets it end with the mapping.
 *
 * Threads: any. Lock: the interpreter's; the word itself may be changed by other processes at any time. The handler takes
 * no lock: an entry of the list of guarded pages is written whole before its beginning, which makes it count. */
#define _GNU_SOURCE
#define Py_LIMITED_API 0x030B0000 /* one library for every Python from 3.11 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "protocol.h"
#include "words.h"

static PyObject *swap(PyObject *self, PyObject *args)
{
    Py_buffer view;
    Py_ssize_t at;
    unsigned long long before, after;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*nKK:swap", &view, &at, &before, &after))
        return NULL;
    bool is_inside = at >= 0 && at < view.len / (Py_ssize_t)sizeof(cp_word) && (uintptr_t)view.buf % sizeof(cp_word) == 0;
    uint64_t expected = before;
    bool is_swapped = is_inside && atomic_compare_exchange_strong((cp_word *)view.buf + at, &expected, after);
    PyBuffer_Release(&view);
    if (!is_inside) {
        PyErr_SetString(PyExc_IndexError, "the word lies inside its page");
        return NULL;
    }
    return PyBool_FromLong(is_swapped);
}

#define GUARD "carpool.guard"
#define GUARDED_MAX 16384 /* more jobs than one machine has; a page beyond that is not guarded */

static struct guarded {
    _Atomic uintptr_t at; /* 0: nobody's entry */
    _Atomic size_t size;
} all_guarded[GUARDED_MAX];
static atomic_ulong cut_count;
static bool is_watching;

static struct guarded *guarded_around(uintptr_t address)
{
    for (struct guarded *each = all_guarded; each < all_guarded + GUARDED_MAX; each++)
        if (each->at && address >= each->at && address - each->at < each->size)
            return each;
    return NULL;
}

static void on_bus_error(int number, siginfo_t *facts, void *context)
{
    int saved = errno;
    (void)context;
    struct guarded *found = facts->si_code > 0 ? guarded_around((uintptr_t)facts->si_addr) : NULL;
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (found && mmap((void *)found->at, found->size, PROT_READ | PROT_WRITE, how, -1, 0) != MAP_FAILED) {
        cut_count++;
    } else { /* not ours: it happens again, or is sent again, and ends the process */
        signal(number, SIG_DFL);
        if (facts->si_code <= 0)
            raise(number);
    }
    errno = saved;
}

static bool watch(void)
{
    struct sigaction act = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&act.sa_mask);
    is_watching = is_watching || sigaction(SIGBUS, &act, NULL) == 0;
    return is_watching;
}

/* The guard ends with its capsule: the entry is nobody's again, so that what is mapped there next is not taken for it. */
static void end_guard(PyObject *capsule)
{
    struct guarded *entry = PyCapsule_GetPointer(capsule, GUARD);
    if (entry != NULL)
        entry->at = 0;
}

static PyObject *guard(PyObject *self, PyObject *args)
{
    Py_buffer view;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*:guard", &view))
        return NULL;
    struct guarded *entry = all_guarded;
    while (entry < all_guarded + GUARDED_MAX && entry->at)
        entry++;
    bool is_guarded = entry < all_guarded + GUARDED_MAX && watch();
    PyObject *found = is_guarded ? PyCapsule_New(entry, GUARD, end_guard) : Py_NewRef(Py_None);
    if (is_guarded && found != NULL) {
        entry->size = (size_t)view.len;
        entry->at = (uintptr_t)view.buf;
    }
    PyBuffer_Release(&view);
    return found;
}

static PyObject *cuts(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyLong_FromUnsignedLong(cut_count);
}

static PyMethodDef swap_methods[] = {
    {"swap", swap, METH_VARARGS, "swap(words, index, before, after): put `after` where `before` stands; whether it did"},
    {"guard", guard, METH_VARARGS, "guard(words): what keeps this process alive, while it is kept, when their file is cut short; or None"},
    {"cuts", cuts, METH_NOARGS, "cuts(): how many guarded pages were found cut short"},
    {NULL},
};

static struct PyModuleDef swap_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "carpool._native.swap",
    .m_doc = "What Python cannot do with the shared page.",
    .m_size = -1,
    .m_methods = swap_methods,
};

PyMODINIT_FUNC PyInit_swap(void)
{
    PyObject *module = PyModule_Create(&swap_module);
    if (module != NULL && PyModule_AddIntConstant(module, "CONTRACT", CP_SWAP_CONTRACT) < 0)
        Py_CLEAR(module);
    return module;
}
