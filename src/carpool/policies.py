"""All policies there are: carpool's own, those that installed packages bring, and files of yours.

A policy is named on the command line by its *reference*:
  srtf              one of carpool's own: a file in core/policies
  newest            one that an installed package brings: an entry point of the group `carpool.policies`
  ./mine.py:Mine    a class in a file; `:Mine` may be left out where the file has only one
  package.mod:Mine  a class in a module that can be imported

How to write one: docs/policies.md. What is wrong with one: `carpool policy check`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import carpool.core.policies
from carpool.core.kernel.ids import JobId, TenantId
from carpool.core.policies.base import Policy, Rank
from carpool.core.policies.levels import Levels
from carpool.core.policies.view import JobView
from carpool.errors import Endless, UsageError
from carpool.units import SECOND, format_list

__all__ = ["PLACES", "POLICIES", "JobView", "Levels", "Policy", "Rank", "faults_of", "find_policy", "names_for"]

PLACES = ("node", "cluster")
GROUP = "carpool.policies"  # of entry points
PATIENCE_SECONDS = 2.0  # every job of the node waits for a policy's answer
SLOW_SECONDS, SLOW_CALLS = 0.05, 3  # one slow call may be the machine's fault

Said = TypeVar("Said")


def _built_in() -> Iterator[Policy]:
    """One of every policy class that a file of core/policies defines."""
    folder = carpool.core.policies
    for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        for kind in policies_in(importlib.import_module(found.name)):
            yield kind()


def policies_in(module: ModuleType) -> list[type[Policy]]:
    """The policy classes that the module defines itself, not those it imports."""
    kinds = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return [each for each in kinds if issubclass(each, Policy) and not inspect.isabstract(each)]


POLICIES: dict[str, Policy] = {policy.name: policy for policy in _built_in()}


def names_for(place: str) -> list[str]:
    """The built-in policies that run on a node, or in a cluster."""
    return [name for name, policy in POLICIES.items() if place in policy.runs_on]


def entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """What installed packages bring, by name; a name of carpool's own stays carpool's."""
    found = importlib.metadata.entry_points(group=GROUP)
    return {each.name: each for each in found if each.name not in POLICIES}


# --- from a reference to a policy ------------------------------------------------------------------------------


def find_policy(reference: str, *, place: str | None = None) -> Policy:
    """The policy of that reference, whole and fit for the place; a UsageError says what is missing."""
    policy = POLICIES.get(reference)
    if policy is None:
        policy = load(reference, place=place)
        faults = faults_of(policy)
        if faults:
            raise UsageError(f"policy {reference}: {faults[0]}")
    if place is not None and place not in policy.runs_on:
        where = " and ".join(policy.runs_on)
        raise UsageError(f"policy {reference} runs on a {where} only; on a {place} there are {_known(place)}")
    return policy


def in_full(reference: str) -> str:
    """The reference as it can be found again from any directory: that of a file has its whole path and its class."""
    if not _is_file(reference):
        return reference
    return f"{Path(_split(reference)[0]).absolute()}:{type(load(reference)).__name__}"


def load(reference: str, *, place: str | None = None) -> Policy:
    """An object of the class that the reference names; what it holds is not looked at yet (`faults_of`)."""
    if reference in POLICIES:
        return POLICIES[reference]
    if not _is_file(reference) and ":" not in reference:
        entry = entry_points().get(reference)
        if entry is None:
            raise UsageError(f"unknown policy '{reference}'; there are {_known(place)}, or a file: ./mine.py:Mine")
        return load(entry.value, place=place)
    source, name = _split(reference)
    module = _load_file(source) if _is_file(reference) else _load_module(source)
    return _make(_class_in(module, name, source), reference)


def _known(place: str | None) -> str:
    return ", ".join([*(names_for(place) if place is not None else POLICIES), *entry_points()])


def _is_file(reference: str) -> bool:
    source = _split(reference)[0]
    return "/" in source or source.endswith(".py")


def _split(reference: str) -> tuple[str, str]:
    source, _, name = reference.partition(":")
    return source, name


def _load_file(source: str) -> ModuleType:
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"there is no file {source} with a policy; correct its path (in {Path.cwd()})")
    spec = importlib.util.spec_from_file_location(f"carpool_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{source} is no Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file of somebody else's: whatever it raises
        raise UsageError(f"{source} cannot be loaded: {_said(error)}") from error
    return module


def _load_module(source: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except (Exception, SystemExit) as error:  # as above
        raise UsageError(
            f"module {source} cannot be imported: {_said(error)}; install it, or give a file: ./mine.py:Mine"
        ) from error


def _class_in(module: ModuleType, name: str, source: str) -> type:
    names = [each.__name__ for each in policies_in(module)]
    if not name:
        if len(names) != 1:
            if names:
                raise UsageError(f"{source} has {' and '.join(names)}; say which, like {source}:{names[0]}")
            raise UsageError(f"{source} has no class that derives from Policy{_unfinished(module)}")
        name = names[0]
    found = getattr(module, name, None)
    if found is None:
        said = f"it has {', '.join(names)}" if names else "it has no class that derives from Policy"
        raise UsageError(f"{source} has no class {name}; {said}")
    if not inspect.isclass(found) or not issubclass(found, Policy):
        raise UsageError(f"{name} in {source} is no policy; it must derive from carpool.policies.Policy")
    return found


def _unfinished(module: ModuleType) -> str:
    """What classes of the module lack that would be policies."""
    kinds = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    lacks = [
        f"{each.__name__} has no {' and no '.join(sorted(each.__abstractmethods__))}"
        for each in kinds
        if issubclass(each, Policy) and inspect.isabstract(each)
    ]
    return f" and is whole: {'; '.join(lacks)}" if lacks else ""


def _make(kind: type, reference: str) -> Policy:
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise UsageError(f"policy {reference} has no {' and no '.join(missing)}; docs/policies.md shows a whole one")
    try:
        policy: Policy = kind()
    except (Exception, SystemExit) as error:  # as above
        raise UsageError(f"policy {reference} cannot be made: {kind.__name__}() raises {_said(error)}") from error
    return policy


def _said(error: BaseException) -> str:
    where = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
    return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}{where}"


# --- which options mean something under it ---------------------------------------------------------------------

_PROBED = JobView(
    id=JobId("a"),
    name="a",
    tenant=TenantId("a"),
    priority=0,
    arrived_ns=0,
    is_holding=False,
    held_ns=0,
    waited_ns=0,
    served_ns=SECOND,
    remaining_ns=SECOND,
    remaining_is_known=True,
    level=SECOND,
    tenant_level=SECOND,
    size_milli=1000,
)
_PROBES = (_PROBED, _PROBED._replace(waited_ns=3600 * SECOND), _PROBED._replace(is_holding=True, held_ns=SECOND))
OPTIONS: dict[str, Callable[[JobView], JobView]] = {  # of a job: how its views differ by it
    "--priority": lambda view: view._replace(priority=5),
    "--weight": lambda view: view._replace(level=5 * SECOND),
    "--tenant": lambda view: view._replace(tenant=TenantId("b"), tenant_level=5 * SECOND),
}


def counts(policy: Policy, option: str) -> bool:
    """Whether an option of a job changes its rank. Found out by asking, as ranks are pure: nobody declares it."""
    if option == "--tenant" and policy.by_tenant:
        return True
    try:
        ranks = [(policy.rank(view, now=0), policy.rank(OPTIONS[option](view), now=0)) for view in _PROBES]
    except Exception:  # noqa: BLE001 - a class of somebody else's: whatever it raises, nothing is known
        return True
    return any(before != after for before, after in ranks)


def meaning_of(option: str, *, place: str) -> str:
    """Under which of carpool's policies an option means something, in words."""
    names = [name for name in names_for(place) if counts(POLICIES[name], option)]
    return f"only under {'policy' if len(names) == 1 else 'policies'} {format_list(names)}"


# --- a policy of somebody else's at work -----------------------------------------------------------------------


class Guarded(Policy):
    """A policy whose faults do not end the daemon: after the first one, jobs go in the order in which they came.

    The same events lead to the same fault, so a replay of the journal falls back at the same decision. One that is
    slow is only named. One that does not answer for PATIENCE_SECONDS is interrupted; that has failed too.
    """

    def __init__(self, policy: Policy, say: Callable[[str], None]) -> None:
        self.name, self.quantum_ns, self.lanes_max = policy.name, policy.quantum_ns, policy.lanes_max
        self.by_tenant, self.levels, self.runs_on = policy.by_tenant, policy.levels, policy.runs_on
        self.by_length = policy.by_length
        self.by_turns = policy.by_turns
        self._policy, self._say = policy, say
        self._is_timed = False
        self._slow_calls = 0
        self.trouble = ""  # what was said of the first fault
        self.slowness = ""  # or that it is slow

    def watch_the_clock(self) -> None:
        """From now on notice when it is slow or does not end. In the main thread only: a signal interrupts it."""
        signal.signal(signal.SIGALRM, _interrupt)
        self._is_timed = True

    def _ask(self, question: Callable[[], Said]) -> Said:
        if not self._is_timed:
            return question()
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS, PATIENCE_SECONDS)
        try:
            return question()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._note_time(time.monotonic() - began)

    def _note_time(self, seconds: float) -> None:
        self._slow_calls += SLOW_SECONDS <= seconds < PATIENCE_SECONDS
        if self._slow_calls >= SLOW_CALLS and not self.slowness:
            self.slowness = (
                f"policy {self.name} is slow: it took {seconds * 1000:.0f} ms to answer for one job, and every job"
                " waits meanwhile. Look at it with carpool policy check, and restart the daemon"
            )
            self._say(self.slowness)

    def rank(self, view: JobView, *, now: int) -> Rank:
        if not self.trouble:
            try:
                rank: object = self._ask(lambda: self._policy.rank(view, now=now))
            except BaseException as error:  # noqa: BLE001 - a class of somebody else's: KeyboardInterrupt too
                self._give_up(f"rank() {self._fault(error)}")
            else:
                if isinstance(rank, tuple) and all(isinstance(part, int) for part in rank):
                    return rank
                self._give_up(f"a rank is {rank!r}, not a tuple of whole numbers")
        return ()

    def why(self, chosen: JobView, over: JobView) -> str:
        if not self.trouble:
            try:
                return self._ask(lambda: str(self._policy.why(chosen, over)))
            except BaseException as error:  # noqa: BLE001 - as above
                self._give_up(f"why() {self._fault(error)}")
        return f"{chosen.name} came before {over.name}"

    def _fault(self, error: BaseException) -> str:
        """What it did, with the line of its file: of all that it called, the last one there."""
        frames: list[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
        code = getattr(inspect.unwrap(type(self._policy).rank), "__code__", None)
        frames = [each for each in frames if code is not None and each.filename == code.co_filename] or frames
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "an unknown line"
        if isinstance(error, Endless):
            return f"does not come to an end (it was at {where} after {PATIENCE_SECONDS:g} s)"
        return f"raises {_said(error)} ({where})"

    def _give_up(self, fault: str) -> None:
        self.trouble = (
            f"policy {self.name} failed: {fault}; from now on jobs go in the order in which they came. Look at it"
            " with carpool policy check, and restart the daemon"
        )
        self._say(self.trouble)


def _interrupt(number: int, frame: object) -> None:
    raise Endless


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Endless inside what takes longer; in another thread than the main one nothing does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- what a policy must have -----------------------------------------------------------------------------------


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value != "" and value.strip() == value


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_places(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(each in PLACES for each in value)


WANTED: dict[str, tuple[str, Callable[[object], bool]]] = {
    "name": ("a word", _is_word),
    "quantum_ns": (
        "a whole number of nanoseconds, 0 or more, or None",
        lambda value: value is None or _is_count(value, 0),
    ),
    "lanes_max": ("a whole number, 1 or more", lambda value: _is_count(value, 1)),
    "by_tenant": ("True or False", lambda value: isinstance(value, bool)),
    "by_length": ("True or False", lambda value: isinstance(value, bool)),
    "by_turns": ("True or False", lambda value: isinstance(value, bool)),
    "levels": ("carpool.policies.Levels", lambda value: isinstance(value, Levels)),
    "runs_on": (f"a tuple of some of {' and '.join(PLACES)}", _are_places),
}


def faults_of(policy: Policy) -> list[str]:
    """What is wrong with what a policy says of itself; its ranks are looked at by carpool.testing.policies."""
    faults = [
        f"{name} must be {wanted}; it is {getattr(policy, name, None)!r}"
        for name, (wanted, is_right) in WANTED.items()
        if not is_right(getattr(policy, name, None))
    ]
    if not faults and policy.name in POLICIES and type(policy) is not type(POLICIES[policy.name]):
        faults.append(f"it calls itself {policy.name}, and carpool has a policy of that name; give it another name")
    return faults
