"""`carpool run` of ordinary CUDA programs on stand-in GPUs, through the real daemon: caps, turns, what `ps` says."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.node import PYTHON, Node, Started, wait_until
from tests.native.gpu import MIB, OUT_OF_MEMORY, Built, busy_ns, true_bytes

GIB = 1024 * MIB

pytestmark = pytest.mark.slow


@pytest.fixture
def node(node: Node, built: Built) -> Node:
    node.use_stand_in(built.place)
    return node


class App:
    """The probe, run by `carpool run`: commands in, answers out."""

    def __init__(self, node: Node, built: Built, name: str, *options: str, door: str = "link") -> None:
        self.started: Started = node.run(
            str(built.probe), door, options=["--name", name, *options], stdin=subprocess.PIPE
        )
        self._seen = 1
        self.started.wait_lines(1)
        self.pid = int(self.started.lines[0].split()[1])

    def tell(self, line: str) -> None:
        assert self.started.process.stdin
        self.started.process.stdin.write(f"{line}\n".encode())
        self.started.process.stdin.flush()

    def answer(self, *, seconds: float = 30.0) -> tuple[int, int]:
        self._seen += 1
        self.started.wait_lines(self._seen, seconds=seconds)
        result, value = self.started.lines[self._seen - 1].split()
        return int(result), int(value)

    def ask(self, line: str) -> tuple[int, int]:
        self.tell(line)
        return self.answer()


def test_a_capped_program_sees_a_card_of_its_size_and_is_refused_beyond_it(node: Node, built: Built) -> None:
    node.start(device="stub:2x16GiB")
    app = App(node, built, "app", "--memory", "3GiB", "--summary")
    assert app.ask("total") == (0, 3 << 30)
    assert app.ask(f"alloc plain 0 {2 << 30}")[0] == 0
    assert app.ask("info 0") == (0, 1 << 30)
    assert app.ask(f"alloc async 1 {2 << 30}")[0] == OUT_OF_MEMORY
    assert app.ask(f"alloc vmm 1 {1 << 30}")[0] == 0
    job = wait_until(lambda: (found := node.job("app"))["live_bytes"] == 3 << 30 and found, "ps shows the bytes")
    assert job["cap_bytes"] == 3 << 30
    assert true_bytes(node.directory / "books")[app.pid] == 3 << 30
    listing = node.carpool("ps")
    assert "3.00 GiB" in listing.out.decode()
    assert app.ask("launch plain busy_1us")[0] == 0
    written = node.carpool("checkpoint", "app", str(node.files / "file"))
    assert (written.code, "is no PyTorch program" in written.err) == (1, True), written.err
    moved = node.carpool("migrate", "app", "--to", "gpu1")
    assert (moved.code, "start it there: carpool run --device gpu1 -- " in moved.err) == (1, True), moved.err
    assert app.started.process.stdin
    app.started.process.stdin.close()
    refused = "1 allocation was refused at its cap of 3.00 GiB (it asked for 2.00 GiB)"
    assert app.started.wait().err == f"carpool: job {job['id']}: {refused}\n"
    assert node.wait_state("app", "finished")["reason"].startswith(
        f"finished: exit code 0; {refused}; had the device "
    )


def test_an_uncapped_neighbour_is_shown_the_real_card(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB")
    first, second = App(node, built, "first", "--memory", "3GiB"), App(node, built, "second", door="proc")
    assert first.ask(f"alloc plain 0 {1 << 30}")[0] == 0
    assert second.ask("info 1") == (0, 16 << 30)
    assert second.ask("info 0") == (0, 15 << 30)
    assert second.ask(f"alloc plain 0 {4 << 30}")[0] == 0


def test_two_programs_take_turns_at_their_kernel_launches(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB", quantum="50ms")
    apps = [App(node, built, name, "--memory", "1GiB") for name in ("one", "two")]
    for app in apps:
        app.tell("loop 3000 10 busy_1ms")
    counts = [app.answer()[1] for app in apps]
    for name in ("one", "two"):
        assert node.turns(name) >= 5
    assert min(counts) > 0.6 * max(counts)
    assert all(app.started.err == "" for app in apps)


def test_a_job_is_promised_what_all_its_processes_hold(node: Node) -> None:
    """Three of 3 GiB each: a neighbour that would need what they have waits, and says for what."""
    node.start(device="stub:16GiB", quantum="20ms")
    crowd = ["crowd_on_card.py", "--gib", "3", "--processes"]
    three = node.run(*crowd, "3", options=["--name", "three"], stdin=subprocess.PIPE)

    def is_booked() -> bool:
        job = node.find("three")
        return job is not None and job["live_bytes"] == 9 * GIB <= job["promised_bytes"]

    wait_until(is_booked, "the promise is what the processes hold")
    other = node.run(*crowd, "1", options=["--name", "other", "--memory", "10GiB"], stdin=subprocess.PIPE)
    wait_until(lambda: node.state("other") == "queued", "it waits")
    assert "memory" in node.job("other")["reason"]
    for job in (three, other):
        assert job.process.stdin
        job.process.stdin.close()
        assert job.wait().code == 0


@pytest.mark.parametrize("or_kill", [False, True], ids=["parked if it can be", "--or-kill"])
def test_a_program_that_cannot_do_with_less_says_so_when_it_is_resized(
    node: Node, built: Built, or_kill: bool
) -> None:
    """It has no caches that carpool could empty, and cannot be parked: raise its cap, or end it."""
    node.start(device="stub:16GiB")
    app = App(node, built, "app", "--memory", "1GiB")
    assert app.ask(f"alloc plain 0 {200 * MIB}")[0] == 0
    app.tell("loop 100000 10 busy_1ms")
    wait_until(lambda: (node.job("app")["needs"] or {}).get("persistent_bytes"), "it is measured")
    order = node.carpool("resize", "app", "--memory", "100MiB", *(["--or-kill"] if or_kill else []))
    if or_kill:
        node.wait_state("app", "cancelled")
        return
    assert order.code == 0, order.err
    assert "not PyTorch" in node.job("app")["reason"]
    assert node.carpool("resize", "app", "--memory", "1GiB").code == 0
    node.wait_state("app", "running")
    app.started.process.terminate()


LAUNCHES = ["launch plain busy_1us", "launch ex busy_1us", "launch cooperative busy_1us", "capture 1 1 busy_1us"]


@pytest.mark.parametrize("line", [*LAUNCHES, f"copy {2 * MIB}"])
def test_every_form_of_launch_and_a_large_copy_wait_for_the_turn(node: Node, built: Built, line: str) -> None:
    node.start(device="stub:16GiB", quantum="10s")
    holder, waiter = App(node, built, "holder", "--memory", "1GiB"), App(node, built, "waiter", "--memory", "1GiB")
    holder.tell("loop 2000 1 busy_10ms")
    wait_until(lambda: node.holders() == [node.job("holder")["id"]], "the holder has its turn")
    assert waiter.ask("copy 4096") == (0, 0)
    waiter.tell(line)
    node.wait_state("waiter", "waiting")
    assert len(waiter.started.lines) == 2
    assert holder.answer()[0] == 0
    holder.started.end()
    assert waiter.answer() == (0, 0)


def test_a_captured_graph_is_not_broken_by_a_recall_and_waits_at_its_launch(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB", quantum="20ms")
    apps = [App(node, built, name, "--memory", "1GiB") for name in ("one", "two")]
    apps[1].tell("loop 1500 5 busy_1ms")
    for _ in range(15):
        assert apps[0].ask("capture 10 20 busy_100us")[0] == 0
        assert apps[0].ask("sync")[0] == 0
    assert apps[1].answer()[0] == 0


def test_a_killed_holder_is_followed_at_once(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB", quantum="10s")
    holder, waiter = App(node, built, "holder", "--memory", "1GiB"), App(node, built, "waiter", "--memory", "1GiB")
    holder.tell("loop 60000 1 busy_10ms")
    wait_until(lambda: node.holders() == [node.job("holder")["id"]], "the holder has its turn")
    waiter.tell("launch plain busy_1us")
    node.wait_state("waiter", "waiting")
    os.kill(holder.pid, 9)
    assert waiter.answer(seconds=5) == (0, 0)


def test_programs_outlive_the_daemon_and_take_turns_with_the_next(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB", quantum="50ms")
    apps = [App(node, built, name, "--memory", "1GiB") for name in ("one", "two")]
    for app in apps:
        app.tell("loop 6000 10 busy_1ms")
    wait_until(lambda: len(node.journal("GrantLease")) > 4, "some turns")
    node.kill_daemon()
    node.start(device="stub:16GiB", quantum="50ms")
    for app in apps:
        assert app.answer()[0] == 0
        assert "unmanaged" not in app.started.err
    assert len([grant for grant in node.journal("GrantLease") if grant["run"] > 1]) > 4


def test_compute_shares_are_kept_shown_and_changed_while_jobs_run(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB")
    books = node.directory / "books"
    apps = [
        App(node, built, "low", "--memory", "1GiB", "--compute", "25%"),
        App(node, built, "high", "--memory", "1GiB", "--compute", "50%:60%"),
    ]
    for app in apps:
        app.tell("loop 7000 1000000000 busy_1ms")
    time.sleep(1.0)
    had = parts(books, apps)
    # Generous: a busy machine hands turns over slowly. What nobody may pass is the limit.
    assert 12 <= had[0] <= 31 and 35 <= had[1] <= 66, had
    for app, name in zip(apps, ("low", "high"), strict=True):
        job = node.job(name)
        assert [process["pid"] for process in job["processes"] if process["device_ns"]] == [app.pid]
        assert job["device_ns"] >= sum(process["device_ns"] for process in job["processes"])
    said = node.carpool("explain", "high").out.decode()
    assert "share: 50 % of gpu0 at least, 60 % at most" in said
    node.carpool("resize", "low", "--compute", "10%")
    time.sleep(0.7)
    assert parts(books, apps)[0] <= 16
    for app in apps:
        assert app.answer()[0] == 0


def test_oversubscription_is_asked_for_said_and_shown(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB")
    app = App(node, built, "big", "--memory", "64MiB", "--oversubscribe")
    assert [app.ask(f"alloc plain {slot} {48 * MIB}")[0] for slot in (1, 2)] == [0, 0]
    assert "managed memory" in app.started.err
    (process,) = node.job("big")["processes"]
    assert (process["live_bytes"], process["spilled_bytes"]) == (48 * MIB, 48 * MIB)


def parts(books: Path, apps: list[App], *, seconds: float = 2.0) -> list[float]:
    """What part of the card, in percent, each has over the next while."""
    began, before = time.monotonic(), [busy_ns(books, app.pid) for app in apps]
    time.sleep(seconds)
    span = time.monotonic() - began
    return [(busy_ns(books, app.pid) - used) / 1e7 / span for app, used in zip(apps, before, strict=True)]


@pytest.mark.parametrize(("policy", "alone"), [("weighted", (15, 31)), ("burst", (70, 101))])
def test_a_share_policy_divides_the_card_and_says_who_has_what_is_not_used(
    node: Node, built: Built, policy: str, alone: tuple[int, int]
) -> None:
    """5 and 15 % are a quarter and three quarters; without its neighbour's launches the quarter stays one, or not."""
    begun = node.carpool("daemon", "start", "--device", "stub:16GiB", "--share-policy", policy)
    assert begun.code == 0, begun.err
    books = node.directory / "books"
    small, large = (App(node, built, f"asks{asked}", "--compute", f"{asked}%") for asked in (5, 15))
    small.tell("loop 60000 1000000000 busy_1ms")
    large.tell("loop 2800 1000000000 busy_1ms")
    time.sleep(0.6)
    had = parts(books, [small, large], seconds=1.3)
    # Generous: a busy machine hands turns over slowly. Under `weighted` nobody may pass his limit.
    assert 12 <= had[0] <= 38 and 50 <= had[1] <= 85, had
    assert had[0] <= 31 or policy == "burst", had
    assert large.answer()[0] == 0
    time.sleep(0.3)
    for _ in range(10):  # a processor that others keep busy launches late: one good second of ten is enough
        had = parts(books, [small, large], seconds=1.0)
        assert had[0] <= alone[1] and had[1] <= 1, had
        if alone[0] <= had[0]:
            break
    assert alone[0] <= had[0], had


@pytest.mark.parametrize(
    ("share", "why"),
    [
        ("30", "not a share"),
        ("60%:30%", "the smaller part first"),
        ("120%", "0.1 % to 100 %"),
        ("0%", "0.1 % to 100 %"),
    ],
)
def test_a_share_that_is_none_is_refused_with_its_numbers(node: Node, share: str, why: str) -> None:
    done = node.carpool("run", "--compute", share, "--", "true")
    assert done.code == 2 and why in done.err


def test_a_share_that_is_not_left_is_waited_for(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB")
    first = App(node, built, "first", "--memory", "1GiB", "--compute", "70%")
    node.carpool("submit", "--name", "second", "--compute", "40%", "--", "true")
    reason = node.carpool("explain", "second").out.decode()
    assert "it asks for 40 % of a device, and 30 % of gpu0 is not promised to others" in reason
    assert first.started.process.stdin
    first.started.process.stdin.close()
    node.wait_state("second", "finished")


def test_what_cannot_be_kept_without_the_guest_is_refused(node: Node, built: Built, tmp_path: Path) -> None:
    for name in ("stub_cuda.so", "stub_nvml.so"):
        (tmp_path / name).symlink_to(built.place / name)
    node.environment["CARPOOL_NATIVE"] = str(tmp_path)  # the stand-in without the guest
    node.start(device="stub:16GiB")
    for options in (["--memory", "3GiB"], ["--compute", "20%"], ["--oversubscribe"], ["--wait-memory", "1s"]):
        done = node.carpool("run", *options, "--", str(built.probe), "link")
        assert (done.code, done.out) == (1, b""), options
        assert f"{options[0]} cannot be kept on a GPU: the library that does it was not built" in done.err
        assert f"or run without {options[0]}" in done.err
    node.submit(str(built.probe), "link", options=["--name", "later", "--compute", "20%"])
    assert "--compute cannot be kept on a GPU" in node.wait_state("later", "failed")["reason"]
    by_turns = node.carpool("run", "--compute", "20%", "--", PYTHON, "-c", "print('it ran')")
    assert (by_turns.code, by_turns.out) == (0, b"it ran\n"), by_turns.err
    uncapped = node.run(str(built.probe), "link", stdin=subprocess.PIPE)
    uncapped.wait_lines(1)
    assert uncapped.lines[0].startswith("0 ")


def test_a_driver_error_of_one_program_is_its_own(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB", quantum="50ms")
    bad, good = App(node, built, "bad", "--memory", "1GiB"), App(node, built, "good", "--memory", "1GiB")
    assert bad.ask("launch plain fault")[0] == 0
    assert bad.ask("sync")[0] == 719
    assert good.ask("launch plain busy_1ms")[0] == 0
    assert good.ask("sync")[0] == 0
    assert good.ask(f"alloc plain 0 {10 * MIB}")[0] == 0


def test_an_allocation_waits_for_room_where_that_was_asked_for(node: Node, built: Built) -> None:
    node.start(device="stub:16GiB")
    app = App(node, built, "app", "--memory", "1GiB", "--wait-memory", "500ms")
    started = time.monotonic()
    assert app.ask(f"alloc plain 0 {2 << 30}")[0] == OUT_OF_MEMORY  # it can never fit: no wait
    assert app.ask(f"alloc plain 0 {1 << 30}")[0] == 0
    assert app.ask(f"alloc plain 1 {1 << 30}")[0] == OUT_OF_MEMORY  # nobody but itself could make room
    assert time.monotonic() - started < 10
    text = (Path("/proc") / str(app.pid) / "environ").read_bytes().split(b"\0")
    assert b"CARPOOL_WAIT_MEMORY_NS=500000000" in text


def test_a_wait_for_memory_is_refused_where_nobody_can_keep_it(node: Node, built: Built) -> None:
    node.start(device="cpu:1GiB")
    done = node.carpool("run", "--wait-memory", "1s", "--", "true")
    assert done.code == 1
    assert "--wait-memory needs the byte meter, which is missing here" in done.err
    node.submit("true", options=["--name", "later", "--wait-memory", "1s"])
    assert "needs the byte meter" in node.wait_state("later", "failed")["reason"]
    done = node.carpool("run", "--oversubscribe", "--", "true")
    assert done.code == 1
    assert "--oversubscribe works on GPUs only" in done.err
