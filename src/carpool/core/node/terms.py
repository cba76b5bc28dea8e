"""Whether what is said of a tenant makes sense, beside what is said of the others."""

from __future__ import annotations

from collections.abc import Mapping

from carpool.core.kernel.ids import SHARE_ONE, TenantId
from carpool.core.node.settings import TenantTerms
from carpool.core.node.words import tenancy as words
from carpool.core.policies.orders import ORDERS

EVERYBODY = TenantId("")  # stands for all of whom nothing is said


def fault_of(known: Mapping[TenantId, TenantTerms], tenant: TenantId, terms: TenantTerms) -> str:
    """What is wrong with these terms beside those of the others; empty if nothing is (N12)."""
    counts = {"weight": (terms.weight_milli, 1), "number of jobs": (terms.jobs_max, 0)}
    counts["ceiling of memory"] = (terms.memory_bytes_max, 1)
    counts["ceiling of compute"] = (terms.compute_milli_max, 1)
    counts["guaranteed part"] = (terms.guaranteed_milli, 0)
    for what, (count, least) in counts.items():
        if count is not None and count < least:
            return words.too_small(tenant, what, least)
    if terms.compute_milli_max > SHARE_ONE or terms.guaranteed_milli > terms.compute_milli_max:
        return words.guaranteed_beyond(tenant, terms)
    if terms.priorities is not None and terms.priorities[0] > terms.priorities[1]:
        return words.no_priorities(tenant, *terms.priorities)
    if terms.order and terms.order not in ORDERS:
        return words.unknown_order(tenant, terms.order, list(ORDERS))
    if tenant == EVERYBODY:
        return words.NO_GUARANTEE_FOR_ALL if terms.guaranteed_milli else ""
    others = sum(each.guaranteed_milli for name, each in known.items() if name != tenant)
    if others + terms.guaranteed_milli > SHARE_ONE:
        return words.guaranteed_too_much(tenant, terms.guaranteed_milli, SHARE_ONE - others)
    return ""
