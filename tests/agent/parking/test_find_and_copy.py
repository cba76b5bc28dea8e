"""Finding objects and copying bytes, in C and in plain Python: both find the same and copy the same."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from collections.abc import Iterator

import pytest

from carpool.agent.parking import find_and_copy


class Sought:
    pass


class Heir(Sought):
    pass


class Proxy:
    """Says of what class it is by running code of the program."""

    @property  # type: ignore[misc]  # read-only, as a lazy proxy has it
    def __class__(self) -> type:
        raise AssertionError("the search asked the program")


@pytest.fixture(params=["C", "plain"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(find_and_copy, "native", None)
    elif find_and_copy.native is None:
        pytest.skip("the C part of moves was not built: it is NOT tested; install gcc, then 'make native'")


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def ids(objects: list[object]) -> list[int]:
    return sorted(id(each) for each in objects)


@pytest.mark.parametrize("count", range(7))
def test_all_of_a_class_are_found_once_wherever_the_collector_has_them(count: int) -> None:
    """Old ones and new ones: the collector keeps a list of each age, of every length down to none."""
    old: list[object] = [Sought() for _ in range(3 * count)]
    gc.collect()
    middle: list[object] = [Sought() for _ in range(count)]
    gc.collect(0)
    new: list[object] = [Sought() for _ in range(count)]
    others, proxy = [Heir() for _ in range(5)], Proxy()
    assert ids(find_and_copy.find_objects({Sought})) == ids([*old, *middle, *new])
    assert ids(find_and_copy.find_objects(find_and_copy.with_subclasses(Sought))) == ids(
        [*old, *middle, *new, *others]
    )
    assert find_and_copy.find_objects({int}) == find_and_copy.find_objects(set()) == []
    assert type(proxy) is Proxy


def test_many_classes_are_told_apart_by_more_than_their_place_in_a_table() -> None:
    classes = [type(f"Class{number}", (), {}) for number in range(1000)]
    objects = [made() for made in classes]
    assert ids(find_and_copy.find_objects(set(classes[:500]))) == ids(objects[:500])


def test_what_was_found_is_not_kept() -> None:
    one = Sought()
    before = sys.getrefcount(one)
    found = find_and_copy.find_objects({Sought})
    assert sys.getrefcount(one) == before + 1
    del found
    assert sys.getrefcount(one) == before


def test_the_collector_may_be_set_as_the_program_likes(thresholds: None) -> None:
    one = Sought()
    for setting in ((0, 0, 0), (100_000, 50, 1000), (1, 1, 1)):
        gc.set_threshold(*setting)
        assert find_and_copy.find_objects({Sought}) == [one]


@pytest.mark.parametrize("count", [0, 1, 15, 63, 4096, 16_384, 16_399, 16_400, 65_537, 1 << 20])
def test_copies_have_every_byte_and_touch_no_other(count: int) -> None:
    choose = random.Random(count)
    source = bytearray(choose.randbytes(count + 128))
    for _ in range(20):
        skip, shift = choose.randrange(128), choose.randrange(128)
        target = bytearray(count + 256)
        to = ctypes.addressof(ctypes.c_char.from_buffer(target))
        find_and_copy.copy(to + shift, ctypes.addressof(ctypes.c_char.from_buffer(source)) + skip, count)
        assert target[shift : shift + count] == source[skip : skip + count]
        assert not any(target[:shift])
        assert not any(target[shift + count :])


def test_what_is_no_row_of_classes_is_an_error() -> None:
    with pytest.raises(TypeError):
        find_and_copy.find_objects(5)  # type: ignore[arg-type]  # what is tested
