"""Carries out how a message ended: deletes it, hides it for a while, copies it away first, or lets go of it."""

import logging
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from veilmq.client.messages import ClientError, NewMessage, ReceivedMessage, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.consumer.counts import Counts
from veilmq.consumer.delivery import Delivery
from veilmq.consumer.handlers import Options
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.logged import about, with_traceback
from veilmq.consumer.outcomes import Ending, Kind
from veilmq.consumer.remembered import Remembered
from veilmq.consumer.settler import InThread, Settler
from veilmq.core.properties import Attribute

FIFO_SUFFIX = ".fifo"
_ATTRIBUTES_MAX = 10
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in messages
_REASON_CHARACTERS_MAX = 500
_TRACE_CHARACTERS_MAX = 1_000

_log = logging.getLogger("veilmq.consumer")
_log.addFilter(with_traceback)


class Endings:
    """The endings of one handler's messages."""

    def __init__(
        self,
        client: QueueClient,
        options: Options,
        table: LeaseTable,
        settler: Settler,
        counts: Counts,
        in_thread: InThread,
    ) -> None:
        """``in_thread`` runs calls of ``client``, which block."""
        self._client = client
        self._options = options
        self._table = table
        self._settler = settler
        self._counts = counts
        self._in_thread = in_thread
        self._dead_letter = options.dead_letter
        self._looked = options.dead_letter is not None
        self._moves = True  # until the server says that it cannot
        self.remembered = Remembered()
        self._ends: Mapping[Kind, Callable[[Delivery, Ending], Awaitable[bool]]] = {
            Kind.DONE: partial(self._gone, counted="acked"),
            Kind.DROPPED: partial(self._gone, counted="dropped"),
            Kind.RETRY: self._retry,
            Kind.REJECT: self._reject,
            Kind.RELEASE: self._release,
            Kind.LEFT: self._leave,
        }

    async def end(self, delivery: Delivery, ending: Ending) -> bool:
        """Carry out ``ending``; returns whether the message is gone, so that the next of its group may follow."""
        if ending.kind is Kind.RETRY and ending.error:
            _log.warning(
                "message %s, attempt %d, comes back: %s: %s",
                *(delivery.message.id, delivery.attempt, ending.error, ending.reason),
                extra=about(delivery.lease, trace=ending.trace),
            )
        return await self._ends[ending.kind](delivery, ending)

    async def _gone(self, delivery: Delivery, _: Ending, *, counted: str) -> bool:
        self.remembered.add(delivery.message.id)
        certain = await self._settler.delete(delivery.lease)
        self._counts.events[counted if certain else "delete_failed"] += 1
        return certain

    async def _retry(self, delivery: Delivery, ending: Ending) -> bool:
        if self._options.retry.exhausted(delivery.attempt) and ending.after_s is None:
            return await self._reject(delivery, ending)
        await self._hide(delivery, ending)
        return False

    async def _hide(self, delivery: Delivery, ending: Ending) -> None:
        after_s = ending.after_s
        wanted_s = self._options.retry.after_s(delivery.attempt) if after_s is None else math.ceil(after_s)
        self._counts.events["retried"] += 1
        await self._settler.release([delivery.lease], wanted_s)

    async def _reject(self, delivery: Delivery, ending: Ending) -> bool:
        """Have the server move it; else copy first, delete then: a copy that fails leaves the message where it is."""
        try:
            target = await self._target()
            if target is not None and await self._move(delivery, ending, target):
                self._table.settle(delivery.lease)
                self._counts.events["rejected"] += 1
                return True
            if target is not None:
                await self._copy(delivery, ending, target)
        except (ClientError, Unreachable) as error:
            text = "message %s could not be sent to the dead letters: %s"
            _log.error(text, delivery.message.id, error, extra=about(delivery.lease))
            target = None
        if target is None:
            text = "message %s was rejected and comes back: %s"
            _log.error(text, delivery.message.id, ending.reason, extra=about(delivery.lease))
            await self._hide(delivery, ending)
            return False
        return await self._gone(delivery, ending, counted="rejected")

    async def _move(self, delivery: Delivery, ending: Ending, target: str) -> bool:
        """Have the server move the message; returns whether it did. While it may, no renewal's error means anything."""
        if not self._moves:
            return False
        queue, lease = self._options.queue, delivery.lease
        told = _reasons(delivery.message, ending, source=queue)
        if self._options.dead_letter is None:  # the queue's own, which is where the queue is: its name says it all
            target = target.rpartition("/")[2]
        move = partial(self._client.dead_letter, queue, delivery.message.receipt, target)
        lease.deleting = True
        try:
            self._moves = await self._in_thread(partial(move, told))
        except ClientError as error:
            if error.code == "MessageTooLong":  # with our reasons
                return bool(await self._in_thread(partial(move, {})))
            if error.fields.get("state") == "gone":  # by an earlier try, whose answer was lost
                return True
            raise
        finally:
            lease.deleting = False
        return self._moves

    async def _copy(self, delivery: Delivery, ending: Ending, target: str) -> None:
        copy = _dead_letter(delivery.message, ending, source=self._options.queue, target=target)
        try:
            await self._send(copy, target)
        except ClientError as error:
            if error.status >= 500:
                raise
            plain = replace(copy, attributes=delivery.message.attributes)  # with our reasons it may have been too long
            await self._send(plain, target)

    async def _send(self, copy: NewMessage, target: str) -> None:
        send = partial(
            self._client.send, target, copy.body, attributes=copy.attributes, group=copy.group, dedup_id=copy.dedup_id
        )
        await self._in_thread(send)

    async def _target(self) -> str | None:
        """Return the dead-letter queue: the handler's option, else the queue's own, looked up once."""
        if not self._looked:
            status = await self._in_thread(partial(self._client.show, self._options.queue))
            self._dead_letter = status.settings.dead_letter_queue or None
            self._looked = True
        return self._dead_letter

    async def _release(self, delivery: Delivery, _: Ending) -> bool:
        await self._settler.release([delivery.lease])
        self._counts.events["released"] += 1
        return False

    async def _leave(self, delivery: Delivery, _: Ending) -> bool:
        self._table.settle(delivery.lease)
        self._counts.events["left"] += 1
        return False


def _dead_letter(message: ReceivedMessage, ending: Ending, *, source: str, target: str) -> NewMessage:
    """Return the copy of ``message`` of the queue ``source`` that goes to the queue ``target``, ended by ``ending``."""
    attributes = dict(message.attributes)
    for name, text in _all_reasons(message, ending, source).items():
        if text and (name in attributes or len(attributes) < _ATTRIBUTES_MAX):
            attributes[name] = Attribute(type="String", text=text)
    fifo = target.endswith(FIFO_SUFFIX)
    return NewMessage(
        body=message.body,
        attributes=attributes,
        group=(message.group or message.id) if fifo else message.group,
        dedup_id=message.id if fifo else None,
    )


def _reasons(message: ReceivedMessage, ending: Ending, *, source: str) -> dict[str, str]:
    """Return what is added to a message that the server moves, which keeps all that it has: at least the reason.

    A queue takes ten attributes of a message: ours that matter less are left out where there is no room.
    """
    told = {name: text for name, text in _all_reasons(message, ending, source).items() if text}
    room = max(1, _ATTRIBUTES_MAX - len(message.attributes.keys() - told.keys()))
    return dict(list(told.items())[:room])


def _all_reasons(message: ReceivedMessage, ending: Ending, source: str) -> dict[str, str]:
    """Return name → text, the most important first."""
    return {
        "veilmq-reason": _ILLEGAL.sub("", ending.reason)[:_REASON_CHARACTERS_MAX],
        "veilmq-message-id": message.id,
        "veilmq-error": ending.error,
        "veilmq-attempt": str(message.receive_count),
        "veilmq-queue": source.rpartition("/")[2],
        "veilmq-trace": _ILLEGAL.sub("", ending.trace)[-_TRACE_CHARACTERS_MAX:],
    }
