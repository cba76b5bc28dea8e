"""Waits for the program's own `import torch`, then installs the hooks. Loads nothing else before that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

TORCH_BYTES = 40 << 20  # what its import takes on the CPU device, with our own modules, seen with torch 2.13

words: dict[str, str] | None = None  # what the environment says of the job, before the program's own code runs


class TorchWatcher:
    """A finder that recognises one name, lets the others find it, and acts after its module has run.

    It stays until then: libraries ask whether torch could be found long before anybody imports it.
    """

    _is_asking = False  # another such finder may ask us in its turn

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._is_asking = False
        if spec is not None:
            _act_after(spec, self)
        return spec

    def _ask_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


def _act_after(spec: ModuleSpec, watcher: TorchWatcher) -> None:
    loader = spec.loader
    real_exec = getattr(loader, "exec_module", None)
    if loader is None or real_exec is None:
        return

    def exec_module(module: ModuleType) -> None:
        if os.environ.get("CARPOOL_JOIN") and not os.environ.get("CARPOOL_JOB"):
            from carpool.agent import joining

            joining.join_at_import()
        trouble = lacks_room()
        if trouble:
            raise MemoryError(trouble)
        real_exec(module)
        if watcher in sys.meta_path:
            sys.meta_path.remove(watcher)
        if is_of_job():
            install_hooks(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]  # this loader object serves this import only


def is_of_job() -> bool:
    """Whether this process is, or will be: a warm parent's programs are."""
    from carpool.agent.job_words import job_word

    return bool(job_word("CARPOOL_JOB"))


def install_hooks(torch: ModuleType) -> None:
    """The program has imported torch."""
    try:
        if _is_left_alone(torch):
            return
        from carpool.agent import warm_up
        from carpool.agent.checkpoint import replay_guard
        from carpool.agent.turns import torch_hooks

        warm_up.make_first_calls(torch)
        if replay_guard.current is not None:
            from carpool.agent.checkpoint import install

            install.install_checkpoints(torch, replay_guard.current)
        torch_hooks.install(torch)
    except Exception as error:  # noqa: BLE001 - our trouble is not the program's
        for go_alone in _tellers:
            go_alone(f"{type(error).__name__}: {error}")


def _is_left_alone(torch: ModuleType) -> bool:
    """Whether nobody tried this torch under carpool (Z10)."""
    from carpool.agent.checkpoint import replay_guard
    from carpool.wire import supported

    trouble = supported.torch_trouble(str(getattr(torch, "__version__", "")))
    if trouble and replay_guard.current is not None and replay_guard.current.is_replaying:
        replay_guard.current.fail(trouble)
    for go_alone in _tellers if trouble else ():
        go_alone(trouble)
    return bool(trouble)


def lacks_room() -> str:
    """Why the program cannot import torch under its cap, if it cannot: torch's own C++ would end the whole process
    where this is an error that a program can catch."""
    from carpool.agent.job_words import job_word

    if not job_word("CARPOOL_DEVICE_KIND"):
        return ""
    from pathlib import Path

    from carpool.agent.backends import own_backend
    from carpool.errors import PeerError
    from carpool.units import format_bytes
    from carpool.wire import caps, page

    if not own_backend().is_host_memory:
        return ""
    try:
        shared = page.Page.open(Path(job_word("CARPOOL_PAGE")))
    except PeerError:
        return ""
    slot, cap = shared.slot_of(os.getpid()), shared.words[page.H_CAP] if caps.is_own(shared.words) else 0
    held = shared.live_bytes(slot) if slot is not None else 0
    waits = job_word("CARPOOL_WAIT_MEMORY_NS") and caps.is_worth_waiting(shared.words, held + TORCH_BYTES)
    shared.close()
    if slot is None or not cap or waits or held + TORCH_BYTES <= cap:
        return ""
    return (
        f"importing torch takes about {format_bytes(TORCH_BYTES)}; job {job_word('CARPOOL_JOB')} may hold"
        f" {format_bytes(cap)} and holds {format_bytes(held)}: raise the cap with --memory"
    )


_tellers: list[Callable[[str], None]] = []  # sitecustomize's, at most one


def note_words() -> None:
    """Note what the environment says of the job: the program's own code may clear it."""
    global words
    words = {name: value for name, value in os.environ.items() if name.startswith("CARPOOL_")}


def remember(go_alone: Callable[[str], None]) -> None:
    """`go_alone` says why this program takes no turns."""
    _tellers[:] = [go_alone]


def watch(go_alone: Callable[[str], None]) -> None:
    """Called by the injected sitecustomize at interpreter start."""
    note_words()
    remember(go_alone)
    if os.environ.get("CARPOOL_RECORD"):
        from carpool.agent.checkpoint import replay_guard

        replay_guard.begin()
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, TorchWatcher())
