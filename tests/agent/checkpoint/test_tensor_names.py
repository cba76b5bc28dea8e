"""Which source files are the program's own."""

from __future__ import annotations

import site
import sysconfig
from pathlib import Path

import pytest

import carpool
from carpool.agent.checkpoint.tensor_names import is_program_file

LIBRARIES = [sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], site.getusersitepackages()]
OURS = str(Path(carpool.__file__).parent)


@pytest.mark.parametrize("directory", [*LIBRARIES, OURS])
def test_libraries_also_those_of_the_user_are_not_the_programs_own(directory: str) -> None:
    assert not is_program_file(f"{directory}/torch/nn/modules.py")


@pytest.mark.parametrize("directory", [sysconfig.get_paths()["stdlib"], site.getusersitepackages(), OURS])
def test_a_directory_whose_name_only_begins_like_a_librarys_is_the_programs_own(directory: str) -> None:
    assert is_program_file(f"{directory}-of-mine/train.py")


def test_what_python_has_frozen_is_not_the_programs_own() -> None:
    assert not is_program_file("<frozen importlib._bootstrap>")
    assert not is_program_file(None)
    assert is_program_file("train.py")
