"""What each tenant is to have on this node and what it may have: taken in, checked, changed while jobs run.

Rules
  N10  What is said of a tenant counts from the next decision on, in both directions. Nobody is ended for it: who is
       above a new ceiling gets nothing new.
  N11  A job with a higher priority than its tenant may use is refused. One with a lower priority than the lowest gets
       the lowest. Where that changes, so do the priorities of the jobs that are here.
  N12  The guarantees of all tenants are at most the whole of each device. Those of whom nothing is said are
       guaranteed nothing.
  N13  A tenant's own jobs go in its own order, if it has one, under a policy that counts tenants first.

This module alone changes `Node.terms` and `Node.default_terms`. What is deliberately not here: how ceilings of memory
and of jobs are kept (memory/ceilings.py), parts of the time (turns/parts.py), memory that is lent (moves/lending.py).
"""

from __future__ import annotations

from carpool.core.node import accounts
from carpool.core.node.events import TenantSet
from carpool.core.node.memory import ledger, resize
from carpool.core.node.model import ENDED, Job, JobSpec
from carpool.core.node.node import Node
from carpool.core.node.settings import Settings, TenantTerms
from carpool.core.node.terms import EVERYBODY, fault_of
from carpool.core.node.words import tenancy as words
from carpool.errors import InternalError


def configure(node: Node, settings: Settings) -> None:
    """The node's first terms; a driver has looked for faults before."""
    for tenant, terms in {**settings.tenants, EVERYBODY: settings.tenant_default}.items():
        fault = fault_of(settings.tenants, tenant, terms)
        if fault:
            raise InternalError(fault)
    node.terms, node.default_terms = dict(settings.tenants), settings.tenant_default


def refusal_of(node: Node, event: TenantSet) -> str:
    """Why these terms would be rejected; empty if they would not."""
    if event.terms is None:
        return ""
    unknown = [device for device in event.terms.devices or () if device not in node.devices]
    if unknown:
        return words.unknown_device(event.tenant, unknown[0], list(node.devices))
    return fault_of(node.terms, event.tenant, event.terms)


def take(node: Node, event: TenantSet) -> None:
    """Take in terms that are not refused (N10); what follows from them is settled and dispatched afterwards."""
    if event.tenant == EVERYBODY:
        node.default_terms = event.terms or TenantTerms()
    elif event.terms is None:
        node.terms.pop(event.tenant, None)
    else:
        node.terms[event.tenant] = event.terms
    accounts.weigh_anew(node)
    for job in node.jobs.values():
        if job.state not in ENDED:
            resize.set_priority(job, priority_of(node, job.spec))
    for device in node.devices.values():
        ledger.touch(device)


def priority_of(node: Node, spec: JobSpec) -> int:
    """The priority a job has by its tenant's terms (N11)."""
    allowed = node.terms_of(spec.tenant).priorities
    return spec.priority if allowed is None else min(max(spec.priority, allowed[0]), allowed[1])


def refusal(node: Node, job: Job) -> str | None:
    """Why a new job can never run by its tenant's terms, or None; one with too low a priority gets the lowest (N11)."""
    spec, terms = job.spec, node.terms_of(job.spec.tenant)
    if terms.priorities is not None and spec.priority > terms.priorities[1]:
        return words.priority_above(spec, *terms.priorities)
    if terms.devices is not None:
        if spec.device is not None and spec.device not in terms.devices:
            return words.not_that_device(spec, terms.devices)
        if not any(device in node.devices for device in terms.devices):
            return words.none_of_its_devices(spec, terms.devices)
    if terms.memory_bytes_max is not None and (spec.cap_bytes or 0) > terms.memory_bytes_max:
        return words.above_ceiling(spec, terms.memory_bytes_max)
    resize.set_priority(job, priority_of(node, spec))
    return None
