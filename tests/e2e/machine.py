"""A machine under test: real users, and the one daemon that serves them all, below a directory of its own.

Only root can make users. Where the tests are not run by root, or something else is missing, they are skipped with the
reason (`why_not`). Users and their Python are made once a run and removed at its end; those of a run that was killed
are removed by the next one. Nothing outside /tmp is touched but the list of users.

    def test_x(machine: Machine) -> None:
        machine.start_machine('policy = "fair"')
        ana, ben = machine.people["ana"], machine.people["ben"]
        assert ana.carpool("run", "--", "true").code == 0
"""

from __future__ import annotations

import contextlib
import functools
import grp
import json
import os
import pwd
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import carpool
from carpool.cli.system_steps import closed_to_others
from carpool.client import Client
from carpool.wire.lock import MACHINE
from carpool.wire.places import machine_places
from tests import eager
from tests.e2e.node import PATIENCE, PROGRAMS, Ended, Node, Started, is_alive, kill, wait_until

NAMES = ("ana", "ben", "eve")
_OURS = re.compile(r"cp_t([0-9]+)_[a-z]+")
PROBE = "import carpool.client, importlib.util as u; assert u.find_spec('torch')"
SETTINGS = 'device = "cpu:4GiB"\n'


@functools.cache
def why_not() -> str:
    """Why no machine can be tried here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make users: run these tests as root to try several of them"
    missing = [tool for tool in ("useradd", "userdel", "groupadd") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} of the distribution is missing, so no users can be made"
    return ""


def copy_for_all(source: Path, target: Path) -> Path:
    """The same directory where everyone can enter it: itself, or a copy made of links to the same files."""
    if closed_to_others(source) is None:
        return source
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    target.chmod(0o755)
    return target


class PythonForAll:
    """An environment with carpool and what its tests have, of an interpreter that every user may execute."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cp-python-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.binaries = self.directory / "bin"
        self.python, self.carpool = str(self.binaries / "python"), str(self.binaries / "carpool")
        packages = self.directory / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
        for directory in (self.binaries, packages):
            directory.mkdir(parents=True)
        base = self._base_python()
        (self.directory / "pyvenv.cfg").write_text(f"home = {Path(base).parent}\n")
        Path(self.python).symlink_to(base)
        # What is in a directory that others cannot enter is linked to here: a clone below a home, say.
        sources = copy_for_all(Path(carpool.__file__).parents[1], self.directory / "src")
        sites = [copy_for_all(Path(each), self.directory / f"site{at}") for at, each in enumerate(_sites())]
        lines = [str(sources), *(f"import site; site.addsitedir({str(each)!r})" for each in sites)]
        (packages / "all.pth").write_text("\n".join(lines) + "\n")
        tests = copy_for_all(PROGRAMS.parent, self.directory / "tests")
        self.programs, self.eager = tests / PROGRAMS.name, tests / Path(eager.HERE).name
        Path(self.carpool).write_text(f"#!{self.python}\nfrom carpool.cli.main import main\nmain()\n")
        Path(self.carpool).chmod(0o755)

    def _base_python(self) -> str:
        """An interpreter of this version that everyone may execute: this one, the distribution's, or a copy."""
        own, name = Path(sys.executable).resolve(), f"python3.{sys.version_info.minor}"
        for path in (own, Path("/usr/bin") / name):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [path, "-I", "-c", "0"], check=True, user=65534, group=65534, timeout=PATIENCE, cwd="/"
                )
                return str(path)
        return str(copy_for_all(Path(sys.base_prefix), self.directory / "base") / "bin" / name)

    def why_not(self) -> str:
        """Why another user cannot import carpool with it; empty if he can."""
        done = subprocess.run([self.python, "-c", PROBE], user=65534, group=65534, capture_output=True, cwd="/")
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return f"other users cannot import carpool from this clone: {said}" if done.returncode else ""

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def _sites() -> list[str]:
    return [each for each in site.getsitepackages() if Path(each).is_dir()]


class Population:
    """Users of this machine that only this run of the tests has."""

    def __init__(self, names: Iterable[str] = NAMES) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="cp-home-", dir="/tmp"))
        self.home.chmod(0o755)
        self.logins: dict[str, str] = {}
        self.python = PythonForAll()
        try:
            _remove_forgotten()
            for name in names:
                self.add(name)
        except BaseException:
            self.remove()
            raise

    def add(self, name: str) -> str:
        """Make a user; returns its login name."""
        login = f"cp_t{os.getpid()}_{name}"
        home = self.home / name
        home.mkdir(mode=0o700)
        _do("useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", "--no-log-init", login)
        self.logins[name] = login
        user = pwd.getpwnam(login)
        os.chown(home, user.pw_uid, user.pw_gid)
        return login

    def remove(self) -> None:
        for login in self.logins.values():
            remove_user(login)
        shutil.rmtree(self.home, ignore_errors=True)
        self.python.remove()


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, (words, done.stderr)


def remove_user(login: str) -> None:
    """Remove an account that a test made, with its processes and its group."""
    with contextlib.suppress(KeyError):
        uid = pwd.getpwnam(login).pw_uid
        for pid in _processes_of(uid):
            kill(pid)
        subprocess.run(["userdel", "--force", login], capture_output=True, timeout=PATIENCE)
    with contextlib.suppress(KeyError):
        grp.getgrnam(login)
        subprocess.run(["groupdel", login], capture_output=True, timeout=PATIENCE)


def _processes_of(uid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(int(entry.name))
    return found


def _remove_forgotten() -> None:
    """Users of runs that were killed before they could remove them."""
    for user in pwd.getpwall():
        match = _OURS.fullmatch(user.pw_name)
        if match and not is_alive(int(match[1])):
            remove_user(user.pw_name)


class Person:
    """One user at a shell of the machine."""

    def __init__(self, machine: Machine, name: str, login: str) -> None:
        self._machine = machine
        self.name, self.login = name, login
        found = pwd.getpwnam(login)
        self.uid, self.gid, self.home = found.pw_uid, found.pw_gid, Path(found.pw_dir)

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.home), "USER": self.login, "LOGNAME": self.login}
        return {**self._machine.environment, **own}

    def start(self, *words: str, **options: Any) -> Started:
        """Start a program as this user, at home."""
        groups = os.getgrouplist(self.login, self.gid)
        who: dict[str, Any] = {"user": self.uid, "group": self.gid, "extra_groups": groups}
        environment = {**self.environment, **options.pop("added", {})}
        return Started(self._machine, words, **{"cwd": self.home, "env": environment, **who, **options})

    def carpool(self, *words: str, seconds: float = PATIENCE, **options: Any) -> Ended:
        """One command of the command line, to its end."""
        return self.start(self._machine.carpool_path, *words, **options).wait(seconds=seconds)

    def run(self, *program: str, options: Iterable[str] = (), **popen: Any) -> Started:
        """`carpool run` in the background of the test; a name ending in .py is one of tests/programs."""
        words = self._machine.command(program)
        return self.start(self._machine.carpool_path, "run", *options, "--", *words, **popen)

    def submit(self, *program: str, options: Iterable[str] = ()) -> dict[str, Any]:
        done = self.carpool("submit", "--json", *options, "--", *self._machine.command(program))
        assert done.code == 0, (done.out, done.err)
        found: dict[str, Any] = json.loads(done.out)["job"]
        return found

    def ask(self, *words: str) -> Any:
        """What a command with --json answers."""
        done = self.carpool(*words, "--json")
        assert done.code == 0, (done.out, done.err)
        return json.loads(done.out)


class Machine(Node):
    """The machine's daemon, run by root, and the users that it serves; the looks of Node are root's."""

    def __init__(self, population: Population) -> None:
        super().__init__()
        self.directory.chmod(0o755)
        self.places = machine_places(self.directory)
        self.client = Client(places=self.places)
        self.population = population
        del self.environment["CARPOOL_DIR"]
        python = population.python
        self.carpool_path = python.carpool
        path = f"{python.binaries}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self.environment |= {"CARPOOL_ROOT": str(self.directory), "PATH": path}
        self.environment = {**self.environment, "PYTHONPATH": str(python.eager)}
        self.mark = f"CARPOOL_ROOT={self.directory}"
        self.people = {name: Person(self, name, login) for name, login in population.logins.items()}

    @property
    def root(self) -> Person:
        return Person(self, "root", "root")

    def write_settings(self, text: str = SETTINGS) -> None:
        """What carpool.toml says; a daemon that runs reads it when it is told to."""
        self.places.settings.parent.mkdir(parents=True, exist_ok=True)
        self.places.settings.write_text(text)

    def start_machine(self, text: str = SETTINGS, *, python: str = "", **options: Any) -> None:
        """Start the daemon with these settings, as a child of the test; wait until it answers."""
        self.write_settings(text)
        words = [python or self.population.python.python, "-m", "carpool.daemon.main", MACHINE]
        self.daemon = Started(self, words, **options)
        self.wait_daemon()

    def command(self, program: Iterable[str]) -> list[str]:
        """A program's command line: `x.py` is a script of tests/programs run by the Python of all."""
        words = list(program)
        if words[0].endswith(".py"):
            script = words[0] if "/" in words[0] else str(self.population.python.programs / words[0])
            return [self.population.python.python, script, *words[1:]]
        return words

    def close(self) -> None:
        super().close()
        for person in self.people.values():
            wait_until(lambda person=person: self._end_all(person), f"no process of {person.login} is left")  # type: ignore[misc]  # mypy knows no default of a lambda

    def _end_all(self, person: Person) -> bool:
        left = _processes_of(person.uid)
        for pid in left:
            kill(pid)
        return not left


def make_population() -> Iterator[Population]:
    """For a fixture: the users of this run, or a skip that says why there are none."""
    why = why_not()
    if why:
        pytest.skip(f"NO MACHINE WITH SEVERAL USERS WAS TRIED: {why}")
    try:
        made = Population()
    except (OSError, shutil.Error) as error:  # another file system, to which nothing can be linked
        pytest.skip(f"NO MACHINE WITH SEVERAL USERS WAS TRIED: {error}")
    try:
        unfit = made.python.why_not()
        if unfit:
            pytest.skip(f"NO MACHINE WITH SEVERAL USERS WAS TRIED: {unfit}")
        yield made
    finally:
        made.remove()
