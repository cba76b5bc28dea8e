"""The stand-in driver by itself: kernels in C, faults of one's own and shared ones, memory of another process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from carpool.devices import stub
from carpool.testing import doors
from tests.native.gpu import MIB, Built, environment, true_bytes
from tests.native.probe import compile_c
from tests.native.scripts import Script

LAUNCH_FAILED = 719


@pytest.fixture
def env(built: Built, tmp_path: Path) -> dict[str, str]:
    found = environment(built, tmp_path / "books")
    del found["LD_PRELOAD"]
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def test_a_kernel_may_be_a_function_in_c(env: dict[str, str], tmp_path: Path, stack: ExitStack) -> None:
    source = tmp_path / "kernels.c"
    source.write_text(
        "void scale(void **p, const unsigned grid[3], const unsigned block[3]) {\n"
        "  int *at = *(int **)p[0]; for (int i = 0; i < *(int *)p[1]; i++) at[i] *= (int)(grid[1] * block[0]); }\n"
    )
    library = compile_c(tmp_path / "kernels.so", "-shared", "-fPIC", source)
    script = """
numbers = (ctypes.c_int * 4)(1, 2, 3, 4)
assert allocate(16) == 0
assert cuda.cuMemcpyHtoD_v2(at, numbers, ctypes.c_size_t(16)) == 0
assert launch(b"scale", at, ctypes.c_int(4)) == 0
assert cuda.cuMemcpyDtoH_v2(numbers, at, ctypes.c_size_t(16)) == 0
print(list(numbers))
"""
    found = stack.enter_context(Script(env | {"CARPOOL_STUB_KERNELS": str(library)}, script))
    assert found.line() == "[12, 24, 36, 48]"


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_fault_breaks_its_own_context_and_others_only_in_shared_mode(
    env: dict[str, str], stack: ExitStack, is_shared: bool
) -> None:
    if is_shared:
        env = env | {"CARPOOL_STUB_SHARED_FAULT": "1"}
    bystander = stack.enter_context(Script(env, "allocate(4096)\nwait()\nprint(allocate(4096))\n"))
    assert bystander.line() == "ready"
    culprit = stack.enter_context(Script(env, 'print(launch(b"fault"), cuda.cuCtxSynchronize(), allocate(4096))\n'))
    assert culprit.line() == f"0 {LAUNCH_FAILED} {LAUNCH_FAILED}"
    bystander.go()
    assert bystander.line() == (str(LAUNCH_FAILED) if is_shared else "0")
    later = stack.enter_context(Script(env, "print(allocate(4096))\n"))
    assert later.line() == "0"  # a context made after the fault is whole


IPC = """
handle = (ctypes.c_char * 64)()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
"""


def test_memory_shared_by_handle_is_the_same_memory_and_counts_once(
    env: dict[str, str], tmp_path: Path, stack: ExitStack
) -> None:
    giver = stack.enter_context(
        Script(
            env,
            IPC
            + """
assert allocate(1 << 20) == 0
assert cuda.cuMemsetD8_v2(at, 7, ctypes.c_size_t(1 << 20)) == 0
assert cuda.cuIpcGetMemHandle(handle, at) == 0
print(bytes(handle.raw).hex(), flush=True)
wait()
""",
        )
    )
    text = giver.line()
    taker = stack.enter_context(
        Script(
            env,
            IPC
            + f"""
import ctypes as c
whole = c.create_string_buffer(bytes.fromhex("{text}"), 64)
take = Handle.from_buffer_copy(whole)
assert cuda.cuIpcOpenMemHandle_v2(c.byref(at), take, 1) == 0
byte = c.c_ubyte()
assert cuda.cuMemcpyDtoH_v2(c.byref(byte), at, c.c_size_t(1)) == 0
print(byte.value)
wait()
assert cuda.cuIpcCloseMemHandle(at) == 0
""",
        )
    )
    assert taker.line() == "7"
    assert taker.line() == "ready"
    assert sorted(true_bytes(tmp_path / "books").values()) == [0, MIB]


VIRTUAL = """
CHUNK = 2 << 20
handle = ctypes.c_ulonglong()
def prop(exportable):
    return (ctypes.c_int * 8)(1, int(exportable), 1, 0)  # pinned, a file or nothing, on device 0
def create(chunks, exportable=False):
    size = ctypes.c_size_t(chunks * CHUNK)
    return cuda.cuMemCreate(ctypes.byref(handle), size, prop(exportable), ctypes.c_ulonglong(0))
def reserve(chunks):
    found, size, zero = ctypes.c_ulonglong(), ctypes.c_size_t(chunks * CHUNK), ctypes.c_ulonglong(0)
    assert cuda.cuMemAddressReserve(ctypes.byref(found), size, ctypes.c_size_t(0), zero, zero) == 0
    return found.value
def map_at(place, chunks, offset=0):
    size, zero = ctypes.c_size_t(chunks * CHUNK), ctypes.c_ulonglong(0)
    return cuda.cuMemMap(ctypes.c_ulonglong(place), size, ctypes.c_size_t(offset * CHUNK), handle, zero)
def unmap(place, chunks):
    return cuda.cuMemUnmap(ctypes.c_ulonglong(place), ctypes.c_size_t(chunks * CHUNK))
def put(place, value):
    assert cuda.cuMemsetD8_v2(ctypes.c_ulonglong(place), value, ctypes.c_size_t(1)) == 0
def get(place):
    byte = ctypes.c_ubyte()
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(byte), ctypes.c_ulonglong(place), ctypes.c_size_t(1)) == 0
    return byte.value
"""


def test_two_mappings_of_one_handle_are_the_same_memory(env: dict[str, str], stack: ExitStack) -> None:
    script = (
        VIRTUAL
        + """
assert create(2) == 0
one, two = reserve(2), reserve(2)
assert map_at(one, 2) == 0 and map_at(two, 1, offset=1) == 0
put(one, 1), put(one + CHUNK, 2)
put(two, get(two) + 5)
print(get(one), get(one + CHUNK), get(two), flush=True)
# beyond the reservation, beyond the handle, a range that is taken
print(map_at(two + CHUNK, 2), map_at(two + CHUNK, 1, offset=2), map_at(one, 1), flush=True)
assert unmap(one, 2) == 0 and map_at(one, 1, offset=1) == 0
print(get(one), flush=True)
first = handle.value
assert create(1) == 0 and map_at(two + CHUNK, 1) == 0
print(get(two + CHUNK), handle.value != first)
"""
    )
    found = stack.enter_context(Script(env, script))
    assert [found.line() for _ in range(4)] == ["1 7 7", "1 1 1", "7", "0 True"]


def test_an_exported_allocation_is_the_same_memory_in_another_process_and_counts_once(
    env: dict[str, str], tmp_path: Path, stack: ExitStack
) -> None:
    giver = stack.enter_context(
        Script(
            env,
            VIRTUAL
            + """
fd = ctypes.c_int()
assert create(1) == 0
print(cuda.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, ctypes.c_ulonglong(0)), flush=True)
assert cuda.cuMemRelease(handle) == 0
assert create(1, exportable=True) == 0
assert cuda.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, ctypes.c_ulonglong(0)) == 0
place = reserve(1)
assert map_at(place, 1) == 0
put(place, 7)
print(fd.value, flush=True)
wait()
print(get(place), flush=True)
wait()
""",
        )
    )
    assert giver.line() == "1"  # it was not made to be exported
    path = f"/proc/{giver.process.pid}/fd/{giver.line()}"
    assert giver.line() == "ready"
    taker = stack.enter_context(
        Script(
            env,
            VIRTUAL
            + f"""
import os
file = os.open({path!r}, os.O_RDWR)
assert cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(file), 1) == 0
os.close(file)
place = reserve(1)
assert map_at(place, 1) == 0
print(get(place), flush=True)
put(place, 9)
wait()
""",
        )
    )
    assert [taker.line(), taker.line()] == ["7", "ready"]
    giver.go()
    assert giver.line() == "9"
    assert sorted(true_bytes(tmp_path / "books").values()) == [0, 2 * MIB]


def test_page_locked_memory_is_known_again_anywhere_inside_it(env: dict[str, str], stack: ExitStack) -> None:
    script = """
host, kind = ctypes.c_void_p(), ctypes.c_uint()
def kind_of(address):
    kind.value = 99
    result = cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(address))
    return kind.value if result == 0 else None
assert allocate(1 << 20) == 0
assert cuda.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(1000), 0) == 0
inside = [kind_of(host.value), kind_of(host.value + 999), kind_of(at.value + 12345)]
assert cuda.cuMemFreeHost(host) == 0
print(inside, kind_of(host.value), cuda.cuMemFreeHost(host))
"""
    assert stack.enter_context(Script(env, script)).line() == "[1, 1, 2] None 1"


def test_kernels_take_the_time_that_is_set_for_all(env: dict[str, str], stack: ExitStack) -> None:
    script = """
import time
began = time.monotonic()
launch(b"anything")
assert cuda.cuCtxSynchronize() == 0
print(time.monotonic() - began >= 0.05)
"""
    assert stack.enter_context(Script(env | {"CARPOOL_STUB_KERNEL": "50ms"}, script)).line() == "True"


def test_what_the_stand_in_cannot_do_exists_and_says_so(env: dict[str, str], stack: ExitStack) -> None:
    script = """
found, status = ctypes.c_void_p(), ctypes.c_int()
assert cuda.cuGetProcAddress_v2(b"cuTexRefCreate", ctypes.byref(found), 13000, 0, ctypes.byref(status)) == 0
print(ctypes.CFUNCTYPE(ctypes.c_int)(found.value)(), cuda.cuTexRefCreate(ctypes.byref(found)))
"""
    assert stack.enter_context(Script(env, script)).line() == "801 801"


def test_copies_of_lines_and_volumes_keep_to_their_places(env: dict[str, str], stack: ExitStack) -> None:
    """An array of 8 by 4 elements of 2 bytes by 2 slices; a part of it goes through pitched lines and back."""
    script = """
import itertools
W = ctypes.c_size_t
class Shape(ctypes.Structure):
    _fields_ = [(s + n, t) for s in ("src", "dst") for n, t in [("X", W), ("Y", W), ("Z", W), ("LOD", W),
        ("Type", ctypes.c_int), ("Host", ctypes.c_void_p), ("Device", ctypes.c_ulonglong), ("Array", ctypes.c_void_p),
        ("Context", ctypes.c_void_p), ("Pitch", W), ("Height", W)]] + [("w", W), ("h", W), ("d", W)]
class Volume(ctypes.Structure):
    _fields_ = [("w", W), ("h", W), ("d", W), ("format", ctypes.c_int), ("n", ctypes.c_int), ("flags", ctypes.c_int)]
array = ctypes.c_void_p()
assert cuda.cuArray3DCreate_v2(ctypes.byref(array), ctypes.byref(Volume(8, 4, 2, 2, 1, 0))) == 0
whole = bytes(range(128))
host = ctypes.create_string_buffer(whole, 128)
address = ctypes.cast(host, ctypes.c_void_p).value
def copy(**fields):
    return cuda.cuMemcpy3D_v2(ctypes.byref(Shape(**fields)))
from_host = dict(srcType=1, srcHost=address, srcPitch=16, srcHeight=4)
assert copy(**from_host, dstType=3, dstArray=array, w=16, h=4, d=2) == 0
assert allocate(4096) == 0 == cuda.cuMemsetD8_v2(at, 255, W(4096))
part = dict(srcType=3, srcArray=array, srcX=4, srcY=1, srcZ=1, w=6, h=2, d=1)
assert copy(**part, dstType=2, dstDevice=at.value, dstX=3, dstY=2, dstPitch=32, dstHeight=8) == 0
lines = ctypes.string_at(at.value, 4096)
for y, x in itertools.product(range(128), range(32)):
    inside = 2 <= y < 4 and 3 <= x < 9
    assert lines[y * 32 + x] == (whole[64 + (y - 1) * 16 + x + 1] if inside else 255), (y, x)
back = dict(srcType=4, srcDevice=at.value, srcX=3, srcY=2, srcPitch=32, dstType=1, dstHost=address, dstPitch=6)
assert copy(**back, w=6, h=2, d=1) == 0
assert host.raw[:12] == whole[84:90] + whole[100:106]
to = dict(dstType=2, dstDevice=at.value, dstPitch=32)
print(copy(**part | dict(w=13), **to), copy(**part | dict(srcZ=2), **to))
"""
    beyond = "1 1"  # CUDA_ERROR_INVALID_VALUE
    assert stack.enter_context(Script(env, script)).line() == beyond


SAMPLES = """
import os, time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
card, count = ctypes.c_void_p(), ctypes.c_uint(8)
class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("stamp", ctypes.c_ulonglong), ("shares", ctypes.c_uint * 4)]
samples = (Sample * 8)()
assert nvml.nvmlInit_v2() == 0 == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
assert launch(b"busy_1ms") == 0
before = time.time_ns() // 1000
assert nvml.nvmlDeviceGetProcessUtilization(card, samples, ctypes.byref(count), ctypes.c_ulonglong(0)) == 0
print(samples[0].pid == os.getpid(), before <= samples[0].stamp <= time.time_ns() // 1000)
"""


def test_samples_of_processes_have_times_of_the_wall_clock(env: dict[str, str], stack: ExitStack) -> None:
    assert stack.enter_context(Script(env, SAMPLES)).line() == "True True"


def test_a_process_is_listed_once_it_has_a_context(env: dict[str, str], tmp_path: Path, stack: ExitStack) -> None:
    script = """
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("rest", ctypes.c_uint * 2)]
import os
nvml = ctypes.CDLL("libnvidia-ml.so.1")
card, count, found = ctypes.c_void_p(), ctypes.c_uint(8), (Process * 8)()
assert nvml.nvmlInit_v2() == 0 == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), found) == 0
print(count.value, found[0].pid == os.getpid(), found[0].bytes >> 20)
assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
wait()
"""
    del env["CARPOOL_STUB_CONTEXT"]  # as users have it
    found = stack.enter_context(Script(env, script))
    assert found.line() == "1 True 4"
    assert found.line() == "ready"
    assert list(true_bytes(tmp_path / "books").values()) == [0]


def test_every_entry_point_is_found_by_its_symbol_and_by_its_name(env: dict[str, str], stack: ExitStack) -> None:
    rows = re.findall(r"^(?:DOOR|ABSENT)\((\w+), (\w+), (\d+), ([01])\)", doors.TARGET.read_text(), re.MULTILINE)
    beside = [row for row in rows if re.match(r"cu(?:Profiler|W?GL|EGL|VDPAU|Graphics(?:GL|EGL|VDPAU))", row[0])]
    assert len(beside) >= 37
    script = f"""
found = ctypes.c_void_p()
for symbol, name, since, stream in {rows!r}:
    asked = cuda.cuGetProcAddress(name.encode(), ctypes.byref(found), int(since), ctypes.c_ulonglong(2 * int(stream)))
    assert asked == 0 and found.value == ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value, symbol
print([cuda.cuProfilerInitialize(b"", b"", 0), cuda.cuProfilerStart(), cuda.cuProfilerStop()], flush=True)
print({{getattr(cuda, symbol)() for symbol, *_ in {beside!r} if "Profiler" not in symbol}})
"""
    found = stack.enter_context(Script(env, script))
    assert [found.line(), found.line()] == ["[0, 0, 0]", "{801}"]  # CUDA_ERROR_NOT_SUPPORTED


def test_the_stand_ins_have_the_names_that_programs_open(env: dict[str, str]) -> None:
    place = Path(stub.library_directory())
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"):
        assert (place / name).resolve().exists(), name
    assert (place / "libcuda.so").resolve() == (place / "libcuda.so.1").resolve()


KERNEL_S, SOON_S = 60, 15  # far apart: a busy machine may take seconds


@pytest.mark.parametrize("is_queued", [False, True], ids=["launched_later", "queued_behind"])
def test_the_kernels_of_a_killed_process_end_with_it(env: dict[str, str], stack: ExitStack, is_queued: bool) -> None:
    begin = "import time\nbegan = time.monotonic()\nassert launch(b'busy_10ms') == 0\n"
    end = f"assert cuda.cuCtxSynchronize() == 0\nprint(time.monotonic() - began < {SOON_S})\n"
    hog = stack.enter_context(Script(env, f'launch(b"busy_{KERNEL_S}s")\nwait()'))
    assert hog.line() == "ready"
    text = begin + "print('ready', flush=True)\n" + end if is_queued else "wait()\n" + begin + end
    later = stack.enter_context(Script(env, text))
    assert later.line() == "ready"
    hog.process.kill()
    hog.process.wait(timeout=20)
    if not is_queued:
        later.go()
    assert later.line() == "True"


def test_a_living_process_keeps_its_kernels_when_another_is_killed(env: dict[str, str], stack: ExitStack) -> None:
    """One kernel of a second before the dead one's, one behind it: they take their time, and no more."""
    script = """
import time
began = time.monotonic()
assert launch(b"busy_1s") == 0
wait()
assert launch(b"busy_1s") == 0
wait()
assert cuda.cuCtxSynchronize() == 0
print(2 <= time.monotonic() - began)
"""
    living = stack.enter_context(Script(env, script))
    assert living.line() == "ready"
    hog = stack.enter_context(Script(env, 'launch(b"busy_10s")\nwait()'))
    assert hog.line() == "ready"
    living.go()
    assert living.line() == "ready"
    hog.process.kill()
    hog.process.wait(timeout=20)
    living.go()
    assert living.line() == "True"
