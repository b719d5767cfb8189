"""What the store keeps of a message: an immutable row, and a narrow lease that changes."""

from typing import NamedTuple

import msgspec


class MessageRow(NamedTuple):
    """What was sent, in the order of the table's columns; never changed.

    ``sent_at_ms`` is when the message came to this queue. ``group_key`` stands for the message group
    (``groups.key_of``). The last four are of a dead letter: the queue that it came from, when it was first sent where
    its retention counts from there (``None`` in FIFO queues), and how often and when first it was received before.
    """

    position: int
    id: bytes
    sent_at_ms: int
    body: str
    properties: bytes
    group_key: int | None = None
    source: str | None = None
    first_sent_at_ms: int | None = None
    receives_before: int | None = None
    first_received_at_ms: int | None = None


class Lease(msgspec.Struct, gc=False, eq=False):
    """Until when a message is hidden, and which receive hid it: one mutable record a message.

    The fields are the columns of the table ``lease`` in their order. A delayed message that was never received has
    ``receive_count``, ``generation`` and ``epoch`` 0. ``received_at_ms`` is when the latest receive was asked for, from
    where the longest lease is counted; after a wait that is earlier than its delivery, even than the first one's.
    ``log`` is what the event log has to know of that receive (``held``), 0 in a queue without one.
    (A ``msgspec.Struct``: made four times as fast as an object with an ``__init__`` of its own.)
    """

    position: int
    lane: int
    visible_at_ms: int
    receive_count: int = 0
    generation: int = 0
    epoch: int = 0
    received_at_ms: int = 0
    first_received_at_ms: int = 0
    group_key: int | None = None
    log: int = 0


class LaneRow(NamedTuple):
    """A lane as it is stored: where its positions go on, and its counters at the instant ``counted_at_ms``.

    ``sequence_base`` is the sequence number of its first message, where the lane is of a FIFO queue; ``dense`` is as
    for ``Series``.
    """

    number: int
    queue: int | None
    priority: int
    direct_floor: int
    direct_next: int
    delayed_floor: int
    delayed_next: int
    messages: int
    in_flight: int
    delayed: int
    counted_at_ms: int
    kind: int = 0
    sequence_base: int = 0
    dense: int = 1


class QueueRow(NamedTuple):
    """A queue as it is stored; ``settings`` is JSON."""

    number: int
    name: str
    settings: bytes
    created_at_ms: int
    modified_at_ms: int


class MoveRow(NamedTuple):
    """A move task as it is stored; ``queue`` is the number of its source's incarnation, ``next_at_ms`` its next slice.

    ``number`` rises with each task. The others are as ``core.results.MoveTask`` has them.
    """

    number: int
    id: bytes
    queue: int
    source: str
    destination: str | None
    moves_per_s_max: int | None
    status: str
    moved: int
    to_move: int
    started_at_ms: int
    next_at_ms: int
    failure: str | None = None
    starter: str | None = None
