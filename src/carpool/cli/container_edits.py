"""What a container needs so that its programs take turns: a few mounts and variables.

For one container there is a job of its own (as `carpool adopt` makes it): the daemon's directory is mounted without a
right to write, nothing of other jobs is in it, and only the job's own directory can be written. For any number of
containers (`shared`) no variable names a job: each Python in them joins when it imports torch. Then the directories
of all the user's jobs can be written there, so such a container has to be trusted like the user.

carpool's package is mounted as it is, as it needs nothing but the container's Python. Parked memory goes where the
daemon has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import carpool
from carpool import calls
from carpool.client import Client
from carpool.devices.kinds import kind_named
from carpool.devices.libraries import find_library
from carpool.wire.joining import ENV_JOIN, spec_of
from carpool.wire.places import Places
from carpool.wire.protocol import ENV_KNOCK, ENV_PAGE, ENV_PARKED, ENV_SOCKET

RUN, PARKED, PACKAGE = Path("/run/carpool"), Path("/run/carpool-parked"), Path("/opt/carpool/carpool")
INJECT = str(PACKAGE / "agent" / "inject")
CDI_KIND, CDI_VERSION = "carpool.dev/share", "0.5.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    inside: Path
    host: Path | None = None  # None: an empty directory, in memory
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What is added to a container; the mounts in their order, as some lie in others."""

    mounts: list[Mount]
    environment: dict[str, str]
    job: str = ""  # that of the container; empty for any number of them


def package() -> Path:
    return Path(carpool.__file__).resolve().parent


def edits_of_job(places: Places, joined: calls.Joined, *, no_meter: bool) -> Edits:
    """For one container, whose job was made."""
    parts = {key: value for key, value in joined.environment.items() if isinstance(value, dict)}
    environment = {**parts.get("default", {}), **parts.get("set", {})}
    page = Path(joined.page)
    environment |= {
        ENV_SOCKET: str(RUN / places.socket.name),
        ENV_KNOCK: str(RUN / places.knock.name),
        ENV_PAGE: str(RUN / page.relative_to(places.run)),
        ENV_PARKED: str(PARKED),
        "PYTHONPATH": INJECT,
    }
    library = parts.get("prepend", {}).get("LD_PRELOAD", "")
    if library and not no_meter:
        environment["LD_PRELOAD"] = str(PACKAGE / "_native" / Path(library).name)
    directory = page.parent
    mounts = [
        Mount(inside=RUN, host=places.run, is_read_only=True),
        Mount(inside=RUN / places.jobs.name),
        Mount(inside=RUN / directory.relative_to(places.run), host=directory),
        Mount(inside=PACKAGE, host=package(), is_read_only=True),
        Mount(inside=PARKED, host=Path(parts.get("set", {}).get(ENV_PARKED, places.parked))),
    ]
    return Edits(mounts=mounts, environment=environment, job=joined.job)


def shared_edits(places: Places, options: Mapping[str, object], *, no_meter: bool) -> Edits:
    """For any number of containers; UsageError for an option that is wrong, UnreachableError without a daemon."""
    spec_of(options, name="container")  # it says what is wrong before any container is started
    environment = {
        ENV_JOIN: "1",
        ENV_SOCKET: str(RUN / places.socket.name),
        ENV_PARKED: str(PARKED),
        "PYTHONPATH": INJECT,
        **{f"CARPOOL_{name.upper()}": str(value) for name, value in options.items() if value not in (None, False)},
    }
    kinds = [kind_named(device.kind) for device in Client(places=places).status().devices]
    meter = next((find_library(kind.library) for kind in kinds if not kind.needs_library), None)
    if meter is not None and not no_meter:
        environment["LD_PRELOAD"] = str(PACKAGE / "_native" / Path(meter).name)
    mounts = [
        Mount(inside=RUN, host=places.run, is_read_only=True),
        Mount(inside=RUN / places.jobs.name, host=places.jobs),
        Mount(inside=PACKAGE, host=package(), is_read_only=True),
        Mount(inside=PARKED, host=places.parked),
    ]
    return Edits(mounts=mounts, environment=environment)


def engine_words(edits: Edits, engine: str) -> list[str]:
    """The words to add behind `docker run` or `podman run`: as the same user, whom the kernel tells the daemon."""
    words = []
    if engine == "docker":
        words.append(f"--user={os.geteuid()}:{os.getegid()}")
    elif os.geteuid() != 0:
        words.append("--userns=keep-id")
    for mount in edits.mounts:
        if mount.host is None:
            # podman copies what lies there into it, unless it is told not to
            words.append(f"--tmpfs={mount.inside}{':notmpcopyup' if engine == 'podman' else ''}")
        else:
            words.append(f"--volume={mount.host}:{mount.inside}{':ro' if mount.is_read_only else ''}")
    return [*words, *(f"--env={name}={value}" for name, value in edits.environment.items())]


def bwrap_words(edits: Edits) -> list[str]:
    """The same for bubblewrap, behind those that make the file system."""
    words: list[str] = []
    for mount in edits.mounts:
        if mount.host is None:
            words += ["--tmpfs", str(mount.inside)]
        else:
            words += ["--ro-bind" if mount.is_read_only else "--bind", str(mount.host), str(mount.inside)]
    for name, value in edits.environment.items():
        words += ["--setenv", name, value]
    return words


def cdi_spec(edits: Edits, device: str) -> dict[str, object]:
    """A file of the Container Device Interface, which podman, containerd, CRI-O and Docker read. Its mounts are of
    files that the host has, so a job's own container sees the names of other jobs of its user."""
    mounts = []
    for mount in edits.mounts:
        if mount.host is not None:
            options = ["rbind", "ro" if mount.is_read_only else "rw"]
            mounts.append({"hostPath": str(mount.host), "containerPath": str(mount.inside), "options": options})
    environment = [f"{name}={value}" for name, value in edits.environment.items()]
    return {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [{"name": device, "containerEdits": {"env": environment, "mounts": mounts}}],
    }
