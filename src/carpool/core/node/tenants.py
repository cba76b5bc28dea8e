"""What each tenant is to have on this node and what it may have: taken in, checked, changed while jobs run.

Rules
  N10  What is said of a tenant counts from the next decision on, in both directions. Nobody is ended for it: who is
       above a new ceiling gets nothing new.
  N11  A job with a higher priority than its tenant may use is refused. One with a lower priority than the lowest gets
       the lowest. Where that changes, so do the priorities of the jobs that are here.
  N12  The guarantees of all tenants are at most the whole of each device. Those of whom nothing is said are
       guaranteed nothing.
  N13  A tenant's own jobs go in its own order, if it has one, under a policy that counts tenants first.

This module alone changes `Node.terms`, `Node.orders` and those of all others. What is deliberately not here: how
ceilings of memory and of jobs are kept (memory/admission.py).
"""

from __future__ import annotations

from carpool.core.kernel.ids import SHARE_ONE
from carpool.core.node import accounts
from carpool.core.node.events import TenantSet
from carpool.core.node.memory import ledger
from carpool.core.node.model import JobSpec
from carpool.core.node.node import Node
from carpool.core.node.settings import Settings, TenantTerms
from carpool.core.node.terms import EVERYBODY, fault_of
from carpool.core.node.words import tenancy as words
from carpool.core.policies.orders import ORDERS
from carpool.errors import InternalError


def configure(node: Node, settings: Settings) -> None:
    """The node's first terms; a driver has looked for faults before."""
    for tenant, terms in {**settings.tenants, EVERYBODY: settings.tenant_default}.items():
        fault = fault_of(settings.tenants, tenant, terms)
        if fault:
            raise InternalError(fault)
    node.terms, node.default_terms = dict(settings.tenants), settings.tenant_default
    _draw_from(node)


def _draw_from(node: Node) -> None:
    """What decisions ask of the terms all the time."""
    node.orders = {tenant: ORDERS[terms.order] for tenant, terms in node.terms.items() if terms.order}
    node.default_order = ORDERS.get(node.default_terms.order)
    all_terms = [*node.terms.values(), node.default_terms]
    node.has_guarantees = any(each.guaranteed_milli for each in all_terms)
    node.has_parts = any(each.guaranteed_milli or each.compute_milli_max < SHARE_ONE for each in all_terms)


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
    _draw_from(node)
    accounts.weigh_anew(node)
    for device in node.devices.values():
        ledger.touch(device)


def refusal(node: Node, spec: JobSpec) -> str | None:
    """Why a new job can never run by its tenant's terms, or None (N11)."""
    terms = node.terms_of(spec.tenant)
    if terms.priorities is not None and spec.priority > terms.priorities[1]:
        return words.priority_above(spec, *terms.priorities)
    if terms.devices is not None:
        if spec.device is not None and spec.device not in terms.devices:
            return words.not_that_device(spec, terms.devices)
        if not any(device in node.devices for device in terms.devices):
            return words.none_of_its_devices(spec, terms.devices)
    if terms.memory_bytes_max is not None and (spec.cap_bytes or 0) > terms.memory_bytes_max:
        return words.above_ceiling(spec, terms.memory_bytes_max)
    return None
