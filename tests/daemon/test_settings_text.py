"""The file that is first written names every setting of the code, with its default."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from carpool.daemon import settings_text
from carpool.daemon.config import DaemonConfig
from carpool.daemon.settings_file import Access, MachineSettings, TenantSettings, UserLimits, parse_settings

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
SETTING = re.compile(r"^# ((?:[a-z_]+ = .*)|\[[a-z.-]+\])$", re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (DaemonConfig, settings_text.DAEMON_WORDS),
        (Access, settings_text.ACCESS_WORDS),
        (UserLimits, settings_text.LIMITS_WORDS),
        (TenantSettings, settings_text.TENANT_WORDS),
    ],
)
def test_every_setting_has_its_words(kind: type[msgspec.Struct], words: dict[str, str]) -> None:
    assert list(words) == [field.name for field in msgspec.structs.fields(kind)]


def test_as_written_it_says_nothing_but_defaults() -> None:
    assert parse_settings(settings_text.settings_text()) == MachineSettings()


def test_with_its_comments_taken_away_it_says_the_defaults_of_the_code() -> None:
    whole = SETTING.sub(r"\1", settings_text.settings_text())
    said = tomllib.loads(whole)
    assert parse_settings(whole) == MachineSettings(tenants={"lab": TenantSettings()})
    assert {key: said[key] for key in msgspec.structs.asdict(DaemonConfig())} == msgspec.structs.asdict(
        DaemonConfig()
    )
    assert said["limits"] == msgspec.to_builtins(UserLimits())


def test_what_is_chosen_is_no_comment() -> None:
    text = settings_text.settings_text(chosen={"access.group": "gpu"})
    assert parse_settings(text) == MachineSettings(access=Access(group="gpu"))


def test_no_line_is_too_wide_for_a_screen() -> None:
    assert not [line for line in settings_text.settings_text().splitlines() if len(line) > 118]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_a_page_shows_can_be_read(page: Path) -> None:
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL):
        if not block.startswith("[project"):  # a package's, not carpool's
            parse_settings(block)
