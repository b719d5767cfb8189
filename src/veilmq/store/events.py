"""The event log, as far as both dialects have it in common: what an event says, which queues are logged, the export.

What was planned is a number in the store, written before anybody acts on it, and stays until the range is forgotten: an
export begun again after a crash gets the same range with the same events, and puts the same files in the same places.
That a range is exported is written at once, its rows are removed in slices afterwards.
"""

from functools import lru_cache
from os import urandom
from typing import Any, NamedTuple

from veilmq.core.events import (
    CountEvents,
    EventCounts,
    EventPage,
    EventRange,
    ExportedElsewhere,
    ForgetEvents,
    Forgotten,
    Outcome,
    PlanExport,
    ReadEvents,
)
from veilmq.core.routing import key_of
from veilmq.core.settings import QueueSettings
from veilmq.engines import held
from veilmq.store.transaction import QueueRow, Transaction

EXPIRED_KEPT_S = 86_400
EXPIRED_KEPT_MAX = 1_000_000
"""How long, and how many, receipts that expired are kept for a delete that comes late."""

_KEYS_MAX = 4_096
_REMEMBERED_BYTES_MAX = 1_000  # of the properties of a message: larger ones are looked into each time

_NODE = "event_node"
_NODE_BYTES = 4
_READ_AT_ONCE = 16  # batches
_FORGOTTEN_PER_COMMAND = 500  # batches: a few milliseconds

Event = tuple[Any, ...]
"""The fields of a ``ReceiptClosed`` in their order, the outcome also as its value."""


# What is logged.


class Logged(NamedTuple):
    """What has logged receipts: a queue, or a partition of one that was retired at ``ended_at_ms``."""

    queue: str
    retention_ms: int
    ended_at_ms: int | None = None

    def end_ms(self, sent_at_ms: int) -> int:
        """Return when a message ends that nothing deletes before."""
        return sent_at_ms + self.retention_ms if self.ended_at_ms is None else self.ended_at_ms


def is_logged(settings: QueueSettings, default: str) -> bool:
    """Tell whether the receipts of a queue are logged; ``default`` is for queues that do not say it."""
    return (default if settings.event_log is None else settings.event_log) != "off"


def event_of(
    *,
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
    outcome: Outcome | str,
    closed_at_ms: int,
) -> Event:
    """Return the event of a receipt of a message of ``size`` bytes; ``log`` is for ``engines.held``."""
    extensions, batch_size, batch_position, _ = held.read(log)
    return (
        queue,
        key,
        group_hash,
        1 << size.bit_length(),
        message_id,
        generation,
        sent_at_ms,
        received_at_ms,
        closed_at_ms,
        closed_at_ms - received_at_ms,
        outcome,
        visible_at_ms - received_at_ms,
        extensions,
        receive_count,
        batch_size,
        batch_position,
    )


def routing_key(properties: bytes, attribute: str) -> str:
    """Return the routing key of a message with these properties: the text of its ``attribute``."""
    if not properties:
        return ""
    if len(properties) > _REMEMBERED_BYTES_MAX:
        return key_of(properties, attribute)
    return _remembered_key(properties, attribute)


@lru_cache(maxsize=_KEYS_MAX)
def _remembered_key(properties: bytes, attribute: str) -> str:
    return key_of(properties, attribute)


async def note_retired(tx: Transaction, queue: QueueRow) -> None:
    """Have the janitor know of what queue the partition is that was just retired, if the queue is logged."""
    if is_logged(queue.settings, tx.options.event_log):
        await tx.run("log_retired", queue.partition, queue.origin, queue.name)


# The export.


async def plan_export(tx: Transaction, command: PlanExport) -> EventRange | None:
    """Choose the next range, or return the one that was chosen before."""
    await tx.lock("event_state")
    _, last, exported, _ = await _state(tx)
    first = exported + 1
    if last < first:
        last = await tx.value("events_planned_to", first + max(1, command.events_max)) or 0
        if last < first:
            return None
        await tx.run("plan_events", last)
    return EventRange(node=await _node(tx), first=first, last=last)


async def _state(tx: Transaction) -> tuple[int, int, int, int]:
    """Return how many events were recorded, planned, exported and dropped."""
    state = await tx.row("event_state")
    assert state is not None, "there is one row"
    recorded, planned, exported, dropped = state
    return recorded, planned, exported, dropped


async def _node(tx: Transaction) -> str:
    node: bytes | None = await tx.value("setting", _NODE)
    if node is None:
        node = urandom(_NODE_BYTES)
        await tx.run("put_setting", _NODE, node)
    return node.hex()


async def read_events(tx: Transaction, command: ReadEvents) -> EventPage:
    """Read some batches of a range; raises ``ExportedElsewhere`` when another node has exported it meanwhile."""
    batches: list[tuple[int, bytes]] = []
    left, following = command.bytes_max, command.first
    while following <= command.last and left > 0:
        rows = await tx.rows("event_batches", following, command.last, _READ_AT_ONCE)
        if not rows or rows[0][0] != following:
            raise ExportedElsewhere  # the first ones are forgotten first
        for number, events, encoded in rows:
            batches.append((number, encoded))
            following = number + events
            left -= len(encoded)
            if left <= 0:
                break
    return EventPage(batches=batches, next=following)


async def forget_events(tx: Transaction, command: ForgetEvents) -> Forgotten:
    """Note that a range is exported, and remove a slice of what is."""
    await tx.run("export_events", command.last)
    gone = await tx.rows("forget_events", _FORGOTTEN_PER_COMMAND)
    return Forgotten(more=len(gone) == _FORGOTTEN_PER_COMMAND)


async def count_events(tx: Transaction, command: CountEvents) -> EventCounts:
    """Return how many events there are."""
    recorded, _, exported, dropped = await _state(tx)
    return EventCounts(recorded=recorded, exported=exported, dropped=dropped)
