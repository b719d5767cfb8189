"""Subscribing a URL: the guard is asked first, so that whoever subscribes hears at once that nothing would come."""

import asyncio

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Done, Engine
from veilmq.core.topic_errors import EndpointRefused
from veilmq.core.topics import Subscribe
from veilmq.server.pushing.guard import Guard

NAME_S_MAX = 5
"""How long the name of a host may take to be found."""


class Subscribing:
    """Has subscriptions made."""

    def __init__(self, *, engine: Engine, clock: Clock, guard: Guard) -> None:
        """Use ``engine``, on its event loop."""
        self._engine = engine
        self._clock = clock
        self._guard = guard

    def ask(self, command: Subscribe, wait_s: int | None, answer: Done) -> "OneSubscription":
        """Subscribe; ``answer`` is called once."""
        one = OneSubscription(self._engine, command, answer)
        if command.subscription.push_url:
            one.look(self._guard, self._clock)
        else:
            self._engine.submit(command, answer)
        return one


class OneSubscription:
    """One request on its way."""

    __slots__ = ("_answer", "_command", "_engine", "_looking")

    def __init__(self, engine: Engine, command: Subscribe, answer: Done) -> None:
        """Ask nobody yet."""
        self._engine = engine
        self._command = command
        self._answer = answer
        self._looking: asyncio.Task[None] | None = None

    def look(self, guard: Guard, clock: Clock) -> None:
        """Ask the guard, and if that lets it pass the engine."""
        looking = self._looking = asyncio.ensure_future(self._look(guard))
        timer = clock.call_at(clock.now_ms() + NAME_S_MAX * SECOND_MS, self.hurry)
        looking.add_done_callback(lambda _: timer.cancel())

    async def _look(self, guard: Guard) -> None:
        try:
            await guard.admit(self._command.subscription.push_url)
        except EndpointRefused as refused:
            self._answer(refused)
        else:
            self._engine.submit(self._command, self._answer)

    def withdraw(self) -> None:
        """Forget it: what is not begun does not happen."""
        if self._looking is not None:
            self._looking.cancel()
        self._engine.withdraw(self._answer)

    def hurry(self) -> None:
        """Wait no longer for the name of the host."""
        if self._looking is not None and self._looking.cancel():
            url = self._command.subscription.push_url
            self._answer(EndpointRefused(url, "the name of its host was not found in time; try again"))
