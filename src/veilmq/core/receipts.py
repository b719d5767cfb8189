"""Receipts: their form, whether they act, how long a lease may be, and the events of how receipts ended.

A receipt is ``version | queue | position | generation | epoch | visible-at | MAC``, packed and written in hex digits:
SMQ clients place receipts raw in a query string, and AWS's extended clients, which put the place of a body before a
receipt, split the two at ``-``. The older form, in the alphabet ``[A-Za-z0-9_-]``, is still read. The MAC (keyed
BLAKE2s, 10 bytes) is made with a key that the store keeps, so receipts survive a crash; an older key verifies while it
is kept.

``queue`` is the number of the queue's incarnation, never given twice: a receipt is useless on a re-created queue.
``generation`` (random, fresh at each receive) and ``epoch`` (+1 at each receive and each SMQ change) fence it.
"""

import enum
import re
from binascii import a2b_base64, a2b_hex
from collections.abc import Sequence
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
_BASE64_LENGTH = _SIGNED.size // 3 * 4  # of the receipts before, which needed no padding
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


_receipt = tuple.__new__  # of a NamedTuple, without the Python frame that its constructor costs


def is_well_formed(text: str) -> bool:
    """Tell whether ``text`` has the length and the alphabet of a receipt, genuine or not."""
    return len(text) in (_HEX_LENGTH, _BASE64_LENGTH) and _FORM.fullmatch(text) is not None


class ReceiptCodec:
    """Issues and reads receipts. The first of ``keys`` (``KEY_BYTES`` long) signs, all verify; rotation keeps two."""

    __slots__ = ("_macs",)

    def __init__(self, *, keys: Sequence[bytes]) -> None:
        # Copying a keyed hash takes half the time of keying one.
        self._macs = tuple(blake2s(key=key, digest_size=_MAC_BYTES) for key in keys)

    def issue(self, queue: int, position: int, generation: int, epoch: int, visible_at_ms: int) -> str:
        """Return the receipt's text."""
        fields = _FIELDS.pack(_VERSION, queue, position, generation, epoch, visible_at_ms)
        mac = self._macs[0].copy()
        mac.update(fields)
        return (fields + mac.digest()).hex()

    def read(self, text: str) -> Receipt:
        """Return the fields of ``text``; raises ``ReceiptInvalid`` unless it was issued with one of our keys."""
        try:
            if len(text) == _HEX_LENGTH:
                token = a2b_hex(text)
                if token.hex() != text:  # a receipt has one spelling
                    raise ReceiptInvalid
            elif len(text) == _BASE64_LENGTH:
                token = a2b_base64(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
            else:
                raise ReceiptInvalid
        except ValueError:
            raise ReceiptInvalid from None
        version, queue, position, generation, epoch, visible_at_ms, said_mac = _SIGNED.unpack(token)
        for keyed in self._macs:
            mac = keyed.copy()
            mac.update(token[:_FIELDS_BYTES])
            if version == _VERSION and compare_digest(mac.digest(), said_mac):
                return _receipt(Receipt, (queue, position, generation, epoch, visible_at_ms))
        raise ReceiptInvalid


# Visibility: when a lease ends and which receipts act. A state is never stored: it is the comparison of
# ``visible_at_ms`` with ``now_ms``. A message is visible *from* its ``visible_at_ms`` on, and its lease lives strictly
# before it (SQS Developer Guide, "Visibility timeout"; SMQ reference section 5, "Boundary").


def changed_deadline_ms(
    now_ms: int, timeout_s: int, requested_at_ms: int, lease_s_max: int | None = LEASE_S_MAX
) -> int:
    """Return the deadline after a change of visibility, counted from now.

    A change is refused with ``LeaseTooLong``, not clipped, if the message would stay in flight for more than
    ``lease_s_max`` (12 hours) since its receive was requested (SQS Developer Guide, "Visibility timeout"); a release
    always passes. ``None`` (SMQ) is no maximum.
    """
    visible_at_ms = now_ms + timeout_s * SECOND_MS
    if timeout_s and lease_s_max is not None and visible_at_ms > requested_at_ms + lease_s_max * SECOND_MS:
        raise LeaseTooLong(lease_s_max)
    return visible_at_ms


def receipt_state(*, current: bool, visible_at_ms: int, now_ms: int) -> ReceiptState:
    """Return the state of a stored message's receipt; ``current`` if no later receive or SMQ change superseded it."""
    if not current:
        return ReceiptState.SUPERSEDED
    return ReceiptState.LIVE if now_ms < visible_at_ms else ReceiptState.EXPIRED


def receipt_acts(state: ReceiptState, *, only_live: bool) -> bool:
    """Tell whether a receipt in ``state`` changes anything; ``only_live`` is the rule of FIFO queues and of SMQ."""
    return state is ReceiptState.LIVE or (not only_live and state in (ReceiptState.EXPIRED, ReceiptState.EARLIER))


# Events: one for each receipt that ended. An event is written in the transaction that ends the receipt, or is the first
# to observe it: an expiry runs nothing, so the next receive, a late delete, retention or the janitor writes it, once,
# with the deadline as its time. ``docs/events.md`` has the columns of the exported tables.
#
# Events are numbered from 1 in the order of writing, without a gap. An exporter plans a range of numbers, reads it,
# stores it elsewhere and forgets it here. A planned range does not change until then, so that an export repeated after
# a crash writes the same.


class Outcome(enum.Enum):
    """How a receipt ended: exactly one of the first four; one of the others may follow.

    - ``deleted_by_earlier``: the receipt of an earlier receive deleted the message, as ``any_receive`` allows. For that
      earlier receipt, which had ``expired``, it is the late delete.
    - ``nacked``: a change of the timeout to 0.
    - ``late_deleted`` corrects the ``expired`` of the same receipt: the work took ``held_ms``, longer than its timeout.
    - ``dead_lettered`` follows ``expired`` or ``nacked``: the message was moved away instead of being received again.
    """

    DELETED = "deleted"
    DELETED_BY_EARLIER = "deleted_by_earlier"
    EXPIRED = "expired"
    NACKED = "nacked"
    LATE_DELETED = "late_deleted"
    DEAD_LETTERED = "dead_lettered"


class ReceiptClosed(Value, array_like=True, gc=False):
    """One receipt that ended; instants in ms since the epoch, durations in ms. Encoded as an array of its fields.

    ``visibility_ms`` is the timeout in force: from the delivery to the last deadline, or to the end of the message by
    retention or a purge before it. ``held_ms`` is from the delivery to ``closed_at_ms``. ``key`` is the routing key,
    ``group_hash`` stands for the message group; the body has fewer bytes than ``size_bucket``, a power of two.
    ``receipt`` identifies a receipt of the message, ``receive_count`` is its receive in this queue, from 1.
    ``batch_size`` and ``batch_position`` (from 0) are of the receive.
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
    """Choose the range of events to export next. Result: ``EventRange``, ``None`` when no event waits.

    A planned range that is not forgotten yet is returned again, whatever ``events_max`` says; a new one begins with the
    first waiting event and has about ``events_max``. Where several nodes share a store, one exports at a time; error
    ``ExportedElsewhere`` when another one does not finish.
    """

    events_max: int


class ExportedElsewhere(StoreUnavailable):
    """Another node has been exporting for a while."""

    text = "Another node is still exporting events; try again."


class ReadEvents(Command):
    """Return the events from ``first`` to ``last``, about ``bytes_max`` at most: an ``EventPage``."""

    first: int
    last: int
    bytes_max: int


class ForgetEvents(Command):
    """Delete the events up to ``last``, the end of a planned range: they are exported. Result: ``Forgotten``.

    Each call deletes a slice: call again while there are ``more``.
    """

    last: int


class CountEvents(Command):
    """Return ``EventCounts``."""


class EventRange(Value, gc=False):
    """Events from the number ``first`` up to and including ``last``; ``node`` names the store that numbered them."""

    node: str
    first: int
    last: int


class EventPage(Value):
    """Batches of events, in order: the number of the first event, and an encoded list of ``ReceiptClosed``.

    ``next`` is the first number of the next page, behind the range's last after the last page.
    """

    batches: list[tuple[int, bytes]]
    next: int


class Forgotten(Value, gc=False):
    """Whether ``more`` rows remain."""

    more: bool


class EventCounts(Value, gc=False):
    """Events ever ``recorded`` in this store, ``exported`` from it, and ``dropped`` for lack of space."""

    recorded: int
    exported: int
    dropped: int

    @property
    def waiting(self) -> int:
        """How many wait to be exported."""
        return self.recorded - self.exported


encode_events = msgspec.msgpack.Encoder().encode
"""Encodes a list of events, each as a ``ReceiptClosed`` or as a tuple of its fields (an outcome as its value)."""

decode_events = msgspec.msgpack.Decoder(list[ReceiptClosed]).decode
"""Return the events of one batch."""
