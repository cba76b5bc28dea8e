"""Draws docs/house.svg: packages as rooms by layer, who imports whom, and four walks through the rooms.

The plan is made from the source, the walks from real runs (walks.py). The walks are kept inside the picture, so that
a test can compare it with the source without running anything.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

from carpool.testing.house import imports
from carpool.testing.house.walks import Walk, from_plain, to_plain

PAGE = imports.ROOT / "docs" / "house.svg"
WIDTH, MARGIN, GAP = 1000, 20, 14
TITLE, CELL, LANE = 24, 34, 26
SQUARE, ROW, HEADS = 24, 20, 108
COLUMNS = 148  # of a legend
LABELS = 150  # what the names of a walk's rooms take
LINE = 14
COLOURS = ("#1f77b4", "#c2571a", "#2e7d32", "#8e3fa8")
NATIVE = "native"
WHAT = {
    "one lease": "a second job asks for a turn; the first, which computes, gives it back in C, where no hook looks",
    "one park": "carpool suspend: the job's tensors leave the device at its next boundary",
    "one waiting allocation": "malloc finds no room and waits; another job ends, and the memory comes with a turn",
    "one simulated job": "carpool sim --turns: the same scheduler in virtual time",
}


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with a name."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where every room stands: packages, and the folders in them."""

    packages: dict[str, Box]
    cells: dict[str, Box]  # core/node/turns
    counts: Counter[str]  # modules in a room
    height: float


def rooms() -> Counter[str]:
    """Every room with its number of modules; a module right below carpool is a room by itself."""
    found: Counter[str] = Counter()
    for name, path in imports.sources().items():
        if path.name.startswith("__") or name.startswith("carpool._native"):
            continue
        folder = name.removeprefix("carpool.").rpartition(".")[0] or name.removeprefix("carpool.")
        found[folder.replace(".", "/")] += 1
    found[NATIVE] = len(list((imports.ROOT / "native").glob("*.c")))
    return found


def make_plan(counts: Counter[str], top: float) -> Plan:
    """Layers from the top: who imports stands above what it imports."""
    packages: dict[str, Box] = {}
    cells: dict[str, Box] = {}
    y = top
    for layer in reversed(imports.LAYERS):
        names = sorted(
            {room.partition("/")[0] for room in counts} & (layer | ({NATIVE} if "agent" in layer else set()))
        )
        inner = {name: sorted(room for room in counts if room.partition("/")[0] == name) for name in names}
        rows = 2 if any(len(found) > 5 for found in inner.values()) else 1
        height = TITLE + rows * (CELL + 6) + 6 if any(len(found) > 1 for found in inner.values()) else TITLE + 14
        weights = {name: _weight(found, rows) for name, found in inner.items()}
        left, unit = float(MARGIN), (WIDTH - 2 * MARGIN - GAP * (len(names) - 1)) / sum(weights.values())
        for name in names:
            packages[name] = Box(left, y, weights[name] * unit, height)
            cells |= _place_cells(packages[name], inner[name], rows)
            left += weights[name] * unit + GAP
        y += height + 16
    return Plan(packages=packages, cells=cells, counts=counts, height=y - 16)


def _weight(found: list[str], rows: int) -> float:
    return -(-len(found) // rows) if len(found) > 1 else 1.0


def _place_cells(box: Box, found: list[str], rows: int) -> dict[str, Box]:
    if len(found) == 1:
        return {found[0]: box}
    columns = -(-len(found) // rows)
    width = (box.width - 6) / columns
    return {
        room: Box(
            box.x + 6 + (index % columns) * width, box.y + TITLE + (index // columns) * (CELL + 6), width - 6, CELL
        )
        for index, room in enumerate(found)
    }


# --- pieces of SVG ---------------------------------------------------------------------------------------------


def text(x: float, y: float, words: str, *, size: float = 12, colour: str = "#222", style: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}"{style}>{escape(words)}</text>'


MIDDLE = ' text-anchor="middle"'
BOLD = ' font-weight="bold"'


def rectangle(box: Box, *, fill: str, stroke: str = "#8a8a8a") -> str:
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5"'
        f' fill="{fill}" stroke="{stroke}"/>'
    )


def draw_plan(plan: Plan) -> Iterator[str]:
    for name, box in plan.packages.items():
        inner = [room for room in plan.cells if room.partition("/")[0] == name]
        yield rectangle(box, fill="#f4efe4" if name != NATIVE else "#e4ecf4")
        total = sum(plan.counts[room] for room in inner)
        yield text(box.x + box.width / 2, box.y + 17, f"{name} {total}", size=13, style=MIDDLE + BOLD)
        if len(inner) > 1:
            for room in inner:
                cell = plan.cells[room]
                yield rectangle(cell, fill="#fffdf8", stroke="#b9b09c")
                label = f"{room.partition('/')[2] or 'itself'} {plan.counts[room]}"
                size = 11 if len(label) * 6.8 < cell.width else 9.5
                yield text(cell.middle[0], cell.middle[1] + 4, label, size=size, style=MIDDLE)


# --- imports -----------------------------------------------------------------------------------------------------


def crossings(depth: int, below: str = "") -> Counter[tuple[str, str]]:
    """How many imports go from one room to another; rooms by so many parts of their paths."""
    found: Counter[tuple[str, str]] = Counter()
    for name, targets in imports.graph().items():
        for target in targets:
            upper, lower = _room(name, depth), _room(target, depth)
            if upper != lower and upper.startswith(below) and lower.startswith(below):
                found[upper, lower] += 1
    return found


def _room(module: str, depth: int) -> str:
    parts = imports.short(module).split(".")
    return "/".join(parts[:-1][:depth] or parts[:1])


def draw_imports(names: list[str], counts: Counter[tuple[str, str]], left: float, top: float) -> Iterator[str]:
    """A table: a number where the room of the row imports so often from the room of the column."""
    shown = [name.removeprefix("core/") for name in names]
    start = left + max(len(name) for name in shown) * 6.6 + 8
    for index, name in enumerate(names):
        x, y = start + index * SQUARE + SQUARE / 2, top + HEADS
        turned = f' transform="rotate(-60 {x:.0f} {y - 6:.0f})"'
        yield text(x, y - 6, shown[index], size=11, style=turned)
        yield text(start - 6, y + index * ROW + 14, shown[index], size=11, style=' text-anchor="end"')
        for other, target in enumerate(names):
            spot = Box(start + other * SQUARE, y + index * ROW, SQUARE - 2, ROW - 2)
            count = counts[name, target]
            shade = "#ece8de" if name == target else _shade(count)
            yield rectangle(spot, fill=shade, stroke="none")
            if count:
                yield text(spot.middle[0], spot.middle[1] + 4, str(count), size=10, style=MIDDLE)


def _shade(count: int) -> str:
    return next(
        shade for least, shade in ((20, "#e0a94f"), (5, "#efcf94"), (1, "#f8e8c8"), (0, "#faf9f6")) if count >= least
    )


def by_height(names: Iterable[str], plan: Plan) -> list[str]:
    """From the top of the house to its foot."""
    boxes = {**plan.cells, **plan.packages}
    return sorted(names, key=lambda name: (boxes[name].y, boxes[name].x))


def depth_order(counts: Counter[tuple[str, str]]) -> list[str]:
    """Rooms in an order in which imports go down, as far as there is one."""
    names = sorted({name for pair in counts for name in pair})
    graph = {name: frozenset(lower for upper, lower in counts if upper == name) for name in names}
    return sorted(names, key=lambda name: (-len(imports.longest_chain(_below(graph, name))), name))


def _below(graph: imports.Graph, name: str) -> imports.Graph:
    reached, todo = set[str](), [name]
    while todo:
        each = todo.pop()
        if each not in reached:
            reached.add(each)
            todo += graph[each]
    return {each: graph[each] & reached for each in reached}


# --- walks -----------------------------------------------------------------------------------------------------


def lanes_of(walk: Walk, plan: Plan) -> list[str]:
    """The rooms of a walk, from the top of the house to its foot."""
    met = dict.fromkeys(step.room for step in walk.steps)
    gone = Box(0, 1e9, 0, 0)
    return sorted(met, key=lambda room: (plan.cells.get(room, gone).y, plan.cells.get(room, gone).x, room))


def draw_walk(walk: Walk, plan: Plan, top: float, colour: str) -> tuple[list[str], float]:
    """One panel; returns where it ends."""
    lanes = lanes_of(walk, plan)
    drawn = [text(MARGIN, top + 16, walk.name, size=15, colour=colour, style=BOLD)]
    drawn.append(text(MARGIN + 9 * len(walk.name) + 12, top + 16, WHAT.get(walk.name, ""), colour="#555"))
    first = top + 40
    for index, room in enumerate(lanes):
        y = first + index * LANE
        drawn.append(f'<line x1="{MARGIN + LABELS}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}" stroke="#e2ddd0"/>')
        drawn.append(text(MARGIN + LABELS - 10, y + 4, room, style=' text-anchor="end"'))
    pace = (WIDTH - 2 * MARGIN - LABELS - 30) / max(1, len(walk.steps) - 1)
    spots = [
        (MARGIN + LABELS + 15 + index * pace, first + lanes.index(step.room) * LANE)
        for index, step in enumerate(walk.steps)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" opacity="0.65"/>')
    for number, (x, y) in enumerate(spots, start=1):
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9.5" fill="{colour}"/>')
        drawn.append(text(x, y + 4, str(number), size=10.5, colour="#fff", style=MIDDLE + BOLD))
    y = first + (len(lanes) - 1) * LANE + 26
    for row in legend(walk):
        drawn.append(_row(row, y))
        y += LINE
    return drawn, y


def legend(walk: Walk) -> Iterator[list[str]]:
    """What is done in each step, in rows of words: who walks, and the modules."""
    row: list[str] = []
    before = ""
    for number, step in enumerate(walk.steps, start=1):
        names = ", ".join(module.rpartition(".")[2].strip() for module in step.modules)
        who = f"{step.who}: " if step.who != before else ""
        before = step.who
        first, *words = f"{who}{names}".split()
        for together in (
            [f"#{number}", first],
            *([word] for word in words),
        ):  # a number stands beside its word
            if len(" ".join([*row, *together])) > COLUMNS:
                yield row
                row = []
            row += together
    yield row


def _row(words: list[str], y: float) -> str:
    """A row of the legend; numbers of steps stand out."""
    shown = " ".join(
        f'<tspan font-weight="bold">{word[1:]}</tspan>' if word.startswith("#") else escape(word) for word in words
    )
    return f'<text x="{MARGIN}" y="{y:.0f}" font-size="11" fill="#333" xml:space="preserve">{shown}</text>'


def draw(walks: Iterable[Walk]) -> str:
    """The whole picture."""
    walks = list(walks)
    plan = make_plan(rooms(), 64)
    body = [
        text(MARGIN, 28, "The house", size=20, style=BOLD),
        text(
            MARGIN,
            48,
            "Rooms are packages with their number of modules, by layer: a package imports only what stands lower;"
            " in the top row also its neighbours.",
            colour="#555",
        ),
        *draw_plan(plan),
    ]
    outer, inner = crossings(1), crossings(9, "core/")
    packages = by_height((name for name in plan.packages if name != NATIVE), plan)
    head = plan.height + 30
    body += [
        text(MARGIN, head, "Imports between packages", size=15, style=BOLD),
        text(WIDTH / 2 + 40, head, "Imports between the rooms of the core", size=15, style=BOLD),
        *draw_imports(packages, outer, MARGIN, head + 4),
        *draw_imports(depth_order(inner), inner, WIDTH / 2 + 40, head + 4),
    ]
    top = head + HEADS + max(len(packages), len(depth_order(inner))) * ROW + 34
    for walk, colour in zip(walks, COLOURS, strict=False):
        drawn, top = draw_walk(walk, plan, top, colour)
        body += drawn
        top += 14
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" width="{WIDTH}" height="{top:.0f}"'
        ' font-family="Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    kept = f'<metadata id="facts">{escape(json.dumps(facts(walks)))}</metadata>'
    ground = f'<rect width="{WIDTH}" height="{top:.0f}" fill="#ffffff"/>'
    return "\n".join([opening, kept, ground, *body, "</svg>"]) + "\n"


def facts(walks: Iterable[Walk]) -> dict[str, object]:
    """What the picture was drawn from."""
    pairs = [*crossings(1), *crossings(9, "core/")]
    return {
        "rooms": sorted(rooms()),
        "imports": sorted(f"{upper} > {lower}" for upper, lower in pairs),
        "walks": to_plain(walks),
    }


def kept_facts(picture: str) -> dict[str, Any]:
    """The same, as it stands in a picture."""
    found = re.search(r'<metadata id="facts">(.*?)</metadata>', picture, re.DOTALL)
    return dict(json.loads(unescape(found[1]))) if found is not None else {"rooms": [], "imports": [], "walks": []}


def strangers(walks: Iterable[Walk]) -> list[str]:
    """Modules of the walks that are not there any more."""
    known = {imports.short(name) for name in imports.sources()}
    visited = {module.strip() for walk in walks for step in walk.steps for module in step.modules}
    return sorted(module for module in visited if module not in known and not module.startswith(f"{NATIVE}."))


def main() -> None:
    """Draw the plan anew; the walks stay as they were taken."""
    walks = from_plain(kept_facts(PAGE.read_text())["walks"])
    PAGE.write_text(draw(walks))
    lost = strangers(walks)
    sys.stderr.write(f"{PAGE.name}: drawn" + (f"; take the walks again with make house: {lost}\n" if lost else "\n"))


if __name__ == "__main__":
    main()
