"""Orders that wait for a job: at its next boundary, which may be far."""

from __future__ import annotations

import pytest

from carpool.cli import jobs


def test_an_order_that_takes_long_says_once_for_what_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [{"id": "a-1", "moving_to": "cpu1", "reason": "runs for 4 s"}] * 5 + [{"id": "a-1", "moving_to": None}]
    asked: list[str] = []

    def call(_places: object, verb: str, **_arguments: object) -> dict[str, object]:
        asked.append(verb)
        return {"job": answers[len(asked) - 1]}

    monkeypatch.setattr(jobs, "call", call)
    monkeypatch.setattr(jobs, "SAY_AFTER_SECONDS", 0.1)
    found = jobs.give_order(
        "migrate", "a", no_wait=False, is_done=lambda job: job["moving_to"] is None, device="cpu1"
    )
    assert (found["moving_to"], asked) == (None, ["migrate", *["job"] * 5])
    assert capsys.readouterr().err == "carpool: migrate waits for job a-1: runs for 4 s\n"
    asked.clear()
    jobs.give_order("migrate", "a", no_wait=True, is_done=lambda _: False, device="cpu1")
    assert (asked, capsys.readouterr().err) == (["migrate"], "")
