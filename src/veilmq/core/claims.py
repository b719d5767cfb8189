"""Claims and publications: exactly-once reads and writes for programs that retry (``docs/protocols``).

A *source* is one reader (one Spark checkpoint). It binds claims 1, 2, 3, … in order. A bound claim never changes: it
can be read any number of times, concurrently, and always has the same messages. Acknowledging a number deletes the
messages of all claims up to it; an acknowledged number is never bound again.

Binding a message counts as one receive, reading it as none. Claimed messages are in flight, but do not count towards
the in-flight limit of receives. If heartbeats stop, the messages return to the queue when the *hold* ends, and the
claims are *lost*. The *lease*, much shorter, only shows whether the reader seems alive. Each ``OpenSource`` begins a
new epoch; commands of earlier epochs are refused.

A *writer* (one Spark query) publishes numbered batches in rising order. Each task stages its messages under the name
of its *attempt*; staged messages are invisible. A publish names the attempts to send, in the order of their messages.
It sends them once, in one transaction, and drops all other messages staged for the batch.
"""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from veilmq.core import Value, limits
from veilmq.core.commands import QueueCommand
from veilmq.core.messages import NewMessage

# Constraints of request fields. The wire decodes with these types; an engine relies on them.

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]
Consumer = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]{0,256}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[int, Meta(ge=1, le=2**62)]
Hold = Annotated[int, limits.CLAIM_HOLD_S.constraint]
Lease = Annotated[int, limits.CLAIM_LEASE_S.constraint]
Messages = Annotated[int, limits.CLAIM_MESSAGES.constraint]
Attempts = Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=limits.PUBLISH_ATTEMPTS_MAX)]


class ClaimState(enum.Enum):
    """The state of a claim. Acknowledged claims are not stored, only the last acknowledged number."""

    BINDING = "binding"
    OPEN = "open"
    LOST = "lost"
    RELEASED = "released"


class SourceCommand(QueueCommand):
    """A command on ``source``, a name that the reader chooses, usually a UUID.

    All but ``OpenSource`` and ``ReadClaim`` fail with ``SourceNotFound`` if there is no such source.
    """

    source: Name


class OpenSource(SourceCommand):
    """Begin a new epoch of the source; create the source if it does not exist. Result: ``SourceView``.

    ``consumer`` names the application of the reader; a consumer has one source. With ``takeover`` its other sources
    are fenced and their claims released; without it the error is ``ConsumerTaken`` if one of them has open claims.
    Messages stay bound for ``hold_s`` after the last heartbeat; the source counts as alive for ``lease_s``.
    """

    consumer: Consumer = ""
    takeover: bool = False
    hold_s: Hold = limits.CLAIM_HOLD_S.default
    lease_s: Lease = limits.CLAIM_LEASE_S.default


class Claim(SourceCommand):
    """Bind claim ``number`` to up to ``messages_max`` visible messages, or return the bound claim. Result: ``Bound``.

    ``number`` is the last bound one, which is returned unchanged, or the next. Both renew the source's lease. If no
    message is visible, nothing is recorded, or with ``empty`` a claim without messages. A claim has one shard for each
    ``shard_messages``; all messages of a group are in one shard. ``bytes_max`` limits the stored bodies and properties
    of the claim. Errors: ``EpochFenced``, ``ClaimAcknowledged``, ``ClaimLost``, ``ClaimGap``.
    """

    epoch: Count
    number: Number
    messages_max: Messages = limits.CLAIM_MESSAGES.default
    shard_messages: Messages = limits.CLAIM_SHARD_MESSAGES
    bytes_max: Annotated[int, limits.CLAIM_BYTES.constraint] | None = None
    empty: bool = False


class Heartbeat(SourceCommand):
    """Renew the lease and the hold of the source. Result: ``SourceView``. Error: ``EpochFenced``.

    ``lease_s`` and ``hold_s`` replace those of ``OpenSource`` unless they are ``None``.
    """

    epoch: Count
    lease_s: Lease | None = None
    hold_s: Hold | None = None


class AcknowledgeClaims(SourceCommand):
    """Delete the messages of all open claims up to ``number``. Result: ``Acknowledged``.

    0 acknowledges nothing. Errors: ``EpochFenced``; ``ClaimGap`` for a number that was never bound.
    """

    epoch: Count
    number: Count


class ReadClaim(SourceCommand):
    """Read a page of one shard of a claim; needs no epoch. Result: ``ClaimPage``.

    Errors: ``ClaimAcknowledged``, ``ClaimLost`` (also for an unknown claim), ``ClaimReleased``, ``ShardNotFound``.
    """

    number: Number
    shard: Count = 0
    cursor: Annotated[str, Meta(max_length=64)] = ""
    messages_max: int = limits.CLAIM_PAGE_MESSAGES


class ReleaseClaim(SourceCommand):
    """Return the messages of an open claim to the queue; for operators. Result: ``SourceView``.

    A released claim cannot be read or bound again. Errors: ``ClaimLost``, ``ClaimAcknowledged``.
    """

    number: Number


class EvictMessage(SourceCommand):
    """Move a message that cannot be processed from an open claim to the dead-letter queue. Result: ``SourceView``.

    ``message`` is the id (16 bytes). Errors: ``MessageNotClaimed``; ``DeadLetterQueueRefused`` if the queue has no
    dead-letter queue.
    """

    number: Number
    message: bytes


class CloseSource(SourceCommand):
    """Release all open claims of the source and delete it; for operators. Result: ``None``.

    To a reader that continues, its claims are lost.
    """


class ListSources(QueueCommand):
    """List up to ``count`` sources: with open claims first, then most recently active. Result: ``SourceView`` list.

    There may be many: each snapshot that Spark reads is a source for two weeks.
    """

    count: int = limits.SOURCES_LISTED_MAX


class ClaimView(Value, gc=False):
    """One claim; ``messages`` and ``shards`` are counts."""

    number: int
    state: ClaimState
    messages: int
    shards: int
    bound_at_ms: int


class SourceView(Value):
    """One source. ``acknowledged`` and ``last`` are claim numbers; ``claims`` are the claims after ``acknowledged``.

    ``alive``: the lease has not ended. The messages return to the queue at ``hold_until_ms``. ``ready`` counts the
    visible messages of the queue; ``oldest_sent_at_ms`` is that of its oldest visible, claimed or in-flight message.
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
    """The size of a bound claim. With 0 ``shards`` nothing was bound and nothing is recorded.

    A bound claim without messages has one shard or more. ``again``: the claim was bound before.

    ``more``: repeat the command with the same number. A large claim is bound in slices, and slices that delete expired
    messages or end another claim may come first. If nothing was bound, ``next_due_ms`` is that of ``Received``.
    """

    number: int
    messages: int
    shards: int
    more: bool = False
    again: bool = False
    next_due_ms: int | None = None


class Acknowledged(Value, gc=False):
    """The last acknowledged number; ``lost`` lists the claims up to it whose messages this did not delete."""

    acknowledged: int
    lost: list[int]


class ClaimedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message of a claim; ``received_at_ms`` is the time of binding, ``properties`` are encoded."""

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    received_at_ms: int
    receive_count: int
    sequence: int | None


class ClaimPage(Value):
    """Messages of a shard, in order; ``cursor`` is that of the next page, empty after the last."""

    messages: list[ClaimedMessage]
    cursor: str


class WriterCommand(QueueCommand):
    """A command on the batch ``batch`` of ``writer``."""

    writer: Name
    batch: Count


class Stage(WriterCommand):
    """Store ``messages``, invisible, for a later ``Publish``. Result: ``Staged``.

    ``part`` numbers the calls of one attempt from 0. Repeated parts and parts of a published batch are not stored. An
    error of ``Send`` fails the whole call as ``StageRefused``.
    """

    attempt: Name
    part: Annotated[int, Meta(ge=0, le=2**31)]
    messages: tuple[NewMessage, ...]


class Publish(WriterCommand):
    """Send the messages staged under ``attempts``, in this order, once. Result: ``Published``.

    ``attempts`` are names, each with its number of staged messages; if a number differs, the error is
    ``StageMissing``. A batch up to the last published one changes nothing (``again``). At most ``messages_per_s_max``
    messages a second are sent.
    """

    attempts: Attempts
    messages_per_s_max: Annotated[int, limits.PUBLISH_PER_S.constraint] | None = None


class Abandon(WriterCommand):
    """Delete the staged messages of the batch that are not published. Result: ``None``."""


class ListWriters(QueueCommand):
    """List the writers of ``queue``, most recently active first. Result: a list of ``WriterView``."""

    count: int = limits.WRITERS_LISTED_MAX


class Staged(Value, gc=False):
    """The number of messages of the attempt. ``again``: the part was staged, or the batch published, before."""

    messages: int
    again: bool = False


class Published(Value, gc=False):
    """The batch is published, with ``messages``. ``again``: it was published before.

    ``duplicates`` counts the messages so far that a FIFO queue dropped as duplicates (``limits.DEDUPLICATION_S``). For
    batches before the last published one both numbers are 0: they are not stored.

    ``more``: some messages are not in the queue yet and follow in the background. To wait for them, repeat the command,
    not before ``next_due_ms``.
    """

    messages: int
    duplicates: int = 0
    again: bool = False
    more: bool = False
    next_due_ms: int | None = None


class WriterView(Value, gc=False):
    """One writer: its last published batch (``None`` before the first) and the number of messages it has ``staged``."""

    writer: str
    batch: int | None
    messages: int
    duplicates: int
    staged: int
    seen_at_ms: int
