"""The event log, as far as both dialects share it: the content of an event, which queues are logged, the export.

The planned range of an export is stored before anything acts on it, and kept until the range is deleted: an export
that restarts after a crash gets the same range with the same events, and writes the same files. A range is marked as
exported at once; its rows are deleted in slices afterwards.
"""

from os import urandom
from typing import Any, NamedTuple

from veilmq.core import receipts
from veilmq.core.settings import QueueSettings
from veilmq.store.transaction import Transaction, changes

# How long, and how many, expired receipts are kept for a late delete.
EXPIRED_KEPT_S = 86_400
EXPIRED_KEPT_MAX = 1_000_000

_NODE = "event_node"
_NODE_BYTES = 4
_READ_AT_ONCE = 16  # batches
_DELETED_PER_COMMAND = 500  # batches: a few milliseconds

Event = tuple[Any, ...]  # the fields of a ``ReceiptClosed`` in order; the outcome may be its value


# The data of a receive that its event needs, packed into one number: the column ``log`` of leases, 0 if not logged.
# ``waited_ms (29 bits) | extensions (16) | batch position (8) | batch size (8) | closed (1) | logged (1)``: rare fields
# are the high ones, so most numbers take four bytes on disk.

_LOGGED = 1
# The end of the receipt is recorded, but the lease remains: the message was released, or a late delete was refused.
LOG_CLOSED = 2
_STATE = _LOGGED | LOG_CLOSED
_SIZE_AT, _POSITION_AT, _EXTENSIONS_AT, _WAITED_AT = 2, 10, 18, 34
_BYTE = 0xFF
_EXTENSION = 1 << _EXTENSIONS_AT
_EXTENSIONS_MAX = 0xFFFF
_WAITED_MAX = (1 << 29) - 1


def log_begun(batch_size: int, waited_ms: int) -> int:
    """Return the log of the first lease of a receive."""
    return _LOGGED | min(batch_size, _BYTE) << _SIZE_AT | min(waited_ms, _WAITED_MAX) << _WAITED_AT


def log_placed(first_log: int, batch_position: int) -> int:
    """Return the log of another lease of the receive, from that of the first one."""
    return first_log | min(batch_position, _BYTE) << _POSITION_AT


def log_is_open(log: int) -> bool:
    """Return whether the receipt is logged and its end is not recorded yet."""
    return log & _STATE == _LOGGED


def log_extended(log: int) -> int:
    """Return the log after another change of the deadline."""
    is_maximal = log >> _EXTENSIONS_AT & _EXTENSIONS_MAX == _EXTENSIONS_MAX
    return log if not log or is_maximal else log + _EXTENSION


def read_log(log: int) -> tuple[int, int, int, int]:
    """Return the number of extensions, batch size, position in the batch, and how long the receive waited in ms."""
    size, position = log >> _SIZE_AT & _BYTE, log >> _POSITION_AT & _BYTE
    return log >> _EXTENSIONS_AT & _EXTENSIONS_MAX, size, position, log >> _WAITED_AT


class Logged(NamedTuple):
    """A queue with logged receipts, or a partition of one that was retired at ``ended_at_ms``."""

    queue: str
    retention_ms: int
    ended_at_ms: int | None = None

    def end_ms(self, sent_at_ms: int) -> int:
        """Return when a message ends that is not deleted earlier."""
        return sent_at_ms + self.retention_ms if self.ended_at_ms is None else self.ended_at_ms


def is_logged(settings: QueueSettings, default: str) -> bool:
    """Return whether the receipts of a queue are logged; ``default`` applies without the setting."""
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
    """Return the event of a receipt of a message of ``size`` bytes, with the ``log`` of its lease."""
    extensions, batch_size, batch_position, _ = read_log(log)
    message = queue, key, group_hash, 1 << size.bit_length(), message_id, generation, sent_at_ms
    lease = received_at_ms, closed_at_ms, closed_at_ms - received_at_ms, outcome, visible_at_ms - received_at_ms
    return *message, *lease, extensions, receive_count, batch_size, batch_position


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
    """Read some batches of a range; raises ``ExportedElsewhere`` if another node has exported it meanwhile."""
    batches: list[tuple[int, bytes]] = []
    left, following = command.bytes_max, command.first
    while following <= command.last and left > 0:
        rows = await tx.rows("event_batches", following, command.last, _READ_AT_ONCE)
        if not rows or rows[0][0] != following:
            raise receipts.ExportedElsewhere  # batches are deleted in order
        for number, count, encoded in rows:
            if left > 0:
                batches.append((number, encoded))
                following = number + count
                left -= len(encoded)
    return receipts.EventPage(batches=batches, next=following)


@changes
async def forget_events(tx: Transaction, command: receipts.ForgetEvents) -> receipts.Forgotten:
    await tx.run("export_events", command.last)
    deleted = await tx.rows("delete_events", _DELETED_PER_COMMAND)
    return receipts.Forgotten(more=len(deleted) == _DELETED_PER_COMMAND)


@changes
async def count_events(tx: Transaction, command: receipts.CountEvents) -> receipts.EventCounts:
    ((recorded, _, exported, dropped),) = await tx.rows("event_state")
    return receipts.EventCounts(recorded=recorded, exported=exported, dropped=dropped)
