"""Queue attributes: which exist, which may be set, and how each maps to a field of ``QueueSettings``.

One table per kind. A setting has a field and a range; a read-only attribute has a function that tells it; the rest
are attributes of Amazon SQS that this version does not have: asked for, they are absent as on a queue that never set
them; supplied, they are refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from veilmq.core.limits import (
    MESSAGE_BYTES,
    RETENTION_S,
    SECOND_MS,
    SQS_DELAY_S,
    SQS_RECEIVE_WAIT_S,
    VISIBILITY_TIMEOUT_S,
    Range,
)
from veilmq.core.results import QueueCounts, QueueView
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import INVALID_ATTRIBUTE_VALUE, SqsError, not_supported, unknown_attribute
from veilmq.wire.sqs.names import queue_arn

ALL = "All"


@dataclass(frozen=True, slots=True)
class Setting:
    """An attribute that may be set: the ``field`` of ``QueueSettings`` that keeps it, and what it may be."""

    field: str
    allowed: Range


SETTINGS: dict[str, Setting] = {
    "VisibilityTimeout": Setting("visibility_timeout_s", VISIBILITY_TIMEOUT_S),
    "MaximumMessageSize": Setting("message_bytes_max", MESSAGE_BYTES),
    "MessageRetentionPeriod": Setting("retention_s", RETENTION_S),
    "DelaySeconds": Setting("delay_s", SQS_DELAY_S),
    "ReceiveMessageWaitTimeSeconds": Setting("receive_wait_s", SQS_RECEIVE_WAIT_S),
}

READ_ONLY: dict[str, Callable[[QueueView, RequestContext], str]] = {
    "QueueArn": lambda view, context: queue_arn(view.queue, context),
    "ApproximateNumberOfMessages": lambda view, context: str(_counts(view).visible),
    "ApproximateNumberOfMessagesNotVisible": lambda view, context: str(_counts(view).in_flight),
    "ApproximateNumberOfMessagesDelayed": lambda view, context: str(_counts(view).delayed),
    "CreatedTimestamp": lambda view, context: str(view.created_at_ms // SECOND_MS),
    "LastModifiedTimestamp": lambda view, context: str(view.modified_at_ms // SECOND_MS),
}

COUNTED = frozenset(name for name in READ_ONLY if name.startswith("Approximate"))
"""The attributes that need the queue's counters."""

NOT_SUPPORTED: tuple[str, ...] = (
    "Policy",
    "RedrivePolicy",
    "RedriveAllowPolicy",
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
)

NAMES = frozenset({ALL, *SETTINGS, *READ_ONLY, *NOT_SUPPORTED})
"""Every name that GetQueueAttributes knows."""

_WHOLE_NUMBER = re.compile("[0-9]{1,10}")
_NAME_OF_FIELD = {setting.field: name for name, setting in SETTINGS.items()}


def read_settings(attributes: Mapping[str, str]) -> dict[str, int | str]:
    """Return ``attributes`` as changes of ``QueueSettings``.

    Raises InvalidAttributeName for one that does not exist or cannot be set, UnsupportedOperation for one that this
    version does not have, InvalidAttributeValue for a value out of range.
    """
    return {_setting(name).field: _value(name, text) for name, text in attributes.items()}


def attribute_of(field: str) -> str:
    """Return the attribute that a ``field`` of ``QueueSettings`` is on the wire."""
    return _NAME_OF_FIELD[field]


def check_names(names: Iterable[str]) -> None:
    """Raise InvalidAttributeName for the first of ``names`` that no queue has."""
    for name in names:
        if name not in NAMES:
            raise unknown_attribute(name)


def describe(view: QueueView, names: Iterable[str], context: RequestContext) -> dict[str, str]:
    """Return the attributes of a queue that ``names`` ask for (``All``: every one)."""
    wanted = frozenset(names)
    told = {name: str(getattr(view.settings, setting.field)) for name, setting in SETTINGS.items()}
    for name, tell in READ_ONLY.items():
        if ALL in wanted or name in wanted:
            told[name] = tell(view, context)
    return {name: text for name, text in told.items() if ALL in wanted or name in wanted}


def _setting(name: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is not None:
        return setting
    if name in NOT_SUPPORTED:
        raise not_supported(f"the queue attribute {name}", "leave it out")
    raise unknown_attribute(name)


def _value(name: str, text: str) -> int:
    allowed = SETTINGS[name].allowed
    if not _WHOLE_NUMBER.fullmatch(text) or not allowed.holds(int(text)):
        raise SqsError(
            INVALID_ATTRIBUTE_VALUE,
            f"Invalid value for the parameter {name}. "
            f"Reason: Must be a whole number between {allowed.minimum} and {allowed.maximum}.",
        )
    return int(text)


def _counts(view: QueueView) -> QueueCounts:
    assert view.counts is not None, "asked without counts"
    return view.counts
