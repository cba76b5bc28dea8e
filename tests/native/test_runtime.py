"""What the stand-in for CUDA's runtime library declares by itself, against NVIDIA's header where there is one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native.gpu import Built
from tests.native.probe import NATIVE, compile_c
from tests.native.test_header import PLACES

STRUCTS = {
    "struct cudaDeviceProp": [
        "uuid",
        "totalGlobalMem",
        "memPitch",
        "totalConstMem",
        "major",
        "multiProcessorCount",
        "surfaceAlignment",
        "pciBusID",
        "l2CacheSize",
        "sharedMemPerMultiprocessor",
        "cooperativeLaunch",
        "sharedMemPerBlockOptin",
        "reservedSharedMemPerBlock",
        "memoryPoolsSupported",
        "hostNumaMultinodeIpcSupported",
    ],
    "struct cudaPointerAttributes": ["type", "device", "devicePointer", "hostPointer"],
    "struct cudaFuncAttributes": ["sharedSizeBytes", "maxThreadsPerBlock", "numRegs", "maxDynamicSharedSizeBytes"],
    "cudaLaunchConfig_t": ["blockDim", "dynamicSmemBytes", "stream", "attrs", "numAttrs"],
    "cudaIpcMemHandle_t": ["reserved"],
}
CONSTANTS = ["cudaMemoryTypeHost", "cudaMemoryTypeManaged", "cudaMemcpyDeviceToDevice", "cudaMemcpyDefault"]


def test_structures_are_nvidias(tmp_path: Path) -> None:
    include = next((place for place in PLACES if (place / "cuda_runtime_api.h").exists()), None)
    if include is None or "CUDART_VERSION  13" not in (include / "cuda_runtime_api.h").read_text():
        pytest.skip(
            "no cuda_runtime_api.h of CUDA 13 here: the stand-in's declarations are NOT compared with NVIDIA's"
        )
    lines = [f'P("{name}", {name})' for name in CONSTANTS]
    for struct, fields in STRUCTS.items():
        lines.append(f'P("{struct}", sizeof({struct}))')
        lines += [f'P("{struct}.{field}", offsetof({struct}, {field}))' for field in fields]
    body = '#define P(name, value) printf("%s %lld\\n", name, (long long)(value));\nint main(void) {\n'
    answers = []
    for header in ("<cuda_runtime_api.h>", '"fake/runtime.h"'):
        source = tmp_path / "layout.c"
        source.write_text(
            f"#include <stddef.h>\n#include <stdio.h>\n#include {header}\n{body}" + "\n".join(lines) + "\n}\n"
        )
        program = compile_c(tmp_path / "layout", f"-I{include}", f"-I{NATIVE}", source)
        answers.append(subprocess.run([program], capture_output=True, text=True, timeout=20).stdout)
    assert answers[0] == answers[1]


def test_the_stand_ins_for_the_runtime_and_cublas_compile_without_a_warning(built: Built, tmp_path: Path) -> None:
    """They are built by make test-torch-cuda only; a mistake in them should not wait for that."""
    for name in ("runtime", "blas"):
        compile_c(tmp_path / f"{name}.o", "-c", "-fPIC", NATIVE / "fake" / f"{name}.c")
