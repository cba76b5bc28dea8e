"""`carpool daemon stop` believes the process, not its socket; the daemon's configuration says its quantum."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from carpool.cli import daemon
from carpool.cli.main import carpool
from carpool.daemon.config import DaemonConfig
from carpool.errors import PeerError, UsageError
from carpool.units import MS
from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.places import find_places


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, object]]]:
    """Answers calls in place of a daemon: each with the next of these."""
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    places = find_places()
    for directory in (places.run, places.state):
        directory.mkdir(mode=0o700)
    answers: list[dict[str, object]] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(places.socket))
    listener.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with peer:
                    if peer.recv(1 << 16):
                        peer.sendall(framing.encode(m.Reply(answer=answers.pop(0), error="", code=0)))

    thread = threading.Thread(target=serve)
    thread.start()
    yield answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(30)


def test_a_daemon_that_lingers_after_its_stop_is_not_said_to_be_stopped(
    answering: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "STOP_SECONDS", 0.05)
    answering.append({"pid": os.getpid()})  # a process that goes on
    done = CliRunner().invoke(carpool, ["daemon", "stop"])
    assert isinstance(done.exception, PeerError)
    assert f"daemon {os.getpid()} was told to stop" in str(done.exception)
    assert "stopped" not in done.output


@pytest.mark.parametrize(
    "options",
    [
        ["--quantum", "7ms"],
        ["--policy", "las"],
        ["--device", "cpu:64MiB"],
        ["--policy", "srtf"],
        ["--share-policy", "burst"],
    ],
)
def test_another_configuration_than_the_running_daemons_is_a_misuse(
    answering: list[dict[str, object]], options: list[str]
) -> None:
    answering.append({"pid": 1, "policy": "fair", "device": "auto", "quantum_ns": 100 * MS, "share_policy": "fixed"})
    done = CliRunner().invoke(carpool, ["daemon", "start", *options])
    assert isinstance(done.exception, UsageError)
    said = str(done.exception)
    assert "a daemon runs already with policy fair, device auto, share policy fixed and quantum 100 ms" in said


@pytest.mark.parametrize("options", [[], ["--quantum", "0.1s"], ["--policy", "fair"]])
def test_the_same_configuration_in_other_words_is_no_misuse(
    answering: list[dict[str, object]], options: list[str]
) -> None:
    answering.append({"pid": 1, "policy": "fair", "device": "auto", "quantum_ns": 100 * MS, "share_policy": "fixed"})
    done = CliRunner().invoke(carpool, ["daemon", "start", *options])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "daemon 1 runs already" in done.stderr


def test_the_quantum_is_what_was_told_or_the_policys_own() -> None:
    assert DaemonConfig(policy="srtf").quantum_ns == 10 * MS
    assert DaemonConfig(policy="srtf", quantum="1s").quantum_ns == 1000 * MS
    assert DaemonConfig(policy="fair", quantum="0").quantum_ns == 0


@pytest.mark.parametrize("share_policy", ["greedy", "equal:0", "equal:many", "fixed:4", "weighted:2"])
def test_a_share_policy_that_makes_no_sense_is_refused(share_policy: str) -> None:
    with pytest.raises(UsageError, match="share policy"):
        DaemonConfig(share_policy=share_policy, device="cpu:64MiB").check()


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
