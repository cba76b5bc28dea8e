"""Who may be resident: what a job needs on a device, what it is promised there, which queued job starts.

Rules
  M1  A job starts only with a promise that keeps L1 true.
  M2  A declared cap, or a share of the device for a job nobody knows, is promised as one sum until the first turns
      are measured. Then the sum is split into persistent bytes and a lane, and the rest is free again.
  M3  A queued job that does not fit may be passed by others for `pass_over_ns`; then nobody passes it.
  M4  A job that can never fit on any device it may use is refused at once.
  M5  A job that outgrew its promise keeps it, gets no turn, and is promised more as soon as L1 allows.
  M6  At most `starts_max` programs are being started at once, and `starts_beside_max` while a job has a turn: from
      the order to start one until it runs, or for `start_patience_ns`. The rest of the queue waits, whatever room
      there is. Where starting a program is work on the device, it runs when that work is done: it asks for its
      first turn, or rests.
  M7  A job that the machine could not start for want of descriptors, processes or memory goes back to its place in
      the queue. Nobody is started for `start_retry_ns` then.
  N14  A job starts only on a device that its tenant may use, and while fewer of the tenant's jobs than it may have
      are started. Those that are there already go on.
  N15  Σ promised to a tenant's jobs + what the widest of them needs of each lane ≤ its ceiling of memory. A promise
      that would break this is not made; the job waits, and nobody is parked for it.

N14 and N15 speak of new promises: a ceiling that was lowered is for a while below what is promised (tenants.py).
What is deliberately not here: in which order the queue is looked at (queue.py), and for whom others make room.
"""

from __future__ import annotations

from dataclasses import dataclass

from carpool.core.kernel.ids import Nanos, TenantId
from carpool.core.node import accounts
from carpool.core.node.effects import Effect, SetCap
from carpool.core.node.memory import ledger, tenure
from carpool.core.node.model import BLOCKED, RESIDENT, WAITING, Device, Job, JobState, Lane, Needs, Why
from carpool.core.node.node import Node, covers, is_unknown
from carpool.core.node.words import tenancy as words
from carpool.errors import InternalError

FIRST_TURN_FACTOR = 4  # weights, their gradients and two states of an optimizer: only the first are there before it
SQUEEZED = frozenset({Why.SHRINKS, Why.TOO_LARGE})  # its cap was made smaller than what it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A device that can take the job now, the place in it, and the sum to promise."""

    device: Device
    fit: ledger.Fit
    promise_bytes: int


def with_margin(measured: Needs, known: Needs | None, percent: int) -> Needs:
    """What was measured plus a margin; what is known stands while the measurement is within its margin."""

    def more(count: int, before: int) -> int:
        wanted = count + count * percent // 100
        return before if count <= before < wanted else wanted

    return Needs(
        persistent_bytes=more(measured.persistent_bytes, known.persistent_bytes if known else 0),
        ephemeral_bytes=more(measured.ephemeral_bytes, known.ephemeral_bytes if known else 0),
        overhead_bytes=measured.overhead_bytes,
    )


def allowed_devices(node: Node, job: Job) -> list[Device]:
    if job.spec.device is not None:
        named = node.devices.get(job.spec.device)
        return [named] if named is not None and node.may_use(job.spec, named.id) else []
    return [device for device in node.devices.values() if node.may_use(job.spec, device.id)]


def total_need_bytes(job: Job) -> int | None:
    """The most the job is known to hold at once; None if nobody knows."""
    known = (
        job.memory.needs if job.memory.needs is not None else job.history.needs if job.history is not None else None
    )
    if job.spec.cap_bytes is not None:
        return job.spec.cap_bytes
    return known.total_bytes if known is not None else None


def find_offer(node: Node, job: Job, devices: list[Device]) -> Offer | None:
    """The best of these devices for a queued job: fewest residents, then most free bytes, then by name."""
    offers = [offer for device in devices if (offer := _offer_on(node, job, device))]
    if not offers:
        return None
    return min(
        offers,
        key=lambda offer: (len(offer.device.promised), -ledger.free_bytes(offer.device), offer.device.id),
    )


def _offer_on(node: Node, job: Job, device: Device) -> Offer | None:
    wanted = starting_needs(node, job, device)
    fit = ledger.find_fit(
        device,
        resident_bytes=wanted.resident_bytes,
        ephemeral_bytes=wanted.ephemeral_bytes,
        lanes_max=node.policy.lanes_max,
    )
    if fit is None or (node.has_guarantees and not tenure.lets(node, device, job, wanted)):
        return None
    is_known = total_need_bytes(job) is not None
    promise_bytes = wanted.resident_bytes if is_known else open_promise_bytes(node, device)
    room = node.tenant_room(job) if node.has_terms else None
    promise_bytes = promise_bytes if room is None else min(promise_bytes, room)
    return Offer(device=device, fit=fit, promise_bytes=promise_bytes)


def starting_needs(node: Node, job: Job, device: Device) -> Needs:
    """The least with which a queued job is started: its cap, what it needed last time, or the floor (M2)."""
    if job.spec.cap_bytes is not None:
        return Needs(persistent_bytes=job.spec.cap_bytes, ephemeral_bytes=0)
    if job.history is not None and job.history.needs is not None:
        return job.history.needs
    return Needs(persistent_bytes=start_floor_bytes(node, device), ephemeral_bytes=0)


def merging_lets_in(node: Node, job: Job, device: Device) -> bool:
    """Whether the job, queued or outgrown, would have room if all lanes of the device were one."""
    wanted = job.memory.needs if job.device is not None else starting_needs(node, job, device)
    if wanted is None:
        return False
    return ledger.merging_would_fit(
        device,
        resident_bytes=wanted.resident_bytes - job.memory.promised_bytes,
        ephemeral_bytes=wanted.ephemeral_bytes,
    )


def open_promise_bytes(node: Node, device: Device) -> int:
    """What a job nobody knows is promised until it is measured: a share of the device, or all that is left.

    Before its first turn a job holds only what stays between turns; what comes and goes inside a turn appears when
    it is alone on the device. So several may start side by side (docs/design/0003-unknown-jobs.md).
    """
    share = max(start_floor_bytes(node, device), device.capacity_bytes // node.settings.open_share_divisor)
    return min(ledger.free_bytes(device), share)


def start_floor_bytes(node: Node, device: Device) -> int:
    """The least that must be unpromised before a job of unknown size is started."""
    return device.capacity_bytes // node.settings.start_floor_divisor


def accept(job: Job, offer: Offer) -> None:
    ledger.place(offer.device, job, offer.fit)
    ledger.promise(offer.device, job, offer.promise_bytes)
    if job.spec.cap_bytes is None and job.history is not None:
        ledger.recall_needs(job, job.history.needs)


def enter_lane(node: Node, device: Device, job: Job) -> Lane:
    """Put a resident job into a lane without asking for room: as large as fits, covered later (M5)."""
    fit = ledger.find_fit(device, resident_bytes=0, ephemeral_bytes=0, lanes_max=node.policy.lanes_max)
    if fit is None:
        raise InternalError(f"no lane of {device.id} takes a job without needs")
    return ledger.place(device, job, fit)


def cover(node: Node, job: Job) -> bool:
    """Make the promises hold what the job needs, if L1 allows (M2, M5). True if they do now."""
    device = node.device_of(job)
    if job.state is JobState.UNMANAGED:
        return _cover_unmanaged(node, device, job)
    needs = job.memory.needs
    lane = node.lane_of(job)
    if job.state is BLOCKED:
        return True  # waiting.py sees to it
    if needs is None:
        return _cover_sum(device, job)
    if lane is None:
        return True
    if _resize_in_place(node, device, job, needs, lane):
        return True
    if lane.holder == job.id:
        return covers(device, job)
    old_promise, old_lane = job.memory.promised_bytes, lane.id
    ledger.release(device, job)
    fit = ledger.find_fit(
        device,
        resident_bytes=needs.resident_bytes,
        ephemeral_bytes=needs.ephemeral_bytes,
        lanes_max=len(device.lanes),
    )
    if fit is None or fit.lane == old_lane:
        ledger.promise(device, job, old_promise)
        return covers(device, job)
    ledger.remove(device, job)
    ledger.place(device, job, fit)
    ledger.promise(device, job, needs.resident_bytes)
    return True


def _cover_sum(device: Device, job: Job) -> bool:
    """Promise a job that is not measured yet its whole cap, which may have grown (M2), as far as there is room."""
    wanted = job.spec.cap_bytes if job.spec.cap_bytes is not None and job.lane is not None else 0
    if job.memory.promised_bytes < wanted:
        ledger.promise(device, job, min(wanted, job.memory.promised_bytes + ledger.free_bytes(device)))
    return job.memory.promised_bytes >= wanted


def _cover_unmanaged(node: Node, device: Device, job: Job) -> bool:
    """Promise what it may hold as far as there is room; never less than before."""
    wanted = unmanaged_bytes(node, job)
    if job.memory.promised_bytes < wanted:
        ledger.promise(device, job, min(wanted, job.memory.promised_bytes + ledger.free_bytes(device)))
    return job.memory.promised_bytes >= wanted


def _resize_in_place(node: Node, device: Device, job: Job, needs: Needs, lane: Lane) -> bool:
    """Promise what was measured within the job's own lane, if L1 allows."""
    lane_bytes = max(lane.bytes, needs.ephemeral_bytes)
    resident_bytes = max(needs.resident_bytes, job.memory.promised_bytes if job.memory.is_given else 0)
    growth = resident_bytes - job.memory.promised_bytes + lane_bytes - lane.bytes
    if growth > ledger.free_bytes(device):
        return False
    if growth > 0 and not node.tenant_lets(job, device, resident_bytes, needs.ephemeral_bytes):
        return False
    ledger.resize_lane(device, lane, lane_bytes)
    ledger.promise(device, job, resident_bytes)
    return True


def cut_open_promise(node: Node, device: Device, *, now: Nanos) -> bool:
    """Halve the open promise of a job that has been starting or idle for long while others need room (M2)."""
    settings = node.settings
    for job in node.jobs_on(device):
        if not is_open_and_quiet(job) or now - job.state_since_ns < settings.start_patience_ns:
            continue
        smaller = smaller_promise_bytes(node, device, job)
        if smaller < job.memory.promised_bytes:
            ledger.promise(device, job, smaller)
            return True
    return False


def smaller_promise_bytes(node: Node, device: Device, job: Job) -> int:
    """What is left of an open promise when it is halved once more; it is never less than twice what the job holds."""
    return max(2 * job.memory.live_bytes, start_floor_bytes(node, device) // 2, job.memory.promised_bytes // 2)


def is_open_and_quiet(job: Job) -> bool:
    """Whether the job holds an open promise and wants no turn in which it could be measured."""
    return is_unknown(job) and job.state in (JobState.STARTING, JobState.IDLE)


def unmanaged_bytes(node: Node, job: Job) -> int:
    """What to promise a job that takes no turns: all it was seen to need, since it may hold it at any time."""
    if job.memory.needs is not None:
        return job.memory.needs.total_bytes
    if job.spec.cap_bytes is not None:
        return job.spec.cap_bytes
    return max(2 * job.memory.live_bytes, start_floor_bytes(node, node.device_of(job)))


def room_bytes(node: Node, job: Job) -> int:
    """What the job may hold at most: its declared cap, or all that others do not use of the device.

    A neighbour that is still being measured counts with what it holds, not with its open promise: nobody is
    refused a byte because somebody else might want it.
    """
    if job.state is BLOCKED:
        return min(
            job.memory.live_bytes, job.memory.cap_sent_bytes or job.memory.live_bytes
        )  # it gets bytes with its turn (W2)
    if job.spec.cap_bytes is not None:
        if job.departures.keys().isdisjoint(SQUEEZED):
            return job.spec.cap_bytes
        known = job.memory.needs.total_bytes if job.memory.needs is not None else 0
        return max(job.spec.cap_bytes, known, job.memory.cap_sent_bytes or 0)  # Z2
    return room_on(node, node.device_of(job), job)


def room_on(node: Node, device: Device, job: Job) -> int:
    """What others do not use of a device that may only be imagined (leavers.py)."""
    others = 0
    for other_id, promised_bytes in device.promised.items():
        other = node.jobs[other_id]
        if other_id != job.id:
            others += min(promised_bytes, other.memory.live_bytes) if is_unknown(other) else promised_bytes
    lanes_bytes = sum(lane.bytes for lane in device.lanes.values() if lane.id != job.lane)
    room = device.capacity_bytes - others - sum(device.kept.values()) - lanes_bytes
    least = node.tenant_room(job) if node.has_terms else None
    return max(job.memory.promised_bytes, room if least is None else min(room, least))


def tell_cap(node: Node, job: Job) -> list[Effect]:
    """Tell a job how much it may hold, if that changed."""
    cap = room_bytes(node, job)
    if cap == job.memory.cap_sent_bytes:
        return []
    ledger.tell_cap(job, cap)
    return [SetCap(job=job.id, cap_bytes=cap)]


def lend(node: Node, device: Device, job: Job) -> list[Effect]:
    """A job whose allocation waits has its turn again: from now on it may have the memory it waited for (W2)."""
    if not node.may_run(job):
        cover(node, job)  # its lane may have been cut while it had its bytes for itself (W1)
    cap = room_bytes(node, job)
    ledger.lend(device, job)
    ledger.tell_cap(job, cap)
    return [SetCap(job=job.id, cap_bytes=cap)]


# --- ceilings of tenants ------------------------------------------------------------------------------------


def review_ceilings(node: Node) -> None:
    """Note who waits in the queue for its tenant's ceilings, and why (N14, N15)."""
    if not node.has_terms:
        if node.barred:
            node.barred = {}
        return
    started: dict[TenantId, int] = {}
    for job in node.jobs.values():
        if job.state in RESIDENT:
            started[job.spec.tenant] = started.get(job.spec.tenant, 0) + 1
    node.barred = {}
    for job_id in node.queue:
        why = _why_barred(node, node.jobs[job_id], started.get(node.jobs[job_id].spec.tenant, 0))
        if why:
            node.barred[job_id] = why


def _why_barred(node: Node, job: Job, started: int) -> str:
    tenant, terms = job.spec.tenant, node.terms_of(job.spec.tenant)
    if terms.jobs_max is not None and started >= terms.jobs_max:
        return words.jobs_wait(tenant, started, terms.jobs_max)
    held_back = next((each for each in node.jobs.values() if Why.ABOVE in each.departures), None)
    if held_back is not None and held_back.spec.tenant == tenant:
        return words.behind(tenant, terms.memory_bytes_max or 0, held_back.spec.name)
    if terms.devices is not None and not any(node.may_use(job.spec, device) for device in node.devices):
        return words.device_wait(tenant, terms.devices, job.spec.device)
    if terms.memory_bytes_max is None or any(_leaves_room(node, job, each) for each in node.devices.values()):
        return ""
    need = min(starting_needs(node, job, device).total_bytes for device in allowed_devices(node, job))
    return words.memory_wait(tenant, need, terms.memory_bytes_max, node.tenant_bytes(tenant))


def _leaves_room(node: Node, job: Job, device: Device) -> bool:
    least = starting_needs(node, job, device)
    is_allowed = node.may_use(job.spec, device.id)
    return is_allowed and node.tenant_lets(job, device, least.resident_bytes, least.ephemeral_bytes)


# --- what a job needs ---------------------------------------------------------------------------------------


def fits_cap(job: Job) -> bool:
    """Whether the job is known to need no more than its cap, or nobody knows what it needs."""
    if job.spec.cap_bytes is None or job.memory.needs is None:
        return True
    return needed_bytes(job) <= job.spec.cap_bytes


def needed_bytes(job: Job) -> int:
    """What was measured, without the margin that is promised beyond it."""
    memory = job.memory
    if memory.needs is None:
        return memory.live_bytes
    return memory.measured_bytes if memory.measured_bytes is not None else memory.needs.total_bytes


def bytes_to_move(job: Job) -> int:
    """What has to be reserved on the host before it is parked."""
    needs = job.memory.needs
    return max(job.memory.promised_bytes, needs.resident_bytes if needs is not None else 0)


def returning_needs(node: Node, job: Job, device: Device) -> Needs:
    """What a parked job must be promised before it comes back; one sum if it was never measured (L4)."""
    memory = job.memory
    if memory.needs is not None:
        return memory.needs
    # Room for its first turns, as far as there is any.
    slack = max(0, min(start_floor_bytes(node, device), ledger.free_bytes(device) - memory.parked_bytes))
    held = memory.parked_bytes + memory.stayed_bytes
    return Needs(persistent_bytes=job.spec.cap_bytes or held + slack, ephemeral_bytes=0)


def first_room_bytes(node: Node, device: Device, job: Job) -> int:
    """A guess at what a job that nobody measured will hold in its first turn, from what it holds before."""
    guess = FIRST_TURN_FACTOR * job.memory.live_bytes + start_floor_bytes(node, device)
    return min(device.capacity_bytes, guess)


def lacks_first_room(node: Node, job: Job) -> bool:
    """Whether it was never measured, is about to have its first turn, and will probably need more than it has."""
    if not is_before_first_turn(job):
        return False
    return room_bytes(node, job) < first_room_bytes(node, node.device_of(job), job)


def is_before_first_turn(job: Job) -> bool:
    return is_unknown(job) and job.state is WAITING and not job.service.served_ns


# --- finding room -------------------------------------------------------------------------------------------


def fit_of(node: Node, device: Device, wanted: Needs, *, had_bytes: int = 0) -> ledger.Fit | None:
    """Where a job that has so much of what it wants there would go; None without room."""
    return ledger.find_fit(
        device,
        resident_bytes=max(0, wanted.resident_bytes - had_bytes),
        ephemeral_bytes=wanted.ephemeral_bytes,
        lanes_max=node.policy.lanes_max,
    )


def may_have(node: Node, device: Device, job: Job, wanted: Needs) -> bool:
    """Whether what is said of tenants lets a parked job have its room again (N15, N20, N21)."""
    if not node.tenant_lets(job, device, wanted.resident_bytes, wanted.ephemeral_bytes):
        return False
    return not node.has_guarantees or tenure.lets(node, device, job, wanted)


def squeeze_in(node: Node, device: Device, job: Job, wanted: Needs) -> None:
    """Promise as much as there is."""
    ledger.promise_up_to(device, job, wanted.resident_bytes)
    enter_lane(node, device, job)


def merge_free(node: Node, device: Device) -> bool:
    """Merge one free lane into its best partner, so that fewer jobs run side by side (A3); False if there is none."""
    is_merged = ledger.merge_free(device, node.jobs)
    if is_merged:
        accounts.reset_marks(node, device)
    return is_merged
