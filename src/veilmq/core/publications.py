"""Publications: messages staged by a writer that repeats itself, and sent together once.

A *writer* (one Spark query) publishes numbered batches in rising order. For a batch its tasks stage messages, each
under the name of its *attempt*; nobody sees them. Publishing names the attempts that count, in the order in which their
messages are to follow each other. That is decided in one transaction, once for each batch; what was staged for it and
not named is dropped. See ``docs/protocols/publications.md``.
"""

import msgspec

from veilmq.core import limits
from veilmq.core.commands import Command, NewMessage


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
