"""carpool: many deep-learning programs share the GPUs you already have."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Client", "__version__", "turn"]

if TYPE_CHECKING:
    from carpool.agent.api import turn
    from carpool.client import Client


def __getattr__(name: str) -> object:
    if name == "turn":
        from carpool.agent.api import turn

        return turn
    if name == "Client":
        from carpool.client import Client

        return Client
    raise AttributeError(f"module 'carpool' has no attribute {name!r}")
