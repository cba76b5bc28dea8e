"""The table of CUDA entry points in docs/interposer.md, made from native/hooks.def (make docs)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BEGIN, END = "<!-- made from native/hooks.def by make docs -->\n", "<!-- end of what is made -->\n"
ROW = re.compile(r'^(HOOK|GATE|NVML|LEFT)\((\w+)(?:, "([^"]*)"\))?', re.MULTILINE)
SECTION = re.compile(r"^/\* (\w.*?) \*/$", re.MULTILINE)


def table(definition: str) -> str:
    """Both tables: what is covered, by section; what is left, by reason."""
    body = definition.partition("#define DIMS")[2]
    parts = SECTION.split(body)
    lines = ["| group | hooked entry points |", "|---|---|"]
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        names = [symbol for kind, symbol, _ in ROW.findall(text) if kind != "LEFT"]
        if names:
            lines.append(f"| {title.partition(':')[0]} | {', '.join(f'`{name}`' for name in names)} |")
    left: dict[str, list[str]] = {}
    for kind, symbol, why in ROW.findall(body):
        if kind == "LEFT":
            left.setdefault(why, []).append(symbol)
    lines += ["", "| not hooked | why, and what follows |", "|---|---|"]
    lines += [f"| {', '.join(f'`{name}`' for name in names)} | {why} |" for why, names in left.items()]
    return "\n".join(lines) + "\n"


def renew(page: str, made: str) -> str:
    """The page with the table between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main() -> int:
    page = ROOT / "docs" / "interposer.md"
    page.write_text(renew(page.read_text(), table((ROOT / "native" / "hooks.def").read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
