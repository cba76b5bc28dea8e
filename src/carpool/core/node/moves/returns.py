"""Parked jobs come back: who, in which order, and when a return that failed is tried again."""

from __future__ import annotations

from carpool.core.kernel.ids import Nanos
from carpool.core.node import accounts, lifecycle
from carpool.core.node.effects import Effect, UnparkJob
from carpool.core.node.memory import admission, ledger
from carpool.core.node.model import Device, Job
from carpool.core.node.node import Node, may_return


def unpark_fitting(node: Node, device: Device, rivals: list[Job], *, now: Nanos) -> list[Effect]:
    """Bring back whoever may come and has room, in the order of the policy; not before rivals that go before it.

    While room is made for somebody, only it may come (R3).
    """
    effects: list[Effect] = []
    away = [job for job in node.jobs_on(device) if may_return(job, now=now)]
    away = [job for job in away if device.claimant in (None, job.id)]
    while away:
        job = next((each for each in away if each.id in device.owed), None)  # before everybody else (N20)
        if job is None:
            picked = accounts.pick(node, [*away, *rivals], now=now, on=device)
            if any(rival.id == picked for rival in rivals):
                break
            job = next((each for each in away if each.id == picked), away[0])
        away.remove(job)
        wanted = admission.returning_needs(node, job, device)
        if not admission.may_have(node, device, job, wanted):
            continue
        fit = admission.fit_of(node, device, wanted, had_bytes=job.memory.promised_bytes)
        while fit is None and admission.merging_lets_in(node, job, device) and admission.merge_free(node, device):
            fit = admission.fit_of(node, device, wanted, had_bytes=job.memory.promised_bytes)
        if fit is not None:
            ledger.place(device, job, fit)
            ledger.promise(device, job, wanted.resident_bytes)
        elif not device.lanes:  # it needs more than the device has: alone it may try, as the oldest may (D2)
            admission.squeeze_in(node, device, job, wanted)
        if job.lane is not None:
            lifecycle.move(node, job, UnparkJob, now=now)
            effects.append(UnparkJob(job=job.id))
    return effects


def is_due(node: Node, *, now: Nanos) -> bool:
    """Whether a parked job whose return failed may be tried again now."""
    here = (job for device in node.devices.values() for job in node.lively_on(device))
    return any(job.move.trouble and may_return(job, now=now) for job in here)
