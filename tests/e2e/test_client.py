"""`carpool.Client` against a real daemon: what it asks, orders and hears."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import carpool
from carpool import calls
from carpool.errors import AnsweredError, PeerError, RefusedError, UnreachableError, UsageError
from tests.e2e.node import PROGRAMS, PYTHON, Node, Started, wait_until

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SLEEP = ["/bin/sleep", "100"]
LOOP = [PYTHON, "plain_loop.py", "--steps", "1000000"]


def test_without_a_daemon_every_call_is_a_peer_error_with_a_sentence(node: Node) -> None:
    client = carpool.Client(node.directory)
    assert not client.is_running()
    for ask in (client.ps, client.status, client.changes, lambda: client.job("a"), lambda: client.submit(SLEEP)):
        with pytest.raises(PeerError, match="no daemon answers at .*; start one: carpool daemon start"):
            ask()


def test_a_job_is_submitted_seen_waited_for_and_its_output_found(node: Node) -> None:
    node.start()
    client = carpool.Client(node.directory)
    new = client.submit(["/bin/sh", "-c", "echo hello"], spec=calls.Spec(name="greet"), environment=node.environment)
    done = client.wait(new.job.id, seconds=60)
    assert (done.state, done.name, done.is_over) == ("finished", "greet", True)
    assert client.log_path("greet").read_text() == "hello\n"
    assert client.wait("greet", seconds=1).id == new.job.id, "of one that is over it returns at once"
    assert [job.id for job in client.jobs(ended=True)] == [new.job.id]
    assert client.jobs() == []
    assert "finished" in client.explain("greet")


def test_a_program_is_named_after_its_script_and_known_again(node: Node) -> None:
    node.start()
    client = carpool.Client(node.directory)
    new = client.submit([PYTHON, "plain_loop.py", "--steps", "3"], cwd=PROGRAMS, environment=node.environment)
    assert new.job.name == "plain_loop"
    assert client.wait(new.job.id, seconds=100).steps == 3


def test_orders_are_given_and_refused_as_on_the_command_line(node: Node) -> None:
    node.start()
    client = carpool.Client(node.directory)
    job = client.submit(LOOP, cwd=PROGRAMS, environment=node.environment).job.id
    node.wait_steps(job, 3)
    assert client.resize(job, weight_milli=3000).weight_milli == 3000
    client.suspend(job)
    assert client.job(job).is_suspended
    node.wait_state(job, "parked")
    assert client.resume(job).state in ("unparking", "running", "waiting")
    with pytest.raises(AnsweredError, match="there is no such device") as refused:
        client.migrate(job, "gpu7")
    assert refused.value.exit_code == UsageError.exit_code
    with pytest.raises(AnsweredError, match="--checkpointable"):
        client.checkpoint(job, node.files / "x")
    with pytest.raises(AnsweredError, match="no job 'other'"):
        client.job("other")
    with pytest.raises(RefusedError, match=f"job {job} is not over after 0.2 s: "):
        client.wait(job, seconds=0.2)
    with pytest.raises(UsageError, match="no program to submit"):
        client.submit([])
    with pytest.raises(UsageError, match="'python train.py' is one text; give the command line as a list"):
        client.submit("python train.py")
    assert client.cancel(job) == job
    assert client.wait(job, seconds=60).reason.startswith("cancelled: by carpool.Client")


def test_changes_tell_a_jobs_life_and_end_when_the_daemon_is_stopped(node: Node) -> None:
    node.start()
    client = carpool.Client(node.directory)
    first = client.submit(SLEEP, spec=calls.Spec(name="first"), environment=node.environment).job.id
    node.wait_state(first, "starting")
    seen: list[calls.Change] = []

    def read() -> None:
        seen.extend(client.changes())

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: seen, "how things stand")
    assert (seen[0].job, seen[0].before, seen[0].event) == (first, None, "")
    second = client.submit(["/bin/true"], spec=calls.Spec(name="second"), environment=node.environment).job.id
    client.cancel(first)
    wait_until(lambda: {change.job for change in seen if change.is_over} == {first, second}, "both are over")
    states = [change.state for change in seen if change.job == second]
    assert states[-1] == "finished"
    assert [change.state for change in seen if change.job == first] == ["starting", "cancelled"]
    client.stop()
    reader.join(60)
    assert not reader.is_alive()


def test_a_stream_ends_when_its_time_is_up_and_when_it_is_closed(node: Node) -> None:
    node.start()
    client = carpool.Client(node.directory)
    began = time.monotonic()
    assert list(client.changes(seconds=0.2)) == []
    assert time.monotonic() - began < 60
    with client.changes() as changes:
        pass
    assert list(changes) == []


def test_a_daemon_that_dies_is_no_end_but_an_error(node: Node) -> None:
    node.start()
    changes = carpool.Client(node.directory).changes()
    node.kill_daemon()
    with pytest.raises(UnreachableError):
        list(changes)


def test_the_snippets_of_the_page_run_and_print_what_they_say(node: Node) -> None:
    node.start()
    first, second = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    ended = Started(node, [PYTHON, "-c", first]).wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[0].startswith("nightly-1 ")
    assert ended.lines[-2:] == ["finished done", ""]
    streaming = Started(node, [PYTHON, "-c", second.replace("seconds=5", "seconds=60")])
    wait_until(lambda: _is_streaming(streaming), "its stream is open")
    node.submit("/bin/true", options=["--name", "short"])
    ended = streaming.wait()
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(r"short-2 \w+ -> finished .*exit code 0.*", ended.lines[-1]), ended.lines


def _is_streaming(started: Started) -> bool:
    """Whether the process has its connection: one socket."""
    for path in Path(f"/proc/{started.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed just now
            if str(path.readlink()).startswith("socket:"):
                return True
    return False


def test_every_call_of_the_client_is_on_its_page() -> None:
    calls_of = {name for name, value in vars(carpool.Client).items() if callable(value) and not name.startswith("_")}
    page = PAGE.read_text()
    assert {name for name in calls_of if f"client.{name}(" not in page} <= {"call", "describe"}


def test_importing_carpool_loads_no_client() -> None:
    code = "import sys, carpool; print('carpool.client' in sys.modules, carpool.Client.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False Client\n"
