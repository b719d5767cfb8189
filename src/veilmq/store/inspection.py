"""Inspection of a queue without changes: its messages, its leases, and a peek at what a receive would give.

The store finds messages without their bodies (``Transaction.inspect``). This module selects and formats those to show;
only their bodies are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice

from veilmq.core import commands
from veilmq.core.commands import MessageState, SeenMessage
from veilmq.core.errors import StoreFull, StoreUnavailable
from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE, INSPECT_SCANNED_MAX
from veilmq.core.messages import decode_properties
from veilmq.core.settings import dead_letter_refusal
from veilmq.store.events import read_log
from veilmq.store.transaction import SEQ_SHIFT, QueueRow, StoredMessage, Transaction, snapshot


@snapshot
async def inspect_queue(tx: Transaction, command: commands.InspectQueue) -> list[SeenMessage]:
    queue = await tx.queue(command.queue)
    found = await tx.inspect(queue, command.state, command.count, INSPECT_SCANNED_MAX)
    if command.state is not None:
        found = sorted(found, key=_visibility)
    if command.id is not None:
        found = [each for each in found if each.id == command.id]
    shown = await _with_bodies(tx, queue, found, command.bytes_max)
    return [_view(tx, queue, each, body, with_receipt=command.receipts) for each, body in shown]


@snapshot
async def inspect_leases(tx: Transaction, command: commands.InspectLeases) -> list[commands.SeenLease]:
    queue = await tx.queue(command.queue)
    found = await tx.inspect(queue, MessageState.IN_FLIGHT, command.count, INSPECT_SCANNED_MAX)
    leases = sorted([each for each in found if not each.is_claimed], key=_visibility)
    if others := sorted({*command.also} - {each.seq for each in leases}):
        leases += await tx.inspect_at(queue, others)
    return [
        commands.SeenLease(
            message_id=each.id,
            position=each.seq,
            generation=each.generation,
            received_at_ms=_received_at_ms(each),
            visible_at_ms=each.read_at_ms if each.is_claimed else each.visible_at_ms,
            receive_count=each.receive_count,
            extensions=read_log(each.log)[0] if each.log else None,
            group=decode_properties(each.properties).group,
        )
        for each in leases
    ]


@snapshot
async def peek(tx: Transaction, command: commands.Peek) -> commands.Peeked:
    """Return the first visible messages; the in-flight quota does not apply."""
    queue = await tx.queue(command.queue)
    receives_max = await _receives_max(tx, queue)
    count = command.count + DEAD_LETTERS_PER_RECEIVE if receives_max else command.count
    deliverable = _deliverable(await tx.receivable(queue, count), receives_max)
    messages = [
        commands.PeekedMessage(
            id=each.id,
            body=body,
            properties=each.properties,
            sent_at_ms=each.sent_at_ms,
            first_received_at_ms=each.first_received_at_ms,
            receive_count=each.receive_count + each.receives_before,
            priority=each.priority,
            source=each.source,
        )
        for each, body in await _with_bodies(tx, queue, list(islice(deliverable, command.count)), command.bytes_max)
    ]
    return commands.Peeked(messages=messages, smq_base64=queue.settings.smq_base64)


def _visibility(each: StoredMessage) -> tuple[bool, int, int]:
    return each.is_claimed, each.visible_at_ms, each.seq


async def _with_bodies(
    tx: Transaction, queue: QueueRow, found: Sequence[StoredMessage], bytes_max: int | None
) -> list[tuple[StoredMessage, str]]:
    """Return messages with their bodies, up to and including the one that reaches ``bytes_max``."""
    if bytes_max is not None:
        before = accumulate((each.body_bytes for each in found), initial=0)
        found = [each for each, size_bytes in zip(found, before, strict=False) if size_bytes < bytes_max]
    bodies = await tx.bodies(queue, [each.seq for each in found]) if found else {}
    return [(each, bodies[each.seq]) for each in found if each.seq in bodies]


async def _receives_max(tx: Transaction, queue: QueueRow) -> int:
    """Return the receive count at which a receive moves a message to the dead-letter queue, or 0 if none does."""
    settings, target = queue.settings, queue.settings.dead_letter_queue
    if settings.receives_max:
        with suppress(StoreFull, StoreUnavailable):  # then messages stay in the queue
            tx.require_space()
            if dead_letter_refusal(queue.name, settings, target, await tx.settings(target)) is None:
                return settings.receives_max
    return 0


def _deliverable(found: Iterable[StoredMessage], receives_max: int) -> Iterator[StoredMessage]:
    """Yield what a receive would give, until it has moved the maximum of dead letters."""
    dead = 0
    for each in found:
        if not receives_max or each.receive_count < receives_max:
            yield each
        elif (dead := dead + 1) >= DEAD_LETTERS_PER_RECEIVE:
            return


def _view(tx: Transaction, queue: QueueRow, each: StoredMessage, body: str, *, with_receipt: bool) -> SeenMessage:
    state = each.state
    is_received = each.receive_count > 0 and not each.is_claimed
    receipt = None
    if with_receipt and is_received and state is MessageState.IN_FLIGHT:
        receipt = tx.codec.issue(*each.receipt(queue))
    # A message is or was hidden if it was received or delayed; a dead letter arrives visible.
    arrived_at_ms = max(each.sent_at_ms, each.seq >> SEQ_SHIFT) if each.source is None else each.read_at_ms
    was_hidden = is_received or (not each.is_claimed and each.visible_at_ms > arrived_at_ms)
    return SeenMessage(
        id=each.id,
        body=body,
        properties=each.properties,
        sent_at_ms=each.sent_at_ms,
        receive_count=each.receive_count + each.receives_before,
        state=state,
        visible_at_ms=each.visible_at_ms if was_hidden else None,
        received_at_ms=_received_at_ms(each) if is_received else None,
        first_received_at_ms=None if each.is_claimed else each.first_received_at_ms,
        group=decode_properties(each.properties).group,
        priority=each.priority,
        receipt=receipt,
    )


def _received_at_ms(each: StoredMessage) -> int:
    """Return when the message was delivered. The wait before is known for a first receive, and with an event log."""
    *_, waited_ms = read_log(each.log)
    return max(each.received_at_ms + waited_ms, each.first_received_at_ms or 0)
