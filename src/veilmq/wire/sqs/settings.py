"""Queue attributes: which exist, which may be set, and how each maps to fields of ``QueueSettings``.

One table per kind. A setting has a kind, which reads and writes it; a read-only attribute has a function that tells
it. Attributes of FIFO queues are unknown to the others. Those that Amazon does not have begin with ``Veilmq``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from veilmq.core.errors import DeadLetterQueueRefused, SettingsConflict, TooManyTags
from veilmq.core.limits import (
    IN_FLIGHT,
    MESSAGE_BYTES,
    RECEIVES_PER_S,
    RETENTION_S,
    SECOND_MS,
    SQS_DELAY_S,
    SQS_KMS_DATA_KEY_REUSE_S,
    SQS_KMS_KEY_CHARACTERS_MAX,
    SQS_RECEIVE_WAIT_S,
    VISIBILITY_TIMEOUT_S,
)
from veilmq.core.results import QueueCounts, QueueView
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    Code,
    SqsError,
    invalid_parameter,
    too_many_tags,
    unknown_attribute,
)
from veilmq.wire.sqs.names import is_fifo, queue_arn
from veilmq.wire.sqs.permissions import PolicyDocument
from veilmq.wire.sqs.plan import answered
from veilmq.wire.sqs.redrive import RedriveAllowPolicy, RedrivePolicy
from veilmq.wire.sqs.setting_kinds import (
    Choice,
    Kind,
    Name,
    Number,
    Override,
    TimeoutRules,
    Values,
    flag,
    invalid_attribute,
)

ALL = "All"
FIFO_QUEUE = "FifoQueue"
QUEUE_ARN = "QueueArn"
REDRIVE_POLICY = "RedrivePolicy"


@dataclass(frozen=True, slots=True)
class Setting:
    """An attribute that may be set.

    ``fifo`` tells that only FIFO queues have it; it is not shown while the field ``only_with`` is empty.
    """

    kind: Kind
    fifo: bool = False
    only_with: str = ""

    def shows(self, queue: QueueSettings) -> bool:
        """Tell whether a queue with these settings has the attribute."""
        return self.fifo <= queue.fifo and (not self.only_with or bool(getattr(queue, self.only_with)))


SETTINGS: dict[str, Setting] = {
    "VisibilityTimeout": Setting(Number("visibility_timeout_s", VISIBILITY_TIMEOUT_S)),
    "MaximumMessageSize": Setting(Number("message_bytes_max", MESSAGE_BYTES)),
    "MessageRetentionPeriod": Setting(Number("retention_s", RETENTION_S)),
    "DelaySeconds": Setting(Number("delay_s", SQS_DELAY_S)),
    "ReceiveMessageWaitTimeSeconds": Setting(Number("receive_wait_s", SQS_RECEIVE_WAIT_S)),
    "Policy": Setting(PolicyDocument()),
    REDRIVE_POLICY: Setting(RedrivePolicy()),
    "RedriveAllowPolicy": Setting(RedriveAllowPolicy()),
    FIFO_QUEUE: Setting(flag("fifo"), fifo=True),
    "ContentBasedDeduplication": Setting(flag("content_deduplication"), fifo=True),
    "DeduplicationScope": Setting(
        Choice("deduplication_scope", {"queue": "queue", "messageGroup": "group"}), fifo=True
    ),
    "FifoThroughputLimit": Setting(
        Choice("throughput_limit", {"perQueue": "queue", "perMessageGroupId": "group"}), fifo=True
    ),
    "KmsMasterKeyId": Setting(Name("kms_key", SQS_KMS_KEY_CHARACTERS_MAX)),
    "KmsDataKeyReusePeriodSeconds": Setting(
        Number("kms_data_key_reuse_s", SQS_KMS_DATA_KEY_REUSE_S), only_with="kms_key"
    ),
    "SqsManagedSseEnabled": Setting(flag("managed_encryption", default=True)),
    "VeilmqInFlightMax": Setting(Override(Number("in_flight_max", IN_FLIGHT))),
    "VeilmqVisibilityRules": Setting(TimeoutRules()),
    "VeilmqEventLog": Setting(Override(Choice("event_log", {"off": "off", "closed": "closed"}))),
    "VeilmqReceivesPerSecond": Setting(Number("receives_per_s_max", RECEIVES_PER_S), only_with="receives_per_s_max"),
    "VeilmqSmqBase64": Setting(flag("smq_base64"), only_with="smq_base64"),
    "VeilmqSmqLogging": Setting(flag("operations_logged"), only_with="operations_logged"),
}

READ_ONLY: dict[str, Callable[[QueueView, RequestContext], str]] = {
    QUEUE_ARN: lambda view, context: queue_arn(view.queue, context),
    "ApproximateNumberOfMessages": lambda view, context: str(_counts(view).visible),
    "ApproximateNumberOfMessagesNotVisible": lambda view, context: str(_counts(view).in_flight),
    "ApproximateNumberOfMessagesDelayed": lambda view, context: str(_counts(view).delayed),
    "CreatedTimestamp": lambda view, context: str(view.created_at_ms // SECOND_MS),
    "LastModifiedTimestamp": lambda view, context: str(view.modified_at_ms // SECOND_MS),
}

COUNTED = frozenset(name for name in READ_ONLY if name.startswith("Approximate"))
"""The attributes that need the queue's counters."""

NAMES = frozenset({ALL, *SETTINGS, *READ_ONLY})
"""Every name that GetQueueAttributes knows."""

_HIGH_THROUGHPUT = frozenset({"DeduplicationScope", "FifoThroughputLimit"})

_CONFLICTS: dict[str, tuple[Code | None, str]] = {
    "fifo": (None, "Modifying queue type is not supported."),
    "throughput_limit": (
        None,
        "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup.",
    ),
    "kms_key": (
        INVALID_ATTRIBUTE_NAME,
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    ),
}
"""Field to correct → the service's words, and their code where that is not InvalidAttributeValue."""

_NAME_OF_FIELD: dict[str, str] = {field: name for name, setting in SETTINGS.items() for field in setting.kind.fields}

SETTABLE = tuple(_NAME_OF_FIELD)
"""The fields of ``QueueSettings`` that some attribute sets."""


def read_settings(attributes: Mapping[str, str], queue: str, context: RequestContext) -> Values:
    """Return ``attributes`` of ``queue`` as changes of ``QueueSettings``.

    Raises InvalidAttributeName for one that does not exist or cannot be set, InvalidAttributeValue for a value out of
    range, InvalidParameterValue for a bad redrive policy.
    """
    values: Values = {}
    for name, text in attributes.items():
        values |= _setting(name, queue).kind.read(name, text, queue, context)
    return values


def accepted(result: Any, attributes: Mapping[str, str], queue: str) -> Any:
    """Return the result of the command that was to set ``attributes`` of ``queue``; raises the ``SqsError``."""
    if isinstance(result, SettingsConflict):
        code, text = _CONFLICTS.get(result.setting, (None, str(result)))
        raise invalid_attribute(attribute_of(result.setting), text) if code is None else SqsError(code, text)
    if isinstance(result, DeadLetterQueueRefused):
        raise invalid_parameter(REDRIVE_POLICY, attributes.get(REDRIVE_POLICY), _why_refused(result, queue))
    if isinstance(result, TooManyTags):
        raise too_many_tags(queue)
    return answered(result)


def _why_refused(error: DeadLetterQueueRefused, queue: str) -> str:
    if error.missing:
        return "Dead letter target does not exist."
    if is_fifo(error.queue) is not is_fifo(queue):
        return "Dead-letter queue must be same type of queue as the source."
    return str(error)


def attribute_of(field: str) -> str:
    """Return the attribute that a ``field`` of ``QueueSettings`` is on the wire."""
    return _NAME_OF_FIELD[field]


def check_names(names: Iterable[str]) -> None:
    """Raise InvalidAttributeName for the first of ``names`` that no queue has."""
    for name in names:
        if name not in NAMES:
            raise unknown_attribute(name)


def describe(view: QueueView, names: Iterable[str], context: RequestContext) -> dict[str, str]:
    """Return the attributes of a queue that ``names`` ask for (``All``: every one that it has)."""
    wanted = frozenset(names)
    told: dict[str, str | None] = {}
    for name, setting in SETTINGS.items():
        if setting.shows(view.settings):
            told[name] = setting.kind.write(view.settings, context)
    for name, tell in READ_ONLY.items():
        if ALL in wanted or name in wanted:
            told[name] = tell(view, context)
    return {name: text for name, text in told.items() if text is not None and (ALL in wanted or name in wanted)}


def _setting(name: str, queue: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is not None and setting.fifo <= is_fifo(queue):
        return setting
    if name in _HIGH_THROUGHPUT:
        raise SqsError(INVALID_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true.")
    raise unknown_attribute(name)


def _counts(view: QueueView) -> QueueCounts:
    assert view.counts is not None, "asked without counts"
    return view.counts
