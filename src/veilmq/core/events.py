"""Events: what became of receipts, one value for each that ended, as the event log has them.

An event is written in the transaction that makes the end, or is the first to observe it: an expiry runs nothing by
itself, so it is written by the next receive, a late delete, retention or the janitor, once, with the deadline as its
time. See ``docs/events.md`` for the columns of the exported tables.

Events are numbered from 1 in the order in which they were written, without a gap. Whoever exports them plans a range of
numbers, reads it, puts it where it belongs and has it forgotten. A range that was planned stays as it is until then, so
that an export begun again after a crash makes the same of it.
"""

import enum

import msgspec

from veilmq.core.commands import Command
from veilmq.core.errors import StoreUnavailable, VeilmqError


class Outcome(enum.Enum):
    """How a receipt ended: with exactly one of the first four; two more may follow it.

    ``deleted_by_earlier`` ends the latest receipt of a message that the receipt of an earlier receive deletes, where
    the server lets that act (``any_receive``); of the earlier one, which had ``expired``, it is the late delete.
    ``late_deleted`` follows the ``expired`` of the same receipt, and corrects it: the work took ``held_ms``, longer
    than its timeout. ``nacked`` is a change of the timeout to 0. ``dead_lettered`` follows the ``expired`` or
    ``nacked`` of a message that is moved away instead of being received once more: it tells what became of the message,
    and neither repeats nor corrects what became of the receipt.
    """

    DELETED = "deleted"
    DELETED_BY_EARLIER = "deleted_by_earlier"
    EXPIRED = "expired"
    NACKED = "nacked"
    LATE_DELETED = "late_deleted"
    DEAD_LETTERED = "dead_lettered"


class ReceiptClosed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One receipt that ended; instants in ms since the epoch, durations in ms. Encoded as an array of its fields.

    ``visibility_ms`` is the timeout in force: from the delivery to the last deadline, or to the end of the message
    where retention or a purge came before it. ``held_ms`` is from the delivery to ``closed_at_ms``. ``key`` is the
    routing key, ``group_hash`` stands for the message group, ``size_bucket`` is the power of two that the body's bytes
    do not reach. ``receipt`` tells the receipts of one message apart, and ``receive_count`` which receive in this queue
    it was, from 1. ``batch_size`` and ``batch_position`` (from 0) are of the receive.
    """

    queue: str
    key: str
    group_hash: int | None
    size_bucket: int
    message_id: bytes
    receipt: int
    sent_at_ms: int
    received_at_ms: int
    closed_at_ms: int
    held_ms: int
    outcome: Outcome
    visibility_ms: int
    extensions: int
    receive_count: int
    batch_size: int
    batch_position: int


class PlanExport(Command, frozen=True, kw_only=True):
    """Choose the range of events to be exported next. Answers ``EventRange``, ``None`` when no event waits.

    A range that was planned and is not forgotten yet is answered again, whatever ``events_max`` says. A new one begins
    with the first event that waits and has about ``events_max`` of them. Where several nodes share a store, one of them
    exports at a time; error ``ExportedElsewhere`` when another one does not end with it.
    """

    events_max: int


class ExportedElsewhere(StoreUnavailable):
    """Another node exports at this moment, and has done so for a while."""

    def __init__(self) -> None:
        """Say so."""
        VeilmqError.__init__(self, "Events are being exported by another node, which takes its time; try again.")


class ReadEvents(Command, frozen=True, kw_only=True):
    """Read events from the number ``first`` up to ``last``, about ``bytes_max`` at most. Answers ``EventPage``."""

    first: int
    last: int
    bytes_max: int


class ForgetEvents(Command, frozen=True, kw_only=True):
    """Take it that the events up to ``last``, a planned range's last, are exported. Answers ``Forgotten``.

    Their room is given back in slices: call it again while there are ``more``.
    """

    last: int


class CountEvents(Command, frozen=True, kw_only=True):
    """Tell how many events there are. Answers ``EventCounts``."""


class EventRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Events from the number ``first`` up to and including ``last``; ``node`` names the store that numbered them."""

    node: str
    first: int
    last: int


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of events in their order, each the number of its first event and an encoded list of ``ReceiptClosed``.

    ``next`` is the number to read on from, behind the range's last when this was all of it.
    """

    batches: list[tuple[int, bytes]]
    next: int


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether there are ``more`` rows to remove."""

    more: bool


class EventCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Events ever ``recorded`` in this store, ``exported`` from it, and ``dropped`` for want of room; never falling."""

    recorded: int
    exported: int
    dropped: int

    @property
    def waiting(self) -> int:
        """How many wait to be exported."""
        return self.recorded - self.exported


encode = msgspec.msgpack.Encoder().encode
"""Encodes a list of events, each as a ``ReceiptClosed`` or as a tuple of its fields (an outcome as its value)."""
decode = msgspec.msgpack.Decoder(list[ReceiptClosed]).decode
"""Return the events of one batch."""
