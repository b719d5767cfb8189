"""What an engine answers: plain frozen values, instants in milliseconds since the epoch."""

import enum

import msgspec

from veilmq.core.settings import QueueSettings


class ReceiptState(enum.Enum):
    """What a genuine receipt was when the command met it (``docs/lifecycle.md``, the receipt table)."""

    LIVE = "live"
    EXPIRED = "expired"
    EARLIER = "earlier"
    """Superseded, and acts all the same, where the command has ``any_receive``."""
    SUPERSEDED = "superseded"
    GONE = "gone"


class SentMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that is stored; ``id`` has 16 bytes (an RFC 9562 version 4 UUID).

    ``sequence`` rises strictly with each message of a FIFO queue, also across purges; ``None`` in standard queues.
    ``receipt`` is of a delayed message, where one was asked for.
    """

    id: bytes
    sequence: int | None = None
    receipt: str | None = None


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message and its lease: hidden from everyone else until ``visible_at_ms``.

    ``source`` is the full name of the queue that a dead letter came from. Group and deduplication id are among the
    ``properties``.
    """

    id: bytes
    receipt: str
    body: str
    properties: bytes
    sent_at_ms: int
    first_received_at_ms: int
    receive_count: int
    visible_at_ms: int
    priority: int
    sequence: int | None = None
    source: str | None = None


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The messages of one receive, and the instant at which the queue has, or may have, the next one.

    ``next_due_ms`` is not later than now when more is visible already, ``None`` when nothing is coming by itself. After
    messages it is exact only while the queue is watched; nobody else needs to know, and the present is always right.
    ``receive_wait_s`` is the queue's own setting, for a caller that named no wait. ``over_limit`` tells that there is
    nothing because a standard queue has as many messages in flight as it may. ``smq_base64`` is the queue's, too.
    """

    messages: list[ReceivedMessage]
    next_due_ms: int | None
    receive_wait_s: int
    over_limit: bool = False
    smq_base64: bool = False


class LeaseChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One change of visibility: the state that the receipt was in, and what holds now.

    ``visible_at_ms`` is the deadline now in force, ``hidden_for_ms`` the same as counted from the change, and
    ``receipt`` a new receipt where one was asked for; all are ``None`` where the receipt did not act.
    """

    state: ReceiptState
    visible_at_ms: int | None = None
    hidden_for_ms: int | None = None
    receipt: str | None = None


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many messages are in which state at one instant; ``oldest_sent_at_ms`` is of the oldest not deleted.

    ``redelivered`` is how often messages were received that had been received before, since the engine was opened
    (or had to go back to what is on disk). ``sent``, ``received`` and ``deleted`` are running totals since then, too:
    messages stored by sends, topics, publications and forwards, but not dead letters or what move tasks brought;
    messages given by receives or bound by claims, each time; messages deleted by their receipts, by forwards or with
    acknowledged claims, but not by retention or a purge. A duplicate is not stored, a repeated receive gives nothing.
    Exact, but for many messages that passed their retention at once (``docs/lifecycle.md``).
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_sent_at_ms: int | None
    redelivered: int = 0
    sent: int = 0
    received: int = 0
    deleted: int = 0


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue as its owner sees it; ``is_new`` where the command has just made it."""

    queue: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    counts: QueueCounts | None = None
    is_new: bool = False


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a listing: names without the account, in order; ``more`` tells whether any follow.

    ``views`` are of the same queues, with their counters, where they were asked for and may be seen.
    """

    names: list[str]
    more: bool
    views: list[QueueView] = []


class MoveStatus(enum.Enum):
    """How a move task stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class MoveTask(msgspec.Struct, frozen=True, kw_only=True):
    """A move of dead letters; ``id`` has 16 bytes and names the running task.

    ``messages_to_move`` is what ``source`` had when the task began; ``failure`` says why it failed.
    """

    id: bytes
    source: str
    destination: str | None
    moves_per_s_max: int | None
    status: MoveStatus
    messages_moved: int
    messages_to_move: int
    started_at_ms: int
    failure: str | None = None
