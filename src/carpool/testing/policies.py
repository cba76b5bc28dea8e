"""For authors of policies: `check_policy(MyPolicy())` says what is wrong with it, or nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

from carpool.core.kernel.ids import JobId, TenantId
from carpool.core.node import accounts
from carpool.core.policies.base import Policy
from carpool.core.policies.view import JobView

ROUNDS = 200
SECOND_NS = 1_000_000_000


def random_views(source: random.Random, count: int) -> list[JobView]:
    """Jobs as a policy may meet them; at most one holds the lane."""
    holder = source.randrange(-1, count)
    return [
        JobView(
            id=JobId(f"job-{index}"),
            name=f"job{index}",
            tenant=TenantId(f"tenant{source.randrange(3)}"),
            priority=source.randrange(-2, 3),
            arrived_ns=source.randrange(10) * SECOND_NS,
            is_holding=index == holder,
            held_ns=source.randrange(SECOND_NS) if index == holder else 0,
            waited_ns=0 if index == holder else source.randrange(100 * SECOND_NS),
            served_ns=source.randrange(10 * SECOND_NS),
            remaining_ns=source.randrange(10 * SECOND_NS),
            remaining_is_known=source.random() < 0.5,
            level=source.randrange(10 * SECOND_NS),
            tenant_level=source.randrange(10 * SECOND_NS),
            size_milli=1000,
        )
        for index in range(count)
    ]


def check_policy(policy: Policy) -> list[str]:
    """Complaints about a policy; an empty list if it keeps the contract of policies/base.py."""
    complaints = []
    if not policy.name or policy.quantum_ns < 0 or policy.lanes_max < 1:
        complaints.append("name, quantum_ns >= 0 and lanes_max >= 1 are needed")
    if accounts.first(policy, [], now=0) is not None:
        complaints.append("it picks a job when nobody wants the lane")
    source = random.Random(0)
    for _ in range(ROUNDS):
        views = random_views(source, source.randrange(1, 8))
        complaints += _complain(policy, views, source)
        if complaints:
            break
    return complaints


def _complain(policy: Policy, views: Sequence[JobView], source: random.Random) -> list[str]:
    now = 200 * SECOND_NS
    picked = accounts.first(policy, views, now=now)
    if picked is None:
        return ["it picks nobody although somebody wants the lane"]
    by_id = {view.id: view for view in views}
    if picked not in by_id:
        return [f"it picks {picked}, which does not want the lane"]
    shuffled = source.sample(list(views), len(views))
    if accounts.first(policy, shuffled, now=now) != picked:
        return ["its choice depends on the order of the list: break ties by arrived_ns and id"]
    for view in views:
        if not policy.why(by_id[picked], view).strip():
            return ["why() gives no reason"]
    return []
