"""The messages between a job, its runner, a client and the daemon.

A *job* here is a process of a job that takes turns (a member). A *runner* is the process that started the job's
program and waits for its end: `carpool run` itself, or the background process of `carpool submit`. A *client* is the
command line, or anybody else with a question.

A message is a class under `@message(kind, sender, receiver, *words)`. The fields that are named there travel as words
of the frame, which is quick; all other fields travel as a JSON body behind it. framing.py, native/protocol.h and the
table in docs/protocol.md follow from this file. docs/protocol.md says how to add a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from carpool.wire.protocol import PROTOCOL as PROTOCOL

JOB, RUNNER, CLIENT, DAEMON, ANYBODY = "job", "runner", "client", "daemon", "any"


class Message:
    """What all messages are: equal by their fields. `dataclass` does not make that for each class: every start of a
    program waits for this module."""

    __slots__ = ()

    def _fields(self) -> list[tuple[str, object]]:
        names: tuple[str, ...] = type(self).__slots__
        return [(name, getattr(self, name)) for name in names]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and type(self) is type(other) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), *self._fields()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._fields())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a message travels: its number, from whom to whom, and which fields are words of its frame."""

    kind: int
    sender: str
    receiver: str
    words: tuple[str, ...]


FORMS: dict[type[Any], Form] = {}
_Class = TypeVar("_Class", bound=type[Message])


def message(kind: int, sender: str, receiver: str, *words: str) -> Callable[[_Class], _Class]:
    """Declare a message."""

    def declare(cls: _Class) -> _Class:
        FORMS[cls] = Form(kind=kind, sender=sender, receiver=receiver, words=words)
        return cls

    return declare


@message(1, JOB, DAEMON)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Attach(Message):
    """I am a process of this job and take turns. Answered by Attached or Refuse."""

    job: str
    pid: int  # as it has it for itself; it must be that of the process that connected, or of a child of it
    slot: int  # the page slot the meter claimed, or 0
    holding: bool  # it kept its turn while the daemon was away
    version: str
    protocol: int


@message(2, DAEMON, JOB, "slot", "pid")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Attached(Message):
    """Welcome; this is your slot of the page, and your pid as the daemon sees it, by which you can be rung."""

    slot: int
    pid: int = 0  # 0: the daemon does not see you


@message(3, JOB, DAEMON)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Ask(Message):
    """I want a turn. Answered by Grant, sooner or later."""


@message(4, DAEMON, JOB, "lane_bytes", "is_shared", "serial")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Grant(Message):
    """The turn is yours."""

    lane_bytes: int
    is_shared: bool  # the lane is shared: give scratch memory back with the turn
    serial: int = 0  # of a grant that may have been rung already


@message(5, JOB, DAEMON, "steps", "wants_more", "passed")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Return(Message):
    """My turn is over; with `wants_more` this is an Ask too."""

    steps: int
    wants_more: bool
    passed: int = 0  # the pass by which the turn went on already


@message(6, JOB, DAEMON, "persistent_bytes", "ephemeral_bytes", "overhead_bytes", "step_ns")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Measured(Message):
    """This is what I need between turns and inside one."""

    persistent_bytes: int
    ephemeral_bytes: int
    overhead_bytes: int
    step_ns: int
    steps_total: int  # how many steps there will be at my end, as my loops say; 0 if they do not


@message(7, JOB, DAEMON)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Detach(Message):
    """I go on without taking turns."""

    reason: str


@message(8, RUNNER, DAEMON)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Enter(Message):
    """Here is a new job (empty id), or I am the runner of a known one. Answered by Start, Wait or Refuse."""

    job: str
    spec: dict[str, object]
    argv: list[str]
    cwd: str
    pid: int
    child_pid: int  # 0 until the program runs
    version: str
    protocol: int


@message(9, DAEMON, RUNNER)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Start(Message):
    """Start the program, with this added to its environment."""

    job: str
    environment: dict[str, object]


@message(10, DAEMON, RUNNER)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Wait(Message):
    """A word for the user: why the program is not started yet or, once it runs, which limit of it is not kept."""

    job: str
    reason: str


@message(11, DAEMON, ANYBODY)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Refuse(Message):
    """No, for this reason."""

    reason: str


@message(12, RUNNER, DAEMON, "pid")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Started(Message):
    """The program runs."""

    pid: int


@message(13, RUNNER, DAEMON, "code", "signal")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Exited(Message):
    """The program ended with this code, or by this signal."""

    code: int
    signal: int


@message(14, DAEMON, RUNNER)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Stop(Message):
    """End the program."""


@message(15, CLIENT, DAEMON)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Call(Message):
    """One question or order. Answered by one Reply."""

    verb: str
    arguments: dict[str, object]
    version: str
    protocol: int


@message(16, DAEMON, CLIENT)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Reply(Message):
    """The answer; or, in `error`, a sentence why there is none, and `code` is the exit code for it."""

    answer: dict[str, object]
    error: str
    code: int


@message(17, DAEMON, JOB, "limit_bytes")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Park(Message):
    """Move your tensors to the host, at most so many bytes. Answered by Parked."""

    limit_bytes: int


@message(18, JOB, DAEMON, "moved_bytes", "move_ns")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Parked(Message):
    """They are there; or, with a reason, nothing was moved."""

    moved_bytes: int
    move_ns: int
    reason: str
    kept: str = ""  # what of the tensors stayed on the device, and why; empty if all left


@message(19, DAEMON, JOB)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Unpark(Message):
    """Bring them back. Answered by Unparked; a Grant says the same."""


@message(20, JOB, DAEMON, "move_ns")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Unparked(Message):
    """Everything is where it was; or, with a reason, everything is still on the host."""

    move_ns: int
    reason: str


@message(21, DAEMON, JOB)
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Trim(Message):
    """Give back what you can spare. Answered by Measured."""


@message(22, JOB, DAEMON, "gradient_bytes")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Gradients(Message):
    """So much of what I keep between turns is gradients, which the program drops when it clears them."""

    gradient_bytes: int
