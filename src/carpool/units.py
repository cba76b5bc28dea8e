"""Bytes and seconds: parsing what people type, printing what people read. Used only at the edges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from carpool.errors import UsageError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
MS, SECOND = 1_000_000, 1_000_000_000
TENANT_MAX = 1_000_000
BYTES_MAX = 1 << 50  # a pebibyte: anything larger is a slip of the keyboard
HOURS_MAX = 87_600  # ten years: the same of time

_BYTE_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 1000,
    "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
    "t": TIB, "tib": TIB, "tb": 1000**4,
}  # fmt: skip
_TIME_UNITS = {"ns": 1, "us": 1000, "ms": MS, "s": SECOND, "": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}
_NUMBER = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})\s*([a-zA-Z]*)\s*")


def printable(text: str, length_max: int | None = None) -> str:
    """What somebody says, as others may see it in a terminal: bytes that are no text, and what would move the cursor,
    as Python writes them."""
    plain = text[:length_max].encode(errors="backslashreplace").decode()
    return plain if plain.isprintable() else "".join(map(_shown, plain))


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def parse_bytes(text: str) -> int:
    """`512MiB`, `4GiB`, `1.5g` or a plain number of bytes; at least one byte."""
    match = _NUMBER.fullmatch(text)
    unit = _BYTE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"'{text}' is not a size; write it like 512MiB or 4GiB")
    count = int(float(match[1]) * unit)
    if not 1 <= count <= BYTES_MAX:
        raise UsageError(f"'{text}' is {count} bytes; a size is between 1 byte and 1024 TiB")
    return count


def parse_duration_ns(text: str, *, advice: str = "write it like 100ms, 2s or 5m") -> int:
    """`100ms`, `2s`, `1.5m`, `1h` or a plain number of seconds, as nanoseconds."""
    match = _NUMBER.fullmatch(text)
    unit = _TIME_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"'{text}' is not a length of time; {advice}")
    span = int(float(match[1]) * unit)
    if span > HOURS_MAX * 3600 * SECOND:
        raise UsageError(f"'{text}' is too long; the longest time is {HOURS_MAX}h, ten years")
    return span


def parse_share(text: str) -> tuple[int, int]:
    """`30%` (always) or `30%:60%` (at least and at most), as two numbers of thousandths."""
    parts = [re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*", part) for part in text.split(":")]
    if len(parts) > 2 or not all(parts):
        raise UsageError(f"'{text}' is not a share; write it like 30%, or 30%:60% for at least and at most")
    shares = [round(float(part[1]) * 10) for part in parts if part]
    least, most = shares[0], shares[-1]
    if not 1 <= most <= 1000:
        raise UsageError(f"'{text}' lets a job have {format_share(most)} of a device; a share is 0.1 % to 100 %")
    if least > most:
        raise UsageError(f"'{text}' guarantees more than it allows; write the smaller part first: least:most")
    return least, most


def parse_tenants(text: str) -> dict[str, int]:
    """`ana=2,ben=0.5`: a number for each tenant, as thousandths."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if not name or not re.fullmatch(r"[0-9]{1,30}(\.[0-9]{1,30})?|\.[0-9]{1,30}", number):
            raise UsageError(f"'{part}' is not a tenant and its number; write it like ana=2,ben=1")
        milli = round(float(number) * 1000)
        if not 1 <= milli <= 1000 * TENANT_MAX:
            raise UsageError(f"'{part}' gives tenant {name} {number}; it must be above 0 and at most {TENANT_MAX:,}")
        if name in found:
            raise UsageError(f"'{text}' names tenant {name} twice")
        found[name] = milli
    return found


def format_tenants(milli: Mapping[str, int]) -> str:
    return ",".join(f"{name}={count / 1000:g}" for name, count in milli.items())


def format_share(milli: int) -> str:
    return f"{milli / 10:g} %"


def format_bytes(count: int) -> str:
    """Two or three significant digits and a binary unit: `2.1 GiB`, `640 MiB`, `17 B`."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            value = count / unit
            return (
                f"{value:.2f} {name}"
                if value < 10
                else f"{value:.1f} {name}"
                if value < 100
                else f"{value:.0f} {name}"
            )
    return f"{count} B"


def format_count(count: int, noun: str) -> str:
    """`1 job`, `1,200 jobs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_list(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`; at least one."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def format_ns(span: int) -> str:
    """A span of time as people say it: `41 ms`, `3.2 s`, `2 min 5 s`, `1 h 10 min`."""
    if span < 1000:
        return f"{span} ns"
    if span < MS:
        return f"{span / 1000:.0f} us"
    if span < SECOND:
        return f"{span / MS:.1f} ms" if span < 10 * MS else f"{span / MS:.0f} ms"
    seconds = span / SECOND
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"
