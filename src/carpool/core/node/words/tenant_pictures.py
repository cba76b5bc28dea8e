"""What each tenant has, lends and borrows, as a picture for people and for those who keep accounts."""

from __future__ import annotations

from carpool.core.kernel.ids import SHARE_ONE, Nanos, TenantId
from carpool.core.node.memory import tenure
from carpool.core.node.model import ENDED, RESIDENT
from carpool.core.node.node import Node
from carpool.core.node.turns import parts
from carpool.core.node.words.views import TenantPicture


def _memory(node: Node, name: TenantId, *, now: Nanos) -> dict[str, int]:
    """What it lends and borrows of memory, on all devices."""
    found = [(device, device.loans[name]) for device in node.devices.values() if name in device.loans]
    counted = [tenure.byte_ns(device, loan, now=now) for device, loan in found]
    return {
        "lent_bytes": sum(loan.lent_bytes for _, loan in found),
        "borrowed_bytes": sum(loan.borrowed_bytes for _, loan in found),
        "lent_byte_ns": sum(lent for lent, _ in counted),
        "borrowed_byte_ns": sum(borrowed for _, borrowed in counted),
    }


def picture_tenants(node: Node, *, now: Nanos) -> tuple[TenantPicture, ...]:
    """All of whom something is said, and all others that have jobs here."""
    lent, borrowed = parts.sums(node, now=now)
    here = [job for job in node.jobs.values() if job.state not in ENDED]
    names = sorted({*node.terms, *lent, *(job.spec.tenant for job in here)})
    return tuple(
        TenantPicture(
            **_memory(node, name, now=now),
            id=name,
            terms=node.terms_of(name),
            jobs=len([job for job in here if job.spec.tenant == name and job.state in RESIDENT]),
            promised_bytes=node.tenant_bytes(name),
            lent_ns=lent.get(name, 0) // SHARE_ONE,
            borrowed_ns=borrowed.get(name, 0) // SHARE_ONE,
        )
        for name in names
    )
