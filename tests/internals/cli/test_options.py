"""Options, their documentation and the log of commands that run for long: each says what there is, no more, no less."""

import json
import logging
import re
import sys
from dataclasses import fields, replace
from importlib.metadata import requires
from pathlib import Path

import cyclopts
import pytest
from cyclopts.completion import detect
from packaging.requirements import Requirement

from tests.cli.conftest import Veilmq, command
from tests.cli.every_command import every_command, options
from tests.tidy.tree import ROOT, SRC
from veilmq.cli.app import _EXTRAS, _WRONG_USAGE
from veilmq.cli.options import signature_of
from veilmq.cli.pipeline import tune
from veilmq.cli.queue import QueueOptions
from veilmq.cli.store import REMEDIES
from veilmq.cli.worker import JsonLines
from veilmq.core import limits
from veilmq.core.settings import QueueSettings
from veilmq.server.settings import FILE_NAME, SETTINGS, VARIABLES_OF_OTHERS

COMMANDS = dict(every_command())
OPTION = re.compile(r"--[a-z][a-z0-9-]+")
OTHERS = {"fifo", "tags", "purges"}
"""Settings of queues that are no options, or of one command alone."""
OF_CYCLOPTS = {"CycloptsError", "ShellDetectionError"}


def sections(page: str) -> dict[str, str]:
    """Return heading → text of each section of the second level in docs/`page`."""
    _, *parts = re.split(r"^## (.+)$", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_there_is_an_option_for_every_setting_of_queues() -> None:
    assert {field.name for field in fields(QueueOptions)} | OTHERS == set(QueueSettings.__struct_fields__)


def test_each_remedy_is_for_a_check_that_the_doctor_has() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (SRC / "veilmq" / "store").rglob("*.py")]
    for check in REMEDIES.keys() - {"it can be examined"}:
        assert any(f'"{check}"' in text for text in texts), check


def test_errors_of_usage_and_modules_of_extras_are_those_that_there_are() -> None:
    """The command line knows them by name alone."""
    texts = [file.read_text(encoding="utf-8") for file in (SRC / "veilmq").rglob("*.py")]
    assert all(hasattr(cyclopts, error) or hasattr(detect, error) for error in OF_CYCLOPTS)
    for error in _WRONG_USAGE - OF_CYCLOPTS:
        assert any(f"class {error}(" in text for text in texts), error
    needed = [Requirement(line) for line in requires("veilmq") or ()]
    for extra, modules in _EXTRAS.items():
        brought = {each.name for each in needed if each.marker and each.marker.evaluate({"extra": extra})}
        assert set(modules) - {"grpc"} <= {name.replace("-", "_") for name in brought}  # grpc is of pyspark[connect]


def test_help_is_made_from_the_schema() -> None:
    text = re.sub(r"[│\s]+", " ", command("serve", "--help", COLUMNS="200").stdout)
    for row in SETTINGS:
        assert f" {row.flag} " in text
        assert row.description in text
        if row.kind.placeholder:
            expected = f"{row.flag} {row.kind.placeholder} {row.description} Must be {row.kind.allowed}."
            assert f"{expected} [default: {row.default_text}]" in text


def test_options_of_a_command_can_be_replaced_like_those_of_a_job() -> None:
    """Also those that are no options of the command: tune sets them for each queue."""
    given = signature_of(tune).parameters["options"].default
    assert replace(given, fenced=False, receives_max=3) != given
    assert (given.fenced, given.receives_max) == (True, 5)


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(sections("cli.md")) == {f"veilmq {name}" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_names_the_options_of_its_command(name: str) -> None:
    named = set(OPTION.findall(sections("cli.md")[f"veilmq {name}"]))
    existing = options(COMMANDS[name])
    assert existing, "every command has an option"
    assert existing - named == set(), "undocumented"
    assert named <= existing, "no option of this command"


def test_the_page_of_settings_has_the_table_of_the_schema_and_where_they_come_from() -> None:
    lines = sections("settings.md")["All settings"].strip().splitlines()
    assert lines[2:] == [
        f"| `{row.name}` | `{row.flag}` | `{row.variable}` | `{row.default_text}` | {row.kind.allowed} | "
        f"{row.description} |"
        for row in SETTINGS
    ]
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for word in [FILE_NAME, "--config", *VARIABLES_OF_OTHERS]:
        assert f"`{word}" in text, word


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--visibility-timeout", limits.VISIBILITY_TIMEOUT_S),
        ("--delay", limits.SQS_DELAY_S),
        ("--retention", limits.RETENTION_S),
        ("--receive-wait", limits.SQS_RECEIVE_WAIT_S),
        ("--message-bytes-max", limits.MESSAGE_BYTES),
    ],
)
def test_the_ranges_of_a_queues_settings_are_those_of_the_limits(option: str, allowed: limits.Range) -> None:
    (line,) = [line for line in sections("cli.md")["veilmq queue create"].splitlines() if f"| `{option} N` |" in line]
    _, _, told, default, *_ = [cell.strip() for cell in line.split("|")]
    assert (told.removesuffix(" s"), default) == (f"{allowed.minimum} to {allowed.maximum}", str(allowed.default))


def test_a_job_that_cannot_use_a_path_says_which(tmp_path: Path, veilmq: Veilmq) -> None:
    done = veilmq("pipeline", "tune", "--state", "s", "--undo", "--record", str(tmp_path))
    done.fails(1, f"veilmq: {tmp_path} cannot be used: Is a directory.\n")


# The log of commands that run for long: for people, or one JSON object on each line.


def record(text: str, *arguments: object, **given: object) -> logging.LogRecord:
    """Return a record as a logger makes it; `given` is what its `extra` was."""
    made = logging.LogRecord("veilmq.consumer", logging.WARNING, "x.py", 1, text, arguments, None)
    made.created = 1_700_000_000.1234
    vars(made).update(given)
    return made


def test_a_record_is_one_object_on_one_line() -> None:
    """With whatever its `extra` was, also what is no JSON; an exception is a field."""
    made = record("message %s:\nlost", "m1", message_id="m1", attempt=2, seen={"a"})
    told = {"at": "2023-11-14T22:13:20.123+00:00", "level": "warning", "logger": "veilmq.consumer"}
    line = JsonLines().format(made)
    assert "\n" not in line
    extra = {"message_id": "m1", "attempt": 2, "seen": ["a"]}
    assert json.loads(line) == told | {"message": "message m1:\nlost"} | extra
    try:
        raise LookupError("not yet")
    except LookupError:
        made.exc_info = sys.exc_info()
    exception = json.loads(JsonLines().format(made))["exception"]
    assert exception.startswith("Traceback")
    assert exception.endswith("LookupError: not yet")


@pytest.mark.parametrize(
    ("option", "words"),
    [("--log", "Must be debug, info, warning or error."), ("--log-format", 'Choose from: "text", "json".')],
)
def test_what_is_no_log_is_refused(veilmq: Veilmq, option: str, words: str) -> None:
    veilmq("worker", "shop:app", option, "loud").fails(2, f'Invalid value "loud" for {option}. {words}')


def test_a_level_may_be_in_capitals(veilmq: Veilmq) -> None:
    veilmq("worker", "no.such.module:app", "--log", "WARNING").fails(2, "There is no module")
