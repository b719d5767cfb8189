"""Options and their documentation, and the log of long-running commands."""

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
"""Fields of ``QueueSettings`` that are not options, or only of one command."""
OF_CYCLOPTS = {"CycloptsError", "ShellDetectionError"}


def sections(page: str) -> dict[str, str]:
    """Return the second-level sections of a page of docs by their headings."""
    _, *parts = re.split(r"^## (.+)$", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_setting_of_queues_has_an_option() -> None:
    assert {field.name for field in fields(QueueOptions)} | OTHERS == set(QueueSettings.__struct_fields__)


def test_each_remedy_belongs_to_a_check_of_the_doctor() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (SRC / "veilmq" / "store").rglob("*.py")]
    for check in REMEDIES.keys() - {"it can be examined"}:
        assert any(f'"{check}"' in text for text in texts), check


def test_the_named_errors_of_usage_and_modules_of_extras_exist() -> None:
    texts = [file.read_text(encoding="utf-8") for file in (SRC / "veilmq").rglob("*.py")]
    assert all(hasattr(cyclopts, error) or hasattr(detect, error) for error in OF_CYCLOPTS)
    for error in _WRONG_USAGE - OF_CYCLOPTS:
        assert any(f"class {error}(" in text for text in texts), error
    requirements = [Requirement(line) for line in requires("veilmq") or ()]
    for extra, modules in _EXTRAS.items():
        installed = {each.name for each in requirements if each.marker and each.marker.evaluate({"extra": extra})}
        assert set(modules) - {"grpc"} <= {name.replace("-", "_") for name in installed}  # pyspark[connect] needs grpc


def test_the_help_of_serve_has_all_settings() -> None:
    text = re.sub(r"[│\s]+", " ", command("serve", "--help", COLUMNS="200").stdout)
    for row in SETTINGS:
        assert f" {row.flag} " in text
        assert row.description in text
        if row.kind.placeholder:
            expected = f"{row.flag} {row.kind.placeholder} {row.description} Must be {row.kind.allowed}."
            assert f"{expected} [default: {row.default_text}]" in text


def test_fields_of_a_job_that_are_not_options_can_be_replaced() -> None:
    """``tune`` sets them for each queue."""
    given = signature_of(tune).parameters["options"].default
    assert replace(given, fenced=False, receives_max=3) != given
    assert (given.fenced, given.receives_max) == (True, 5)


def test_commands_and_sections_of_the_page_match() -> None:
    assert set(sections("cli.md")) == {f"veilmq {name}" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_has_the_options_of_its_command(name: str) -> None:
    settings = sections("settings.md")["All settings"] if name == "serve" else ""
    named = set(OPTION.findall(sections("cli.md")[f"veilmq {name}"] + settings))
    existing = options(COMMANDS[name])
    assert existing, "each command has an option"
    assert existing - named == set(), "undocumented"
    assert named <= existing, "not an option of this command"


def test_the_page_of_settings_has_the_table_of_the_schema_and_the_sources_of_values() -> None:
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
def test_the_documented_ranges_of_queue_settings_are_the_limits(option: str, allowed: limits.Range) -> None:
    (line,) = [line for line in sections("cli.md")["veilmq queue create"].splitlines() if f"| `{option} N` |" in line]
    _, _, bounds, default, *_ = [cell.strip() for cell in line.split("|")]
    assert (bounds.removesuffix(" s"), default) == (f"{allowed.minimum} to {allowed.maximum}", str(allowed.default))


def test_an_error_names_the_path_that_cannot_be_used(tmp_path: Path, veilmq: Veilmq) -> None:
    done = veilmq("pipeline", "tune", "--state", "s", "--undo", "--record", str(tmp_path))
    done.fails(1, f"veilmq: {tmp_path} cannot be used: Is a directory.\n")


def log_record(text: str, *arguments: object, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("veilmq.consumer", logging.WARNING, "x.py", 1, text, arguments, None)
    record.created = 1_700_000_000.1234
    vars(record).update(extra)
    return record


def test_a_log_record_is_one_json_object_on_one_line() -> None:
    """It has the fields of ``extra``, and an exception as a field."""
    record = log_record("message %s:\nlost", "m1", message_id="m1", attempt=2, seen={"a"})
    expected = {"at": "2023-11-14T22:13:20.123+00:00", "level": "warning", "logger": "veilmq.consumer"}
    line = JsonLines().format(record)
    assert "\n" not in line
    extra = {"message_id": "m1", "attempt": 2, "seen": ["a"]}
    assert json.loads(line) == expected | {"message": "message m1:\nlost"} | extra
    try:
        raise LookupError("not yet")
    except LookupError:
        record.exc_info = sys.exc_info()
    exception = json.loads(JsonLines().format(record))["exception"]
    assert exception.startswith("Traceback")
    assert exception.endswith("LookupError: not yet")


def test_a_log_record_of_any_values_is_json() -> None:
    """Bytes of a file name that are not UTF-8, and a value that contains itself."""
    line = json.loads(JsonLines().format(log_record("read %s", "a\udcff", attempt=2)))
    assert (line["message"], line["attempt"]) == ("read a\\udcff", "2")
    cycle: list[object] = []
    cycle.append(cycle)
    assert json.loads(JsonLines().format(log_record("x", seen=cycle)))["seen"] == "[[...]]"


@pytest.mark.parametrize(
    ("option", "words"),
    [("--log", "Must be debug, info, warning or error."), ("--log-format", 'Choose from: "text", "json".')],
)
def test_an_invalid_log_option_is_refused(veilmq: Veilmq, option: str, words: str) -> None:
    veilmq("worker", "shop:app", option, "loud").fails(2, f'Invalid value "loud" for {option}. {words}')


def test_a_log_level_may_be_in_capitals(veilmq: Veilmq) -> None:
    veilmq("worker", "no.such.module:app", "--log", "WARNING").fails(2, "There is no module")
