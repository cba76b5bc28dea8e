"""carpool.toml as it is first written: every setting there is, with its default, as a comment.

The settings and their defaults are those of the code (settings_file.py); here are only the words beside them. A test
keeps the two together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from carpool.daemon.config import DaemonConfig
from carpool.daemon.settings_file import Access, TenantSettings, UserLimits

HEAD = """\
# What the daemon of this machine goes by. A line that begins with # is the default. Take the # away to change it,
# then: carpool system reload. That says what counts at once and what from the next start on. carpool system status
# says whether this file can be read. The words are explained in docs/operations.md.
"""
TENANT_HEAD = """\
# A tenant is a user, or several who share one part. Whoever is in none is a tenant of his own, by his login name.
# Copy these lines for each tenant:
# [tenant.lab]
"""
DEFAULTS_HEAD = """\
# The same for each tenant that has no lines of its own; all but the members.
# [tenant-defaults]
"""

DAEMON_WORDS = {
    "policy": "who goes next: fair, srtf, priority and others (carpool policy list)",
    "device": "auto, cuda, cuda:0,1, cpu or cpu:16GiB",
    "quantum": "how long a job keeps its turn at least, like 100ms; empty: chosen",
    "latency": "where that is chosen: within this all who wait have a turn each; empty: 2s",
    "hog_after": "how late a job may be with its turn before it is a hog; empty: 2s",
    "tenant_weights": "what tenants without lines of their own count, like ana=2,ben=1",
    "share_policy": "what --compute means: fixed, best-effort, equal, weighted or burst",
    "host_memory": "what parked jobs may hold off the device, like 64GiB; empty: half the memory",
    "journal_size": "what the journal's file may have at most; empty: 64MiB",
    "starts": "so many programs are being started at once; empty: by the cores",
    "park_to": "where the CPU device's parked jobs are kept; empty: in /var/lib/carpool",
    "warm": "jobs start warm, unless they say --cold",
}
ACCESS_WORDS = {
    "group": "only its members may use the daemon; empty: everyone",
    "admins": "may order everybody's jobs about: users, and groups like @wheel",
    "private": "users do not see each other's names",
}
LIMITS_WORDS = {
    "connections": "of one user to the daemon, at once",
    "jobs": "of one user that are not over; 0: no limit",
    "queued": "of one user that wait to be started",
    "log_size": "of all logs of one user",
    "run_size": "of what programs of one user write beside their pages",
    "processes": "of all jobs of one user",
    "hog": "a job that keeps its turn so long is ended, like 10m; empty: as its --on-hog says",
}
TENANT_WORDS = {
    "members": "users, and groups like @students",
    "weight": "what it counts under fair",
    "priorities": "which ones its jobs may have, like 0..5; empty: any",
    "memory": "of all devices together, like 16GiB; empty: no ceiling",
    "compute": "of each device's time, like 50%; empty: no ceiling",
    "jobs": "so many of its jobs are started at once; 0: no ceiling",
    "devices": "on which its jobs may run, like gpu0; none: all",
    "guaranteed": "of each device, time and memory, like 25%; lent while it is idle",
    "order": "the policy by which its own jobs go; empty: the daemon's",
}


def settings_text(*, chosen: Mapping[str, str] | None = None) -> str:
    """The whole file; `chosen` settings, by names like `access.group`, are no comments."""
    chosen = chosen or {}
    parts = [
        HEAD + _lines(DaemonConfig(), DAEMON_WORDS, chosen, ""),
        "[access]\n" + _lines(Access(), ACCESS_WORDS, chosen, "access."),
        "[limits]\n" + _lines(UserLimits(), LIMITS_WORDS, chosen, "limits."),
        TENANT_HEAD + _lines(TenantSettings(), TENANT_WORDS, chosen, ""),
        DEFAULTS_HEAD + _lines(TenantSettings(), {"weight": TENANT_WORDS["weight"]}, chosen, ""),
    ]
    return "\n".join(parts)


def _lines(defaults: msgspec.Struct, words: Mapping[str, str], chosen: Mapping[str, str], head: str) -> str:
    said = []
    for key, word in words.items():
        value = chosen.get(head + key)
        line = f"{key} = {json.dumps(msgspec.to_builtins(getattr(defaults, key)) if value is None else value)}"
        said.append(f"{'# ' if value is None else ''}{line:<30}  # {word}")
    return "\n".join(said) + "\n"
