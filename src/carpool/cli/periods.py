"""Times of the past as people type and read them: 7d, yesterday, 2026-11-20, 2026-11-20T08:00."""

from __future__ import annotations

import re
import time

import click

from carpool.errors import UsageError

HOUR, DAY = 3600, 86_400
YEARS_MAX = 20
_AGO = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)\s*(m|min|h|d|w)")
_UNITS = {"m": 60, "min": 60, "h": HOUR, "d": DAY, "w": 7 * DAY}
_FORMS = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H", "%Y-%m", "%Y")
ADVICE = "write it like 12h, 7d, today, yesterday, 2026-11-20 or 2026-11-20T08:00"


def parse_moment(text: str, *, now_s: int) -> int:
    """A moment of the past, as seconds since 1970 by this machine's zone."""
    said = text.strip().lower()
    midnight = time.mktime((*time.localtime(now_s)[:3], 0, 0, 0, 0, 0, -1))
    if said in ("now", "today", "yesterday"):
        before = time.localtime(midnight - DAY // 2)
        return {"now": now_s, "today": int(midnight)}.get(said) or int(time.mktime((*before[:3], 0, 0, 0, 0, 0, -1)))
    ago = _AGO.fullmatch(said)
    if ago is not None:
        span = int(float(ago[1]) * _UNITS[ago[2]])
        if span > YEARS_MAX * 366 * DAY:
            raise UsageError(f"'{text}' is too long ago; at most {YEARS_MAX} years are looked at")
        return now_s - span
    for form in _FORMS:
        try:
            return int(time.mktime(time.strptime(text.strip(), form)))
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"'{text}' is not a time of the past; {ADVICE}")


def span_of(since: str | None, until: str | None, *, default: str) -> tuple[int, int | None]:
    """The two moments of --since and --until; misuse where they are none, or the wrong way round."""
    now_s = int(time.time())
    found: list[int | None] = []
    for option, text in (("--since", since or default), ("--until", until)):
        try:
            found.append(None if text is None else parse_moment(text, now_s=now_s))
        except UsageError as error:
            raise click.BadParameter(str(error), param_hint=option) from error
    since_s, until_s = found[0] or 0, found[1]
    if until_s is not None and until_s <= since_s:
        raise click.BadParameter(
            f"it ends at {moment(until_s)} and would begin at {moment(since_s)}: say an earlier --since",
            param_hint="--until",
        )
    return max(0, since_s), until_s


def moment(at_s: float) -> str:
    """A moment as people read it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))
