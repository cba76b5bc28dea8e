"""What a job finds in its environment so that carpool is inside it."""

from __future__ import annotations

from pathlib import Path

import carpool
from carpool.core.model import JobSpec
from carpool.devices import cpu
from carpool.devices.base import DeviceFacts
from carpool.errors import UsageError
from carpool.wire.places import Places

INJECT = Path(carpool.__file__).parent / "agent" / "inject"


def job_environment(places: Places, device: DeviceFacts, spec: JobSpec, *, job: str, page: Path) -> dict[str, object]:
    """`set` replaces, `prepend` goes before what the user has, `default` yields to what the user has.

    A UsageError says what of the job's options could not be kept.
    """
    is_capped = spec.cap_bytes is not None
    prepend = {"PYTHONPATH": str(INJECT)}
    default: dict[str, str] = {}
    settings = {
        "CARPOOL_JOB": job,
        "CARPOOL_SOCKET": str(places.socket),
        "CARPOOL_PAGE": str(page),
        "CARPOOL_DEVICE_KIND": device.kind,
        "CARPOOL_PARKED": str(places.parked),
    }
    if is_capped:
        settings["CARPOOL_IS_CAPPED"] = "1"
    if spec.wait_memory_ns is not None:
        if device.kind != "cpu" or cpu.meter_path() is None:
            raise UsageError(
                "--wait-memory needs the byte meter of the CPU device: leave it out, or see carpool doctor"
            )
        settings["CARPOOL_WAIT_MEMORY_NS"] = str(spec.wait_memory_ns)
    if device.kind == "cpu":
        meter = cpu.meter_path()
        if meter is not None:
            prepend["LD_PRELOAD"] = meter
        default.update(device.environment)
    else:
        settings.update(device.environment)
    return {"set": settings, "prepend": prepend, "default": default}
