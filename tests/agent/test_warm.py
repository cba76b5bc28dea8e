"""The parts of a warm start by themselves; tests/e2e/test_warm.py has whole programs."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from carpool.agent.warm.reads import Reads
from carpool.agent.warm.shelf import exchange, has_shadow
from carpool.wire import warm


def test_what_is_read_of_the_environment_is_noted_and_compared() -> None:
    reads = Reads()
    reads.begin()
    os.environ.get("SOME_SETTING")
    "OTHER_SETTING" in os.environ  # noqa: B015 - the look is what is noted
    reads.end()
    os.environ.get("READ_LATER")
    assert {"SOME_SETTING", "OTHER_SETTING"} <= reads.names and "READ_LATER" not in reads.names
    assert reads.difference({"SOME_SETTING": "1"}, {"SOME_SETTING": "2"}) == "SOME_SETTING"
    assert reads.difference({"SOME_SETTING": "1"}, {}) == "SOME_SETTING"
    assert reads.difference({"READ_LATER": "1"}, {}) == ""


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "LD_PRELOAD", "PYTHONHASHSEED", "LC_ALL", "TZ", "MALLOC_ARENA_MAX"]
)
def test_what_is_read_unseen_is_compared_by_its_prefix(name: str) -> None:
    assert Reads().difference({name: "1"}, {name: "2"}) == name


def test_a_job_has_its_own_variables_of_carpool() -> None:
    reads = Reads()
    reads.begin()
    os.environ.get("CARPOOL_PAGE")
    reads.end()
    assert reads.difference({"CARPOOL_PAGE": "a"}, {"CARPOOL_PAGE": "b"}) == ""


def test_whoever_reads_all_variables_is_named() -> None:
    reads = Reads()
    reads.begin()
    dict(os.environ)
    reads.end()
    assert "reads all variables" in reads.trouble


@pytest.mark.parametrize("words", [["-u", "x.py", "-u"], ["x.py"], ["-m", "x", "-c"], ["-c", "pass"]])
def test_command_lines_that_a_fork_can_become(words: list[str]) -> None:
    command = warm.Command(["python", *words])
    assert command.is_unbuffered == (words[0] == "-u")
    assert [*filter(None, [command.kind]), command.target, *command.arguments] == [*words[words[0] == "-u" :]]


@pytest.mark.parametrize("words", [[], ["-u"], ["-m"], ["-X", "dev", "x.py"], ["-"], ["-bc", "pass"], ["-I", "x.py"]])
def test_other_command_lines_are_refused(words: list[str]) -> None:
    with pytest.raises(ValueError):
        warm.Command(["python", *words])


def test_a_file_that_would_be_imported_instead_is_found(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "numpy.txt").touch()
    assert has_shadow(str(tmp_path), {"torch", "numpy"}) == ""
    (tmp_path / "torch" / "__init__.py").touch()
    assert has_shadow(str(tmp_path), {"torch", "numpy"}) == str(tmp_path / "torch")
    assert has_shadow(str(tmp_path / "nowhere"), {"torch"}) == ""


def test_a_request_travels_with_its_files() -> None:
    """V18: the peer is asked who it is."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:
        warm.check_peer(ours)
        warm.send_request(ours, {"argv": ["\udc80"], "big": "x" * 50_000}, [file.fileno()])
        request, files = warm.receive_request(theirs)
        assert request["argv"] == ["\udc80"] and len(request["big"]) == 50_000
        assert os.fstat(files[0]).st_rdev == os.fstat(file.fileno()).st_rdev
        os.close(files[0])
        warm.send_word(theirs, pid=3)
        assert warm.Words(ours).next() == {"pid": 3}


def test_where_a_process_stands_is_told_by_words() -> None:
    """V19: they go into a reason."""
    assert warm.situation() == warm.situation()
    assert {"user", "cgroup", "processors", "mnt namespace", "root directory"} <= warm.situation().keys()


def test_two_dictionaries_have_each_others_contents_and_no_reference_is_counted() -> None:
    """V11: each reference that is counted is a page of the program's own."""
    things = [object() for _ in range(100)]
    many: dict[str, object] = {f"name {number}": thing for number, thing in enumerate(things)}
    few: dict[str, object] = {"own": things[0]}
    wanted, had, counts = dict(many), dict(few), [sys.getrefcount(thing) for thing in things]
    del many["name 7"], many["name 8"]
    many |= {"name 7": things[7], "name 8": things[8]}
    exchange(few, many)
    assert few == wanted and many == had
    assert [sys.getrefcount(thing) for thing in things] == counts
    few["another"] = 1
    del few["name 3"], many["own"]
    assert len(few) == 100 and not many and "name 3" not in few
    exchange(many, few)
    assert not few and many["another"] == 1
