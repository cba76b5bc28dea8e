"""`carpool doctor` looks at a Python the way a job would find it."""

from __future__ import annotations

import json
import os
import sys
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner

from carpool.cli import doctor, programs_python
from carpool.cli.doctor import examine
from carpool.cli.programs_python import WORKS
from carpool.daemon.environment import INJECT
from tests.e2e.pythons import old_pythons

KNOWN: dict[str, object] = {
    "python": "3.12.1",
    "implementation": "cpython",
    "flags": "",
    "inside": True,
    "torch": "2.13.0+%s",
    "cuda": False,
    "hooked": True,
    "points": False,
    "moves": False,
    "parks": True,
    "records": True,
}


def python_in(directory: Path) -> str:
    """A Python that has a torch, whose local version it says is its PYTHONPATH; it loads no C library."""
    python = directory / "python"
    python.write_text(f"""#!/bin/sh\nprintf '{json.dumps(KNOWN)}' "$PYTHONPATH"\n""")
    python.chmod(0o700)
    return str(python)


def test_the_users_own_python_path_is_kept_behind_carpools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    (torch,) = [finding for finding in examine(python_in(tmp_path)) if finding["what"] == "torch"]
    assert torch["mark"] == "ok"
    assert torch["text"].startswith(f"2.13.0+{INJECT}:/mine, CUDA not usable")


def of_python(python: str, *kinds: str) -> list[tuple[str, str, str]]:
    """What is said of a program's Python, its torch and the C parts there."""
    found = [(finding["mark"], finding["what"], finding["text"]) for finding in examine(python)]
    return [finding for finding in found if finding[1] in (kinds or ("python", "torch", "hooks", "points", "moves"))]


@pytest.fixture
def nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))


@pytest.mark.usefixtures("nobody_there")
def test_carpools_own_python_is_tested_and_all_works_there() -> None:
    found = of_python(sys.executable)
    assert [(mark, what) for mark, what, _ in found] == [
        ("ok", what) for what in ("python", "torch", "hooks", "points", "moves")
    ]
    assert found[0][2].startswith(".".join(map(str, sys.version_info[:3])))


OLD = json.dumps({**KNOWN, "python": "3.8.18", "torch": None})


@pytest.mark.usefixtures("nobody_there")
@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "cannot be started (No such file or directory)"),
        ("echo hello", "is no Python: it does not do what `-c` says"),
        ("echo '{\"torch\": null}'", "is no Python: it does not do what `-c` says"),
        (f"echo '{OLD}'", "Python 3.8 is older than 3.11; its programs run outside carpool's turns"),
    ],
    ids=["no file", "no Python", "another answer", "too old"],
)
def test_a_path_that_cannot_serve_is_one_finding_in_one_sentence(
    tmp_path: Path, script: str | None, says: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o700)
    ((mark, what, text),) = of_python(str(python))
    assert (mark, what) == ("missing", "python")
    assert says in text and str(python) in text and "\n" not in text


def test_the_question_is_understood_by_pythons_of_any_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = old_pythons()
    if not old:
        pytest.skip("no Python older than 3.11 is here: that doctor names those is NOT tested")
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for python in old:
        ((mark, what, text),) = of_python(python)
        assert (mark, what) == ("missing", "python"), text
        assert " is older than 3.11; " in text


def unlike(where: str, **words: str) -> str:
    """The same Python with other answers."""
    path = Path(where)
    text = path.read_text()
    for word, other in words.items():
        text = text.replace(f'"{word}": {json.dumps(KNOWN[word])}', f'"{word}": {other}')
    path.write_text(text)
    return where


@pytest.mark.usefixtures("nobody_there")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"python": '"3.15.2"'}, "Python 3.15 is newer than 3.14; CARPOOL_ANY_VERSION=1 tries it all the same"),
        ({"implementation": '"pypy"'}, "pypy is another Python than CPython, which is what carpool knows"),
        ({"flags": '"t"'}, "Python 3.12 is built without its lock (free-threaded); CARPOOL_ANY_VERSION=1 tries it"),
        ({"inside": "false"}, "it does not read PYTHONPATH (is it started with -I, -E or -S?)"),
    ],
    ids=["too new", "PyPy", "free-threaded", "-I in a wrapper"],
)
def test_z10_what_does_not_work_in_a_python_is_said_with_the_reason(
    tmp_path: Path, words: dict[str, str], why: str
) -> None:
    found = of_python(unlike(python_in(tmp_path), **words), "python", "turns", "parking", "checkpoint")
    assert [(mark, what) for mark, what, _ in found] == [
        ("missing", "python"),
        ("note", "turns"),
        ("note", "parking"),
        ("note", "checkpoint"),
    ]
    assert why in found[0][2] and all(text.startswith(f"no: {why}") for _, _, text in found[1:])


@pytest.mark.usefixtures("nobody_there")
def test_z10_a_torch_that_nobody_tried_takes_no_turns_until_somebody_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = Path(python_in(tmp_path))
    python.write_text(python.read_text().replace("2.13.0+", "9.0.0+"))
    (torch, turns) = of_python(str(python), "torch", "turns")
    assert (torch[0], turns[0]) == ("missing", "note")
    assert " is newer than 2.15; CARPOOL_ANY_VERSION=1 tries it all the same" in turns[2]
    monkeypatch.setenv("CARPOOL_ANY_VERSION", "1")
    (torch, turns) = of_python(str(python), "torch", "turns")
    assert (torch[0], turns[0]) == ("note", "ok")
    assert "this version is not tested, 2." in torch[2]


@pytest.mark.usefixtures("nobody_there")
def test_what_works_in_a_python_can_be_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(doctor.doctor, ["--json", "--python", python_in(tmp_path)])
    programs = json.loads(done.output)["programs"]
    assert programs["python"] == KNOWN["python"] and programs["torch"].startswith("2.13.0+")
    assert programs["c_parts"] == {"points": False, "moves": False}
    assert {what: programs[what]["works"] for what in WORKS} == dict.fromkeys(WORKS, True)


@pytest.mark.usefixtures("nobody_there")
def test_a_python_without_torch_takes_turns_where_its_programs_ask_for_them(tmp_path: Path) -> None:
    venv.EnvBuilder(symlinks=True).create(tmp_path / "bare")
    found = of_python(str(tmp_path / "bare" / "bin" / "python"), "torch", "turns", "parking", "checkpoint")
    assert [mark for mark, _, _ in found] == ["missing", "ok", "note", "note"]
    assert [text for _, _, text in found[1:]] == [
        "yes: only in `with carpool.turn()`: it has no torch",
        "no: it has no torch",
        "no: it has no torch",
    ]


@pytest.mark.usefixtures("nobody_there")
def test_what_missing_c_parts_cost_is_said_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = python_in(tmp_path)
    for _, what, text in of_python(python, "points", "moves"):
        assert text.startswith(f"Python 3.12.1 does not load {programs_python.C_PARTS[what][0]}.abi3.so"), text
        assert text.endswith(f": {programs_python.C_PARTS[what][2]}")
    monkeypatch.setattr(programs_python, "BUILT", tmp_path)
    for _, what, text in of_python(python, "points", "moves"):
        assert text.startswith(f"the C library is not built: {programs_python.C_PARTS[what][2]} (install gcc"), text


def test_the_devices_of_a_running_daemon_are_named(answering: list[dict[str, object]], tmp_path: Path) -> None:
    gpus = [{"id": f"gpu{n}", "capacity_bytes": 16 << 30, "title": "a stand-in"} for n in range(2)]
    answering.append({"pid": 7, "policy": "fair", "jobs": 0, "devices": gpus})
    said = [finding["text"] for finding in examine(python_in(tmp_path)) if finding["what"] == "daemon"]
    assert said == [
        "pid 7, policy fair, 0 jobs",
        "has gpu0: 16.0 GiB, a stand-in",
        "has gpu1: 16.0 GiB, a stand-in",
    ]


def test_the_directory_of_the_daemon_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carpool.wire.places.RUN_PARENT", tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CARPOOL_DIR", raising=False)
    monkeypatch.setenv("CARPOOL_ROOT", str(tmp_path))
    run, state = tmp_path / f"carpool-{os.geteuid()}", tmp_path / "state" / "carpool" / os.uname().nodename
    usual = f"CARPOOL_DIR is not set, no daemon for all users is installed: the place of user {os.geteuid()}"
    python = python_in(tmp_path)
    assert place_in(examine(python)) == f"{run} ({usual}); journal and logs in {state}"
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    chosen = f"{tmp_path}/run (CARPOOL_DIR is {tmp_path}); journal and logs in {tmp_path}/state"
    assert place_in(examine(python)) == chosen


def place_in(findings: list[dict[str, str]]) -> str:
    (place,) = [finding["text"] for finding in findings if finding["what"] == "place"]
    return place


def test_a_meter_that_does_not_come_to_an_end_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o700)
    found: list[tuple[str, str, str]] = []
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(doctor, "METER_SECONDS", 0.1)
    doctor._examine_meter("meter.so", lambda *finding: found.append(finding))
    ((mark, what, text),) = found
    assert (mark, what) == ("missing", "meter")
    assert text.startswith("meter.so could not be tried: ")
    assert "timed out" in text
