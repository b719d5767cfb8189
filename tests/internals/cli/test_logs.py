"""The log of commands that run for long: for people, or one JSON object on each line."""

import json
import logging
import sys

import pytest

from tests.cli.conftest import Veilmq
from veilmq.cli.logs import JsonLines


def record(text: str, *arguments: object, **given: object) -> logging.LogRecord:
    made = logging.LogRecord("veilmq.consumer", logging.WARNING, "x.py", 1, text, arguments, None)
    made.created = 1_700_000_000.1234
    vars(made).update(given)
    return made


def test_a_record_is_one_object_on_one_line() -> None:
    line = JsonLines().format(record("message %s:\nlost", "m1", message_id="m1", attempt=2, seen={"a"}))
    assert "\n" not in line
    assert json.loads(line) == {
        "at": "2023-11-14T22:13:20.123+00:00",
        "level": "warning",
        "logger": "veilmq.consumer",
        "message": "message m1:\nlost",
        "message_id": "m1",
        "attempt": 2,
        "seen": ["a"],
    }


def test_an_exception_is_a_field() -> None:
    made = record("it failed")
    try:
        raise LookupError("not yet")
    except LookupError:
        made.exc_info = sys.exc_info()
    told = json.loads(JsonLines().format(made))
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("LookupError: not yet")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [("--log", "'loud' is no level; use debug,"), ("--log-format", "'loud' is none; use text or json.")],
)
def test_what_is_no_log_is_refused(veilmq: Veilmq, option: str, sentence: str) -> None:
    done = veilmq("worker", "shop:app", option, "loud")
    assert done.code == 2
    assert f"{option}: {sentence}" in done.err
