"""`carpool logs` reads in a directory of the job's user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carpool.cli.logs import opened
from carpool.errors import RefusedError


def test_i41_an_admin_is_shown_no_link_no_pipe_and_no_file_of_others(tmp_path: Path) -> None:
    secret, link, pipe = tmp_path / "secret", tmp_path / "a.log", tmp_path / "b.log"
    secret.write_text("key")
    link.symlink_to(secret)
    os.mkfifo(pipe)
    for path, owner in ((link, os.geteuid()), (pipe, os.geteuid()), (secret, os.geteuid() + 1)):
        with pytest.raises(RefusedError):
            opened(path, owner)
    with opened(secret, os.geteuid()) as source:
        assert source.read() == b"key"
