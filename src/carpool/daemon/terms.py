"""What a new configuration says of tenants, as facts for the core: what changed against what counts now."""

from __future__ import annotations

from carpool.core.kernel.ids import TenantId
from carpool.core.node.events import TenantSet
from carpool.core.node.settings import TenantTerms
from carpool.core.node.terms import EVERYBODY
from carpool.daemon.settings_file import MachineSettings

Said = dict[TenantId, TenantTerms]


def said_in(settings: MachineSettings) -> Said:
    """What is said of each tenant, and of all others."""
    named = {TenantId(name): tenant.terms() for name, tenant in settings.tenants.items()}
    return {**named, EVERYBODY: settings.tenant_defaults.terms()}


def changes(before: Said, after: Said, *, by: str) -> list[TenantSet]:
    """Smaller guarantees first: at no moment more than the whole is guaranteed."""
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]

    def grows(name: TenantId) -> int:
        had, has = before.get(name), after.get(name)
        return (has.guaranteed_milli if has else 0) - (had.guaranteed_milli if had else 0)

    return [TenantSet(tenant=name, terms=after.get(name), by=by) for name in sorted(changed, key=grows)]
