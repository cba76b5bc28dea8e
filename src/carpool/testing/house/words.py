"""Words that nobody explains: names of modules and states which the glossary in docs/style.md lacks.

The glossary is every table below the heading "Words": the first cell of a row has one or more words, the second says
what they mean. A module is defined if its name is there, whole or part by part (`torch_hooks` by torch and hooks), in
singular or plural. What users type is defined by the page that lists it: commands, benches, policies, rules of
placement and studies. A state is a member of an enumeration of the core.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from carpool.testing.house.imports import CORE, ROOT, sources

PAGE = ROOT / "docs" / "style.md"
HEADING = "## Words\n"
TYPED = ("cli", "bench", "core.policies", "core.cluster.orders", "core.cluster.placement", "sim.studies")
NOT_OURS = {"sitecustomize"}  # Python looks for it by this name


def glossary(page: str) -> set[str]:
    """The words that the tables below the heading define."""
    _, _, after = page.partition(HEADING)
    section = re.split(r"^## ", after, maxsplit=1, flags=re.MULTILINE)[0]
    found: set[str] = set()
    for line in section.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            first = re.sub(r"\(.*?\)|`", "", line.split("|")[1])
            found |= {_plain(word) for word in first.split(",") if word.strip()}
    return found


def _plain(word: str) -> str:
    """A word in lower case and singular, as the glossary and the code may differ in that."""
    word = word.strip().lower().replace("_", " ")
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def is_defined(name: str, known: set[str]) -> bool:
    return _plain(name) in known or all(_plain(part) in known for part in name.split("_"))


def undefined_modules(known: set[str]) -> Iterator[str]:
    """The modules whose names say nothing to a newcomer, by their paths."""
    pages = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    for module, path in sources().items():
        folder, _, name = module.removeprefix("carpool.").rpartition(".")
        is_plain = name.startswith("_") or name in NOT_OURS or module == "carpool" or folder == "bench.programs"
        if is_plain or is_defined(name, known):
            continue
        if not (path.name != "__init__.py" and folder in TYPED and _is_typed(name, pages)):
            yield module.removeprefix("carpool.")


def _is_typed(name: str, pages: str) -> bool:
    """Whether a page has it as something that one types."""
    word = re.escape(name).replace("_", "[-_]")
    return re.search(rf"(?:`|carpool |bench |--study ){word}\b", pages) is not None


def states() -> dict[str, list[str]]:
    """The members of every enumeration of the core, by its name."""
    found: dict[str, list[str]] = {}
    for module, path in sources().items():
        if not module.startswith(CORE):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(base) for base in node.bases):
                found.setdefault(node.name, []).extend(_members(node))
    return found


def _members(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if (
            isinstance(each, ast.Assign)
            and isinstance(each.value, ast.Constant)
            and isinstance(each.value.value, str)
        ):
            yield each.value.value


def undefined_states(known: set[str]) -> Iterator[str]:
    for name, members in states().items():
        yield from (f"{name} {member!r}" for member in dict.fromkeys(members) if _plain(member) not in known)


def undefined() -> list[str]:
    """Every module and state without a word in the glossary."""
    known = glossary(PAGE.read_text())
    return [*undefined_modules(known), *undefined_states(known)]
