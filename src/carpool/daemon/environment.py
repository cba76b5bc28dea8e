"""What a job finds in its environment so that carpool is inside it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import carpool
from carpool.core.kernel.ids import SHARE_ONE
from carpool.core.node.model import JobSpec
from carpool.daemon import hold_ups
from carpool.daemon.files import JobFile
from carpool.devices.base import DeviceFacts, DeviceKind
from carpool.devices.libraries import find_library
from carpool.devices.loading import interpreters, would_not_start
from carpool.errors import UsageError
from carpool.units import SECOND, format_bytes, format_list
from carpool.wire import protocol
from carpool.wire.places import Places

Found = TypeVar("Found")
PYTHONS = ("python", "torchrun", "accelerate")
PYTHON_BYTES_MIN = 4 << 20  # it takes 1 MiB before the first line runs, and without them ends in a fatal error
GRACE_NS = 2 * SECOND  # the core counts the time; a program whose daemon is gone counts itself, so much longer
FORLORN_NS = 60 * SECOND  # the same where nobody said how long: longer than the core lets it wait (memory/waiting.py)
_UNFIT = re.compile(r"[\s:]")
SANITIZER_OPTION = (
    "verify_asan_link_order=0"  # else a program with gcc's address sanitizer ends: it wants to be first
)
INJECT = Path(carpool.__file__).parent / "agent" / "inject"


def check_cap(device: DeviceFacts, spec: JobSpec, argv: list[str]) -> None:
    """A UsageError for a cap under which a Python would not come to the program's first line."""
    cap_bytes = spec.cap_bytes
    if not device.kind.is_host_memory or cap_bytes is None or cap_bytes >= PYTHON_BYTES_MIN:
        return
    if Path(argv[0]).name.startswith(PYTHONS):
        raise UsageError(
            f"--memory {format_bytes(cap_bytes)} is too little for Python itself: give at least"
            f" {format_bytes(PYTHON_BYTES_MIN)}, and 64 MiB to a program that imports torch"
        )


def preloadable(library: str | None, places: Places) -> str | None:
    """A name of this library for LD_PRELOAD, where names end at a space or colon: a link, if need be.

    None where there is no library, or carpool's own directory is no better a place.
    """
    if library is None or not _UNFIT.search(library):
        return library
    link = places.run / "preload" / Path(library).name
    if _UNFIT.search(str(link)):
        return None
    link.parent.mkdir(mode=0o700, exist_ok=True)
    if places.is_machine:
        link.parent.chmod(0o755)
    if not link.is_symlink() or link.readlink() != Path(library):
        draft = link.with_name(f"{link.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.symlink_to(library)
        draft.replace(link)
    return str(link)


def job_environment(places: Places, device: DeviceFacts, file: JobFile, page: Path) -> dict[str, object]:
    """`set` replaces, `prepend` goes before what the user has, `default` yields to what the user has.

    A UsageError says what of the job's options could not be kept.
    """
    spec = file.spec
    is_capped = spec.cap_bytes is not None
    prepend = {"PYTHONPATH": str(INJECT)}
    kind = device.kind
    settings = {
        protocol.ENV_JOB: file.job,
        protocol.ENV_SOCKET: str(places.socket),
        protocol.ENV_PAGE: str(page),
        protocol.ENV_KNOCK: str(places.knock),
        protocol.ENV_DEVICE_KIND: kind.name,
        protocol.ENV_VERSION: carpool.__version__,
        protocol.ENV_PARKED: str(places.parked_of(file.uid)),
    }
    library = preloadable(find_library(kind.library), places)
    if library is not None and kind.needs_library and _looked_at(file, would_not_start, otherwise=False):
        library = None  # `carpool run` refused what cannot be kept without it
    elif library is not None:
        prepend["LD_PRELOAD"] = library
        prepend["ASAN_OPTIONS"] = SANITIZER_OPTION
    else:
        _check_without_library(places, kind, file)
    if is_capped:
        settings[protocol.ENV_IS_CAPPED] = "1"
    if kind.has_turns_at_launches:
        settings[protocol.ENV_TURNS_AT_LAUNCHES] = "1"
    if spec.wait_memory_ns is not None:
        settings[protocol.ENV_WAIT_MEMORY_NS] = str(spec.wait_memory_ns + (GRACE_NS if kind.knocks else 0))
    elif kind.knocks and not is_capped:
        settings[protocol.ENV_WAIT_MEMORY_NS] = str(FORLORN_NS)
    if spec.may_oversubscribe:
        if not kind.can_oversubscribe:
            raise UsageError("--oversubscribe works on GPUs only: leave it out, or choose another --device")
        settings[protocol.ENV_MAY_OVERSUBSCRIBE] = "1"
    if device.library_directory:
        prepend["LD_LIBRARY_PATH"] = device.library_directory
    settings.update(device.environment)
    return {"set": settings, "prepend": prepend, "default": dict(device.defaults)}


def _check_without_library(places: Places, kind: DeviceKind, file: JobFile) -> None:
    """A UsageError for what only the library in the program keeps.

    Of a torch program the turns keep the share. Whether a Python comes to torch, nobody knows before it does.
    """
    spec = file.spec
    if not kind.needs_library:
        if spec.wait_memory_ns is not None:
            raise UsageError(
                "--wait-memory needs the byte meter, which is missing here: leave it out, or see carpool doctor"
            )
        return
    has_share = spec.guaranteed_milli > 0 or spec.limit_milli < SHARE_ONE
    kept_by_guest = {
        "--memory": spec.cap_bytes is not None,
        "--compute": has_share and not _is_python(file),
        "--oversubscribe": spec.may_oversubscribe,
        "--wait-memory": spec.wait_memory_ns is not None,
    }
    lost = [option for option, is_asked in kept_by_guest.items() if is_asked]
    if not lost:
        return
    options = format_list(lost)
    turns = " (PyTorch keeps it by its turns, if python is what you start)" if lost == ["--compute"] else ""
    raise UsageError(
        f"{options} cannot be kept on a GPU: {_why_no_library(places, kind.library)}, or run without {options}{turns}"
    )


def _is_python(file: JobFile) -> bool:
    """Whether what the job starts is a Python, or a script of one (torchrun is)."""
    nothing: list[Path] = []
    files = _looked_at(file, interpreters, otherwise=nothing)
    return any(each.name.startswith(PYTHONS) for each in (Path(file.argv[0]), *files))


def _looked_at(file: JobFile, look: Callable[..., Found], *, otherwise: Found) -> Found:
    """What is found of the program's files, which are its user's: they may be anything, or not come."""
    program, path = program_of(file), search_path_of(file)
    try:
        return hold_ups.ask(file.uid, program, lambda: look(program, path=path), otherwise)
    except OSError:
        return otherwise


def program_of(file: JobFile) -> str:
    """What the job starts, as it is found from anywhere."""
    program = file.argv[0]
    return str(Path(file.cwd) / program) if "/" in program else program


def search_path_of(file: JobFile) -> str | None:
    """Where it looks for programs; None for `carpool run`, whose environment nobody keeps."""
    return (file.environment or {}).get("PATH")


def _why_no_library(places: Places, library: str) -> str:
    built = find_library(library)
    if built is None:
        return "the library that does it was not built; install gcc and reinstall carpool"
    return (
        f"the library that does it is in {Path(built).parent}, and no program can preload it from a path with a space"
        f" or colon, nor from {places.run}; set CARPOOL_DIR to a directory without"
    )
