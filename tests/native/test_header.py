"""What carpool's C code declares of CUDA and NVML by itself, against NVIDIA's own headers: cuda.h of a toolkit on
this machine, nvml.h of the package nvidia-nvml-dev. Skipped loudly where there is none."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from carpool.testing import coverage, doors
from tests.native import arrays
from tests.native.declared import LIBRARIES, declared, text_of
from tests.native.probe import NATIVE, compile_c, layout

PLACES = [
    *(Path(place) for place in [os.environ.get("CARPOOL_CUDA_INCLUDE", "")] if place),
    Path("/usr/local/cuda/include"),
    *sorted(Path("/usr/local").glob("cuda-*/include")),
]


@pytest.fixture(scope="session")
def include() -> Path:
    for place in PLACES:
        if (place / "cuda.h").exists():
            return place
    pytest.skip("no cuda.h on this machine: carpool's own declarations of CUDA are NOT compared with NVIDIA's")


@pytest.fixture(scope="session")
def nvml_include() -> Path:
    place = doors.nvml_include()
    if place is None:
        pytest.skip("no nvidia-nvml-dev: carpool's own declarations of NVML are NOT compared with NVIDIA's")
    return place


def version(include: Path) -> int:
    found = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    assert found
    return int(found[1])


def known_hooks(include: Path) -> str:
    """hooks.def without what came after this header."""
    rows = (NATIVE / "hooks.def").read_text().splitlines()
    since = re.compile(r"(?:HOOK|GATE)\(\w+, \w+, (\d+), ")
    return (
        "\n".join(row for row in rows if not (found := since.match(row)) or int(found[1]) <= version(include)) + "\n"
    )


def compare(place: Path, include: Path, head: str, checks: str) -> None:
    """Compile a file in which NVIDIA's header is first and our declarations are assertions."""
    source = place / "compare.c"
    source.write_text(f"{head}#include <stdint.h>\n{checks}int main(void) {{ return 0; }}\n")
    options = ["-Wno-strict-prototypes", "-Wno-deprecated-declarations"]
    compile_c(place / "compare", *options, f"-I{include}", f"-I{NATIVE}", source)


CUDA_HEAD = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"
NVML_HEAD = "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n"
SAME = """
#define SAME(symbol, result, params) \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), result params), #symbol);
"""


def test_every_signature_of_the_driver_is_nvidias(include: Path, tmp_path: Path) -> None:
    checks = """
#define HOOK(symbol, name, since, stream, params, args, ...) SAME(symbol, CUresult, params)
#define CALL(symbol, params, args) SAME(symbol, CUresult, params)
#define NVML(...)
#define NVML_CALL(...)
"""
    compare(tmp_path, include, CUDA_HEAD, SAME + checks + known_hooks(include))


def test_every_signature_of_nvml_is_nvidias(nvml_include: Path, tmp_path: Path) -> None:
    checks = """
#define NVML(symbol, params, args, ...) SAME(symbol, nvmlReturn_t, params)
#define NVML_CALL(symbol, params, args) SAME(symbol, nvmlReturn_t, params)
#include "hooks.def"
"""
    compare(tmp_path, nvml_include, NVML_HEAD, SAME + checks)


def test_every_signature_of_the_stand_in_for_nvml_is_nvidias(nvml_include: Path, tmp_path: Path) -> None:
    text = text_of("fake/nvml.c")
    found = re.findall(r"^API (nvml\w+)(\([^{]*?\)) \{", text, re.MULTILINE)
    assert {name for name, _ in found} | {"nvmlErrorString"} == doors.answered("nvml.c")
    compare(tmp_path, nvml_include, NVML_HEAD, SAME + "".join(f"SAME({n}, nvmlReturn_t, {p})\n" for n, p in found))


def test_every_type_field_and_constant_of_cuda_is_nvidias(include: Path, tmp_path: Path) -> None:
    found = declared("cuda")
    theirs, ours = (
        layout(header, found.fields, found.constants, include, tmp_path, "-D__CUDA_API_VERSION_INTERNAL")
        for header in ("<cuda.h>", '"driver.h"')
    )
    assert theirs == ours
    assert "CUgraphNodeParams.alloc 16\n" in theirs  # where the guest looks for a node's bytes
    for name in ("CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD", "CU_MEM_ATTACH_GLOBAL", "CU_MEM_ALLOCATION_TYPE_PINNED"):
        assert f"{name} " in theirs


def test_every_type_field_and_constant_of_nvml_is_nvidias(nvml_include: Path, tmp_path: Path) -> None:
    found = declared("nvml")
    theirs, ours = (
        layout(header, found.fields, found.constants, nvml_include, tmp_path) for header in ("<nvml.h>", '"driver.h"')
    )
    assert theirs == ours
    assert "nvmlMemory_v2_t.used 32\n" in theirs


def test_nothing_of_nvidias_is_declared_where_it_is_not_compared() -> None:
    for path in sorted(NATIVE.rglob("*.[chd]*")):
        name = str(path.relative_to(NATIVE))
        for library in LIBRARIES if name != "driver.h" else ():
            found = declared(library, text_of(name))
            assert (found.constants, found.fields) == ([], {}), f"{name}: belongs into driver.h"


def test_what_is_declared_is_found() -> None:
    text = """
#define CU_ONE 1
#define CU_IS_ONE(x) ((x) == CU_ONE)
typedef int CUone, CUtwo;
typedef struct CUthree_st *CUthree;
typedef struct CUfour_st CUfour;
typedef struct {
    unsigned int a, b[3];
    union {
        void *c;
        struct { int e; } d;
    };
} CUfive;
static const int table[2] = {1, 2};
"""
    found = declared("cuda", text)
    assert found.constants == ["CU_ONE"]
    five = ["a", "b", "c", "d.e"]
    assert found.fields == {
        "CUone": [],
        "CUtwo": [],
        "CUthree": [],
        "CUfive": five,
    }  # of CUfour only the name is known


def test_the_stand_ins_names_of_errors_are_nvidias(include: Path, tmp_path: Path) -> None:
    rows = re.findall(r'^    \{(\d+), "(CUDA_\w+)"', text_of("fake/facts.h"), re.MULTILINE)
    assert len(rows) > 10
    checks = "".join(f'_Static_assert({name} == {code}, "{name}");\n' for code, name in rows)
    compare(tmp_path, include, CUDA_HEAD, checks)


def test_every_format_of_an_array_is_known(include: Path) -> None:
    enum = (include / "cuda.h").read_text().partition("typedef enum CUarray_format_enum {")[2].partition("}")[0]
    theirs = {int(value, 16) for value in re.findall(r"CU_AD_FORMAT_\w+\s*= (0x[0-9a-f]{2}),", enum)}
    assert len(theirs) == enum.count("CU_AD_FORMAT_") - 1 > 40  # all but CU_AD_FORMAT_MAX
    ours = set(arrays.formats())
    assert ours == theirs


def test_versions_for_cu_get_proc_address_are_nvidias(include: Path) -> None:
    known = doors.driver_versions(include)
    listed = re.findall(r"^(?:HOOK|GATE)\((\w+), (\w+), (\d+), ([01])", known_hooks(include), re.MULTILINE)
    assert listed
    for symbol, name, since, stream in listed:
        endings = ("_ptsz", "_ptds") if stream == "1" else ("",)
        assert any((name, since, ending) in known for ending in endings), symbol


def test_every_entry_point_is_hooked_left_or_harmless_and_only_one_of_them(include: Path) -> None:
    definition, names = (NATIVE / "hooks.def").read_text(), doors.driver_symbols(include)
    assert len(names) > 630
    found = {name: coverage.places(name, definition) for name in sorted(names)}
    assert {name: where for name, where in found.items() if len(where) != 1} == {}
    if all((include / f"{header}.h").exists() for header in doors.BESIDE):
        listed = re.findall(r"^(?:DOOR|ABSENT)\((\w+), \w+, (\d+)", doors.TARGET.read_text(), re.MULTILINE)
        newer = {symbol for symbol, since in listed if int(since) > version(include)}
        assert {name for name in coverage.rows(definition) if name.startswith("cu")} - names == newer & set(
            coverage.rows(definition)
        )


def test_every_function_of_nvml_is_hooked_left_or_harmless_and_only_one_of_them(nvml_include: Path) -> None:
    definition, names = (NATIVE / "hooks.def").read_text(), doors.nvml_names(nvml_include)
    assert len(names) > 420
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


def test_the_stand_in_has_every_entry_point_of_nvml(nvml_include: Path) -> None:
    absent = set(re.findall(r"^ABSENT_NVML\((nvml\w+)\)", doors.TARGET.read_text(), re.MULTILINE))
    own = doors.answered("nvml.c")
    assert absent & own == set()
    assert absent | own == doors.nvml_names(nvml_include), "run python -m carpool.testing.doors"


def test_nvidias_python_package_calls_nothing_that_the_header_lacks(nvml_include: Path) -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: its names are NOT compared")
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text()))
    assert len(called) > 400
    assert called - doors.nvml_names(nvml_include) == set()
