"""How a program joins, whoever asks for it: what it may say of the job, and what it is to find in its environment.

Inside a program this is used before its own imports, so the standard library must do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from carpool.errors import UsageError
from carpool.units import parse_bytes, parse_duration_ns, parse_share
from carpool.wire.protocol import ENV_KNOCK, ENV_PAGE, ENV_PARKED, ENV_SOCKET

SHARE_ALL = (0, 1000)
ENV_JOIN = "CARPOOL_JOIN"  # set: a Python that imports torch joins by itself
OPTIONS = ("name", "tenant", "weight", "priority", "memory", "wait_memory", "compute", "steps", "device")
CHOICES = {"on_hog": ("warn", "suspend", "kill"), "on_orphans": ("keep", "end")}
NAME_MAX = 60


def spec_of(given: Mapping[str, object], *, name: str) -> dict[str, object]:
    """The job's description as it travels. What is not given is read from CARPOOL_NAME and so on, as the options of
    commands are; a UsageError says what is wrong."""
    said = {option: _said(option, given.get(option)) for option in (*OPTIONS, *CHOICES)}
    for option, allowed in CHOICES.items():
        if said[option] and said[option] not in allowed:
            raise UsageError(f"{option} is {said[option]}; it is one of {', '.join(allowed)}")
    least, most = parse_share(said["compute"]) if said["compute"] else SHARE_ALL
    called = said["name"] or name
    if "/" in called or len(called) > NAME_MAX:
        raise UsageError(f"the name {called} has a slash, or more than {NAME_MAX} characters; choose another")
    return {
        "name": called,
        "tenant": said["tenant"] or "default",
        "weight_milli": round(1000 * _number("weight", said["weight"], 1.0)),
        "priority": round(_number("priority", said["priority"], 0)),
        "cap_bytes": parse_bytes(said["memory"]) if said["memory"] else None,
        "wait_memory_ns": parse_duration_ns(said["wait_memory"]) if said["wait_memory"] else None,
        "on_hog": said["on_hog"] or "suspend",
        "on_orphans": said["on_orphans"] or "keep",
        "may_park": given.get("park", True) is not False and not os.environ.get("CARPOOL_NO_PARK"),
        "guaranteed_milli": least,
        "limit_milli": most,
        "steps": round(_number("steps", said["steps"], 0)) or None,
        "device": said["device"] or None,
    }


def _said(option: str, given: object) -> str:
    return str(given) if given is not None else os.environ.get(f"CARPOOL_{option.upper()}", "")


def _number(option: str, said: str, otherwise: float) -> float:
    try:
        return float(said) if said else otherwise
    except ValueError as error:
        raise UsageError(f"{option} is '{said}', which is no number") from error


def as_seen_here(added: Mapping[str, object], socket: str, package: Path) -> dict[str, dict[str, str]]:
    """What the daemon wants in the environment, with the paths of this file system: in a container the daemon's
    directory and carpool's package may be mounted elsewhere."""
    parts = {key: _texts(added.get(key)) for key in ("set", "prepend", "default")}
    theirs, ours = Path(parts["set"].get(ENV_SOCKET, socket)).parent, Path(socket).parent
    for name in (ENV_SOCKET, ENV_PAGE, ENV_KNOCK):
        path = Path(parts["set"].get(name, ""))
        if theirs != ours and path.is_relative_to(theirs):
            parts["set"][name] = str(ours / path.relative_to(theirs))
    if ENV_PARKED in os.environ:  # whoever mounted it said where; on the machine each user has a directory there
        mounted = Path(os.environ[ENV_PARKED])
        own = mounted / Path(parts["set"].get(ENV_PARKED, "")).name
        parts["set"][ENV_PARKED] = str(own if own.is_dir() else mounted)
    parts["prepend"]["PYTHONPATH"] = str(package / "agent" / "inject")
    library = parts["prepend"].get("LD_PRELOAD", "")
    if library and not Path(library).exists():
        here = package / "_native" / Path(library).name
        parts["prepend"].pop("LD_PRELOAD")
        if here.exists():
            parts["prepend"]["LD_PRELOAD"] = str(here)
    return parts


def _texts(found: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def merged(user: Mapping[str, str], parts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The user's environment with carpool's words: some set, some put in front, some only where unset."""
    result = {**user, **parts["set"]}
    for name, value in parts["prepend"].items():
        before = result.get(name)
        is_there = before is not None and value in before.split(":")
        result[name] = before if before is not None and is_there else f"{value}:{before}" if before else value
    if not any(name.startswith(("OMP_WAIT", "GOMP_")) for name in result):
        for name, value in parts["default"].items():
            result.setdefault(name, value)
    return result
