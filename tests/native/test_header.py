"""What the guest declares of CUDA by itself, against the real cuda.h; skipped loudly where there is none."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from carpool.testing import doors
from tests.native import arrays
from tests.native.probe import NATIVE, compile_c, layout

PLACES = [Path("/usr/local/cuda/include"), *sorted(Path("/usr/local").glob("cuda-*/include"))]
ROW = re.compile(r"^(HOOK|GATE|NVML|CALL|LEFT)\((\w+)", re.MULTILINE)
# Names that make, give, take or launch something on the device: each must be in the list, hooked or left.
SUSPECTS = [
    r"Launch|GraphLaunch|GraphUpload|GraphInstantiate|GraphAddMemAlloc|GraphAddNode",
    r"MemAlloc|MemCreate|MemImport|MemExport|MemFree(?!Host)|MemMap|MemHostAlloc|MemHostRegister",
    r"MemPool(Create|Destroy|Import|Export|SetAttribute|TrimTo)|Array(3D)?(Create|Destroy)|MipmappedArray(Create|Destroy)",
    r"ImportExternalMemory|DestroyExternalMemory|Ipc(Open|Get|Close)Mem|MulticastCreate|ModuleLoad|LibraryLoad",
    r"(Green)?CtxCreate|CtxDestroy|CtxSynchronize|CtxSetLimit|DevicePrimaryCtx(Retain|Release|Reset)|MemGetInfo",
    r"DeviceTotalMem|GetProcAddress|GetExportTable|Stream(Begin|End)Capture|(Stream|Event)Synchronize",
]
SUSPECT = re.compile(f"cu({'|'.join(SUSPECTS)})")
STRUCTS = {
    "CUmemAllocationProp": ["location"],
    "CUmemPoolProps": ["location", "maxSize"],
    "CUDA_MEM_ALLOC_NODE_PARAMS": ["bytesize", "dptr"],
    "CUDA_ARRAY_DESCRIPTOR": ["Width", "Height", "Format", "NumChannels"],
    "CUDA_ARRAY3D_DESCRIPTOR": ["Width", "Height", "Depth", "Format", "NumChannels", "Flags"],
    "CUDA_ARRAY_MEMORY_REQUIREMENTS": ["size", "alignment"],
    "CUDA_EXTERNAL_MEMORY_HANDLE_DESC": ["type", "size"],
    "CUlaunchConfig": ["hStream"],
    "CUDA_LAUNCH_PARAMS": ["function", "gridDimX", "blockDimZ", "sharedMemBytes", "hStream", "kernelParams"],
    "CUgraphNodeParams": ["type", "kernel.func", "alloc", "alloc.poolProps", "alloc.bytesize", "alloc.dptr"],
}
CONSTANTS = [
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA_ERROR_NOT_FOUND",
    "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM",
    "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD",
    "CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT",
    "CU_GRAPH_NODE_TYPE_KERNEL",
    "CU_GRAPH_NODE_TYPE_EMPTY",
    "CU_GRAPH_NODE_TYPE_MEM_ALLOC",
    "CU_GRAPH_NODE_TYPE_MEM_FREE",
    "CU_MEM_LOCATION_TYPE_DEVICE",
    "CU_STREAM_CAPTURE_MODE_RELAXED",
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    "CUDA_ERROR_CAPTURED_EVENT",
    "CUDA_ARRAY3D_LAYERED",
    "CUDA_ARRAY3D_CUBEMAP",
    "CUDA_ARRAY3D_SPARSE",
    "CUDA_ARRAY3D_DEFERRED_MAPPING",
    "CU_AD_FORMAT_FLOAT",
    "CU_AD_FORMAT_BC1_UNORM",
    "CU_AD_FORMAT_BC7_UNORM_SRGB",
    "CU_AD_FORMAT_P010",
    "CU_AD_FORMAT_YUV444_16bit_SemiPlanar",
]


@pytest.fixture(scope="session")
def include() -> Path:
    for place in PLACES:
        if (place / "cuda.h").exists():
            return place
    pytest.skip("no cuda.h on this machine: carpool's own declarations of CUDA are NOT compared with NVIDIA's")


def rows(*kinds: str) -> list[str]:
    text = (NATIVE / "hooks.def").read_text()
    return [symbol for kind, symbol in ROW.findall(text.partition("/* Lookup */")[2]) if kind in kinds]


def test_every_signature_is_nvidias(include: Path, tmp_path: Path) -> None:
    check = """
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdint.h>
#define CHECK(symbol, params) \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), CUresult params), #symbol);
#define HOOK(symbol, name, since, stream, params, args, ...) CHECK(symbol, params)
#define CALL(symbol, params, args) CHECK(symbol, params)
#include "hooks.def"
int main(void) { return 0; }
"""
    source = tmp_path / "signatures.c"
    source.write_text(check)
    compile_c(tmp_path / "signatures", "-Wno-strict-prototypes", f"-I{include}", f"-I{NATIVE}", source)


def test_structures_and_constants_are_nvidias(include: Path, tmp_path: Path) -> None:
    theirs, ours = (layout(header, STRUCTS, CONSTANTS, include, tmp_path) for header in ("<cuda.h>", '"driver.h"'))
    assert theirs == ours
    assert "CUgraphNodeParams.alloc 16\n" in theirs  # where the guest looks for a node's bytes


def test_every_format_of_an_array_is_known(include: Path) -> None:
    enum = (include / "cuda.h").read_text().partition("typedef enum CUarray_format_enum {")[2].partition("}")[0]
    theirs = {int(value, 16) for value in re.findall(r"CU_AD_FORMAT_\w+\s*= (0x[0-9a-f]{2}),", enum)}
    assert len(theirs) == enum.count("CU_AD_FORMAT_") - 1 > 40  # all but CU_AD_FORMAT_MAX
    ours = set(arrays.formats())
    assert ours == theirs


def test_versions_for_cu_get_proc_address_are_nvidias(include: Path) -> None:
    text = (include / "cudaTypedefs.h").read_text()
    known = set(re.findall(r"PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", text))
    listed = re.findall(
        r"^(?:HOOK|GATE)\((\w+), (\w+), (\d+), ([01])", (NATIVE / "hooks.def").read_text(), re.MULTILINE
    )
    assert listed
    for symbol, name, since, stream in listed:
        endings = ("_ptsz", "_ptds") if stream == "1" else ("",)
        assert any((name, since, ending) in known for ending in endings), symbol


def test_no_entry_point_that_could_allocate_or_launch_is_forgotten(include: Path, tmp_path: Path) -> None:
    source = tmp_path / "all.c"
    source.write_text("#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n")
    done = subprocess.run(["cc", "-E", "-P", f"-I{include}", source], capture_output=True, text=True, timeout=60)
    names = set(re.findall(r"CUresult\s+(cu\w+)\s*\(", done.stdout))
    assert len(names) > 500
    known = set(rows("HOOK", "GATE", "LEFT"))
    suspects = {name for name in names if SUSPECT.match(name)}
    assert len(suspects) > 90
    assert suspects - known == set()
    assert known - names == set()


def test_the_stand_in_has_every_entry_point_of_the_header(include: Path) -> None:
    text = doors.TARGET.read_text()
    listed = re.findall(r"^(DOOR|ABSENT)\((\w+), (\w+), (\d+), ([01])\)", text, re.MULTILINE)
    own = doors.answered(*doors.CUDA_SOURCES)
    for symbol, name, since, stream in doors.driver_rows(include):
        row = ("DOOR" if symbol in own else "ABSENT", symbol, name, str(since), str(stream))
        assert row in listed, f"{symbol}: run python -m carpool.testing.doors {include}"
