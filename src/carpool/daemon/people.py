"""Who the people of a machine are: a number from the kernel, and what the system's lists say of that number.

Nobody says who he is: a connection's uid comes from SO_PEERCRED, a process's from /proc. Names and groups are for
people to read and for the configuration; they are looked up once, as some systems ask another machine for them.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
from dataclasses import dataclass

ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is at the other end of a connection, as the kernel says."""

    uid: int
    gid: int
    pid: int  # as this daemon numbers it: 0 if it is gone, processes.UNSEEN if it is not seen here


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An account: its number, its name, and the names of its groups."""

    uid: int
    name: str
    groups: frozenset[str] = frozenset()

    def is_one_of(self, listed: tuple[str, ...] | list[str]) -> bool:
        """Whether the configuration names this user: `ana`, or `@group` for all who are in it."""
        return any(each[1:] in self.groups if each.startswith("@") else each == self.name for each in listed)


@functools.lru_cache(maxsize=4096)
def user_of(uid: int) -> User:
    """The account of this number; its name is #N where the system does not know it."""
    try:
        entry = pwd.getpwuid(uid)
        numbers = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OverflowError):
        return User(uid=uid, name=f"#{uid}")
    return User(uid=uid, name=entry.pw_name, groups=frozenset(filter(None, map(_group_name, numbers))))


def forget() -> None:
    """Look everybody up anew: the lists have changed."""
    user_of.cache_clear()


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except (KeyError, OverflowError):
        return ""
