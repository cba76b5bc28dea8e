"""What is special to one kind of device inside a job, one class a kind.

The daemon names the kind in CARPOOL_DEVICE_KIND. The agent cannot import `carpool.devices`, the daemon's side of the
same list, so it has this record of its own. No other module of the agent compares the name of a kind, and none but
cuda.py calls torch.cuda. docs/devices.md says how to add a kind.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any, Protocol

from carpool.agent import cuda
from carpool.agent.job_words import job_word
from carpool.agent.link import Link
from carpool.agent.memory import MeterSource, ResidentSource, Source, give_back_heap
from carpool.agent.parking.host_buffers import HostBuffer, host_buffer_in
from carpool.errors import PeerError


class Backend(Protocol):
    """How PyTorch's memory on one kind of device is measured, limited and moved."""

    name: str  # torch's word for such a device
    is_host_memory: bool  # the job's cap counts the host's own memory: torch's and Python's too

    def after_import(self, torch: Any, link: Link) -> int:
        """Torch was imported: see to the cap, and return what torch itself holds now; those bytes are overhead."""

    def make_source(self, torch: Any, link: Link) -> Source:
        """How much memory the program holds on the device."""

    def make_buffer(self, torch: Any, directory: str | None) -> HostBuffer | None:
        """Where tensors go while the job is parked; None if there is no such place."""

    def obstacle(self, torch: Any) -> str:
        """Why the tensors of this program must not be moved; empty if they may."""

    def sent_to_others(self, torch: Any) -> Set[int]:
        """Storages that another process may look at, where torch keeps a list of them."""

    def is_shared(self, storage: Any, sent: Set[int]) -> bool:
        """Whether this storage is another process's too; `sent` is what sent_to_others said."""

    def give_back(self, torch: Any) -> None:
        """Freed blocks stay with an allocator; give them back to the device."""


class Cpu:
    """The machine's cores: memory is the process's own heap, counted by the C meter where that is loaded."""

    name = "cpu"
    is_host_memory = True

    def after_import(self, torch: Any, link: Link) -> int:
        if link.is_metered:
            held = MeterSource(link).live_bytes()
            link.page.close()
            return held
        fallback = ResidentSource(link)
        fallback.enforce_cap()
        return fallback.live_bytes()

    def make_source(self, torch: Any, link: Link) -> Source:
        return MeterSource(link) if link.is_metered else ResidentSource(link)

    def make_buffer(self, torch: Any, directory: str | None) -> HostBuffer | None:
        return host_buffer_in(Path(directory)) if directory else None

    def obstacle(self, torch: Any) -> str:
        return ""

    def sent_to_others(self, torch: Any) -> Set[int]:
        return frozenset()

    def is_shared(self, storage: Any, sent: Set[int]) -> bool:
        return bool(storage.is_shared())

    def give_back(self, torch: Any) -> None:
        give_back_heap()


class Cuda:
    """An NVIDIA GPU, or its stand-in: memory is torch's caching allocator's."""

    name = "cuda"
    is_host_memory = False

    def after_import(self, torch: Any, link: Link) -> int:
        cuda.cap_from_the_start(torch, link)
        cuda.explain_refusals(torch, link)
        return 0

    def make_source(self, torch: Any, link: Link) -> Source:
        return cuda.CudaSource(torch, link)

    def make_buffer(self, torch: Any, directory: str | None) -> HostBuffer | None:
        return cuda.PinnedBuffer(torch)

    def obstacle(self, torch: Any) -> str:
        return "it captured CUDA graphs, which remember addresses of its memory" if cuda.has_graphs(torch) else ""

    def sent_to_others(self, torch: Any) -> Set[int]:
        return cuda.sent_to_others(torch)

    def is_shared(self, storage: Any, sent: Set[int]) -> bool:
        return storage._cdata in sent  # torch calls every CUDA storage shared; one from others is not resizable

    def give_back(self, torch: Any) -> None:
        cuda.give_back_cache(torch)


BACKENDS: dict[str, Backend] = {each.name: each for each in (Cpu(), Cuda())}


def backend_named(name: str) -> Backend:
    if name not in BACKENDS:
        raise PeerError(f"PyTorch on devices of the kind '{name}' is not known here, only on {', '.join(BACKENDS)}")
    return BACKENDS[name]


def own_backend() -> Backend:
    """That of the job's device; a program that no daemon started is on the CPU."""
    return backend_named(job_word("CARPOOL_DEVICE_KIND", Cpu.name))
