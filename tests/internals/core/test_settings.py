"""Limits, and settings of a queue: defaults, which fit together, routing tables, and its dead-letter queue."""

import json
from typing import Any

import pytest

from veilmq.core import limits
from veilmq.core.errors import SettingsConflict
from veilmq.core.settings import RULES, QueueSettings, TableError, checked_settings, dead_letter_refusal, read_table


def test_the_ranges_of_the_sqs_documentation() -> None:
    """Amazon SQS quotas: 12 hours, 15 minutes, 1 minute to 14 days, 20 s, 10 a call, 1 MiB."""
    assert (limits.VISIBILITY_TIMEOUT_S.minimum, limits.VISIBILITY_TIMEOUT_S.maximum) == (0, 12 * 3_600)
    assert (limits.SQS_DELAY_S.minimum, limits.SQS_DELAY_S.maximum) == (0, 15 * 60)
    assert (limits.RETENTION_S.minimum, limits.RETENTION_S.maximum) == (60, 14 * 86_400)
    assert limits.SQS_RECEIVE_WAIT_S.maximum == 20
    assert (limits.SQS_RECEIVE_COUNT.minimum, limits.SQS_RECEIVE_COUNT.maximum) == (1, 10)
    assert limits.MESSAGE_BYTES.maximum == limits.SQS_BATCH_BYTES_MAX == 1_048_576
    assert limits.VISIBILITY_TIMEOUT_S.maximum == limits.LEASE_S_MAX


def test_the_largest_request_fits_through_http() -> None:
    """A batch of the largest size fits into a body even if JSON escapes each of its bytes as six."""
    assert limits.HTTP_BODY_BYTES_MAX > 6 * limits.SQS_BATCH_BYTES_MAX
    assert limits.BATCH_BYTES_MAX >= limits.SQS_BATCH_BYTES_MAX


LETTERS = "a/letters"

BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"content_deduplication": True}, "content_deduplication"),
    ({"deduplication_scope": "group"}, "deduplication_scope"),
    ({"throughput_limit": "group", "deduplication_scope": "group", "fifo": False}, "deduplication_scope"),
    ({"throughput_limit": "group"}, "throughput_limit"),
    ({"throughput_limit": "group", "fifo": True}, "throughput_limit"),
    ({"dead_letter_queue": LETTERS}, "receives_max"),
    ({"receives_max": 3}, "receives_max"),
    ({"redrive_sources": ("a/source",)}, "redrive_sources"),
    ({"redrive_sources": ("a/source",), "redrive_permission": "all"}, "redrive_sources"),
    ({"kms_key": "alias/mine", "managed_encryption": True}, "kms_key"),
    ({"visibility_rules": "{}"}, "visibility_rules"),
]
KEPT: list[dict[str, Any]] = [
    {},
    {"content_deduplication": False, "deduplication_scope": "queue", "throughput_limit": "queue"},
    {"fifo": True, "content_deduplication": True},
    {"fifo": True, "deduplication_scope": "group"},
    {"fifo": True, "deduplication_scope": "group", "throughput_limit": "group"},
    {"dead_letter_queue": LETTERS, "receives_max": 3},
    {"redrive_permission": "listed", "redrive_sources": ("a/source",)},
    {"redrive_permission": "listed"},
    {"kms_key": "alias/mine", "managed_encryption": False},
    {"managed_encryption": False},
    {"visibility_rules": '{"version":1,"classes":[{"name":"a","visibility_timeout_s":5}],"default":0}'},
    {"visibility_rules": ""},
]


@pytest.mark.parametrize(("given", "setting"), BROKEN, ids=str)
@pytest.mark.parametrize("before", [None, QueueSettings()], ids=["new", "there"])
def test_what_contradicts_itself_is_refused(before: QueueSettings | None, given: dict[str, Any], setting: str) -> None:
    if before is not None:
        before = before.changed({"fifo": given.get("fifo", False)})
    with pytest.raises(SettingsConflict) as refusal:
        checked_settings(before, given)
    assert refusal.value.setting == setting
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize("given", KEPT, ids=str)
def test_what_fits_together_is_taken(given: dict[str, Any]) -> None:
    assert checked_settings(None, given) == QueueSettings().changed(given)


def test_every_rule_is_broken_by_some_case_here() -> None:
    """By that rule and by none before it: a rule that is taken out makes a case above pass, and its test fail."""
    first = {
        next(index for index, (_, is_broken, _) in enumerate(RULES) if is_broken(QueueSettings().changed(given)))
        for given, _ in BROKEN
    }
    assert first == set(range(len(RULES)))


def test_the_result_counts_and_not_the_change_alone() -> None:
    """One change completes or breaks what an earlier one set."""
    before = checked_settings(None, {"fifo": True, "deduplication_scope": "group"})
    after = checked_settings(before, {"throughput_limit": "group"})
    with pytest.raises(SettingsConflict):
        checked_settings(after, {"deduplication_scope": "queue"})
    with_letters = checked_settings(None, {"dead_letter_queue": LETTERS, "receives_max": 3})
    assert checked_settings(with_letters, {"receives_max": 5}).dead_letter_queue == LETTERS
    with pytest.raises(SettingsConflict):
        checked_settings(with_letters, {"dead_letter_queue": ""})
    assert checked_settings(with_letters, {"dead_letter_queue": "", "receives_max": 0}) == QueueSettings()


@pytest.mark.parametrize("fifo", [False, True])
def test_the_kind_of_a_queue_is_for_good(*, fifo: bool) -> None:
    before = checked_settings(None, {"fifo": fifo})
    assert checked_settings(before, {"fifo": fifo}) == before
    with pytest.raises(SettingsConflict) as refusal:
        checked_settings(before, {"fifo": not fifo})
    assert refusal.value.setting == "fifo"


def test_one_kind_of_encryption_ends_the_other() -> None:
    managed = checked_settings(None, {})
    own = checked_settings(managed, {"kms_key": "alias/mine"})
    assert (own.kms_key, own.managed_encryption) == ("alias/mine", False)
    assert checked_settings(own, {"managed_encryption": True}) == managed
    neither = checked_settings(own, {"kms_key": ""})
    assert (neither.kms_key, neither.managed_encryption) == ("", False)


TABLE: dict[str, Any] = {
    "version": 3,
    "attribute": "Kind",
    "classes": [
        {"name": "a", "visibility_timeout_s": 0},
        {"name": "b", "visibility_timeout_s": 30, "queue": "jobs-b"},
        {"name": "c", "visibility_timeout_s": 43_200},
    ],
    "keys": {"mail": 0, "video": 1},
    "default": 2,
}


def test_a_class_is_found_by_its_key_and_rises_with_each_receive() -> None:
    """Up to the last one; keys that are not listed are of the default."""
    table = read_table(json.dumps(TABLE))
    assert [table.class_of("mail", receives).name for receives in (0, 1, 2, 3, 1_000)] == ["a", "b", "c", "c", "c"]
    assert [table.class_of(key).name for key in ("video", "other", "")] == ["b", "c", "c"]
    assert [table.timeout_s("mail", receives) for receives in (0, 1, 2)] == [0, 30, 43_200]
    assert table.timeout_s("", 0) == 43_200


@pytest.mark.parametrize(("changes", "why"), [
    ({"classes": []}, "at least one class"),
    ({"classes": [{"name": "a", "visibility_timeout_s": -1}]}, "'a' must be 0 to 43200"),
    ({"classes": [{"name": "a", "visibility_timeout_s": 43_201}]}, "'a' must be 0 to 43200"),
    ({"classes": TABLE["classes"][::-1]}, "rising order"), ({"classes": [{"name": "a"}]}, "visibility_timeout_s"),
    ({"default": 3}, "default is 3, and the classes are 0 to 2"), ({"default": -1}, "default is -1"),
    ({"keys": {"mail": 3}}, "class of 'mail' is 3"), ({"keys": {"mail": "b"}}, "keys"), ({"version": None}, "version"),
], ids=str)  # fmt: skip
def test_a_table_that_is_wrong_says_what_to_correct(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(TableError, match=why):
        read_table(json.dumps(TABLE | changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff", '{"more": ' + "[" * 60_000])
def test_text_that_is_no_table(text: str | bytes) -> None:
    with pytest.raises(TableError, match="A routing table is JSON with version, classes, keys and default: "):
        read_table(text)


STANDARD = QueueSettings()
FIFO = QueueSettings(fifo=True)


def listed(*sources: str) -> QueueSettings:
    return QueueSettings(redrive_permission="listed", redrive_sources=sources)


@pytest.mark.parametrize(("ours", "target", "theirs", "why"), [
    (STANDARD, "a/dead", STANDARD, None), (STANDARD, "a/dead", QueueSettings(redrive_permission="all"), None),
    (STANDARD, "a/dead", listed("a/jobs", "a/more"), None), (FIFO, "a/dead", FIFO, None),
    (STANDARD, "a/jobs", STANDARD, "its own"), (STANDARD, "b/dead", STANDARD, "another account"),
    (STANDARD, "a/dead", None, "does not exist"), (STANDARD, "a/dead", FIFO, "another type"),
    (FIFO, "a/dead", STANDARD, "another type"),
    (STANDARD, "a/dead", QueueSettings(redrive_permission="none"), "does not allow"),
    (STANDARD, "a/dead", listed("a/more"), "does not allow"),
    (STANDARD, "a/dead", listed("a/job", "jobs", "a/jobs2"), "does not allow"),
])  # fmt: skip
def test_a_dead_letter_queue_serves_or_is_refused_for_a_reason(
    ours: QueueSettings, target: str, theirs: QueueSettings | None, why: str | None
) -> None:
    """A list is of full names."""
    found = dead_letter_refusal("a/jobs", ours, target, theirs)
    assert found is None if why is None else why in (found or "")
