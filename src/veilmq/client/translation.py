"""Between a client's values and the shapes of the wire: settings, counters and single messages."""

import re
from collections.abc import Mapping

from veilmq.client.errors import ClientError
from veilmq.client.messages import ReceivedMessage
from veilmq.client.moves import Move
from veilmq.client.status import QueueStatus
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.core.limits import SECOND_MS, Range
from veilmq.core.properties import Attribute
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import DEDUPLICATION, GROUP, TRACE_HEADER, AttributeValue
from veilmq.wire.sqs.messages import Message
from veilmq.wire.sqs.moves import MoveTaskEntry
from veilmq.wire.sqs.queue_attributes import QUEUE_ARN, SETTABLE, SETTINGS, Kind, Number, attribute_of

_ANY = Range(minimum=0, maximum=10**10, default=0)
_KINDS: dict[str, Kind] = {
    name: Number(setting.kind.fields[0], _ANY) if isinstance(setting.kind, Number) else setting.kind
    for name, setting in SETTINGS.items()
}
"""How what a server tells is read, of whatever queue: over SMQ numbers have other ranges."""

_ARN = re.compile(r"arn:[^:]+:sqs:(?P<region>[^:]*):(?P<account>[^:/]+):(?P<name>[^:/]+)")


def write_settings(settings: Mapping[str, SettingValue], context: RequestContext) -> dict[str, str]:
    """Return settings (fields of ``QueueSettings``) as queue attributes; ``context`` has the region of other queues.

    Raises ``ValueError`` for a field that no queue has.
    """
    for field in settings:
        if field not in SETTABLE:
            raise ValueError(f"{field!r} is no setting of a queue; there are {', '.join(SETTABLE)}")
    wanted = QueueSettings().changed(settings)
    names = dict.fromkeys(map(attribute_of, settings))
    for name in names:
        first, *others = SETTINGS[name].kind.fields
        if first not in settings:
            raise ValueError(f"{' and '.join(others)} can only be changed together with {first}")
    return {name: SETTINGS[name].kind.write(wanted, context) or "" for name in names}


def write_attributes(attributes: Mapping[str, Attribute]) -> dict[str, AttributeValue] | None:
    """Return a message's attributes as the wire has them, ``None`` when there are none."""
    return {
        name: AttributeValue(data_type=value.type, string_value=value.text, binary_value=value.data)
        for name, value in attributes.items()
    } or None


def read_status(queue: str, url: str, attributes: Mapping[str, str]) -> QueueStatus:
    """Return what all attributes of a queue say."""
    try:
        return QueueStatus(
            queue=queue,
            url=url,
            settings=_read_settings(attributes),
            visible=int(attributes["ApproximateNumberOfMessages"]),
            in_flight=int(attributes["ApproximateNumberOfMessagesNotVisible"]),
            delayed=int(attributes["ApproximateNumberOfMessagesDelayed"]),
            created_at_ms=int(attributes["CreatedTimestamp"]) * SECOND_MS,
            modified_at_ms=int(attributes["LastModifiedTimestamp"]) * SECOND_MS,
        )
    except (KeyError, ValueError, SqsError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The queue's attributes lack a usable {error}.", 200) from error


def read_message(message: Message) -> ReceivedMessage:
    """Return one received message."""
    system = message.attributes or {}
    try:
        return ReceivedMessage(
            id=message.message_id,
            receipt=message.receipt_handle,
            body=message.body,
            attributes=_read_attributes(message.message_attributes or {}),
            sent_at_ms=int(system["SentTimestamp"]),
            first_received_at_ms=int(system["ApproximateFirstReceiveTimestamp"]),
            receive_count=int(system["ApproximateReceiveCount"]),
            group=system.get(GROUP),
            dedup_id=system.get(DEDUPLICATION),
            sequence=system.get("SequenceNumber"),
            source=system["DeadLetterQueueSourceArn"].rpartition(":")[2]
            if "DeadLetterQueueSourceArn" in system
            else None,
            trace_header=system.get(TRACE_HEADER),
        )
    except (KeyError, ValueError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The message's attributes lack a usable {error}.", 200) from error


def read_move(entry: MoveTaskEntry) -> Move:
    """Return one move of dead letters."""
    return Move(
        handle=entry.task_handle,
        status=entry.status.lower(),
        destination=entry.destination_arn.rpartition(":")[2] if entry.destination_arn else None,
        moves_per_s_max=entry.max_number_of_messages_per_second,
        messages_moved=entry.approximate_number_of_messages_moved,
        messages_to_move=entry.approximate_number_of_messages_to_move,
        started_at_ms=entry.started_timestamp,
        failure=entry.failure_reason,
    )


def _read_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Attribute]:
    return {
        name: Attribute(type=value.data_type or "", text=value.string_value, data=value.binary_value)
        for name, value in attributes.items()
    }


def _read_settings(attributes: Mapping[str, str]) -> QueueSettings:
    context, queue = place_of(attributes[QUEUE_ARN])
    values: dict[str, SettingValue] = {}
    for name, kind in _KINDS.items():
        if name in attributes:
            values |= kind.read(name, attributes[name], queue, context)
    return QueueSettings().changed(values)


def place_of(arn: str) -> tuple[RequestContext, str]:
    """Return the surroundings of the queue at ``arn`` and its full name; raises ``ValueError`` where it is none.

    The name may be a longer one than SQS can make.
    """
    match = _ARN.fullmatch(arn)
    if match is None:
        raise ValueError(arn)
    return RequestContext(base_url="", region=match["region"]), f"{match['account']}/{match['name']}"
