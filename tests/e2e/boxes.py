"""Real containers: bubblewrap, runc and podman, with a file system of their own in which only /usr is the host's.

Python and torch lie at other paths than outside, nothing of carpool is installed, and nothing but what
`carpool container-args` adds can be written. What is not installed, or may not run here, is skipped with the reason.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.node import Node, Started

PYTHON_INSIDE = f"/opt/python/bin/python3.{sys.version_info.minor}"
PACKAGES_INSIDE = "/opt/site"
LINKS = ("bin", "sbin", "lib", "lib64")
PODMAN = ["--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]


def host_mounts(node: Node) -> list[tuple[str, str]]:
    """What a container gets of the host beside carpool: to read only."""
    python = Path(sys.executable).resolve().parents[1]
    packages = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    return [
        ("/usr", "/usr"),
        (str(python), "/opt/python"),
        (str(packages), PACKAGES_INSIDE),
        (str(node.files), "/job"),
    ]


class Box:
    """One way to start a container."""

    form = ""  # for container-args

    def __init__(self, node: Node) -> None:
        self.node = node
        self.root = node.directory / "box"
        for directory in ("proc", "dev", "sys", "run", "tmp", "usr", "opt", "job", "etc"):
            (self.root / directory).mkdir(parents=True, exist_ok=True)
        for link in LINKS:
            if not (self.root / link).is_symlink():
                (self.root / link).symlink_to(f"usr/{link}")

    def start(self, added: Sequence[str], *program: str) -> Started:
        raise NotImplementedError


class Bubblewrap(Box):
    form = "--bwrap"

    def start(self, added: Sequence[str], *program: str) -> Started:
        words = ["bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
        words += ["--tmpfs", "/run", "--tmpfs", "/tmp"]
        for link in LINKS:
            words += ["--symlink", f"usr/{link}", f"/{link}"]
        for host, inside in host_mounts(self.node):
            words += ["--ro-bind", host, inside]
        return Started(self.node, [*words, "--clearenv", *added, "--chdir", "/job", *program])


class Podman(Box):
    form = "--podman"

    def start(self, added: Sequence[str], *program: str) -> Started:
        return Started(self.node, self.words(added, *program))

    def words(self, added: Sequence[str], *program: str) -> list[str]:
        kept = [f"--root={self.node.directory}/pod", f"--runroot={self.node.directory}/podrun", *PODMAN]
        files = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        limits = [f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=1024:1024"]
        mounts = [f"--volume={host}:{inside}:ro" for host, inside in host_mounts(self.node)]
        settings = ["--rm", "--network=none", "--read-only", "--workdir=/job", *limits, *mounts]
        return ["podman", *kept, "run", *settings, *added, "--rootfs", str(self.root), *program]


class Runc(Box):
    """Without an engine around it: its words are those of docker, made into runc's own form."""

    form = "--docker"

    def start(self, added: Sequence[str], *program: str) -> Started:
        bundle = self.node.directory / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "config.json").unlink(missing_ok=True)
        subprocess.run(["runc", "spec"], cwd=bundle, check=True, timeout=60)
        spec = json.loads((bundle / "config.json").read_text())
        spec["process"] |= {"terminal": False, "args": list(program), "cwd": "/job", "rlimits": []}
        spec["root"] = {"path": str(self.root), "readonly": True}
        mounts = [(host, inside, "ro") for host, inside in host_mounts(self.node)]
        environment = []
        for word in added:
            name, _, value = word.partition("=")
            if name == "--volume":
                host, inside, *mode = value.split(":")
                mounts.append((host, inside, "".join(mode) or "rw"))
            elif name == "--tmpfs":
                mounts.append(("", value, "rw"))
            elif name == "--env":
                environment.append(value)
        spec["process"]["env"] = environment
        kept = [mount for mount in spec["mounts"] if mount["destination"] != "/run"]
        run = {"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}
        spec["mounts"] = [*kept, run, {**run, "destination": "/tmp"}, *map(_runc_mount, mounts)]
        (bundle / "config.json").write_text(json.dumps(spec))
        state = str(self.node.directory / "runc")
        return Started(self.node, ["runc", "--root", state, "run", "--bundle", str(bundle), f"cp-{os.getpid()}"])


def _runc_mount(mount: tuple[str, str, str]) -> dict[str, object]:
    host, inside, mode = mount
    if not host:
        return {"destination": inside, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=700"]}
    return {"destination": inside, "type": "bind", "source": host, "options": ["rbind", mode]}


BOXES: dict[str, type[Box]] = {"bwrap": Bubblewrap, "runc": Runc, "podman": Podman}


@functools.cache
def why_not(engine: str) -> str:
    """Why it cannot be tried here; empty if it runs a program in a container."""
    if shutil.which(engine) is None:
        return f"{engine} is not installed: programs in its containers are NOT tested (tests/packages.sh)"
    if engine != "bwrap" and (os.geteuid() != 0 or shutil.which("runc") is None):
        return f"{engine} is tried by root only, with runc: programs in its containers are NOT tested"
    node = Node()
    try:
        done = BOXES[engine](node).start([], "/usr/bin/true").wait(seconds=60)
    finally:
        node.close()
    return (
        f"{engine} may not run here ({done.err.strip()[-200:]}): its containers are NOT tested" if done.code else ""
    )


def box(engine: str, node: Node) -> Box:
    """That kind of container; the test is skipped if there is none."""
    reason = why_not(engine)
    if reason:
        pytest.skip(reason)
    return BOXES[engine](node)


def words_for(made: Box, *options: str) -> list[str]:
    """What `carpool container-args` says."""
    done = made.node.carpool("container-args", made.form, "--json", *options)
    assert done.code == 0, done.err
    words: list[str] = json.loads(done.out)
    return words
