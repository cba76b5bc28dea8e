"""The sentences: why a job waits, was refused, or has the device. Every one has its numbers."""

from __future__ import annotations

from carpool.core.kernel.ids import DeviceId, Nanos, TenantId
from carpool.core.node.memory import ledger
from carpool.core.node.model import Device, HogStep, Job, JobState, LeaseState, Why, took_no_turns
from carpool.core.node.settings import Settings
from carpool.core.node.words.tenancy import no_share as no_share
from carpool.core.policies.view import JobView
from carpool.units import SECOND, format_bytes, format_ns, format_share

FRESH_NS = 5 * SECOND  # a program that started more recently has had no time to reach a boundary
HINT_NS = 30 * SECOND  # a program that is still starting after this is perhaps none that takes turns


def no_device(devices: list[DeviceId], job: Job) -> str:
    known = ", ".join(devices) or "none"
    if job.spec.device is None:
        return f"job {job.spec.name} needs a device and this node has none"
    return f"job {job.spec.name} asks for device {job.spec.device}, which is not here; devices: {known}"


def never_fits(job: Job, need: int, device: Device) -> str:
    whence = "asks for" if job.spec.cap_bytes is not None else "needed last time"
    advice = "lower --memory" if job.spec.cap_bytes is not None else "lower its batch size, give --memory"
    return (
        f"job {job.spec.name} can never fit: it {whence} {format_bytes(need)}, {device.id} has"
        f" {format_bytes(device.capacity_bytes)}; {advice} or use a larger device"
    )


def open_promise(job: Job, patience_ns: Nanos | None) -> str:
    """Until when a job nobody knows is promised so much; `patience_ns`: after so long without a turn it is cut."""
    doing = "starting" if job.state is JobState.STARTING else "being measured"
    less = f", half of that and less if they do not come within {format_ns(patience_ns)}" if patience_ns else ""
    promised = f"is promised {format_bytes(job.memory.promised_bytes)} until its first turns are over"
    return f"{job.spec.name} is {doing} and {promised}{less}"


def queue_wait(
    need: int | None, device: Device, floor: int, outlook: str, measured: Job | None, measured_words: str
) -> str:
    """Why a queued job does not start: which term of L1 is in the way."""
    free = ledger.free_bytes(device)
    terms = ledger.terms(device) + (f"; starts when {outlook}" if outlook else "")
    if measured is not None and (need is None or need <= free + measured.memory.promised_bytes):
        return f"waits for memory: {measured_words}; {ledger.terms(device)}"
    if need is None:
        return (
            f"waits for memory: a job of unknown size needs at least {format_bytes(floor)} to start and {terms};"
            " give --memory to start with less"
        )
    return f"waits for memory: it needs {format_bytes(need)} and {terms}"


def start_wait(settings: Settings, starts: int, most: int | None, trouble: str) -> str:
    """Why nobody of the queue is started now, whatever it needs; `most` may be started at once."""
    if trouble:
        return f"waits for its start: {trouble}; it is tried again every {format_ns(settings.start_retry_ns)}"
    many = "1 program is" if starts == 1 else f"{starts} programs are"
    beside = "" if most == settings.starts_max else " while another computes"
    return f"waits for its start: {many} being started, and at most {most} at once{beside}"


def passed_over(head: Job, patience_ns: Nanos) -> str:
    return (
        f"waits for memory behind {head.spec.name}, which has waited for it longer than {format_ns(patience_ns)}"
        " and is not passed any more"
    )


def compute_wait(job: Job, left_milli: int, device: Device) -> str:
    return (
        f"waits for compute: it asks for {format_share(job.spec.guaranteed_milli)} of a device, and"
        f" {format_share(left_milli)} of {device.id} is not promised to others; starts when one of them"
        f" ends, or with less: carpool resize {job.id} --compute SHARE"
    )


def over_limit(job: Job, device: Device) -> str:
    return f"{job.spec.name} has had its {format_share(job.share.limit_milli)} of {device.id}"


def limit_wait(view: JobView, job: Job, device: Device, left_ns: Nanos) -> str:
    return (
        f"waits {format_ns(view.waited_ns)}: it has had the {format_share(job.share.limit_milli)} of {device.id} that"
        f" it may have; its next turn is due in {format_ns(left_ns)}"
    )


def owed(job: Job, device: Device) -> str:
    return f"{job.spec.name} is owed its {format_share(job.share.guaranteed_milli)} of {device.id}"


def uncovered(job: Job, device: Device) -> str:
    needs = job.memory.needs
    total = needs.total_bytes if needs is not None else 0
    return (
        f"waits for memory: it has grown to {format_bytes(total)}, was promised"
        f" {format_bytes(job.memory.promised_bytes)}, and {format_bytes(max(0, ledger.free_bytes(device)))} is"
        f" unpromised on {device.id}"
    )


def turn_wait(view: JobView, holder: JobView, lane: str, why: str) -> str:
    """`why` is one of the five endings below."""
    return (
        f"waits {format_ns(view.waited_ns)} for its turn on {lane}: {holder.name} has had it for"
        f" {format_ns(holder.held_ns)}{why}"
    )


def rest_of_quantum(left_ns: Nanos, why: str) -> str:
    return f" and keeps it for another {format_ns(left_ns)} of its quantum" + (f" ({why})" if why else "")


def quantum(change_ns: Nanos, percent: int, kept_short: str) -> str:
    """Why a turn lasts as long as it does, of a job for which that was chosen."""
    cost = f"a change of turn costs it {format_ns(change_ns)}, "
    return cost + (kept_short or f"which is at most {percent} % of its turn")


def hurried(job: Job) -> str:
    return f"but {job.spec.name} waits " + ("to end" if job.service.served_ns else "for its first turn")


def latency(latency_ns: Nanos, waiters: int) -> str:
    many = f"the {waiters} jobs that wait are to have a turn each"
    return f"but {many if waiters > 1 else 'the job that waits is to have its turn'} within {format_ns(latency_ns)}"


def preferred(preference: str) -> str:
    return f" ({preference})"


def soon_recalled(preference: str) -> str:
    return f" ({preference}); the turn is about to be recalled"


def already_recalled(preference: str) -> str:
    """For the job that will have it; without a preference where the turn was recalled for another reason."""
    return (f" ({preference})" if preference else "") + "; the turn is already recalled"


def recalled_for(successor: Job, preference: str) -> str:
    return f"; the turn is already recalled for {successor.spec.name}" + (f" ({preference})" if preference else "")


def profiling_wait(view: JobView, measured: Job, lane: str) -> str:
    return (
        f"waits {format_ns(view.waited_ns)} for its turn on {lane}: {measured.spec.name} runs alone for its"
        " first turns, so that its memory can be measured"
    )


def clearing_wait(view: JobView, holders: list[Job], newcomer: Job | None, device: Device) -> str:
    """Every lane of the device is being cleared for a newcomer: this job or another."""
    names = ", ".join(job.spec.name for job in holders) or "nobody"
    whom = "it" if newcomer is None or newcomer.id == view.id else newcomer.spec.name
    return f"waits {format_ns(view.waited_ns)}: {whom} is to be measured alone on {device.id}, after {names}"


def too_large(job: Job, needed: int) -> str:
    return f"it was resized to {format_bytes(job.spec.cap_bytes or 0)} and needs {format_bytes(needed)}"


def resized_beyond(job: Job, cap: int, device: Device) -> str:
    return (
        f"job {job.spec.name} cannot have {format_bytes(cap)}: {device.id} has {format_bytes(device.capacity_bytes)};"
        " ask for less"
    )


def resized_outside(job: Job, cap: int) -> str:
    return (
        f"job {job.spec.name} runs outside carpool's turns and holds {format_bytes(job.memory.live_bytes)}: it cannot"
        f" be made to do with {format_bytes(cap)}; end it with --or-kill"
    )


def resized_unmeasured(job: Job, cap: int, told: int) -> str:
    return (
        f"nobody knows yet what job {job.spec.name} needs: it may hold {format_bytes(told)} now and is not cut to"
        f" {format_bytes(cap)} before its first turns were measured; try again then"
    )


NEVER_PARKED = "it was started with --no-park and keeps its memory on the device"


def cannot_leave(job: Job) -> str:
    why = job.move.trouble if job.spec.may_park else NEVER_PARKED
    return f"{job.spec.name} ends, which cannot be parked: {why}"


def never_moves(job: Job) -> str:
    return f"job {job.id} cannot move to another device: {NEVER_PARKED}"


def not_before(policy: str, holder: Job) -> str:
    return f"policy {policy} puts it before {holder.spec.name}"


def would_strand(job: Job, device: Device) -> str:
    return (
        f"others end: {job.spec.name} could be parked for it, but not come back beside what parked jobs leave on"
        f" {device.id}"
    )


def host_is_full(wanted: int, used: int, limit: int) -> str:
    return f"others end, or the host has room: in turns with them {host_full(wanted, used, limit)}"


def being_parked(names: list[str]) -> str:
    return f"{' and '.join(names)} left the device, being parked for it at the next boundary"


def after_claimant(claimant: Job) -> str:
    return f"its turn has come: room is being made for {claimant.spec.name}"


def after_stay(leaver: Job, stay_ns: Nanos, percent: int) -> str:
    return (
        f"{leaver.spec.name} has had its {format_ns(stay_ns)} on the device and is parked for it: moving takes at"
        f" most {percent} % of the time"
    )


def no_target(devices: list[DeviceId], job: Job, to: str) -> str:
    return f"job {job.id} cannot move to {to}: there is no such device; there are {', '.join(devices)}"


def on_its_way(job: Job) -> str:
    return f"job {job.id} is on its way to {_target(job) or job.device}; wait until it is there"


def _target(job: Job) -> DeviceId | None:
    """Where it is asked to go on."""
    migrates = job.departures.get(Why.MIGRATES)
    return migrates.to if migrates is not None else None


def already_there(job: Job, target: Device) -> str:
    return f"job {job.id} is on {target.id} already"


def unmeasured(job: Job) -> str:
    return (
        f"job {job.id} cannot be moved yet: nobody knows what it needs until its first turns are measured"
        f" (it made {job.service.steps} steps); try again then, or start it with --memory"
    )


def no_room(job: Job, need: int, target: Device) -> str:
    return (
        f"job {job.id} does not fit on {target.id}: it needs {format_bytes(need)} and {ledger.terms(target)}; try"
        " again when others have left, or suspend one of them"
    )


def lent(lender: TenantId | None) -> str:
    return f"lent to it by tenant {lender}, which wants it back"


def above(job: Job) -> str:
    return f"waits for tenant {job.spec.tenant}'s ceiling of memory, which was lowered"


def claimed(job: Job, claimant: Job, target: Device) -> str:
    return (
        f"job {job.id} cannot move to {target.id} now: others are being parked there so that {claimant.spec.name} has"
        " room; try again when it has"
    )


def host_full(wanted: int, used: int, limit: int) -> str:
    return (
        f"{format_bytes(wanted)} would have to move to the host, where parked jobs hold {format_bytes(used)} of"
        f" {format_bytes(limit)}; restart the daemon with a larger --host-memory"
    )


def kept_out(job: Job, device: Device, need: int, span: str, outlook: str) -> str:
    """Why a parked job that may come back has not."""
    trouble = f"; the last try failed: {job.move.trouble}" if job.move.trouble else ""
    return (
        f"waits parked for {span}: it needs {format_bytes(need)} to come back and {ledger.terms(device)}; comes back"
        f" when {outlook}{trouble}"
    )


def lapse(job: Job, silent_ns: Nanos) -> str:
    return f"{job.spec.name} neither made a step nor computed for {format_ns(silent_ns)} while others waited"


_HOG_STEPS = {
    None: "",
    HogStep.WARNED: "",
    HogStep.LAST: "; others will go before it for as long as it kept them waiting",
    HogStep.SENT_AWAY: "; it leaves the device at its next boundary while others want it",
    HogStep.ENDED: "; it is ended, as --on-hog kill says",
}


def hog(job: Job, since_ns: Nanos, step: HogStep | None) -> str:
    usual = (
        f"its usual step takes {format_ns(job.service.step_ns)}"
        if job.service.step_ns
        else "its step time is not known yet"
    )
    asked = f"{job.spec.name} was asked for its turn {format_ns(since_ns)} ago and has not reached a boundary"
    return f"{asked}; {usual}{_HOG_STEPS[step]}"


def hog_for_others(job: Job, kept_ns: Nanos, end_ns: Nanos) -> str:
    return (
        f"{job.spec.name} kept jobs of other tenants waiting for {format_ns(kept_ns)} and did not give its turn back;"
        f" this machine ends such a job after {format_ns(end_ns)} ([limits] hog)"
    )


def standing(job: Job, asked: str, *, now: Nanos) -> str:
    """One sentence for a job that does not wait for anything carpool could give."""
    span = format_ns(now - job.state_since_ns)
    target = _target(job)
    asked += f"; it was not moved: {job.move.refused}" if job.move.refused else ""
    match job.state:
        case JobState.STARTING:
            ran_ns = (
                job.wall.spent_ns.get("start", 0) + now - job.wall.row_since_ns
            )  # an order to it begins its state anew
            if ran_ns < FRESH_NS and not job.service.steps:  # with steps it outlived a daemon
                return f"started {format_ns(ran_ns)} ago{asked}"
            said = f"its program has run for {format_ns(ran_ns)} and has not reached an iteration boundary yet"
            hint = "; if it has no torch loop, or its Python takes no hooks (carpool doctor), it never will"
            return said + (hint if ran_ns > HINT_NS else "") + asked
        case JobState.PROFILING:
            return f"has held one of its first turns for {span}; its memory is being measured{asked}"
        case JobState.RUNNING:
            recalled = job.lease is not None and job.lease.state is LeaseState.RECALLED
            return f"has had the device for {span}" + ("; its turn is recalled" if recalled else "") + asked
        case JobState.IDLE:
            return f"has wanted no turn for {span}: it loads data, saves, or is between its loops{asked}"
        case JobState.PARKING:
            onward = f", on its way to {target}" if target else ""
            return f"its memory has been moving to the host for {span}{onward}{asked}"
        case JobState.UNPARKING:
            onward = f", to {job.device} where it comes from {job.move.source}" if job.move.source else ""
            return f"its memory has been moving back from the host for {span}{onward}{asked}"
        case JobState.UNMANAGED:
            return f"runs outside carpool's turns: {job.reason or 'no reason was given'}"
        case JobState.QUEUED | JobState.WAITING | JobState.PARKED | JobState.BLOCKED:
            return job.reason or f"has waited for {span}"
        case JobState.FINISHED | JobState.FAILED | JobState.CANCELLED:
            waits = [f"{format_ns(job.wall.spent_ns.get('turn', 0))} for turns"]
            rows = (("limit", "because of its compute limit"), ("memory", "for memory"))
            waits += [
                f"{format_ns(job.wall.spent_ns[row])} {words}" for row, words in rows if job.wall.spent_ns.get(row)
            ]
            had = f"; had the device {format_ns(job.service.served_ns)}, waited {' and '.join(waits)}"
            if took_no_turns(job.service.steps, job.wall.spent_ns):
                had = "; it took no turns" + (f", waited {waits[1]}" if len(waits) > 1 else "")
            return f"{job.state}: {job.reason or 'exit code 0'}" + (had if job.device is not None else "")
