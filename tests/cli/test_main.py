"""How commands end: one sentence or one JSON object and the documented exit code; a bug keeps its traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from carpool.cli import launch
from carpool.cli.main import main, sentence_of, wants_json
from carpool.client import Client
from carpool.daemon.config import DaemonConfig
from carpool.errors import RefusedError, UsageError
from carpool.wire.places import find_places
from tests.impostor import impostor


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CARPOOL"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))


def ends_with(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of one command in this process."""
    monkeypatch.setattr(sys, "argv", ["carpool", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(str(ended.value.code))


@pytest.mark.parametrize(
    "words", [("run", "--", "/bin/true"), ("submit", "--", "/bin/true"), ("run", "--", "python", "x.py")]
)
def test_a_directory_that_was_deleted_is_one_sentence(tmp_path: Path, words: tuple[str, ...]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    call = "import os, sys; os.rmdir(os.getcwd()); from carpool.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", call, *words], cwd=gone, capture_output=True, text=True, timeout=60)
    said = "carpool: the directory this was called in does not exist any more; change to another one\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_what_the_system_refuses_is_said_with_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> dict[str, object]:
        raise PermissionError(errno.EACCES, "Permission denied", "/some/file")

    monkeypatch.setattr(Client, "ps", refuse)
    assert ends_with(monkeypatch, "ps") == 1
    assert capsys.readouterr() == ("", "carpool: Permission denied: /some/file\n")
    assert ends_with(monkeypatch, "ps", "--json") == 1
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"error": "Permission denied: /some/file", "exit_code": 1}, "")


def test_an_error_of_the_system_without_a_file_is_said_too() -> None:
    assert sentence_of(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"
    assert sentence_of(TimeoutError()) == "TimeoutError"
    assert sentence_of(FileNotFoundError(errno.ENOENT, "No such file or directory")) == "No such file or directory"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> dict[str, object]:
        raise KeyError("reason")

    monkeypatch.setattr(Client, "ps", fail)
    monkeypatch.setattr(sys, "argv", ["carpool", "ps", "--json"])
    with pytest.raises(KeyError):
        main()


def test_a_reader_that_had_enough_is_no_error() -> None:
    call = "import sys; sys.argv = ['carpool', '--help']; from carpool.cli.main import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-u", "-c", call], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.stderr == b""


WITH_JSON = [
    ("ps",),
    ("explain", "x"),
    ("daemon", "status"),
    ("suspend", "x"),
    ("resume", "x"),
    ("resize", "x", "--weight", "2"),
    ("migrate", "x", "--to", "cpu1"),
    ("checkpoint", "x", "never.ckpt"),
]


@pytest.mark.parametrize("words", WITH_JSON, ids=" ".join)
@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_daemon_that_is_not_reached_is_a_json_object_where_that_was_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], how: str
) -> None:
    if how == "variable":
        monkeypatch.setenv("CARPOOL_JSON", "1")
    assert ends_with(monkeypatch, *words, *(["--json"] if how == "option" else [])) == 3
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["exit_code"], err) == (3, "")
    assert answer["error"].startswith("no daemon answers at ")


@pytest.mark.parametrize("words", [("ps", "--no-such"), ("explain",), ("bench", "jct", "--jobs", "x")], ids=" ".join)
def test_misuse_is_a_json_object_where_the_variable_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CARPOOL_JSON", "1")
    assert ends_with(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert (json.loads(out)["exit_code"], err) == (2, "")


def test_a_command_that_prints_no_json_has_its_errors_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARPOOL_JSON", "1")
    for words, code in ((["logs", "x"], 3), (["run", "--", "no-such-program-anywhere"], 2), (["run", "--bad"], 2)):
        assert ends_with(monkeypatch, *words) == code
        out, err = capsys.readouterr()
        assert (out, err != "") == ("", True)


def test_json_of_a_program_is_not_for_carpool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wants_json(["run", "--json", "--", "python", "x.py"], None)
    assert not wants_json(["run", "--", "python", "x.py", "--json"], None)
    assert ends_with(monkeypatch, "submit", "no-such-program-anywhere", "--json") == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("carpool: cannot find the program")) == ("", True)


def test_a_move_that_failed_is_one_json_object(
    answering: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering.append({"job": {"id": "a-1", "moving_to": None, "device": "cpu0", "move_refused": "no room"}})
    assert ends_with(monkeypatch, "migrate", "a", "--to", "cpu1", "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"error": "job a-1 was not moved: no room", "exit_code": 1}


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("echo 'carpool daemon: CARPOOL_LOG=LOUD is not a level'; exit 2", UsageError, "CARPOOL_LOG=LOUD is not"),
        ("echo 'carpool daemon: No space left on device: x'; exit 1", RefusedError, "started: No space left"),
        ("echo Traceback; echo '  here'; echo 'OSError: no'; exit 1", RefusedError, "started: OSError: no (see /"),
        ("exit 7", RefusedError, "no daemon could be started: it ended with exit code 7"),
    ],
)
def test_a_daemon_that_does_not_start_hands_its_exit_code_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: type[Exception], words: str
) -> None:
    monkeypatch.setattr(sys, "executable", impostor_of_python(tmp_path, script))
    monkeypatch.setattr(launch, "RACE_SECONDS", 0.0)
    with pytest.raises(kind) as error:
        launch.start_daemon(find_places(), DaemonConfig(device="cpu:64MiB"))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def impostor_of_python(directory: Path, script: str) -> str:
    """A program that is started in the daemon's place."""
    path = directory / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def test_a_start_that_lost_the_race_waits_until_the_other_daemon_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", impostor_of_python(tmp_path, "exit 1"))
    places, is_over = find_places(), threading.Event()

    def listen_later() -> None:
        time.sleep(0.2)
        with impostor(places, bytes):
            is_over.wait(30)

    other = threading.Thread(target=listen_later)
    other.start()
    try:
        assert launch.start_daemon(places, DaemonConfig(device="cpu:64MiB")) is False
    finally:
        is_over.set()
        other.join()
