"""Programs start with carpool's library in front of them as they do alone, whatever their loader and their own
libraries are; where it cannot get in, they start without."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.node import Node, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOURCE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *work(void *arg) { char *block = malloc(1 << 20); memset(block, 7, 1 << 20); free(block); return arg; }
int main(void) {
    pthread_t one;
    pthread_create(&one, 0, work, 0);
    pthread_join(one, 0);
    work(0);
    puts("it ran");
    return 0;
}
"""
BUILDS = {
    "plain": ["gcc"],
    "static": ["gcc", "-static"],
    "address": ["gcc", "-fsanitize=address"],
    "thread": ["gcc", "-fsanitize=thread"],
    "undefined": ["gcc", "-fsanitize=undefined"],
    "musl": ["musl-gcc"],
    "static musl": ["musl-gcc", "-static"],
}


def build(place: Path, name: str) -> str:
    """The program, built so; the test is skipped where it cannot be built or does not run alone."""
    compiler, *flags = BUILDS[name]
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}: a program built as '{name}' is NOT tested; tests/packages.sh installs it")
    source, program = place / "program.c", place / name.replace(" ", "-")
    source.write_text(SOURCE)
    subprocess.run([compiler, *flags, "-pthread", "-o", str(program), str(source)], check=True, timeout=100)
    alone = subprocess.run([str(program)], capture_output=True, text=True, timeout=100, check=False)
    if alone.stdout != "it ran\n":
        pytest.skip(f"a program built as '{name}' does not run here alone: {alone.stderr[:200]}")
    return str(program)


@pytest.mark.parametrize("device", ["cpu:1GiB", "stub:1GiB"])
def test_programs_of_every_build_start_and_say_nothing_of_their_own(node: Node, tmp_path: Path, device: str) -> None:
    node.start(device=device)
    for name in BUILDS:
        try:
            program = build(tmp_path, name)
        except pytest.skip.Exception as reason:
            print(reason)  # the others are tested all the same
            continue
        ended = node.run(program, options=["--name", name]).wait()
        assert (ended.code, ended.out, ended.err) == (0, b"it ran\n", ""), name


def test_the_users_own_preloaded_libraries_stay_in_front_of_the_program(node: Node, tmp_path: Path) -> None:
    program = build(tmp_path, "plain")
    find = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=100, check=True
    )
    sanitizer = str(Path(find.stdout.strip()).resolve())
    if not Path(sanitizer).is_file():
        pytest.skip("no libasan.so: a program that preloads it is NOT tested")
    node.environment["LD_PRELOAD"] = sanitizer
    node.environment["ASAN_OPTIONS"] = "detect_leaks=0"
    node.start()
    ended = node.run(program).wait()
    assert (ended.code, ended.out, ended.err) == (0, b"it ran\n", "")


def test_what_a_job_left_behind_starts_programs_without_a_word_of_carpool(node: Node, tmp_path: Path) -> None:
    node.start()
    said, go = tmp_path / "said", tmp_path / "go"
    script = f"(while [ ! -e {go} ]; do sleep 0.1; done; ls -d / ; echo over) > {said} 2>&1 &"
    ended = node.run("sh", "-c", script, options=["--on-orphans", "keep"])
    left = wait_until(lambda: said.exists(), "it was left behind")
    assert left
    assert ended.wait().code == 0
    shutil.rmtree(next(Path(node.environment["CARPOOL_DIR"]).rglob("jobs")))  # as when the job is over
    go.touch()
    wait_until(lambda: "over" in said.read_text(), "it went on")
    assert said.read_text() == "/\nover\n"


# It takes blocks of 1 MiB until one is refused or it has as many as it was told, and holds them until `stop` exists.
TAKER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *blocks[1000];
int main(int count, char **words) {
    int taken = 0, wanted = atoi(words[1]);
    while (taken < wanted && (blocks[taken] = malloc(1 << 20))) memset(blocks[taken++], 7, 1 << 20);
    printf("took %d\n", taken);
    fflush(stdout);
    while (count > 2 && access(words[2], F_OK) != 0) usleep(50000);
    return 0;
}
"""
ALLOCATORS = {
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.2",
}


def find_allocator(name: str) -> str:
    for place in Path("/usr/lib").glob("*-linux-gnu"):
        if (place / ALLOCATORS[name]).exists():
            return str(place / ALLOCATORS[name])
    pytest.skip(f"no {ALLOCATORS[name]}: programs with {name} are NOT tested; tests/packages.sh installs it")


@pytest.mark.parametrize("is_linked", [False, True], ids=["preloaded", "linked"])
@pytest.mark.parametrize("name", ALLOCATORS)
def test_bytes_of_other_allocators_are_counted_and_capped(
    node: Node, tmp_path: Path, name: str, is_linked: bool
) -> None:
    allocator, stop = find_allocator(name), tmp_path / "stop"
    source, program = tmp_path / "taker.c", str(tmp_path / "taker")
    source.write_text(TAKER)
    linked = ["-Wl,--no-as-needed", allocator] if is_linked else []
    subprocess.run(["gcc", "-O0", "-o", program, str(source), *linked], check=True, timeout=100)
    if not is_linked:
        node.environment["LD_PRELOAD"] = allocator
    node.start()
    started = node.run(program, "100", str(stop), options=["--name", "counted"])
    started.wait_line("took 100")
    held_mib = node.job("counted")["live_bytes"] / (1 << 20)
    print(f"{name}: {held_mib:.1f} MiB of 100")
    assert 100 <= held_mib <= 105
    maps = Path(f"/proc/{node.program_pid('counted')}/maps").read_text()
    assert ALLOCATORS[name].partition(".so")[0] in maps
    stop.touch()
    ended = started.wait()
    assert (ended.code, ended.err) == (0, "")
    capped = node.run(program, "100", options=["--memory", "40MiB", "--name", "capped"]).wait()
    assert capped.code == 0 and "memory cap reached" in capped.err
    assert 36 <= int(capped.lines[0].removeprefix("took ")) <= 40
