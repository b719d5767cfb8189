"""Messages as a client has them: what it sends, what it is told about that, and what it receives.

Attributes are ``core.properties.Attribute`` by name. Ids are text (a dashed UUID), instants milliseconds since the
epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from veilmq.core.properties import Attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to be sent; ``delay_s`` is ``None`` for the queue's own delay.

    ``group`` is the unit of order in a FIFO queue, of fairness in others; only FIFO queues take a ``dedup_id``.
    """

    body: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    delay_s: int | None = None
    group: str | None = None
    dedup_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that the server keeps; one of a FIFO queue has a ``sequence`` number, of 20 digits."""

    id: str
    sequence: str | None = None


@dataclass(frozen=True, slots=True)
class Hidden:
    """The server's word that it made a change of visibility: the receipt was the message's latest, nobody had it since.

    ``for_s`` counts from when the server did it, so that no clocks have to agree.
    """

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message that is hidden from everyone else until its timeout ends; ``receipt`` deletes or hides it further.

    A dead letter names the queue that it came from as ``source``. ``trace_header`` is Amazon's, of those that
    were sent with one.
    """

    id: str
    receipt: str
    body: str
    attributes: Mapping[str, Attribute]
    sent_at_ms: int
    first_received_at_ms: int
    receive_count: int
    group: str | None = None
    dedup_id: str | None = None
    sequence: str | None = None
    source: str | None = None
    trace_header: str | None = None
