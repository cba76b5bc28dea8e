"""Every entry point of the stand-in driver and NVML: native/fake/doors.def, made from NVIDIA's own lists of names.

python -m carpool.testing.doors /usr/local/cuda/include

The names of the driver come from cuda.h and the four headers beside it (profiler, OpenGL, EGL, VDPAU), their versions
from the headers of typedefs, the names of NVML from nvml.h (nvidia-nvml-dev).
Run it after an entry point was added to native/fake, or for a newer toolkit.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FAKE = ROOT / "native" / "fake"
TARGET = FAKE / "doors.def"
CUDA_SOURCES = (
    "cuda.c",
    "facts.h",
    "code.h",
    "objects.h",
    "sharing.h",
    "forms.h",
    "virtual.h",
    "arrays.h",
    "copies.h",
)
BESIDE = ("cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler")
HEAD = """/* Every entry point of CUDA's driver and of NVML: made by python -m carpool.testing.doors.
 * DOOR(symbol, name, since, per-thread stream): cuda.c has it; the rest is how cuGetProcAddress is asked for it.
 * ABSENT(symbol, ...), ABSENT_NVML(symbol): it exists and answers "not supported". */
#ifndef DOOR
#define DOOR(symbol, name, since, stream)
#endif
#ifndef ABSENT
#define ABSENT(symbol, name, since, stream)
#endif
#ifndef ABSENT_NVML
#define ABSENT_NVML(symbol)
#endif
"""
TAIL = "#undef DOOR\n#undef ABSENT\n#undef ABSENT_NVML\n"
OWN = re.compile(r"^(?:API |.*\bconst char \*)((?:cu|nvml)\w+)[()]", re.MULTILINE)


def driver_symbols(include: Path) -> set[str]:
    """Every function of the driver that the headers declare, in all of its forms."""
    macro = "-D__CUDA_API_VERSION_INTERNAL"
    done = subprocess.run(
        ["cc", "-E", "-P", macro, str(include / "cuda.h")], capture_output=True, text=True, timeout=60, check=True
    )
    symbols = set(re.findall(r"CUresult\s+(cu\w+)\s*\(", done.stdout))
    for header in (include / f"{name}.h" for name in BESIDE):
        symbols |= symbols_beside(header.read_text()) if header.exists() else set()
    return symbols


def symbols_beside(text: str) -> set[str]:
    """The same of a header that needs another library's headers, and so is only looked at."""
    symbols = set(re.findall(r"CUDAAPI (cu\w+)\(", text))
    symbols |= set(re.findall(r"^#define cu\w+\s+(cu\w+)$", text, re.MULTILINE))  # the newest form of a name
    for ending, symbol in re.findall(r"__CUDA_API_(PT[DS][SZ])\((cu\w+)\)", text):
        symbols |= {symbol, f"{symbol}_{ending.lower()}"}
    return symbols


def driver_versions(include: Path) -> set[tuple[str, str, str]]:
    """Name, version and ending of the stream mode of all that cuGetProcAddress can be asked for."""
    headers = (include / f"{name}Typedefs.h" for name in ("cuda", *BESIDE))
    text = "".join(header.read_text() for header in headers if header.exists())
    return set(re.findall(r"PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", text))


def driver_rows(include: Path) -> list[tuple[str, str, int, int]]:
    """Symbol, name, first version and stream mode of every function of the driver."""
    symbols = driver_symbols(include)
    doors: dict[tuple[str, str], list[int]] = {}
    for name, since, ending in driver_versions(include):
        doors.setdefault((name, ending), []).append(int(since))
    rows = []
    for (name, ending), versions in doors.items():
        tail = re.compile(rf"{name}(?:_v(\d+))?{ending}")
        own = sorted((int(found[1] or 1), symbol) for symbol in symbols if (found := tail.fullmatch(symbol)))
        # the n-th version of a name is its n-th symbol; where some are gone, the newest are left
        newest = sorted(versions)[-len(own) :]
        rows += [(symbol, name, since, int(bool(ending))) for (_, symbol), since in zip(own, newest, strict=True)]
    return sorted(rows, key=lambda row: row[1:])  # by name: the stand-in looks it up by halves


def nvml_include() -> Path | None:
    """Where the installed nvidia-nvml-dev has nvml.h; None: it is not installed."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found and found.submodule_search_locations else []
    headers = [header for place in places for header in sorted(Path(place).glob("*/include/nvml.h"))]
    return headers[0].parent if headers else None


def nvml_names(include: Path) -> set[str]:
    """Every function that nvml.h declares, the older forms of each too."""
    macro = "-DNVML_NO_UNVERSIONED_FUNC_DEFS"
    done = subprocess.run(
        ["cc", "-E", "-P", macro, str(include / "nvml.h")], capture_output=True, text=True, timeout=60, check=True
    )
    return set(re.findall(r"(?:nvmlReturn_t|const char\s*\*)\s+(nvml\w+)\s*\(", done.stdout))


def answered(*sources: str) -> set[str]:
    """The functions that these source files of the stand-in define themselves."""
    return {name for source in sources for name in OWN.findall((FAKE / source).read_text())}


def make(include: Path) -> str:
    cuda, nvml = answered(*CUDA_SOURCES), answered("nvml.c")
    lines = []
    for symbol, name, since, stream in driver_rows(include):
        kind = "DOOR" if symbol in cuda else "ABSENT"
        lines.append(f"{kind}({symbol}, {name}, {since}, {stream})")
    header = nvml_include()
    if header is None:
        raise SystemExit("there is no nvml.h: pip install nvidia-nvml-dev")
    lines += [f"ABSENT_NVML({name})" for name in sorted(nvml_names(header)) if name not in nvml]
    return HEAD + "\n".join(lines) + "\n" + TAIL


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    TARGET.write_text(make(Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
