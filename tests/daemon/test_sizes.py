"""An answer of any size gets through a real connection; whoever is no client of it takes no such thing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from carpool import calls
from carpool.client import Client
from carpool.daemon.peers import Connection
from carpool.errors import PeerError
from carpool.wire import framing
from carpool.wire import messages as m
from carpool.wire.places import Places
from carpool.wire.protocol import BODY_MAX, REPLY_MAX

JOBS = 5000
LONG = ["python", "train.py", *["data/part.csv"] * 100]


def test_a_list_of_five_thousand_jobs_is_answered(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    places = Places(run=tmp_path, state=tmp_path)
    jobs = [calls.Job(id=f"j-{number}", name="j", argv=LONG, reason="x" * 200) for number in range(JOBS)]
    answer = calls.as_dict(calls.Node(jobs=jobs))
    assert len(json.dumps(answer)) > 2 * BODY_MAX

    def take(peer: Connection, message: m.Message) -> None:
        peer.send(m.Reply(answer=answer, error="", code=0))

    async def serve() -> calls.Node:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Connection(take, lambda peer: None), path=str(places.socket))
        places.socket.chmod(0o600)
        found = await loop.run_in_executor(None, Client(places=places).ps)
        server.close()
        return found

    found = asyncio.run(serve())
    assert [job.id for job in found.jobs] == [job.id for job in jobs]


def test_only_who_waits_for_a_reply_takes_a_long_one() -> None:
    head = framing.HEAD.pack(m.FORMS[m.Reply].kind, 0, BODY_MAX + 1, 0, 0, 0, 0)
    assert framing.body_length(head, reply_max=REPLY_MAX) == BODY_MAX + 1
    with pytest.raises(PeerError, match="not a carpool message"):
        framing.Decoder().feed(head)
    for kind, length in ((m.Reply, REPLY_MAX + 1), (m.Refuse, BODY_MAX + 1)):
        with pytest.raises(PeerError, match="not a carpool message"):
            framing.body_length(framing.HEAD.pack(m.FORMS[kind].kind, 0, length, 0, 0, 0, 0), reply_max=REPLY_MAX)


def test_arguments_are_cut_with_a_word_about_the_rest() -> None:
    assert calls.cut_arguments(["a", "b"]) == ["a", "b"]
    cut = calls.cut_arguments(["a", "x" * 5000, "b"])
    assert cut == ["a", "… 2 more, 4.88 KiB"]
    assert calls.cut_arguments(["\udcff" * 5000])[0].startswith("… 1 more, ")
