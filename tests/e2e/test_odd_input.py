"""What no decent program sends: bytes that are no text, ids that are paths, runners that die before they speak."""

from __future__ import annotations

import json
import os

import pytest

from carpool import __version__
from carpool.client import DaemonSocket
from carpool.wire import messages as m
from tests.e2e.node import Node, kill, with_environment

pytestmark = pytest.mark.slow


def test_arguments_that_are_no_text_reach_the_program_unchanged(node: Node) -> None:
    ended = node.run("/bin/echo", os.fsdecode(b"caf\xe9\xff")).wait()
    assert (ended.code, ended.out, ended.err) == (0, b"caf\xe9\xff\n", "")
    with with_environment(node, {"ODD": os.fsdecode(b"\xff")}):
        node.submit("/bin/sh", "-c", 'printf %s "$ODD" | od -An -tx1', options=["--name", "odd"])
    node.wait_state("odd", "finished")
    assert node.carpool("logs", "odd").lines == [" ff"]


def test_a_runner_that_dies_before_it_spoke_ends_its_job(node: Node) -> None:
    node.start()
    job = node.submit("/bin/sh", "-c", "sleep 5", options=["--name", "orphan"])
    file = node.places.jobs / job["id"] / "job.json"
    kill(json.loads(file.read_text())["runner_pid"])
    ended = node.wait_state("orphan", "failed", "cancelled")
    assert "runner was killed" in ended["reason"]
    assert node.status()["devices"][0]["promised_bytes"] == 0


@pytest.mark.parametrize("name", ["/tmp/elsewhere", "..", "a/b", "", "x" * 65])
def test_an_id_that_is_a_path_is_refused(node: Node, name: str) -> None:
    node.start()
    wire = DaemonSocket(node.places)
    wire.send(
        m.Enter(
            job=name,
            spec={"name": "x"},
            argv=["true"],
            cwd="/",
            pid=0,
            child_pid=0,
            version=__version__,
            protocol=m.PROTOCOL,
        )
    )
    answer = wire.receive()
    wire.close()
    assert isinstance(answer, m.Start) if not name else isinstance(answer, m.Refuse), answer
