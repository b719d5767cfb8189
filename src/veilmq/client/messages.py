"""Messages as a client has them: what it sends, what it is told about that, and what it receives.

Attributes are ``core.properties.Attribute`` by name. Ids are text (a dashed UUID), instants milliseconds since the
epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from veilmq.core.properties import Attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to be sent; ``delay_s`` is ``None`` for the queue's own delay."""

    body: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    delay_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that the server keeps."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message that is hidden from everyone else until its timeout ends; ``receipt`` deletes or hides it further."""

    id: str
    receipt: str
    body: str
    attributes: Mapping[str, Attribute]
    sent_at_ms: int
    first_received_at_ms: int
    receive_count: int
