"""What the contents of a checkpoint must look like, field by field: a right hash says only that nobody changed them.

By hand, because a job reads this too, and the agent loads no library of others before the program does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carpool.errors import RefusedError

HASH_SEED_MAX = 2**32 - 1
Check = Callable[[object], bool]


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_whole(value: object) -> bool:
    return type(value) is int


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_hex(value: object) -> bool:
    return isinstance(value, str) and len(value) % 2 == 0 and not set(value) - set("0123456789abcdef")


def _is_byte(value: object) -> bool:
    return type(value) is int and 0 <= value <= 255


def _is_hash_seed(value: object) -> bool:
    """As PYTHONHASHSEED may be: with another one Python does not start."""
    if value in ("", "random"):
        return True
    return isinstance(value, str) and value.isascii() and value.isdecimal() and int(value) <= HASH_SEED_MAX


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_python_state(value: object) -> bool:
    """As random.getstate() has it, with a list for its words."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    version, words, gauss = value
    return _is_count(version) and _list_of(_is_count)(words) and (gauss is None or isinstance(gauss, float))


def _is_numpy_state(value: object) -> bool:
    """As numpy.random.get_state() has it: kind, words, position, and a number kept for later."""
    if not isinstance(value, list) or len(value) != 5:
        return False
    kind, words, *rest = value
    are_words = _list_of(lambda word: type(word) is int and 0 <= word < 2**32)(words)
    return _is_text(kind) and are_words and all(type(each) in (int, float) for each in rest)


def _is_begun(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"torch", "python", "numpy"}:
        return False
    is_numpy = value["numpy"] is None or _is_numpy_state(value["numpy"])
    return _list_of(_is_byte)(value["torch"]) and _is_python_state(value["python"]) and is_numpy


def _is_random(value: object) -> bool:
    if not isinstance(value, dict) or not {"torch", "python"} <= set(value):
        return False
    known: dict[str, Check] = {"python": _is_python_state, "numpy": _is_numpy_state, "cuda": _list_of(_is_hex)}
    return all(known.get(name, _is_hex)(state) for name, state in value.items())


def _is_file(value: object) -> bool:
    """A row of WrittenFiles: its full name, what it was before, and how long."""
    if not isinstance(value, list) or len(value) != 3 or not _is_path(value[0]):
        return False
    return value[1] in ("made", "appended", "replaced") and _is_count(value[2])


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/") and "\0" not in value


def _are_files(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"rows", "directories"}:
        return False
    return _list_of(_is_file)(value["rows"]) and _list_of(_is_path)(value["directories"])


def _is_process(value: object) -> bool:
    return _list_of(_is_text)(value) and isinstance(value, list) and len(value) == 4


_ROW: tuple[Check, ...] = (
    _is_text,
    _is_count,
    _is_text,
    _list_of(_is_count),
    _list_of(_is_whole),
    _is_count,
    lambda value: isinstance(value, bool),
    _is_text,
)


def _is_tensor(value: object) -> bool:
    """A row of Snapshot.table()."""
    if not isinstance(value, list) or len(value) != len(_ROW):
        return False
    return all(check(each) for check, each in zip(_ROW, value, strict=True))


def _is_graph(value: object) -> bool:
    """As LiveGraph.contents() has it."""
    return _dict_of(_list_of(_is_text))(value) and isinstance(value, dict) and set(value) == {"roots", "nodes"}


def _is_piece_before(end: int) -> Check:
    def check(value: object) -> bool:
        return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)) and sum(value) <= end

    return check


def check_contents(path: object, contents: dict[str, Any], *, end: int) -> None:
    """Refuse contents that no carpool writes, with a sentence; pieces lie before `end`."""
    is_piece = _is_piece_before(end)
    fields: dict[str, tuple[Check, str]] = {
        "carpool": (_is_text, "a text"),
        "torch": (_is_text, "a text"),
        "python": (_is_text, "a text"),
        "kind": (_is_text, "a text"),
        "argv": (_list_of(_is_text), "a list of texts"),
        "hash_seed": (_is_hash_seed, f"a number up to {HASH_SEED_MAX}"),
        "sources": (_dict_of(_is_text), "an object of texts"),
        "unskippable": (_is_text, "a text"),
        "first": (_is_count, "a count of steps"),
        "second": (_is_count, "a count of steps"),
        "made_after": (_is_count, "a count of steps"),
        "digest_first": (_is_hex, "a hash"),
        "digest_second": (_is_hex, "a hash"),
        "begun": (_is_begun, "the random states of a beginning"),
        "read_log": (is_piece, f"a place and a length within its {end} bytes"),
        "files": (_are_files, "a list of files"),
        "writer": (_is_process, "a process"),
        "state": (lambda value: isinstance(value, dict), "an object"),
    }
    _check(path, "", contents, fields)
    state: dict[str, tuple[Check, str]] = {
        "tensors": (_list_of(_is_tensor), "a list of tensors"),
        "storages": (_list_of(is_piece), f"a list of places and lengths within its {end} bytes"),
        "random": (_is_random, "random states"),
        "compared": (lambda value: isinstance(value, dict), "an object"),
        "put_back": (lambda value: isinstance(value, dict), "an object"),
        "graph": (_is_graph, "an object of lists of texts"),
    }
    _check(path, "state.", contents["state"], state)


def _check(path: object, where: str, found: dict[str, Any], fields: dict[str, tuple[Check, str]]) -> None:
    for name, (is_right, what) in fields.items():
        if name not in found:
            raise RefusedError(
                f"the checkpoint {path} lacks its field '{where}{name}'; write it anew: carpool checkpoint"
            )
        if not is_right(found[name]):
            raise RefusedError(
                f"the checkpoint {path} cannot be used: its field '{where}{name}' is not {what};"
                " write it anew: carpool checkpoint"
            )
