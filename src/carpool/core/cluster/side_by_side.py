"""Side by side: a job that would wait rides on the cards of one that runs, where measurements say that it helps.

A group is a host and its guests: jobs of one shape on the same cards. How fast each of some programs goes beside the
others is measured by the driver once and remembered. A guest joins the group to whose summed speed it adds most, if
it adds at least GAIN_MILLI, and moves on when it would add more elsewhere; a group nobody has measured is tried once.
What turns out to add less is undone.

A job looks for a group before it takes the cards of others: joining costs nobody their cards. A guest leaves its host
for cards of its own only when some are free.
"""

from __future__ import annotations

from heapq import merge

from carpool.core.cluster.cluster import Cluster
from carpool.core.cluster.model import ClusterJob, State

GAIN_MILLI = 50  # of one job's speed alone: what a guest must add to its group, or more elsewhere before it moves
TRIED_MILLI = 2000  # what an unmeasured group is hoped to add: measure it before trusting a worse one
MOVES_MAX = 20  # of guests between groups, in one decision

Programs = tuple[str, ...]


def fill_groups(cluster: Cluster) -> None:
    """Let waiting jobs join groups, in their order."""
    for shape, hosts in cluster.hosts.items():
        rows = [pool.waiting.rows[shape] for pool in cluster.pools.values() if shape in pool.waiting.rows]
        groups = _groups_with_room(cluster, hosts) if rows else {}
        hopeless: set[str] = set()
        for _, _, job in list(merge(*rows)) if groups else ():
            if job.program in hopeless:
                continue
            host = _best_of(cluster, job, groups)
            if host is None:
                hopeless.add(job.program)
                continue
            cluster.join(job, host)
            groups = _groups_with_room(cluster, hosts)


def find_host(cluster: Cluster, job: ClusterJob) -> ClusterJob | None:
    """The group to which the job adds most, if it adds enough."""
    return _best_of(cluster, job, _groups_with_room(cluster, cluster.hosts.get(job.shape, {})))


def spread_out(cluster: Cluster) -> None:
    """Give guests free cards of their own, in their order."""
    guests = [guest for hosts in cluster.hosts.values() for host in hosts for guest in host.guests]
    for guest in sorted(guests, key=lambda each: each.key):
        pool = cluster.pool_of(guest)
        fits = pool.owned.size_milli + guest.size_milli <= pool.share_milli
        room = cluster.occupancy.find(guest) if fits or guest.turn_ns <= cluster.settings.deadline_ns else None
        if room is not None:
            cluster.run(guest, room, is_owned=fits)


def regroup(cluster: Cluster) -> None:
    """Move guests to groups to which they add more, where groups have changed."""
    for hosts in cluster.hosts.values():
        if any(host in hosts for host in cluster.regrouped):
            for _ in range(MOVES_MAX):
                move = _best_move(cluster, hosts)
                if move is None:
                    break
                guest, host = move
                cluster.leave_host(guest, reason=f"it adds more beside {host.id}")
                cluster.join(guest, host)


def set_speeds(cluster: Cluster) -> None:
    """Count every changed group at its new speeds."""
    for host in cluster.regrouped:
        if host.state is State.RUNNING:
            _set_speeds(cluster, host)
    cluster.regrouped.clear()


def undo_losses(cluster: Cluster) -> None:
    """Take the last guest off every group that is no faster with it."""
    for hosts in cluster.hosts.values():
        for host in hosts:
            if host.guests:
                gain = cluster.rates.gain([host, *host.guests[:-1]], host.guests[-1])
                if gain is not None and gain < GAIN_MILLI:
                    cluster.leave_host(host.guests[-1], reason=f"the group is slower with it: {gain / 10:+.0f} %")
                cluster.regrouped[host] = None


def _set_speeds(cluster: Cluster, host: ClusterJob) -> None:
    """Count the members of a group at the speeds that were measured; until then, as equal parts of the cards."""
    group = [host, *host.guests]
    speeds = cluster.rates.find(group)
    for job in group:
        cluster.set_rate(job, speeds[job.program] if speeds else 1000 // len(group))


def _best_move(cluster: Cluster, hosts: dict[ClusterJob, None]) -> tuple[ClusterJob, ClusterJob] | None:
    """The guest and the host that together raise the summed speed of all groups most; None if not by enough."""
    rates = cluster.rates
    groups = _groups_with_room(cluster, hosts)
    best: tuple[int, ClusterJob, ClusterJob] | None = None
    seen: set[tuple[Programs, str]] = set()
    for host in hosts if groups else ():
        members = [host, *host.guests]
        programs = tuple(sorted(job.program for job in members))
        for guest in host.guests if rates.find(members) else ():
            if (programs, guest.program) in seen:
                continue
            seen.add((programs, guest.program))
            loss = rates.gain([job for job in members if job is not guest], guest) or 0
            for other in groups.values():
                if other is host:
                    continue
                more = _expected_gain(cluster, other, guest) - loss
                if more >= GAIN_MILLI and (best is None or more > best[0]):
                    best = (more, guest, other)
    return best[1:] if best is not None else None


def _expected_gain(cluster: Cluster, host: ClusterJob, guest: ClusterJob) -> int:
    """What the guest would add to the group of the host: as measured; hoped for once; then nothing until measured."""
    group = [host, *host.guests]
    gain = cluster.rates.gain(group, guest)
    if gain is not None:
        return gain
    return 0 if cluster.rates.was_tried([*group, guest]) else TRIED_MILLI


def _groups_with_room(cluster: Cluster, hosts: dict[ClusterJob, None]) -> dict[Programs, ClusterJob]:
    """The oldest host of each mixture of programs that may have one more guest."""
    groups: dict[Programs, ClusterJob] = {}
    for host in hosts:
        if len(host.guests) + 1 < cluster.order.seats:
            programs = tuple(sorted(job.program for job in (host, *host.guests)))
            if programs not in groups or host.number < groups[programs].number:
                groups[programs] = host
    return groups


def _best_of(cluster: Cluster, job: ClusterJob, groups: dict[Programs, ClusterJob]) -> ClusterJob | None:
    best: tuple[int, int] | None = None
    chosen = None
    for host in groups.values():
        mark = (-_expected_gain(cluster, host, job), host.number)
        if mark[0] <= -GAIN_MILLI and (best is None or mark < best):
            best, chosen = mark, host
    return chosen
