"""Orders to running jobs: what their giver reads while they are not done, and afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from carpool.calls import Job, JobAnswer
from carpool.cli import orders
from carpool.cli.main import carpool
from carpool.client import Client
from carpool.errors import RefusedError, UsageError
from carpool.units import MIB
from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.places import find_places
from tests.impostor import impostor

JOB: dict[str, Any] = {
    "id": "la-9",
    "state": "running",
    "reason": "has had the device for 9.1 ms",
    "device": "cpu",
    "cap_bytes": 600 * MIB,
    "weight_milli": 3000,
    "guaranteed_milli": 0,
    "limit_milli": 1000,
    "is_shrinking": False,
    "move_trouble": "",
    "needs": None,
    "spent_ns": {},
    "silent_ns": None,
}


def test_a_resize_says_what_the_job_may_have_now(answering: list[dict[str, object]]) -> None:
    answering.append({"job": JOB})
    done = CliRunner().invoke(carpool, ["resize", "la", "--memory", "600MiB", "--weight", "3"])
    assert done.stdout.splitlines() == [
        "la-9: cap 600 MiB, weight 3, any share",
        "  has had the device for 9.1 ms",
    ]


def test_a_smaller_cap_that_is_not_kept_yet_is_said_to_come(answering: list[dict[str, object]]) -> None:
    answering.append({"job": {**JOB, "is_shrinking": True, "guaranteed_milli": 300, "limit_milli": 600}})
    done = CliRunner().invoke(carpool, ["resize", "la", "--memory", "600MiB", "--no-wait"])
    assert (
        "cap 600 MiB (from its next boundary on), weight 3, share: 30 % of cpu at least, 60 % at most" in done.stdout
    )


def test_explain_names_the_cap_and_the_weight(answering: list[dict[str, object]]) -> None:
    answering.append({"job": JOB, "log": ""})
    assert "  allowed: cap 600 MiB, weight 3, any share" in CliRunner().invoke(carpool, ["explain", "la"]).stdout
    answering.append({"job": {**JOB, "cap_bytes": None, "weight_milli": 500}, "log": ""})
    said = CliRunner().invoke(carpool, ["explain", "la"]).stdout
    assert "  allowed: no cap, weight 0.5, any share\n" in said


def test_explain_names_the_priority_where_the_policy_goes_by_it(answering: list[dict[str, object]]) -> None:
    for policy, words in (("priority", "any share, priority 7"), ("fair", "any share")):
        answering.append({"job": {**JOB, "priority": 7}, "log": "", "policy": policy})
        assert f"  allowed: cap 600 MiB, weight 3, {words}\n" in CliRunner().invoke(carpool, ["explain", "la"]).stdout


def test_several_cancelled_jobs_have_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    replies = [
        m.Reply(answer={"job": "a-1"}, error="", code=0),
        m.Reply(answer={}, error="no job 'x'", code=1),
        m.Reply(answer={}, error="no job 'y'", code=2),
    ]
    with impostor(find_places(), lambda: framing.encode(replies.pop(0))):
        assert carpool.main(["cancel", "a", "x", "y"], standalone_mode=False) == 2
    said = ["carpool: job a-1 is being cancelled", "carpool: no job 'x'", "carpool: no job 'y'"]
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize(
    ("words", "waiting", "done"),
    [
        (["suspend", "la"], {}, {"state": "parked"}),
        (["resize", "la", "--memory", "1MiB"], {"is_shrinking": True}, {}),
        (["resume", "la"], {"state": "unparking"}, {}),
    ],
    ids=["suspend", "resize", "resume"],
)
def test_an_order_that_is_not_done_soon_says_once_why(
    answering: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    waiting: dict[str, object],
    done: dict[str, object],
) -> None:
    monkeypatch.setattr(orders, "SAY_AFTER_SECONDS", 0.0)
    answering += [{"job": {**JOB, **waiting, "reason": "computes"}}] * 3 + [{"job": {**JOB, **done}}]
    ended = CliRunner().invoke(carpool, words)
    assert (ended.exit_code, ended.stderr) == (0, f"carpool: {words[0]} waits for job la-9: computes\n")


@pytest.mark.parametrize(
    ("words", "stands"),
    [
        (
            ["suspend", "la"],
            "job la-9 will still be suspended at its next boundary; to take that back: carpool resume",
        ),
        (["resize", "la", "--memory", "1MiB"], "job la-9 will still be resized at its next boundary"),
    ],
    ids=["suspend", "resize"],
)
def test_ctrl_c_ends_the_waiting_and_says_that_the_order_stands(
    answering: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, words: list[str], stands: str
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("carpool.cli.orders.time.sleep", interrupt)
    answering.append({"job": {**JOB, "is_shrinking": True}})
    done = CliRunner().invoke(carpool, words)
    assert done.exit_code != 0
    assert stands in done.stderr
    assert done.stdout == ""


def test_an_order_that_takes_long_says_once_for_what_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [Job(id="a-1", moving_to="cpu1", reason="runs for 4 s")] * 5 + [Job(id="a-1")]
    asked: list[str] = []

    def ask(_client: Client, verb: str, _kind: type, **_arguments: object) -> JobAnswer:
        asked.append(verb)
        return JobAnswer(job=answers[len(asked) - 1])

    monkeypatch.setattr(Client, "_ask", ask)
    monkeypatch.setattr(orders, "SAY_AFTER_SECONDS", 0.1)
    found = orders.give_order(
        "migrate", lambda client: client.migrate("a", "cpu1"), no_wait=False, is_done=lambda job: not job.moving_to
    )
    assert (found.moving_to, asked) == (None, ["migrate", *["job"] * 5])
    assert capsys.readouterr().err == "carpool: migrate waits for job a-1: runs for 4 s\n"
    asked.clear()
    orders.give_order("migrate", lambda client: client.migrate("a", "cpu1"), no_wait=True, is_done=lambda _: False)
    assert (asked, capsys.readouterr().err) == (["migrate"], "")


@pytest.mark.parametrize(
    ("words", "waiting", "ended", "said"),
    [
        (["suspend", "la"], {}, {"state": "finished"}, "job la-9 ended before it could be suspended: it is over"),
        (["resume", "la"], {"state": "unparking"}, {"state": "cancelled"}, "ended before it was seen to be back"),
        (
            ["resize", "la", "--memory", "1MiB"],
            {"is_shrinking": True},
            {"state": "failed", "is_shrinking": True},
            "job la-9 ended before it could be resized: it is over",
        ),
        (
            ["migrate", "la", "--to", "cpu1"],
            {"moving_to": "cpu1"},
            {"moving_to": None, "device": "cpu1", "state": "failed"},
            "job la-9 ended before it was seen to go on on cpu1: it is over",
        ),
    ],
    ids=["suspend", "resume", "resize", "migrate"],
)
def test_an_order_to_a_job_that_ended_meanwhile_is_refused(
    answering: list[dict[str, object]],
    words: list[str],
    waiting: dict[str, object],
    ended: dict[str, object],
    said: str,
) -> None:
    answering += [{"job": {**JOB, **waiting}}, {"job": {**JOB, **ended, "reason": "it is over"}}]
    done = CliRunner().invoke(carpool, words)
    assert isinstance(done.exception, RefusedError)
    assert (done.exception.exit_code, done.stdout) == (1, "")
    assert said in str(done.exception)


@pytest.mark.parametrize(
    ("words", "waiting", "ended"),
    [
        (["suspend", "la", "--no-wait"], {"state": "finished"}, None),
        (["resume", "la"], {"state": "unparking"}, {"state": "finished"}),
        (["resize", "la", "--memory", "1MiB", "--or-kill"], {"is_shrinking": True}, {"state": "failed"}),
        (
            ["migrate", "la", "--to", "cpu1"],
            {"moving_to": "cpu1"},
            {"moving_to": None, "device": "cpu1", "state": "finished"},
        ),
    ],
    ids=["suspend", "resume", "resize", "migrate"],
)
def test_an_order_that_was_done_before_the_job_ended_is_done(
    answering: list[dict[str, object]], words: list[str], waiting: dict[str, object], ended: dict[str, object] | None
) -> None:
    answering.append({"job": {**JOB, **waiting}})
    if ended is not None:
        answering.append({"job": {**JOB, "is_shrinking": True, **ended}})
    done = CliRunner().invoke(carpool, words)
    assert (done.exit_code, "la-9" in done.stdout) == (0, True), done.exception


@pytest.mark.parametrize("options", [[], ["-f"]], ids=["now", "follow"])
def test_a_job_that_has_no_log_is_said_to_have_none(
    answering: list[dict[str, object]], tmp_path: Path, options: list[str]
) -> None:
    log = str(tmp_path / "la-9.log")
    answering.append({"job": JOB, "log": log})
    done = CliRunner().invoke(carpool, ["logs", *options, "la"])
    assert isinstance(done.exception, UsageError)
    assert "job la-9 has no log: it was started with carpool run" in str(done.exception)
    answering.append({"job": {**JOB, "state": "cancelled", "device": None, "reason": "dropped"}, "log": log})
    done = CliRunner().invoke(carpool, ["logs", *options, "la"])
    assert isinstance(done.exception, RefusedError)
    assert str(done.exception) == "job la-9 has not started: dropped"


def test_following_waits_for_a_queued_job_and_shows_what_it_wrote(
    answering: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "la-9.log"
    monkeypatch.setattr("carpool.cli.logs.time.sleep", lambda _: log.write_text("hello\n"))
    answering.append({"job": {**JOB, "state": "queued", "device": None}, "log": str(log)})
    answering += [{"job": {**JOB, "state": state}, "log": str(log)} for state in ("running", "finished")]
    done = CliRunner().invoke(carpool, ["logs", "-f", "la"])
    assert (done.exit_code, done.stdout) == (0, "hello\n")
