"""Copies, fills and prefetches by every form the driver has, named on the standard input, with a wait before each.

`FORM BYTES` asks for one: it says `ready`, waits for a line, calls the form and says what came of it: `right` (or
`wrong`) if the call succeeded and the bytes are (not) where they belong, else the driver's error. Bytes come and
go in small pieces. It knows nothing of carpool.
"""

import ctypes
import re
import sys

CARD_BYTES, LINE = 4 << 20, 1024
cuda = ctypes.CDLL("libcuda.so.1")
word, half, address = ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p
PIECE = 256 << 10


def good(code):
    assert code == 0, code


class Array2D(ctypes.Structure):
    _fields_ = [("width", word), ("height", word), ("format", ctypes.c_int), ("channels", half)]


def shape(number, pointer, *, is_volume):
    """CUDA_MEMCPY2D or CUDA_MEMCPY3D, of 32 or 64 bits."""
    fields = []
    for side in ("src", "dst"):
        fields += [(side + name, number) for name in ("XInBytes", "Y", *(("Z", "LOD") if is_volume else ()))]
        fields += [(side + "Type", ctypes.c_int), (side + "Host", address), (side + "Device", pointer)]
        fields += [(side + "Array", address), *([(side + "Context", address)] if is_volume else [])]
        fields += [(side + name, number) for name in ("Pitch", *(("Height",) if is_volume else ()))]
    fields += [(name, number) for name in ("width", "height", *(("depth",) if is_volume else ()))]
    return type("Shape", (ctypes.Structure,), {"_fields_": fields})


class Pointer(ctypes.Structure):
    _fields_ = [("at", ctypes.c_ulonglong), ("row", word), ("layer", word), ("hint", ctypes.c_int * 2)]


class Operand(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("pointer", Pointer)]


class Operation(ctypes.Structure):
    _fields_ = [("src", Operand), ("dst", Operand), ("extent", word * 3), ("order", ctypes.c_int), ("flags", half)]


class Memory:
    """Some bytes on the host, on the card (below 4 GiB: every form can name them) and in an array."""

    def __init__(self):
        self.host = ctypes.create_string_buffer(CARD_BYTES)
        low, self.array = half(), address()
        good(cuda.cuMemAlloc(ctypes.byref(low), half(CARD_BYTES)))
        self.card = low.value
        good(cuda.cuArrayCreate_v2(ctypes.byref(self.array), ctypes.byref(Array2D(CARD_BYTES, 0, 1, 1))))

    def write(self, kind, data):
        if kind == "H":
            self.host.raw = data.ljust(CARD_BYTES, b"\0")
        for at in range(0, len(data), PIECE):
            piece = data[at : at + PIECE]
            if kind == "D":
                ctypes.memmove(self.card + at, piece, len(piece))  # the stand-in's card lies in the host's memory
            if kind == "A":
                good(cuda.cuMemcpyHtoA_v2(self.array, word(at), piece, word(len(piece))))

    def read(self, kind, count):
        if kind == "H":
            return self.host.raw[:count]
        if kind == "D":
            return ctypes.string_at(self.card, count)
        back = ctypes.create_string_buffer(PIECE)
        found = b""
        while len(found) < count:
            good(cuda.cuMemcpyAtoH_v2(back, self.array, word(len(found)), word(PIECE)))
            found += back.raw
        return found[:count]


class Call:
    """How a form is called with so many bytes, the kinds of memory on both sides, and what arrives."""

    def __init__(self, form, count, src, dst, stream):
        self.form, self.count, self.src, self.dst = form, count, src, dst
        is_old = not re.search(r"_v2|Peer|Batch|Prefetch|Attributes|Memset\w+Async|cuMemcpy(Async)?(_pt|$)", form)
        self.number, self.pointer = (half, half) if is_old else (word, ctypes.c_ulonglong)
        self.failed = [] if "_v2" in form else [ctypes.byref(word())]
        self.kinds = "D", "D"
        self.expected = (bytes(range(251)) * (count // 251 + 1))[:count]
        forms = [
            (r"cuMemcpy[HDA]to", self.between_kinds),
            (r"cuMemcpyPeer", self.peer),
            (r"cuMemcpyBatch", self.batch),
            (r"cuMemcpyWith", self.with_attributes),
            (r"cuMemcpy3D(?:Batch|With)", self.shapes),
            (r"cuMemcpy[23]D", self.shape),
            (r"cuMemcpy", self.plain),
            (r"cuMemset", self.fill),
            (r"cuMemBatchDecompress", self.unpack),
            (r"", self.prefetch),
        ]
        arguments = next(found for prefix, found in forms if re.match(prefix, form))
        self.arguments = arguments() + ([stream] if "Async" in form else [])

    def plain(self):
        return [self.pointer(self.dst.card), self.pointer(self.src.card), word(self.count)]

    def with_attributes(self):
        return [*self.plain(), None]

    def unpack(self):
        return [None, word(0), half(0), None]

    def between_kinds(self):
        found = re.match(r"cuMemcpy([HDA])to([HDA])", self.form)
        self.kinds = found[1], found[2]
        ends = []
        for kind, memory in ((found[2], self.dst), (found[1], self.src)):
            places = {"H": [memory.host], "D": [self.pointer(memory.card)], "A": [memory.array, self.number(0)]}
            ends += places[kind]
        return [*ends, self.number(self.count)]

    def peer(self):
        return [self.pointer(self.dst.card), address(), self.pointer(self.src.card), address(), word(self.count)]

    def batch(self):
        lists = [(ctypes.c_ulonglong * 2)(at.card, at.card + PIECE) for at in (self.dst, self.src)]
        return [*lists, (word * 2)(PIECE, self.count - PIECE), word(2), None, None, word(0), *self.failed]

    def shapes(self):
        lines = self.count // LINE
        sides = [Operand(1, Pointer(at.card, LINE, lines, (1, 0))) for at in (self.src, self.dst)]
        operation = Operation(*sides, (LINE, lines, 1), 1, 0)
        if "With" in self.form:
            return [ctypes.byref(operation), ctypes.c_ulonglong(0)]
        return [word(1), ctypes.byref(operation), *self.failed, ctypes.c_ulonglong(0)]

    def shape(self):
        is_volume, lines = self.form.startswith("cuMemcpy3D"), self.count // LINE
        made = shape(self.number, self.pointer, is_volume=is_volume)(width=LINE, height=lines)
        for side, at in (("src", self.src), ("dst", self.dst)):
            for name, value in (("Type", 2), ("Device", at.card), ("Pitch", LINE)):
                setattr(made, side + name, value)
        if is_volume:
            made.height, made.depth, made.srcHeight, made.dstHeight = lines // 2, 2, lines // 2, lines // 2
        return [ctypes.byref(made)]

    def fill(self):
        found = re.match(r"cuMemsetD(2D)?(\d+)", self.form)
        each = int(found[2]) // 8
        value = {1: ctypes.c_ubyte(0x5A), 2: ctypes.c_ushort(0x5A5B), 4: half(0x5A5B5C5D)}[each]
        self.expected = bytes(value) * (self.count // each)
        if found[1]:
            lines = [self.number(LINE // each), self.number(self.count // LINE)]
            return [self.pointer(self.dst.card), self.number(LINE), value, *lines]
        return [self.pointer(self.dst.card), value, self.number(self.count // each)]

    def prefetch(self):
        self.expected = b""  # stays where it is
        if "Batch" in self.form:
            lists = [(ctypes.c_ulonglong * 1)(self.src.card), (word * 1)(self.count)]
            return [*lists, word(1), None, None, word(0), ctypes.c_ulonglong(0)]
        # the place of the second form is a structure of eight bytes, handed over by value
        to = [ctypes.c_ulonglong(1), half(0)] if "_v2" in self.form else [0]
        return [self.pointer(self.src.card), word(self.count), *to]


def main():
    context, stream = address(), address()
    good(cuda.cuInit(0))
    good(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    good(cuda.cuCtxSetCurrent(context))
    good(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    src, dst = Memory(), Memory()
    print("begun", flush=True)
    for line in sys.stdin:
        form, count = line.split()[0], int(line.split()[1])
        call = Call(form, count, src, dst, stream)
        src.write(call.kinds[0], call.expected)
        dst.write(call.kinds[1], b"\0" * count)
        print("ready", flush=True)
        sys.stdin.readline()
        code = cuda[form](*call.arguments)
        is_right = code == 0 and dst.read(call.kinds[1], len(call.expected)) == call.expected
        print(code or ("right" if is_right else "wrong"), flush=True)
    print("end", flush=True)


main()
