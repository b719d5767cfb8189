"""The values and errors of clients: messages, the status of queues, move tasks.

Attributes are ``core.messages.Attribute`` by name. Ids are texts (dashed UUIDs); instants are milliseconds since the
epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veilmq.core.messages import Attribute
from veilmq.core.settings import QueueSettings

RECEIPT_SUPERSEDED = "ReceiptSuperseded"
"""A code of this client: a change had no effect because the message was received again."""

DEAD_RECEIPT_CODES = frozenset(
    {"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", RECEIPT_SUPERSEDED}
)
"""The codes of queue servers for a valid request with a superseded or invalid receipt."""

THROTTLED_CODES = frozenset({"RequestThrottled", "ThrottlingException", "Throttling", "OverLimit"})
"""The codes of queue servers for a request that may succeed later without a change, whatever its status."""


class ClientError(Exception):
    """An error reply: its ``code``, for example ``QueueDoesNotExist``, ``message``, and HTTP ``status``.

    ``fields`` has the other members of an error of veilmq's own API, for example ``current`` of ``EpochFenced``.
    """

    def __init__(self, code: str, message: str, status: int, *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(code, message, status)
        self.code = code
        self.message = message
        self.status = status
        self.fields = fields or {}

    def __str__(self) -> str:
        return self.message


class Unreachable(Exception):
    """No usable reply from ``endpoint``, for a ``reason`` like "connection refused"; the request may have effect."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(endpoint, reason)
        self.endpoint = endpoint
        self.reason = reason

    def __str__(self) -> str:
        return f"No answer from {self.endpoint}: {self.reason}."


def is_transient(error: object) -> bool:
    """Return whether a retry may succeed; a status of 4xx, but 429, means that the request must change."""
    if not isinstance(error, ClientError):
        return isinstance(error, Unreachable)
    final = 400 <= error.status < 500 and error.status != 429  # 200: a page of a proxy, or a reply that was cut off
    return not final or error.code in THROTTLED_CODES


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to send; ``delay_s`` of ``None`` is the delay of the queue.

    ``group`` is the unit of order in FIFO queues, of fairness in others. Only FIFO queues accept a ``dedup_id``.
    """

    body: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    delay_s: int | None = None
    group: str | None = None
    dedup_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A stored message; in FIFO queues it has a ``sequence`` number of 20 digits."""

    id: str
    sequence: str | None = None


@dataclass(frozen=True, slots=True)
class Hidden:
    """A confirmed change of visibility: the receipt was the latest one, so the message was not received again.

    ``for_s`` counts from the change at the server, so clocks need not agree.
    """

    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A received message, hidden from other consumers until its timeout; ``receipt`` deletes it or extends the timeout.

    ``source`` is the name of a dead letter's original queue. ``trace_header`` is the ``AWSTraceHeader``, if any.
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
    """One move task; ``status`` is running, completed, cancelled or failed. ``handle`` cancels a running task.

    ``destination`` is ``None`` for a move to the original queues, ``moves_per_s_max`` for one without a limit.
    ``failure`` is the reason of a failed move.
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
    """A queue at one instant; ``created_at_ms`` and ``modified_at_ms`` are exact to the second."""

    queue: str
    url: str
    settings: QueueSettings
    visible: int
    in_flight: int
    delayed: int
    created_at_ms: int
    modified_at_ms: int


def traced(attributes: Mapping[str, Attribute] | None = None) -> dict[str, Attribute]:
    """Return ``attributes`` of a message to send, with those of the current trace span, if there is one.

    The configured propagator chooses them, ``traceparent`` by default. They count towards the ten attributes of a
    message. Given attributes are not replaced.
    """
    from opentelemetry import propagate  # noqa: PLC0415 (an extra)

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    of_span = {name: Attribute(type="String", text=text) for name, text in carrier.items() if text}
    return of_span | dict(attributes or {})
