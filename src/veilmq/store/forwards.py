"""Forwards: messages in flight that go on to other queues, each by a send and a deletion in one transaction.

All messages are checked first; then those of each target are stored there, in the order of the command.
"""

from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import errors, properties, visibility
from veilmq.core.commands import NewMessage
from veilmq.core.forwards import Forward, Forwarded, as_dead_letter, as_sent, refusal
from veilmq.core.receipts import Receipt
from veilmq.core.results import ReceiptState
from veilmq.store.transaction import Leased, QueueRow, Transaction, changes


class _Going(NamedTuple):
    """A message that is forwarded: the place of its answer, what it was, and what is sent to ``target``."""

    place: int
    message: Leased
    target: QueueRow
    new: NewMessage
    is_dead: bool


@changes
async def forward(tx: Transaction, command: Forward) -> list[Any]:
    """Move the message of each live receipt; return a ``Forwarded`` or an error for each; raises ``StoreFull``."""
    intake = await tx.queue(command.queue)
    tx.need_room()
    answers: list[Any] = [None] * len(command.entries)
    going = await _going(tx, intake, command, answers)
    for target in {each.target.number: each.target for each in going}.values():
        here = [each for each in going if each.target.number == target.number]
        for is_dead, run in groupby(here, attrgetter("is_dead")):
            places, messages, _, new, _ = zip(*run, strict=True)
            if is_dead:  # it leaves the intake by that
                sent = await tx.bury(intake, target, messages, new)
            else:
                sent = await tx.store(target, new, [each.id for each in messages])
            for place, message, stored in zip(places, messages, sent, strict=True):
                is_duplicate = stored.id != message.id
                answers[place] = Forwarded(id=stored.id, sequence=stored.sequence, duplicate=is_duplicate)
    if moved := [each.message for each in going if not each.is_dead]:
        await tx.delete(intake, moved)
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
        group = properties.decode(message.properties).group if intake.settings.fifo else None
        try:
            if group in held:
                raise errors.GroupHeld
            state = visibility.receipt_state(
                current=(receipt.generation, receipt.epoch) == (message.receipt.generation, message.receipt.epoch),
                visible_at_ms=message.receipt.visible_at_ms,
                now_ms=message.read_at_ms,
            )
            if state is not ReceiptState.LIVE:
                raise errors.ReceiptEnded(state)
            entry = command.entries[place]
            if entry.target not in targets:
                targets[entry.target] = await _target(tx, intake, entry.target)
            target = targets[entry.target]
            terms = message.body, message.properties, message.priority, target.settings
            if entry.reasons is None:
                new = replace(as_sent(*terms), dedup_id=str(UUID(bytes=message.id)))
            else:
                new = as_dead_letter(*terms, entry.reasons)
            going.append(_Going(place, message, target, new, entry.reasons is not None))
            del found[receipt.position]
        except errors.VeilmqError as error:
            answers[place] = error
            if group is not None:
                held.add(group)
    return going


async def _target(tx: Transaction, intake: QueueRow, name: str) -> QueueRow:
    """Look up the target, which the node may know as it was before; raises the reason why it cannot take messages."""
    target = await tx.find(name) or await tx.target(name, (intake.number, intake.name))
    if target is None:
        raise errors.QueueNotFound(name)
    why = refusal(intake.name, intake.settings, name, target.settings)
    if why is not None:
        raise errors.DestinationRefused(name, why)
    return target
