"""The messages between a job, its runner, the command line and the daemon.

A *member* is a process of a job that takes turns. A *runner* is the process that started the job's program and
waits for its end (`carpool run` itself, or the background process of `carpool submit`). Fixed-size words carry the
hot path (Ask, Grant, Return); fields that are not words travel as a JSON body. docs/protocol.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Member to daemon: I belong to this job; answered by Attached or Refuse."""

    job: str
    pid: int
    slot: int  # the page slot the meter claimed, or 0
    holding: bool  # it kept its turn while the daemon was away
    version: str
    protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Member: I want a turn; answered by Grant, sooner or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    lane_bytes: int
    is_shared: bool  # the lane is shared: give scratch memory back with the turn
    serial: int = 0  # of a grant that may have been rung already


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Member: my turn is over; with `wants_more` it is an Ask too."""

    steps: int
    wants_more: bool
    passed: int = 0  # the pass by which the turn went on already


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Member: what I need between turns and inside one."""

    persistent_bytes: int
    ephemeral_bytes: int
    overhead_bytes: int
    step_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Member: so much of what I keep between turns is gradients; the program drops them when it clears them."""

    gradient_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """Daemon to a member that waits: move your tensors to the host, at most so many bytes; answered by Parked."""

    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Member: they are there; or, with a reason, nothing was moved."""

    moved_bytes: int
    move_ns: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpark:
    """Daemon to a parked member: bring them back; answered by Unparked. A Grant says the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unparked:
    """Member: everything is where it was; or, with a reason, everything is still on the host."""

    move_ns: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """Daemon to a member that waits: give back what you can spare; answered by Measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Member: I go on without taking turns."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter:
    """Runner to daemon: a new job (empty id), or the runner of a known one; answered by Start, Wait or Refuse."""

    job: str
    spec: dict[str, object]
    argv: list[str]
    cwd: str
    pid: int
    child_pid: int  # 0 until the program runs
    version: str
    protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Daemon to runner: start the program, with this added to its environment."""

    job: str
    environment: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Daemon to runner: why the program is not started yet."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """Runner: the program ended with this code, or by this signal."""

    code: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Daemon to runner: end the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Command line to daemon: one question or order; answered by one Reply."""

    verb: str
    arguments: dict[str, object]
    version: str
    protocol: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`error` is empty if it went well; else a sentence, and `code` is the exit code for it."""

    answer: dict[str, object]
    error: str
    code: int


Message = (
    Attach
    | Attached
    | Ask
    | Grant
    | Return
    | Measured
    | Gradients
    | Park
    | Parked
    | Unpark
    | Unparked
    | Trim
    | Detach
    | Enter
    | Start
    | Wait
    | Refuse
    | Started
    | Exited
    | Stop
    | Call
    | Reply
)
