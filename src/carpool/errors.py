"""Every error carpool raises on purpose.

CarpoolError
├── UsageError      you: a wrong argument, name or size; nothing was changed        exit 2
│   └── RowError           a row of a trace that is no job; noted with its line     exit 2
├── PeerError       the other side: a process, page or message that cannot be used  exit 1
│   ├── UnreachableError   no daemon answers                                        exit 3
│   ├── LinkLostError      in a job: the daemon is gone, the program goes on        exit 1
│   ├── UnwantedError      in a job: the daemon does not take this process          exit 1
│   └── ColdStartError     a program cannot be started warm, and starts cold        exit 1
├── RefusedError    the state of things: no room, jobs still run, a failed start    exit 1
│   └── DivergedError      a replay does something else than was recorded           exit 1
├── AnsweredError   the daemon's no, one of these at its end                        exit as it chose
└── InternalError   a bug in carpool; carries the last events of its job            exit 1

The message says what, with the numbers, and what to do. What the operating system refuses (OSError) is a sentence and
exit 1 too (cli/main.py); anything else that escapes is a bug, and keeps its traceback. The scripts that benches run
as jobs (bench/programs) are programs of their own.
"""

from __future__ import annotations


class CarpoolError(Exception):
    """Base of all; never raised itself."""

    exit_code = 1


class UsageError(CarpoolError):
    """The caller asked for something that makes no sense; correct the call."""

    exit_code = 2


class RowError(UsageError):
    """A row of a trace that is no job; the text says why, and who reads the trace adds the line."""


class PeerError(CarpoolError):
    """A process, page or message on the other side cannot be used."""


class UnreachableError(PeerError):
    """No daemon answers at the socket, or it speaks another version."""

    exit_code = 3


class LinkLostError(PeerError):
    """Inside a job: the daemon cannot be reached or closed the connection."""


class UnwantedError(PeerError):
    """Inside a job: the daemon does not take this process; it goes on without turns."""


class ColdStartError(PeerError):
    """Why a program starts cold that was to start warm; it starts all the same."""


class RefusedError(CarpoolError):
    """What was asked makes sense, but cannot be done as things are; the message says what is in the way."""


class DivergedError(RefusedError):
    """A program that is replayed does something else than it did when it was recorded."""


class AnsweredError(CarpoolError):
    """The daemon said no to a call; carries the exit code it chose."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class InternalError(CarpoolError):
    """A rule of carpool's own was broken; please report it with the events that are attached to it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.events: tuple[str, ...] = ()

    def attach(self, events: tuple[str, ...]) -> None:
        """Add what happened before, oldest first; the driver does, which has seen it."""
        self.events = events

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *(("last events:", *self.events) if self.events else ())])


class Endless(BaseException):
    """Raised inside a policy that does not come to an end; no error that it could take for one of its own."""
