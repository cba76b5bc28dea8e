"""`carpool verify`: what the attacks' reports mean, and all attacks once on the stand-in."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from carpool.bench import attacks
from carpool.bench.attacks import ATTACKS, CAP_BYTES, HELD, NOT_HELD, NOT_TRIED, Attack, judge
from carpool.bench.node import PROGRAMS, plain_environment
from carpool.cli.verify import shown, summarise
from carpool.devices.libraries import find_library
from carpool.errors import PeerError

PROMISED = Attack(title="promised", name="plain", why="counted")
OTHER = Attack(title="other", name="plain", is_promised=False, why="known")


def run_verify(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "carpool.cli.main", "verify", *words]
    return subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=170, check=False)


@pytest.mark.parametrize(
    ("attack", "held_bytes", "why", "verdict", "is_broken"),
    [
        (PROMISED, CAP_BYTES * 3 // 4, "", HELD, False),
        (PROMISED, CAP_BYTES * 3 // 2, "", NOT_HELD, True),
        (PROMISED, 0, "", NOT_HELD, True),
        (PROMISED, 0, "no such function", NOT_TRIED, False),
        (OTHER, CAP_BYTES * 3 // 2, "", NOT_HELD, False),
        (OTHER, CAP_BYTES * 3 // 4, "", HELD, False),
    ],
)
def test_a_promise_is_broken_by_bytes_beyond_the_cap_or_by_none_at_all(
    attack: Attack, held_bytes: int, why: str, verdict: str, is_broken: bool
) -> None:
    outcome = judge(attack, {"held_bytes": held_bytes, "why": why})
    assert (outcome.verdict, outcome.is_broken) == (verdict, is_broken)


@pytest.mark.parametrize(("share", "verdict"), [(24.0, HELD), (60.0, NOT_HELD)])
def test_a_compute_limit_is_broken_by_device_time_beyond_it(share: float, verdict: str) -> None:
    attack = Attack(title="promised", name="compute_plain", limit="compute", why="paid")
    assert judge(attack, {"share_percent": share, "why": ""}).verdict == verdict


@pytest.mark.parametrize(("passed", "verdict"), [([], HELD), (["cuLaunch", "cuLaunchGrid"], NOT_HELD)])
def test_a_call_that_reaches_the_device_without_a_turn_is_named(passed: list[str], verdict: str) -> None:
    outcome = judge(Attack(title="t", name="turn_launches", limit="turn", why="waits"), {"passed": passed, "why": ""})
    assert outcome.verdict == verdict
    assert outcome.why == ("not by cuLaunch, cuLaunchGrid" if passed else "waits")


def test_every_attack_is_in_the_program() -> None:
    text = "".join(path.read_text() for path in PROGRAMS.glob("attack*.py"))
    for attack in ATTACKS:
        assert not attack.name or re.search(rf"def {attack.name}\((size|_)\):", text)


def test_an_attack_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "ATTACK_SECONDS", 1.0)
    said = json.dumps({"held_bytes": CAP_BYTES // 2, "why": ""})
    program = f"import time; print({said!r}, flush=True); time.sleep(100)"
    outcomes = attacks.run_attacks([sys.executable, "-S", "-c", program], plain_environment(), [PROMISED, OTHER])
    assert next(outcomes).verdict == HELD
    with pytest.raises(PeerError, match="'other' did not end within 1 s"):
        next(outcomes)


def test_the_summary_counts_promises_that_could_not_be_tried() -> None:
    outcomes = [judge(PROMISED, {"held_bytes": CAP_BYTES, "why": ""}), judge(PROMISED, {"why": "no such function"})]
    assert "1 of 2 promised limits held on the card, 1 could not be tried;\n0 known" in summarise("card", outcomes)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.title)
def test_every_outcome_fits_80_columns(attack: Attack) -> None:
    for report in (
        {"held_bytes": CAP_BYTES * 3 // 2, "share_percent": 60.0, "passed": ["cuLaunchKernel"] * 9, "why": ""},
        {"why": "w" * 40, "held_bytes": 0},
    ):
        lines = shown(judge(attack, report), 80).splitlines()
        assert all(len(line) <= 80 for line in lines)
        assert " ".join(line.strip() for line in lines).count(attack.title) == 1


@pytest.mark.slow
def test_what_is_promised_holds_on_the_stand_in_and_what_is_not_is_said() -> None:
    if find_library("gpu") is None:
        pytest.skip("carpool's CUDA guest was not built (no C compiler): its limits are NOT attacked")
    done = run_verify("--device", "stub:4GiB", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    found = json.loads(done.stdout)
    assert "stand-in" in found["device"]
    assert found["broken"] == []
    verdicts = {each["attack"]: each["verdict"] for each in found["attacks"]}
    assert set(verdicts) == {attack.title for attack in ATTACKS}
    promised = {attack.title: verdicts[attack.title] for attack in ATTACKS if attack.is_promised}
    namespaces = promised.pop("another pid namespace")
    assert set(promised.values()) == {HELD}
    assert verdicts["child without LD_PRELOAD"] == verdicts["shared memory whose maker has ended"] == NOT_HELD
    assert verdicts["static binary, own ioctl calls"] == NOT_TRIED
    [why] = [each["why"] for each in found["attacks"] if each["attack"] == "another pid namespace"]
    if namespaces == NOT_TRIED and "the child failed" not in why:
        pytest.skip("this machine allows no pid namespace: processes of another one are NOT tried")
    assert namespaces == HELD


def test_a_device_without_limits_is_refused_with_a_sentence() -> None:
    done = run_verify("--device", "cpu:1GiB")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "is no GPU" in done.stderr
