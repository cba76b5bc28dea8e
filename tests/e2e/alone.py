"""What the test programs print when they run alone and without carpool: the truth the shared runs are compared with.

One process imports torch once and forks for every program, so a program costs no import (nor that of torch._dynamo,
as long again, which torch itself makes for the first optimizer); each still starts with a fresh interpreter state of
its own, as nothing but the imports happened before the fork, and torch's vector functions were looked up: without
that one in some hundreds of programs prints other digits (docs/design/0015-first-calls.md).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.node import PROGRAMS, PYTHON

_NURSERY = """
import json, os, runpy, sys
import torch, torch._dynamo
from carpool.agent import warm_up

warm_up.make_first_calls(torch)

def start(order, rank):
    pid = os.fork()
    if pid == 0:
        sink = os.open(order["out"] + str(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(sink, 1)
        os.environ.update(order["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
        name, *sys.argv[1:] = order["program"]
        sys.argv[0] = name
        sys.path[0] = os.getcwd()
        code = 1
        try:
            if name.endswith(".py"):
                runpy.run_path(name, run_name="__main__")
            else:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


for line in sys.stdin:
    order = json.loads(line)
    pids = [start(order, rank) for rank in range(order["ranks"])]
    print(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids), flush=True)
"""


class Alone:
    """Runs programs alone; asks each only once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], bytes] = {}
        self._nursery: subprocess.Popen[bytes] | None = None
        self._file = Path(tempfile.mkdtemp(prefix="cp-alone-")) / "out"

    def output(self, *program: str, ranks: int = 1) -> bytes:
        """What the program writes to stdout; a script of tests/programs, or a package there.

        With several ranks the output of one stands behind that of the other. Where a shared run rests in each step so
        that it lasts, or lasts until it is told to end, this one does neither: no number depends on it.
        """
        words = _without(program, "--until")
        words = ["0" if before == "--pause" else word for before, word in zip(["", *words], words, strict=False)]
        key = (*words, str(ranks))
        if key not in self._known:
            self._known[key] = self._ask(words, ranks)
        return self._known[key]

    def same_steps(self, output: bytes, *program: str) -> bytes:
        """What the program writes in as many steps as a run made whose output this is; its last line says so."""
        done = re.match(rb"done steps=(\d+) ", output.splitlines()[-1])
        assert done is not None, output[-200:]
        return self.output(*_without(program, "--steps"), "--steps", done[1].decode())

    def _ask(self, program: list[str], ranks: int) -> bytes:
        if self._nursery is None:
            kept = {key: value for key, value in os.environ.items() if not key.startswith("CARPOOL")}
            self._nursery = subprocess.Popen(
                [PYTHON, "-u", "-c", _NURSERY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=PROGRAMS,
                env={**kept, "GOMP_SPINCOUNT": "1000"},  # changes no number, but how long threads spin while idle
            )
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        meeting = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        order = {"program": program, "environment": meeting, "ranks": ranks, "out": str(self._file)}
        self._nursery.stdin.write(json.dumps(order).encode() + b"\n")
        self._nursery.stdin.flush()
        code = self._nursery.stdout.readline()
        assert code == b"0\n", (order, code)
        return b"".join(Path(f"{self._file}{rank}").read_bytes() for rank in range(ranks))

    def close(self) -> None:
        if self._nursery is not None:
            assert self._nursery.stdin is not None
            assert self._nursery.stdout is not None
            self._nursery.stdin.close()
            self._nursery.stdout.close()
            self._nursery.wait(30)
        shutil.rmtree(self._file.parent)


def _without(program: Sequence[str], option: str) -> list[str]:
    """The command line without this option and the value that follows it."""
    return [word for before, word in zip(["", *program], program, strict=False) if option not in (before, word)]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
