"""A running job is given more or less; its numbers stay the same, and nobody is ended unasked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from carpool.wire import page as pages
from tests.e2e.alone import Alone
from tests.e2e.node import Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MIB = 1 << 20
LOOP = ["held.py", "groups", "--width", "1200", "--pause", "0.02"]


def resize(node: Node, name: str, *options: str) -> dict[str, Any]:
    done = node.carpool("resize", "--json", name, *options)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def cap_in_page(node: Node, name: str) -> int:
    page = node.page(name)
    try:
        return page.words[pages.H_CAP]
    finally:
        page.close()


def test_a_job_grows_and_shrinks_while_it_runs_and_is_parked_where_it_cannot(node: Node, alone: Alone) -> None:
    node.start()
    program = [*LOOP, "--steps", "150"]
    job = node.run(*program, options=["--name", "a", "--memory", "700MiB"])
    wait_until(lambda: (node.find("a") or {"needs": None})["needs"], "it is measured")
    grown = resize(node, "a", "--memory", "900MiB", "--weight", "2")
    assert (grown["cap_bytes"], cap_in_page(node, "a")) == (900 * MIB, 900 * MIB)
    needed = sum(int(grown["needs"][part]) for part in ("persistent_bytes", "ephemeral_bytes", "overhead_bytes"))
    assert needed > 60 * MIB, grown["needs"]

    small = resize(node, "a", "--memory", "30MiB")
    assert (small["state"], small["is_shrinking"]) == ("parked", True), small
    assert small["reason"].endswith("go on with: carpool resize a-1 --memory SIZE")
    assert "it was resized to 30.0 MiB and needs " in small["reason"]
    assert small["parked_bytes"] > 30 * MIB
    lines = len(job.lines)

    fitting = resize(node, "a", "--memory", str(needed + 20 * MIB))
    assert not fitting["is_shrinking"]
    wait_until(lambda: len(job.lines) > lines, "it goes on")
    assert cap_in_page(node, "a") == needed + 20 * MIB
    ended = job.wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == alone.output(*program)


def test_a_cap_drawn_while_it_runs_is_kept_as_one_from_the_start_is(node: Node, tmp_path: Path) -> None:
    """Nobody told it to wait for memory, and no waiting could help."""
    node.start()
    hungry = tmp_path / "hungry"
    program = ["eats_memory.py", "--mib", "200", "--steps", "1000000", "--catch", "--when", str(hungry)]
    job = node.run(*program, options=["--name", "a"])
    wait_until(lambda: (node.find("a") or {"needs": None})["needs"], "it is measured")
    resize(node, "a", "--memory", "150MiB")
    wait_until(lambda: cap_in_page(node, "a") == 150 * MIB, "it keeps to its cap")
    hungry.touch()
    wait_until(lambda: [line for line in job.lines if line.startswith("caught: ")], "it is refused", seconds=20.0)
    assert node.carpool("cancel", "a").code == 0
    ended = job.wait()
    assert re.match(
        r"carpool: memory cap reached: this job may hold 150\.0 MiB, holds \d+\.\d MiB and asked for 200\.0 MiB more;"
        r" the program gets its own out-of-memory error \(raise the cap with --memory\)\n",
        ended.err,
    ), ended.err


def test_what_makes_no_sense_is_refused_and_a_job_is_ended_only_when_told_to(node: Node) -> None:
    node.start()
    job = node.run(*LOOP, "--steps", "100000", options=["--name", "a", "--memory", "700MiB"])
    wait_until(lambda: (node.find("a") or {"needs": None})["needs"], "it is measured")
    for options, code, words in (
        ((), 2, "nothing to change; give --memory SIZE, --weight NUMBER or --compute SHARE"),
        (("--weight", "0"), 2, "--weight 0.0 must be above 0"),
        (("--memory", "lots"), 2, "'lots' is not a size"),
        (("--memory", "5GiB"), 1, "job a cannot have 5.00 GiB: cpu has 4.00 GiB; ask for less"),
    ):
        refused = node.carpool("resize", "a", *options)
        assert (refused.code, words in refused.err) == (code, True), refused.err
    assert node.carpool("resize", "nobody", "--weight", "2").code == 2
    assert node.job("a")["cap_bytes"] == 700 * MIB
    assert node.carpool("resize", "--or-kill", "--memory", "30MiB", "a").code == 0
    ended = job.wait()
    assert (ended.code, "cancelled: it was resized to 30.0 MiB and needs " in ended.err) == (143, True), ended.err
    assert node.wait_state("a", "cancelled")["reason"].startswith("cancelled: it was resized to 30.0 MiB and needs ")
