"""Claims and publications: exactly-once reading from a queue, and writing to it, for programs that repeat themselves.

A *source* is one reader (one Spark checkpoint). It binds claims 1, 2, 3, … in order. A bound claim never changes: it
can be read any number of times, concurrently, and always has the same messages. Acknowledging a number deletes the
messages of all claims up to it; an acknowledged number is never bound again.

Binding counts as one receive, reading as none. Claimed messages are in flight, but not within the quota of receives.
Heartbeats keep a source: without them its messages return to the queue when its *hold* ends, and its claims are *lost*.
The *lease*, much shorter, only shows whether the reader seems to be alive. Each ``OpenSource`` begins a new epoch;
commands of earlier ones are refused. See ``docs/protocols/claims.md``.

A *writer* (one Spark query) publishes numbered batches in rising order. Its tasks stage the messages of a batch, each
task under the name of its *attempt*; staged messages are invisible. A publish names the attempts that count, in the
order of their messages, once for each batch, in one transaction; what else was staged for the batch is dropped. See
``docs/protocols/publications.md``.
"""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from veilmq.core import Value, limits
from veilmq.core.commands import QueueCommand
from veilmq.core.messages import NewMessage

# What fields of requests may be: an engine relies on it, and the wire decodes by these types.

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]
Consumer = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]{0,256}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[int, Meta(ge=1, le=2**62)]
Hold = Annotated[int, limits.CLAIM_HOLD_S.constraint]
Lease = Annotated[int, limits.CLAIM_LEASE_S.constraint]
Messages = Annotated[int, limits.CLAIM_MESSAGES.constraint]
Attempts = Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=limits.PUBLISH_ATTEMPTS_MAX)]


class ClaimState(enum.Enum):
    """The state of a claim. What was acknowledged is kept as one number, not as claims."""

    BINDING = "binding"
    OPEN = "open"
    LOST = "lost"
    RELEASED = "released"


class SourceCommand(QueueCommand):
    """A command of ``source``, the reader's own name: 1 to 128 letters, digits, ``-`` and ``_`` (a UUID, as a rule).

    The error of all but ``OpenSource`` and ``ReadClaim`` is ``SourceNotFound``.
    """

    source: Name


class OpenSource(SourceCommand):
    """Begin a new epoch of the source, created if there is none. Result: ``SourceView``.

    ``consumer`` names what the reader works for; a consumer has one source. With ``takeover`` its other sources are
    fenced and their claims released; otherwise ``ConsumerTaken`` while one of them is open. ``hold_s`` is how long
    messages stay bound after the last heartbeat, ``lease_s`` how long the source counts as alive.
    """

    consumer: Consumer = ""
    takeover: bool = False
    hold_s: Hold = limits.CLAIM_HOLD_S.default
    lease_s: Lease = limits.CLAIM_LEASE_S.default


class Claim(SourceCommand):
    """Bind claim ``number`` to up to ``messages_max`` visible messages, or return what it has. Result: ``Bound``.

    ``number`` must be the last one or the next; the last one is returned as it is. Both renew the source's lease. Where
    no message is visible nothing is recorded. A claim has enough shards for ``shard_messages`` each; all messages of a
    group are in one shard. With ``bytes_max`` it ends before its stored bodies and properties exceed that. Errors:
    ``EpochFenced``, ``ClaimAcknowledged``, ``ClaimLost``, ``ClaimGap``.
    """

    epoch: Count
    number: Number
    messages_max: Messages = limits.CLAIM_MESSAGES.default
    shard_messages: Messages = limits.CLAIM_SHARD_MESSAGES
    bytes_max: Annotated[int, limits.CLAIM_BYTES.constraint] | None = None


class Heartbeat(SourceCommand):
    """Renew the lease and the hold of the source. Result: ``SourceView``. Error ``EpochFenced``.

    ``lease_s`` and ``hold_s`` replace those of ``OpenSource``, unless they are ``None``.
    """

    epoch: Count
    lease_s: Lease | None = None
    hold_s: Hold | None = None


class AcknowledgeClaims(SourceCommand):
    """Delete the messages of all open claims up to ``number``. Result: ``Acknowledged``.

    0 acknowledges nothing. Errors: ``EpochFenced``, ``ClaimGap`` for a number that was never bound.
    """

    epoch: Count
    number: Count


class ReadClaim(SourceCommand):
    """Read messages of one shard of a claim, from ``cursor`` on. Result: ``ClaimPage``; needs no epoch.

    Errors: ``ClaimAcknowledged``, ``ClaimLost`` (also for an unknown claim), ``ClaimReleased``, ``ShardNotFound``.
    """

    number: Number
    shard: Count = 0
    cursor: Annotated[str, Meta(max_length=64)] = ""
    messages_max: int = limits.CLAIM_PAGE_MESSAGES


class ReleaseClaim(SourceCommand):
    """Return the messages of an open claim to the queue, by an operator's decision. Result: ``SourceView``.

    Reading and claiming a ``released`` claim fails. Errors: ``ClaimLost``, ``ClaimAcknowledged``.
    """

    number: Number


class EvictMessage(SourceCommand):
    """Move one message of an open claim to the dead-letter queue: its reader cannot process it. Result: ``SourceView``.

    ``message`` is its id (16 bytes). Errors: ``MessageNotClaimed``, ``DeadLetterQueueRefused`` where the queue has no
    dead-letter queue.
    """

    number: Number
    message: bytes


class CloseSource(SourceCommand):
    """Release all open claims of the source and forget it, by an operator's decision. Result: ``None``.

    A reader that continues finds its claims lost.
    """


class ListSources(QueueCommand):
    """Return up to ``count`` sources, a list of ``SourceView``: with open claims first, then the last active ones.

    Each snapshot that Spark reads is a source for two weeks, so there may be many.
    """

    count: int = limits.SOURCES_LISTED_MAX


class ClaimView(Value, gc=False):
    """One claim: its number and state, how many messages and shards it has, and since when."""

    number: int
    state: ClaimState
    messages: int
    shards: int
    bound_at_ms: int


class SourceView(Value):
    """One source: ``acknowledged`` and ``last`` are numbers of claims, ``claims`` those behind ``acknowledged``.

    ``alive``: its lease runs; ``hold_until_ms`` is when its messages return to the queue. ``ready`` messages of the
    queue are visible; ``oldest_sent_at_ms`` is of the oldest that is visible, claimed or in flight.
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


class Bound(Value, gc=False):
    """The messages of a claim. 0 ``shards``: nothing was bound, and nothing is recorded.

    A claim all of whose messages were evicted has shards and no messages.

    ``more``: claim the same number again. A large claim is bound in slices; or nothing is bound yet, while slices end
    messages past their retention, or another claim. ``again``: it had been bound before. ``next_due_ms`` is that of
    ``Received``, where nothing was bound.
    """

    number: int
    messages: int
    shards: int
    more: bool = False
    again: bool = False
    next_due_ms: int | None = None


class Acknowledged(Value, gc=False):
    """The last acknowledged number; ``lost`` are numbers up to it whose messages were not deleted by it."""

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


class ClaimPage(Value):
    """Messages of a shard in order; ``cursor`` begins the next page, empty after the last."""

    messages: list[ClaimedMessage]
    cursor: str


class WriterCommand(QueueCommand):
    """A command on the batch ``batch`` of ``writer``."""

    writer: Name
    batch: Count


class Stage(WriterCommand):
    """Keep ``messages`` for a later ``Publish``. Result: ``Staged``.

    ``part`` numbers the calls of one attempt from 0; a part is not kept twice, nor anything of a published batch. The
    errors are those of ``Send``, as a ``StageRefused`` of the whole call.
    """

    attempt: Name
    part: Annotated[int, Meta(ge=0, le=2**31)]
    messages: tuple[NewMessage, ...]


class Publish(WriterCommand):
    """Send what was staged under ``attempts``, in this order, once. Result: ``Published``.

    ``attempts`` are names, each with its number of staged messages; error ``StageMissing`` if that differs. A batch not
    behind the last published one changes nothing (``again``). The queue gets at most ``messages_per_s_max`` a second.
    """

    attempts: Attempts
    messages_per_s_max: Annotated[int, limits.PUBLISH_PER_S.constraint] | None = None


class Abandon(WriterCommand):
    """Drop what was staged for the batch and is not published. Result: ``None``."""


class ListWriters(QueueCommand):
    """Return the writers of ``queue``, the last active ones first: a list of ``WriterView``."""

    count: int = limits.WRITERS_LISTED_MAX


class Staged(Value, gc=False):
    """How many messages the attempt has now. ``again``: the part, or the whole batch, was there before."""

    messages: int
    again: bool = False


class Published(Value, gc=False):
    """The batch is published, with ``messages``. ``again``: it had been published before.

    ``duplicates`` of them, so far, were not stored, as a FIFO queue had them within ``limits.DEDUPLICATION_S``. Of a
    batch before the last published one both numbers are 0: they are not kept.

    ``more``: not all messages are in the queue yet; they follow by themselves. Repeat the command to wait, not before
    ``next_due_ms``.
    """

    messages: int
    duplicates: int = 0
    again: bool = False
    more: bool = False
    next_due_ms: int | None = None


class WriterView(Value, gc=False):
    """One writer: its last published batch (``None``: none yet) and what it has staged and not published."""

    writer: str
    batch: int | None
    messages: int
    duplicates: int
    staged: int
    seen_at_ms: int
