"""Builds what PyTorch's CUDA build loads beside itself: stand-ins for NVIDIA's libraries, where it looks for theirs.

.venv-cuda/bin/python -m tests.torch_cuda.libraries

Every symbol that torch's own libraries want of NVIDIA's is defined: by native/fake/runtime.c and blas.c where there
is an answer, otherwise by a function that says "not supported". So torch's 530 MB are enough, without NVIDIA's own
libraries. The driver is not among them: programs find that as ever.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
from collections import defaultdict
from pathlib import Path

FAKE = Path(__file__).parents[2] / "native" / "fake"
MARK = Path("nvidia") / "carpool-stand-ins"  # beside the libraries, to tell them from NVIDIA's
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
# A library's file name without version, how its symbols begin, its source if it has one, its "not supported".
# Longer beginnings first: a symbol belongs to the first that fits.
LIBRARIES = [
    ("libcudart", "cuda|__cuda", "runtime.c", 801),
    ("libcublasLt", "cublasLt", "blas.c", 15),
    ("libcublas", "cublas", "blas.c", 15),
    ("libcudnn", "cudnn", "", 3000),
    ("libcufft", "cufft", "", 16),
    ("libcufile", "cuFile", "", 801),
    ("libcupti", "cupti", "", 27),
    ("libcurand", "curand", "", 204),
    ("libcusolver", "cusolver", "", 9),
    ("libcusparseLt", "cusparseLt", "", 10),
    ("libcusparse", "cusparse", "", 10),
    ("libnccl", "nccl", "", 3),
    ("libnvToolsExt", "nvtx", "", 0),  # torch before 2.5
    ("libnvrtc", "nvrtc", "", 9),
    ("libnvshmem_host", "nvshmem", "", 7),
]
GIVES_TEXT = re.compile(r"(GetErrorString|GetLastErrorString|GetLastError)$")


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def wanted_by(torch: Path) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Libraries by name (their full file name), and the symbols torch wants of each (with the version, if any)."""
    files: dict[str, str] = {}
    symbols: dict[str, dict[str, str]] = defaultdict(dict)
    for library in sorted((torch / "lib").glob("*.so")):
        for needed in re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-dW", library)):
            files[needed.partition(".so")[0]] = needed
        for line in run("nm", "-D", "--undefined-only", library).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            owner = next((name for name, starts, _, _ in LIBRARIES if re.match(starts, symbol)), None)
            if owner is not None:
                symbols[owner][symbol] = version.lstrip("@")
    return files, symbols


def absent(symbol: str, code: int) -> str:
    if GIVES_TEXT.search(symbol):
        return f'const char *{symbol}(void) {{ return "not supported by the stand-in"; }}'
    return f"int {symbol}(void) {{ return {code}; }}"


def build(name: str, source: str, code: int, file: str, symbols: dict[str, str], place: Path) -> None:
    """One library, under the name torch looks for."""
    own = (FAKE / source).read_text() if source else ""
    missing = [symbol for symbol in sorted(symbols) if not re.search(rf"\b{symbol}\(", own)]
    rest = place / f"{name}.c"
    rest.write_text(
        "\n".join(["#pragma GCC visibility push(default)", *(absent(each, code) for each in missing), ""])
    )
    arguments: list[str | Path] = [
        *FLAGS,
        "-fno-builtin",
        f"-Wl,-soname,{file}",
        rest,
        *([FAKE / source] if source else []),
    ]
    version = next((version for version in symbols.values() if version), "")
    script = place / f"{name}.map"
    names = " ".join(f"{symbol};" for symbol in sorted(symbols)) or "none;"
    script.write_text(f"{version} {{ global: {names} local: *; }};\n")
    arguments.append(f"-Wl,--version-script={script}")
    if source == "blas.c":
        arguments.append(next(place.glob("libcudart.so.*")))
    run("cc", *arguments, "-o", place / file, "-lpthread", "-ldl")


def main() -> None:
    site = Path(sysconfig.get_path("platlib"))
    torch, place = site / "torch", site / "nvidia" / "cu13" / "lib"
    place.mkdir(parents=True, exist_ok=True)
    (site / MARK).touch()
    files, symbols = wanted_by(torch)
    for name, _, source, code in LIBRARIES:
        if name in files:
            build(name, source, code, files[name], symbols[name], place)
    print(f"stand-ins for {len(files.keys() & {each[0] for each in LIBRARIES})} of NVIDIA's libraries in {place}")


if __name__ == "__main__":
    main()
