"""From a command line to a job: its name, its script, its fingerprint, its environment, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from carpool.cli.child import merged_environment
from carpool.cli.job_options import make_spec
from carpool.cli.launch import is_description
from carpool.cli.main import carpool
from carpool.client import fingerprint, script_of
from carpool.errors import UsageError

OPTIONS: dict[str, Any] = {
    "name": None,
    "priority": 0,
    "weight": 1.0,
    "tenant": "default",
    "memory": None,
    "wait_memory": None,
    "on_hog": "suspend",
    "on_orphans": "keep",
    "warm": None,
    "compute": None,
    "no_park": False,
    "oversubscribe": False,
    "steps": None,
    "device": None,
    "policy": None,
}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    return "train.py"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["python", "train.py", "--lr", "1"], "train.py"),
        (["/usr/bin/python3.11", "-u", "dir/train.py"], "dir/train.py"),
        (["torchrun", "--nproc-per-node", "2", "ddp.py"], "ddp.py"),
        (["accelerate", "launch", "train.py"], "train.py"),
        (["python", "-m", "package", "other.py"], None),
        (["python", "-c", "print(1)"], None),
        (["./train.py"], None),
        (["bash", "run.py"], None),
        (["python"], None),
    ],
)
def test_the_script_in_a_command_line(argv: list[str], expected: str | None) -> None:
    assert script_of(argv) == (Path(expected) if expected else None)


def test_a_job_is_named_after_its_script_or_its_program(script: str, tmp_path: Path) -> None:
    assert make_spec([sys.executable, script], OPTIONS)["name"] == "train"
    assert make_spec(["/bin/true"], OPTIONS)["name"] == "true"
    assert make_spec(["/bin/true"], {**OPTIONS, "name": "mine"})["name"] == "mine"
    long = tmp_path / f"{'x' * 100}.py"
    long.touch()
    assert make_spec([sys.executable, str(long)], OPTIONS)["name"] == "x" * 60
    with pytest.raises(UsageError, match="--name has 500 characters; 60 are the most"):
        make_spec(["/bin/true"], {**OPTIONS, "name": "x" * 500})


def test_units_become_numbers(script: str) -> None:
    spec = make_spec([sys.executable, script], {**OPTIONS, "memory": "1.5GiB", "weight": 0.25, "steps": 7})
    assert (spec["cap_bytes"], spec["weight_milli"], spec["steps"]) == (3 << 29, 250, 7)
    assert make_spec(["/bin/true"], {**OPTIONS, "weight": 1e-9})["weight_milli"] == 1, "small, but not nothing"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight", 0.0),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("steps", 0),
        ("steps", 10**16),
        ("priority", -(10**7)),
        ("memory", ""),
        ("memory", "-1"),
        ("memory", "0"),
        ("memory", "1e99GiB"),
        ("policy", "lottery"),
        ("name", "runs/3"),
        ("name", ""),
        ("tenant", " "),
        ("wait_memory", "soon"),
        ("wait_memory", "0"),
        ("wait_memory", "99999999999h"),
        ("compute", "half"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_started(name: str, value: object) -> None:
    with pytest.raises(UsageError):
        make_spec(["/bin/true"], {**OPTIONS, name: value})


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("missing.py", "cannot find the program 'missing.py': there is no such file"),
        ("./missing", "cannot find the program './missing': there is no such file"),
        ("nosuchprogram", "cannot find the program 'nosuchprogram': no directory of PATH has it"),
        ("/tmp", "/tmp is a directory, not a program"),
        ("train.py", "a script is run with: carpool run -- python train.py"),
    ],
)
def test_what_is_advised_instead_of_a_program_is_there(script: str, program: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_spec([program], OPTIONS)
    assert words in str(refused.value)
    assert ("python" in str(refused.value)) == (program == script)


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_value_that_cannot_be_read_is_said_with_its_option_or_variable(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*words: str) -> str:
        return str(CliRunner().invoke(carpool, [verb, *words]).exception)

    assert refusal("--memory", "much", "/bin/true").startswith("--memory: 'much' is not a size; ")
    assert refusal("--memory", "much", "python", "missing.py").startswith("--memory: "), (
        "before the script is looked for"
    )
    assert refusal("--compute", "half", "/bin/true").startswith("--compute: 'half' is not a share; ")
    assert refusal("--wait-memory", "python", "train.py", "5") == (
        "--wait-memory: 'python' is not a length of time; write --wait-memory=10m, or -- before the program"
    )
    for text in ("0", "0.1ns"):
        assert refusal(f"--wait-memory={text}", "/bin/true") == (
            f"--wait-memory: '{text}' is no time to wait; leave the option out, or write --wait-memory=10m"
        )
    assert refusal("--wait-memory=99999999999h", "/bin/true").startswith(
        "--wait-memory: '99999999999h' is too long; "
    )
    assert "there is no file absent.ckpt" in refusal("--from", "absent.ckpt", "/bin/true")
    monkeypatch.setenv("CARPOOL_MEMORY", "much")
    assert refusal("/bin/true").startswith("CARPOOL_MEMORY: 'much' is not a size; ")
    monkeypatch.setenv("CARPOOL_WAIT_MEMORY", "long")
    assert refusal("/bin/true").startswith("CARPOOL_WAIT_MEMORY: 'long' is not a length of time; ")


def test_the_fingerprint_is_the_words_the_place_and_the_text(script: str, tmp_path: Path) -> None:
    argv = ["python", script]
    first = fingerprint(argv, cwd=str(tmp_path))
    assert fingerprint(argv, cwd=str(tmp_path)) == first
    assert fingerprint([*argv, "--lr", "2"], cwd=str(tmp_path)) != first
    (tmp_path / script).write_text("print('changed')\n")
    assert fingerprint(argv, cwd=str(tmp_path)) != first


def test_a_script_that_cannot_be_read_is_a_misuse(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        fingerprint(["python", "folder.py"], cwd=str(tmp_path))


def test_the_users_environment_is_kept_and_carpools_words_are_added() -> None:
    user = {"PATH": "/bin", "PYTHONPATH": "/mine", "X": "1"}
    added = {
        "set": {"CARPOOL_JOB": "a-1", "X": "2"},
        "prepend": {"PYTHONPATH": "/inject", "LD_PRELOAD": "/meter.so"},
        "default": {"GOMP_SPINCOUNT": "1000", "PATH": "/other"},
    }
    assert merged_environment(user, added) == {
        "PATH": "/bin",
        "PYTHONPATH": "/inject:/mine",
        "X": "2",
        "CARPOOL_JOB": "a-1",
        "LD_PRELOAD": "/meter.so",
        "GOMP_SPINCOUNT": "1000",
    }
    assert user["X"] == "1", "the user's own is not changed"


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY"])
def test_a_user_who_chose_how_threads_wait_is_left_alone(chosen: str) -> None:
    merged = merged_environment({chosen: "theirs"}, {"default": {"GOMP_SPINCOUNT": "1000"}})
    assert merged == {chosen: "theirs"}


def test_a_device_is_named_or_described() -> None:
    assert not any(is_description(name) for name in ("cpu0", "cpu12", "gpu0"))
    assert all(is_description(name) for name in ("cpu", "cpu:64MiB", "cpu:2x64MiB", "auto"))
    with pytest.raises(UsageError):
        is_description("tpu")
