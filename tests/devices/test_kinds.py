"""Kinds of devices: each says what it can do, and `--device` finds them by their words."""

from __future__ import annotations

import pytest

from carpool.devices import stub
from carpool.devices.base import DeviceKind
from carpool.devices.kinds import CHOICES, KINDS, find_devices, kind_named
from carpool.devices.libraries import find_library
from carpool.errors import InternalError, UsageError


def test_every_word_of_device_leads_to_a_kind_that_is_known_by_its_name() -> None:
    assert set(CHOICES) == {"cpu", "cuda", "stub"}
    for choice in CHOICES.values():
        assert kind_named(choice.kind.name) is choice.kind


def test_a_kind_that_nobody_knows_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(InternalError, match="no kind of device 'abacus'; there are cuda, cpu"):
        kind_named("abacus")


@pytest.mark.parametrize("asked", ["tpu", "cpux", "auto:4GiB", ""])
def test_an_unknown_word_is_refused_with_what_may_be_said(asked: str) -> None:
    with pytest.raises(UsageError, match=f"unknown device '{asked}'; use auto, cpu, cpu:4GiB"):
        find_devices(asked)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_what_a_kind_promises_fits_together(kind: DeviceKind) -> None:
    if find_library("meter") is not None:
        assert find_library(kind.library) is not None, "it names a library that nobody builds"
    assert kind.needs_library or not kind.has_turns_at_launches, "the library takes those turns"
    assert not (kind.is_host_memory and kind.can_oversubscribe), "there is no other memory to go to"


@pytest.mark.skipif(find_library("stub_cuda") is None, reason="the stand-in is not built: install gcc, 'make native'")
def test_stand_ins_are_devices_of_the_kind_they_stand_in_for() -> None:
    found = find_devices("stub:2x1GiB")
    assert [device.id for device in found] == ["gpu0", "gpu1"]
    assert {device.kind for device in found} == {KINDS["cuda"]}
    assert [device.environment["CUDA_VISIBLE_DEVICES"] for device in found] == [stub.uuid_of(0), stub.uuid_of(1)]
