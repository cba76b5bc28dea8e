"""carpool.toml is read again while jobs run: what can change live changes, and what cannot is named.

Rules
  I23 A reload takes in all that can change live, or nothing: a file that is refused leaves everything as it was. No
      job is lost by it, and whatever counts only from the next start on is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from carpool import calls
from carpool.core.node.events import SettingsChanged
from carpool.daemon.config import DaemonConfig
from carpool.daemon.driver import Driver
from carpool.daemon.settings_file import MachineSettings, check_tenants_devices, load_settings
from carpool.daemon.terms import changes, said_in
from carpool.errors import CarpoolError, RefusedError
from carpool.wire.places import Places

log = logging.getLogger("carpool")
LIVE = {"quantum", "latency", "hog_after", "host_memory", "starts", "warm"}  # of DaemonConfig
NOT_LIVE = {"access.group"}  # of the tables


class InForce:
    """The settings that count now; `Reload` alone changes them."""

    def __init__(self, settings: MachineSettings, config: DaemonConfig) -> None:
        self.settings = settings
        self.config = config  # what the daemon runs by: with what was chosen where nobody said anything


class Reload:
    def __init__(self, places: Places, in_force: InForce, driver: Driver) -> None:
        self._places = places
        self._in_force = in_force
        self._driver = driver
        self.on_change: list[Callable[[MachineSettings, str], object]] = []  # the new ones, and who asked

    def read_again(self, *, by: str) -> calls.Reloaded:
        """What changed; UsageError, and nothing changed, if the file is wrong (I23)."""
        if not self._places.is_machine:
            raise RefusedError(
                "only the machine's daemon reads its settings again; stop your own and start it with other options"
            )
        before, wanted = self._in_force, load_settings(self._places.settings)
        old, new = _as_keys(before.settings), _as_keys(wanted)
        changed = {
            key: f"{_said(old.get(key))} → {_said(new.get(key))}"
            for key in {**old, **new}
            if _said(old.get(key)) != _said(new.get(key))
        }
        waits = [key for key in changed if key in NOT_LIVE or ("." not in key and key not in LIVE)]
        daemon, access = before.settings.daemon, before.settings.access
        live = {key: getattr(wanted.daemon, key) for key in LIVE}
        settings = msgspec.structs.replace(
            wanted,
            daemon=msgspec.structs.replace(daemon, **live),
            access=msgspec.structs.replace(wanted.access, group=access.group),
        )
        check_tenants_devices(settings)  # those of the daemon as it runs
        config = msgspec.structs.replace(before.config, **live).with_host_memory()
        self._driver.tell(SettingsChanged(settings=settings.node_settings(config), by=by))
        for event in changes(said_in(before.settings), said_in(settings), by=by):
            self._driver.tell(event)
        self._in_force.settings, self._in_force.config = settings, config
        for tell in self.on_change:
            tell(settings, by)
        log.info("daemon.reloaded by=%s changed=%s waits=%s", by, ",".join(changed) or "-", ",".join(waits) or "-")
        return calls.Reloaded(changed=changed, waits=waits)

    def on_signal(self) -> None:
        """Somebody sent SIGHUP: only the owner of the daemon's process and root can."""
        try:
            self.read_again(by="SIGHUP")
        except (CarpoolError, OSError) as error:
            log.error("daemon.not_reloaded reason=%s", error)


def _as_keys(settings: MachineSettings) -> dict[str, object]:
    """Each setting under the name by which an admin knows it: `policy`, `access.group`, `tenant.lab.weight`."""
    found: dict[str, object] = dict(msgspec.to_builtins(settings.daemon))
    tables = {"access": settings.access, "limits": settings.limits, "tenant-defaults": settings.tenant_defaults}
    tables |= {f"tenant.{name}": tenant for name, tenant in settings.tenants.items()}
    for name, table in tables.items():
        found |= {f"{name}.{key}": value for key, value in msgspec.to_builtins(table).items()}
    return found


def _said(value: object) -> str:
    match value:
        case None | "" | []:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)
