"""What a client takes and gives: messages, queues' statistics, redrives, and errors.

Attributes are ``core.messages.Attribute`` by name. Ids are text (a dashed UUID), instants milliseconds since the
epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veilmq.core.messages import Attribute
from veilmq.core.settings import QueueSettings

RECEIPT_SUPERSEDED = "ReceiptSuperseded"
"""Our own code for a change without effect, since the message was received again."""

DEAD_RECEIPT_CODES = frozenset(
    {"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", RECEIPT_SUPERSEDED}
)
"""What queue servers answer to a valid request whose receipt is superseded or dead."""


class ClientError(Exception):
    """The server refused or failed; ``code`` is its error code, for example ``QueueDoesNotExist``."""

    def __init__(self, code: str, message: str, status: int, *, fields: Mapping[str, Any] | None = None) -> None:
        """``message`` is the server's sentence, ``status`` the HTTP status (4xx: change the request, 5xx: retry).

        ``fields`` has the other members of an error of veilmq's own API, for example ``current`` of ``EpochFenced``.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.fields = fields or {}


class Unreachable(Exception):
    """No usable reply came from ``endpoint``; whether the request had an effect is unknown."""

    def __init__(self, endpoint: str, reason: str) -> None:
        """``reason`` says in a few words what happened instead, for example "connection refused"."""
        super().__init__(f"No answer from {endpoint}: {reason}.")
        self.endpoint = endpoint
        self.reason = reason


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
    """A message that the server has stored; in a FIFO queue it has a ``sequence`` number, of 20 digits."""

    id: str
    sequence: str | None = None


@dataclass(frozen=True, slots=True)
class Hidden:
    """The server confirms a change of visibility: the receipt was the latest, the message was not received since.

    ``for_s`` counts from when the server did it, so that no clocks have to agree.
    """

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message that is hidden from other consumers until its timeout ends; ``receipt`` deletes it or hides it longer.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move task; ``handle`` cancels it while it is ``running`` (else it is completed, cancelled or failed).

    ``destination`` is ``None`` for a move back to where each message came from, ``moves_per_s_max`` for one as fast as
    it goes. ``failure`` says why it failed.
    """

    handle: str | None
    status: str
    destination: str | None
    moves_per_s_max: int | None
    messages_moved: int
    messages_to_move: int
    started_at_ms: int
    failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue at one instant; ``created_at_ms`` and ``modified_at_ms`` are exact to the second."""

    queue: str
    url: str
    settings: QueueSettings
    visible: int
    in_flight: int
    delayed: int
    created_at_ms: int
    modified_at_ms: int


def traced(attributes: Mapping[str, Attribute] | None = None) -> dict[str, Attribute]:
    """Return ``attributes`` of a message to be sent, and those that name the current span, if there is one.

    They are what the configured propagator writes, ``traceparent`` by default, and count towards the ten that a message
    may have. What ``attributes`` names already stays.
    """
    from opentelemetry import propagate  # noqa: PLC0415 (an extra)

    carried: dict[str, str] = {}
    propagate.inject(carried)
    return {name: Attribute(type="String", text=text) for name, text in carried.items() if text} | dict(
        attributes or {}
    )
