"""The pusher: takes messages from the queues of subscriptions that are pushed, and delivers them.

Lines (one a subscription) that have a message stand in a row; whoever is first is asked for as many messages as its
receiver, and all together, have places for, and goes to the end. So nothing polls, and no line waits for another's
receiver.

A message that is taken is hidden for longer than an attempt may last, so a server that is killed tries it again after
that. How often it was tried is how often it was received; an attempt that was cut short counts.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import random

from veilmq.core import commands
from veilmq.core.commands import VisibilityChange
from veilmq.core.errors import QueueNotFound, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Engine
from veilmq.core.push_urls import read_push_url
from veilmq.core.results import Received, ReceivedMessage
from veilmq.core.retries import retry_delay_s
from veilmq.core.topics import PUSHES, ListPushes, Subscription
from veilmq.server.pushing.attempts import Attempts
from veilmq.server.pushing.line import Line
from veilmq.server.pushing.receivers import Receiver
from veilmq.server.seldom import Seldom
from veilmq.server.topic_counts import PushOutcome, TopicCounts
from veilmq.store.port import execute

log = logging.getLogger(__name__)

LEASE_S = 15
"""How long a message that is being pushed is hidden; an attempt may last ``attempts.ANSWER_S_MAX``."""

_TAKEN_AT_ONCE = 16
_AFTER_ERROR_MS = SECOND_MS


class Pusher:
    """All pushes of one server."""

    def __init__(
        self,
        *,
        engine: Engine,
        clock: Clock,
        attempts: Attempts,
        counts: TopicCounts,
        parallel_max: int,
        chance: Callable[[], float] = random,
    ) -> None:
        """Push at most ``parallel_max`` messages at once; ``chance`` spreads retries."""
        self._engine = engine
        self._clock = clock
        self._attempts = attempts
        self._counts = counts
        self._places = parallel_max
        self._chance = chance
        self._seldom = Seldom(clock)
        self._lines: dict[str, Line] = {}
        self._receivers: dict[tuple[str, int], Receiver] = {}
        self._row: dict[Line, None] = {}  # a set in order
        self._pushes: set[asyncio.Task[None]] = set()
        self._closing = False

    def start(self) -> None:
        """Push from now on what waits, and what comes."""
        self._engine.watch(PUSHES, self._list)
        self._list(self._clock.now_ms())

    async def close(self) -> None:
        """Begin no push any more, and let those that run end."""
        self._closing = True
        self._engine.unwatch(PUSHES)
        for line in list(self._lines.values()):
            self._drop(line)
        with suppress(VeilmqError):
            await execute(self._engine, ListPushes())  # answered after all that was asked for before
        while self._pushes:
            await asyncio.wait(self._pushes)

    def cut(self) -> None:
        """Make ``close`` end now; what was being pushed is tried again after the next start."""
        for push in self._pushes:
            push.cancel()

    # Lines.

    def _list(self, due_ms: int) -> None:
        if not self._closing:
            self._engine.submit(ListPushes(), self._listed)

    def _listed(self, result: list[Subscription] | VeilmqError) -> None:
        if self._closing:
            return
        if isinstance(result, VeilmqError):
            self._clock.call_at(self._clock.now_ms() + _AFTER_ERROR_MS, partial(self._list, 0))
            return
        for subscription in result:
            self._take_up(subscription)
        wanted = {(each.topic, each.name) for each in result}
        for line in list(self._lines.values()):
            if (line.subscription.topic, line.subscription.name) not in wanted:
                self._drop(line)
        used = {line.receiver for line in self._lines.values()}
        self._receivers = {name: each for name, each in self._receivers.items() if each in used}

    def _take_up(self, subscription: Subscription) -> None:
        line = Line(subscription, self._receiver(subscription), clock=self._clock, ready=self._stand)
        known = self._lines.get(line.queue)
        if known is not None:
            known.subscription, known.receiver = subscription, line.receiver
            return
        self._lines[line.queue] = line
        self._engine.watch(line.queue, line.wake)
        line.wake(self._clock.now_ms())

    def _drop(self, line: Line) -> None:
        line.rest()
        self._row.pop(line, None)
        if self._lines.pop(line.queue, None) is not None:
            self._engine.unwatch(line.queue)

    def _receiver(self, subscription: Subscription) -> Receiver:
        url = read_push_url(subscription.push_url)
        return self._receivers.setdefault((url.host, url.port), Receiver())

    def _stand(self, line: Line) -> None:
        self._row[line] = None
        self._fill()

    # Messages.

    def _fill(self) -> None:
        """Ask the lines of the row, in order, while there are places."""
        for line in list(self._row):
            if not self._places or self._closing:
                return
            places = min(self._places, line.receiver.free, _TAKEN_AT_ONCE)
            if places:
                del self._row[line]
                self._ask(line, places)

    def _ask(self, line: Line, places: int) -> None:
        line.ask()
        line.receiver.running += places
        self._places -= places
        take = commands.Receive(queue=line.queue, count=places, timeout_s=LEASE_S)
        self._engine.submit(take, partial(self._taken, line, line.receiver, places))

    def _taken(self, line: Line, receiver: Receiver, places: int, result: Received | VeilmqError) -> None:
        line.asking = False
        messages = result.messages if isinstance(result, Received) else []
        unused = places - len(messages)
        receiver.running -= unused
        self._places += unused
        for message in messages:
            push = asyncio.ensure_future(self._push(line, receiver, message))
            self._pushes.add(push)
            push.add_done_callback(self._pushes.discard)
        if isinstance(result, QueueNotFound):
            self._drop(line)
        elif self._lines.get(line.queue) is line:
            due_ms = result.next_due_ms if isinstance(result, Received) else self._clock.now_ms() + _AFTER_ERROR_MS
            if due_ms is not None:
                line.wake(due_ms)
            line.look()
        self._fill()

    async def _push(self, line: Line, receiver: Receiver, message: ReceivedMessage) -> None:
        problem = "it was cut short"
        self._counts.pushes_running += 1
        try:
            problem = await self._attempts.attempt(line.subscription, message)
            await self._settle(line, message, problem)
        except VeilmqError as error:
            log.debug("a push of %s was not settled; it comes again: %s", line.queue, error)
        finally:
            self._counts.pushes_running -= 1
            receiver.end(accepted=not problem)
            self._places += 1
            self._fill()

    async def _settle(self, line: Line, message: ReceivedMessage, problem: str) -> None:
        """Delete the message, or have it tried again."""
        if not problem:
            await self._delete(line, message, PushOutcome.ACCEPTED)
            return
        delay_s = retry_delay_s(line.subscription.strategy, message.receive_count, self._chance())
        self._tell(line.subscription, message, problem, delay_s)
        if delay_s is None:
            await self._delete(line, message, PushOutcome.GIVEN_UP)
            return
        change = VisibilityChange(receipt=message.receipt, timeout_s=delay_s)
        await execute(self._engine, commands.ChangeVisibility(queue=line.queue, changes=(change,)))
        self._counts.pushes[PushOutcome.FAILED] += 1

    async def _delete(self, line: Line, message: ReceivedMessage, outcome: PushOutcome) -> None:
        await execute(self._engine, commands.Delete(queue=line.queue, receipts=(message.receipt,)))
        self._counts.pushes[outcome] += 1

    def _tell(self, subscription: Subscription, message: ReceivedMessage, problem: str, delay_s: int | None) -> None:
        if self._seldom.due((subscription.topic, subscription.name, delay_s is None)):
            then = "given up" if delay_s is None else f"tried again in {delay_s} s"
            log.warning(
                "message %s was not pushed to subscription %s of %s, and is %s: %s",
                message.id.hex().upper(),
                subscription.name,
                subscription.topic,
                then,
                problem,
            )
