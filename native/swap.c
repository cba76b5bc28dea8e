/* One atomic exchange of a word of the shared page, for Python, which has none: wire/page.py says when it is used.
 *
 * Threads: any. Lock: the interpreter's; the word itself may be changed by other processes at any time. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

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

static PyMethodDef swap_methods[] = {
    {"swap", swap, METH_VARARGS, "swap(words, index, before, after): put `after` where `before` stands; whether it did"},
    {NULL},
};

static struct PyModuleDef swap_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "carpool._native.swap",
    .m_doc = "One atomic exchange of a word of the shared page.",
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
