"""What an iteration pays for carpool while its job is alone: the cost of an uncontended boundary.

Measured, by `programs/boundary.py` inside one real job that holds its turn alone: the extra time of each call that
carpool hooks, with the hooks and without, in interleaved blocks of one process, least over blocks. From the call
of the hooked function to its return; the rare work (every 32nd step the job looks whether it has grown) is in it.
`ns_per_boundary` is the boundary itself: the hook at the optimizer's step, which counts the step and reads the recall
word. `ns_per_iteration` is everything carpool adds to one iteration, the dearer of the two loops that people write:
  with a DataLoader:     next batch + backward + optimizer step (carpool took its hook on module calls off)
  without a DataLoader:  a root module and its 5 inner modules + backward + optimizer step
(in a settled program, which is what is measured, carpool has taken its hook on backward off as well).
`overhead_at_1ms` and `overhead_at_20ms` are fractions of real training iterations of that length (one thread, no
DataLoader), measured as with against without hooks where this machine is quiet enough to see it: the 95 % half-width
must be below half of the target. Otherwise they are derived, ns_per_iteration by the iteration's measured length,
and `…_is_measured` says so. The direct figures are always there as `direct_at_…`, with their half-width.

Not measured: the hooks' cost at import, the byte counter inside the allocator, a boundary at which the turn is
given back (see `handover`), a GPU.
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
    derived = float(report.metrics["ns_per_iteration"]) / loop["iteration_ns"]
    is_measured = loop["halfwidth"] <= limit / 2
    name = f"overhead_at_{length_ms}ms"
    report.add(name, loop["share"] if is_measured else derived, Target(limit=limit))
    report.add(f"{name}_is_measured", is_measured)
    report.add(f"derived_at_{length_ms}ms", derived)
    report.add(f"direct_at_{length_ms}ms", loop["share"])
    report.add(f"direct_at_{length_ms}ms_halfwidth", loop["halfwidth"])
    report.add(f"iteration_ms_at_{length_ms}ms", loop["iteration_ns"] / 1e6)
    if not is_measured:
        report.notes.append(
            f"{name} is derived (ns_per_iteration / {loop['iteration_ns'] / 1e6:.2f} ms, both measured in this run):"
            f" the direct comparison gave {loop['share']:+.3%} ± {loop['halfwidth']:.3%}, too noisy to tell"
        )
