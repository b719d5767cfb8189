"""Events: what became of receipts, one value for each that ended, as the event log has them.

An event is written in the transaction that makes the end, or is the first to observe it: an expiry runs nothing by
itself, so it is written by the next receive, a late delete, retention or the janitor, once, with the deadline as its
time. See ``docs/events.md`` for the columns of the exported tables.
"""

import enum

import msgspec


class Outcome(enum.Enum):
    """How a receipt ended.

    ``late_deleted`` follows the ``expired`` of the same receipt, and corrects it: the work took ``held_ms``, longer
    than its timeout. ``nacked`` is a change of the timeout to 0. ``dead_lettered`` follows the ``expired`` or
    ``nacked`` of a message that is moved away instead of being received once more.
    """

    DELETED = "deleted"
    LATE_DELETED = "late_deleted"
    EXPIRED = "expired"
    NACKED = "nacked"
    DEAD_LETTERED = "dead_lettered"


class ReceiptClosed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One receipt that ended; instants in ms since the epoch, durations in ms.

    ``visibility_ms`` is the timeout in force: from the delivery to the last deadline. ``held_ms`` is from the delivery
    to ``closed_at_ms``. ``key`` is the routing key, ``group_hash`` stands for the message group, ``size_bucket`` is the
    power of two that the body's bytes do not reach. ``batch_size`` and ``batch_position`` (from 0) are of the receive.
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
