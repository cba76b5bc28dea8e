"""Which tenant a job is of on the machine's daemon, and what admins say of tenants while jobs run.

Rules
  I36  A job's tenant is one of which its user is a member by the configuration, the first unless he names another of
       his; whoever is in none is a tenant of his own name. Nobody gets into a tenant, or out of one, by saying so.
  I37  What an admin says of a tenant counts at once, or not at all and it is said why. It counts until the settings
       are read again; where it was saved, also then.
  I38  What jobs ask to be guaranteed comes out of what their tenant is guaranteed, all its jobs together; only admins
       give more. Else one user could claim a whole device for himself (`--compute 100%`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from carpool import calls
from carpool.core.kernel.ids import JobId, TenantId
from carpool.core.node.events import TenantSet
from carpool.core.node.node import ASKED_SHARES
from carpool.daemon.driver import Driver
from carpool.daemon.people import User
from carpool.daemon.reload import InForce
from carpool.daemon.settings_edit import save_tenant
from carpool.daemon.settings_file import MachineSettings, TenantSettings, check_tenants, parse_tenant
from carpool.daemon.translate import plain
from carpool.errors import RefusedError, UsageError
from carpool.units import format_list
from carpool.wire.places import Places

NAME_MAX = 60
UNSAID = ("", "default")  # where nobody says --tenant


def tenants_of(settings: MachineSettings, user: User) -> list[str]:
    """Those of which a user is a member, in the order of the file; his own name if there is none (I36)."""
    return [name for name, tenant in settings.tenants.items() if user.is_one_of(tenant.members)] or [user.name]


def choose(settings: MachineSettings, user: User, said: str) -> TenantId:
    """The tenant of a new job; RefusedError for one of which its user is no member (I36)."""
    own = tenants_of(settings, user)
    if said in UNSAID:
        return TenantId(own[0])
    if said not in own:
        raise RefusedError(
            f"user {user.name} is no member of tenant {said}; leave out --tenant, or name one of yours:"
            f" {format_list(own)}"
        )
    return TenantId(said)


class Tenancy:
    def __init__(self, driver: Driver, places: Places, in_force: InForce) -> None:
        self._driver = driver
        self._places = places
        self._in_force = in_force

    def of(self, user: User) -> list[str]:
        """The tenants of which this user is a member; of a daemon for one user nobody asks."""
        return tenants_of(self._in_force.settings, user)

    def choose(self, user: User, said: str) -> TenantId:
        """The tenant of a new job. Whoever has a daemon of his own calls his tenants as he likes."""
        return choose(self._in_force.settings, user, said) if self._places.is_machine else TenantId(said)

    def guarantee_milli(self, tenant: TenantId, wanted_milli: int, *, beside: JobId | None = None) -> int:
        """What a job of this tenant is guaranteed of what it asks for (I38); `beside`: the job itself, if it is here.
        Policies that divide a device guarantee by themselves."""
        if not self._places.is_machine or self._in_force.config.share_policy != ASKED_SHARES:
            return wanted_milli
        settings = self._in_force.settings
        part = settings.tenants.get(tenant, settings.tenant_defaults).terms().guaranteed_milli
        others = [live.file.spec for live in self._driver.jobs.values() if live.id != beside]
        used = sum(spec.guaranteed_milli for spec in others if spec.tenant == tenant)
        return max(0, min(wanted_milli, part - used))

    def show(self) -> calls.Tenants:
        """Every tenant of whom something is said or who has jobs."""
        settings, rows = self._in_force.settings, dict[str, dict[str, object]]()
        for picture in self._driver.scheduler.tenants(now=time.monotonic_ns()):
            facts = plain(picture)
            said = settings.tenants.get(picture.id)
            rows[picture.id] = {
                "name": facts.pop("id"),
                "is_named": said is not None,
                **msgspec.to_builtins(said if said is not None else settings.tenant_defaults),
                **{f"{name}_now" if name == "jobs" else name: facts[name] for name in facts if name != "terms"},
            }
        for name, tenant in settings.tenants.items():
            rows.setdefault(name, {"name": name, "is_named": True, **msgspec.to_builtins(tenant)})
        return calls.Tenants(tenants=list(rows.values()))

    def change(self, arguments: Mapping[str, object], *, by: str) -> calls.Tenants:
        """Other terms of one tenant from now on, or none of its own; UsageError, and nothing changed, if they make no
        sense (I37)."""
        if not self._places.is_machine:
            raise RefusedError(
                "tenants are changed on the machine's daemon; your own has: carpool daemon start --tenant-weights"
            )
        name, said = str(arguments.get("tenant", "")), arguments.get("settings")
        before = self._in_force.settings
        wanted = dict(before.tenants)
        new = self._changed(name, said, before) if isinstance(said, dict) else None
        if new is not None:
            wanted[name] = new
        elif wanted.pop(name, None) is None:
            raise UsageError(f"nothing is said of tenant {name}; see: carpool tenant list")
        settings = msgspec.structs.replace(before, tenants=wanted)
        check_tenants(settings)
        if arguments.get("save"):
            save_tenant(self._places.settings, name, new)
        terms = new.terms() if new is not None else None
        self._driver.tell(TenantSet(tenant=TenantId(name), terms=terms, by=by))
        self._in_force.settings = settings
        return self.show()

    def _changed(self, name: str, said: Mapping[str, object], settings: MachineSettings) -> TenantSettings:
        """What is said of a tenant now: what was, and over it what is said anew."""
        if not name or len(name) > NAME_MAX or not name.isprintable() or set(name) & set('"\\[]=,'):
            raise UsageError(f"{name!r} cannot be the name of a tenant: letters and digits are fine")
        before = settings.tenants.get(name, TenantSettings())
        return parse_tenant({**msgspec.to_builtins(before), **said}, name)
