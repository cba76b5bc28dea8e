"""The CUDA driver by ctypes, as far as `attack.py` needs it. Standard library only."""

import ctypes

OUT_OF_MEMORY = 2


class NotHereError(Exception):
    """The driver or the machine lacks what the attack needs."""


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("rest", ctypes.c_ubyte * 56),
    ]


class ArrayText(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    ]


class NodeParams(ctypes.Structure):
    _fields_ = [
        ("pool", PoolProps),
        ("access", ctypes.c_void_p),
        ("access_count", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("at", ctypes.c_ulonglong),
    ]


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def word():
    return ctypes.c_ulonglong()


class Driver:
    """The driver through some door; `find` gives a function by its symbol."""

    def __init__(self, find=None):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.find = find or (lambda name: getattr(self.library, name))
        self.context = ctypes.c_void_p()
        self.good("cuInit", 0)
        self.good("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.good("cuCtxSetCurrent", self.context)

    def __call__(self, name, *arguments):
        try:
            function = self.find(name)
        except AttributeError:
            raise NotHereError(f"this driver has no {name}") from None
        return function(*arguments)

    def good(self, name, *arguments):
        result = self(name, *arguments)
        if result:
            raise NotHereError(f"{name} answered {result}")

    def made(self, name, *arguments):
        """Whether the driver gave what was asked for; anything but success and out of memory ends the attempt."""
        result = self(name, *arguments)
        if result not in (0, OUT_OF_MEMORY):
            raise NotHereError(f"{name} answered {result}")
        return result == 0

    def plain(self, size):
        return self.made("cuMemAlloc_v2", ctypes.byref(word()), ctypes.c_size_t(size))


def twice(make, size):
    """Bytes held after asking two times."""
    return sum(size for _ in range(2) if make(size))
