"""Claimed messages for tests of what writes them."""

from typing import Any

from veilmq.core.claims import ClaimedMessage
from veilmq.core.messages import Attribute, Properties, encode_properties

ID = bytes.fromhex("0190a1b2c3d44e5f8a9b0123456789ab")
ID_TEXT = "0190a1b2-c3d4-4e5f-8a9b-0123456789ab"


def message(body: str = "hello", *, sequence: int | None = None, **carried: Any) -> ClaimedMessage:
    """Return a message with `body` and what `Properties` it has."""
    return ClaimedMessage(
        id=ID,
        body=body,
        properties=encode_properties(Properties(**carried)),
        sent_at_ms=1_700_000_000_001,
        received_at_ms=1_700_000_000_999,
        receive_count=2,
        sequence=sequence,
    )


MIXED = {
    "type": Attribute("String", "order"),
    "price": Attribute("Number.int", "17"),
    "raw": Attribute("Binary", data=b"\x00\xff"),
}
