/* Finding a program's tensors and copying their bytes, as an extension module; agent/parking/find_and_copy.py says when
 * it is used.
 *
 * find_objects  the objects of some classes among all that the collector knows: a program with torch has 300,000, and a
 *               list of them takes longer to make and to drop than to look through
 * copy          bytes past the caches: a copy of many megabytes through them reads its target first, only to overwrite it
 *
 * Threads: `find_objects` runs under the interpreter's lock and calls no code that could let go of it; `copy` runs
 * without it.
 */
#define Py_LIMITED_API 0x030B0000 /* one library for every Python from 3.11 on */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "protocol.h"

/* One library serves every Python from 3.11 on (Py_LIMITED_API, abi3). This is there from 3.12 on. */
extern void PyUnstable_GC_VisitObjects(int (*look)(PyObject *, void *), void *arg) __attribute__((weak));

/* Python 3.11 has no such function: there the collector's own lists are walked. Both structs are the same in all of it. */
#define GENERATIONS 3
#define POINTER_MASK (~(uintptr_t)3) /* the lowest bits are flags */
typedef struct {
    uintptr_t next, previous;
} Head;
struct generation {
    Head head;
    int threshold, count;
};

static Head *next_of(const Head *head)
{
    return (Head *)head->next; /* no flags here while no collection runs */
}

static Head *previous_of(const Head *head)
{
    return (Head *)(head->previous & POINTER_MASK);
}

/* --- find_objects ---------------------------------------------------------------------------------------------------- */

/* The classes looked for, in a table with many holes: nearly every object's class meets one at once. */
typedef struct {
    PyTypeObject **slots;
    size_t mask;
    PyObject **found; /* each with a reference */
    size_t count, room;
    bool is_short; /* of memory */
} Search;

static size_t slot_of(const Search *search, PyTypeObject *type)
{
    size_t at = ((uintptr_t)type >> 4) & search->mask;
    while (search->slots[at] != NULL && search->slots[at] != type)
        at = (at + 1) & search->mask;
    return at;
}

/* 1 to go on, 0 to stop. Makes no Python object, so that no collection moves the lists meanwhile. */
static int look_at(PyObject *object, void *arg)
{
    Search *search = arg;
    if (search->slots[slot_of(search, Py_TYPE(object))] == NULL)
        return 1;
    if (search->count == search->room) {
        size_t room = search->room ? 2 * search->room : 1024;
        PyObject **found = realloc(search->found, room * sizeof *found);
        if (found == NULL) {
            search->is_short = true;
            return 0;
        }
        search->found = found;
        search->room = room;
    }
    search->found[search->count++] = Py_NewRef(object);
    return 1;
}

/* The lists of the collector. An object that was made just now is the last in the youngest generation's list, so what
 * follows it is that list's head; the others stand behind it. Their thresholds must be those that Python knows. */
static struct generation *generations(PyObject *fresh)
{
    Head *last = (Head *)fresh - 1;
    if (!PyObject_GC_IsTracked(fresh) || previous_of(next_of(last)) != last)
        return NULL;
    struct generation *all = (struct generation *)next_of(last);
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *known = gc == NULL ? NULL : PyObject_CallMethod(gc, "get_threshold", NULL);
    Py_XDECREF(gc);
    bool is_so = known != NULL && PyTuple_CheckExact(known) && PyTuple_Size(known) == GENERATIONS;
    for (int each = 0; is_so && each < GENERATIONS; each++)
        is_so = PyLong_AsLong(PyTuple_GetItem(known, each)) == all[each].threshold;
    Py_XDECREF(known);
    PyErr_Clear();
    return is_so ? all : NULL;
}

/* From both ends until they meet: the time goes into waiting for memory, and two can be waited for at once. */
static void look_along(Head *head, Search *search)
{
    Head *first = next_of(head), *last = previous_of(head);
    bool is_over = first == head;
    while (!is_over) {
        Head *next = next_of(first), *previous = previous_of(last);
        is_over = first == last || next == last;
        if (!look_at((PyObject *)(first + 1), search) || (first != last && !look_at((PyObject *)(last + 1), search)))
            return;
        first = next;
        last = previous;
    }
}

static bool look_at_all(Search *search)
{
    if (PyUnstable_GC_VisitObjects != NULL) {
        PyUnstable_GC_VisitObjects(look_at, search);
        return true;
    }
    if (Py_Version >> 16 != 0x030B)
        return false;
    PyObject *fresh = PyList_New(0);
    struct generation *all = fresh == NULL ? NULL : generations(fresh);
    for (int each = 0; all != NULL && each < GENERATIONS; each++)
        look_along(&all[each].head, search);
    Py_XDECREF(fresh);
    return all != NULL;
}

static PyObject *as_list(const Search *search)
{
    PyObject *list = PyList_New((Py_ssize_t)search->count);
    for (size_t each = 0; each < search->count; each++) {
        if (list != NULL)
            PyList_SetItem(list, (Py_ssize_t)each, search->found[each]);
        else
            Py_DECREF(search->found[each]);
    }
    return list;
}

static PyObject *find_objects(PyObject *self, PyObject *classes)
{
    (void)self;
    PyObject *row = PySequence_Tuple(classes);
    if (row == NULL)
        return NULL;
    Search search = {.mask = 255};
    while (search.mask < 8 * (size_t)PyTuple_Size(row))
        search.mask = 2 * search.mask + 1;
    search.slots = calloc(search.mask + 1, sizeof *search.slots);
    PyObject *list = NULL;
    bool is_seen = false;
    if (search.slots != NULL) {
        for (Py_ssize_t each = 0; each < PyTuple_Size(row); each++) {
            PyTypeObject *type = (PyTypeObject *)PyTuple_GetItem(row, each);
            search.slots[slot_of(&search, type)] = type;
        }
        is_seen = look_at_all(&search);
        list = as_list(&search);
    }
    if (search.slots == NULL || search.is_short) {
        Py_CLEAR(list);
        PyErr_NoMemory();
    } else if (!is_seen && list != NULL) {
        Py_DECREF(list);
        list = Py_NewRef(Py_None); /* this Python's lists are not where they should be */
    }
    free(search.found);
    free(search.slots);
    Py_DECREF(row);
    return list;
}

/* --- copy ------------------------------------------------------------------------------------------------------ */

#define KERNEL_PAGE_BYTES 4096
#define PAGES 4 /* at once: the memory is busy with several rows then */

#ifdef __SSE2__
static void copy_pages(char *to, const char *from)
{
    for (size_t line = 0; line < KERNEL_PAGE_BYTES; line += 64) {
        for (size_t at = line; at < PAGES * KERNEL_PAGE_BYTES; at += KERNEL_PAGE_BYTES) {
            const __m128i *source = (const __m128i *)(from + at);
            __m128i *target = (__m128i *)(to + at);
            __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
            __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
            _mm_stream_si128(target, a);
            _mm_stream_si128(target + 1, b);
            _mm_stream_si128(target + 2, c);
            _mm_stream_si128(target + 3, d);
        }
    }
}

static void copy_bytes(char *to, const char *from, size_t count)
{
    size_t odd = -(uintptr_t)to % sizeof(__m128i); /* such stores need an aligned target */
    if (count >= odd + PAGES * KERNEL_PAGE_BYTES) {
        memcpy(to, from, odd);
        to += odd, from += odd, count -= odd;
        for (; count >= PAGES * KERNEL_PAGE_BYTES; count -= PAGES * KERNEL_PAGE_BYTES) {
            copy_pages(to, from);
            to += PAGES * KERNEL_PAGE_BYTES, from += PAGES * KERNEL_PAGE_BYTES;
        }
        _mm_sfence();
    }
    memcpy(to, from, count);
}
#else
static void copy_bytes(char *to, const char *from, size_t count)
{
    memcpy(to, from, count);
}
#endif

static PyObject *copy(PyObject *self, PyObject *args)
{
    unsigned long long to, from, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKK:copy", &to, &from, &count))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    copy_bytes((char *)(uintptr_t)to, (const char *)(uintptr_t)from, count);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef find_and_copy_methods[] = {
    {"find_objects", find_objects, METH_O, "find_objects(classes): objects of exactly these classes; None where it cannot look"},
    {"copy", copy, METH_VARARGS, "copy(to, from, count): bytes between two places that do not overlap"},
    {NULL},
};

static struct PyModuleDef find_and_copy_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "carpool._native.find_and_copy",
    .m_doc = "Finding a program's tensors and copying their bytes.",
    .m_size = -1,
    .m_methods = find_and_copy_methods,
};

PyMODINIT_FUNC PyInit_find_and_copy(void)
{
    PyObject *module = PyModule_Create(&find_and_copy_module);
    if (module != NULL && PyModule_AddIntConstant(module, "CONTRACT", CP_FIND_AND_COPY_CONTRACT) < 0)
        Py_CLEAR(module);
    return module;
}
