"""The numbered rules of the project, and docs/rules.md, which lists them with the tests that name them (make docs).

A rule is defined in the head of a module of src or native, as a line `L1  Sentence`; lines that stand further right
go on with it. A test names a rule inside one of its functions: in the name (`test_l1_…`), a docstring or a comment.
The head of a test file does not count: it says what the file is about, not what is checked.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from carpool.testing.house.imports import PACKAGE, ROOT

PAGE = ROOT / "docs" / "rules.md"
NATIVE = ROOT / "native"
TESTS = ROOT / "tests"
OWN_TESTS = TESTS / "testing"  # they name rules as examples
BEGIN, END = "<!-- made from the heads of the modules by make docs -->\n", "<!-- end of what is made -->\n"
RULE = re.compile(r"^(?P<indent> *(?:\* *)?)(?P<id>[A-Z][1-9][0-9]?)  +(?P<text>\S.*)$")
NAMED = re.compile(r"(?<![A-Za-z0-9])[A-Z][1-9][0-9]?(?![A-Za-z0-9])")
IN_NAME = re.compile(r"(?<=_)[a-z][1-9][0-9]?(?=_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One numbered sentence and where it stands."""

    id: str
    text: str
    file: str
    line: int


@cache
def find_rules() -> tuple[Rule, ...]:
    """Every rule of the project, in the order of ids."""
    paths = [*PACKAGE.rglob("*.py"), *NATIVE.glob("*.[ch]")]
    found = [rule for path in sorted(paths) for rule in rules_in(path)]
    return tuple(sorted(found, key=lambda rule: (rule.id[0], int(rule.id[1:]), rule.file)))


def rules_in(path: Path) -> Iterator[Rule]:
    lines = _head(path)
    name = path.relative_to(ROOT).as_posix()
    for index, line in enumerate(lines):
        match = RULE.match(line)
        if match is not None:
            text = " ".join([match["text"].strip(), *_rest(lines[index + 1 :], len(match["indent"]))])
            yield Rule(id=match["id"], text=text.removesuffix("*/").strip(), file=name, line=index + 1)


def _head(path: Path) -> list[str]:
    """The lines of a file up to the end of its docstring or first comment."""
    text = path.read_text()
    if path.suffix == ".py":
        body = ast.parse(text).body
        has_head = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        return text.splitlines()[: body[0].end_lineno] if has_head else []
    before, _, _ = text.partition("*/")
    return before.splitlines()


def _rest(lines: Iterable[str], indent: int) -> Iterator[str]:
    """The further lines of a rule: those that stand further right than its id."""
    for line in lines:
        plain = re.sub(r"^ \*", "  ", line)
        if RULE.match(line) or len(plain) - len(plain.lstrip()) <= indent or not plain.strip():
            return
        yield plain.strip()


def defined_twice(rules: Iterable[Rule]) -> list[str]:
    counts = Counter(rule.id for rule in rules)
    return sorted(name for name, count in counts.items() if count > 1)


@cache
def named_by_tests() -> Mapping[str, tuple[str, ...]]:
    """Every id that a test names, with the files of those tests."""
    found: dict[str, set[str]] = {}
    for path in sorted([*TESTS.rglob("*.py"), *(NATIVE / "tests").glob("*.c")]):
        if path.parent == OWN_TESTS:
            continue
        text = path.read_text()
        names = named_in(text) if path.suffix == ".py" else set(NAMED.findall(text))
        for name in names:
            found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return {name: tuple(sorted(files)) for name, files in found.items()}


def named_in(source: str) -> set[str]:
    """The ids that the functions of a test file name."""
    lines = source.splitlines()
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found |= set(NAMED.findall("\n".join(lines[first - 1 : node.end_lineno])))
            found |= {name.upper() for name in IN_NAME.findall(node.name)}
    return found


def untested(rules: Iterable[Rule]) -> list[str]:
    """The ids that no test names."""
    named = named_by_tests()
    return sorted({rule.id for rule in rules if rule.id not in named})


def table(rules: Iterable[Rule]) -> str:
    named = named_by_tests()
    lines = ["| rule | what it says | where | tests that name it |", "|---|---|---|---|"]
    for rule in rules:
        tests = ", ".join(f"[{Path(file).name}](../{file})" for file in named.get(rule.id, ())) or "none"
        text = rule.text.replace("|", "\\|")
        lines.append(f"| {rule.id} | {text} | [{rule.file}:{rule.line}](../{rule.file}#L{rule.line}) | {tests} |")
    return "\n".join(lines) + "\n"


def renew(page: str) -> str:
    """The page with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(find_rules()) + END + after


def main() -> None:
    before = PAGE.read_text()
    after = renew(before)
    PAGE.write_text(after)
    sys.stderr.write(f"{PAGE.name}: {'made anew' if after != before else 'up to date'}\n")


if __name__ == "__main__":
    main()
