"""Arrays as a program asks for them: the formats the guest knows, and descriptors for ctypes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.native.probe import NATIVE

LAYERED, CUBEMAP, SPARSE, DEFERRED = 0x01, 0x04, 0x40, 0x80
FLOAT, VIDEO = 0x20, range(0x9F, 0xB6)


def formats() -> list[int]:
    """The values of CUarray_format that native/driver.h has bytes for."""
    table = (NATIVE / "driver.h").read_text().partition("cu_element_bytes[256] = {")[2].partition("}")[0]
    return [int(value, 16) for value in re.findall(r"\[(0x[0-9a-f]{2})\] = \d", table)]


@dataclass(frozen=True)
class Array:
    width: int
    height: int = 0
    depth: int = 0
    format: int = FLOAT
    channels: int = 1
    flags: int = 0
    levels: int = 0  # 0: no mipmap

    @property
    def words(self) -> str:
        """What the script of test_gpu_arrays makes it from."""
        numbers = (self.width, self.height, self.depth, self.format, self.channels, self.flags, self.levels)
        return " ".join(map(str, numbers))
