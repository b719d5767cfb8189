"""Topics as a part of the server: what publishes and subscribes, what pushes, and the certificate that goes with it.

What signs pushes is an extra, needed where anything may be pushed to.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.core.ports import Clock, Engine
from veilmq.core.topics import PublishToTopic, Subscribe
from veilmq.server.dispatch import Ask, Page
from veilmq.server.pushing.allow_list import AllowList
from veilmq.server.pushing.attempts import Attempts
from veilmq.server.pushing.failures import PushError
from veilmq.server.pushing.guard import Guard
from veilmq.server.pushing.pusher import Pusher
from veilmq.server.pushing.subscribing import Subscribing
from veilmq.server.settings import ServerSettings
from veilmq.server.shutdown import Shutdown
from veilmq.server.topic_counts import TopicCounts
from veilmq.server.topic_publishing import TopicPublishing
from veilmq.store.port import Store, StoreError

CERTIFICATE_PATH = "/push-certificate.pem"
"""Where the server gives its certificate to whoever asks."""

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
        self.pages: Mapping[bytes, Page] = {}
        if self._identity is not None:
            page = Page(_CERTIFICATE_TYPE, self._identity.certificate_pem)
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
    """Return the ``pushing.identity.Identity`` of the servers on ``store``; ``None`` where they never push.

    Raises ``PushError`` where they cannot push as ``settings`` say, ``StoreError`` where it cannot be kept.
    """
    if not settings.push_allow:
        return None
    try:
        identity = import_module("veilmq.server.pushing.identity")
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
