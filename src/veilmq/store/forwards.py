"""Forwards: messages in flight that go on to other queues, each by a send and a deletion in one transaction.

What could refuse a message is looked at first; then those of each target are stored there, in the order of the command.
"""

from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import errors
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import NewMessage, decode_properties, forwarded_message
from veilmq.core.receipts import Receipt, receipt_state
from veilmq.core.settings import check_destination
from veilmq.core.topics import Forward, Forwarded
from veilmq.store.transaction import Leased, QueueRow, Transaction


class _Going(NamedTuple):
    """A message that is forwarded: the place of its answer, what it was, and what is sent to ``target``."""

    place: int
    message: Leased
    target: QueueRow
    new: NewMessage
    is_dead: bool


async def forward(tx: Transaction, command: Forward) -> list[Any]:
    """Move the message of each live receipt; return a ``Forwarded`` or an error for each; raises ``StoreFull``."""
    intake = await tx.queue(command.queue)
    tx.need_room()
    answers: list[Any] = [None] * len(command.entries)
    going = await _going(tx, intake, command, answers)
    for target in {each.target.number: each.target for each in going}.values():
        here = [each for each in going if each.target.number == target.number]
        for is_dead, run in groupby(here, attrgetter("is_dead")):
            await _arrive(tx, intake, target, list(run), answers, is_dead=is_dead)
    if sent := [each.message for each in going if not each.is_dead]:
        await tx.delete(intake, sent)
    return answers


async def _going(tx: Transaction, intake: QueueRow, command: Forward, answers: list[Any]) -> list[_Going]:
    """Return what is forwarded, in order; put the error of each other entry among ``answers``."""
    receipts: dict[int, Receipt] = {}
    for place, entry in enumerate(command.entries):
        answers[place] = errors.ReceiptInvalid()
        with suppress(errors.ReceiptInvalid):
            receipt = tx.book.read(entry.receipt)
            if receipt.queue == intake.number:
                receipts[place] = receipt
    leased = await tx.leased(intake, sorted({receipt.position for receipt in receipts.values()}))
    found = {each.receipt.position: each for each in leased}
    going: list[_Going] = []
    held: set[str | None] = set()
    targets: dict[str, QueueRow] = {}
    for place, receipt in receipts.items():
        message = found.get(receipt.position)
        if message is None:
            answers[place] = errors.ReceiptEnded(ReceiptState.GONE)
            continue
        if not message.receive_count:  # it is delayed, and no consumer has it: the receipt is invalid
            continue
        group = decode_properties(message.properties).group if intake.settings.fifo else None
        try:
            if group in held:
                raise errors.GroupHeld
            state = receipt_state(
                current=(receipt.generation, receipt.epoch) == (message.receipt.generation, message.receipt.epoch),
                visible_at_ms=message.receipt.visible_at_ms,
                now_ms=message.looked_at_ms,
            )
            if state is not ReceiptState.LIVE:
                raise errors.ReceiptEnded(state)
            entry = command.entries[place]
            if entry.target not in targets:
                targets[entry.target] = await _target(tx, intake, entry.target)
            target = targets[entry.target]
            sent = message.body, message.properties, message.priority
            new = forwarded_message(*sent, target.settings, entry.reasons)
            going.append(_Going(place, message, target, new, entry.reasons is not None))
            del found[receipt.position]
        except errors.VeilmqError as error:
            answers[place] = error
            if group is not None:
                held.add(group)
    return going


async def _target(tx: Transaction, intake: QueueRow, name: str) -> QueueRow:
    """Look the target up, whatever is known of it."""
    target = await tx.find(name) or await tx.target(name, (intake.number, intake.name))
    if target is None:
        raise errors.QueueNotFound(name)
    check_destination(intake.name, intake.settings, name, target.settings, verb="forwarded")
    return target


async def _arrive(
    tx: Transaction, intake: QueueRow, target: QueueRow, here: list[_Going], answers: list[Any], *, is_dead: bool
) -> None:
    """Store messages in their target; those that die there leave the intake by that."""
    messages = [each.message for each in here]
    if is_dead:
        sent = await tx.bury(intake, target, messages, [each.new for each in here])
    else:
        new = [replace(each.new, dedup_id=str(UUID(bytes=each.message.id))) for each in here]
        sent = await tx.store(target, new, [each.id for each in messages])
    for (place, message, *_), stored in zip(here, sent, strict=True):
        answers[place] = Forwarded(id=stored.id, sequence=stored.sequence, duplicate=stored.id != message.id)
