"""What an iteration pays for carpool while its job is alone: the cost of an uncontended boundary.

Measured by `programs/boundary.py` inside one real job that holds its turn alone, with the hooks and without, in
interleaved blocks of one process, after carpool has taken off the hooks that this program does not need.

In a tight loop, so with warm caches, least over blocks, from the call of the hooked function to its return, the rare
work (every 32nd step the job looks whether it has grown) included:
  ns_per_boundary    the boundary itself: the hook at the optimizer's step, which counts and reads the recall word
  ns_per_iteration   everything carpool adds to one iteration, the dearer of the two loops that people write: with a
                     DataLoader (next batch, backward, step), or without (a root module, 5 inner ones, backward, step)
In place, so in real training iterations of about 1 and 20 ms (one thread, no DataLoader), whose own work empties the
caches between two boundaries: the hooked places (calls of the root module and of 5 inner ones, optimizer step) are
timed where they are, medians over blocks; the same places without hooks are subtracted.
  overhead_at_…      that difference as a fraction of the iteration, with the 95 % half-width of the median beside it
  ns_in_place_at_…   the same in nanoseconds, and the optimizer step's part of it

Not measured: the hooks' cost at import, work of the program that becomes slower because hooks ran before it, the
byte counter inside the allocator (it is in both arms), a boundary at which the turn is given back (see `handover`),
a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from carpool.bench.node import Node, open_node, python, wait_all
from carpool.bench.report import Report, Say, Target
from carpool.errors import PeerError

PROGRAM_SECONDS = 900.0
TARGETS = {1: 0.005, 20: 0.0005}


def run(say: Say, *, repeats: int) -> Report:
    with open_node(policy="fair") as node:
        say(f"boundary: one job alone, {repeats} interleaved repeats of each part")
        found = _measure(node, repeats)
    report = Report(bench="boundary")
    _add_parts(report, found["parts"])
    for length_ms, target in TARGETS.items():
        _add_overhead(report, length_ms, target, found["loops"][str(length_ms)])
    report.add("repeats", repeats)
    return report


def _measure(node: Node, repeats: int) -> dict[str, Any]:
    out = node.directory / "boundary.json"
    job = node.run(python("boundary.py", {"repeats": repeats, "out": out}))
    wait_all([job], seconds=PROGRAM_SECONDS)
    _check_managed(node)
    found: dict[str, Any] = json.loads(Path(out).read_text())
    return found


def _check_managed(node: Node) -> None:
    """A job that carpool does not manage would look wonderfully cheap."""
    (job,) = node.jobs()
    if not job["steps"] or job["waited_ns"] > 1_000_000_000:
        raise PeerError(f"job {job['id']} did not hold its turn alone: {job['steps']} steps, {job['reason']}")


def _add_parts(report: Report, parts: dict[str, float]) -> None:
    with_loader = parts["data"] + parts["backward"] + parts["step"]
    without_loader = parts["root_call"] + parts["inner_calls"] + parts["backward"] + parts["step"]
    report.add("ns_per_boundary", parts["step"], Target(limit=1000))
    report.add("ns_per_iteration", max(with_loader, without_loader))
    report.add("ns_with_loader", with_loader)
    report.add("ns_without_loader", without_loader)
    for name, cost in parts.items():
        report.add(f"ns_{name}", cost)


def _add_overhead(report: Report, length_ms: int, limit: float, loop: dict[str, float]) -> None:
    name, iteration_ns = f"overhead_at_{length_ms}ms", loop["iteration_ns"]
    report.add(name, loop["all_ns"] / iteration_ns, Target(limit=limit))
    report.add(f"{name}_halfwidth", loop["halfwidth_ns"] / iteration_ns)
    report.add(f"ns_in_place_at_{length_ms}ms", loop["all_ns"])
    report.add(f"ns_step_in_place_at_{length_ms}ms", loop["step_ns"])
    report.add(f"iteration_ms_at_{length_ms}ms", iteration_ns / 1e6)
    if loop["halfwidth_ns"] / iteration_ns > limit / 2:
        half = f"± {loop['halfwidth_ns'] / iteration_ns:.3%}"
        report.notes.append(
            f"{name} is uncertain by {half} here; run it again on a quieter machine, or --repeats more"
        )
