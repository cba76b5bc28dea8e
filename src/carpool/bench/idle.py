"""What a training loses to a served model that computes now and then, and how long a request waits for it.

Measured: a training (`programs/train.py`) and a server (`programs/serve.py`: http.server, a forward of about 2 ms in
`no_grad`) are jobs of one daemon, under `priority` (the server has the higher one) and then under `fair`. Windows of
three kinds follow each other, again and again, in the same processes:
  training   no requests: the server sleeps in accept
  both       one request a second
  server     one request a second, and the training makes no step: it sleeps between two of them
`training_share_beside_server` is the training's steps a second in windows of both, over those of the windows without
requests around them: the median of the cycles, of the worse policy. `request_p50_over_alone` is, under `priority`,
(the median request beside the training - one step of the training alone) / the median request alone: who has waited
for the end of a step is served nearly as fast as alone. `give_back_p50_ms` is from the end of the last operation of a
request's forward to the first operation of the training after it, in windows of both, under both policies: within it
the turn went back and the training woke up, so the turn was free before. `predicted_training_share` is what the
simulator says of two such jobs. `unused_seconds` is how long the server had a turn and did nothing, by its account.

Not measured: a GPU; several servers; requests that come together.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from carpool.bench.node import Node, open_node, python, read_stamps, steps_per_s, wait_files
from carpool.bench.report import Report, Say, Target, percentile
from carpool.errors import PeerError

MODEL = {"width": 192, "depth": 2, "batch": 8}
ENDLESS = 1_000_000_000
START_SECONDS = 180.0
REQUEST_SECONDS = 60.0
STEPS_FIRST = 20  # of the training, before anything is measured
LIMITS = {"share": 0.97, "request": 1.5, "give_back_ms": 5.0}
KINDS = ("training", "both", "server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: what it took, and when its forward was over."""

    took_ns: int
    forward_ns: int
    ended_ns: int


@dataclass(slots=True, kw_only=True)
class Window:
    kind: str
    from_ns: int = 0
    to_ns: int = 0
    requests: list[Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What happened under one policy."""

    windows: list[Window]
    stamps: list[tuple[int, int]]  # of the training's iterations
    unused_s: float
    daemon_core_fraction: float


def run(say: Say, *, cycles: int, seconds: float) -> Report:
    arms = {policy: _play(policy, say, cycles=cycles, seconds=seconds) for policy in ("priority", "fair")}
    return make_report(arms)


def _play(policy: str, say: Say, *, cycles: int, seconds: float) -> Arm:
    with open_node(policy=policy) as node:
        port, first, hold, until, stamps = (
            node.directory / name for name in ("port", "first", "hold", "until", "stamps")
        )
        server = node.run(python("serve.py", {"port": port}), "--name", "server", "--priority", "10")
        options = {**MODEL, "steps": ENDLESS, "first": first, "hold": hold, "until": until, "stamps": stamps}
        training = node.run(python("train.py", options), "--name", "training")
        wait_files([port, first], node.check_jobs, seconds=START_SECONDS)
        at = int(port.read_text())
        ask(at)
        time.sleep(1.0)
        windows: list[Window] = []
        cpu_s, began = node.cpu_s(), time.monotonic()
        for number in range(cycles):
            for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                windows.append(_watch(kind, at, hold, seconds))
            say(f"idle: {policy}, cycle {number + 1} of {cycles}")
        share = (node.cpu_s() - cpu_s) / (time.monotonic() - began)
        hold.unlink(missing_ok=True)
        until.touch()
        training.wait(REQUEST_SECONDS)
        unused_s = _unused_s(node)
        ask(at, "/end")
        server.wait(REQUEST_SECONDS)
        return Arm(windows=windows, stamps=read_stamps(stamps), unused_s=unused_s, daemon_core_fraction=share)


def _unused_s(node: Node) -> float:
    server = next(job for job in node.jobs() if job["name"] == "server")
    return float(server["spent_ns"].get("unused", 0)) / 1e9


def _watch(kind: str, port: int, hold: Path, seconds: float) -> Window:
    """One window; its first moments, in which the training comes to rest or begins again, are not in it."""
    if kind == "server":
        hold.touch()
    else:
        hold.unlink(missing_ok=True)
    time.sleep(0.3)
    window = Window(kind=kind, from_ns=time.monotonic_ns())
    if kind == "training":
        time.sleep(seconds)
    else:
        for number in range(max(1, round(seconds))):
            due = window.from_ns / 1e9 + number + 0.5
            time.sleep(max(0.0, due - time.monotonic()))
            window.requests.append(ask(port))
        time.sleep(max(0.0, window.from_ns / 1e9 + seconds - time.monotonic()))
    window.to_ns = time.monotonic_ns()
    return window


def ask(port: int, path: str = "/") -> Request:
    """One request to the server, on a connection of its own."""
    began = time.monotonic_ns()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    try:
        connection.request("GET", path)
        ended_ns, forward_ns = json.loads(connection.getresponse().read())
    except OSError as error:
        raise PeerError(f"the server does not answer: {error}") from error
    finally:
        connection.close()
    return Request(took_ns=time.monotonic_ns() - began, forward_ns=forward_ns, ended_ns=ended_ns)


# --- figures -----------------------------------------------------------------------------------------------------


def make_report(arms: dict[str, Arm]) -> Report:
    report = Report(bench="idle")
    shares = {policy: _share(arm) for policy, arm in arms.items()}
    alone, beside = (_took_ms(arms["priority"], kind) for kind in ("server", "both"))
    step_ms = _step_ms(arms["priority"])
    give_back = [span for arm in arms.values() for span in _give_backs_ms(arm)]
    report.add("training_share_beside_server", min(shares.values()), Target(limit=LIMITS["share"], is_least=True))
    report.add("request_p50_over_alone", (median(beside) - step_ms) / median(alone), Target(limit=LIMITS["request"]))
    report.add("give_back_p50_ms", percentile(give_back, 50), Target(limit=LIMITS["give_back_ms"]))
    report.add("give_back_p90_ms", percentile(give_back, 90))
    for policy, share in shares.items():
        report.add(f"training_share_{policy}", share)
        report.add(f"request_p50_ms_{policy}", median(_took_ms(arms[policy], "both")))
        report.add(f"unused_seconds_{policy}", arms[policy].unused_s)
    report.add("request_alone_p50_ms", median(alone))
    report.add("forward_p50_ms", median(each.forward_ns for each in _requests(arms["priority"], "server")) / 1e6)
    report.add("step_ms", step_ms)
    report.add("daemon_core_fraction", max(arm.daemon_core_fraction for arm in arms.values()), Target(limit=0.01))
    report.add("requests", len(beside))
    report.notes.append(f"{os.getloadavg()[0]:.1f} programs wanted a processor at the end")
    return report


def _requests(arm: Arm, kind: str) -> list[Request]:
    return [each for window in arm.windows if window.kind == kind for each in window.requests]


def _took_ms(arm: Arm, kind: str) -> list[float]:
    return [each.took_ns / 1e6 for each in _requests(arm, kind)]


def _share(arm: Arm) -> float:
    """Of each window with both: its steps a second over those of the nearest windows of the training alone."""
    rates = [(window, steps_per_s(arm.stamps, window.from_ns, window.to_ns)) for window in arm.windows]
    shares = []
    for at, (window, rate) in enumerate(rates):
        if window.kind == "both":
            near = [other for _, other in _nearest(rates, at)]
            shares.append(rate / (sum(near) / len(near)))
    return median(shares)


def _nearest(rates: list[tuple[Window, float]], at: int) -> list[tuple[Window, float]]:
    """The last window of the training alone before this one and the first after it."""
    before = [each for each in rates[:at] if each[0].kind == "training"][-1:]
    return before + [each for each in rates[at + 1 :] if each[0].kind == "training"][:1]


def _step_ms(arm: Arm) -> float:
    spans = [
        later[1] - earlier[1]
        for window in arm.windows
        if window.kind == "training"
        for earlier, later in zip(arm.stamps, arm.stamps[1:], strict=False)
        if window.from_ns <= earlier[1] and later[1] <= window.to_ns
    ]
    return median(spans) / 1e6


def _give_backs_ms(arm: Arm) -> list[float]:
    """From the end of each forward to the training's next operation."""
    firsts = [first for first, _ in arm.stamps]
    found = []
    for request in _requests(arm, "both"):
        at = bisect_left(firsts, request.ended_ns)
        if at < len(firsts):
            found.append((firsts[at] - request.ended_ns) / 1e6)
    return found
