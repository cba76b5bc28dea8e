"""`carpool run` is as transparent as no wrapper at all: output, input, terminal, signals, exit codes, options."""

from __future__ import annotations

import functools
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.node import CARPOOL, PYTHON, Node, Started, is_alive, kill, wait_until, with_environment
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.slow

# Ends by itself if a test forgets it; says `ready` when it sleeps.
SLEEPER = "echo ready; exec sleep 60"


@pytest.fixture(scope="module")
def shared(module_node: Node) -> Iterator[Node]:
    """A node with a daemon, for all the programs that never compute."""
    module_node.start()
    yield module_node


def test_what_the_program_writes_arrives_byte_for_byte_and_nothing_is_added(shared: Node) -> None:
    every_byte = "import sys, os; os.write(1, bytes(range(256)) * 300); os.write(2, bytes(range(255, -1, -1)))"
    ended = shared.run(PYTHON, "-c", every_byte).process
    ended.wait(60)
    started = shared.started[-1]
    assert started.out == bytes(range(256)) * 300
    assert (shared.files / f"{len(shared.started) - 1}.err").read_bytes() == bytes(range(255, -1, -1))


def test_a_program_without_torch_runs_untouched(shared: Node) -> None:
    done = shared.run("no_torch.py", "--code", "3").wait()
    assert done.code == 3
    assert done.lines == ["hello from plain python", "torch loaded: False"]
    assert done.err == "and a word on stderr\n"
    job = shared.job("no_torch")
    assert (job["state"], job["reason"].partition(";")[0]) == ("failed", "failed: exit code 3")


# Prints what torch computes with; the setting stands in the environment before the import, or comes after it.
CAPABLE = """
import os
{before}
import torch
{after}
torch.nn.Linear(1, 1)(torch.ones(1)).backward()
print(torch.backends.cpu.get_cpu_capability())
"""
SETTING = "os.environ['ATEN_CPU_CAPABILITY'] = 'default'"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (CAPABLE.format(before=SETTING, after=""), ""),
        (
            CAPABLE.format(before="", after=SETTING),
            "carpool: ATEN_CPU_CAPABILITY was set after import torch and has no effect in a job;"
            " set it before the import\n",
        ),
    ],
    ids=["in time", "too late"],
)
def test_what_torch_reads_at_its_first_operation_is_set_before_its_import_or_said_to_be_too_late(
    shared: Node, code: str, says: str
) -> None:
    ended = shared.run(PYTHON, "-c", code).wait()
    assert (ended.code, ended.err) == (0, says)
    assert (ended.lines == ["DEFAULT"]) == (not says)


@pytest.mark.parametrize(
    ("script", "code", "state", "why"),
    [
        ("exit 0", 0, "finished", "exit code 0"),
        ("exit 200", 200, "failed", "exit code 200"),
        ("kill -KILL $$", 137, "failed", "ended by signal 9"),
        ("kill -SEGV $$", 139, "failed", "ended by signal 11"),
    ],
)
def test_the_exit_code_is_the_programs_or_128_and_its_signal(
    shared: Node, script: str, code: int, state: str, why: str
) -> None:
    name = f"exits-{code}"
    assert shared.run("/bin/sh", "-c", script, options=["--name", name]).wait().code == code
    job = shared.wait_state(name, state)
    assert why in job["reason"]


def test_a_file_that_cannot_be_executed_is_127_like_in_a_shell(shared: Node, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o700)
    done = shared.run(str(broken)).wait()
    assert (done.code, done.out) == (127, b"")
    assert done.err.startswith(f"carpool: cannot run {broken}: ")
    assert shared.state("broken") == "failed"


def test_stdin_reaches_the_program_unchanged(shared: Node) -> None:
    sent = bytes(range(256)) * 1000
    started = shared.run("/bin/cat", stdin=subprocess.PIPE)
    assert started.process.stdin is not None
    with started.process.stdin as stdin:
        stdin.write(sent)
    ended = started.wait()
    assert (ended.code, ended.out) == (0, sent)


def test_streams_that_are_no_terminal_stay_none(shared: Node) -> None:
    done = shared.run("echo_stdin.py").wait()
    assert done.lines == ["stdin_tty=False stdout_tty=False stderr_tty=False"]


def test_a_terminal_stays_a_terminal(shared: Node) -> None:
    with Terminal(shared, [CARPOOL, "run", "--", PYTHON, "echo_stdin.py"]) as terminal:
        terminal.wait_text("stdin_tty=True stdout_tty=True stderr_tty=True")
        terminal.type(b"typed\n\x04\x04")  # Python asks twice whether the input is over
        assert terminal.wait() == 0
        assert terminal.text.count("typed\n") == 2  # the terminal's echo and the program's


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGUSR1,
        signal.SIGQUIT,
        signal.SIGPIPE,
        signal.SIGSTKFLT,
        signal.SIGURG,
        signal.SIGXCPU,
        signal.SIGXFSZ,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGIO,
        signal.SIGPWR,
        signal.SIGCONT,
        signal.SIGRTMIN,
        signal.SIGRTMIN + 3,
        signal.SIGRTMAX,
    ],
)
def test_signals_sent_to_run_reach_the_program(shared: Node, number: int) -> None:
    name = f"signalled-{int(number)}"
    line = number.name if isinstance(number, signal.Signals) else str(number)
    started = shared.run("signals.py", options=["--name", name])
    started.wait_line("ready")
    started.process.send_signal(number)
    started.wait_line(line)
    started.process.send_signal(signal.SIGTERM)
    done = started.wait()
    assert (done.code, done.lines) == (7, ["ready", line, "SIGTERM"])
    assert shared.wait_state(name, "cancelled", "failed")["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGTTIN])
def test_what_stops_and_continues_run_stops_and_continues_the_program(shared: Node, number: signal.Signals) -> None:
    name = f"stopped-{int(number)}"
    # A group of its own, as a shell makes one: where nobody could continue them, the kernel stops no process.
    started = shared.run("signals.py", options=["--name", name], process_group=0)
    started.wait_line("ready")
    pid = wait_until(lambda: shared.program_pid(name), "the daemon knows its program")
    for _ in range(2):
        started.process.send_signal(number)
        wait_until(lambda: is_stopped(pid) and is_stopped(started.pid), "both are stopped")
        pid_seen, status = os.waitpid(started.pid, os.WUNTRACED)
        assert (pid_seen, os.WSTOPSIG(status)) == (started.pid, number), "as a shell sees it"
        before = started.lines.count("SIGCONT")
        started.process.send_signal(signal.SIGCONT)
        wait_until(functools.partial(_was_continued, started, before), "the program goes on")
        assert not is_stopped(started.pid)
    started.process.send_signal(signal.SIGTERM)
    assert started.wait().code == 7
    assert shared.wait_state(name, "cancelled", "failed")["state"] == "cancelled"


def _was_continued(started: Started, before: int) -> bool:
    return started.lines.count("SIGCONT") > before


def test_a_program_that_does_not_stop_when_told_keeps_its_runner(shared: Node) -> None:
    script = "trap 'echo not now' TSTP; trap 'exit 5' USR1; echo ready; while :; do sleep 0.02; done"
    started = shared.run("/bin/sh", "-c", script, options=["--name", "stays"], process_group=0)
    started.wait_line("ready")
    started.process.send_signal(signal.SIGTSTP)
    started.wait_line("not now")
    assert not is_stopped(started.pid)
    started.process.send_signal(signal.SIGUSR1)
    assert started.wait().code == 5


def test_ctrl_z_and_fg_work_as_without_carpool(shared: Node) -> None:
    command = f"{CARPOOL} run --name in-shell -- {PYTHON} signals.py; echo back $?; fg > /dev/null; echo ended $?"
    with Terminal(shared, ["/bin/bash", "-mc", command]) as terminal:
        terminal.wait_text("ready")
        pid = wait_until(lambda: shared.program_pid("in-shell"), "the daemon knows its program")
        terminal.type(b"\x1a")
        terminal.wait_text(f"back {128 + signal.SIGTSTP}")
        terminal.wait_text("SIGCONT")
        wait_until(lambda: not is_stopped(pid), "the program goes on")
        terminal.type(b"\x03")
        terminal.wait_text("SIGINT")
        kill(pid, signal.SIGTERM)
        terminal.wait_text("ended 7")
        assert terminal.wait() == 0


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_ctrl_c_reaches_the_program_once_and_the_job_is_cancelled(shared: Node) -> None:
    with Terminal(shared, [CARPOOL, "run", "--name", "interrupted", "--", PYTHON, "signals.py"]) as terminal:
        terminal.wait_text("ready")
        terminal.type(b"\x03")
        terminal.wait_text("SIGINT")
        terminal.process.send_signal(signal.SIGUSR1)
        terminal.wait_text("SIGUSR1")  # by now a second SIGINT would be there too
        assert shared.state("interrupted") == "starting"  # the program chose to go on
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait() == 7
        assert terminal.text.count("SIGINT") == 1
    assert shared.wait_state("interrupted", "cancelled", "failed")["state"] == "cancelled"


def test_ctrl_c_ends_a_program_that_does_not_handle_it_with_130(shared: Node) -> None:
    with Terminal(shared, [CARPOOL, "run", "--name", "broken-off", "--", "/bin/sh", "-c", SLEEPER]) as terminal:
        terminal.wait_text("ready")
        terminal.type(b"\x03")
        assert terminal.wait() == 130
    assert shared.wait_state("broken-off", "cancelled", "failed")["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_ended_while_it_queues_is_cancelled_and_never_runs(node: Node, number: signal.Signals) -> None:
    node.start(device="cpu:1GiB")
    first = node.run("/bin/sh", "-c", SLEEPER, options=["--name", "first", "--memory", "1GiB"])
    first.wait_line("ready")
    second = node.run("/bin/sh", "-c", "echo ran", options=["--name", "second", "--memory", "1GiB"])
    node.wait_state("second", "queued")
    second.process.send_signal(number)
    done = second.wait()
    assert (done.code, done.out) == (128 + number, b"")
    assert "Traceback" not in done.err
    assert node.wait_state("second", "cancelled", "failed")["state"] == "cancelled"
    assert node.state("first") == "starting"


def test_nohup_still_means_nohup(shared: Node) -> None:
    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    program = "import signal, sys\nprint(signal.getsignal(signal.SIGHUP), flush=True)\nsys.stdin.read()\n"
    started = shared.run(
        PYTHON,
        "-c",
        program,
        options=["--name", "nohup"],
        stdin=subprocess.PIPE,
        preexec_fn=ignore_hangup,
        start_new_session=True,
    )
    started.wait_line("1")  # SIG_IGN
    os.killpg(started.pid, signal.SIGHUP)
    assert started.process.stdin is not None
    started.process.stdin.close()
    done = started.wait()
    assert (done.code, done.lines) == (0, ["1"])
    assert shared.wait_state("nohup", "finished", "failed", "cancelled")["state"] == "finished"


def test_a_torch_that_cannot_be_hooked_runs_unmanaged_and_is_shown_so(shared: Node, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '0.0-stand-in'\n")
    with with_environment(shared, {"PYTHONPATH": f"{tmp_path}:{shared.environment['PYTHONPATH']}"}):
        program = "import sys, torch; print(torch.__version__, flush=True); sys.stdin.read()"
        started = shared.run(PYTHON, "-c", program, options=["--name", "odd"], stdin=subprocess.PIPE)
    started.wait_line("0.0-stand-in")
    job = shared.wait_state("odd", "unmanaged")
    sentence = "runs outside carpool's turns: torch 0.0-stand-in could not be hooked"
    assert job["reason"].startswith(sentence)
    assert any(line.startswith(f"{job['id']}: {sentence}") for line in shared.carpool("ps").lines)
    assert started.process.stdin is not None
    started.process.stdin.close()
    ended = started.wait()
    assert ended.code == 0
    assert ended.err.startswith(f"carpool: job {job['id']} runs unmanaged: torch 0.0-stand-in could not be hooked")
    assert ended.err.count("\n") == 1


def test_every_option_reaches_the_scheduler(shared: Node) -> None:
    options = ["--name", "all-options", "--priority", "7", "--weight", "2.5", "--tenant", "lab"]
    options += ["--memory", "300MiB", "--steps", "42", "--device", "cpu", "--policy", "fair"]
    started = shared.run("/bin/sh", "-c", SLEEPER, options=options)
    started.wait_line("ready")
    job = shared.job("all-options")
    started.process.terminate()
    started.wait()
    shown = {key: job[key] for key in ("priority", "tenant", "cap_bytes", "steps_declared", "device")}
    expected = {"priority": 7, "tenant": "lab", "cap_bytes": 300 << 20, "steps_declared": 42, "device": "cpu"}
    assert shown == expected
    specs = [event["spec"] for event in shared.journal("JobSubmitted") if event["job"] == job["id"]]
    assert [spec["weight_milli"] for spec in specs] == [2500]


def test_an_option_may_come_from_the_environment(shared: Node) -> None:
    shared.environment["CARPOOL_TENANT"] = "from-outside"
    try:
        assert shared.run("/bin/true", options=["--name", "by-environment"]).wait().code == 0
    finally:
        del shared.environment["CARPOOL_TENANT"]
    assert shared.job("by-environment")["tenant"] == "from-outside"


def test_run_starts_a_private_daemon_when_none_runs(node: Node) -> None:
    done = node.run("/bin/sh", "-c", "echo hello", options=["--policy", "srtf", "--device", "cpu:2GiB"]).wait()
    assert (done.code, done.out, done.err) == (0, b"hello\n", "")
    status = node.status()
    assert (status["policy"], status["device"]) == ("srtf", "cpu:2GiB")
    assert status["devices"][0]["capacity_bytes"] == 2 << 30
    for path in (node.places.run, node.places.state, node.places.jobs):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in (node.places.socket, node.places.lock, node.places.journal):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert node.carpool("daemon", "stop").code == 0
    assert not is_alive(status["pid"])


def test_many_first_runs_at_once_start_one_daemon(node: Node) -> None:
    started = [node.run("/bin/sh", "-c", f"echo {number}") for number in range(4)]
    assert [each.wait().lines for each in started] == [[str(number)] for number in range(4)]
    assert len([job for job in node.ps()["jobs"] if job["state"] == "finished"]) == 4
    serving = node.status()["pid"]
    wait_until(lambda: _daemons(node) == [serving], "the daemons that lost the race are gone")


def _daemons(node: Node) -> list[int]:
    return [pid for pid in node.processes() if b"carpool.daemon.main" in _words(pid)]


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it ended just now
        return []
