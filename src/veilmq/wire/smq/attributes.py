"""Queue attributes: how each is read, kept and written (reference, section 4.0).

One row an attribute. What is not of SQS's and SMQ's XML, the policies and types that Alibaba's control plane has, is a
flat element of its own here: read where a queue is made or changed, and never written, as SDKs expect what they know
(section 4.15).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from veilmq.core.limits import (
    RECEIVES_PER_S,
    SECOND_MS,
    SMQ_DELAY_S,
    SMQ_MESSAGE_BYTES,
    SMQ_RECEIVE_WAIT_S,
    SMQ_RETENTION_S,
    SMQ_VISIBILITY_TIMEOUT_S,
    SQS_RECEIVES_MAX,
    Range,
)
from veilmq.core.results import QueueView
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.smq.errors import invalid_argument
from veilmq.wire.smq.members import BYTES, SECONDS, flag, texts, whole_number
from veilmq.wire.smq.names import checked_name
from veilmq.wire.smq.xml_reading import Element
from veilmq.wire.smq.xml_writing import element
from veilmq.wire.sqs.context import RequestContext

Values = dict[str, SettingValue]
"""Values by field of ``QueueSettings``."""

Read = Callable[[str, str, RequestContext], Values]
"""Name and text of an element → what it sets; raises ``SmqError`` (InvalidArgument)."""

Write = Callable[[QueueSettings], str]


class Attribute(NamedTuple):
    """One attribute; ``write`` is ``None`` where it is never shown."""

    read: Read
    write: Write | None = None


def _number(field: str, allowed: Range, unit: str = "") -> Attribute:
    def read(name: str, text: str, context: RequestContext) -> Values:
        return {field: whole_number(name, text, allowed, unit)}

    return Attribute(read, lambda settings: str(getattr(settings, field)))


def _message_bytes(name: str, text: str, context: RequestContext) -> Values:
    allowed = Range(
        minimum=SMQ_MESSAGE_BYTES.minimum,
        maximum=context.smq_message_bytes_max,
        default=SMQ_MESSAGE_BYTES.default,
    )
    return {"message_bytes_max": whole_number(name, text, allowed, BYTES)}


def _logged(name: str, text: str, context: RequestContext) -> Values:
    return {"operations_logged": flag(name, text)}


_KINDS = {"normal": False, "fifo": True}


def _kind(name: str, text: str, context: RequestContext) -> Values:
    fifo = _KINDS.get(text.strip().lower())
    if fifo is None:
        raise invalid_argument(f"{name}, which is {' or '.join(_KINDS)}")
    return {"fifo": fifo}


def _dead_letter_queue(name: str, text: str, context: RequestContext) -> Values:
    """Name a queue of the same account; no text ends the policy."""
    target = text.strip()
    if not target:
        return {"dead_letter_queue": "", "receives_max": 0}
    return {"dead_letter_queue": f"{context.account}/{checked_name(target)}"}


ATTRIBUTES: dict[str, Attribute] = {
    "DelaySeconds": _number("delay_s", SMQ_DELAY_S, SECONDS),
    "MaximumMessageSize": Attribute(_message_bytes, lambda settings: str(settings.message_bytes_max)),
    "MessageRetentionPeriod": _number("retention_s", SMQ_RETENTION_S, SECONDS),
    "VisibilityTimeout": _number("visibility_timeout_s", SMQ_VISIBILITY_TIMEOUT_S, SECONDS),
    "PollingWaitSeconds": _number("receive_wait_s", SMQ_RECEIVE_WAIT_S, SECONDS),
    "LoggingEnabled": Attribute(_logged, lambda settings: str(settings.operations_logged)),
    "QueueType": Attribute(_kind),
    "DeadLetterTargetQueue": Attribute(_dead_letter_queue),
    "MaxReceiveCount": Attribute(_number("receives_max", SQS_RECEIVES_MAX).read),
    "MaxReceivesPerSecond": Attribute(_number("receives_per_s_max", RECEIVES_PER_S).read),
}
"""Element → how it is read and written."""

DEFAULTS: Mapping[str, SettingValue] = {"message_bytes_max": SMQ_MESSAGE_BYTES.default}
"""The settings of a queue made through SMQ that nobody named and that SQS has other defaults for."""


def read_settings(queue: Element, context: RequestContext) -> Values:
    """Return what the children of ``queue`` set; raises ``SmqError`` (InvalidArgument) for a value that cannot be."""
    values: Values = {}
    for name, text in texts(queue).items():
        attribute = ATTRIBUTES.get(name)
        if attribute is not None:
            values |= attribute.read(name, text, context)
    return values


def described(view: QueueView) -> str:
    """Return the elements of a queue, as GetQueueAttributes and a listing with them have them."""
    counts = view.counts
    assert counts is not None, "asked with counts"
    told = {
        "QueueName": view.queue.partition("/")[2],
        "CreateTime": str(view.created_at_ms // SECOND_MS),
        "LastModifyTime": str(view.modified_at_ms // SECOND_MS),
        **{name: row.write(view.settings) for name, row in ATTRIBUTES.items() if row.write is not None},
        "ActiveMessages": str(counts.visible),
        "InactiveMessages": str(counts.in_flight),
        "DelayMessages": str(counts.delayed),
    }
    return "".join(element(name, text) for name, text in told.items())
