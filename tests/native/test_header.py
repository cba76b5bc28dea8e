"""What the guest declares of CUDA by itself, against the real cuda.h; skipped loudly where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from carpool.testing import coverage, doors
from tests.native import arrays
from tests.native.probe import NATIVE, compile_c, layout

PLACES = [Path("/usr/local/cuda/include"), *sorted(Path("/usr/local").glob("cuda-*/include"))]
BESIDE = ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")  # need other libraries' headers: only looked at
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


def entry_points(include: Path) -> set[str]:
    """Every function of the driver that NVIDIA's headers declare."""
    names = {symbol for symbol, *_ in doors.driver_rows(include)}
    for header in BESIDE:
        if (include / header).exists():
            names |= set(re.findall(r"CUDAAPI (cu\w+)\(", (include / header).read_text()))
    return names


def test_every_entry_point_is_hooked_left_or_harmless_and_only_one_of_them(include: Path) -> None:
    definition, names = (NATIVE / "hooks.def").read_text(), entry_points(include)
    assert len(names) > 630
    found = {name: coverage.places(name, definition) for name in sorted(names)}
    assert {name: where for name, where in found.items() if len(where) != 1} == {}
    if all((include / header).exists() for header in BESIDE):
        assert {name for name in coverage.rows(definition) if name.startswith("cu")} - names == set()


def test_every_function_of_nvml_is_hooked_left_or_harmless_and_only_one_of_them() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: its names are NOT compared with the list")
    definition, names = (NATIVE / "hooks.def").read_text(), {*doors.nvml_names(), *doors.answered("nvml.c")}
    found = {name: coverage.places(name, definition) for name in sorted(names)}
    assert {name: where for name, where in found.items() if len(where) != 1} == {}
    assert {name for name in coverage.rows(definition) if name.startswith("nvml")} - names == set()


@pytest.mark.parametrize(
    "name", ["cuMemAllocSomehow", "cuLaunchElsewhere", "cuDeviceGetMemoryOfOthers", "nvmlDeviceGetMemoryOf"]
)
def test_a_function_that_nobody_decided_about_is_noticed(name: str) -> None:
    assert coverage.places(name, (NATIVE / "hooks.def").read_text()) == []


def test_the_stand_in_has_every_entry_point_of_the_header(include: Path) -> None:
    text = doors.TARGET.read_text()
    listed = re.findall(r"^(DOOR|ABSENT)\((\w+), (\w+), (\d+), ([01])\)", text, re.MULTILINE)
    own = doors.answered(*doors.CUDA_SOURCES)
    for symbol, name, since, stream in doors.driver_rows(include):
        row = ("DOOR" if symbol in own else "ABSENT", symbol, name, str(since), str(stream))
        assert row in listed, f"{symbol}: run python -m carpool.testing.doors {include}"
