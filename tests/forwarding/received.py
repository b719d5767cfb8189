"""A received message for tests that have no server."""

from typing import Any

from veilmq.client.messages import ReceivedMessage
from veilmq.core.messages import Attribute


def received(
    body: str = "x", *, name: str = "1", group: str | None = None, receive_count: int = 1, **attributes: Any
) -> ReceivedMessage:
    kinds = {str: "String", int: "Number", float: "Number.float", bytes: "Binary"}
    return ReceivedMessage(
        id=f"id-{name}",
        receipt=f"receipt-{name}",
        body=body,
        attributes={
            key: Attribute(kinds[type(value)], data=value)
            if isinstance(value, bytes)
            else Attribute(kinds[type(value)], str(value))
            for key, value in attributes.items()
        },
        sent_at_ms=0,
        first_received_at_ms=0,
        receive_count=receive_count,
        group=group,
    )
