"""`carpool doctor` looks at a Python the way a job would find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.cli.doctor import examine
from carpool.daemon.environment import INJECT


def test_the_users_own_python_path_is_kept_behind_carpools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    answer = '{"torch": "%s", "cuda": false, "hooked": true, "kind": "function", "version": "3"}'
    python.write_text(f"""#!/bin/sh\nprintf '{answer}' "$PYTHONPATH"\n""")
    python.chmod(0o700)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("CARPOOL_DIR", str(tmp_path))
    (torch,) = [finding for finding in examine(str(python)) if finding["what"] == "torch"]
    assert torch["mark"] == "ok"
    assert torch["text"].startswith(f"{INJECT}:/mine, CUDA not usable")
