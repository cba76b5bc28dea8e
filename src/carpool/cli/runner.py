"""The runner: starts a job's program, waits for its end, and keeps the daemon informed.

`carpool run` is a runner in the foreground: the program inherits its terminal, stdin, stdout and stderr, so output is
unchanged and a tty stays one. A submitted job has a runner in the background that outlives the daemon. If the daemon
goes away the program goes on, and the runner comes back to the next daemon.

Signals: the runner blocks all that a program may be sent and takes them one by one. What somebody sent to the runner
is passed on to the program; what the terminal sent (Ctrl-C, Ctrl-Z) went to the program anyway, since both are in one
process group. When one stops the program the runner stops too, so that a shell sees its job stopped; what
continues the runner continues the program. What the runner was started to ignore (nohup) the program ignores too.

A program that starts warm (warm_start.py) is no child of the runner and in no group of its terminal: what the
terminal sends is passed on too, to the program's own group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from carpool import __version__
from carpool.cli.child import Child, Wish, merged_environment, start_child, start_warm, texts_of
from carpool.cli.inherit import take_over
from carpool.cli.launch import bring_daemon_back
from carpool.client import PYTHON_IGNORES, DaemonSocket
from carpool.daemon.processes import birth_of
from carpool.daemon.python_options import why_kept_out
from carpool.daemon.start_and_end import End, Start
from carpool.errors import CarpoolError, PeerError, RefusedError, UnreachableError, UsageError
from carpool.wire import messages as m
from carpool.wire.lock import WAKE
from carpool.wire.places import Places, places_of_job
from carpool.wire.protocol import ENV_TURNS_AT_LAUNCHES

if TYPE_CHECKING:
    from carpool.calls import Inherited
    from carpool.cli.warm_start import WarmProgram
    from carpool.daemon.files import JobFile

FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}
# All but what nobody can take, what tells of the program's end, and what a fault of the runner itself raises.
PASSED_ON = signal.valid_signals() - FAULTS - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
STOPPING = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # whoever sends one of these cancels the job
FROM_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP, signal.SIGWINCH}
SI_KERNEL = 0x80  # the sender was the terminal, or a limit or timer of the runner's own, not a process
SAID_AFTER_SECONDS = 3.0  # that a job waits: most starts wait for a moment, and nobody needs to know
RETRY_SECONDS = 0.2
RESTART_SECONDS = 2.0
RESTORE_SECONDS = 30.0  # a daemon that was told makes files that were removed again at once, a busy one later
KILL_AFTER_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run for which job."""

    job: str  # empty: a new one
    spec: dict[str, object]
    argv: list[str]
    cwd: str
    environment: Mapping[str, str]
    inherited: Inherited | None = None  # of a submitted job: what it has from whoever submitted it


class Runner:
    def __init__(self, places: Places, program: Program, say: Callable[[str], None]) -> None:
        self._places = places
        self._program = program
        self._say = say
        self._job = program.job
        self._wire: DaemonSocket | None = None
        self._child: Child | WarmProgram | None = None
        self._is_over = False
        self._stop_asked = False
        self._has_child = threading.Event()
        self._start = Start(runner_pid=os.getpid(), runner_birth=birth_of(os.getpid()) or 0)

    @property
    def job(self) -> str:
        """The job's id; empty before the daemon gave it one."""
        return self._job

    @property
    def was_stopped(self) -> bool:
        """Whether the daemon wanted the program to end."""
        return self._stop_asked

    def processor_seconds(self) -> float:
        """What the program and those that it waited for have used of the processors."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime + (self._child.cpu_s if self._child is not None else 0.0)

    def run(self) -> int:
        """Run the program to its end; returns its exit code, 128 + n after signal n."""
        try:
            started = self._wait_claim()
        except (KeyboardInterrupt, SystemExit):
            self._learn_name()
            self._note_cancel()
            raise
        if started is None:
            return UsageError.exit_code  # another runner has started it, and tells its end
        self._say_if_alone(started.environment)
        if self._program.inherited is not None:
            take_over(self._program.inherited, self._say)
        ignored = {number for number in PASSED_ON - PYTHON_IGNORES if signal.getsignal(number) is signal.SIG_IGN}
        taken = (PASSED_ON - ignored) | {signal.SIGCHLD}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
        try:
            self._child = self._wait_spawn(started.environment, mask, taken, ignored)
        except (OSError, ValueError) as error:  # the second: words that no system can hand to a program
            why = error.strerror if isinstance(error, OSError) else error
            self._say(f"cannot run {self._program.argv[0]}: {why}")
            return self._tell_end(End(code=127))
        if self._child is None:
            return self._tell_end(End(code=0, signal=signal.SIGTERM))
        pid = self._child.pid
        self._start.child_pid, self._start.child_birth = pid, birth_of(pid) or 0
        self._start.save(self._directory)
        self._report(m.Started(pid=pid))
        self._child.go()
        self._has_child.set()
        if self._stop_asked:
            self._kill(signal.SIGTERM)  # it may have come before there was anybody to pass it on to
        status = self._wait_child(self._child, taken)
        self._is_over = True
        if status is None:
            self._say(f"the process that kept job {self._job} was killed; how the program ended is not known")
            return 1
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return self._tell_end(End(code=0 if number else os.waitstatus_to_exitcode(status), signal=number))

    def _tell_end(self, end: End) -> int:
        """Write it down for the next daemon, if there is none now, and tell it; returns what a shell would say."""
        end.save(self._directory)
        self._report(m.Exited(code=end.code, signal=end.signal))
        return 128 + end.signal if end.signal else end.code

    @property
    def _directory(self) -> Path:
        return self._places.jobs / self._job

    # --- before the program runs -------------------------------------------------------------------------

    def _enter(self) -> None:
        self._wire = DaemonSocket(self._places)
        self._wire.send(
            m.Enter(
                job=self._job,
                spec=self._program.spec,
                argv=self._program.argv,
                cwd=self._program.cwd,
                pid=os.getpid(),
                child_pid=self._child.pid if self._child is not None else 0,
                version=__version__,
                protocol=m.PROTOCOL,
            )
        )

    def _wait_claim(self) -> m.Start | None:
        """Queue until the daemon says go and nobody else may start the program any more; None if somebody did.

        Where the job's directory is gone, a daemon has forgotten the job since it said go: it is entered again.
        """
        while True:
            started = self._wait_start()
            try:
                return started if self._start.claim(self._directory) else None
            except FileNotFoundError:
                self._wire = None
                time.sleep(RETRY_SECONDS)
            except OSError as error:
                raise RefusedError(
                    f"job {self._job} is not started, as that cannot be noted: {error.strerror} ({self._directory})"
                ) from error

    def _wait_start(self) -> m.Start:
        """Queue until the daemon says go; survives a daemon that is restarted meanwhile."""
        if not self._job:
            self._enter()  # the user is told at once if there is no daemon
        say_at, said = time.monotonic() + SAID_AFTER_SECONDS, ""
        while True:
            try:
                if self._wire is None:
                    self._enter()
                message = self._heard(said, say_at)
            except UnreachableError:
                if not self._places.socket.exists():
                    start = "sudo carpool daemon start" if self._places.is_machine else "carpool daemon start"
                    self._say(f"the daemon was stopped; the job waits for the next one: {start}")
                self._come_back()
                continue
            match message:
                case m.Start():
                    self._job = message.job
                    return message
                case m.Wait():
                    self._job, said = message.job, f"{message.job} {message.reason}"
                case None:
                    self._say(said)
                    said = ""
                case m.Refuse():
                    raise PeerError(message.reason)
                case m.Stop():
                    raise PeerError(f"job {self._job} was cancelled before it started")
                case _:
                    raise PeerError(f"the daemon sent {type(message).__name__} to a queued job")

    def _heard(self, said: str, say_at: float) -> m.Message | None:
        """What the daemon says next; None if it is time to say why the job waits, and nothing came before."""
        assert self._wire is not None
        if said and not self._wire.wait_readable(max(0.001, say_at - time.monotonic())):
            return None
        return self._wire.receive(seconds=None)

    def _learn_name(self) -> None:
        """The daemon has the job, and its first word to us, which names it, may be on its way still."""
        if not self._job and self._wire is not None:
            with contextlib.suppress(CarpoolError):
                message = self._wire.receive()
                self._job = message.job if isinstance(message, m.Start | m.Wait) else ""

    def _come_back(self) -> None:
        """Reach the next daemon; after a while, start it (a queue must not wait for ever).

        A daemon that was stopped took its socket with it: that was somebody's wish, and it stays away.
        """
        deadline = time.monotonic() + RESTART_SECONDS
        while not self._is_over:
            try:
                time.sleep(RETRY_SECONDS)
                self._enter()
                return
            except UnreachableError:
                if time.monotonic() > deadline and self._places.socket.exists():
                    with contextlib.suppress(CarpoolError, OSError):
                        bring_daemon_back(self._places)
                    deadline = time.monotonic() + RESTART_SECONDS

    def _say_if_alone(self, added: dict[str, object]) -> None:
        """Such a program cannot say it itself, as other unmanaged ones do; the daemon finds out as we do."""
        settings = texts_of(added.get("set", {}))
        at_launches = ENV_TURNS_AT_LAUNCHES in settings
        why = why_kept_out(self._program.argv, has_turns_at_launches=at_launches)
        if why:
            self._say(f"job {self._job} runs unmanaged: {why}")

    def _wait_spawn(
        self, added: dict[str, object], mask: set[int], taken: set[signal.Signals], ignored: set[signal.Signals]
    ) -> Child | WarmProgram | None:
        """Start the program and who listens for its orders; as long as the machine has no process or memory for them,
        wait. None if somebody ended the job meanwhile."""
        listener, has_listener = threading.Thread(target=self._listen, daemon=True), False
        pause, is_said = RETRY_SECONDS, False
        while not self._stop_asked:
            try:
                if not has_listener:
                    listener.start()
                    has_listener = True
                return self._spawn(added, mask, ignored)
            except (RuntimeError, OSError) as error:  # the first: no thread could be started
                if isinstance(error, OSError) and error.errno not in (errno.EAGAIN, errno.ENOMEM):
                    raise
                if not is_said:
                    self._say(f"job {self._job} waits to be started, as the machine cannot now: {error}")
                    is_said = True
            info = signal.sigtimedwait(taken, pause)
            if info is not None and info.si_signo in ENDING:
                self._note_cancel()
                return None
            pause = min(2 * pause, RESTART_SECONDS)
        return None

    def _spawn(self, added: dict[str, object], mask: set[int], ignored: set[signal.Signals]) -> Child | WarmProgram:
        os.chdir(self._program.cwd)
        wish = Wish(
            argv=self._program.argv,
            environment=merged_environment(self._program.environment, added),
            own=frozenset(texts_of(added.get("set", {}))),
            mask=frozenset(mask),
            ignored=frozenset(ignored),
            stays=bool(self._program.job),
        )
        if not added.get("warm"):
            return start_child(wish)
        found, self._start.how = start_warm(
            self._places, wish, is_urgent=lambda: self._stop_asked or bool(signal.sigpending() & ENDING)
        )
        return found

    # --- while it runs -----------------------------------------------------------------------------------

    def _wait_child(self, child: Child | WarmProgram, taken: set[signal.Signals]) -> int | None:
        """Its status as wait(2) tells it; None if it ended nobody knows how."""
        while True:
            is_new, status = child.poll()
            if is_new and status is not None and os.WIFSTOPPED(status):
                # Whoever has continued it meanwhile will not do it again: a stop takes a waiting SIGCONT away.
                if os.WSTOPSIG(status) in STOPPING and signal.SIGCONT not in signal.sigpending():
                    _stop_by(os.WSTOPSIG(status))
            elif is_new:
                if signal.sigpending() & ENDING & taken:
                    self._note_cancel()
                return status
            info = signal.sigwaitinfo(taken)
            if info.si_signo in ENDING:
                self._note_cancel()
            if info.si_signo != signal.SIGCHLD:
                self._pass_on(info)

    def _pass_on(self, info: signal.struct_siginfo) -> None:
        """Not what its own write into a closed pipe, or beyond a limit, raised."""
        if info.si_code != SI_KERNEL and info.si_pid != os.getpid():
            self._kill(info.si_signo, to_group=info.si_signo == signal.SIGCONT)
        elif not isinstance(self._child, Child) and info.si_signo in FROM_TERMINAL:
            self._kill(info.si_signo, to_group=True)

    def _note_cancel(self) -> None:
        """Somebody ended the job from outside: it is cancelled, not failed. On this wire, so before its end. Each
        time: inside an allocation that waits for memory the program hears nothing, so the daemon ends the wait."""
        arguments: dict[str, object] = {"job": self._job, "is_told": True}
        self._report(m.Call(verb="cancel", arguments=arguments, version=__version__, protocol=m.PROTOCOL))

    def _listen(self) -> None:
        """A thread: takes the daemon's Stop and words for the user, and comes back to a daemon that was restarted."""
        while not self._is_over:
            try:
                message = self._wire.receive(seconds=None) if self._wire is not None else None
            except CarpoolError:
                self._has_child.wait()  # until then nobody could say which process it is
                if not self._is_over:
                    self._come_back()
                continue
            if isinstance(message, m.Stop) and not self._stop_asked:
                self._stop_asked = True
                self._kill(signal.SIGTERM)
                threading.Timer(KILL_AFTER_SECONDS, self._kill, (signal.SIGKILL,)).start()
            elif isinstance(message, m.Wait) and self._has_child.is_set():
                self._say(f"job {message.job}: {message.reason}")
            elif isinstance(message, m.Refuse):
                return

    def _kill(self, number: int, *, to_group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not self._is_over and self._child is not None:
                self._child.send(number, to_group=to_group)

    def _report(self, message: m.Message) -> None:
        """Tell the daemon if it is there; the next one finds out by itself."""
        with contextlib.suppress(CarpoolError):
            if self._wire is not None:
                self._wire.send(message)


def _stop_by(number: int) -> None:
    """Stop as if the signal had not been taken: a shell is told which one it was, and where nobody could continue the
    process (its group has no shell) the kernel lets it go on, as it does with the program. Returns when continued."""
    signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def _write_to(log: Path) -> None:
    """All that this process and its program print goes there; its disk may hang or be full."""
    log.parent.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for standard in (1, 2):
        os.dup2(fd, standard)
    os.close(fd)


def _wait_file(directory: Path, places: Places) -> JobFile | None:
    """The job's file. Where somebody removed the run directory since the daemon started this process, the daemon is
    woken and makes it again: a job that was accepted runs."""
    from carpool.daemon.files import load_file  # `carpool run` does without

    deadline, wake_at = time.monotonic() + RESTORE_SECONDS, 0.0
    while (file := load_file(directory)) is None and time.monotonic() < deadline:
        daemon = places.find_daemon()
        if daemon is None:
            break
        if time.monotonic() > wake_at:
            wake_at = time.monotonic() + RESTART_SECONDS
            daemon.send(WAKE)
        time.sleep(RETRY_SECONDS)
    return file


def _told_file(told: int) -> JobFile | None:
    """The job's file, after a line that was for others; the program does not inherit the descriptor."""
    from carpool.daemon.files import decode_file

    with open(told, "rb") as file:
        file.seek(0)
        return decode_file(file.read().partition(b"\n")[2])


def main() -> int:
    """Entry of a submitted job's runner; its arguments are the job's directory and the path of its log. A daemon that
    was started before an upgrade has opened the log itself, and names none. The third is a descriptor with the job's
    file, where this process may not read that (daemon/spawning.py)."""
    directory = Path(sys.argv[1])
    try:
        places = places_of_job(directory)
    except CarpoolError as error:
        sys.stderr.write(f"carpool: {error}\n")
        return error.exit_code
    file = _wait_file(directory, places) if len(sys.argv) < 4 else _told_file(int(sys.argv[3]))
    if file is None or file.environment is None:
        sys.stderr.write(
            f"carpool: {directory} is not the directory of a submitted job, or was removed and not made again\n"
        )
        return 1
    for log in sys.argv[2:3]:
        try:
            _write_to(Path(log))
        except OSError as error:
            End(code=1, reason=f"could not be started: {error.strerror} ({log})").save(directory)
            return 1
    program = Program(
        job=file.job,
        spec={},
        argv=file.argv,
        cwd=file.cwd,
        environment=file.environment,
        inherited=file.inherited,
    )
    try:
        return Runner(places, program, lambda text: print(f"carpool: {text}", file=sys.stderr)).run()
    except CarpoolError as error:
        sys.stderr.write(f"carpool: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
