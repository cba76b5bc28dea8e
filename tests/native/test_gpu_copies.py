"""Every form of a copy, a fill and a prefetch: its bytes arrive, and a large one waits for the turn."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool.wire import messages as m
from carpool.wire.page import slot_base
from tests.agent.fake_daemon import FakeDaemon
from tests.native.gpu import Built, environment
from tests.native.probe import NATIVE
from tests.native.test_gpu_turns import job

PROGRAM = Path(__file__).parents[1] / "programs" / "copy_forms.py"
FORMS = re.findall(r"^HOOK\((\w+), .*\), COPY, ", (NATIVE / "hooks.def").read_text(), re.MULTILINE)
SMALL, LARGE = 512 << 10, 2 << 20
UNPACKING = "cuMemBatchDecompressAsync"  # the stand-in's card has no engine for it, as many real ones have none
NOT_SUPPORTED = "801"

pytestmark = pytest.mark.timeout(120)


class Talk:
    """The program, asked for one form after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def line(self) -> str:
        assert self._process.stdout
        found = self._process.stdout.readline().strip()
        assert found, "the program has ended; what it said is above"
        return found

    def tell(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def prepare(self, form: str, count: int) -> None:
        self.tell(f"{form} {count}")
        assert self.line() == "ready"


@contextmanager
def talking(env: dict[str, str]) -> Iterator[Talk]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(PROGRAM)], env=env, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Talk(process)
        finally:
            process.kill()


def good_end(form: str) -> str:
    return NOT_SUPPORTED if form.startswith(UNPACKING) else "right"


def test_there_are_forms_of_every_kind() -> None:
    for kind in (
        "cuMemcpyHtoD",
        "cuMemcpy2D",
        "cuMemcpy3D_v2_ptds",
        "cuMemcpy3DPeerAsync_ptsz",
        "cuMemcpyBatchAsync",
    ):
        assert kind in FORMS
    assert len(FORMS) > 100


def test_whatever_the_form_the_bytes_arrive(built: Built, tmp_path: Path) -> None:
    bare = environment(built, tmp_path / "books")
    del bare["LD_PRELOAD"]
    with talking(bare) as program:
        assert program.line() == "begun"
        for form in FORMS:
            program.prepare(form, LARGE)
            program.tell("")
            assert (form, program.line()) == (form, good_end(form))


def test_a_large_one_waits_for_the_turn_and_a_small_one_does_not(built: Built, daemon: FakeDaemon) -> None:
    with talking(job(built, daemon)) as program:
        assert program.line() == "begun"
        program.prepare(FORMS[0], LARGE)
        program.tell("")
        message = daemon.accept()
        assert isinstance(message, m.Attach)
        daemon.base = slot_base(message.slot)
        daemon.answer(m.Ask)
        assert program.line() == "right"
        for form in FORMS:
            daemon.recall()
            if not re.search("Batch|3DWith", form):  # they wait whatever is in them
                program.prepare(form, SMALL)
                program.tell("")
                assert (form, program.line()) == (form, "right")
            program.prepare(form, LARGE)
            has_gone = (
                not daemon.is_silent()
            )  # who brought bytes back waited for the device: a recalled turn goes there
            program.tell("")
            daemon.take_until(m.Ask if has_gone else m.Return)
            daemon.grant()
            assert (form, program.line()) == (form, good_end(form))
