"""Arrays and mipmaps under the guest: counted by a sum of our own, as a driver tells what one needs only where it has
no memory. The account is never below the stand-in's, whose layout is written down apart from ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carpool.wire import page as wire
from carpool.wire.page import Page
from tests.native.arrays import CUBEMAP, DEFERRED, FLOAT, LAYERED, SPARSE, VIDEO, Array, formats
from tests.native.gpu import MIB, Built, environment, live_bytes, true_bytes
from tests.native.scripts import Script

KIB = 1024
INVALID_VALUE, OUT_OF_MEMORY = 1, 2
MAKER = """
class Shape(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_size_t * 3), ("format", ctypes.c_int), ("channels", ctypes.c_uint),
                ("flags", ctypes.c_uint)]
needs = (ctypes.c_size_t * 4)()
for line in sys.stdin:
    *sizes, format, channels, flags, levels = map(int, line.split())
    made, shape = ctypes.c_void_p(), Shape((ctypes.c_size_t * 3)(*sizes), format, channels, flags)
    if levels:
        result = cuda.cuMipmappedArrayCreate(ctypes.byref(made), ctypes.byref(shape), levels)
    else:
        result = cuda.cuArray3DCreate_v2(ctypes.byref(made), ctypes.byref(shape))
    kind = "MipmappedArray" if levels else "Array"
    told = cuda[f"cu{kind}GetMemoryRequirements"](needs, made, 0)
    print(result, told, needs[0] if told == 0 else 0, flush=True)
    sys.stdin.readline()
    if result == 0:
        assert cuda[f"cu{kind}Destroy"](made) == 0
    print("gone", flush=True)
"""
Make = Callable[[Array], tuple[int, int, int]]


@pytest.fixture
def make(built: Built, page: Page, books: Path) -> Iterator[Make]:
    """Makes an array and lets it go: what was counted, what it took, what the driver says it needs."""
    page.words[wire.H_CAP] = 3000 * MIB
    with Script(environment(built, books, page=page.path), MAKER) as script:
        pid = script.process.pid

        def make(array: Array) -> tuple[int, int, int]:
            script.go(array.words)
            result, told, needs = map(int, script.line().split())
            assert result == 0, array
            assert told == (0 if array.flags & DEFERRED else INVALID_VALUE), array
            counted, taken = live_bytes(page, pid), true_bytes(books)[pid]
            script.go()
            assert script.line() == "gone"
            assert live_bytes(page, pid) == true_bytes(books)[pid] == 0
            return counted, taken, needs

        yield make


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (Array(1024, 1024), 4 * MIB),
        (Array(1024, 1024, levels=4), (4096 + 1024 + 256 + 64) * KIB),
        (Array(1024, 1024, levels=99), 5463 * KIB),  # to 1 x 1, where a level takes half a KiB
        (Array(1024, 1024, 8, flags=LAYERED), 32 * MIB),
        (Array(1024, 1024, 8, flags=LAYERED, levels=2), 40 * MIB),
        (Array(512, 512, 6, flags=CUBEMAP, levels=2), 6 * (1024 + 256) * KIB),
        (Array(256, 256, 64), 16 * MIB),
        (Array(256, 256, 64, levels=2), 18 * MIB),
        (Array(1000, 257), 4032 * 512 + 4096 - 4032 * 512 % 4096),
        (Array(16, 16, format=0x01), 64 * KIB),
        (Array(4096), 128 * KIB),
        (Array(4096, 4096, format=0x91), 8 * MIB),
        (Array(4096, 4096, format=0x9E), 16 * MIB),
        (Array(1024, 1024, format=0x10, channels=4), 8 * MIB),
    ],
)
def test_an_array_is_counted_with_all_its_levels_and_layers(make: Make, array: Array, size: int) -> None:
    size = -(-size // (64 * KIB)) * 64 * KIB
    assert make(array) == (size, size, 0)


@pytest.mark.parametrize("flags", [DEFERRED, SPARSE, DEFERRED | SPARSE, DEFERRED | LAYERED])
@pytest.mark.parametrize("levels", [0, 5])
def test_an_array_without_memory_of_its_own_counts_nothing(make: Make, flags: int, levels: int) -> None:
    counted, taken, needs = make(Array(1024, 1024, 4, flags=flags, levels=levels))
    assert (max(0, counted), taken) == (0, 0)
    assert (needs >= 16 * MIB) == bool(flags & DEFERRED)


def test_no_format_is_counted_below_what_it_takes(make: Make) -> None:
    shapes = [(1, 0, 0), (1, 1000, 0), (65, 7, 0), (513, 300, 0), (640, 480, 3), (2048, 1025, 0), (33, 33, 33)]
    for format in formats():
        channels = [1, 2, 4] if format <= FLOAT else [4]
        for each in channels:
            for width, height, depth in shapes:
                for levels in (0, 3):
                    array = Array(width, height, depth, format=format, channels=each, levels=levels)
                    counted, taken, _ = make(array)
                    too_much = (
                        1 if format not in VIDEO else 3 if width >= 64 else 8
                    )  # planes may have rows of their own
                    assert taken <= counted <= too_much * taken, array


def test_a_mipmap_that_only_its_base_would_fit_is_refused(make: Make, page: Page) -> None:
    page.words[wire.H_CAP] = 5 * MIB
    make(Array(1024, 1024))
    with pytest.raises(AssertionError, match="Array"):
        make(Array(1024, 1024, levels=4))
