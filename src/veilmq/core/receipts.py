"""Receipts: their format, their states, the maximum of a lease, and the events that record how receipts ended.

A receipt is ``version | queue | position | generation | epoch | visible-at | MAC``, packed, in hexadecimal digits: SMQ
clients put receipts unescaped into a query string, and AWS's extended clients prepend the location of a body and split
at ``-``. The older format, URL-safe base64, is still accepted. The MAC (keyed BLAKE2s, 10 bytes) uses a key that the
store persists, so receipts survive a crash.

``queue`` is the number of the queue's incarnation, never reused: receipts are invalid for a re-created queue.
``generation`` (random, new when the message is received) and ``epoch`` (+1 then and at each SMQ change) fence receipts.
"""

import enum
import re
from binascii import a2b_base64, a2b_hex
from hashlib import blake2s
from hmac import compare_digest
from struct import Struct
from typing import NamedTuple

import msgspec

from veilmq.core import Value
from veilmq.core.commands import Command
from veilmq.core.errors import LeaseTooLong, ReceiptInvalid, ReceiptState, StoreUnavailable
from veilmq.core.limits import LEASE_S_MAX, SECOND_MS

_VERSION = 1
_FIELDS = Struct(">BIQIIQ")
_FIELDS_BYTES = _FIELDS.size
_MAC_BYTES = 10
_SIGNED = Struct(f"{_FIELDS.format}{_MAC_BYTES}s")
_HEX_LENGTH = 2 * _SIGNED.size
_BASE64_LENGTH = _SIGNED.size // 3 * 4  # of the older format; no padding
_FORM = re.compile("[A-Za-z0-9_-]+")
_FROM_URL = bytes.maketrans(b"-_+/=", b"+/???")

KEY_BYTES = 32
"""The length of a MAC key."""


class Receipt(NamedTuple):
    """The fields of a genuine receipt."""

    queue: int
    position: int
    generation: int
    epoch: int
    visible_at_ms: int


_receipt = tuple.__new__  # makes a NamedTuple without the Python frame of its constructor


def is_well_formed(text: str) -> bool:
    """Return whether ``text`` has the length and the alphabet of a receipt, genuine or not."""
    return len(text) in (_HEX_LENGTH, _BASE64_LENGTH) and _FORM.fullmatch(text) is not None


class ReceiptCodec:
    """Issues and reads receipts, which are signed with ``key``."""

    __slots__ = ("_mac",)

    def __init__(self, *, key: bytes) -> None:
        self._mac = blake2s(key=key, digest_size=_MAC_BYTES)  # copying it takes half the time of keying one

    def issue(self, queue: int, position: int, generation: int, epoch: int, visible_at_ms: int) -> str:
        """Return the receipt's text."""
        fields = _FIELDS.pack(_VERSION, queue, position, generation, epoch, visible_at_ms)
        mac = self._mac.copy()
        mac.update(fields)
        return (fields + mac.digest()).hex()

    def read(self, text: str) -> Receipt:
        """Return the fields of a receipt; raises ``ReceiptInvalid`` unless it was issued with the key."""
        try:
            if len(text) == _HEX_LENGTH:
                token = a2b_hex(text)
                if token.hex() != text:  # only lower case: each receipt has one spelling
                    raise ReceiptInvalid
            elif len(text) == _BASE64_LENGTH:
                token = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
            else:
                raise ReceiptInvalid
        except ValueError:
            raise ReceiptInvalid from None
        version, queue, position, generation, epoch, visible_at_ms, received_mac = _SIGNED.unpack(token)
        mac = self._mac.copy()
        mac.update(token[:_FIELDS_BYTES])
        if version != _VERSION or not compare_digest(mac.digest(), received_mac):
            raise ReceiptInvalid
        return _receipt(Receipt, (queue, position, generation, epoch, visible_at_ms))


# Visibility. States are not stored: they follow from comparing ``visible_at_ms`` with ``now_ms``. At ``visible_at_ms``
# the message is visible; before it the lease is live (SQS Developer Guide, "Visibility timeout"; SMQ reference section
# 5, "Boundary").


def changed_deadline_ms(
    now_ms: int, timeout_s: int, requested_at_ms: int, lease_s_max: int | None = LEASE_S_MAX
) -> int:
    """Return the deadline after a change of visibility.

    Raises ``LeaseTooLong``, and does not shorten the timeout, if the message would be in flight for more than
    ``lease_s_max`` (12 hours) since its receive was requested (SQS Developer Guide, "Visibility timeout"). A timeout of
    0 is always accepted. ``None`` (SMQ) is no maximum.
    """
    visible_at_ms = now_ms + timeout_s * SECOND_MS
    if timeout_s and lease_s_max is not None and visible_at_ms > requested_at_ms + lease_s_max * SECOND_MS:
        raise LeaseTooLong(lease_s_max)
    return visible_at_ms


def receipt_state(*, current: bool, visible_at_ms: int, now_ms: int) -> ReceiptState:
    """Return the state of the receipt of a stored message; ``current`` unless a receive or SMQ change superseded it."""
    if not current:
        return ReceiptState.SUPERSEDED
    return ReceiptState.LIVE if now_ms < visible_at_ms else ReceiptState.EXPIRED


def receipt_acts(state: ReceiptState, *, only_live: bool) -> bool:
    """Return whether a receipt in ``state`` acts; ``only_live`` is the rule of FIFO queues and of SMQ."""
    return state is ReceiptState.LIVE or (not only_live and state in (ReceiptState.EXPIRED, ReceiptState.EARLIER))


# Events: one for each receipt that ended, written once, in the transaction that ends the receipt. Nothing runs when a
# receipt expires, so the next receive, a late delete, retention or the janitor writes that event, with the deadline as
# its time. ``docs/events.md`` describes the columns of the exported tables.
#
# Events are numbered from 1 in the order of writing, without gaps. An exporter plans a range of numbers, reads it,
# writes it elsewhere, and deletes it here. A planned range does not change until it is deleted, so an export that is
# repeated after a crash writes the same events.


class Outcome(enum.Enum):
    """How a receipt ended: exactly one of the first four; one of the others may follow.

    - ``deleted_by_earlier``: the receipt of an earlier receive deleted the message (``any_receive``); that receipt,
      which had expired, gets a ``late_deleted``.
    - ``nacked``: the timeout was changed to 0.
    - ``late_deleted`` corrects the ``expired`` of the same receipt: the work took ``held_ms``, longer than the timeout.
    - ``dead_lettered`` follows ``expired`` or ``nacked``: the message was moved instead of received again.
    """

    DELETED = "deleted"
    DELETED_BY_EARLIER = "deleted_by_earlier"
    EXPIRED = "expired"
    NACKED = "nacked"
    LATE_DELETED = "late_deleted"
    DEAD_LETTERED = "dead_lettered"


class ReceiptClosed(Value, array_like=True, gc=False):
    """One receipt that ended. Encoded as an array of its fields.

    ``visibility_ms`` is the timeout in force, from the delivery to the last deadline, or to the retention or purge that
    ended the message before. ``held_ms`` is from the delivery to ``closed_at_ms``. ``key`` is the routing key; the body
    has fewer bytes than ``size_bucket``, a power of two. ``receipt`` identifies a receipt of the message,
    ``receive_count`` (from 1) its receive in this queue, of ``batch_size`` messages, in which the message was at
    ``batch_position`` (from 0).
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


class PlanExport(Command):
    """Choose the range of events to export next. Result: ``EventRange``, ``None`` if no event waits.

    While a planned range exists, it is returned, regardless of ``events_max``; a new range begins with the first
    waiting event and has about ``events_max``. If several nodes share a store, one exports at a time. Error:
    ``ExportedElsewhere`` if another node does not finish.
    """

    events_max: int


class ExportedElsewhere(StoreUnavailable):
    """Another node is exporting and has not finished."""

    text = "Another node is still exporting events; try again."


class ReadEvents(Command):
    """Return the events from ``first`` to ``last``, at most about ``bytes_max``. Result: ``EventPage``."""

    first: int
    last: int
    bytes_max: int


class ForgetEvents(Command):
    """Delete the exported events up to ``last``, the end of a planned range. Result: ``Forgotten``.

    Each command deletes a slice; repeat it while there are ``more``.
    """

    last: int


class CountEvents(Command):
    """Return ``EventCounts``."""


class EventRange(Value, gc=False):
    """Events from ``first`` to ``last`` (inclusive); ``node`` names the store that numbered them."""

    node: str
    first: int
    last: int


class EventPage(Value):
    """Batches of events, in order: (number of the first event, encoded list of ``ReceiptClosed``).

    ``next`` is the first number of the next page; after the last page it is greater than the last of the range.
    """

    batches: list[tuple[int, bytes]]
    next: int


class Forgotten(Value, gc=False):
    """Whether ``more`` events remain to be deleted."""

    more: bool


class EventCounts(Value, gc=False):
    """Events ever ``recorded`` in this store, ``exported`` from it, and ``dropped`` for lack of space."""

    recorded: int
    exported: int
    dropped: int

    @property
    def waiting(self) -> int:
        """The number of events that wait for export."""
        return self.recorded - self.exported


encode_events = msgspec.msgpack.Encoder().encode
"""Encode a list of events, each a ``ReceiptClosed`` or a tuple of its fields with the value of the outcome."""
