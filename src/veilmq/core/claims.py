"""Claims: what a reader that repeats itself takes from a queue, a numbered set of messages at a time.

A *source* is one reader (one Spark checkpoint). It binds claims 1, 2, 3, … in their order. What a claim has is fixed
for ever when it is bound: it may be read as often as one likes, by several at once, and always gives the same messages.
Acknowledging a number deletes the messages of all claims up to it; an acknowledged number is never bound again.

Binding counts as one receive, reading as none. Claimed messages are in flight, but not within the quota of receives.
A source lives by its heartbeats: without them its messages come back when its *hold* ends, and its claims are *lost*.
The *lease*, much shorter, only tells whether the reader seems to be alive. Each ``open`` begins a new epoch; the ones
before it are refused. See ``docs/protocols/claims.md``.
"""

import enum

import msgspec

from veilmq.core import limits
from veilmq.core.commands import Command
from veilmq.core.messages import NewMessage


class ClaimState(enum.Enum):
    """How a claim stands. What was acknowledged is kept as one number, not as claims."""

    BINDING = "binding"
    OPEN = "open"
    LOST = "lost"
    RELEASED = "released"


class OpenSource(Command, frozen=True, kw_only=True):
    """Begin a new epoch of ``source`` on ``queue``; makes the source where there is none. Answers ``SourceView``.

    ``source`` is the reader's own name for itself, 1 to 128 letters, digits, ``-`` and ``_`` (a UUID, as a rule).
    ``consumer`` names what the reader works for; of one consumer there is one source. With ``takeover`` the others of
    that consumer are fenced and their claims released; without, ``ConsumerTaken`` while one of them is open. ``hold_s``
    is how long messages stay bound after the last heartbeat, ``lease_s`` how long the source counts as alive.
    """

    queue: str
    source: str
    consumer: str = ""
    takeover: bool = False
    hold_s: int = limits.CLAIM_HOLD_S.default
    lease_s: int = limits.CLAIM_LEASE_S.default


class Claim(Command, frozen=True, kw_only=True):
    """Bind claim ``number`` to up to ``messages_max`` visible messages, or tell what it has. Answers ``Bound``.

    A claim bound before is answered as it was, and the source's lease renewed. ``number`` must be the last one or the
    next. Where no message is visible nothing is recorded. A claim has so many shards that none is meant to have more
    than ``shard_messages``; all messages of a group are in one shard. With ``bytes_max`` it ends before its bodies and
    properties are longer than that, as the store keeps them. Errors: ``EpochFenced``, ``ClaimAcknowledged``,
    ``ClaimLost``, ``ClaimGap``, ``SourceNotFound``.
    """

    queue: str
    source: str
    epoch: int
    number: int
    messages_max: int
    shard_messages: int = limits.CLAIM_SHARD_MESSAGES
    bytes_max: int | None = None


class Heartbeat(Command, frozen=True, kw_only=True):
    """Renew the lease and the hold of ``source``. Answers ``SourceView``. Errors: ``EpochFenced``, ``SourceNotFound``.

    ``lease_s`` and ``hold_s`` change what ``OpenSource`` said; ``None`` leaves it.
    """

    queue: str
    source: str
    epoch: int
    lease_s: int | None = None
    hold_s: int | None = None


class AcknowledgeClaims(Command, frozen=True, kw_only=True):
    """Delete the messages of all open claims of ``source`` up to ``number``. Answers ``Acknowledged``.

    Errors: ``EpochFenced``, ``ClaimGap`` for a number that was never bound, ``SourceNotFound``.
    """

    queue: str
    source: str
    epoch: int
    number: int


class ReadClaim(Command, frozen=True, kw_only=True):
    """Read messages of one shard of a claim, from ``cursor`` on. Answers ``ClaimPage``; needs no epoch.

    Errors: ``ClaimAcknowledged``, ``ClaimLost`` (also for a claim of which nobody knows), ``ClaimReleased``,
    ``ShardNotFound``.
    """

    queue: str
    source: str
    number: int
    shard: int = 0
    cursor: str = ""
    messages_max: int = limits.CLAIM_PAGE_MESSAGES


class ReleaseClaim(Command, frozen=True, kw_only=True):
    """Give the messages of an open claim back, by an operator's decision. Answers ``SourceView``.

    The claim is ``released``: reading and claiming it again fail. Errors: ``SourceNotFound``, ``ClaimLost``,
    ``ClaimAcknowledged``.
    """

    queue: str
    source: str
    number: int


class EvictMessage(Command, frozen=True, kw_only=True):
    """Take one message out of an open claim and move it to the queue's dead-letter queue. Answers ``SourceView``.

    The way out for a message that its reader cannot digest. ``message`` is its id (16 bytes). Errors:
    ``SourceNotFound``, ``MessageNotClaimed``, ``DeadLetterQueueRefused`` where the queue has no dead-letter queue.
    """

    queue: str
    source: str
    number: int
    message: bytes


class ListSources(Command, frozen=True, kw_only=True):
    """Tell up to ``count`` sources of ``queue``, those with open claims first, then those that were heard of last.

    Answers a list of ``SourceView``. Each snapshot that Spark reads is a source for two weeks, so there may be many.
    """

    queue: str
    count: int = limits.SOURCES_LISTED_MAX


class CloseSource(Command, frozen=True, kw_only=True):
    """Release all open claims of ``source`` and forget it, by an operator's decision. Answers ``None``.

    A reader that goes on with it finds its claims lost. Error: ``SourceNotFound``.
    """

    queue: str
    source: str


class ClaimView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One claim: its number, how it stands, how many messages and shards it has, and since when."""

    number: int
    state: ClaimState
    messages: int
    shards: int
    bound_at_ms: int


class SourceView(msgspec.Struct, frozen=True, kw_only=True):
    """One source: ``acknowledged`` and ``last`` are numbers of claims, ``claims`` those behind ``acknowledged``.

    ``alive`` tells whether its lease runs; ``hold_until_ms`` is when its messages come back. ``ready`` is how many
    messages of the queue are visible now, ``oldest_sent_at_ms`` when the oldest of them was sent, or of those
    that are claimed or in flight.
    """

    source: str
    consumer: str
    epoch: int
    acknowledged: int
    last: int
    alive: bool
    lease_until_ms: int
    hold_until_ms: int
    claims: list[ClaimView]
    ready: int = 0
    oldest_sent_at_ms: int | None = None


class Bound(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a claim was bound to. ``shards`` 0: nothing was, and nothing is recorded.

    A claim all of whose messages were evicted has shards and no messages.

    ``more``: the claim is not whole yet (a large one is bound in slices), or nothing is bound yet, while slices end
    what is past its retention, or another claim; claim the same number again. ``again``: it had been bound before.
    ``next_due_ms`` is as for ``results.Received``, where nothing was bound.
    """

    number: int
    messages: int
    shards: int
    more: bool = False
    again: bool = False
    next_due_ms: int | None = None


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far the source is acknowledged; ``lost`` are numbers among those whose messages were not deleted by it."""

    acknowledged: int
    lost: list[int]


class ClaimedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message of a claim; ``received_at_ms`` is when the claim was bound, ``properties`` are encoded."""

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    received_at_ms: int
    receive_count: int
    sequence: int | None


class ClaimPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a shard in their order; ``cursor`` is where the next page begins, empty after the last."""

    messages: list[ClaimedMessage]
    cursor: str


# Publications: messages staged by a writer that repeats itself, and sent together once.
#
# A *writer* (one Spark query) publishes numbered batches in rising order. For a batch its tasks stage messages, each
# under the name of its *attempt*; nobody sees them. Publishing names the attempts that count, in the order in which
# their messages are to follow each other. That is decided in one transaction, once for each batch; what was staged for
# it and not named is dropped. See ``docs/protocols/publications.md``.


class Stage(Command, frozen=True, kw_only=True):
    """Keep ``messages`` for a later ``Publish``. Answers ``Staged``.

    ``part`` counts the calls of one attempt from 0; a part that is there already is not kept twice. Errors are those of
    ``Send`` for one message, but fail the whole call: ``StageRefused`` tells which message and why. Of a batch that was
    published nothing is kept any more.
    """

    queue: str
    writer: str
    batch: int
    attempt: str
    part: int
    messages: tuple[NewMessage, ...]


class Publish(Command, frozen=True, kw_only=True):
    """Send what was staged under ``attempts`` for ``batch``, in this order, once. Answers ``Published``.

    A batch not behind the last published one is answered with ``again`` and changes nothing. Error ``StageMissing``
    when an attempt has not as many messages as it says.

    ``attempts`` are names with the number of messages that each has staged. With ``messages_per_s_max`` they come into
    the queue no faster than that.
    """

    queue: str
    writer: str
    batch: int
    attempts: tuple[tuple[str, int], ...]
    messages_per_s_max: int | None = None


class Abandon(Command, frozen=True, kw_only=True):
    """Drop what was staged for ``batch`` of ``writer`` and is not published. Answers ``None``."""

    queue: str
    writer: str
    batch: int


class ListWriters(Command, frozen=True, kw_only=True):
    """Tell the writers of ``queue``, those that were heard of last first. Answers a list of ``WriterView``."""

    queue: str
    count: int = limits.WRITERS_LISTED_MAX


class Staged(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many messages the attempt has now. ``again``: the part, or the whole batch, was there before."""

    messages: int
    again: bool = False


class Published(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The batch is sent: ``messages`` were named. ``again``: it had been published before.

    ``more``: it is decided, but not all messages are in the queue yet; they come by themselves. Ask again to wait, not
    before ``next_due_ms``.
    ``duplicates`` are those among them, so far, that a FIFO queue had lately and did not store. Of a batch before the
    last published one both numbers are 0: they are not kept.
    """

    messages: int
    duplicates: int = 0
    again: bool = False
    more: bool = False
    next_due_ms: int | None = None


class WriterView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One writer: its last published batch (``None``: none yet) and what it has staged and not published."""

    writer: str
    batch: int | None
    messages: int
    duplicates: int
    staged: int
    seen_at_ms: int
