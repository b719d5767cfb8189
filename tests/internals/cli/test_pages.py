"""The documentation of commands and settings says what there is: no more and no less."""

import re

import pytest

from tests.cli.every_command import every_command, options
from tests.tidy.tree import ROOT
from veilmq.core import limits
from veilmq.server.settings import FILE_NAME, SETTINGS, VARIABLES_OF_OTHERS, Setting

COMMANDS = dict(every_command())
OPTION = re.compile(r"--[a-z][a-z0-9-]+")


def sections(page: str) -> dict[str, str]:
    _, *parts = re.split(r"^## (.+)$", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def table_row(setting: Setting) -> str:
    names = f"`{setting.name}` | `{setting.flag}` | `{setting.variable}` | `{setting.default_text}`"
    return f"| {names} | {setting.kind.allowed} | {setting.description} |"


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(sections("cli.md")) == {f"veilmq {name}" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_names_the_options_of_its_command(name: str) -> None:
    named = set(OPTION.findall(sections("cli.md")[f"veilmq {name}"]))
    existing = options(COMMANDS[name])
    assert existing, "every command has an option"
    assert existing - named == set(), "undocumented"
    assert named <= existing, "no option of this command"


def test_the_table_of_settings_is_the_schema() -> None:
    lines = sections("settings.md")["All settings"].strip().splitlines()
    assert lines[2:] == [table_row(setting) for setting in SETTINGS]


def test_the_page_names_where_settings_come_from() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for word in [FILE_NAME, "--config", *VARIABLES_OF_OTHERS]:
        assert f"`{word}" in text, word


RANGES = {
    "--visibility-timeout": limits.VISIBILITY_TIMEOUT_S,
    "--delay": limits.SQS_DELAY_S,
    "--retention": limits.RETENTION_S,
    "--receive-wait": limits.SQS_RECEIVE_WAIT_S,
    "--message-bytes-max": limits.MESSAGE_BYTES,
}


@pytest.mark.parametrize("option", RANGES)
def test_the_ranges_of_a_queues_settings_are_those_of_the_limits(option: str) -> None:
    allowed = RANGES[option]
    (line,) = [line for line in sections("cli.md")["veilmq queue create"].splitlines() if f"| `{option} N` |" in line]
    _, _, told, default, *_ = [cell.strip() for cell in line.split("|")]
    assert told.removesuffix(" s") == f"{allowed.minimum} to {allowed.maximum}"
    assert default == str(allowed.default)
