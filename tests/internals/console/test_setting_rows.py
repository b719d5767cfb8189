"""The table of settings: none is forgotten, and what a field shows is read back as what it was."""

import msgspec
import pytest

from veilmq.console.field_kinds import BYTES, SECONDS, Number, Unfit, span
from veilmq.console.setting_rows import GROUPS, ROWS, SettingRow
from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.core.settings import QueueSettings
from veilmq.wire.v1.queues import RANGES, SettingFields

EVERY_ROW = pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.setting)


def test_every_setting_has_one_row() -> None:
    listed = [row.setting for group in GROUPS for row in group.rows]
    assert sorted(listed) == sorted(SettingFields.__struct_fields__)
    assert {*listed, "tags", "purges"} == {field.name for field in msgspec.structs.fields(QueueSettings)}


@EVERY_ROW
def test_the_default_is_read_back(row: SettingRow) -> None:
    default = getattr(QueueSettings(), row.setting)
    assert row.kind.read(row.kind.write(default)) == default


@pytest.mark.parametrize("name", RANGES)
def test_numbers_have_the_ranges_of_the_route(name: str) -> None:
    kind, allowed = ROWS[name].kind, RANGES[name]
    assert isinstance(kind, Number)
    assert f"{allowed.minimum:,} to {allowed.maximum:,}" in kind.hint
    for value in (allowed.minimum, allowed.maximum):
        assert kind.read(f" {value} ") == value
    for text in (str(allowed.minimum - 1), str(allowed.maximum + 1), "1.5", "٣", "1e3", "9" * 400):
        with pytest.raises(Unfit, match=span(allowed)):
            kind.read(text)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("visibility_timeout_s", "0 to 43,200 seconds; SMQ: 1 to 43,200."),
        ("delay_s", "0 to 604,800 seconds; SQS: 0 to 900."),
        ("retention_s", "60 to 1,209,600 seconds; SMQ: 60 to 604,800."),
        ("receive_wait_s", "0 to 30 seconds; SQS: 0 to 20."),
        ("message_bytes_max", "1,024 to 1,048,576 bytes; SMQ: 1,024 to 65,536."),
        ("receives_per_s_max", "0 to 1,000,000 receives a second; 0: no limit."),
        ("in_flight_max", "1 to 1,000,000 messages; empty: the server's own limit."),
    ],
)
def test_the_range_and_those_of_protocols_stand_beside_the_field(name: str, hint: str) -> None:
    assert ROWS[name].kind.hint == hint


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("visibility_timeout_s", 45, "45 seconds"),
        ("delay_s", 1, "1 second"),
        ("delay_s", 0, "0 seconds"),
        ("receives_per_s_max", 1, "1 receive a second"),
        ("visibility_timeout_s", 5_400, "5,400 seconds (1 h 30 min)"),
        ("in_flight_max", None, "the server's own limit"),
        ("receives_per_s_max", 0, "no limit"),
        ("receives_max", 5, "5 receives"),
        ("fifo", True, "yes"),
        ("throughput_limit", "group", "each message group"),
        ("dead_letter_queue", "000000000000/failed", "failed"),
        ("redrive_sources", ("000000000000/a", "000000000000/b"), "a, b"),
        ("event_log", "closed", "the ends of receipts"),
        ("policy", "", ""),
    ],
)
def test_values_are_told_in_words(setting: str, value: object, words: str) -> None:
    assert ROWS[setting].kind.words(value) == words  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["fifo", "event_log", "redrive_permission"])
def test_what_is_none_of_the_choices_is_refused(setting: str) -> None:
    with pytest.raises(Unfit, match="Choose one of these"):
        ROWS[setting].kind.read("<script>")


def test_a_number_may_be_left_out_where_the_kind_says_so() -> None:
    required = Number(allowed=limits.DELAY_S, unit=SECONDS, protocols={})
    with pytest.raises(Unfit, match="0 to 604,800 seconds"):
        required.read(" ")
    optional = Number(allowed=Range(minimum=1, maximum=2, default=1), unit=BYTES, protocols={}, empty="any")
    assert optional.read("") is None
    assert optional.write(None) == ""
