"""A tenant's table in carpool.toml is written anew; all other lines of the file stay as an admin wrote them.

What is written is read before it takes the file's place: it must say what was wanted, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

import msgspec

from carpool.daemon.settings_file import TenantSettings, load_settings, parse_settings
from carpool.errors import RefusedError, UsageError

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


def save_tenant(path: Path, name: str, tenant: TenantSettings | None) -> None:
    """Write what is said of one tenant, or that nothing is; RefusedError, and the file as it was, if that fails."""
    before = load_settings(path)
    text = with_tenant(path.read_text(), name, tenant)
    wanted = {each: kept for each, kept in before.tenants.items() if each != name}
    wanted |= {name: tenant} if tenant is not None else {}
    try:
        is_right = parse_settings(text) == msgspec.structs.replace(before, tenants=wanted)
    except UsageError:
        is_right = False
    if not is_right:
        raise RefusedError(f"{path} is written in a way that cannot be changed here; write [tenant.{name}] by hand")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        mode = path.stat().st_mode & 0o777
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise RefusedError(f"{path} cannot be written: {error.strerror}; it stays as it was") from error


def with_tenant(text: str, name: str, tenant: TenantSettings | None) -> str:
    """The text with another table of this tenant; its place stays."""
    lines = text.splitlines()
    header = f"[tenant.{name if _PLAIN.fullmatch(name) else json.dumps(name)}]"
    same = (re.escape(f"tenant.{name}"), rf'tenant\."{re.escape(name)}"', rf"tenant\.'{re.escape(name)}'")
    is_header = re.compile(rf"\s*\[\s*(?:{'|'.join(same)})\s*\]\s*(?:#.*)?")
    first = next((at for at, line in enumerate(lines) if is_header.fullmatch(line)), None)
    new = [header, *_lines(tenant), ""] if tenant is not None else []
    if first is None:
        gap = [""] if lines and lines[-1].strip() and new else []
        return "\n".join([*lines, *gap, *new]).rstrip("\n") + "\n"
    after = next((at for at in range(first + 1, len(lines)) if re.match(r"\s*\[[A-Za-z\"']", lines[at])), len(lines))
    while after > first + 1 and lines[after - 1].lstrip().startswith("#"):  # a remark above the next table is its own
        after -= 1
    return "\n".join([*lines[:first], *new, *lines[after:]]).rstrip("\n") + "\n"


def _lines(tenant: TenantSettings) -> list[str]:
    """The keys that say something."""
    said, usual = msgspec.to_builtins(tenant), msgspec.to_builtins(TenantSettings())
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in said.items() if value != usual[key]]
