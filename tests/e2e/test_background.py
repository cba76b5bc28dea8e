"""Jobs in the background: submit, logs, ps, explain, cancel, top; and `--json` on every listing."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carpool.cli.programs_python import FACTS
from tests.e2e.node import CARPOOL, Node, Started, is_alive, kill, wait_until
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.slow

SLEEPER = "echo ready; exec sleep 60"


@pytest.fixture(scope="module")
def shared(module_node: Node) -> Iterator[Node]:
    module_node.start(device="cpu:1GiB")
    yield module_node


def as_json(node: Node, *arguments: str) -> Any:
    done = node.carpool(*arguments, "--json")
    assert (done.code, done.err) == (0, ""), arguments
    assert done.out.count(b"\n") == 1, "one JSON value and nothing else"
    return json.loads(done.out)


def test_a_submitted_job_runs_to_its_end_and_keeps_its_output(shared: Node) -> None:
    done = shared.carpool("submit", "--name", "kept", "--", "/bin/sh", "-c", "echo out; echo err >&2; cat; exit 4")
    job_id = done.out.decode().strip()
    assert (done.code, job_id.rpartition("-")[0]) == (0, "kept")
    assert f"carpool logs -f {job_id}" in done.err
    job = shared.wait_state("kept", "failed")
    assert job["reason"].startswith("failed: exit code 4")
    logs = shared.carpool("logs", job_id)
    assert (logs.code, logs.lines) == (0, ["out", "err"])
    path = shared.places.logs / f"{job_id}.log"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.places.logs.stat().st_mode) == 0o700


def test_the_daemon_steps_back_and_what_it_starts_does_not(shared: Node) -> None:
    tell = "import os; print(os.sched_getscheduler(0) == os.SCHED_OTHER)"
    job = shared.submit(sys.executable, "-c", tell)
    shared.wait_state(job["id"], "finished")
    assert shared.carpool("logs", job["id"]).lines == ["True"]
    daemon = json.loads(shared.carpool("daemon", "status", "--json").out)["pid"]
    assert os.sched_getscheduler(daemon) == os.SCHED_BATCH


def test_of_ended_jobs_the_newest_thousand_logs_are_kept(node: Node) -> None:
    node.start()
    node.places.logs.mkdir(mode=0o700)
    for number in range(1010):
        path = node.places.logs / f"old-{number}.log"
        path.touch()
        os.utime(path, (number, number))
    (node.places.jobs / "old-3").mkdir()  # a live job's
    job = node.submit("/bin/echo", "new")
    node.wait_state(job["id"], "finished")
    kept = {path.stem for path in node.places.logs.iterdir()}
    assert kept == {"old-3", job["id"], *(f"old-{number}" for number in range(10, 1010))}
    (node.places.logs / f"{job['id']}.log").unlink()
    assert "ended so long ago that its log was removed" in node.carpool("logs", job["id"]).err


def test_a_submitted_program_is_found_on_the_path_of_who_submitted_it(shared: Node, tmp_path: Path) -> None:
    tool = tmp_path / "their-own-tool"
    tool.write_text('#!/bin/sh\necho "tool $1 in $PWD with $MARK"\n')
    tool.chmod(0o700)
    before = dict(shared.environment)
    shared.environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MARK": "a-mark"}
    try:
        job = shared.submit("their-own-tool", "one")
    finally:
        shared.environment = before
    shared.wait_state(job["id"], "finished", "failed")
    logs = shared.carpool("logs", job["id"])
    assert logs.lines == [f"tool one in {Path(__file__).parents[1] / 'programs'} with a-mark"]


def test_logs_follow_a_job_until_it_ends(shared: Node) -> None:
    job = shared.submit("/bin/sh", "-c", "for i in 1 2 3 4; do echo line $i; sleep 0.3; done")
    done = shared.carpool("logs", "-f", job["id"])
    assert (done.code, done.lines) == (0, [f"line {number}" for number in range(1, 5)])
    assert shared.state(job["id"]) == "finished"


def test_one_look_with_every_command_at_a_running_and_a_queued_job(shared: Node) -> None:
    first = shared.submit("/bin/sh", "-c", SLEEPER, options=["--name", "holds-all", "--memory", "1GiB"])
    shared.wait_state("holds-all", "starting")
    second = shared.submit("/bin/sh", "-c", "echo late", options=["--name", "queues", "--memory", "512MiB"])
    assert second["state"] == "queued"
    sentence = "waits for memory: it needs 512 MiB and 0 B of 1.00 GiB is unpromised on cpu"
    assert second["reason"].startswith(sentence)

    listing = as_json(shared, "ps")
    assert [job["id"] for job in listing["jobs"]] == [first["id"], second["id"]]
    assert as_json(shared, "explain", "queues")["reason"].startswith(sentence)
    assert as_json(shared, "daemon", "status")["jobs"] == 2
    explained = shared.carpool("explain", second["id"])
    assert explained.lines[0].startswith(f"{second['id']}: {sentence}")
    table = shared.carpool("ps")
    assert all(len(line) <= 80 for line in table.lines[:-1])
    assert "holds-all" in table.out.decode()
    assert table.lines[-1].startswith(f"{second['id']}: {sentence}")
    looks = [json.loads(line) for line in shared.carpool("top", "--json", "--count", "2", "--every", "100ms").lines]
    assert [set(look) >= {"jobs", "devices"} for look in looks] == [True, True]
    top = shared.carpool("top")
    assert top.code == 0
    assert "1.00 GiB" in top.out.decode()
    assert "queues" in top.out.decode()
    no_log = shared.carpool("logs", second["id"])
    assert (no_log.code, no_log.out) == (1, b"")
    assert no_log.err.startswith(f"carpool: job {second['id']} has not started: waits for memory")

    assert shared.carpool("cancel", "queues").code == 0
    assert shared.state("queues") == "cancelled"
    cancelled = shared.carpool("cancel", "holds-all")
    assert (cancelled.code, cancelled.out) == (0, b"")
    assert shared.wait_state("holds-all", "cancelled", "failed")["state"] == "cancelled"
    assert shared.status()["jobs"] == 0
    ended = {job["id"]: job["state"] for job in as_json(shared, "ps", "--all")["jobs"]}
    assert ended[first["id"]] == ended[second["id"]] == "cancelled"
    assert "cancelled" in as_json(shared, "explain", second["id"])["reason"]
    assert "cancelled" in shared.carpool("ps", "--all").out.decode()


def test_cancelling_a_run_ends_its_program_and_the_runner_says_so_by_its_code(shared: Node) -> None:
    started = shared.run("/bin/sh", "-c", SLEEPER, options=["--name", "cancel-me"])
    started.wait_line("ready")
    pid = shared.program_pid("cancel-me")
    job = shared.job("cancel-me")["id"]
    number = job.rpartition("-")[2]
    assert shared.carpool("cancel", number).code == 0, "a number is enough"
    ended = started.wait()
    assert (ended.code, ended.err.count("\n")) == (143, 1), ended.err
    assert ended.err.startswith(f"carpool: job {job}: cancelled: by carpool cancel")
    assert not is_alive(pid)
    assert shared.wait_state("cancel-me", "cancelled", "failed")["state"] == "cancelled"
    for verb in ("cancel", "suspend"):
        again = shared.carpool(verb, "cancel-me")
        assert (again.code, again.out) == (1, b"")
        assert again.err.startswith(f"carpool: job {job} is over (cancelled: by carpool cancel"), again.err
    assert as_json(shared, "explain", number)["id"] == job


def test_cancel_still_works_after_the_program_shrugged_off_a_ctrl_c(shared: Node) -> None:
    with Terminal(shared, [CARPOOL, "run", "--name", "stubborn", "--", "python3", "signals.py"]) as terminal:
        terminal.wait_text("ready")
        terminal.type(b"\x03")
        terminal.wait_text("SIGINT")
        assert shared.carpool("cancel", "stubborn").code == 0
        assert terminal.wait(seconds=8) == 7  # by SIGTERM, not by the SIGKILL that follows 10 s later
        assert "SIGTERM" in terminal.text


def test_two_jobs_of_one_name_must_be_told_apart_by_id(shared: Node) -> None:
    jobs = [
        shared.submit("/bin/sh", "-c", SLEEPER, options=["--name", "twin", "--memory", "64MiB"]) for _ in range(2)
    ]
    refused = shared.carpool("cancel", "twin")
    assert refused.code == 2
    assert all(job["id"] in refused.err for job in jobs)
    done = shared.carpool("cancel", jobs[0]["id"], "nobody", jobs[1]["id"])
    assert (done.code, "no job 'nobody' is running" in done.err) == (2, True), "the others are cancelled all the same"
    for job in jobs:
        shared.wait_state(job["id"], "cancelled")


@pytest.mark.parametrize("verb", ["explain", "cancel", "logs"])
def test_a_job_nobody_knows_is_a_misuse_with_one_sentence(shared: Node, verb: str) -> None:
    done = shared.carpool(verb, "nobody")
    assert (done.code, done.out) == (2, b"")
    assert done.err.startswith("carpool: no job 'nobody' is ")
    assert done.err.count("\n") == 1


def test_the_logs_of_a_foreground_job_are_refused_with_the_reason(shared: Node) -> None:
    assert shared.run("/bin/true", options=["--name", "foreground"]).wait().code == 0
    done = shared.carpool("logs", "foreground")
    assert done.code == 2
    assert "it was started with carpool run, not submit" in done.err


def test_a_submitted_job_outlives_the_terminal_and_ends_when_its_runner_is_killed_with_it(shared: Node) -> None:
    job = shared.submit("/bin/sh", "-c", SLEEPER, options=["--name", "orphan"])
    wait_until(lambda: (shared.places.logs / f"{job['id']}.log").exists(), "its log is there")
    wait_until(lambda: shared.program_pid("orphan"), "its program runs")
    pid = shared.program_pid("orphan")
    assert os.getsid(pid) != os.getsid(0)
    kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]))  # the runner
    assert shared.state("orphan") == "starting"
    kill(pid)
    ended = shared.wait_state("orphan", "failed", "cancelled")
    assert "its runner was killed; exit code unknown" in ended["reason"]


def test_no_jobs_is_an_answer_too(node: Node) -> None:
    node.start()
    assert as_json(node, "ps")["jobs"] == []
    assert node.carpool("ps").lines == ["no jobs; start one: carpool run -- python train.py"]


def test_doctor_says_what_it_found(shared: Node) -> None:
    done: Started = Started(shared, [CARPOOL, "doctor"])
    found = {finding["what"]: finding for finding in as_json(shared, "doctor")["findings"]}
    assert {what: finding["mark"] for what, finding in found.items()} | {"driver": "note"} == {
        "device": "ok",
        "driver": "note",
        "meter": "ok",
        "python": "ok",
        "torch": "ok",
        "hooks": "ok",
        "points": "ok",
        "place": "ok",
        "moves": "ok",
        "turns": "ok",
        "parking": "ok",
        "checkpoint": "ok",
        "daemon": "ok",
    }
    ended = done.wait()
    assert ended.code == 0
    assert all(what in ended.out.decode() for what in found)


def test_doctor_names_what_is_missing_and_fails(shared: Node, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    known = {"python": "3.12.1", "torch": None, "why": "No module named torch", "points": True, "moves": True}
    answer = {**dict.fromkeys(FACTS), "implementation": "cpython", "flags": "", "inside": True, **known}
    bare.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    bare.chmod(0o700)
    done = shared.carpool("doctor", "--json", "--python", str(bare))
    missing = [finding for finding in json.loads(done.out)["findings"] if finding["mark"] == "missing"]
    assert done.code == 1
    assert [finding["what"] for finding in missing] == ["torch"]
    assert "No module named torch" in missing[0]["text"]
    gone = shared.carpool("doctor", "--python", str(tmp_path / "no-python-here"))
    assert gone.code == 1
    assert "MISSING python" in gone.out.decode()
