"""Limits, and the rules for the settings of queues, routing tables and dead-letter queues."""

import json
from typing import Any

import pytest

from veilmq.core import limits
from veilmq.core.errors import SettingsConflict
from veilmq.core.settings import RULES, QueueSettings, TableError, checked_settings, dead_letter_refusal, read_table


def test_ranges_match_the_sqs_documentation() -> None:
    """Amazon SQS quotas: 12 hours, 15 minutes, 1 minute to 14 days, 20 s, 10 messages a call, 1 MiB."""
    assert (limits.VISIBILITY_TIMEOUT_S.minimum, limits.VISIBILITY_TIMEOUT_S.maximum) == (0, 12 * 3_600)
    assert (limits.SQS_DELAY_S.minimum, limits.SQS_DELAY_S.maximum) == (0, 15 * 60)
    assert (limits.RETENTION_S.minimum, limits.RETENTION_S.maximum) == (60, 14 * 86_400)
    assert limits.SQS_RECEIVE_WAIT_S.maximum == 20
    assert (limits.SQS_RECEIVE_COUNT.minimum, limits.SQS_RECEIVE_COUNT.maximum) == (1, 10)
    assert limits.MESSAGE_BYTES.maximum == limits.SQS_BATCH_BYTES_MAX == 1_048_576
    assert limits.VISIBILITY_TIMEOUT_S.maximum == limits.LEASE_S_MAX


def test_the_largest_batch_fits_into_an_http_body() -> None:
    """Even if JSON escapes each of its bytes as six."""
    assert limits.HTTP_BODY_BYTES_MAX > 6 * limits.SQS_BATCH_BYTES_MAX
    assert limits.BATCH_BYTES_MAX >= limits.SQS_BATCH_BYTES_MAX


LETTERS = "a/letters"

CONFLICTING: list[tuple[dict[str, Any], str]] = [
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
CONSISTENT: list[dict[str, Any]] = [
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


@pytest.mark.parametrize(("given", "setting"), CONFLICTING, ids=str)
@pytest.mark.parametrize("before", [None, QueueSettings()], ids=["new", "existing"])
def test_conflicting_settings_are_refused(before: QueueSettings | None, given: dict[str, Any], setting: str) -> None:
    if before is not None:
        before = before.changed({"fifo": given.get("fifo", False)})
    with pytest.raises(SettingsConflict) as raised:
        checked_settings(before, given)
    assert raised.value.setting == setting
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize("given", CONSISTENT, ids=str)
def test_consistent_settings_are_accepted(given: dict[str, Any]) -> None:
    assert checked_settings(None, given) == QueueSettings().changed(given)


def test_every_rule_is_covered_by_a_case() -> None:
    """Each rule is the first one that refuses some case, so without the rule that case would fail."""
    first = {
        next(index for index, (_, is_broken, _) in enumerate(RULES) if is_broken(QueueSettings().changed(given)))
        for given, _ in CONFLICTING
    }
    assert first == set(range(len(RULES)))


def test_rules_apply_to_the_settings_after_the_change() -> None:
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
def test_a_queue_cannot_change_between_fifo_and_standard(*, fifo: bool) -> None:
    before = checked_settings(None, {"fifo": fifo})
    assert checked_settings(before, {"fifo": fifo}) == before
    with pytest.raises(SettingsConflict) as raised:
        checked_settings(before, {"fifo": not fifo})
    assert raised.value.setting == "fifo"


def test_enabling_one_kind_of_encryption_disables_the_other() -> None:
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


def test_each_expired_lease_raises_the_timeout_class() -> None:
    """Up to the last class; other keys have the default class."""
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
def test_errors_of_a_routing_table_say_what_to_correct(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(TableError, match=why):
        read_table(json.dumps(TABLE | changes))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff", '{"more": ' + "[" * 60_000])
def test_text_that_is_not_a_routing_table_is_refused(text: str | bytes) -> None:
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
def test_dead_letter_refusal(ours: QueueSettings, target: str, theirs: QueueSettings | None, why: str | None) -> None:
    found = dead_letter_refusal("a/jobs", ours, target, theirs)
    assert found is None if why is None else why in (found or "")
