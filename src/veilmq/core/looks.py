"""Looking at a queue's messages without receiving them: for tests, and for whoever wants to know what is in a queue.

Nothing changes by a look: no lease begins and no receive is counted. What it shows is what the engine has at one
instant, together with the state that this instant gives each message.
"""

import enum

import msgspec

from veilmq.core.commands import Command

LOOK_MESSAGES_MAX = 1_000
LOOK_LEASES_MAX = 1_000
LOOKED_AT_MAX = 100_000
"""How many messages of another kind a look for some of a kind passes over: a hundredth of a second, or a tenth."""


class MessageState(enum.Enum):
    """Where a message is at an instant (``docs/lifecycle.md``); a claimed message is in flight."""

    VISIBLE = "visible"
    IN_FLIGHT = "in flight"
    DELAYED = "delayed"


class LookAtQueue(Command, frozen=True, kw_only=True):
    """Show up to ``count`` messages of ``queue``, those sent first first. Answers a list of ``SeenMessage``.

    With ``state``, only those in that state, in the order in which they became or become visible, claimed ones last.
    They are found by that instant, or where that cannot be, among the first ``LOOKED_AT_MAX`` of others: so a look at
    some stays short, whatever else there is, and where others are that many, it may show less than there is.

    With ``id``, it shows that one alone of these messages. With ``bytes_max`` the list ends with the message whose
    body brings all of them there.

    With ``receipts`` each message in flight comes with the receipt that its holder has. Whoever has that can release,
    extend or delete the message, so an operator alone may ask for it. Error ``QueueNotFound``.
    """

    queue: str
    count: int = LOOK_MESSAGES_MAX
    state: MessageState | None = None
    receipts: bool = False
    id: bytes | None = None
    bytes_max: int | None = None


class LookAtLeases(Command, frozen=True, kw_only=True):
    """Show up to ``count`` leases of ``queue``, those that end first first. Answers a list of ``SeenLease``.

    What is shown was received and is in flight: claims have no leases. That costs by ``count`` alone, however many
    messages the queue has and however many of them are in flight; behind more than ``LOOKED_AT_MAX`` delayed messages
    that become visible sooner nothing is shown.

    ``also`` are positions that earlier looks have told: of these messages, those that are not shown anyway follow as
    long as they are in the queue, whatever has become of their leases. So whoever follows leases knows which of them
    ended with their messages. Error ``QueueNotFound``.
    """

    queue: str
    count: int = LOOK_LEASES_MAX
    also: tuple[int, ...] = ()


class SeenLease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message in flight, by its lease: from its receive, at ``received_at_ms``, to ``visible_at_ms``.

    ``position`` is where the message stands, to be asked for again; of one that was asked for the lease may have ended,
    as it has, now at the latest, where a claim has the message. ``generation`` tells the receives of one message apart,
    ``receive_count`` counts those in this queue. ``extensions`` is how often the deadline was moved since the receive;
    ``None`` where nobody has counted, as the queue has no event log. Without one, the receive of a message that was
    received before is when it was asked for: a wait for the message is not taken off.
    """

    message_id: bytes
    position: int
    generation: int
    received_at_ms: int
    visible_at_ms: int
    receive_count: int
    extensions: int | None = None
    group: str | None = None


class Peek(Command, frozen=True, kw_only=True):
    """Show up to ``count`` visible messages of ``queue`` in the order in which receives would give them.

    Answers ``Peeked``. Of a FIFO queue, what a receive could give now: not what waits behind a message of its group.
    Costs what a receive of that many costs. With ``bytes_max`` it ends with the message whose body brings all of them
    there. Error ``QueueNotFound``. (SMQ reference, section 4.12)
    """

    queue: str
    count: int = 1
    bytes_max: int | None = None


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
    ``received_at_ms`` is its last receive (as of ``SeenLease``), ``first_received_at_ms`` its first one, also in the
    queue that a dead letter came from; both are ``None`` before there was one, and of a claimed message. ``receipt`` is
    the one that acts while the message is in flight, where it was asked for; claimed messages have none.
    """

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    receive_count: int
    state: MessageState
    visible_at_ms: int | None
    received_at_ms: int | None
    first_received_at_ms: int | None
    group: str | None
    priority: int
    receipt: str | None = None
