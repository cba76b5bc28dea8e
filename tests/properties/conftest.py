"""How hard the properties are tried: the same examples every time, or new ones with CARPOOL_EXPLORE=1."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
# Without the phase that explains a failure: it traces every line, and is for whoever explores.
_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
settings.register_profile(
    "steady", derandomize=True, deadline=None, database=None, phases=_PHASES, suppress_health_check=_SLOW
)
settings.register_profile(
    "explore", max_examples=2000, deadline=None, database=None, suppress_health_check=_SLOW, print_blob=True
)
if os.environ.get("CARPOOL_EXPLORE"):
    settings.load_profile("explore")
else:
    settings.load_profile("steady")
    # Hypothesis draws constants from the source of every local module that happens to be loaded: without this the
    # examples would depend on which other tests ran before in the same process, and a failure would come and go.
    providers._get_local_constants = lambda: providers._local_constants
