"""`carpool usage` and `carpool history` with a real daemon: they add up, also after it was killed."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from carpool import calls
from carpool.client import Client
from carpool.errors import AnsweredError
from carpool.journal import schema, usage
from tests.e2e.node import Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOOP = ["explicit_turn.py", "--steps"]


def asked(node: Node, *options: str) -> dict[str, Any]:
    done = node.carpool("usage", "--json", *options)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def check_sum(found: dict[str, Any]) -> None:
    """The rows, idle and unknown time are the time times the devices, to the nanosecond."""
    booked = sum(row["had_ns"] for row in found["rows"]) + found["idle_ns"] + found["unknown_ns"]
    assert booked == found["device_ns"] == len(found["devices"]) * (found["until_ns"] - found["since_ns"])


def test_usage_adds_up_through_two_jobs_a_kill_and_a_restart(node: Node) -> None:
    node.start(quantum="50ms", device="cpu:2x2GiB")
    first = node.run(*LOOP, "100000", options=["--name", "first", "--device", "cpu0", "--tenant", "lab"])
    second = node.run(*LOOP, "100000", options=["--name", "second", "--device", "cpu0"])
    for name in ("first", "second"):
        node.wait_steps(name, 20)
    found = asked(node)
    check_sum(found)
    assert found["unknown_ns"] == 0
    by_job = asked(node, "--by", "job")
    check_sum(by_job)
    had = {row["name"].partition("-")[0]: row for row in by_job["rows"]}
    assert set(had) == {"first", "second"}
    assert all(row["had_ns"] > 0 and row["waited_ns"] > 0 and row["memory_mib_s"] >= 0 for row in had.values())
    assert {row["name"] for row in asked(node, "--by", "tenant")["rows"]} == {"lab", "default"}

    node.kill_daemon()
    with closing(sqlite3.connect(node.places.journal)) as db:
        written = sum(span for (span,) in db.execute("select had_ns from usage"))
        until_ns = usage.load(db).until_ns
    time.sleep(0.3)  # so long at least is unknown
    node.start(quantum="50ms", device="cpu:2x2GiB")
    again = asked(node)
    check_sum(again)
    assert again["since_ns"] == found["since_ns"]
    assert again["unknown_ns"] >= 2 * 300_000_000
    assert again["device_ns"] == written + sum(again["until_ns"] - until_ns[device] for device in ("cpu0", "cpu1"))
    assert node.carpool("cancel", "first", "second").code == 0
    for started in (first, second):
        started.wait()
    for name in ("first", "second"):
        node.wait_state(name, "failed", "cancelled", "finished")
    last = asked(node, "--by", "job")
    check_sum(last)
    told = {row["name"]: row["jobs"] for row in last["rows"]}
    assert list(told.values()) == [1, 1], "both ended"
    core = {name: node.job(name) for name in ("first", "second")}
    for row in last["rows"]:
        known = core[row["name"].partition("-")[0]]
        assert row["waited_ns"] == known["waited_ns"], "waits are those of the account, to the nanosecond"
        assert row["had_ns"] <= known["served_ns"] + known["spent_ns"].get("unused", 0) + known["spent_ns"].get(
            "input", 0
        )


def test_history_names_jobs_that_are_over_and_filters_them(node: Node) -> None:
    node.start()
    for name, options, code in (("fine", [], "0"), ("poor", ["--tenant", "lab"], "3")):
        ended = node.run("sh", "-c", f"exit {code}", options=["--name", name, *options]).wait()
        assert ended.code == int(code)
    done = node.carpool("history", "--json")
    jobs = json.loads(done.out)["jobs"]
    assert [(job["name"], job["state"], job["tenant"]) for job in jobs] == [
        ("poor", "failed", "lab"),
        ("fine", "finished", "default"),
    ]
    assert all(job["wall_ns"] > 0 and job["reason"] and job["user"] for job in jobs)
    for options, found in (
        (["--state", "failed"], {"poor"}),
        (["--tenant", "lab"], {"poor"}),
        (["--name", "f*"], {"fine"}),
        (["--since", "1h"], {"fine", "poor"}),
        (["--until", "yesterday"], set()),
        (["--user", "nobody-of-this-name"], set()),
        (["--limit", "1"], {"poor"}),
    ):
        said = json.loads(node.carpool("history", "--json", *options).out)
        assert {job["name"] for job in said["jobs"]} == found, options
    shown = node.carpool("history", "--limit", "1")
    assert "poor-2" in shown.out.decode()
    assert "the newest 1 are shown" in shown.err
    assert max(map(len, shown.lines)) <= 80


def test_the_table_fits_eighty_columns_and_the_csv_opens_in_a_spreadsheet(node: Node) -> None:
    node.start()
    long_name = "a-very-long-name-of-a-training-run-that-nobody-remembers"
    assert node.run(*LOOP, "5", options=["--name", long_name, "--tenant", "+2"]).wait().code == 0
    node.wait_state(long_name, "finished")
    for by in ("user", "tenant", "job", "day"):
        table = node.carpool("usage", "--by", by)
        assert (table.code, table.err) == (0, "")
        assert max(map(len, table.lines)) <= 80, table.lines
        assert table.lines[-1].startswith("(all devices)")
    rows = list(csv.DictReader(io.StringIO(node.carpool("usage", "--by", "tenant", "--csv").out.decode())))
    assert [row["tenant"] for row in rows] == ["'+2", "(idle)", "(unknown)", "(all devices)"]
    assert abs(sum(float(row["had_s"]) for row in rows[:-1]) - float(rows[-1]["had_s"])) < 0.01
    bad = node.carpool("usage", "--since", "soon")
    assert bad.code == 2
    assert "'soon' is not a time of the past" in bad.err
    assert node.carpool("usage", "--since", "today", "--until", "yesterday").code == 2


def test_j17_a_journal_that_cannot_be_read_stops_no_turn_and_questions_are_bounded(node: Node) -> None:
    node.start(quantum="20ms")
    node.run(*LOOP, "100000", options=["--name", "busy"])
    node.wait_steps("busy", 5)
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(Client(places=node.places).usage())
        except AnsweredError as error:
            answers.append(str(error))

    with closing(sqlite3.connect(node.places.journal, timeout=60)) as db:
        schema.prepare(db)
        db.execute("begin exclusive")  # its thread cannot write, and waits
        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        steps = node.job("busy")["steps"]
        node.wait_steps("busy", steps + 20)
        db.rollback()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 12
    refused = [said for said in answers if isinstance(said, str)]
    assert all("ask again" in said or "its disk hangs" in said for said in refused), refused
    found = [said for said in answers if isinstance(said, calls.Usage)]
    assert found
    assert wait_until(lambda: not node.client.usage().trouble, "a journal that is written again")
    assert node.carpool("cancel", "busy").code == 0


def test_a_question_that_makes_no_sense_is_refused_with_a_sentence(node: Node) -> None:
    node.start()
    for verb, arguments in (("usage", {"by": "colour"}), ("history", {"limit": 0}), ("history", {"since_s": "x"})):
        with pytest.raises(AnsweredError, match="cannot be read"):
            node.client.call(verb, **arguments)
