"""Where hours and days of people begin: what is booked has the start of its hour, of its day or of its month.

Times are seconds since 1970, and the zone is that of this machine: a day of a report is one as people there live it.
"""

from __future__ import annotations

import time

HOUR, DAY, MONTH = 3600, 86_400, 31 * 86_400  # the kinds of spans; a day or month may be shorter or longer
_LATER = {DAY: 36 * HOUR, MONTH: 40 * DAY}  # from a start on, so much later is in the next one for sure


def start_of(at_s: int, span: int) -> int:
    """The start of the hour, day or month that this moment is in."""
    at = time.localtime(at_s)
    if span == HOUR:
        return at_s - (at_s + at.tm_gmtoff) % HOUR
    first = at.tm_mday if span == DAY else 1
    return int(time.mktime((at.tm_year, at.tm_mon, first, 0, 0, 0, 0, 0, -1)))


def end_of(start_s: int, span: int) -> int:
    """Where the next one begins."""
    return start_of(start_s, HOUR) + HOUR if span == HOUR else start_of(start_s + _LATER[span], span)
