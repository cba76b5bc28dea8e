"""Programs that carpool's library gets into only with care, or not at all: a limit is kept, or they are refused."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.node import Node
from tests.e2e.test_gpu import App
from tests.native.gpu import OUT_OF_MEMORY, Built

pytestmark = pytest.mark.slow
PLAIN = '#include <stdio.h>\nint main(void) { return puts("it ran") < 0; }\n'


@pytest.fixture
def node(node: Node, built: Built) -> Node:
    node.use_stand_in(built.place)
    return node


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("static")
    (place / "main.c").write_text(PLAIN)
    command = ["cc", "-static", str(place / "main.c"), "-o", str(place / "main")]
    if shutil.which("cc") is None or subprocess.run(command, capture_output=True, timeout=60).returncode:
        pytest.skip("cc -static does not work here: static programs are NOT tried")
    return place / "main"


@pytest.mark.parametrize("name", ["my dir", "a:b"])
def test_a_cap_holds_where_the_library_lies_in_an_odd_directory(node: Node, built: Built, name: str) -> None:
    place = node.directory / name
    place.mkdir()
    for library in ("gpu.so", "stub_cuda.so", "stub_nvml.so"):
        shutil.copy(built.place / library, place)
    node.environment["CARPOOL_NATIVE"] = str(place)
    node.start(device="stub:16GiB")
    app = App(node, built, "app", "--memory", "1GiB", "--compute", "50%")
    assert app.ask("total") == (0, 1 << 30)
    assert app.ask(f"alloc plain 0 {2 << 30}")[0] == OUT_OF_MEMORY
    assert app.ask("launch plain busy_1us")[0] == 0
    assert app.started.err == ""  # else the loader says that it ignores half of a path


@pytest.mark.parametrize("verb", ["run", "submit"])
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (["--memory", "1GiB"], "--memory cannot be kept"),
        (["--compute", "30%"], "--compute cannot be kept"),
        (["--memory", "1GiB", "--compute", "30%"], "--memory and --compute cannot be kept"),
        (["--oversubscribe", "--wait-memory", "1s"], "--oversubscribe and --wait-memory cannot be kept"),
    ],
)
def test_a_static_program_is_refused_where_a_limit_is_asked_for(
    node: Node, static: Path, verb: str, limits: list[str], said: str
) -> None:
    node.start(device="stub:16GiB")
    done = node.carpool(verb, *limits, "--", str(static))
    assert (done.code, done.out) == (1, b"")
    assert said in done.err and "linked statically" in done.err and "link it dynamically" in done.err
    assert node.ps()["jobs"] == []


def test_a_static_program_runs_without_a_limit_and_on_the_cpu_device(node: Node, static: Path) -> None:
    node.start(device="stub:16GiB")
    assert node.carpool("run", "--", str(static)).out == b"it ran\n"
    node.carpool("daemon", "stop")
    node.start(device="cpu:1GiB")
    done = node.carpool("run", "--memory", "512MiB", "--", str(static))
    assert (done.code, done.out) == (0, b"it ran\n"), done.err


def test_a_script_is_refused_for_its_interpreter(node: Node, static: Path, tmp_path: Path) -> None:
    node.start(device="stub:16GiB")
    for interpreter, code in ((str(static), 1), ("/bin/sh", 0)):
        script = tmp_path / "script"
        script.write_text(f"#!{interpreter}\necho it ran\n")
        script.chmod(0o755)
        done = node.carpool("run", "--memory", "1GiB", "--", str(script))
        assert (done.code, done.out) == (code, b"" if code else b"it ran\n"), done.err
