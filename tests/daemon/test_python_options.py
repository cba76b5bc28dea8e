"""Which command lines keep carpool out of their Python."""

from __future__ import annotations

import pytest

from carpool.daemon.python_options import why_kept_out


@pytest.mark.parametrize(
    ("command", "without"),
    [
        ("python -I train.py", "-I"),
        ("/usr/bin/python3.11 -Es train.py", "-E"),
        ("python3 -uIS train.py", "-I and -S"),
        ("python -W ignore -X dev -S -m train", "-S"),
        ("python -Wignore -I -I -c pass", "-I"),
        ("python --check-hash-based-pycs never -E train.py", "-E"),
        ("python -Ic pass", "-I"),
    ],
)
def test_options_before_the_program_that_close_the_way_in_are_named(command: str, without: str) -> None:
    assert why_kept_out(command.split(), has_turns_at_launches=False).endswith(
        f"; to take turns, run it without {without}"
    )
    assert not why_kept_out(command.split(), has_turns_at_launches=True), (
        "there the library in the program takes turns"
    )


@pytest.mark.parametrize(
    "command",
    [
        "python",
        "python train.py -I",
        "python -m train -E",
        "python -c pass -S",
        "python -cI",
        "python -mSIE",
        "python -W I -X E train.py",
        "python -WI -XS train.py",
        "python -su -P train.py",
        "python - -I",
        "python -- train.py -I",
        "python --check-hash-based-pycs -I train.py",
        "python-config -I",
        "torchrun -I train.py",
        "/bin/sh -E",
    ],
)
def test_other_options_and_those_of_the_program_are_let_alone(command: str) -> None:
    assert not why_kept_out(command.split(), has_turns_at_launches=False)
