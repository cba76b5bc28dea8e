"""The tables people see: 80 columns, no colour where nobody looks, units people read."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.table import Table

from carpool.calls import Device, Job, Node
from carpool.cli import accounts, rows, tables
from carpool.cli.main import carpool
from carpool.cli.rows import NO_JOBS
from carpool.cli.tables import show
from carpool.units import SECOND

JOB: dict[str, Any] = {
    "id": "a-job-with-a-rather-long-name-17",
    "state": "running",
    "is_hog": True,
    "steps": 1_234_567,
    "steps_declared": 2_000_000,
    "step_ns": 12_300_000,
    "remaining_ns": 9_000_000_000_000,
    "served_ns": 3_600_000_000_000,
    "waited_ns": 61_000_000_000,
    "live_bytes": 3 << 30,
    "promised_bytes": 5 << 30,
}
DEVICE: dict[str, Any] = {
    "id": "cpu",
    "capacity_bytes": 16 << 30,
    "promised_bytes": 1 << 30,
    "lanes_bytes": 1 << 20,
    "free_bytes": 15 << 30,
    "live_bytes": 12345,
    "lanes": [{"id": "cpu/1", "holder": "a-1"}, {"id": "cpu/2", "holder": None}],
}


def job(facts: dict[str, Any]) -> Job:
    return msgspec.convert({"id": "a-1", **facts}, Job)


def job_table(facts: dict[str, Any], widest: dict[str, int] | None = None) -> Table:
    return tables.job_table(msgspec.convert(facts, Node), widest)


def device_table(facts: dict[str, Any]) -> Table:
    return tables.device_table(msgspec.convert(facts["devices"], list[Device]))


def account_lines(facts: dict[str, Any]) -> list[str]:
    return accounts.account_lines(job(facts))


def sentence(facts: dict[str, Any]) -> str:
    return accounts.sentence(job(facts))


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = capsys.readouterr().out
    assert "\x1b" not in text
    return text.splitlines()


def test_the_job_table_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show(job_table({"jobs": [JOB, {**JOB, "id": "b-2", "state": "queued", "step_ns": None, "remaining_ns": None}]}))
    lines = printed(capsys)
    assert all(len(line) <= 80 for line in lines)
    cut = next(line for line in lines if "…" in line)
    assert cut.startswith("a-job-…-17 "), "an id loses its middle, not its number"
    for whole in ("running (hog)", "1234567/2000000", "2 h 30 min", "1 h 0 min", "1 min 1 s", "3.00 GiB"):
        assert whole in cut


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_long_name_takes_no_column_from_sizes_and_devices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lanes = [{"id": "cpu/1", "holder": "n" * 60 + "-4"}, {"id": "cpu/2", "holder": "m" * 60 + "-5"}]
    show(device_table({"devices": [{**DEVICE, "lanes": lanes}]}))
    lines = printed(capsys)
    assert " ".join(lines[0].split()) == "device capacity to jobs in lanes unpromised in use runs now"
    assert " ".join(lines[2].split()).startswith("cpu 16.0 GiB 1.00 GiB 1.00 MiB 15.0 GiB 12.1 KiB n")
    assert lines[2].rstrip().endswith("…-4")
    assert lines[3].strip().endswith("…-5")
    assert all(len(line) <= max(80, int(columns)) for line in lines)


@pytest.mark.parametrize("state", ["queued", "parked", "running", "finished"])
def test_bytes_are_what_a_job_holds_and_not_what_was_promised_to_it(state: str) -> None:
    holds_nothing = msgspec.convert({"jobs": [{**JOB, "state": state, "live_bytes": 0}]}, Node)
    assert rows.job_rows(holds_nothing, 80).cells[0][-1] == "0 B"


@pytest.mark.parametrize("columns", ["abc", "-5", "0", "", "1e3", "9" * 30])
def test_a_width_that_is_none_is_taken_for_80(columns: str) -> None:
    with pytest.MonkeyPatch.context() as patch:  # it ends before pytest writes a line of this width, as with -v
        patch.setenv("COLUMNS", columns)
        found = rows.screen_width(), tables.console().width
    assert found == (80, 80)


def test_a_suspended_job_that_could_not_leave_does_not_look_like_one_that_waits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stuck = {**JOB, "id": "a-1", "state": "waiting", "is_hog": False, "is_suspended": True}
    show(job_table({"jobs": [stuck, {**stuck, "id": "b-2", "is_suspended": False}]}))
    rows = {line.split()[0]: line.split()[1] for line in printed(capsys) if line[:2] in ("a-", "b-")}
    assert rows == {"a-1": "suspended", "b-2": "waiting"}


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"silent_ns": 3 * SECOND}, "no boundary reached for 3.0 s (usual step 12 ms)"),
        ({"silent_ns": 3 * SECOND, "step_ns": None}, "no boundary reached for 3.0 s"),
        ({"silent_ns": 3 * SECOND, "step_ns": SECOND}, ""),
        ({"silent_ns": SECOND}, ""),
        ({"silent_ns": None}, ""),
        ({"silent_ns": 3 * SECOND, "is_hog": True}, "its reason"),
        ({"state": "starting", "silent_ns": None, "spent_ns": {"start": 31 * SECOND}}, "its reason"),
        ({"state": "starting", "silent_ns": None, "spent_ns": {"start": 3 * SECOND}}, ""),
        ({"state": "queued", "silent_ns": None}, "its reason"),
    ],
)
def test_a_job_that_does_not_get_on_is_named(changes: dict[str, Any], remark: str) -> None:
    named = job({**JOB, "is_hog": False, "is_suspended": False, "spent_ns": {}, "reason": "its reason", **changes})
    assert rows.remark_on(named) == remark
    assert rows.state_of(named).endswith(" (silent)") is remark.startswith("no boundary")


def test_the_device_is_shown_where_there_are_several(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = {**JOB, "id": "b-2", "state": "queued", "device": None}
    running = {**JOB, "device": "gpu15", "processes": [{"pid": 4711, "live_bytes": 2 << 30, "device_ns": SECOND}]}
    for width in (80, 88, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        show(job_table({"jobs": [running, queued], "devices": [DEVICE, DEVICE]}))
        lines = printed(capsys)
        assert all(len(line) <= width for line in lines)
        assert sum(line.rstrip().endswith("3.00 GiB") for line in lines) == 2
        assert any("gpu15" in line.split() for line in lines)
        assert any("left" in line for line in lines) is (width >= 88)
        assert next(line for line in lines if "4711" in line).split() == ["pid", "4711", "1.0", "s", "2.00", "GiB"]
        show(job_table({"jobs": [running, queued], "devices": [DEVICE]}))
        assert not any("gpu15" in line for line in printed(capsys))


def test_processes_stand_under_their_job_with_bytes_and_device_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    processes = [
        {"pid": 4711, "live_bytes": 2 << 30, "device_ns": 3 * SECOND},
        {"pid": 4712, "live_bytes": 1 << 20, "device_ns": 0},  # a shell around the program, say
    ]
    short = {**JOB, "id": "a-1", "steps": 10, "steps_declared": None, "processes": processes}
    show(job_table({"jobs": [short]}))
    lines = printed(capsys)
    assert next(line for line in lines if "4711" in line).split() == ["pid", "4711", "3.0", "s", "2.00", "GiB"]
    assert not any("4712" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_short_job_is_shown_with_all_its_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    short = {**JOB, "id": "a-1", "steps": 10, "steps_declared": 20}
    show(job_table({"jobs": [short]}))
    row = next(line for line in printed(capsys) if "a-1" in line)
    for word in ("running (hog)", "10/20", "12 ms", "2 h 30 min", "1 h 0 min", "1 min 1 s", "3.00 GiB"):
        assert word in row


def test_columns_of_a_table_that_is_shown_again_do_not_become_narrower(capsys: pytest.CaptureFixture[str]) -> None:
    short = {**JOB, "id": "b-2", "state": "idle", "is_hog": False, "steps": 1, "steps_declared": None, "served_ns": 0}
    widest: dict[str, int] = {}
    show(job_table({"jobs": [JOB]}, widest))
    first = printed(capsys)
    show(job_table({"jobs": [short]}, widest))
    assert printed(capsys)[0] == first[0], "the same places for the same columns"
    show(job_table({"jobs": [short]}))
    assert printed(capsys)[0] != first[0]


def test_top_without_jobs_says_how_to_start_one(answering: list[dict[str, object]]) -> None:
    answering.append({"devices": [DEVICE], "jobs": []})
    said = CliRunner().invoke(carpool, ["top"]).stdout.splitlines()
    assert said[-1] == NO_JOBS
    assert not any(line.startswith("job ") for line in said)


def test_the_device_table_names_who_runs(capsys: pytest.CaptureFixture[str]) -> None:
    show(device_table({"devices": [DEVICE, {**DEVICE, "id": "cpu1", "lanes": []}]}))
    lines = printed(capsys)
    assert any("a-1" in line and "16.0 GiB" in line for line in lines)
    assert any("nobody" in line for line in lines)


def test_the_account_of_an_ended_job_ends_with_one_sentence() -> None:
    facts = {
        "state": "finished",
        "spent_ns": {"run": 600 * SECOND, "turn": 96 * SECOND, "move": 24 * SECOND},
        "waited_for_ns": {"bert": 96 * SECOND},
    }
    lines = account_lines(facts)
    assert [line.split()[0] for line in lines[:-1]] == ["running", "waiting", "for", "moving", "wall"]
    parts = [line.split()[-2:] for line in account_lines({**facts, "spent_ns": {"run": 1999, "turn": 1}})[:2]]
    assert parts == [["100", "%"], ["0", "%"]], "rounded, not cut"
    assert lines[-1] == "12 min 0 s instead of 10 min 0 s: 1 min 36 s waiting for job bert, 24.0 s moving"
    assert account_lines({"state": "failed", "spent_ns": {}, "waited_for_ns": {}}) == []


def test_the_sentence_names_the_jobs_that_were_waited_for_longest_and_adds_up() -> None:
    waits = {"a-1": 10 * SECOND, "b-2": 40 * SECOND, "c-3": 30 * SECOND, "d-4": 20 * SECOND}
    spent = {"run": 100 * SECOND, "input": 5 * SECOND, "turn": 110 * SECOND, "memory": 25 * SECOND}
    facts = {"state": "finished", "spent_ns": spent, "waited_for_ns": waits}
    assert sentence(facts) == (
        "4 min 0 s instead of 1 min 45 s: 40.0 s waiting for job b-2, 30.0 s waiting for job c-3,"
        " 25.0 s waiting for memory, 20.0 s waiting for job d-4, 20.0 s waiting for other turns"
    )
    rows = account_lines(facts)
    assert [line.split()[:2] for line in rows if "hand-overs" in line] == [["for", "hand-overs"]], "10 s had nobody"
    assert sentence({**facts, "state": "running"}) == ""
    assert sentence({**facts, "spent_ns": {"run": SECOND}}) == "", "alone it lost nothing"


def test_what_its_own_limit_took_is_a_row_and_a_part_of_the_sentence() -> None:
    spent = {"run": 40 * SECOND, "turn": 10 * SECOND, "limit": 50 * SECOND}
    facts = {"state": "finished", "spent_ns": spent, "waited_for_ns": {"a-1": 10 * SECOND}}
    rows = account_lines(facts)
    assert [row.split() for row in rows if "limit" in row][0] == [
        "at",
        "its",
        "compute",
        "limit",
        "50.0",
        "s",
        "50",
        "%",
    ]
    assert sentence(facts) == "1 min 40 s instead of 40.0 s: 50.0 s at its compute limit, 10.0 s waiting for job a-1"


def test_a_job_that_never_asked_for_a_turn_was_not_starting_up() -> None:
    spent = {"memory": 4 * SECOND, "start": 20 * SECOND}
    facts = {"state": "finished", "steps": 0, "spent_ns": spent, "waited_for_ns": {}}
    said = (
        "it took no turns: carpool saw no iteration of a torch program and no CUDA kernel in it, so it ran beside the"
    )
    assert account_lines(facts)[0].split() == ["without", "turns", "20.0", "s", "83", "%"]
    assert sentence(facts).startswith(f"24.0 s instead of 20.0 s: 4.0 s waiting for memory; {said}")
    assert sentence({**facts, "spent_ns": {"start": SECOND}}).startswith(said)
    assert sentence({**facts, "state": "failed", "spent_ns": {"start": SECOND}}) == "", "its own error says more"
    for other in ({"state": "starting"}, {"spent_ns": {**spent, "run": 1}}, {"steps": 1}):
        assert account_lines({**facts, **other})[0].startswith("start-up ")
        assert "no turns" not in sentence({**facts, **other})


def test_a_loss_that_is_too_small_to_be_seen_in_the_figures_is_not_compared() -> None:
    facts = {"state": "finished", "spent_ns": {"run": 24 * SECOND, "turn": SECOND // 100}, "waited_for_ns": {}}
    assert sentence(facts) == "24.0 s, of that 10 ms waiting for a turn"
    assert sentence({**facts, "spent_ns": {"run": 24 * SECOND, "turn": SECOND}}).startswith(
        "25.0 s instead of 24.0 s: "
    )


def test_refused_allocations_are_part_of_the_summary_and_not_said_twice_by_explain() -> None:
    spent = {"run": 9 * SECOND, "turn": SECOND}
    facts = {"state": "failed", "spent_ns": spent, "waited_for_ns": {}, "refusals": "2 allocations were refused"}
    assert sentence(facts) == "10.0 s instead of 9.0 s: 1.0 s waiting for a turn; 2 allocations were refused"
    assert sentence({**facts, "spent_ns": {"run": SECOND}}) == "2 allocations were refused"
    assert "refused" not in "".join(account_lines(facts)), "the reason above it has it"


@pytest.mark.parametrize("columns", ["40", "80", "100"])
def test_ps_prints_the_same_table_as_top_without_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    processes = [{"pid": 4711, "live_bytes": 2 << 30, "device_ns": 3 * SECOND}]
    jobs = [
        JOB,
        {**JOB, "id": "b-2", "state": "idle", "processes": processes},
        {**JOB, "id": "c-3", "device": "cpu1"},
    ]
    for devices in ([DEVICE], [DEVICE, DEVICE]):
        node = msgspec.convert({"jobs": jobs, "devices": devices}, Node)
        show(tables.job_table(node))
        by_rich = printed(capsys)
        assert [*rows.lines_of(rows.job_rows(node, rows.screen_width()), is_coloured=False)] == by_rich


def test_states_are_coloured_on_a_terminal_only_within_their_cell() -> None:
    node = msgspec.convert({"jobs": [{**JOB, "id": "b-2", "state": "queued", "is_hog": False}]}, Node)
    head, _, row = rows.lines_of(rows.job_rows(node, 80), is_coloured=True)
    assert head.startswith("\x1b[1mjob")
    assert row.startswith("b-2 \x1b[35mqueued\x1b[0m ")


def test_the_modules_that_ps_loads_leave_rich_alone() -> None:
    loaded = "import sys, carpool.cli.main, carpool.cli.ps; print('rich' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True).stdout
    assert shown == "False\n"
