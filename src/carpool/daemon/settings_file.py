"""carpool.toml: what an admin wrote for the machine's daemon, read and checked; nothing is decided here.

Keys at the top are those of DaemonConfig. Users and groups are names here: who they are is looked up when somebody
comes, since accounts come and go while a daemon runs.

Rules
  I22 A file that says something unknown or impossible is refused as a whole, with the key and what could be meant: no
      setting is ever ignored.
  I26 A user's own daemon is refused devices that the machine's daemon has: two would promise them twice.
"""

from __future__ import annotations

import difflib
import grp
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from carpool.core.kernel.ids import SHARE_ONE, WEIGHT_ONE, DeviceId, TenantId
from carpool.core.node.settings import Settings, TenantTerms
from carpool.core.node.terms import EVERYBODY, fault_of
from carpool.daemon.config import DaemonConfig
from carpool.devices.kinds import find_devices
from carpool.errors import RefusedError, UsageError
from carpool.units import TENANT_MAX, format_list, parse_bytes, parse_duration_ns, parse_share
from carpool.wire.places import machine_places

Table = TypeVar("Table", bound=msgspec.Struct)
FILE_BYTES_MAX = 1 << 20


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use the machine's daemon, and who may order others' jobs about."""

    group: str = ""  # only its members may use the daemon; empty: everyone
    admins: tuple[str, ...] = ("root",)  # users, and groups like "@wheel"
    private: bool = False  # users do not see each other's names


class UserLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one user may have at most; 0 or empty: no limit of its own."""

    connections: int = 4096  # to the daemon, at once: one for each command, two and more for each job
    jobs: int = 0  # that are not over, queued ones too
    queued: int = 1000  # that wait to be started
    log_size: str = "1GiB"  # of all logs together
    run_size: str = "64MiB"  # of what programs write beside their pages
    processes: int = 4096  # of all jobs together
    hog: str = "10m"  # a job that keeps another tenant's waiting so long, and does not give its turn back, is ended


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs of one tenant may have together; 0 or empty: no limit, nothing guaranteed."""

    members: tuple[str, ...] = ()  # users, and groups like "@students"
    weight: float = 1.0  # what it counts under fair
    priorities: str = ""  # like "0..5": which ones its jobs may have
    memory: str = ""  # of all devices together, like 16GiB
    compute: str = ""  # of each device, like 50%
    jobs: int = 0  # that have a device at once
    devices: tuple[str, ...] = ()  # on which its jobs may run; empty: all
    guaranteed: str = ""  # of each device, time and memory, like 25%
    order: str = ""  # among its own jobs: a policy

    def terms(self) -> TenantTerms:
        """The same as the core counts it."""
        return TenantTerms(
            weight_milli=max(1, round(self.weight * WEIGHT_ONE)),
            guaranteed_milli=parse_share(self.guaranteed)[0] if self.guaranteed else 0,
            memory_bytes_max=parse_bytes(self.memory) if self.memory else None,
            compute_milli_max=parse_share(self.compute)[1] if self.compute else SHARE_ONE,
            jobs_max=self.jobs or None,
            devices=tuple(map(DeviceId, self.devices)) or None,
            priorities=parse_priorities(self.priorities) if self.priorities else None,
            order=self.order,
        )


class MachineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    daemon: DaemonConfig = DaemonConfig()
    access: Access = Access()
    limits: UserLimits = UserLimits()
    tenants: dict[str, TenantSettings] = {}
    tenant_defaults: TenantSettings = TenantSettings()  # of those that have no table of their own

    def config(self) -> DaemonConfig:
        """What the daemon is told; weights of tenants are in their tables."""
        weights = [f"{name}={tenant.weight:g}" for name, tenant in sorted(self.tenants.items()) if tenant.weight != 1]
        if not weights:
            return self.daemon
        said = [self.daemon.tenant_weights] if self.daemon.tenant_weights else []
        return msgspec.structs.replace(self.daemon, tenant_weights=",".join([*said, *weights]))

    def node_settings(self, config: DaemonConfig) -> Settings:
        """What the core is told at its start: this configuration, with the terms of the tenants."""
        tenants = {TenantId(name): tenant.terms() for name, tenant in self.tenants.items()}
        return replace(
            config.settings(),
            tenants=tenants,
            tenant_default=self.tenant_defaults.terms(),
            hog_end_ns=parse_duration_ns(self.limits.hog) if self.limits.hog else None,
        )


def load_settings(path: Path) -> MachineSettings:
    """What the file says; UsageError with what is wrong in it."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > FILE_BYTES_MAX:
        raise UsageError(f"{path} has more than 1 MiB; these are no settings of carpool")
    try:
        return parse_settings(text.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def check_not_taken(config: DaemonConfig) -> None:
    """RefusedError if a user's own daemon wants devices that the machine's daemon has (I26)."""
    places = machine_places()
    if not places.is_installed():
        return
    taken = {each.hardware: each for each in find_devices(load_settings(places.settings).daemon.device)}
    for device in find_devices(config.device):
        if device.hardware and device.hardware in taken:
            raise RefusedError(
                f"the machine's daemon has {device.id} ({device.title}) and shares it among all users, so a"
                " daemon of your own cannot have it: leave CARPOOL_DIR out to use that one, or choose a --device that"
                " it has not"
            )


def parse_settings(text: str) -> MachineSettings:
    """What such a file would say; UsageError with what is wrong in it (I22)."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"this is not TOML: {error}") from error
    tables = {name: said.pop(name, {}) for name in ("access", "limits", "tenant", "tenant-defaults")}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{name} is a table: write [{name}] in a line of its own, and its keys below")
    settings = MachineSettings(
        daemon=_read(DaemonConfig, said, "", more=list(tables)),
        access=_read(Access, tables["access"], "access"),
        limits=_read(UserLimits, tables["limits"], "limits"),
        tenants={name: _read_tenant(table, f"tenant.{name}") for name, table in tables["tenant"].items()},
        tenant_defaults=_read_tenant(tables["tenant-defaults"], "tenant-defaults"),
    )
    _check_limits(settings.limits)
    settings.config().check()
    check_tenants(settings)
    return settings


def check_tenants(settings: MachineSettings) -> None:
    """UsageError for what makes no sense of one tenant, or of all together."""
    _check_terms(settings)
    check_tenants_devices(settings)


def parse_tenant(table: dict[str, Any], name: str) -> TenantSettings:
    """What such a table of one tenant would say; UsageError with what is wrong in it."""
    return _read_tenant(table, f"tenant.{name}")


def check_tenants_devices(settings: MachineSettings) -> None:
    """UsageError for a tenant whose jobs are to run on a device that the daemon does not have."""
    known = [device.id for device in find_devices(settings.daemon.device)]
    named = {f"tenant.{name}": tenant for name, tenant in settings.tenants.items()}
    for where, tenant in {**named, "tenant-defaults": settings.tenant_defaults}.items():
        unknown = [each for each in tenant.devices if each not in known]
        if unknown:
            raise UsageError(f"[{where}] devices: there is no device {unknown[0]}; there are {format_list(known)}")


def group_id(name: str) -> int | None:
    """The number of the group that may use the daemon; None for everyone."""
    try:
        return grp.getgrnam(name).gr_gid if name else None
    except KeyError as error:
        raise UsageError(f"[access] group = '{name}': there is no such group; make it: groupadd {name}") from error


def _read_tenant(table: Any, where: str) -> TenantSettings:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is a table: write [{where}] in a line of its own, and its keys below")
    tenant = _read(TenantSettings, table, where)
    if not 0 < tenant.weight <= TENANT_MAX:
        raise UsageError(f"[{where}] weight = {tenant.weight:g}: it must be above 0 and at most {TENANT_MAX:,}")
    if tenant.jobs < 0:
        raise UsageError(f"[{where}] jobs = {tenant.jobs}: say how many at most, or leave it out")
    for key, parse in (("memory", parse_bytes), ("compute", parse_share), ("guaranteed", parse_share)):
        _parsed(where, key, getattr(tenant, key), parse)
    if tenant.priorities:
        parse_priorities(tenant.priorities, where=where)
    return tenant


def _check_terms(settings: MachineSettings) -> None:
    """Refuse what makes no sense of one tenant, or of all together."""
    known = settings.node_settings(settings.daemon)
    for tenant, terms in {**known.tenants, EVERYBODY: known.tenant_default}.items():
        fault = fault_of(known.tenants, tenant, terms)
        if fault:
            raise UsageError(f"[{f'tenant.{tenant}' if tenant else 'tenant-defaults'}] {fault}")


def parse_priorities(text: str, *, where: str = "") -> tuple[int, int]:
    """`0..5` or one number, as least and most."""
    first, _, last = text.partition("..")
    try:
        least, most = int(first), int(last or first)
    except ValueError:
        least, most = 1, 0
    if least > most:
        head = f"[{where}] " if where else ""
        raise UsageError(f"{head}priorities = '{text}': write the least and the most, like 0..5")
    return least, most


def _check_limits(limits: UserLimits) -> None:
    for key in ("connections", "jobs", "queued", "processes"):
        if getattr(limits, key) < 0:
            raise UsageError(f"[limits] {key} = {getattr(limits, key)}: say how many at most, or 0 for no limit")
    for key in ("log_size", "run_size"):
        _parsed("limits", key, getattr(limits, key), parse_bytes)
    _parsed("limits", "hog", limits.hog, parse_duration_ns)


def _parsed(where: str, key: str, text: str, parse: Any) -> None:
    try:
        if text:
            parse(text)
    except UsageError as error:
        raise UsageError(f"[{where}] {key}: {error}") from error


def _read(kind: type[Table], table: dict[str, Any], where: str, *, more: list[str] | None = None) -> Table:
    """One table of the file; UsageError for keys that are not of this kind, and values of another type."""
    known = [field.name for field in msgspec.structs.fields(kind)]
    head = f"[{where}] " if where else ""
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, [*known, *(more or [])], n=1)
            meant = f"; do you mean {near[0]}?" if near else f"; there are {format_list(known)}"
            raise UsageError(f"{head}{key} is no setting{meant}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$.")
        raise UsageError(f"{head}{key.rstrip('`')}: {what[0].lower()}{what[1:]}") from error
