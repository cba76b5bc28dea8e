"""Ways to find the driver's functions, each an attack of `attack.py`: is the one found the limited one?"""

import ctypes
import shutil
import subprocess
import tempfile

from attack_driver import Driver, NotHereError, twice, word

PER_THREAD = 2
NEW_NAMESPACE = -1
DEEPBIND = 8


def driver_path():
    ctypes.CDLL("libcuda.so.1")
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.partition("/")[2].strip()
            if "libcuda.so" in path or "stub_cuda" in path:
                return "/" + path
    raise NotHereError("the driver's file was not found")


def door_global(size):
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    whole = ctypes.CDLL(None)
    return twice(Driver(lambda name: getattr(whole, name)).plain, size)


def door_path(size):
    library = ctypes.CDLL(driver_path())
    return twice(Driver(lambda name: getattr(library, name)).plain, size)


def door_deepbind(size):
    library = ctypes.CDLL(driver_path(), mode=ctypes.RTLD_LOCAL | DEEPBIND)
    return twice(Driver(lambda name: getattr(library, name)).plain, size)


def by_proc(flags):
    library = ctypes.CDLL("libcuda.so.1")

    def find(name):
        found, status = ctypes.c_void_p(), ctypes.c_int()
        base = name.removesuffix("_v2")
        library.cuGetProcAddress_v2(
            base.encode(), ctypes.byref(found), 12000, ctypes.c_ulonglong(flags), ctypes.byref(status)
        )
        if not found.value:
            raise NotHereError(f"cuGetProcAddress does not know {base}")
        return prototype(found.value)

    return find


def prototype(address):
    """The C function at an address; ctypes lets it take more arguments than declared."""
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)


def door_proc(size):
    return twice(Driver(by_proc(0)).plain, size)


def door_proc_per_thread(size):
    find = by_proc(PER_THREAD)
    cuda = Driver(find)
    return twice(lambda size: cuda.made("cuMemAllocAsync", ctypes.byref(word()), ctypes.c_size_t(size), None), size)


def raw_finder(library):
    """The C library's own dlsym, asked for past whatever stands before it."""
    libc = ctypes.CDLL("libc.so.6")
    if not hasattr(libc, "dlsym"):
        raise NotHereError("this C library keeps dlsym elsewhere")
    libc.dlsym.restype = ctypes.c_void_p
    libc.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

    def find(name):
        address = libc.dlsym(library, name.encode())
        if not address:
            raise NotHereError(f"no {name}")
        return prototype(address)

    return find


def door_own_dlsym(size):
    return twice(Driver(raw_finder(ctypes.CDLL(driver_path())._handle)).plain, size)


NEXT = """
#define _GNU_SOURCE
#include <dlfcn.h>
int grab(unsigned long size) {
    unsigned long long at;
    int (*allocate)(unsigned long long *, unsigned long) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return allocate ? allocate(&at, size) : 999;
}
"""
NEXT_MAIN = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), grab(unsigned long);
int main(int count, char **words) {
    void *context;
    unsigned long size = strtoul(words[count - 1], NULL, 10);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    int first = grab(size);
    printf("%d %d\\n", first, grab(size));
    return 0;
}
"""


def build(text, target, *more):
    if shutil.which("cc") is None:
        raise NotHereError("no C compiler to make such a library with")
    subprocess.run(
        ["cc", *more[:1], "-fPIC", "-x", "c", "-", "-x", "none", *more[1:], "-o", target],
        input=text,
        text=True,
        check=True,
        timeout=60,
    )


def door_next(size):
    """A library behind the preloaded one that looks for what comes behind itself."""
    with tempfile.TemporaryDirectory() as place:
        build(NEXT, f"{place}/next.so", "-shared", driver_path())
        build(NEXT_MAIN, f"{place}/app", "-O1", f"{place}/next.so", driver_path())
        done = subprocess.run([f"{place}/app", str(size)], capture_output=True, text=True, timeout=60)
    if done.returncode or "999" in done.stdout:
        raise NotHereError(f"nothing was found so: {done.stderr[-200:]}")
    return sum(size for code in done.stdout.split() if code == "0")


DEEP = """
int cuMemAlloc_v2(unsigned long long *at, unsigned long size);
int grab(unsigned long size) { unsigned long long at; return cuMemAlloc_v2(&at, size); }
"""


def door_deep_library(size):
    """A library that is linked to the driver and opened so that its own libraries come first."""
    with tempfile.TemporaryDirectory() as place:
        library = f"{place}/deep.so"
        build(DEEP, library, "-shared", driver_path())
        Driver()
        deep = ctypes.CDLL(library, mode=ctypes.RTLD_LOCAL | DEEPBIND)
        return twice(lambda size: deep.grab(ctypes.c_ulong(size)) == 0, size)


def door_namespace(size):
    """A second copy of the driver, in a namespace that has no preloaded library."""
    libc = ctypes.CDLL("libc.so.6")
    if not hasattr(libc, "dlmopen"):
        raise NotHereError("this C library keeps dlmopen elsewhere")
    libc.dlmopen.restype = ctypes.c_void_p
    libc.dlmopen.argtypes = [ctypes.c_long, ctypes.c_char_p, ctypes.c_int]
    handle = libc.dlmopen(NEW_NAMESPACE, driver_path().encode(), 2)
    if not handle:
        raise NotHereError("dlmopen of the driver failed")
    return twice(Driver(raw_finder(handle)).plain, size)
