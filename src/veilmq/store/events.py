"""The event log, as far as both dialects have it in common: what an event says, which queues are logged, the export.

What was planned is a number in the store, written before anything acts on it, and stays until the range is forgotten:
an export begun again after a crash gets the same range with the same events, and puts the same files in the same
places. That a range is exported is written at once, its rows are removed in slices afterwards.
"""

from functools import lru_cache
from os import urandom
from typing import Any, NamedTuple

from veilmq.core import receipts
from veilmq.core.messages import routing_key_of
from veilmq.core.settings import QueueSettings
from veilmq.store.transaction import Transaction, changes

EXPIRED_KEPT_S = 86_400
EXPIRED_KEPT_MAX = 1_000_000
"""How long, and how many, receipts that expired are kept for a delete that comes late."""

_CACHED_BYTES_MAX = 1_000  # of the properties of a message: larger ones are decoded each time

_NODE = "event_node"
_NODE_BYTES = 4
_READ_AT_ONCE = 16  # batches
_FORGOTTEN_PER_COMMAND = 500  # batches: a few milliseconds

Event = tuple[Any, ...]
"""The fields of a ``ReceiptClosed`` in their order, the outcome also as its value."""


# What the end of a receipt has to know of its receive, packed into one number: the column ``log`` of leases, 0 where
# nothing is logged. ``waited_ms (29 bits) | extensions (16) | batch position (8) | batch size (8) | closed (1) | logged
# (1)``: what is rare stands high, so that most numbers take four bytes on the disk.

_LOGGED = 1
LOG_CLOSED = 2
"""The end of the receipt is recorded: the lease lives on where the message was released, or a late delete refused."""
_STATE = _LOGGED | LOG_CLOSED
_SIZE_AT, _POSITION_AT, _EXTENSIONS_AT, _WAITED_AT = 2, 10, 18, 34
_BYTE = 0xFF
_EXTENSION = 1 << _EXTENSIONS_AT
_EXTENSIONS_MAX = 0xFFFF
_WAITED_MAX = (1 << 29) - 1


def log_begun(batch_size: int, waited_ms: int) -> int:
    """Return the log of the first of the leases that a receive has just begun."""
    return _LOGGED | min(batch_size, _BYTE) << _SIZE_AT | min(waited_ms, _WAITED_MAX) << _WAITED_AT


def log_placed(begun: int, batch_position: int) -> int:
    """Return the log of another one of them, by the first one's."""
    return begun | min(batch_position, _BYTE) << _POSITION_AT


def log_is_open(log: int) -> bool:
    """Return whether the receipt is logged and its end is not recorded yet."""
    return log & _STATE == _LOGGED


def log_extended(log: int) -> int:
    """Return the log after one more move of the deadline."""
    is_most = log >> _EXTENSIONS_AT & _EXTENSIONS_MAX == _EXTENSIONS_MAX
    return log if not log or is_most else log + _EXTENSION


def read_log(log: int) -> tuple[int, int, int, int]:
    """Return how often the deadline was moved, size of the batch, place in it, and how long the receive waited."""
    size, position = log >> _SIZE_AT & _BYTE, log >> _POSITION_AT & _BYTE
    if log < _EXTENSION:  # nothing stands above
        return 0, size, position, 0
    return log >> _EXTENSIONS_AT & _EXTENSIONS_MAX, size, position, log >> _WAITED_AT


class Logged(NamedTuple):
    """What has logged receipts: a queue, or a partition of one that was retired at ``ended_at_ms``."""

    queue: str
    retention_ms: int
    ended_at_ms: int | None = None

    def end_ms(self, sent_at_ms: int) -> int:
        """Return when a message ends that nothing deletes before."""
        return sent_at_ms + self.retention_ms if self.ended_at_ms is None else self.ended_at_ms


def is_logged(settings: QueueSettings, default: str) -> bool:
    """Return whether the receipts of a queue are logged; ``default`` is for queues without the setting."""
    return (default if settings.event_log is None else settings.event_log) != "off"


def event_of(
    queue: str,
    key: str,
    group_hash: int | None,
    size: int,
    message_id: bytes,
    generation: int,
    sent_at_ms: int,
    received_at_ms: int,
    visible_at_ms: int,
    receive_count: int,
    log: int,
    outcome: receipts.Outcome | str,
    closed_at_ms: int,
) -> Event:
    """Return the event of a receipt of a message of ``size`` bytes; ``log`` is that of its lease."""
    extensions, batch_size, batch_position, _ = read_log(log)
    message = queue, key, group_hash, 1 << size.bit_length(), message_id, generation, sent_at_ms
    lease = received_at_ms, closed_at_ms, closed_at_ms - received_at_ms, outcome, visible_at_ms - received_at_ms
    return *message, *lease, extensions, receive_count, batch_size, batch_position


def routing_key(properties: bytes | None, attribute: str) -> str:
    """Return the routing key of a message with these properties: the text of its ``attribute``."""
    if not properties:
        return ""
    return (routing_key_of if len(properties) > _CACHED_BYTES_MAX else _cached_key)(properties, attribute)


_cached_key = lru_cache(maxsize=4_096)(routing_key_of)


@changes
async def plan_export(tx: Transaction, command: receipts.PlanExport) -> receipts.EventRange | None:
    ((_, last, exported, _),) = await tx.rows("event_state", lock="update")
    first = exported + 1
    if last < first:
        last = await tx.value("events_planned_to", first + max(1, command.events_max)) or 0
        if last < first:
            return None
        await tx.run("plan_events", last)
    node = await tx.value("setting", _NODE)
    if node is None:
        node = urandom(_NODE_BYTES)
        await tx.run("put_setting", _NODE, node)
    return receipts.EventRange(node=node.hex(), first=first, last=last)


@changes
async def read_events(tx: Transaction, command: receipts.ReadEvents) -> receipts.EventPage:
    """Read some batches of a range; raises ``ExportedElsewhere`` when another node has exported it meanwhile."""
    batches: list[tuple[int, bytes]] = []
    left, following = command.bytes_max, command.first
    while following <= command.last and left > 0:
        rows = await tx.rows("event_batches", following, command.last, _READ_AT_ONCE)
        if not rows or rows[0][0] != following:
            raise receipts.ExportedElsewhere  # the first ones are forgotten first
        for number, count, encoded in rows:
            if left > 0:
                batches.append((number, encoded))
                following = number + count
                left -= len(encoded)
    return receipts.EventPage(batches=batches, next=following)


@changes
async def forget_events(tx: Transaction, command: receipts.ForgetEvents) -> receipts.Forgotten:
    await tx.run("export_events", command.last)
    gone = await tx.rows("forget_events", _FORGOTTEN_PER_COMMAND)
    return receipts.Forgotten(more=len(gone) == _FORGOTTEN_PER_COMMAND)


@changes
async def count_events(tx: Transaction, command: receipts.CountEvents) -> receipts.EventCounts:
    ((recorded, _, exported, dropped),) = await tx.rows("event_state")
    return receipts.EventCounts(recorded=recorded, exported=exported, dropped=dropped)
