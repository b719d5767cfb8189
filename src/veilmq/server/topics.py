"""Topics as a part of the server: publishing, subscribing, pushing, and the certificate that goes with pushes.

A subscription with a URL is checked by the guard first, so that its caller learns at once that nothing would come.
Publishing counts and logs which subscriptions got nothing. What signs pushes is an extra.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from veilmq.core.commands import Clock, Command, Done, Engine
from veilmq.core.errors import EndpointRefused, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.topics import PublishedMessage, PublishToTopic, Subscribe
from veilmq.server.dispatch import Ask
from veilmq.server.http_parser import Worded
from veilmq.server.metrics import TopicCounts
from veilmq.server.process import Shutdown
from veilmq.server.pushes import Attempts, Guard, LogThrottle, Pusher, PushError
from veilmq.server.setting_kinds import AllowList
from veilmq.server.settings import ServerSettings
from veilmq.store.port import Store, StoreError

log = logging.getLogger(__name__)


class TopicPublishing:
    """Has messages published."""

    def __init__(self, *, engine: Engine, clock: Clock, counts: TopicCounts) -> None:
        """Use ``engine``, on its event loop."""
        self._engine = engine
        self._counts = counts
        self._throttle = LogThrottle(clock)

    def ask(self, command: PublishToTopic, wait_s: int | None, answer: Done) -> "OneMessage":
        """Publish; ``answer`` is called once."""

        def done(result: Any) -> None:
            if isinstance(result, PublishedMessage) and result.undeliverable:
                self._log_undelivered(command.topic, result)
            answer(result)

        self._engine.submit(command, done)
        return OneMessage(self._engine, done)

    def _log_undelivered(self, topic: str, published: PublishedMessage) -> None:
        self._counts.undeliverable += len(published.undeliverable)
        for name, reason in published.undeliverable:
            if self._throttle.due((topic, name, type(reason))):
                log.warning(
                    "message %s of %s did not come to subscription %s: %s",
                    published.id.hex().upper(),
                    topic,
                    name,
                    reason,
                )


class OneMessage:
    """One request on its way."""

    __slots__ = ("_done", "_engine")

    def __init__(self, engine: Engine, done: Done) -> None:
        """``done`` is what the engine answers to."""
        self._engine = engine
        self._done = done

    def withdraw(self) -> None:
        """Forget it: what is not begun does not happen."""
        self._engine.withdraw(self._done)

    def hurry(self) -> None:
        """Go on: it does not wait for anything."""


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
        """Do nothing yet."""
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


CERTIFICATE_PATH = "/push-certificate.pem"
"""Where the server gives its certificate to receivers."""

_CERTIFICATE_TYPE = b"Content-Type: application/x-pem-file\r\n"


class TopicService:
    """The topics of one server. ``asked`` and ``pages`` are for its dispatcher."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        engine: Engine,
        clock: Clock,
        wall_s: Callable[[], float],
        base_url: str,
        identity: Any,
    ) -> None:
        """``base_url`` is that of this server, ``identity`` what ``push_identity`` gave."""
        self._settings = settings
        self._engine = engine
        self._clock = clock
        self._wall_s = wall_s
        self._certificate_url = settings.push_certificate_url or base_url + CERTIFICATE_PATH
        self._guard = Guard(AllowList(settings.push_allow or ""))
        self._identity = identity
        self.counts = TopicCounts()
        self.asked: Mapping[type[Command], Ask] = {
            PublishToTopic: TopicPublishing(engine=engine, clock=clock, counts=self.counts).ask,
            Subscribe: Subscribing(engine=engine, clock=clock, guard=self._guard).ask,
        }
        self.pages: Mapping[bytes, Worded] = {}
        if self._identity is not None:
            page = Worded(_CERTIFICATE_TYPE, self._identity.certificate_pem)
            self.pages = {CERTIFICATE_PATH.encode(): page}

    @asynccontextmanager
    async def pushing(self, shutdown: Shutdown) -> AsyncIterator[None]:
        """Push while the context lasts, where anything may be pushed to.

        At its end the pushes that run may end, as long as ``shutdown`` allows.
        """
        if self._identity is None:
            yield
            return
        attempts = Attempts(
            guard=self._guard,
            sign=self._identity.sign,
            certificate_url=self._certificate_url,
            clock=self._clock,
            wall_s=self._wall_s,
        )
        pusher = Pusher(
            engine=self._engine,
            clock=self._clock,
            attempts=attempts,
            counts=self.counts,
            parallel_max=self._settings.push_parallel_max,
        )
        pusher.start()
        try:
            yield
        finally:
            await shutdown.let_finish(pusher.close(), cut=pusher.cut)


async def push_identity(settings: ServerSettings, store: Store, *, now_s: float) -> Any:
    """Return the ``push_identity.Identity`` of the servers on ``store``; ``None`` where they never push.

    Raises ``PushError`` where they cannot push as ``settings`` say, ``StoreError`` where it cannot be kept.
    """
    if not settings.push_allow:
        return None
    try:
        identity = import_module("veilmq.server.push_identity")
    except ModuleNotFoundError as error:
        raise PushError(
            f"push_allow (--push-allow) needs the module {error.name}, which this install does not have: "
            "pip install 'veilmq[push]'"
        ) from error
    if settings.push_key is not None:
        return identity.read(settings.push_key, settings.push_certificate)
    try:
        return identity.of(await store.keep(identity.FILE_NAME, lambda: identity.made(now_s=now_s).pem()))
    except VeilmqError as error:
        raise StoreError(f"The key that signs pushes cannot be kept: {error}") from error
