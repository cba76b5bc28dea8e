"""The tables of entry points in docs/interposer.md, made from native/hooks.def and harmless.py (make docs)."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from carpool.testing import doors
from carpool.testing.harmless import CUDA, NVML, groups_of

ROOT = Path(__file__).parents[3]
BEGIN, END = "<!-- made from native/hooks.def by make docs -->\n", "<!-- end of what is made -->\n"
ROW = re.compile(r'^(HOOK|GATE|NVML|LEFT)\((\w+)(?:, "([^"]*)"\))?', re.MULTILINE)
SECTION = re.compile(r"^/\* (\w.*?) \*/$", re.MULTILINE)


FORM = re.compile(r"(?:_v\d+)?(?:_pt[sd][sz])?$")


def rows(definition: str) -> set[str]:
    """The entry points of the list, hooked or left."""
    return {symbol for _, symbol, _ in ROW.findall(_body(definition))}


def places(name: str, definition: str) -> list[str]:
    """Where an entry point is decided; it should be one place."""
    return [group.what for group in groups_of(name)] + [
        kind for kind, symbol, _ in ROW.findall(_body(definition)) if symbol == name
    ]


def table(definition: str, names: set[str]) -> str:
    """What is covered, by section; what is left, by reason; of `names`, how many are harmless, by group."""
    parts = SECTION.split(_body(definition))
    lines = ["| group | hooked entry points |", "|---|---|"]
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        hooked = [symbol for kind, symbol, _ in ROW.findall(text) if kind != "LEFT"]
        if hooked:
            lines.append(f"| {title.partition(':')[0]} | {', '.join(f'`{name}`' for name in hooked)} |")
    left: dict[str, list[str]] = {}
    for kind, symbol, why in ROW.findall(_body(definition)):
        if kind == "LEFT":
            left.setdefault(why, []).append(symbol)
    lines += ["", "| not hooked | why, and what follows |", "|---|---|"]
    lines += [f"| {_shortly(symbols)} | {why} |" for why, symbols in left.items()]
    lines += ["", "| harmless | entry points | why |", "|---|---|---|"]
    counts = Counter(group for name in names for group in groups_of(name))
    lines += [f"| {group.what} | {counts[group]} | {group.why} |" for group in CUDA]
    lines += [f"| NVML: {group.what} | {counts[group]} | {group.why} |" for group in NVML]
    return "\n".join(lines) + "\n"


def _body(definition: str) -> str:
    return definition.partition("#define DIMS")[2]


def _shortly(symbols: list[str]) -> str:
    """Each name, its other forms by their endings."""
    forms: dict[str, list[str]] = {}
    for symbol in symbols:
        base = FORM.sub("", symbol)
        forms.setdefault(base if base in symbols else symbol, []).append(symbol)
    return ", ".join(
        f"`{base}`" + (f" ({', '.join(f'`{one.removeprefix(base)}`' for one in found[1:])})" if found[1:] else "")
        for base, found in forms.items()
    )


def all_names() -> set[str]:
    """Every entry point that the stand-ins have."""
    text = doors.TARGET.read_text()
    return set(re.findall(r"^(?:DOOR|ABSENT|ABSENT_NVML)\((\w+)", text, re.MULTILINE)) | doors.answered("nvml.c")


def renew(page: str, made: str) -> str:
    """The page with the table between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main() -> int:
    page = ROOT / "docs" / "interposer.md"
    page.write_text(renew(page.read_text(), table((ROOT / "native" / "hooks.def").read_text(), all_names())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
