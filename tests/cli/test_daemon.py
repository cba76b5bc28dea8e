"""`carpool daemon stop` believes the process, not its socket; the daemon's configuration says its quantum."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from carpool.cli import daemon
from carpool.cli.main import carpool
from carpool.daemon.config import DaemonConfig
from carpool.errors import PeerError, UsageError
from carpool.units import MS, SECOND
from carpool.wire.places import find_places


def test_a_daemon_that_lingers_after_its_stop_is_not_said_to_be_stopped(
    answering: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "STOP_SECONDS", 0.05)
    answering.append({"pid": os.getpid()})  # a process that goes on
    done = CliRunner().invoke(carpool, ["daemon", "stop"])
    assert isinstance(done.exception, PeerError)
    assert f"daemon {os.getpid()} was told to stop" in str(done.exception)
    assert "stopped" not in done.output


RUNS: dict[str, object] = {
    "pid": 1,
    "run": "/r",
    "state": "/s",
    "policy": "fair",
    "device": "cpu:64MiB",
    "quantum_ns": None,
    "latency_ns": 2000 * MS,
    "share_policy": "fixed",
    "hog_after_ns": 2000 * MS,
    "host_bytes_max": 1 << 30,
    "journal_bytes_max": 64 << 20,
    "host_bytes": 1 << 20,
    "kept_bytes": 2 << 20,
    "tenant_weights_milli": {},
}
SAME = ["--device", "cpu:64MiB", "--host-memory", "1GiB"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--quantum", "7ms"], "with quantum chosen (not 7.0 ms);"),
        (["--device", "cpu:32MiB"], "with device cpu:64MiB (not cpu:32MiB);"),
        (["--policy", "srtf"], "with policy fair (not srtf), quantum chosen (not 10 ms);"),
        (["--share-policy", "burst"], "with share policy fixed (not burst);"),
        (["--hog-after", "3s"], "with hog after 2.0 s (not 3.0 s);"),
        (["--host-memory", "3GiB"], "with host memory 1.00 GiB (not 3.00 GiB);"),
        (["--host-memory", ""], "with host memory 1.00 GiB (not unlimited);"),
        (["--tenant-weights", "ben=0.5,ana=2"], "with tenant weights 1 each (not ana=2,ben=0.5);"),
    ],
)
def test_another_configuration_than_the_running_daemons_is_a_misuse(
    answering: list[dict[str, object]], options: list[str], words: str
) -> None:
    answering.append(RUNS)
    done = CliRunner().invoke(carpool, ["daemon", "start", *SAME, *options])
    assert isinstance(done.exception, UsageError)
    said = str(done.exception)
    assert f"daemon 1 runs already in {find_places().run}, {words}" in said
    assert "carpool daemon stop, then carpool daemon start" in said


def test_the_status_names_every_setting_in_80_columns(answering: list[dict[str, object]]) -> None:
    times = {"uptime_ns": 10**15, "cpu_s": 12345.6}
    answering.append({**RUNS, **times, "version": "0.1.0", "jobs": 1000, "journal_trouble": "", "devices": []})
    lines = CliRunner().invoke(carpool, ["daemon", "status"]).stdout.splitlines()
    assert lines[1] == "policy fair, quantum chosen, latency 2.0 s, share policy fixed, hog after 2.0 s"
    assert lines[2] == "device cpu:64MiB, host memory 1.00 GiB (1.00 MiB used)"
    assert lines[3] == "beside that, jobs that are back keep 2.00 MiB for their next move"
    assert lines[4] == "journal 0 B, at most 64.0 MiB, 0 rows wait to be written"
    assert lines[5:8] == ["start cold, no warm parent", "run directory /r", "journal and logs in /s"]
    assert all(len(line) <= 80 for line in lines)
    weighted = {**RUNS, **times, "version": "0.1.0", "jobs": 0, "journal_trouble": "", "devices": []}
    answering.append({**weighted, "kept_bytes": 0, "tenant_weights_milli": {"ana": 2000, "ben": 500}})
    lines = CliRunner().invoke(carpool, ["daemon", "status"]).stdout.splitlines()
    assert lines[3] == "tenant weights ana=2,ben=0.5 (1 for all others)"


@pytest.mark.parametrize(
    ("uptime_ns", "said"),
    [(2 * SECOND, "up 2.0 s, used 1.5 s of a core"), (100 * SECOND, "up 1 min 40 s, used 1.50 % of a core")],
)
def test_a_daemon_that_has_just_started_is_not_said_to_use_most_of_a_core(
    answering: list[dict[str, object]], uptime_ns: int, said: str
) -> None:
    times = {"uptime_ns": uptime_ns, "cpu_s": 1.5}
    answering.append({**RUNS, **times, "version": "0.1.0", "jobs": 0, "journal_trouble": "", "devices": []})
    assert CliRunner().invoke(carpool, ["daemon", "status"]).stdout.splitlines()[0].endswith(said)


@pytest.mark.parametrize(
    "options",
    [[], ["--latency", "2s"], ["--policy", "fair"], ["--hog-after", "2"], ["--tenant-weights", "ana=1"]],
)
def test_the_same_configuration_in_other_words_is_no_misuse(
    answering: list[dict[str, object]], options: list[str]
) -> None:
    answering.append(RUNS)
    done = CliRunner().invoke(carpool, ["daemon", "start", *SAME, *options])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"carpool: daemon 1 runs already in {find_places().run}\n"


def test_the_quantum_is_what_was_told_or_the_policys_own() -> None:
    assert DaemonConfig(policy="srtf").facts()["quantum_ns"] == 10 * MS
    assert DaemonConfig(policy="srtf", quantum="1s").facts()["quantum_ns"] == 1000 * MS
    assert DaemonConfig(policy="fair", quantum="0").facts()["quantum_ns"] == 0


@pytest.mark.parametrize("share_policy", ["greedy", "equal:0", "equal:many", "fixed:4", "weighted:2"])
def test_a_share_policy_that_makes_no_sense_is_refused(share_policy: str) -> None:
    with pytest.raises(UsageError, match="share policy"):
        DaemonConfig(share_policy=share_policy, device="cpu:64MiB").check()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--quantum", "soon"),
        ("--hog-after", "-1s"),
        ("--host-memory", "much"),
        ("--device", "cpu:x"),
        ("--tenant-weights", "ana:2"),
    ],
)
def test_what_a_daemon_cannot_be_told_is_named_with_its_option(option: str, text: str) -> None:
    done = CliRunner().invoke(carpool, ["daemon", "start", option, text])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"{option}: '")


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_device_that_is_not_here_is_a_misuse(answering: list[dict[str, object]], verb: str) -> None:
    answering.append({**RUNS, "devices": [{"id": "cpu0"}, {"id": "cpu1"}]})
    done = CliRunner().invoke(carpool, [verb, "--device", "cpu9", "--", "/bin/true"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "--device: there is no device cpu9 here; there are cpu0, cpu1"


def test_weights_of_tenants_are_for_policy_fair() -> None:
    assert DaemonConfig(tenant_weights="ana=2,ben=1").settings().tenant_weights_milli == {"ana": 2000, "ben": 1000}
    done = CliRunner().invoke(carpool, ["daemon", "start", "--policy", "srtf", "--tenant-weights", "ana=2"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == "--tenant-weights counts under policy fair; srtf does not go by tenants"


def test_equal_parts_may_be_given_a_number() -> None:
    settings = DaemonConfig(share_policy="equal:4").settings()
    assert (settings.share_policy, settings.share_slots) == ("equal", 4)


def test_parked_jobs_are_kept_where_the_daemon_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path / "one"))
    usual = find_places()
    config = DaemonConfig(device="cpu:64MiB", park_to=str(tmp_path))
    config.check()
    assert config.place_store(usual).parked.parent == tmp_path
    assert DaemonConfig(device="cpu:64MiB").place_store(usual).parked == usual.state / "parked"
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path / "two"))
    assert config.place_store(find_places()).parked != config.place_store(usual).parked, (
        "two daemons, two directories"
    )
    assert config.with_host_memory().host_memory, "what may be memory has a budget"
    assert not DaemonConfig(device="cpu:64MiB").with_host_memory().host_memory


def test_a_directory_that_is_not_there_takes_no_parked_jobs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no directory .*nowhere to park jobs to"):
        DaemonConfig(device="cpu:64MiB", park_to=str(tmp_path / "nowhere")).check()
