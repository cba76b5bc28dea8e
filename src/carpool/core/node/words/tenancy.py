"""The sentences about tenants: what they may not have, and why a job waits because of its tenant's terms."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.core.kernel.ids import DeviceId, Nanos, TenantId
from carpool.core.node.model import Device, Job, JobSpec, Part
from carpool.core.node.settings import TenantTerms
from carpool.core.policies.view import JobView
from carpool.units import format_bytes, format_ns, format_share

NO_GUARANTEE_FOR_ALL = (
    "a part of a device cannot be guaranteed to all tenants that are not named: nobody knows how many there will be;"
    " name them"
)


def _whose(tenant: TenantId) -> str:
    return f"tenant {tenant}" if tenant else "every tenant that is not named"


def too_small(tenant: TenantId, what: str, least: int) -> str:
    return f"the {what} of {_whose(tenant)} must be at least {least}"


def guaranteed_beyond(tenant: TenantId, terms: TenantTerms) -> str:
    return (
        f"{_whose(tenant)} is guaranteed {format_share(terms.guaranteed_milli)} of each device and may have"
        f" {format_share(terms.compute_milli_max)} of its time: a ceiling is at most 100 %, and a guarantee at most"
        " the ceiling"
    )


def guaranteed_too_much(tenant: TenantId, wanted_milli: int, left_milli: int) -> str:
    return (
        f"{_whose(tenant)} cannot be guaranteed {format_share(wanted_milli)} of each device:"
        f" {format_share(left_milli)} is not guaranteed to others; ask for less, or give another tenant less first"
    )


def no_priorities(tenant: TenantId, lowest: int, highest: int) -> str:
    return f"the priorities of {_whose(tenant)} go from {lowest} to {highest}; say the lower one first"


def unknown_order(tenant: TenantId, order: str, known: Sequence[str]) -> str:
    return f"the jobs of {_whose(tenant)} cannot go by {order}; there are {', '.join(known)}"


def unknown_device(tenant: TenantId, device: DeviceId, known: Sequence[DeviceId]) -> str:
    return f"{_whose(tenant)} cannot be let onto {device}: there is no such device; there are {', '.join(known)}"


def priority_above(spec: JobSpec, lowest: int, highest: int) -> str:
    return (
        f"job {spec.name} asks for priority {spec.priority}, and tenant {spec.tenant} may use {lowest} to {highest};"
        f" submit it with --priority {highest} or less"
    )


def not_that_device(spec: JobSpec, devices: Sequence[DeviceId]) -> str:
    return (
        f"job {spec.name} asks for {spec.device}, and tenant {spec.tenant} may use"
        f" {' and '.join(devices) or 'no device'}; leave out --device, or name one of those"
    )


def none_of_its_devices(spec: JobSpec, devices: Sequence[DeviceId]) -> str:
    return (
        f"job {spec.name} has no device here: tenant {spec.tenant} may use {' and '.join(devices) or 'none'};"
        " an admin can allow more"
    )


def above_ceiling(spec: JobSpec, ceiling: int) -> str:
    return (
        f"job {spec.name} can never start: it asks for {format_bytes(spec.cap_bytes or 0)}, and tenant {spec.tenant}"
        f" may have {format_bytes(ceiling)}; lower --memory"
    )


# --- why a job waits -----------------------------------------------------------------------------------------


def no_share(job: Job, wanted_milli: int, left_milli: int, device: DeviceId) -> str:
    return (
        f"job {job.id} cannot have {format_share(wanted_milli)} of {device}: {format_share(left_milli)} of it is not"
        " promised to others; ask for less, or give another job less: carpool resize JOB --compute SHARE"
    )


def owed(part: Part, device: Device) -> str:
    return f"tenant {part.tenant} is owed its {format_share(part.guaranteed_milli)} of {device.id}"


def over_limit(part: Part, device: Device) -> str:
    return f"tenant {part.tenant} has had its {format_share(part.limit_milli)} of {device.id}"


def limit_wait(view: JobView, part: Part, device: Device, left_ns: Nanos) -> str:
    return (
        f"waits {format_ns(view.waited_ns)}: tenant {part.tenant} has had the {format_share(part.limit_milli)} of"
        f" {device.id} that it may have; its next turn is due in {format_ns(left_ns)}"
    )


def owed_first(owed: Job, device: Device) -> str:
    return f"{owed.spec.name} has what tenant {owed.spec.tenant} is guaranteed of {device.id}"


def not_lent(job: Job, device: Device, fixed: int, room: int, return_ns: Nanos) -> str:
    return (
        f"others end: {format_bytes(room)} of {device.id} is guaranteed to nobody, and with it {format_bytes(fixed)}"
        f" would be held by jobs that are not known to give it back within {format_ns(return_ns)}"
    )


def jobs_wait(tenant: TenantId, started: int, most: int) -> str:
    many = "1 job is" if started == 1 else f"{started} jobs are"
    return f"waits for tenant {tenant}'s number of jobs: {many} started, and it may have {most} at once"


def memory_wait(tenant: TenantId, need: int, ceiling: int, used: int) -> str:
    return (
        f"waits for tenant {tenant}'s ceiling of {format_bytes(ceiling)}: it needs {format_bytes(need)}, and"
        f" {format_bytes(used)} are promised to the tenant's jobs"
    )


def behind(tenant: TenantId, ceiling: int, parked: str) -> str:
    return (
        f"waits for tenant {tenant}'s ceiling of {format_bytes(ceiling)}: {parked} of the same tenant is held back"
        " by it and goes first"
    )


def device_wait(tenant: TenantId, devices: Sequence[DeviceId] | None, asked: DeviceId | None) -> str:
    may = " and ".join(devices or ()) or "0 devices"
    return f"waits for a device that tenant {tenant} may use: it asks for {asked or 'any'}, and the tenant has {may}"
