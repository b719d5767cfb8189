"""Looking at a queue's messages without receiving them: for tests, and for whoever wants to know what is in a queue.

Nothing changes by a look: no lease begins and no receive is counted. What it shows is what the engine has at one
instant, together with the state that this instant gives each message.
"""

import enum

import msgspec

from veilmq.core.commands import Command
from veilmq.core.limits import PRIORITY

LOOK_MESSAGES_MAX = 1_000
LOOK_LEASES_MAX = 1_000


class MessageState(enum.Enum):
    """Where a message is at an instant (``docs/lifecycle.md``); a claimed message is in flight."""

    VISIBLE = "visible"
    IN_FLIGHT = "in flight"
    DELAYED = "delayed"


class LookAtQueue(Command, frozen=True, kw_only=True):
    """Show up to ``count`` messages of ``queue``, those sent first first. Answers a list of ``SeenMessage``.

    With ``state`` only those in that state. Those in flight or delayed are read by the instant at which that ends,
    so that no other message costs anything; of more than ``count``, it is those whose instant comes first that are
    shown. With ``receipts`` each message of a lease comes with the receipt that its holder has: whoever asks can
    release, extend or delete it, so it must be asked for by an operator alone. Error ``QueueNotFound``.
    """

    queue: str
    count: int = LOOK_MESSAGES_MAX
    state: MessageState | None = None
    receipts: bool = False


class LookAtLeases(Command, frozen=True, kw_only=True):
    """Show up to ``count`` leases of ``queue``, those that end first first. Answers a list of ``SeenLease``.

    What is shown is in flight by a receive: claims have no leases. Costs by ``count`` alone, however many messages the
    queue has and however many of them are in flight. Error ``QueueNotFound``.
    """

    queue: str
    count: int = LOOK_LEASES_MAX


class SeenLease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message in flight, by its lease: from the receive at ``received_at_ms`` to ``visible_at_ms``.

    ``generation`` tells the leases of one message apart and rises with each. ``extensions`` is how often the deadline
    was moved since the receive; ``None`` where it is not known: that is counted only for the event log.
    """

    message_id: bytes
    generation: int
    received_at_ms: int
    visible_at_ms: int
    receive_count: int
    extensions: int | None = None
    group: str | None = None


class Peek(Command, frozen=True, kw_only=True):
    """Show up to ``count`` visible messages of ``queue`` in the order in which receives would give them.

    Answers ``Peeked``. Of a FIFO queue, what a receive could give now: not what waits behind a message of its group.
    Costs what a receive of that many costs. Error ``QueueNotFound``. (SMQ reference, section 4.12)
    """

    queue: str
    count: int = 1


class PeekedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A visible message: ``receive_count`` is 0 and ``first_received_at_ms`` ``None`` before its first receive.

    ``source`` is the full name of the queue that a dead letter came from.
    """

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    first_received_at_ms: int | None
    receive_count: int
    priority: int
    source: str | None = None


class Peeked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a peek shows; ``smq_base64`` is the queue's setting."""

    messages: list[PeekedMessage]
    smq_base64: bool = False


class SeenMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as a look shows it; ``properties`` is ``core.properties`` encoded.

    ``visible_at_ms`` is when its last hiding ends or ended: ``None`` for one that was never hidden, or is claimed.
    ``received_at_ms`` is its last receive, ``first_received_at_ms`` its first; ``None`` before that, and the last one
    of a claimed message is ``None``, too. ``receipt`` is what the holder of its lease has, where it was asked for.
    """

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    receive_count: int
    state: MessageState
    visible_at_ms: int | None
    received_at_ms: int | None = None
    first_received_at_ms: int | None = None
    group: str | None = None
    priority: int = PRIORITY.default
    receipt: str | None = None
