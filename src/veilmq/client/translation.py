"""Between a client's values and the shapes of the wire: settings, counters and single messages."""

from collections.abc import Mapping

from veilmq.client.errors import ClientError
from veilmq.client.messages import ReceivedMessage
from veilmq.client.status import QueueStatus
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.core.limits import SECOND_MS
from veilmq.core.properties import Attribute
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.sqs import responses
from veilmq.wire.sqs.settings import SETTINGS, attribute_of
from veilmq.wire.sqs.shapes import AttributeValue


def write_settings(settings: Mapping[str, SettingValue]) -> dict[str, str] | None:
    """Return settings (fields of ``QueueSettings``) as queue attributes, ``None`` when there are none."""
    for field in settings:
        if field not in QueueSettings.__struct_fields__:
            raise ValueError(f"{field!r} is no setting of a queue; there are {', '.join(_FIELDS)}")
    return {attribute_of(field): str(value) for field, value in settings.items()} or None


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
            settings=QueueSettings().changed({row.field: int(attributes[name]) for name, row in SETTINGS.items()}),
            visible=int(attributes["ApproximateNumberOfMessages"]),
            in_flight=int(attributes["ApproximateNumberOfMessagesNotVisible"]),
            delayed=int(attributes["ApproximateNumberOfMessagesDelayed"]),
            created_at_ms=int(attributes["CreatedTimestamp"]) * SECOND_MS,
            modified_at_ms=int(attributes["LastModifiedTimestamp"]) * SECOND_MS,
        )
    except (KeyError, ValueError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The queue's attributes lack a usable {error}.", 200) from error


def read_message(message: responses.Message) -> ReceivedMessage:
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
        )
    except (KeyError, ValueError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The message's attributes lack a usable {error}.", 200) from error


def _read_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Attribute]:
    return {
        name: Attribute(type=value.data_type or "", text=value.string_value, data=value.binary_value)
        for name, value in attributes.items()
    }


_FIELDS = QueueSettings.__struct_fields__
