"""One source for the protocol: what is made from it is fresh, and nobody writes a number of it again."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carpool.testing import protocol_texts as texts
from carpool.wire import messages as m
from carpool.wire import protocol
from carpool.wire.framing import Decoder

NATIVE = texts.ROOT / "native"
MADE = {texts.ROOT / path for path in texts.FILES}
C_FILES = [path for path in sorted([*NATIVE.glob("*.[ch]"), *NATIVE.glob("tests/*.[ch]")]) if path not in MADE]
PACKAGE = texts.ROOT / "src" / "carpool"
NUMBERS = [number for numbers in texts.sections().values() for number in numbers]
NAMES = {number.name for number in NUMBERS}
MESSAGES = {cls.__name__.upper() for cls in m.FORMS}
SECOND = 1_000_000_000
TELLING = {str(number.value) for number in NUMBERS if isinstance(number.value, int) and number.value > 1 << 21} - {
    str(SECOND)
}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


# --- a change has a number of its own -----------------------------------------------------------------------------

# What each number stood for. A changed table needs the next number, or programs of two versions misread each other;
# then a line is added here. The meaning in words may change at any time.
RECORDED = {
    ("PROTOCOL", 4): "4c03a448b94ebed9",
    ("PROTOCOL", 5): "543b434babaa7f77",
    ("LAYOUT", 3): "0b7c43a4de57c70a",
    ("LAYOUT", 4): "490d76b30c7a874b",
}


def said_by_messages(forms: dict[type[Any], m.Form]) -> list[str]:
    """All that two sides must agree on to read each other's messages."""
    fields = {cls: [(field.name, str(field.type)) for field in dataclasses.fields(cls)] for cls in forms}
    told = [f"{form.kind} {cls.__name__} {form.words} {fields[cls]}" for cls, form in forms.items()]
    return [str((protocol.FRAME, protocol.BODY_MAX)), *sorted(told)]


def said_by_page(numbers: dict[str, list[texts.Number]]) -> list[str]:
    """All that two sides must agree on to read each other's words."""
    parts = ("page", "header words", "slot words", "lease", "flags", "bits")
    return [f"{number.name} {number.value}" for part in parts for number in numbers[part]]


def digest(said: list[str]) -> str:
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "said"),
    [("PROTOCOL", said_by_messages(m.FORMS)), ("LAYOUT", said_by_page(texts.sections()))],
    ids=["messages", "page"],
)
def test_what_changes_in_the_protocol_changes_its_number(name: str, said: list[str]) -> None:
    number, made = getattr(protocol, name), digest(said)
    newest = max(known for of, known in RECORDED if of == name)
    assert (number, made) == (newest, RECORDED[name, newest]), (
        f"{name} {newest} stood for something else: {name} in wire/protocol.py must be {newest + 1}, it is {number};"
        f' then add ("{name}", {newest + 1}): "{made}" to RECORDED'
    )


def test_a_field_a_word_and_a_flag_are_seen_and_other_words_for_the_meaning_are_not() -> None:
    messages, page = digest(said_by_messages(m.FORMS)), digest(said_by_page(texts.sections()))
    some = next(iter(m.FORMS))
    assert digest(said_by_messages({some: m.FORMS[some]})) != messages
    for part, name in (("slot words", "S_LIVE"), ("flags", "FLAG_BELL")):
        sections = texts.sections()
        sections[part] = [each for each in sections[part] if each.name != name]
        assert digest(said_by_page(sections)) != page
    sections = texts.sections()
    sections["flags"] = [dataclasses.replace(each, meaning="said otherwise") for each in sections["flags"]]
    assert digest(said_by_page(sections)) == page


# --- what is made is fresh ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*texts.FILES, *texts.PARTS])
def test_what_is_made_from_the_protocol_is_fresh(path: str) -> None:
    assert (texts.ROOT / path).read_text() == texts.wanted_texts()[path], f"{path} is stale: run make docs"


@pytest.mark.parametrize("path", texts.PARTS)
def test_a_number_changed_by_hand_in_a_made_part_is_put_right(path: str) -> None:
    text = (texts.ROOT / path).read_text()
    for part in texts.PARTS[path]:
        begin, end = texts.marks(path, part)
        before, _, rest = text.partition(begin)
        inside, _, after = rest.partition(end)
        spoilt = inside.replace(inside.splitlines()[-1], "changed by hand") + "and more\n"
        assert texts.renew(path, f"{before}{begin}{spoilt}{end}{after}") == text


def test_a_page_without_its_marks_is_an_error_and_not_silently_left() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        texts.renew("docs/protocol.md", "# The protocol\n")


def test_a_line_without_its_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match="no number with its meaning: H_CAP = 2"):
        texts.sections("import annotations\n# header words: one set a job\nH_CAP = 2\n")


def test_c_has_every_word_flag_message_and_time() -> None:
    made = texts.page_header() + texts.protocol_header()
    for number in NUMBERS:
        assert number.name == "FRAME" or f"#define CP_{number.name} " in made
    for line in (
        "CP_M_GRADIENTS 22",
        "CP_GRANT_SERIAL 2",
        "CP_STALL_NS 3000000",
        "CP_ORPHAN_PATIENCE_NS 15000000000ull",
    ):
        assert f"#define {line}" in made
    assert r'CP_DETACH_BODY "{\"reason\":\"%s\"}"' in made


# --- the table itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["header words", "slot words"])
def test_every_word_has_a_place_of_its_own_and_a_writer(section: str) -> None:
    numbers = texts.sections()[section]
    assert [number.value for number in numbers] == list(range(len(numbers)))
    assert len(numbers) <= protocol.SLOT_WORDS
    assert all(re.match(r"[\w ,]+: \S", number.meaning) for number in numbers)


def test_every_flag_is_a_bit_of_its_own_below_the_namespace() -> None:
    flags = [number.value for number in texts.sections()["flags"]]
    assert flags == [1 << bit for bit in range(len(flags))]
    assert len(flags) <= protocol.NAMESPACE_SHIFT


@pytest.mark.parametrize("cls", m.FORMS, ids=lambda cls: cls.__name__)
def test_every_message_says_what_it_means_and_its_words_are_fields_that_fit(cls: type[Any]) -> None:
    form, kinds = m.FORMS[cls], {field.name: str(field.type) for field in dataclasses.fields(cls)}
    assert cls.__doc__ and "\n" not in cls.__doc__
    assert {form.sender, form.receiver} <= {m.JOB, m.RUNNER, m.CLIENT, m.DAEMON, m.ANYBODY}
    assert len(form.words) <= protocol.FRAME_WORDS
    assert {kinds[word] for word in form.words} <= {"int", "bool"}


def test_every_class_of_messages_is_declared() -> None:
    declared = {cls.__name__ for cls in m.FORMS}
    assert declared == {cls.__name__ for cls in m.Message.__subclasses__()}


WRITERS = {number.name: number.meaning.partition(": ")[0].split(", ") for number in NUMBERS}
ROLES = {  # who runs these sources, in the words of the table; slots.h is part of both guests
    "meter": ["meter.c", "slots.h"],
    "CUDA guest": ["budget.c", "link.c", "share.c", "hooks.c", "slots.h"],
    "agent": ["hot_path.c", "bell.h"],
}
STORE = re.compile(
    r"\b(?:PUT|atomic_(?:store|fetch_\w+|exchange\w*|compare_exchange\w*)|cp_raise)\w*\(&?\w+\[CP_([HS]_\w+)\]"
)
PLAIN_STORE = re.compile(r"\w\[CP_([HS]_\w+)\] (?:[|&+-]?=|= )(?!=)")


def words_stored_to(source: str) -> set[str]:
    """The words of the page that a C source changes."""
    code = COMMENT.sub("", source)
    return set(STORE.findall(code)) | set(PLAIN_STORE.findall(code))


@pytest.mark.parametrize("role", ROLES)
def test_g1_c_stores_only_to_words_whose_writer_it_is(role: str) -> None:
    known = {role} if role == "agent" else {role, "guests"}
    for file in ROLES[role]:
        for word in words_stored_to((NATIVE / file).read_text()):
            assert known & set(WRITERS[word]), f"{file} stores to {word}, which only {WRITERS[word]} write"


@pytest.mark.parametrize("part", ["agent", "daemon"])
def test_g1_python_stores_only_to_words_whose_writer_it_is(part: str) -> None:
    for path in sorted((PACKAGE / part).rglob("*.py")):
        for word in words_python_stores_to(path.read_text()):
            assert part in WRITERS[word], f"{path.name} stores to {word}, which only {WRITERS[word]} write"


def words_python_stores_to(source: str) -> set[str]:
    """The words of the page that stand in the index of a store: words[base + page.S_STEPS] = 3."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            names = {each.id for each in ast.walk(node.slice) if isinstance(each, ast.Name)}
            names |= {each.attr for each in ast.walk(node.slice) if isinstance(each, ast.Attribute)}
            found |= {name for name in names & NAMES if name.startswith(("H_", "S_"))}
    return found


def test_a_store_to_the_page_is_seen() -> None:
    in_c = (
        "PUT(slot[CP_S_LIVE], 1); atomic_fetch_or(&slot[CP_S_FLAGS], x); slot[CP_S_PASS] = 0; y = slot[CP_S_LEASE];"
    )
    assert words_stored_to(in_c) == {"S_LIVE", "S_FLAGS", "S_PASS"}
    assert words_stored_to("cp_raise(&cp_page[CP_H_SLOTS_USED], 4)") == {"H_SLOTS_USED"}
    in_python = "words[base + page.S_STEPS] = 3\nwords[H_CAP] += 1\nx = words[S_PID]\n"
    assert words_python_stores_to(in_python) == {"S_STEPS", "H_CAP"}


# --- and it is the only one ---------------------------------------------------------------------------------------


def copies_in_c(text: str) -> Iterator[str]:
    """What a C source writes by hand that the headers have."""
    code = COMMENT.sub("", text)
    names = NAMES | MESSAGES
    for name in re.findall(r"#define\s+(?:CP_)?(?:M_)?(\w+)(?![\w(])", code):
        if name in names:
            yield f"defines {name}"
    for inside in re.findall(r"\benum\b[^{;]*\{([^}]*)\}", code):
        yield from (
            f"counts {name}" for name in re.findall(r"\b(?:CP_|BELL_)?(?:M_)?([A-Z]\w*)", inside) if name in names
        )
    yield from re.findall(r"\bkind\s*(?:==|!=|=)\s*[1-9]\d*", code)
    yield from re.findall(r"\b(?:word|slot|header)\[\d+\]", code)
    yield from (f"writes {number}" for number in re.findall(r"\b\d+(?=[uUlL]*\b)", code) if number in TELLING)
    yield from (f"names {name}" for name in re.findall(r'"(CARPOOL_\w+)"', code))
    if '{\\"' in code:
        yield "writes a body by hand"


@pytest.mark.parametrize("path", C_FILES, ids=lambda path: path.name)
def test_no_c_source_writes_a_number_of_the_protocol_by_hand(path: Path) -> None:
    assert list(copies_in_c(path.read_text())) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("#define STALL_NS 3000001", "defines STALL_NS"),
        ("#define CP_S_LIVE 1", "defines S_LIVE"),
        ("enum { ATTACH = 1, ATTACHED };", "counts ATTACH"),
        ("enum { BELL_GRANT = 4 };", "counts GRANT"),
        ("if (frame.kind == 4)", "kind == 4"),
        ("x = frame.word[2];", "word[2]"),
        ("x = slot[5];", "slot[5]"),
        ("long x = 3000000;", "writes 3000000"),
        ("uint64_t x = 15000000000ull;", "writes 15000000000"),
        (r'char *x = "{\"reason\":1}";', "writes a body by hand"),
        ('getenv("CARPOOL_PAGE")', "names CARPOOL_PAGE"),
    ],
)
def test_a_copy_in_c_is_noticed(source: str, found: str) -> None:
    assert found in list(copies_in_c(source))


def test_what_is_no_copy_is_not_complained_about() -> None:
    source = (
        "/* word[2] of a GRANT */ x = slot[CP_S_LIVE]; kind = CP_M_GRANT; enum { CP_EXTERNAL = 1 }; y = 1000000000;"
    )
    assert list(copies_in_c(source + "\n#define CALL(x) x\n")) == []


def copies_in_python(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
            yield node.lineno, node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("<HHI"):
            yield node.lineno, node.value


def test_no_python_module_writes_a_number_of_the_protocol_by_hand() -> None:
    made = {texts.ROOT / path for path in texts.PARTS} | {texts.SOURCE}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path not in made:
            assert list(copies_in_python(path.read_text())) == [], path


def test_a_copy_in_python_is_noticed() -> None:
    assert [what for _, what in copies_in_python("a = 1\nS_PID, STALL_NS = 0, 5\n")] == ["S_PID", "STALL_NS"]
    assert [line for line, _ in copies_in_python('import struct\nHEAD = struct.Struct("<HHIQQQQ")\n')] == [2]


VARIABLES = {str(number.value) for number in texts.sections()["environment"]}
ELSEWHERE = {
    "CARPOOL_WARM_PARENT",
    "CARPOOL_ALONE",
    "CARPOOL_ANY_VERSION",  # its user does
    "CARPOOL_JOIN",  # and this
    "CARPOOL_RECORD",
    "CARPOOL_REPLAY",
    "CARPOOL_REPLAY_HOW",
}  # one part tells itself


def test_the_daemon_and_the_agent_know_the_same_variables() -> None:
    found = set()
    for path in sorted((PACKAGE / "agent").rglob("*.py")):
        found |= set(re.findall(r"\bCARPOOL_[A-Z_]+", path.read_text()))
    assert found <= VARIABLES | ELSEWHERE
    told = (PACKAGE / "daemon" / "environment.py").read_text()
    assert {str(getattr(protocol, name)) for name in re.findall(r"protocol\.(ENV_\w+)", told)} == VARIABLES


# --- the injected file speaks it ----------------------------------------------------------------------------------


def test_the_injected_file_sends_an_attach_and_a_detach_that_the_daemon_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = PACKAGE / "agent" / "inject" / "sitecustomize.py"
    parsed = ast.parse(source.read_text())
    assert isinstance(parsed.body.pop(), ast.Try)  # which would start it
    injected: dict[str, Any] = {"__file__": str(source)}
    exec(compile(parsed, str(source), "exec"), injected)
    monkeypatch.setenv("CARPOOL_JOB", "j1")
    monkeypatch.setenv("CARPOOL_VERSION", "1.2.3")
    monkeypatch.setenv("CARPOOL_SOCKET", str(tmp_path / "s"))
    heard: list[m.Message] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        server.settimeout(30)

        def listen() -> None:
            peer, decoder = server.accept()[0], Decoder()
            while len(heard) < 2:
                heard.extend(decoder.feed(peer.recv(65536)))
            peer.close()

        listener = threading.Thread(target=listen)
        listener.start()
        injected["_tell_daemon"]("it is too old")
        listener.join()
    attach, detach = heard
    assert isinstance(attach, m.Attach)
    assert (attach.job, attach.slot, attach.version, attach.protocol) == ("j1", 0, "1.2.3", protocol.PROTOCOL)
    assert detach == m.Detach(reason="it is too old")
