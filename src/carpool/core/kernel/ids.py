"""What both schedulers count and name things by: ids, time, weights and shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

JobId = NewType("JobId", str)
DeviceId = NewType("DeviceId", str)
LaneId = NewType("LaneId", str)
TenantId = NewType("TenantId", str)
Nanos = int

WEIGHT_ONE = 1000  # weights are counted in thousandths so that accounts stay exact integers
SHARE_ONE = 1000  # and so are shares of a device


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed; sent when `next_wakeup` says so."""
