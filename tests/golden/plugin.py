"""A pytest plugin: records the schedulers of the tests that run.

pytest -p tests.golden.plugin --golden-log core --golden-events 60000 tests/core
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden import logs
from tests.golden.choose import Choice
from tests.golden.recorder import Recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-log", default="", help="write the golden log of this name")
    parser.addoption("--golden-events", type=int, default=100_000, help="about so many events at most")
    parser.addoption("--golden-look", type=int, default=50, help="look at the pictures after so many events")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--golden-log"):
        config.pluginmanager.register(_Plugin(config), "golden-recorder")


class _Plugin:
    def __init__(self, config: pytest.Config) -> None:
        self._name = config.getoption("--golden-log")
        self._recorder = Recorder(look_every=config.getoption("--golden-look"))
        self._choice = Choice(events_max=config.getoption("--golden-events"))
        self._text = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._recorder.where = item.nodeid
        with self._recorder.attached():
            result = yield
        self._choice.add(self._recorder.take())
        return result

    def pytest_sessionfinish(self) -> None:
        sessions, failed = self._choice.best()
        path = logs.write(self._name, sessions)
        kept = sum(each.events for each in sessions)
        self._text = (
            f"{path.name}: {len(sessions)} sessions with {kept:,} of {self._choice.events_seen:,} events,"
            f" {path.stat().st_size:,} bytes; {self._choice.doubles} were doubles,"
            f" {self._recorder.skipped} had schedulers that cannot be named, {len(failed)} could not be replayed"
        )
        if failed:
            self._text += "\n" + "\n".join(failed[:3])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(self._text)
