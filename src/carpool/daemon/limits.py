"""Whether the limits of a job are kept in all of its processes.

carpool's library keeps them, from inside. A process may run without it: a static program, one with other rights, one
in a file system without carpool's files. Nobody in such a process can say so, and so the daemon looks: shortly after
a program starts, and with every note while jobs live. Only jobs with a limit are looked at. Decides nothing.

What a program has loaded is read once; a process is read again when it executes another program.

Rules
  I8  A process is said to be without the library only if two looks found the same program in it without: one that was
      just started has not loaded it yet.
  I9  It is said once a job, whatever becomes of its processes and of the daemon. `ps` shows it while they live.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from carpool.core.kernel.ids import JobId
from carpool.daemon import hold_ups, processes
from carpool.daemon.environment import preloadable, program_of, search_path_of
from carpool.daemon.families import children_of, with_descendants
from carpool.daemon.jobs import LiveJob
from carpool.daemon.sentences import limit_loss, limits_of
from carpool.devices.kinds import kind_named
from carpool.devices.libraries import find_library
from carpool.devices.loading import obstacle
from carpool.wire import messages as m
from carpool.wire.places import Places

log = logging.getLogger("carpool")
LOOK_SECONDS = 0.5  # after a program's start, and between the two looks of I8; a loader needs milliseconds
JOINED_LATE = (
    "it ran already when it joined, and carpool's library gets into a program at its start only; start it with the"
    " variables of carpool adopt"
)
OTHER_RIGHTS = "it runs with other rights than the daemon's, and its loader takes no libraries from you"


class Limits:
    def __init__(self, jobs: Mapping[JobId, LiveJob], places: Places) -> None:
        self._jobs = jobs
        self._places = places
        self._timer: asyncio.TimerHandle | None = None
        self._kept: set[processes.Image] = set()  # programs that have the library
        self._suspects: set[processes.Image] = set()  # those that had it not at the last look

    def look_soon(self) -> None:
        """A program starts: look at it when it has had the time to load its libraries."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look)

    def look(self) -> None:
        """Look at the processes of all jobs with a limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limited = [live for live in self._jobs.values() if live.page is not None and limits_of(live)]
        parents = processes.parents() if limited else {}
        children = children_of(parents)
        inside = processes.by_pages({live.file.uid for live in limited})
        kinds = {live.file.kind for live in limited}
        libraries = {kind: preloadable(find_library(kind_named(kind).library), self._places) for kind in kinds}
        before, self._suspects = self._suspects, set()
        kept, self._kept = self._kept, set()
        for live in limited:
            mine = inside[live.file.uid].get(live.page_path, set()) | ({live.file.child_pid} & parents.keys())
            library = libraries[live.file.kind]
            if library is not None:
                self._look_at(live, library, with_descendants(mine, children), kept, before)
        if self._suspects - before:
            self.look_soon()

    def _look_at(
        self,
        live: LiveJob,
        library: str,
        pids: set[int],
        kept: set[processes.Image],
        before: set[processes.Image],
    ) -> None:
        found: dict[int, str] = {}
        for pid in pids:
            image = processes.image_of(pid)
            if image is None:
                continue
            files = processes.mapped_files(pid) if image not in kept else set()
            if image in kept or has_library(live, library, files):
                self._kept.add(image)
                continue
            if not uses_device(live, files):
                continue
            self._suspects.add(image)
            if image in before:
                found[pid] = live.unlimited.get(pid) or (
                    JOINED_LATE if live.file.is_joined else why_without(pid, library, self._places.run)
                )
        live.unlimited = found
        if found and not live.file.is_limit_loss_said:
            self._say(live, library)

    def _say(self, live: LiveJob, library: str) -> None:
        """Tell it to the job's user; of the program itself `carpool run` has said it, where its file told."""
        live.file.is_limit_loss_said = True
        live.save_or_warn()
        said = limit_loss(live)
        log.warning("job.limit_lost job=%s reason=%s", live.id, said)
        is_first = set(live.unlimited) == {live.file.child_pid}
        is_foreseen = is_first and _foreseen(live, library)
        if live.runner is not None and said and not is_foreseen:
            live.runner.send(m.Wait(job=live.id, reason=said))


def _foreseen(live: LiveJob, library: str) -> bool:
    """Whether `carpool run` could tell it from the program's file, which is its user's."""
    program, path = program_of(live.file), search_path_of(live.file)
    try:
        return bool(hold_ups.ask(live.file.uid, program, lambda: obstacle(program, library, path=path), None))
    except OSError:
        return False


def has_library(live: LiveJob, library: str, files: set[str]) -> bool:
    """Whether the library is among the files of a process; on the host's memory also the page, without which it is
    off. The name tells: where the file is seen, and its number, may differ between file systems."""
    name = Path(library).resolve().name
    is_there = any(file.endswith(f"/{name}") for file in files)
    is_on = not kind_named(live.file.kind).is_host_memory or any(file.endswith(f"/{live.id}/page") for file in files)
    return is_there and is_on


def uses_device(live: LiveJob, files: set[str]) -> bool:
    """Whether a process could hold memory of the job's device: on a GPU, whether it has loaded the driver."""
    is_host_memory = kind_named(live.file.kind).is_host_memory
    return is_host_memory or any(Path(file).name.startswith("libcuda.so") for file in files)


def why_without(pid: int, library: str, run: Path) -> str:
    """Why the library is not in a process, and what to do about it, as far as its files tell."""
    why = processes.look(pid, "exe", lambda: obstacle(f"/proc/{pid}/exe", library), None)
    if why is not None:
        return why
    found = processes.look(pid, "root", lambda: _finds(Path(f"/proc/{pid}/root{library}")), "")
    if found == OTHER_RIGHTS:
        return OTHER_RIGHTS
    if not found:
        files = f"{Path(library).parent} and {run}"
        return f"carpool's files are not in its file system; give it {files} under the same paths"
    if library not in processes.variable_of(pid, "LD_PRELOAD"):
        return "LD_PRELOAD was taken from its environment; start it with the variables of the job"
    return "carpool's library cannot count inside it, and said so there"


def _finds(path: Path) -> str:
    """Whether a file is seen there, in words."""
    try:
        path.stat()
    except PermissionError:
        return OTHER_RIGHTS
    return "it is there"
