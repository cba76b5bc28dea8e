"""Prints the figures: `python -m carpool.testing.house [--json] [--draw]`."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap

from carpool.testing.house import drawing, figures, walks

EXAMPLE = """example: python -m carpool.testing.house --json
It exits with 1 if a figure is above its bound.
Every figure stands beside its bound; the names behind it follow. docs/style.md says why these are watched."""


def show(found: dict[str, figures.Figure]) -> str:
    """A table for people, and below it the names behind each figure."""
    lines = [f"{'figure':<32}{'now':>5}{'bound':>7}   what it counts"]
    for name, figure in found.items():
        mark = " " if figure.value <= figures.BOUNDS[name] else "*"
        lines.append(f"{name:<32}{figure.value:>5}{figures.BOUNDS[name]:>7} {mark} {figures.WHAT[name]}")
    lines += ["", "* above its bound"] if figures.broken(found) else []
    for name, figure in found.items():
        if figure.names:
            lines += ["", f"{name}:"]
            lines += [
                textwrap.fill(each, 116, initial_indent="  ", subsequent_indent="    ") for each in figure.names
            ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m carpool.testing.house",
        description="Says how well the core can be seen: imports, writers of fields, modules of a decision, words.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one object with all figures")
    parser.add_argument("--draw", action="store_true", help="take the walks and draw docs/house.svg (a minute)")
    asked = parser.parse_args()
    found = figures.measure()
    if asked.json:
        metrics = {name: figure.value for name, figure in found.items()}
        sys.stdout.write(json.dumps({"bench": "house", "device": "", "metrics": metrics}) + "\n")
    else:
        sys.stdout.write(show(found) + "\n")
    if asked.draw:
        drawing.PAGE.write_text(drawing.draw(walks.take_walks()))
        sys.stderr.write(f"{drawing.PAGE.name}: drawn\n")
    return int(bool(figures.broken(found)))


if __name__ == "__main__":
    sys.exit(main())
