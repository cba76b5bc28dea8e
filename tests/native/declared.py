"""What native/driver.h declares of NVIDIA's: found in its text, so that nothing new there goes unchecked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.native.probe import NATIVE

LIBRARIES = {"cuda": r"(?:CU|cu(?!da|blas))\w+", "nvml": r"(?:NVML|nvml)\w+"}


@dataclass(frozen=True)
class Declared:
    constants: list[str] = field(default_factory=list)
    fields: dict[str, list[str]] = field(default_factory=dict)  # of each type whose size is known


def text_of(name: str = "driver.h") -> str:
    """A source file of native/ without its comments."""
    return re.sub(r"/\*.*?\*/", "", (NATIVE / name).read_text(), flags=re.DOTALL)


def declared(library: str, text: str | None = None) -> Declared:
    """Constants, types and the fields of structures that belong to one of LIBRARIES."""
    text = text_of() if text is None else text
    ours, found = LIBRARIES[library], Declared()
    for name in re.findall(rf"^[ \t]*#[ \t]*define[ \t]+({ours})[ \t]+\S", text, re.MULTILINE):
        found.constants.append(name)
    for statement in statements(re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", "", text, flags=re.MULTILINE)):
        name, body = typedef_of(statement)
        if not name or not re.fullmatch(ours, name.partition(",")[0]):
            continue
        for one in re.split(r"\s*,\s*", name):
            found.fields[one] = fields_of(body)
    return found


def typedef_of(statement: str) -> tuple[str, str]:
    """The names that a statement makes types, and the body if it is a structure; no name for anything else."""
    structure = re.fullmatch(r"typedef struct\s*\{(.*)\}\s*(\w+)", statement, re.DOTALL)
    if structure:
        return structure[2], structure[1]
    plain = re.fullmatch(r"typedef (?!struct \w+ \w+$).*?(\w+(?:\s*,\s*\w+)*)", statement, re.DOTALL)
    return (plain[1] if plain else "", "")


def statements(text: str) -> list[str]:
    """The text cut at semicolons that are in no braces."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == ";" and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    return found


def fields_of(body: str) -> list[str]:
    """The fields of a structure; those of a nameless part are its own, those of a named one stand behind a dot."""
    found = []
    for statement in statements(body):
        part = re.fullmatch(r"(?:struct|union)\s*\{(.*)\}\s*(\w*)", statement, re.DOTALL)
        if part:
            inner = fields_of(part[1])
            found += inner if not part[2] else [f"{part[2]}.{name}" for name in inner]
        else:
            found += re.findall(r"(\w+)\s*(?:\[\w+\])*\s*(?:,|$)", statement)
    return found
