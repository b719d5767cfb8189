"""Forwarding: a received message goes on to another queue, by one command and in one transaction.

A forward is the send of a message to its *target*, together with its deletion in the *intake*, where its receipt is
from: whenever the process ends, the message is in exactly one of the two. See ``docs/forwarding.md``.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from veilmq.core import properties as sent_with
from veilmq.core.commands import Command, NewMessage
from veilmq.core.errors import MessageTooLong
from veilmq.core.settings import QueueSettings


class ForwardEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Forward the message of ``receipt`` to ``target``, a full name.

    With ``reasons``, perhaps none, it goes there as a dead letter of the intake. They are texts by the names of the
    attributes that tell them, which the message gets beside its own.
    """

    receipt: str
    target: str
    reasons: dict[str, str] | None = None


class Forward(Command, frozen=True, kw_only=True):
    """Move messages in flight of ``queue``, the intake, to other queues. Answers a ``Forwarded`` or an error for each.

    A message keeps its id, body, properties, group and priority. To the target it is sent now: the delay and the
    retention there count from this moment, and it was never received. Two FIFO queues, or two standard ones.

    The receipt must be live; ``ReceiptEnded`` tells why it is not, and nothing is sent then. The other errors of an
    entry are ``ReceiptInvalid``, ``QueueNotFound`` (the target), ``DestinationRefused``, ``MessageTooLong``,
    ``StoreFull``, and in a FIFO intake ``GroupHeld``: an entry before it, of the same group, was refused, and the
    group's order holds. (One that is gone does not count: what asks twice after a lost answer finds it so.)

    In a FIFO target a message is told apart by its id, as a dead letter is, and not by its sender's deduplication id:
    what its intake took for two messages stays two. One whose id was taken as a deduplication id there within
    ``limits.DEDUPLICATION_S``, of another message, is deleted in the intake and not stored again.

    A dead letter is in its target what a receive beyond ``receives_max`` would have made of it: it names the intake as
    its source, so that a move task brings it back; its receives go on, and in standard queues its age; it is visible at
    once, and nobody's duplicate.
    """

    queue: str
    entries: tuple[ForwardEntry, ...]


class Forwarded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message is in the target and no longer in the intake; ``sequence`` is ``None`` in standard queues.

    ``id`` is the message's own; of one that was ``duplicate`` it is, with its sequence number, that of the first.
    """

    id: bytes
    sequence: int | None = None
    duplicate: bool = False


def refusal(intake: str, ours: QueueSettings, target: str, theirs: QueueSettings) -> str | None:
    """Return why messages of ``intake`` cannot be forwarded to ``target``, a sentence; ``None`` if they can.

    Both are full names of queues that exist, with their settings.
    """
    if target == intake:
        return f"Messages of {target} cannot be forwarded to itself; name another queue."
    if theirs.fifo != ours.fifo:
        return f"The queue {target} is of another type than {intake}: both are FIFO queues, or neither is."
    return None


def as_dead_letter(
    body: str, properties: bytes, priority: int, target: QueueSettings, reasons: Mapping[str, str]
) -> NewMessage:
    """Return a dead letter for a queue with the settings ``target``.

    It goes there whatever its size, as every dead letter does; raises ``MessageTooLong`` where ``reasons`` make it too
    long.
    """
    carried = sent_with.decode(properties)
    told = {name: sent_with.Attribute(type="String", text=text) for name, text in reasons.items()}
    attributes = carried.attributes | told
    size_bytes = len(body.encode()) + sent_with.attributes_bytes(attributes)
    if told and size_bytes > target.message_bytes_max:
        raise MessageTooLong(target.message_bytes_max)
    return NewMessage(
        body=body,
        size_bytes=size_bytes,
        properties=sent_with.encode(replace(carried, attributes=attributes)),
        priority=priority,
        group=carried.group,
        dedup_id=carried.dedup_id,
        delay_s=0,
    )


def as_sent(body: str, properties: bytes, priority: int, target: QueueSettings) -> NewMessage:
    """Return what is sent to a queue with the settings ``target``; raises ``MessageTooLong``."""
    carried = sent_with.decode(properties)
    size_bytes = len(body.encode()) + sent_with.attributes_bytes(carried.attributes)
    if size_bytes > target.message_bytes_max:
        raise MessageTooLong(target.message_bytes_max)
    return NewMessage(
        body=body,
        size_bytes=size_bytes,
        properties=properties,
        priority=priority,
        group=carried.group,
        dedup_id=carried.dedup_id,
    )
