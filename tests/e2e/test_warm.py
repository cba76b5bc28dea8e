"""Warm starts: a program that is forked from a warm parent is the program that a cold start makes.

The rules are those of agent/warm and wire/warm.py: V11 to V19, and Y7 of native/meter.c.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import CARPOOL, PYTHON, Ended, Node, is_alive, kill, wait_until, with_environment
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[2] / "examples"
WARM, COLD = ("--warm",), ("--cold",)
SLEEPER = "import time; print('ready', flush=True); time.sleep(1000)"
TRAINS = """
import sys, torch
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.Linear(2048, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    model(torch.ones(64, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, flush=True)
print("weights", sum(float(p.detach().double().sum()) for p in model.parameters()))
"""


@pytest.fixture(scope="module")
def warm_node() -> Iterator[Node]:
    """A node with a warm parent, and all of torch."""
    node = Node()
    node.use_whole_torch()
    node.start()
    assert node.run(PYTHON, "-c", "pass", options=WARM).wait().code == 0
    yield node
    node.close()


def make_parent_fit(node: Node) -> None:
    """There is a parent that an ordinary program fits, and it was used just now. One that only misfits have asked for
    a minute makes way for another, which would then fit them: that happens here on a machine that is busy."""

    def is_warm() -> bool:
        assert node.run(PYTHON, "-c", "pass", options=(*WARM, "--name", "fits")).wait().code == 0
        return how(node, "fits") == "warm"

    wait_until(is_warm, "a warm parent fits", every=1.0)


def how(node: Node, name: str) -> str:
    return str(node.job(name)["start"])


def run(node: Node, *program: str, options: tuple[str, ...] = WARM, **popen: Any) -> Ended:
    named = options if "--name" in options else (*options, "--name", "it")
    return node.run(*program, options=named, **popen).wait()


def parents(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.status()["warm_parents"]
    return found


# --- the same as a cold start ---------------------------------------------------------------------------------


def odd_start() -> None:
    """What a shell may hand on: a umask, a limit, an ignored signal, a blocked one, another open file."""
    os.umask(0o027)
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.nice(3)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 9)


@pytest.mark.parametrize("prepare", [None, odd_start])
def test_every_fact_is_that_of_a_cold_start(warm_node: Node, prepare: Callable[[], None] | None) -> None:
    words = [PYTHON, *(["-u"] if prepare else []), "facts.py", "--lr", "3"]
    found = {}
    for options in (COLD, WARM):
        done = run(warm_node, *words, options=(*options, "--name", "facts"), preexec_fn=prepare)
        assert done.code == 5, done.err
        found[options] = [*done.lines, done.err]
    assert how(warm_node, "facts") == "warm"
    assert found[WARM] == found[COLD]
    assert len(found[WARM]) > 45


@pytest.mark.parametrize("words", [("-c", "FACTS"), ("-m", "package.told", "x")])
def test_code_and_modules_are_run_as_in_a_cold_start(warm_node: Node, tmp_path: Path, words: tuple[str, ...]) -> None:
    told = (
        "import sys, torch\n"
        "print(sys.argv, sys.path[0], sys.orig_argv[1:], __name__, __package__, __spec__ and __spec__.name)\n"
        "print(sorted(n for n in globals() if n.startswith('__')), globals().get('__file__'), torch.ones(2))\n"
    )
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "told.py").write_text(told)
    given = [told if word == "FACTS" else word for word in words]
    done = [run(warm_node, PYTHON, *given, options=(*each, "--name", "t"), cwd=tmp_path) for each in (COLD, WARM)]
    assert how(warm_node, "t") == "warm"
    assert done[0] == done[1]


ENDS = {
    "by an error": "def f(n):\n    return 1 / n if n == 0 else f(n - 1)\n\nf(3)\n",
    "by a mistake in it": "x = (1,\nprint(x\n",
    "with a number": "import sys\nsys.exit(41)\n",
    "with a word": "import sys\nsys.exit('no')\n",
    "by a signal": "import os\nos.kill(os.getpid(), 9)\n",
    "by a fault": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "by an interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(9)\n",
    "with a thread left": "import threading\nthreading.Timer(0.2, print, ('late',)).start()\nprint('soon')\n",
    "at once": "import os, torch\nprint('soon', flush=True)\nos._exit(3)\n",
    "as another program": "import os, torch\nos.execv('/bin/sh', ['sh', '-c', 'echo $0; exit 4'])\n",
    "after its children": "import os, torch\nif os.fork():\n    os.wait()\nelse:\n    os.setsid()\nprint(1)\n",
    "with its own hook": "import sys\nsys.excepthook = lambda k, e, t: print(k, e, t.tb_lineno, t.tb_next)\n1 / 0\n",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_in_a_cold_start(warm_node: Node, tmp_path: Path, end: str) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS[end])
    cold = run(warm_node, PYTHON, str(script), options=COLD)
    warm = run(warm_node, PYTHON, str(script))
    assert how(warm_node, "it") == "warm"
    assert warm == cold


@pytest.mark.parametrize(
    "words",
    [
        (str(EXAMPLES / "train_mlp.py"), "--steps", "40"),
        (str(EXAMPLES / "train_vae.py"), "--steps", "8"),
        ("dataloader.py",),
        ("compiled.py",),
    ],
    ids=lambda words: Path(words[0]).stem,
)
def test_a_program_computes_the_same(warm_node: Node, words: tuple[str, ...]) -> None:
    done = [run(warm_node, *words, options=(*each, "--name", "same")) for each in (COLD, WARM)]
    assert how(warm_node, "same") == "warm"
    assert done[0].code == 0 and done[0].out
    assert done[1] == done[0]


def test_programs_without_a_seed_differ(warm_node: Node) -> None:
    code = "import torch, random, numpy; print(torch.rand(1).item(), random.random(), numpy.random.rand())"
    drawn = [run(warm_node, PYTHON, "-c", code).out.split() for _ in range(3)]
    assert all(len({row[column] for row in drawn}) == 3 for column in range(3)), drawn


# --- where it would not be the same ---------------------------------------------------------------------------


def test_other_variables_than_the_parents_are_a_cold_start(warm_node: Node) -> None:
    make_parent_fit(warm_node)
    with with_environment(warm_node, {"OMP_NUM_THREADS": "1"}):
        done = run(warm_node, PYTHON, "-c", "import torch; print(torch.get_num_threads())")
    assert done.out == b"1\n"
    assert how(warm_node, "it") == (
        "cold: it has OMP_NUM_THREADS=1, and the warm parent was started with no OMP_NUM_THREADS"
    )
    explained = warm_node.carpool("explain", warm_node.job("it")["id"])
    assert "started cold: it has OMP_NUM_THREADS=1" in explained.out.decode()


SETS = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"
SETS_UNSEEN = "import os\nname = 'OMP_NUM' + '_THREADS'\nos.environ[name] = '1'\n"


@pytest.mark.parametrize("sets", [SETS, SETS_UNSEEN])
def test_a_program_that_sets_a_variable_before_its_import_has_it(warm_node: Node, sets: str) -> None:
    """V12: what is not seen before the fork is seen at the import, and the program begins again."""
    make_parent_fit(warm_node)
    done = run(warm_node, PYTHON, "-c", sets + "import torch\nprint(torch.get_num_threads())")
    assert done.out == b"1\n" and not done.err, done
    assert how(warm_node, "it") == "cold: it sets OMP_NUM_THREADS, which is read when torch is imported"


DEEDS = {
    "wrote": "print('hello', flush=True)",
    "made a directory": "os.mkdir('made')",
    "made a file": "open('made', 'x').close()",
    "had a child": "os.fork() or os._exit(0)",
    "asked somebody": "import socket; socket.socket(socket.AF_UNIX).connect_ex('/nowhere')",
    "left a file open": "file = open(os.devnull)",
    "has a thread": "import threading; threading.Timer(1, int).start()",
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_program_that_did_something_before_it_set_a_variable_is_told_and_goes_on(
    warm_node: Node, tmp_path: Path, deed: str
) -> None:
    """V12: nothing is done twice."""
    make_parent_fit(warm_node)
    code = f"import os\n{DEEDS[deed]}\n{SETS_UNSEEN}import torch\nprint('torch')\n"
    done = run(warm_node, PYTHON, "-c", code, cwd=tmp_path)
    assert done.lines == [*(["hello"] if deed == "wrote" else []), "torch"], done
    assert "it sets OMP_NUM_THREADS" in done.err and "too late for a warm start" in done.err
    assert how(warm_node, "it") == "warm"


@pytest.mark.parametrize("first", ["", "print('hello', flush=True)"])
def test_a_program_with_another_module_has_that_and_torch_too_if_it_did_nothing_yet(
    warm_node: Node, tmp_path: Path, first: str
) -> None:
    """V11."""
    make_parent_fit(warm_node)
    (tmp_path / "sympy.py").write_text("mine = 5\n")
    code = (
        f"{first}\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport sympy\nprint(sympy.mine)\nimport torch"
    )
    done = run(warm_node, PYTHON, "-c", code)
    assert done.code == 0 and done.lines[-1] == "5", done
    place = tmp_path / "sympy.py"
    why = f"{place} would be imported in place of what the warm parent has"
    assert how(warm_node, "it") == ("warm" if first else f"cold: {why}")
    assert (why in done.err) == bool(first)


def test_what_is_read_at_the_start_of_every_python_is_compared(node: Node, tmp_path: Path) -> None:
    """V13: .pth files and sitecustomize run before the parent could note what they read."""
    (tmp_path / "sitecustomize.py").write_text("import os\nSWITCH = os.environ.get('MY_SWITCH')\n")
    node.environment["PYTHONPATH"] = f"{tmp_path}:{node.environment['PYTHONPATH']}"
    node.start()
    make_parent_fit(node)
    code = "import sitecustomize; print(sitecustomize.SWITCH)"
    with with_environment(node, {"MY_SWITCH": "on"}):
        assert run(node, PYTHON, "-c", code).out == b"on\n"
    assert how(node, "it") == "cold: it has MY_SWITCH=on, and the warm parent was started with no MY_SWITCH"
    with with_environment(node, {"PATH": f"/nowhere:{os.environ['PATH']}", "UNREAD": "1"}):
        assert run(node, PYTHON, "-c", code).out == b"None\n"
    assert how(node, "it") == "warm"
    with with_environment(node, {"PYTHONPROFILEIMPORTTIME": "1"}):
        assert "import time:" in run(node, PYTHON, "-c", code).err
    assert how(node, "it").startswith("cold: PYTHONPROFILEIMPORTTIME is set")


MISFITS = {
    "another option": ((PYTHON, "-O", "-c", "pass"), "cold: of Python's options only -u, -m and -c"),
    "no Python": (("true",), "cold: true is not a Python"),
    "no program": ((PYTHON, "-u"), "cold: it is Python without a program"),
    "a shadow": ((PYTHON, "numpy_user.py"), "numpy.py would be imported in place"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_a_fork_cannot_be_starts_cold(warm_node: Node, tmp_path: Path, misfit: str) -> None:
    words, reason = MISFITS[misfit]
    make_parent_fit(warm_node)
    (tmp_path / "numpy.py").write_text("mine = 1\n")
    (tmp_path / "numpy_user.py").write_text("import numpy\nprint(numpy.mine)\n")
    done = run(warm_node, *words, options=(*WARM, "--name", "misfit"), cwd=tmp_path)
    assert done.code == 0, done.err
    assert reason in how(warm_node, "misfit")


def other_processors() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def smaller_stack() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))


@pytest.mark.parametrize(("prepare", "reason"), [(other_processors, "processors"), (smaller_stack, "RLIMIT_STACK")])
def test_what_was_read_at_the_load_of_a_library_must_be_equal(
    warm_node: Node, prepare: Callable[[], None], reason: str
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor")
    make_parent_fit(warm_node)
    assert run(warm_node, PYTHON, "-c", "pass", preexec_fn=prepare).code == 0
    assert how(warm_node, "it") == f"cold: its {reason} is not that of the warm parent"


def test_a_recorded_program_starts_cold(warm_node: Node) -> None:
    assert run(warm_node, PYTHON, "-c", "pass", options=(*WARM, "--checkpointable")).code == 0
    assert how(warm_node, "it") == "cold: what is recorded for a checkpoint starts cold"


def test_a_changed_file_ends_the_parent_and_the_next_one_has_the_new_text(node: Node, tmp_path: Path) -> None:
    module = tmp_path / "sitecustomize.py"
    module.write_text("VERSION = 1\n")
    node.environment["PYTHONPATH"] = f"{tmp_path}:{node.environment['PYTHONPATH']}"
    node.start()
    code = "import sitecustomize; print(sitecustomize.VERSION)"
    assert run(node, PYTHON, "-c", code).out == b"1\n"
    assert how(node, "it") == "warm"
    first = parents(node)[0]["pid"]
    module.write_text("VERSION = 22\n")
    assert run(node, PYTHON, "-c", code).out == b"22\n"
    assert how(node, "it") == f"cold: {module} changed after it was imported"
    wait_until(lambda: not is_alive(first), "the parent ended")
    assert run(node, PYTHON, "-c", code).out == b"22\n"
    assert how(node, "it") == "warm"


def test_nobody_starts_warm_who_did_not_ask(warm_node: Node) -> None:
    assert run(warm_node, PYTHON, "-c", "pass", options=("--name", "unasked")).code == 0
    assert how(warm_node, "unasked") == ""


def test_a_daemon_may_say_it_for_all_its_jobs_and_a_job_otherwise(node: Node) -> None:
    node.start(warm=True)  # type: ignore[arg-type]  # of its configuration
    job = node.submit(PYTHON, "-c", "import torch; print(torch.ones(1))", options=("--name", "all"))
    node.wait_state("all", "finished")
    assert how(node, "all") == "warm"
    log = (node.places.logs / f"{job['id']}.log").read_text()
    assert log == "tensor([1.])\n"
    assert run(node, PYTHON, "-c", "pass", options=(*COLD, "--name", "one")).code == 0
    assert how(node, "one") == ""
    with with_environment(node, {"CARPOOL_WARM": "0"}):
        assert run(node, PYTHON, "-c", "pass", options=("--name", "two")).code == 0
    assert how(node, "two") == ""


# --- a job like any other -------------------------------------------------------------------------------------


def test_a_warm_job_is_parked_and_goes_on_with_the_same_numbers(warm_node: Node, tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    cold = run(warm_node, PYTHON, str(script), "60", options=COLD)
    job = warm_node.run(PYTHON, str(script), "60", options=(*WARM, "--name", "parks"))
    job.wait_lines(10)
    assert warm_node.carpool("suspend", "parks").code == 0
    warm_node.wait_state("parks", "parked")
    assert warm_node.job("parks")["parked_bytes"] > 1 << 20
    assert warm_node.carpool("resume", "parks").code == 0
    assert job.wait().lines == cold.lines
    assert how(warm_node, "parks") == "warm"


def test_a_warm_job_is_counted_and_capped_as_a_cold_one(warm_node: Node) -> None:
    """Y7, V17."""
    code = """
import torch
held = [torch.zeros(1 << 18) for _ in range(20)]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(40):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
try:
    while True:
        held.append(torch.zeros(1 << 18))
except RuntimeError:
    print(len(held))
"""
    found, needs = [], []
    for options in (COLD, WARM):
        name = f"capped{options[0]}"
        done = run(warm_node, PYTHON, "-c", code, options=(*options, "--memory", "120MiB", "--name", name))
        assert done.code == 0 and "memory cap reached" in done.err, done.err
        found.append(int(done.out))
        needs.append(warm_node.job(name)["needs"])
    assert how(warm_node, "capped--warm") == "warm"
    assert abs(found[0] - found[1]) <= 2, found  # blocks of 1 MiB under the same cap
    assert abs(needs[0]["overhead_bytes"] - needs[1]["overhead_bytes"]) < 2 << 20, needs


def test_an_import_for_which_the_cap_has_no_room_fails_as_in_a_cold_start(warm_node: Node) -> None:
    code = "try:\n    import torch\nexcept MemoryError as error:\n    print(str(error).partition(';')[0])"
    for options in (COLD, WARM):
        done = run(warm_node, PYTHON, "-c", code, options=(*options, "--memory", "20MiB", "--name", "small"))
        assert done.lines == ["importing torch takes about 40.0 MiB"], done
    assert how(warm_node, "small") == "warm"


def test_cancel_ends_a_warm_job_also_without_its_runner(warm_node: Node) -> None:
    first = warm_node.run(PYTHON, "-c", SLEEPER, options=(*WARM, "--name", "one"))
    first.wait_line("ready")
    assert warm_node.carpool("cancel", "one").code == 0
    assert first.wait().code == 143
    warm_node.submit(PYTHON, "-c", SLEEPER, options=(*WARM, "--name", "two"))
    warm_node.wait_state("two", "starting", "running", "idle")
    pid = wait_until(lambda: warm_node.program_pid("two"), "it runs")
    assert how(warm_node, "two") == "warm"
    runner = json.loads((warm_node.places.jobs / warm_node.job("two")["id"] / "job.json").read_text())["runner_pid"]
    kill(runner)
    wait_until(lambda: not is_alive(runner), "the runner is gone")
    time.sleep(0.2)
    assert is_alive(pid)  # as in a cold start: a submitted program outlives its runner
    assert warm_node.carpool("cancel", "two").code == 0
    wait_until(lambda: not is_alive(pid), "the program ended")
    assert warm_node.wait_state("two", "cancelled")


def test_a_runner_that_is_killed_takes_its_program_with_it(warm_node: Node) -> None:
    """V16."""
    job = warm_node.run(PYTHON, "-c", SLEEPER, options=(*WARM, "--name", "gone"))
    job.wait_line("ready")
    pid = warm_node.program_pid("gone")
    kill(job.pid)
    wait_until(lambda: not is_alive(pid), "the program ended", seconds=10.0)
    warm_node.wait_state("gone", "failed", "cancelled")


def test_a_parent_that_is_killed_leaves_its_programs_running(node: Node) -> None:
    node.start()
    code = "import sys, time\nprint('ready', flush=True)\nsys.stdin.read()\nsys.exit(9)"
    job = node.run(PYTHON, "-c", code, options=(*WARM, "--name", "left"), stdin=-1)
    job.wait_line("ready")
    assert how(node, "left") == "warm"
    parent = parents(node)[0]["pid"]
    kill(parent)
    wait_until(lambda: not is_alive(parent), "the parent is gone")
    assert parents(node) == []
    assert job.process.stdin is not None
    job.process.stdin.close()
    assert job.wait().code == 9
    assert node.wait_state("left", "failed")["reason"].startswith("failed: exit code 9")
    assert run(node, PYTHON, "-c", "print(1)", options=(*WARM, "--name", "next")).out == b"1\n"
    assert how(node, "next") == "warm"


def test_a_keeper_that_is_killed_leaves_the_program_and_nobody_knows_its_end(warm_node: Node) -> None:
    code = "import os, sys\nprint(os.getppid(), flush=True)\nsys.stdin.read()\nsys.exit(9)"
    job = warm_node.run(PYTHON, "-c", code, options=(*WARM, "--name", "lonely"), stdin=-1)
    job.wait_lines(1)
    kill(int(job.lines[0]))
    pid = warm_node.program_pid("lonely")
    time.sleep(0.3)
    assert is_alive(pid) and job.process.poll() is None and job.process.stdin is not None
    job.process.stdin.close()
    assert job.wait().code == 1
    assert "how the program ended is not known" in job.err
    assert "exit code unknown" in warm_node.wait_state("lonely", "failed")["reason"]


# --- terminals and signals ------------------------------------------------------------------------------------


INTERRUPTED = """
import time
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(7)
"""


@pytest.mark.parametrize("option", ["--cold", "--warm"])
def test_control_c_on_a_terminal_interrupts_it_once(warm_node: Node, option: str) -> None:
    words = [CARPOOL, "run", option, "--name", "typed", "--", PYTHON, "-c", INTERRUPTED]
    with Terminal(warm_node, words) as terminal:
        terminal.wait_text("ready")
        terminal.type(b"\x03")
        assert terminal.wait() == 7
    assert terminal.text.count("interrupted") == 1
    assert how(warm_node, "typed") == ("warm" if option == "--warm" else "")
    assert warm_node.wait_state("typed", "cancelled")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_control_z_stops_it_and_it_can_be_continued(warm_node: Node) -> None:
    words = [CARPOOL, "run", "--warm", "--name", "stops", "--", PYTHON, "-c", SLEEPER]
    shell = ["sh", "-c", 'set -m; "$@"; echo stopped; read line; fg', "sh", *words]
    with Terminal(warm_node, shell) as terminal:
        terminal.wait_text("ready")
        pid = warm_node.program_pid("stops")
        assert how(warm_node, "stops") == "warm"
        terminal.type(b"\x1a")
        terminal.wait_text("stopped")
        assert state_of(pid) == "T"
        terminal.type(b"go on\n")
        wait_until(lambda: state_of(pid) != "T", "it was continued")
        terminal.type(b"\x03")
        terminal.wait()


def test_signals_sent_to_the_runner_reach_the_program(warm_node: Node) -> None:
    job = warm_node.run("signals.py", options=(*WARM, "--name", "hears"))
    job.wait_line("ready")
    assert how(warm_node, "hears") == "warm"
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGWINCH):
        job.process.send_signal(number)
        job.wait_line(number.name)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait().code == 7


# --- the parent itself ----------------------------------------------------------------------------------------


def test_the_parent_is_shown_private_and_no_job(warm_node: Node) -> None:
    assert run(warm_node, PYTHON, "-c", "pass").code == 0
    shown = parents(warm_node)
    assert [each["python"] for each in shown] == [os.path.normpath(PYTHON)]
    assert shown[0]["memory_bytes"] > 100 << 20 and shown[0]["programs"] > 0
    text = warm_node.carpool("daemon", "status").out.decode()
    assert f"warm parent {shown[0]['pid']}: " in text
    assert all(shown[0]["pid"] not in job.get("pids", []) for job in warm_node.ps()["jobs"])
    directory = warm_node.places.run / "warm"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.glob("*.sock")} == {0o600}
    title = Path(f"/proc/{shown[0]['pid']}/cmdline").read_bytes()
    assert title.startswith(b"carpool: warm parent of ")


def test_programs_that_come_together_wait_for_one_parent(node: Node) -> None:
    """V15."""
    node.start()
    jobs = [node.run(PYTHON, "-c", "import torch", options=(*WARM, "--name", f"j{n}")) for n in range(3)]
    assert [job.wait().code for job in jobs] == [0, 0, 0]
    assert [how(node, f"j{n}") for n in range(3)] == ["warm"] * 3
    assert len(parents(node)) == 1


def test_a_daemon_that_is_stopped_ends_the_parents(node: Node) -> None:
    node.start()
    assert run(node, PYTHON, "-c", "pass").code == 0
    pid = parents(node)[0]["pid"]
    assert node.carpool("daemon", "stop").code == 0
    assert not is_alive(pid)


def test_a_parent_that_still_imports_is_known_and_ends_with_the_daemon(node: Node) -> None:
    node.start()
    job = node.run(PYTHON, "-c", "print(1)", options=(*WARM, "--name", "waits"))
    found = wait_until(lambda: parents(node), "a parent is known", every=0.01)[0]
    assert not found["is_ready"] and found["programs"] == 0, "known before it has imported anything"
    text = node.carpool("daemon", "status").out.decode()
    assert f"warm parent {found['pid']}: " in text
    job.process.kill()
    assert node.carpool("daemon", "stop", "--force").code == 0
    assert not is_alive(found["pid"])
    assert list((node.places.run / "warm").glob("*.sock")) == []


def test_a_parent_that_does_not_answer_is_not_waited_for_long(node: Node) -> None:
    """V19; and what it does later is nobody's: V15."""
    node.start()
    make_parent_fit(node)
    parent = parents(node)[0]["pid"]
    kill(parent, signal.SIGSTOP)
    assert run(node, PYTHON, "-c", "print(1)").out == b"1\n"
    assert how(node, "it") == "cold: the warm parent was not ready in time"
    kill(parent, signal.SIGCONT)
    make_parent_fit(node)
    assert [each["pid"] for each in parents(node)] == [parent]
