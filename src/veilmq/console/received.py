"""What a receive has given, as rows of a page: where a look does not find it among what others hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from veilmq.console.message_look import Row, row_of
from veilmq.console.message_view import MessageView, lease_name
from veilmq.wire.v1.queues import ListedMessage

ASKED: Mapping[str, Any] = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
"""What a receive has to ask for, so that its messages can be shown."""

_RECEIVED = "ApproximateReceiveCount"
_FIRST = "ApproximateFirstReceiveTimestamp"
_TRACE = "AWSTraceHeader"


def leases_of(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the leases that began."""
    return tuple(lease_name(each["MessageId"], each["Attributes"][_RECEIVED]) for each in messages)


def rows_of(messages: Sequence[Mapping[str, Any]], view: MessageView) -> list[Row]:
    """Return the messages of an answer to ReceiveMessage."""
    return [row_of(_listed(each), view)._replace(is_mine=True) for each in messages]


def _listed(message: Mapping[str, Any]) -> ListedMessage:
    """Return a message as a look would show it, but for what a receive does not tell: until when, and its priority."""
    system: Mapping[str, str] = message["Attributes"]
    attributes: Mapping[str, Mapping[str, str]] = message.get("MessageAttributes") or {}
    return ListedMessage(
        id=message["MessageId"],
        body=message["Body"],
        body_bytes=len(message["Body"].encode()),
        attributes={name: each.get("StringValue") or each["BinaryValue"] for name, each in attributes.items()},
        attribute_types={name: each["DataType"] for name, each in attributes.items()},
        system_attributes={_TRACE: system[_TRACE]} if _TRACE in system else {},
        group=system.get("MessageGroupId"),
        dedup_id=system.get("MessageDeduplicationId"),
        priority=0,
        sent_at_ms=int(system["SentTimestamp"]),
        first_received_at_ms=int(system[_FIRST]),
        receive_count=int(system[_RECEIVED]),
        state="in_flight",
        visible_at_ms=None,
        received_at_ms=None,
        receipt=message["ReceiptHandle"],
    )
