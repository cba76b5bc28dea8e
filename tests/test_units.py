"""Bytes and seconds at the edges: what people type and what people read."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.errors import UsageError
from carpool.units import (
    BYTES_MAX,
    GIB,
    KIB,
    MIB,
    MS,
    SECOND,
    TIB,
    format_bytes,
    format_count,
    format_list,
    format_ns,
    parse_bytes,
    parse_duration_ns,
    parse_share,
    parse_tenants,
)


def test_a_number_for_each_tenant_is_read() -> None:
    assert parse_tenants("ana=2, ben = .5,c-d=1.25") == {"ana": 2000, "ben": 500, "c-d": 1250}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not a tenant and its number; write it like ana=2,ben=1"),
        ("ana", "'ana' is not a tenant and its number"),
        ("ana=2,", "'' is not a tenant and its number"),
        ("=2", "'=2' is not a tenant and its number"),
        ("ana=two", "'ana=two' is not a tenant and its number"),
        ("ana=-1", "'ana=-1' is not a tenant and its number"),
        ("ana=inf", "'ana=inf' is not a tenant and its number"),
        ("ana=1=2", "'ana=1=2' is not a tenant and its number"),
        ("ana=0", "'ana=0' gives tenant ana 0; it must be above 0 and at most 1,000,000"),
        ("ana=1000001", "gives tenant ana 1000001; it must be above 0 and at most 1,000,000"),
        ("ana=2,ben=1,ana=3", "names tenant ana twice"),
    ],
)
def test_what_is_no_number_for_a_tenant_is_refused_with_what_was_wrong(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_tenants(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("17b", 17),
        ("512MiB", 512 * MIB),
        ("4GiB", 4 * GIB),
        ("4gib", 4 * GIB),
        ("4G", 4 * GIB),
        ("1.5g", 3 * GIB // 2),
        (".5 GiB", GIB // 2),
        ("2. k", 2 * KIB),
        (" 8 TiB ", 8 * TIB),
        ("2kb", 2000),
        ("3MB", 3_000_000),
        ("80GB", 80_000_000_000),
        ("1tb", 10**12),
        ("1024TiB", BYTES_MAX),
    ],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", " ", "GiB", "4 GiB GiB", "4 gigs", "-4GiB", "+4GiB", "1e9", "1,5GiB", "0x10", "4GiB!", "nan", "inf", "."],
)
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size; write it like 512MiB or 4GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.5", "0.0001b", "1025TiB", "9" * 30])
def test_sizes_nobody_means_are_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(UsageError, match="a size is between 1 byte and 1024 TiB"):
        parse_bytes(text)


def test_a_large_number_of_bytes_is_read_exactly() -> None:
    assert parse_bytes("1125899906842623") == BYTES_MAX - 1


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0", 0),
        ("2", 2 * SECOND),
        ("1.5", 3 * SECOND // 2),
        ("250ns", 250),
        ("10us", 10_000),
        ("100ms", 100 * MS),
        ("100 MS", 100 * MS),
        ("2s", 2 * SECOND),
        ("1.5m", 90 * SECOND),
        ("1h", 3600 * SECOND),
    ],
)
def test_spans_of_time_are_read_as_nanoseconds(text: str, span: int) -> None:
    assert parse_duration_ns(text) == span


@pytest.mark.parametrize("text", ["", "s", "1d", "1 minute", "-1s", "1s 2ms", "1:30", "soon"])
def test_what_is_not_a_span_of_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a length of time; write it like 100ms, 2s or 5m"):
        parse_duration_ns(text)


def test_a_span_of_time_has_a_bound_that_is_said() -> None:
    assert parse_duration_ns("87600h") == 87_600 * 3600 * SECOND
    with pytest.raises(UsageError, match="^'87601h' is too long; the longest time is 87600h, ten years$"):
        parse_duration_ns("87601h")


@pytest.mark.parametrize("parse", [parse_bytes, parse_duration_ns])
def test_a_number_beyond_all_bounds_is_the_callers_slip(parse: Callable[[str], int]) -> None:
    with pytest.raises(UsageError):
        parse("9" * 400)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (17, "17 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (640 * MIB, "640 MiB"),
        (2 * GIB + GIB // 10, "2.10 GiB"),
        (16 * GIB, "16.0 GiB"),
        (999 * GIB, "999 GiB"),
        (3 * TIB, "3.00 TiB"),
        (-2 * GIB, "-2.00 GiB"),
    ],
)
def test_sizes_are_printed_with_three_digits_and_a_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1 us"),
        (41 * MS, "41 ms"),
        (3 * MS + MS // 2, "3.5 ms"),
        (3 * SECOND + SECOND // 5, "3.2 s"),
        (125 * SECOND, "2 min 5 s"),
        (4200 * SECOND, "1 h 10 min"),
        (90_000 * SECOND, "25 h 0 min"),
    ],
)
def test_spans_of_time_are_printed_as_people_say_them(span: int, text: str) -> None:
    assert format_ns(span) == text


@given(count=st.integers(1, BYTES_MAX))
@settings(deadline=None, derandomize=True, database=None)
def test_what_is_printed_can_be_read_again_and_is_nearly_the_same(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.006)
    assert parse_bytes(str(count)) == count


@given(span=st.integers(0, 10**18))
@settings(deadline=None, derandomize=True, database=None)
def test_no_span_of_time_is_printed_as_more_than_one_of_the_next_unit(span: int) -> None:
    words = format_ns(span).split()
    most = {"ns": 1000, "us": 1000, "ms": 1000, "s": 60, "min": 60}
    for number, unit in zip(words[::2], words[1::2], strict=True):
        assert unit == "h" or float(number) <= most[unit]


@given(count=st.integers(0, BYTES_MAX))
@settings(deadline=None, derandomize=True, database=None)
def test_no_size_is_printed_as_more_than_one_of_the_next_unit(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert unit == "TiB" or float(number) <= 1024


@pytest.mark.parametrize(
    ("text", "shares"),
    [("30%", (300, 300)), ("30%:60%", (300, 600)), (" 12.5 % : 100% ", (125, 1000)), ("0%:50%", (0, 500))],
)
def test_shares_are_thousandths(text: str, shares: tuple[int, int]) -> None:
    assert parse_share(text) == shares


@pytest.mark.parametrize("text", ["", "30", "%", "101%", "0%", "60%:30%", "10%:20%:30%", "-5%", "a%", "1e1%"])
def test_what_is_no_share_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match="share|guarantees"):
        parse_share(text)


def test_one_of_a_thing_has_no_s() -> None:
    assert [format_count(count, "job") for count in (0, 1, 2, 1200)] == ["0 jobs", "1 job", "2 jobs", "1,200 jobs"]


@pytest.mark.parametrize(("words", "said"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_lists_are_said_as_people_say_them(words: list[str], said: str) -> None:
    assert format_list(words) == said
