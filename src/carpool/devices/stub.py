"""Stand-in GPUs for machines without one: `--device stub:2x16GiB`.

They are of the kind CUDA. Programs find a driver there that counts memory and device time as a real one does
(native/fake), so everything but the arithmetic of their kernels is real.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from carpool.devices import cuda
from carpool.devices.base import DeviceFacts, count_and_size
from carpool.devices.libraries import find_library
from carpool.errors import UsageError
from carpool.units import parse_bytes

CARDS_MAX = 16
# Some programs (Taichi) open the names that a toolkit has for linking.
NAMES = {
    "libcuda.so.1": "stub_cuda",
    "libcuda.so": "stub_cuda",
    "libnvidia-ml.so.1": "stub_nvml",
    "libnvidia-ml.so": "stub_nvml",
}
TITLE = "carpool stand-in GPU"


def find(size: str, lanes_max: int) -> list[DeviceFacts]:
    """One stand-in of the asked size, or several: `2x16GiB`."""
    cards, each = count_and_size("stub", size or "16GiB", most=CARDS_MAX)
    capacity = parse_bytes(each)
    directory = library_directory()
    return [
        DeviceFacts(
            id=f"gpu{card}",
            kind=cuda.KIND,
            capacity_bytes=capacity,
            title=TITLE,
            environment=environment(card, cards=cards, card_bytes=capacity),
            library_directory=directory,
        )
        for card in range(cards)
    ]


def uuid_of(card: int) -> str:
    """As native/fake/books.h makes it."""
    raw = b"carpool-stub-gp" + bytes([card])
    parts = [raw[0:4], raw[4:6], raw[6:8], raw[8:10], raw[10:16]]
    return "GPU-" + "-".join(part.hex() for part in parts)


def environment(card: int, *, cards: int, card_bytes: int) -> dict[str, str]:
    """What makes a program see this card and no other."""
    books = os.environ.get("CARPOOL_STUB_FILE") or f"/dev/shm/carpool-stub-{os.geteuid()}-{cards}x{card_bytes}"
    return {
        "CUDA_VISIBLE_DEVICES": uuid_of(card),
        "CARPOOL_STUB": f"{cards}x{card_bytes}",
        "CARPOOL_STUB_FILE": books,
    }


def library_directory() -> str:
    """A directory with the stand-ins under the names that programs look for."""
    directory = Path(tempfile.gettempdir()) / f"carpool-stub-{os.geteuid()}"
    if ":" in str(directory) or ";" in str(directory):
        raise UsageError(f"no program finds a library in {directory}: set TMPDIR to a path without : and ;")
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
        raise UsageError(f"{directory} is somebody else's; set TMPDIR to a directory of your own")
    directory.chmod(0o755)  # programs of other users load what is in it, where the daemon serves them
    for name, library in NAMES.items():
        found = find_library(library)
        if found is None:
            raise UsageError("the stand-in GPU was not built; install gcc, then reinstall carpool (make native)")
        link, draft = directory / name, directory / f"{name}.{os.getpid()}"
        if not link.is_symlink() or link.readlink() != Path(found):
            draft.unlink(missing_ok=True)
            draft.symlink_to(found)
            draft.replace(link)
    return str(directory)
