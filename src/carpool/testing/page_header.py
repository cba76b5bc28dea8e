"""native/page.h: the numbers of the shared page for C, made from wire/page.py (make docs)."""

from __future__ import annotations

import sys
from pathlib import Path

from carpool.wire import messages, page

HEADER = Path(__file__).parents[3] / "native" / "page.h"
TOP = """/* The page a job shares with the daemon, made from src/carpool/wire/page.py by `make docs`.
 * The rules, and what each word means, stand there. */
#ifndef CARPOOL_PAGE_H
#define CARPOOL_PAGE_H

"""
END = "\n#endif\n"


def render() -> str:
    """Every whole number that the module names, and the version of the messages."""
    numbers = {name: value for name, value in vars(page).items() if name.isupper() and type(value) is int}
    numbers["PROTOCOL"] = messages.PROTOCOL
    return TOP + "".join(f"#define CP_{name} {_spell(value)}\n" for name, value in numbers.items()) + END


def _spell(value: int) -> str:
    return str(value) if value < 1 << 31 else f"0x{value:X}ull"


def main() -> int:
    HEADER.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
