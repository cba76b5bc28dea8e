"""What a daemon was told at its start; kept in a file so that a restarted daemon is told the same."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from carpool.core.kernel.ids import WEIGHT_ONE
from carpool.core.node.settings import Settings
from carpool.core.node.turns.shares import SHARE_POLICIES
from carpool.devices import cpu
from carpool.devices.kinds import find_devices
from carpool.errors import UsageError
from carpool.journal import BYTES_MAX, BYTES_MIN
from carpool.policies import Policy, find_policy
from carpool.units import format_bytes, parse_bytes, parse_duration_ns, parse_tenants
from carpool.wire.places import Places

SLOTS_MAX = 1000
STARTS_A_CORE = 2  # a start is mostly a processor's work, and now and then a disk's
CORES_A_START_BESIDE = 2  # where it is work on the device: one for each so many cores while another computes


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True):
    policy: str = "fair"  # a reference that can be found from any directory (carpool.policies)
    device: str = "auto"
    quantum: str = ""  # empty: the policy's own, or chosen by what a change of turn costs
    latency: str = ""  # where quanta are chosen: within this all who wait have a turn each; empty: the core's own
    hog_after: str = ""  # how late a job may be with its turn before it counts as a hog; empty: the core's own
    tenant_weights: str = ""  # what tenants count under fair, like ana=2,ben=1; 1 for those not named
    share_policy: str = "fixed"  # a share policy, with a number of slots where parts are even: equal:4
    host_memory: str = ""  # of all parked jobs together; empty: as much as the store's disk takes
    journal_size: str = ""  # what the journal's file may have at most; empty: the journal's own bound
    starts: str = (
        ""  # so many programs are being started at once, at most; empty: by the cores and the kind of device
    )
    park_to: str = ""  # the directory that gets the store of the CPU device's jobs; empty: that of carpool's state

    warm: bool = False  # jobs may start warm unless they say otherwise

    def check(self) -> None:
        """Refuse what makes no sense, before anything is started."""
        find_policy(self.policy, place="node")
        find_devices(self.device)
        self.settings()
        if self.journal_bytes_max < BYTES_MIN:
            raise UsageError(
                f"a journal of {self.journal_size} is too small to be of use; the least is {format_bytes(BYTES_MIN)}"
            )
        if self.park_to and not Path(self.park_to).is_dir():
            raise UsageError(f"there is no directory {self.park_to} to park jobs to; make it, or choose another")

    def place_store(self, places: Places) -> Places:
        """With the store where it was told to be, in a directory of this user and this carpool."""
        if not self.park_to:
            return places
        owner = hashlib.sha1(os.fsencode(places.state), usedforsecurity=False).hexdigest()[:8]
        return replace(places, store=Path(self.park_to).absolute() / f"carpool-{os.geteuid()}-{owner}")

    def with_host_memory(self) -> DaemonConfig:
        """With a budget where parked jobs would hold the host's own memory and nobody said how much: half of it."""
        is_on_disk = not self.park_to and all(device.kind.parks_to_disk for device in find_devices(self.device))
        if self.host_memory or is_on_disk:
            return self
        return msgspec.structs.replace(self, host_memory=f"{cpu.memory_bytes() // 2 >> 20}MiB")

    @property
    def journal_bytes_max(self) -> int:
        return parse_bytes(self.journal_size) if self.journal_size else BYTES_MAX

    def facts(self, policy: Policy | None = None) -> dict[str, Any]:
        """What is in force, however it was said: to be shown, and compared with what another start asks for. A daemon
        has its policy at hand: its file may be gone or another one by now."""
        settings = self.settings()
        quantum_ns = settings.quantum_ns
        if quantum_ns is None:
            quantum_ns = (policy or find_policy(self.policy)).quantum_ns  # None: chosen
        return {
            "policy": self.policy,
            "device": self.device,
            "quantum_ns": quantum_ns,
            "latency_ns": settings.latency_ns,
            "share_policy": self.share_policy,
            "hog_after_ns": settings.hog_floor_ns,
            "host_bytes_max": settings.host_bytes_max,
            "journal_bytes_max": self.journal_bytes_max,
            "warm": self.warm,
            "tenant_weights_milli": {
                tenant: weight
                for tenant, weight in sorted(settings.tenant_weights_milli.items())
                if weight != WEIGHT_ONE
            },
        }

    def settings(self) -> Settings:
        late: dict[str, Any] = {"hog_floor_ns": parse_duration_ns(self.hog_after)} if self.hog_after else {}
        if self.latency:
            late["latency_ns"] = parse_duration_ns(self.latency)
            if not late["latency_ns"]:
                raise UsageError("a latency of 0 leaves no time for a turn; say how long a job may wait, like 500ms")
        name, colon, slots = self.share_policy.partition(":")
        known = SHARE_POLICIES.get(name)
        if known is None:
            raise UsageError(f"unknown share policy '{name}'; there are {', '.join(SHARE_POLICIES)}")
        if colon and (known.guarantee != "even" or not slots.isdecimal() or not 1 <= int(slots) <= SLOTS_MAX):
            raise UsageError(
                f"share policy '{self.share_policy}': a number of jobs goes with equal only, like equal:4"
            )
        starts_max, starts_beside_max = self._starts()
        return Settings(
            **late,
            starts_max=starts_max,
            starts_beside_max=starts_beside_max,
            share_policy=name,
            share_slots=int(slots) if colon else 0,
            quantum_ns=parse_duration_ns(self.quantum) if self.quantum else None,
            tenant_weights_milli=parse_tenants(self.tenant_weights) if self.tenant_weights else {},
            host_bytes_max=parse_bytes(self.host_memory) if self.host_memory else None,
        )

    def _starts(self) -> tuple[int, int | None]:
        """How many programs may be being started at once, and how many while a job has a turn."""
        if self.starts:
            if not self.starts.isdecimal() or int(self.starts) < 1:
                raise UsageError(f"{self.starts} programs cannot be started at once; say a number from 1 on")
            return int(self.starts), None
        cores = len(os.sched_getaffinity(0))
        if not any(device.kind.starts_compute for device in find_devices(self.device)):
            return STARTS_A_CORE * cores, None
        return cores, max(1, cores // CORES_A_START_BESIDE)

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> DaemonConfig:
        """What the last daemon was told; the defaults where there was none or it cannot be read."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return cls()
