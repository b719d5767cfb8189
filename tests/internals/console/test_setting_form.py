"""Forms of settings: only what was changed in them is sent, and what two have changed is nobody's to undo."""

import msgspec
import pytest

from veilmq.console.asking import Refused
from veilmq.console.field_kinds import plain
from veilmq.console.setting_form import field_of, filled, shown_rows, texts_of
from veilmq.console.setting_rows import ROWS
from veilmq.core.settings import QueueSettings

PRESENT = QueueSettings(visibility_timeout_s=30, delay_s=5, policy='{\n"a": 1}')


def form(settings: QueueSettings = PRESENT, **typed: str) -> dict[str, str]:
    """Return the form that was opened with ``settings``, as a browser sends it, with some fields typed over."""
    texts = texts_of(settings, shown_rows(settings))
    was = {f"was.{name}": text for name, text in texts.items()}
    return {name: text.replace("\n", "\r\n") for name, text in (texts | was | typed).items()}


def test_a_form_that_nobody_changed_asks_for_nothing() -> None:
    assert filled(form(), PRESENT, shown_rows(PRESENT)).changes == {}


def test_only_what_was_changed_is_sent() -> None:
    found = filled(form(visibility_timeout_s="45", in_flight_max="7"), PRESENT, shown_rows(PRESENT))
    assert found.changes == {"visibility_timeout_s": 45, "in_flight_max": 7}
    assert found.problems == {}


def test_what_others_changed_meanwhile_stays() -> None:
    now = PRESENT.changed({"delay_s": 9})
    found = filled(form(visibility_timeout_s="45"), now, shown_rows(now))
    assert found.changes == {"visibility_timeout_s": 45}
    assert found.texts["delay_s"] == "9"


def test_what_both_changed_is_asked_about() -> None:
    now = PRESENT.changed({"visibility_timeout_s": 60})
    found = filled(form(visibility_timeout_s="45"), now, shown_rows(now))
    assert found.changes == {}
    assert "60 seconds (1 min)" in found.problems["visibility_timeout_s"]
    assert found.texts["visibility_timeout_s"] == "45"


def test_both_may_have_changed_it_to_the_same() -> None:
    now = PRESENT.changed({"visibility_timeout_s": 45})
    found = filled(form(visibility_timeout_s="45"), now, shown_rows(now))
    assert (found.changes, found.problems) == ({}, {})


def test_the_same_number_written_otherwise_is_no_change() -> None:
    assert filled(form(visibility_timeout_s=" 030 "), PRESENT, shown_rows(PRESENT)).changes == {}


def test_every_field_that_is_wrong_is_told_and_keeps_what_was_typed() -> None:
    found = filled(form(visibility_timeout_s="43201", delay_s="soon"), PRESENT, shown_rows(PRESENT))
    assert set(found.problems) == {"visibility_timeout_s", "delay_s"}
    assert (found.texts["visibility_timeout_s"], found.texts["delay_s"]) == ("43201", "soon")


def test_a_standard_queue_has_no_field_of_fifo_queues() -> None:
    fifo = msgspec.structs.replace(PRESENT, fifo=True)
    more = {row.setting for row in shown_rows(fifo)} - {row.setting for row in shown_rows(PRESENT)}
    assert more == {"content_deduplication", "deduplication_scope", "throughput_limit"}
    assert "fifo" not in texts_of(fifo, shown_rows(fifo))


def test_line_ends_are_those_of_unix() -> None:
    assert plain("a\r\nb\nc") == "a\nb\nc"


@pytest.mark.parametrize(
    ("code", "message", "fields", "field"),
    [
        ("SettingsConflict", "No.", {"setting": "kms_key"}, "kms_key"),
        ("InvalidRequest", "delay_s: must be 0 to 604800.", {}, "delay_s"),
        ("InvalidRequest", "A name has 80 letters.", {}, ""),
        ("QueueExists", "No.", {"setting": "delay_s"}, "name"),
        ("QueueDeletedRecently", "Wait.", {}, "name"),
        ("DeadLetterQueueRefused", "None.", {"queue": "a/b"}, "dead_letter_queue"),
        ("InvalidAttributeValue", "No policy.", {}, "policy"),
        ("InvalidParameterValue", "A tag's key.", {}, "tags"),
        ("AccessDenied", "No.", {}, ""),
    ],
)
def test_a_refusal_belongs_to_a_field(code: str, message: str, fields: dict[str, str], field: str) -> None:
    assert field_of(Refused(code, message, 400, fields)) == field


def test_every_row_takes_part_in_a_form() -> None:
    assert set(texts_of(QueueSettings(), ROWS.values())) == set(ROWS)
