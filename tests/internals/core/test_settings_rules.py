"""Which settings fit together: each rule broken alone, the result judged and not the change, and what pulls another."""

from typing import Any

import pytest

from veilmq.core.errors import SettingsConflict
from veilmq.core.settings import RULES, QueueSettings, settled

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
    """It names the setting to correct."""
    if before is not None:
        before = before.changed({"fifo": given.get("fifo", False)})
    with pytest.raises(SettingsConflict) as refusal:
        settled(before, given)
    assert refusal.value.setting == setting
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize("given", KEPT, ids=str)
def test_what_fits_together_is_taken(given: dict[str, Any]) -> None:
    """And is exactly what was given."""
    assert settled(None, given) == QueueSettings().changed(given)


def test_every_rule_is_broken_by_some_case_here() -> None:
    """By that rule and by none before it: a rule that is taken out makes a case above pass, and its test fail."""
    first = {
        next(index for index, rule in enumerate(RULES) if rule.broken(QueueSettings().changed(given)))
        for given, _ in BROKEN
    }
    assert first == set(range(len(RULES)))


def test_the_result_counts_and_not_the_change_alone() -> None:
    """One change completes or breaks what an earlier one set."""
    before = settled(None, {"fifo": True, "deduplication_scope": "group"})
    after = settled(before, {"throughput_limit": "group"})
    with pytest.raises(SettingsConflict):
        settled(after, {"deduplication_scope": "queue"})
    with_letters = settled(None, {"dead_letter_queue": LETTERS, "receives_max": 3})
    assert settled(with_letters, {"receives_max": 5}).dead_letter_queue == LETTERS
    with pytest.raises(SettingsConflict):
        settled(with_letters, {"dead_letter_queue": ""})
    assert settled(with_letters, {"dead_letter_queue": "", "receives_max": 0}) == QueueSettings()


@pytest.mark.parametrize("fifo", [False, True])
def test_the_kind_of_a_queue_is_for_good(*, fifo: bool) -> None:
    """Saying what it is anyway is no change."""
    before = settled(None, {"fifo": fifo})
    assert settled(before, {"fifo": fifo}) == before
    with pytest.raises(SettingsConflict) as refusal:
        settled(before, {"fifo": not fifo})
    assert refusal.value.setting == "fifo"


def test_one_kind_of_encryption_ends_the_other() -> None:
    """Unless both are named."""
    managed = settled(None, {})
    own = settled(managed, {"kms_key": "alias/mine"})
    assert (own.kms_key, own.managed_encryption) == ("alias/mine", False)
    assert settled(own, {"managed_encryption": True}) == managed
    neither = settled(own, {"kms_key": ""})
    assert (neither.kms_key, neither.managed_encryption) == ("", False)
