"""What was seen of a job: the needs that were measured, and how far it has come."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node.accounts import learn_step, note_steps
from carpool.core.node.effects import Effect
from carpool.core.node.events import NeedsMeasured, ProgressSeen
from carpool.core.node.memory import admission, resize, waiting
from carpool.core.node.model import Job
from carpool.core.node.node import Node

ACTIVE_PERCENT = 5  # a holder that used this share of a core since the last look is computing


def measured(node: Node, job: Job, event: NeedsMeasured, *, now: Nanos) -> list[Effect]:
    """Its first turns were measured, or it outgrew what was known of it."""
    job.memory.is_measured, job.memory.measured_bytes = True, event.needs.total_bytes
    job.memory.needs = admission.with_margin(event.needs, job.memory.needs, node.settings.margin_percent)
    if event.step_ns is not None and job.service.step_ns is None:
        learn_step(node, job, event.step_ns)
        if job.service.mark is not None and not job.service.mark.mates:
            job.service.solo_step_ns = event.step_ns
    node.move(job, NeedsMeasured, now=now)
    return resize.judge(node, job)


def seen(node: Node, job: Job, event: ProgressSeen, *, now: Nanos) -> list[Effect]:
    """What the page and the operating system say of it now."""
    used_ns = event.cpu_ns - job.service.cpu_ns
    # Of a long standstill of the whole machine only what was looked at counts (D6).
    span_ns = min(now - job.service.last_active_ns, job.service.silent_ns + node.settings.watch_ns)
    if event.steps > job.service.steps or used_ns * 100 >= max(1, span_ns) * ACTIVE_PERCENT:
        job.service.last_active_ns = now
        job.service.cpu_ns = event.cpu_ns
    job.memory.live_bytes = event.live_bytes
    job.service.stall_ns = max(job.service.stall_ns, event.stall_ns)
    job.service.stall_held_ns = max(job.service.stall_held_ns, event.stall_held_ns)
    note_steps(node, job, event.steps, now=now)
    if not event.pending_bytes and not job.memory.pending_bytes:
        return []
    return waiting.take(node, job, event, now=now)
