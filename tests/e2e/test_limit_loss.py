"""Where a process of a job runs without carpool's library its limit cannot be kept: carpool says so once, and `ps`
and `explain` show it while that process lives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from carpool.devices.libraries import BUILT
from tests.e2e.node import CARPOOL, PYTHON, Node, Started, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20
# It holds 200 MiB until the file `stop` is there, and says so.
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    char *block = malloc(200 << 20);
    if (block) memset(block, 7, 200 << 20);
    puts(block ? "holds" : "refused");
    fflush(stdout);
    while (count > 1 && access(words[1], F_OK) != 0) usleep(50000);
    return 0;
}
"""


def build(place: Path, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}: such a program is NOT tested; tests/packages.sh installs it")
    source, program = place / "holder.c", place / "holder"
    source.write_text(SOURCE)
    subprocess.run([*command, "-o", str(program), str(source)], check=True, timeout=100)
    return str(program)


def wait_loss(node: Node, name: str) -> dict[str, Any]:
    """The job once it is shown that its limit is not kept."""

    def look() -> dict[str, Any] | None:
        found = node.find(name)
        return found if found is not None and found.get("limit_loss") else None

    return wait_until(look, f"the lost limit of {name} is shown")


def said(started: Started) -> list[str]:
    return [line for line in started.err.splitlines() if "not kept" in line]


def end(started: Started, stop: Path) -> None:
    stop.touch()
    assert started.wait().code == 0, started.err


def test_a_file_system_without_carpools_files_loses_the_limit_and_carpool_says_so_once(
    node: Node, tmp_path: Path
) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces for this user: a container without carpool's files is NOT tested")
    holder, stop = build(tmp_path, "gcc"), tmp_path / "stop"
    node.start()
    hide = f"mount -t tmpfs none {BUILT} && mount -t tmpfs none {node.places.run}"
    script = f"{hide} && {{ {holder} {stop} & {holder} {stop}; wait; }}"
    options = ["--memory", "64MiB", "--name", "bare"]
    started = node.run("unshare", "-m", "sh", "-c", script, options=options)
    job = wait_loss(node, "bare")
    assert "--memory is not kept in 2 of its processes" in job["limit_loss"]
    assert f"carpool's files are not in its file system; give it {BUILT}" in job["limit_loss"]
    wait_until(lambda: said(started), "carpool says it")
    table = node.carpool("ps")
    assert "(limit lost)" in table.out.decode() and job["limit_loss"] in table.out.decode()
    assert max(map(len, table.lines[:3])) <= 80
    assert job["limit_loss"] in node.carpool("explain", "bare").out.decode()
    assert json.loads(node.carpool("ps", "--json").out)["jobs"][0]["limit_loss"] == job["limit_loss"]
    end(started, stop)
    assert len(said(started)) == 1
    assert started.lines == ["holds", "holds"]


def test_i9_the_next_daemon_shows_it_again_and_does_not_say_it_again(node: Node, tmp_path: Path) -> None:
    holder, stop = build(tmp_path, "gcc", "-static"), tmp_path / "stop"
    node.start()
    started = node.run("sh", "-c", f"{holder} {stop}; true", options=["--memory", "64MiB", "--name", "static"])
    wait_loss(node, "static")
    wait_until(lambda: said(started), "carpool says it")
    node.kill_daemon()
    node.start()
    assert "it is linked statically" in wait_loss(node, "static")["limit_loss"]
    end(started, stop)
    assert len(said(started)) == 1


@pytest.mark.parametrize("command", [["gcc", "-static"], ["musl-gcc"]])
def test_what_is_said_before_the_start_is_shown_and_not_said_again(
    node: Node, tmp_path: Path, command: list[str]
) -> None:
    holder, stop = build(tmp_path, *command), tmp_path / "stop"
    node.start()
    started = node.run(holder, str(stop), options=["--memory", "64MiB", "--name", "first"])
    assert "--memory is not kept in 1 of its processes" in wait_loss(node, "first")["limit_loss"]
    end(started, stop)
    assert len(said(started)) == 1
    assert started.lines == ["holds"]


def test_a_setuid_program_loses_the_limit(node: Node, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("not root: a setuid program cannot be made, so it is NOT tested")
    place = node.directory / "shared"
    place.mkdir(mode=0o755)
    node.directory.chmod(0o755)
    holder, stop = build(place, "gcc"), place / "stop"
    os.chown(holder, 65534, 65534)
    Path(holder).chmod(0o4755)
    node.start()
    started = node.run("sh", "-c", f"{holder} {stop}; true", options=["--memory", "64MiB", "--name", "other"])
    assert "it runs with other rights" in wait_loss(node, "other")["limit_loss"]
    wait_until(lambda: said(started), "carpool says it")
    end(started, stop)
    assert (len(said(started)), started.lines) == (1, ["holds"])


def test_a_submitted_job_has_it_in_its_log(node: Node, tmp_path: Path) -> None:
    holder, stop = build(tmp_path, "gcc"), tmp_path / "stop"
    node.start()
    job = node.submit("sh", "-c", f"env -u LD_PRELOAD {holder} {stop}; true", options=["--memory", "64MiB"])
    assert "LD_PRELOAD was taken from its environment" in wait_loss(node, job["id"])["limit_loss"]
    stop.touch()
    node.wait_state(job["id"], "finished")
    log = node.carpool("logs", job["id"]).out.decode()
    assert log.count("--memory is not kept in 1 of its processes") == 1


def test_i8_a_limit_that_is_kept_is_shown_as_kept(node: Node, tmp_path: Path) -> None:
    """Also in children, in programs that were executed anew, and in those that close every descriptor."""
    holder, stop = build(tmp_path, "gcc"), tmp_path / "stop"
    node.start()
    script = f"import os, subprocess; subprocess.run([{holder!r}, {str(stop)!r}])"
    started = Started(node, [CARPOOL, "run", "--memory", "64MiB", "--name", "kept", "--", PYTHON, "-c", script])
    started.wait_line("refused")
    deadline = time.monotonic() + 3  # six looks' time
    while time.monotonic() < deadline:
        assert node.job("kept")["limit_loss"] == ""
        time.sleep(0.1)
    end(started, stop)
    assert said(started) == []
