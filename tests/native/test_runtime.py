"""What the stand-in for CUDA's runtime library declares by itself, against NVIDIA's header where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.gpu import Built
from tests.native.probe import NATIVE, compile_c, layout
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
    theirs, ours = (
        layout(header, STRUCTS, CONSTANTS, include, tmp_path)
        for header in ("<cuda_runtime_api.h>", '"fake/runtime.h"')
    )
    assert theirs == ours
    assert ours


def test_the_stand_ins_for_the_runtime_and_cublas_compile_without_a_warning(built: Built, tmp_path: Path) -> None:
    """They are built by make test-torch-cuda only; a mistake in them should not wait for that."""
    for name in ("runtime", "blas"):
        compile_c(tmp_path / f"{name}.o", "-c", "-fPIC", NATIVE / "fake" / f"{name}.c")
