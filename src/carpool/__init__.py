"""carpool: many deep-learning programs share the GPUs you already have."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Client", "__version__", "join", "only_these_threads_compute", "take_turns_here", "turn"]

if TYPE_CHECKING:
    from carpool.agent.api import join, only_these_threads_compute, take_turns_here, turn
    from carpool.client import Client


def __getattr__(name: str) -> object:
    if name in ("join", "load_ipython_extension", "only_these_threads_compute", "take_turns_here", "turn"):
        from carpool.agent import api

        return getattr(api, name)
    if name == "Client":
        from carpool.client import Client

        return Client
    raise AttributeError(f"module 'carpool' has no attribute {name!r}")
