"""What is made from wire/protocol.py and wire/messages.py (`make docs`), so that no number is written twice.

Whole files: native/page.h and native/protocol.h. Parts of files, between two marks: tables of docs/protocol.md and
docs/devices.md, and the constants of the files that run inside a job and may import nothing of carpool.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carpool.devices import base
from carpool.devices.kinds import KINDS
from carpool.wire import messages, protocol, supported

ROOT = Path(__file__).parents[3]
SOURCE = Path(protocol.__file__)
PAGE_SECTIONS = ("page", "header words", "slot words", "lease", "flags", "bits")
LINE = re.compile(r"^([A-Z][A-Z0-9_]*) = [^#]+  # (.+)$")
SECTION = re.compile(r"^# ([a-z ]+): (.+)$")
PRINTF = {"str": r"\"%s\"", "int": "%d", "bool": "%s"}
Made = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One line of wire/protocol.py."""

    name: str
    value: int | str
    meaning: str


def sections(source: str | None = None) -> dict[str, list[Number]]:
    """The numbers of wire/protocol.py by section; a line that is neither a number nor a heading is an error."""
    found: dict[str, list[Number]] = {}
    lines = (SOURCE.read_text() if source is None else source).partition("import annotations\n")[2].splitlines()
    for line in filter(None, lines):
        if heading := SECTION.match(line):
            numbers = found.setdefault(heading[1], [])
        elif number := LINE.match(line):
            numbers.append(Number(name=number[1], value=getattr(protocol, number[1], 0), meaning=number[2]))
        else:
            raise ValueError(f"{SOURCE.name} has a line that is no number with its meaning: {line}")
    return found


# --- for C --------------------------------------------------------------------------------------------------------


def page_header() -> str:
    """native/page.h."""
    lines = [
        "/* The page a job shares with the daemon, made from src/carpool/wire/protocol.py by `make docs`.",
        " */",
    ]
    lines += ["#ifndef CARPOOL_PAGE_H", "#define CARPOOL_PAGE_H"]
    for section in ("versions", *PAGE_SECTIONS):
        numbers = [each for each in sections()[section] if section != "versions" or each.name == "LAYOUT"]
        lines += ["", f"/* {section} */", *map(_define, numbers)]
    return "\n".join([*lines, "", "#endif", ""])


def protocol_header() -> str:
    """native/protocol.h: all other numbers, the frame, and each message's number, words and body."""
    lines = ["/* The messages, and what all who take turns keep to, made from src/carpool/wire/protocol.py and"]
    lines += [" * messages.py by `make docs`. */", "#ifndef CARPOOL_PROTOCOL_H", "#define CARPOOL_PROTOCOL_H", ""]
    lines += ["#include <stdint.h>"]
    for section, numbers in sections().items():
        if section not in PAGE_SECTIONS:
            wanted = [each for each in numbers if each.name not in ("LAYOUT", "FRAME")]
            lines += ["", f"/* {section} */", *map(_define, wanted)]
    lines += ["", "struct cp_frame {", "    uint16_t kind, zero;", "    uint32_t length;"]
    lines += ["    uint64_t word[CP_FRAME_WORDS];", "};"]
    lines += ['_Static_assert(sizeof(struct cp_frame) == CP_FRAME_BYTES, "a frame has no gaps");']
    for cls, form in messages.FORMS.items():
        name = _upper(cls)
        lines += ["", f"/* {cls.__name__}, {form.sender} to {form.receiver}: {cls.__doc__} */"]
        lines += [f"#define CP_M_{name} {form.kind}"]
        lines += [f"#define CP_{name}_{word.upper()} {place}" for place, word in enumerate(form.words)]
        lines += _body_format(cls, form)
    return "\n".join([*lines, "", "#endif", ""])


def _body_format(cls: type[Any], form: messages.Form) -> list[str]:
    """A printf format for the body, where it has nothing but text and numbers; a bool is the text true or false."""
    fields = [field for field in dataclasses.fields(cls) if field.name not in form.words]
    if not fields or not all(str(field.type) in PRINTF for field in fields):
        return []
    inside = ",".join(rf"\"{field.name}\":{PRINTF[str(field.type)]}" for field in fields)
    return [f'#define CP_{_upper(cls)}_BODY "{{{inside}}}"']


def _upper(cls: type[Any]) -> str:
    """As C names it: INPUT_SPEED for InputSpeed."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()


def _define(number: Number) -> str:
    return f"#define CP_{number.name} {_spell(number.value)} /* {number.meaning} */"


def _spell(value: int | str) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if value < 1 << 31:
        return str(value)
    return f"{value}ull" if value % 1000 == 0 else f"0x{value:X}ull"


# --- for the page of docs -----------------------------------------------------------------------------------------


def words_table(section: str) -> str:
    """Words of the page: name, who writes it, what it means."""
    rows = []
    for number in sections()[section]:
        writer, _, meaning = number.meaning.partition(": ")
        rows.append(f"| {number.value} | `{number.name}` | {writer} | {meaning} |")
    return "\n".join(["| word | name | writer | meaning |", "|---|---|---|---|", *rows]) + "\n"


def numbers_table(*names: str) -> str:
    """Numbers and what they mean."""
    rows = [
        f"| `{number.name}` | {_shown(number.value)} | {number.meaning} |"
        for section in names
        for number in sections()[section]
    ]
    return "\n".join(["| name | value | meaning |", "|---|---|---|", *rows]) + "\n"


def _shown(value: int | str) -> str:
    if isinstance(value, str):
        return f"`{value}`"
    if value >= 1 << 20 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    if value >= 1 << 20 and value & (value + 1) == 0:
        return f"2^{value.bit_length()} - 1"
    return f"0x{value:X}" if value > 1 << 60 else f"{value:,}"


def environment_table() -> str:
    """The variables that a job finds in its environment."""
    rows = [f"| `{number.value}` | {number.meaning} |" for number in sections()["environment"]]
    return "\n".join(["| variable | meaning |", "|---|---|", *rows]) + "\n"


def messages_table() -> str:
    """Every message: number, name, from whom to whom, words, body, meaning."""
    rows = []
    for cls, form in messages.FORMS.items():
        body = [field.name for field in dataclasses.fields(cls) if field.name not in form.words]
        columns = [str(form.kind), cls.__name__, f"{form.sender} → {form.receiver}"]
        columns += [", ".join(form.words), ", ".join(body), str(cls.__doc__)]
        rows.append("| " + " | ".join(columns).replace("|  |", "| |") + " |")
    return (
        "\n".join(["| kind | name | from → to | words | body | meaning |", "|---|---|---|---|---|---|", *rows]) + "\n"
    )


def kinds_table() -> str:
    """What each kind of device can do, one row a field of DeviceKind."""
    meanings = re.findall(r"^    (\w+): (?:str|bool)  # (.+)$", Path(base.__file__).read_text(), re.MULTILINE)
    rows = []
    for name, meaning in meanings:
        values = [getattr(kind, name) for kind in KINDS.values()]
        shown = [value if isinstance(value, str) else "yes" if value else "no" for value in values]
        rows.append(f"| `{name}` | {' | '.join(shown)} | {meaning} |")
    head = f"| | {' | '.join(f'`{name}`' for name in KINDS)} | meaning |"
    return "\n".join([head, "|---" * (len(KINDS) + 2) + "|", *rows]) + "\n"


# --- for files that may import nothing of carpool -----------------------------------------------------------------


def injected_block() -> str:
    """What a program that may import nothing of carpool must know to attach, and to say that it goes on alone."""
    lines = [f"_PROTOCOL = {protocol.PROTOCOL}", f'_FRAME, _FRAME_BYTES = "{protocol.FRAME}", {protocol.FRAME_BYTES}']
    for cls in (messages.Attach, messages.Detach):
        names = [field.name for field in dataclasses.fields(cls)]
        fields = ", ".join(f'"{name}": {name}' for name in names)
        lines += ["", "", f"def _{cls.__name__.lower()}({', '.join(names)}):"]
        lines += [f"    return {messages.FORMS[cls].kind}, {{{fields}}}"]
    return "\n".join([*lines, "", "", ""])


def supported_block() -> str:
    """Which Pythons are served, for a file that every Python reads."""
    return f"_OLDEST, _NEWEST = {supported.PYTHONS[0]}, {supported.PYTHONS[1]}\n"


def constants_block(*names: str) -> str:
    return f"{', '.join(names)} = {', '.join(str(getattr(protocol, name)) for name in names)}\n"


# --- where all this goes ------------------------------------------------------------------------------------------

FILES: dict[str, Made] = {"native/page.h": page_header, "native/protocol.h": protocol_header}
PARTS: dict[str, dict[str, Made]] = {
    "docs/protocol.md": {
        "header words": lambda: words_table("header words"),
        "slot words": lambda: words_table("slot words"),
        "flags": lambda: numbers_table("flags", "lease"),
        "bits": lambda: numbers_table("bits"),
        "messages": messages_table,
        "environment": environment_table,
        "numbers": lambda: numbers_table("versions", "frame", "page", "times and counts"),
    },
    "docs/devices.md": {"kinds": kinds_table},
    "src/carpool/agent/inject/sitecustomize.py": {"pythons": supported_block, "attach and detach": injected_block},
    "src/carpool/bench/programs/attack_members.py": {"attach and detach": injected_block},
    "src/carpool/bench/programs/attack_turns.py": {
        "page": lambda: constants_block("SLOT_WORDS", "S_PID", "S_RECALL", "FIRST_LENT")
    },
}


def marks(path: str, part: str) -> tuple[str, str]:
    """The lines between which a part stands."""
    source = "devices" if part == "kinds" else "wire"
    begin, end = f"{part}: made from src/carpool/{source} by make docs", "end of what is made"
    return (f"<!-- {begin} -->\n", f"<!-- {end} -->\n") if path.endswith(".md") else (f"# {begin}\n", f"# {end}\n")


def renew(path: str, text: str) -> str:
    """The text of a file with its parts made anew."""
    for part, make in PARTS[path].items():
        begin, end = marks(path, part)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{path} lacks the marks '{begin.strip()}' and '{end.strip()}'")
        gap = "\n" if path.endswith(".md") else ""
        text = f"{before}{begin}{gap}{make()}{gap}{end}{after}"
    return text


def wanted_texts() -> dict[str, str]:
    """Every file with something made in it, as it should be."""
    whole = {path: make() for path, make in FILES.items()}
    return whole | {path: renew(path, (ROOT / path).read_text()) for path in PARTS}


def main() -> int:
    for path, text in wanted_texts().items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
