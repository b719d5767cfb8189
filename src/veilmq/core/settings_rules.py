"""Which settings of a queue fit together: one row a rule, checked on what a change would lead to.

The engine asks, so that it holds whichever protocol sets them. Whether a dead-letter queue may serve its source depends
on other queues and is no rule of this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from veilmq.core.errors import SettingsConflict, TooManyTags
from veilmq.core.limits import SQS_TAGS_MAX
from veilmq.core.routing import TableError, read_table
from veilmq.core.settings import QueueSettings, SettingValue


@dataclass(frozen=True, slots=True)
class Rule:
    """The ``setting`` to correct where settings are ``broken``, and ``why``: a sentence that says what to do."""

    setting: str
    broken: Callable[[QueueSettings], bool]
    why: str


def _has_bad_rules(settings: QueueSettings) -> bool:
    try:
        if settings.visibility_rules:
            read_table(settings.visibility_rules)
    except TableError:
        return True
    return False


RULES: tuple[Rule, ...] = (
    Rule(
        "visibility_rules",
        _has_bad_rules,
        "The visibility rules are no routing table; give one, or none.",
    ),
    Rule(
        "content_deduplication",
        lambda settings: settings.content_deduplication and not settings.fifo,
        "Only FIFO queues deduplicate by content; leave it out, or create a FIFO queue.",
    ),
    Rule(
        "deduplication_scope",
        lambda settings: settings.deduplication_scope != "queue" and not settings.fifo,
        "Only FIFO queues have a deduplication scope; leave it out, or create a FIFO queue.",
    ),
    Rule(
        "throughput_limit",
        lambda settings: settings.throughput_limit != "queue" and not settings.fifo,
        "Only FIFO queues have a throughput limit of their own; leave it out, or create a FIFO queue.",
    ),
    Rule(
        "throughput_limit",
        lambda settings: settings.throughput_limit == "group" and settings.deduplication_scope != "group",
        "A throughput limit by group needs a deduplication scope by group; set both.",
    ),
    Rule(
        "receives_max",
        lambda settings: bool(settings.dead_letter_queue) is not bool(settings.receives_max),
        "A dead-letter queue and the number of receives after which it is used go together; give both or neither.",
    ),
    Rule(
        "redrive_sources",
        lambda settings: bool(settings.redrive_sources) and settings.redrive_permission != "listed",
        "Queues are listed where the permission is for those that are listed; change the permission or list none.",
    ),
    Rule(
        "kms_key",
        lambda settings: bool(settings.kms_key) and settings.managed_encryption,
        "A queue is encrypted with a key of its own or with a managed one; choose one of them.",
    ),
)
"""Every rule about one queue's settings by themselves (SQS API Reference, "SetQueueAttributes")."""


def settled(before: QueueSettings | None, changes: Mapping[str, SettingValue]) -> QueueSettings:
    """Return the settings of a queue after ``changes``; ``before`` is ``None`` for a new one.

    Choosing one kind of encryption ends the other, unless both are named. Raises ``SettingsConflict``.
    """
    after = (before or QueueSettings()).changed({**_consequences(changes), **changes})
    if before is not None and after.fifo != before.fifo:
        raise SettingsConflict("fifo", "A queue is a FIFO queue or a standard one for good; create another queue.")
    for rule in RULES:
        if rule.broken(after):
            raise SettingsConflict(rule.setting, rule.why)
    return after


def _consequences(changes: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    if changes.get("kms_key"):
        return {"managed_encryption": False}
    return {"kms_key": ""} if changes.get("managed_encryption") else {}


def purged(settings: QueueSettings) -> QueueSettings:
    """Return the settings of a FIFO queue after one more purge: it forgets its deduplication ids."""
    return settings.changed({"purges": settings.purges + 1})


def tagged(tags: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return ``tags`` with ``more`` put over them; raises ``TooManyTags``."""
    both = {**tags, **more}
    if len(both) > SQS_TAGS_MAX:
        raise TooManyTags(SQS_TAGS_MAX)
    return both
