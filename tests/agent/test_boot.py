"""Injection: carpool is inside every Python of a job, notices `import torch`, and disturbs nothing else.

A stand-in package named torch is enough: what matters here is when the hooks are put in, not what they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import carpool
from carpool.devices import cpu
from carpool.wire import caps, page
from tests.agent.fake_daemon import FakeDaemon

INJECT = Path(carpool.__file__).parent / "agent" / "inject"
STAND_IN = """
print("torch runs")
__version__ = "0.0-stand-in"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory of packages with a torch that has none of the things the hooks need."""
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    return tmp_path / "site"


def run(
    site: Path, code: str, *, job: str = "", daemon: FakeDaemon | None = None, **more: str
) -> tuple[list[str], str]:
    """Run code in a Python as `carpool run` starts it; its lines on stdout, and its stderr."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CARPOOL", "PYTHON"))}
    environment["PYTHONPATH"] = f"{INJECT}:{site}"
    if job:
        environment["CARPOOL_JOB"] = job
    if daemon is not None:
        environment["CARPOOL_SOCKET"] = str(daemon.directory / "socket")
        environment["CARPOOL_PAGE"] = str(daemon.directory / "page")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **more}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_program_that_imports_no_torch_loads_nothing_of_carpools_agent(site: Path) -> None:
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith('carpool')), len(sys.path))"
    lines, err = run(site, code, job="x-1")
    assert lines[0].startswith("['carpool', 'carpool.agent', 'carpool.agent.boot']")
    assert err == ""
    assert "inject" not in run(site, "import sys; print(sys.path)", job="x-1")[0][0]


def test_outside_a_job_nothing_happens_at_all(site: Path) -> None:
    lines, err = run(site, "import sys, torch; print('carpool' in sys.modules)")
    assert (lines, err) == (["torch runs", "False"], "")


def test_hooks_come_right_after_the_import_even_if_somebody_only_asked_before(site: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "print(importlib.util.find_spec('torch') is not None)\n"
        "print('carpool.agent.turns.torch_hooks' in sys.modules)\n"
        "import torch\n"
        "print('carpool.agent.turns.torch_hooks' in sys.modules)\n"
        "print([type(finder).__name__ for finder in sys.meta_path if 'Torch' in type(finder).__name__])\n"
    )
    lines, _ = run(site, code, job="x-1")
    assert lines == ["True", "False", "torch runs", "True", "[]"]


def test_a_program_that_clears_its_environment_is_still_part_of_its_job(site: Path) -> None:
    """Its page is missing here, which is what it says: it looked for it."""
    code = (
        "import os\n"
        "os.environ.clear()\n"
        "import carpool\n"
        "with carpool.turn():\n    print('turn')\n"
        "from carpool.agent.backends import own_backend\n"
        "print(own_backend().name)\n"
    )
    lines, err = run(site, code, job="x-1", CARPOOL_PAGE="/nowhere/page", CARPOOL_DEVICE_KIND="cuda")
    assert lines == ["turn", "cuda"]
    assert err.startswith("carpool: job x-1 runs unmanaged: cannot open the shared page /nowhere/page")


def test_a_finder_that_asks_everybody_else_is_no_endless_loop(site: Path) -> None:
    code = (
        "import sys\n"
        "class Nosy:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        for finder in sys.meta_path:\n"
        "            if finder is not self and (spec := finder.find_spec(name, path, target)):\n"
        "                return spec\n"
        "sys.meta_path.insert(0, Nosy())\n"
        "import torch\n"
        "print('carpool.agent.turns.torch_hooks' in sys.modules)\n"
    )
    assert run(site, code, job="x-1")[0] == ["torch runs", "True"]


def test_the_first_calls_are_made_right_after_the_import(site: Path) -> None:
    code = (
        "from carpool.agent import warm_up\n"
        "made = []\n"
        "warm_up.make_first_calls = made.append\n"
        "import torch\n"
        "print(made == [torch])\n"
    )
    assert run(site, code, job="x-1")[0] == ["torch runs", "True"]


def test_a_torch_that_is_not_installed_is_the_programs_own_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import sys\n"
        "sys.path = [entry for entry in sys.path if 'site-packages' not in entry]\n"
        "try:\n    import torch\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    assert run(empty, code, job="x-1") == (["No module named 'torch'"], "")


def test_a_torch_that_fails_to_import_may_be_tried_again(site: Path) -> None:
    (site / "torch" / "__init__.py").write_text(
        "import os\nif os.environ.pop('FAIL', ''):\n    raise ImportError('broken')\nprint('torch runs')\n"
    )
    code = (
        "import sys\n"
        "try:\n    import torch\nexcept ImportError as error:\n    print(error)\n"
        "import torch\n"
        "print('carpool.agent.turns.torch_hooks' in sys.modules)\n"
    )
    assert run(site, code, job="x-1", FAIL="1")[0] == ["broken", "torch runs", "True"]


def test_a_torch_that_cannot_be_hooked_is_said_once_and_the_program_runs_on(site: Path, daemon: FakeDaemon) -> None:
    def act() -> None:
        daemon.accept()
        daemon.take()

    with daemon.playing(act):
        lines, err = run(site, "import torch; print('on it goes')", job="x-1", daemon=daemon)
    assert lines == ["torch runs", "on it goes"]
    assert err.startswith("carpool: job x-1 runs unmanaged: torch 0.0-stand-in could not be hooked (")
    assert err.count("\n") == 1


def test_the_sitecustomize_that_carpool_hides_still_runs(site: Path) -> None:
    (site / "sitecustomize.py").write_text("print('theirs ran')\n")
    lines, err = run(site, "import sitecustomize; print(sitecustomize.__file__)", job="x-1")
    assert lines == ["theirs ran", str(site / "sitecustomize.py")]
    assert err == ""


def test_a_broken_sitecustomize_is_named_and_breaks_nothing_else(site: Path) -> None:
    (site / "sitecustomize.py").write_text("raise RuntimeError('theirs is broken')\n")
    lines, err = run(site, "print('on it goes')", job="x-1")
    assert lines == ["on it goes"]
    assert "theirs is broken" in err
    assert "Traceback" not in err


def test_y5_the_meter_knows_which_thread_takes_the_turns(site: Path, daemon: FakeDaemon) -> None:
    meter = cpu.meter_path()
    if meter is None:
        pytest.skip("the meter is not built; install gcc, then 'make native'")
    code = """
import threading
from carpool.agent.turns import process
from carpool.wire import page
turns = process.current_turns()
words, base, kept = turns._words, turns._link.base, []
def take(who):
    try:
        kept.append(bytearray(100000))
        print(who, "has it")
    except MemoryError:
        print(who, "is refused")
other, go = threading.Thread(target=lambda: (go.wait(), take("another thread"))), threading.Event()
other.start()
words[base + page.S_LEASE] = page.LEASE_ASKED
words[page.H_CAP] = words[base + page.S_LIVE]
take("the thread that takes turns")
go.set()
other.join()
words[page.H_CAP] = 0
"""
    lines, _ = run(site, code, job="x-1", daemon=daemon, LD_PRELOAD=meter, CARPOOL_DEVICE_KIND="cpu")
    assert lines == ["the thread that takes turns has it", "another thread is refused"]


def test_torch_is_not_imported_where_the_cap_has_no_room_for_it(site: Path, daemon: FakeDaemon) -> None:
    """Its C++ would end the whole process; a program can catch this."""
    meter = cpu.meter_path()
    if meter is None:
        pytest.skip("the meter is not built; install gcc, then 'make native'")
    code = """
try:
    import torch
except MemoryError as error:
    print(error)
"""
    more = {"LD_PRELOAD": meter, "CARPOOL_DEVICE_KIND": "cpu", "CARPOOL_IS_CAPPED": "1", "CARPOOL_SOCKET": "/no"}
    daemon.words[page.H_CAP] = 16 << 20
    lines, _ = run(site, code, job="x-1", daemon=daemon, **more)
    assert len(lines) == 1
    assert lines[0].startswith("importing torch takes about 40.0 MiB; job x-1 may hold 16.0 MiB and holds ")
    assert lines[0].endswith(": raise the cap with --memory")
    daemon.words[page.H_CAP] = 64 << 20
    assert run(site, code, job="x-1", daemon=daemon, **more)[0] == ["torch runs"]
    del more["CARPOOL_IS_CAPPED"]
    daemon.words[page.H_CAP] = 16 << 20  # drawn with carpool resize: the job was started without one, so it may wait
    caps.tell(daemon.words, 1 << 30, 16 << 20, may_wait=False)
    lines, _ = run(site, code, job="x-1", daemon=daemon, CARPOOL_WAIT_MEMORY_NS="1000000000", **more)
    assert [line[:28] for line in lines] == ["importing torch takes about "]
    caps.tell(daemon.words, 1 << 30, 16 << 20, may_wait=True)
    lines, _ = run(site, code, job="x-1", daemon=daemon, CARPOOL_WAIT_MEMORY_NS="1000000000", **more)
    assert lines == ["torch runs"], "a larger cap may come"
