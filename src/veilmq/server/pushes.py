"""Topics in the server: publish, subscribe, and push to URLs.

The guard checks a subscription's URL first, so that subscribing to a URL that is not allowed fails at once. Publishing
counts and logs undeliverable messages. Signing pushes needs an extra.

Each pushed subscription has its own queue in the store and is served like a consumer's: its messages are received with
a lease, deleted when the receiver accepts them, and otherwise hidden until the next attempt. So a crash loses no
waiting message, and the receive count is the number of attempts. Subscriptions with messages form a round-robin list:
the first receives as many messages as its receiver and the whole server have free slots, then goes to the end. So
nothing polls, and a slow receiver does not delay other subscriptions.

A receiver starts with one concurrent push; each accepted push doubles the limit, up to a bound, and a failure resets it
to one. So a host that does not reply occupies one of the shared slots, for some seconds each time.

The guard resolves a URL's host name once and returns only allowed addresses; the connection goes to one of these, so a
later change of the DNS record has no effect. It checks at the subscription and again before each push. Only the status
of a reply counts: redirections are not followed. No proxy is used.
"""

import asyncio
import logging
import re
import socket
import ssl
from asyncio.staggered import staggered_race
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from importlib import import_module
from ipaddress import ip_address
from random import random
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from veilmq.core import commands
from veilmq.core.commands import Clock, Command, Done, Engine, Received, ReceivedMessage, Timer, VisibilityChange
from veilmq.core.errors import EndpointRefused, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.topics import (
    PUSHES,
    ListPushes,
    PublishedMessage,
    PublishToTopic,
    PushUrl,
    Subscribe,
    Subscription,
    push_queue,
    read_push_url,
    retry_delay_s,
)
from veilmq.server.background import BackgroundRequest
from veilmq.server.dispatch import CommandHandler
from veilmq.server.http_parser import RenderedReply
from veilmq.server.metrics import PushOutcome, TopicCounts
from veilmq.server.settings import Address, AllowList, ServerSettings, unmapped
from veilmq.store.port import Store, StoreError, execute
from veilmq.wire.smq.topics import push_request, pushed_to

log = logging.getLogger(__name__)

T = TypeVar("T")


class PushError(Exception):
    """Messages cannot be pushed with these settings; the text says why and what to do."""


Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Name and port → addresses as text; raises ``OSError``."""

_REMEDY = "add it to the server's setting push_allow (--push-allow) to let messages be pushed there"
_LOOKUPS_MAX = 64


class Target(NamedTuple):
    """A URL and its allowed addresses, at least one, in the order in which to try them."""

    url: PushUrl
    addresses: list[Address]


class UrlGuard:
    """Checks which URLs messages may be pushed to."""

    def __init__(self, allowed: AllowList, *, resolve: Resolve | None = None) -> None:
        self._allowed = allowed
        self._resolve = resolve or SystemResolver()

    async def admit(self, text: str) -> Target:
        """Return the target of the URL ``text``; raises ``EndpointRefused``."""
        url = read_push_url(text)
        host, port = url.host, url.port
        if not self._allowed:
            raise EndpointRefused(text, f"no host is allowed; {_REMEDY}")
        by_name = self._allowed.allows_name(host, port)
        not_allowed = f"{host} port {port} is not allowed; {_REMEDY}"
        if not by_name and not self._allowed.has_networks:  # no need to resolve the name
            raise EndpointRefused(text, not_allowed)
        try:
            addresses = [ip_address(host)]
        except ValueError:
            try:
                addresses = [ip_address(address) for address in await self._resolve(host, port)]
            except OSError as error:
                problem = f"the name {host} cannot be resolved ({error.strerror or error})"
                raise EndpointRefused(text, problem) from None
        allowed = [unmapped(each) for each in addresses if self._allowed.allows_address(each, port, named=by_name)]
        if allowed:
            return Target(url, allowed)
        if not by_name:
            raise EndpointRefused(text, not_allowed)
        resolved = ", ".join(map(str, addresses)) or "nowhere"
        raise EndpointRefused(
            text,
            f"{host} resolves to {resolved}, which is not a public address; also add that address, or its network, to "
            "the server's setting push_allow (--push-allow)",
        )


class SystemResolver:
    """Resolve names with the system's resolver, in a thread for each name.

    It may take half a minute if a name's servers are down, even when no push waits any more. So concurrent look-ups of
    a name are shared, and the daemon threads do not delay the end of the process.
    """

    def __init__(self) -> None:
        self._pending: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def __call__(self, name: str, port: int) -> list[str]:
        pending = self._pending.get((name, port))
        if pending is None:
            if len(self._pending) >= _LOOKUPS_MAX:
                raise OSError("too many names are being looked up")

            def done(ended: "asyncio.Future[list[str]]") -> None:
                del self._pending[name, port]
                ended.exception()  # mark as retrieved: perhaps no push awaits it

            found: Future[list[str]] = Future()
            Thread(target=_resolve, args=(found, name, port), name=f"veilmq-push-{name}", daemon=True).start()
            pending = self._pending[name, port] = asyncio.wrap_future(found)
            pending.add_done_callback(done)
        return await asyncio.shield(pending)


def _resolve(found: "Future[list[str]]", name: str, port: int) -> None:
    """Resolve a name; asyncio drops a result that comes after the loop has ended."""
    try:
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        found.set_exception(error if isinstance(error, OSError) else OSError(str(error)))
    else:
        found.set_result([str(address[0]).partition("%")[0] for *_, address in addresses])


_HEAD_BYTES_MAX = 65_536
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
_NEXT_ADDRESS_S = 0.25
_FINAL = 200
_ACCEPTED = range(200, 300)


async def post(target: Target, request: bytes, *, tls: ssl.SSLContext) -> str:
    """Return why ``target`` did not accept ``request``; empty if it did. Can be cancelled.

    Connects to the first reachable address; each is tried a moment after the one before. Skips provisional statuses.
    """
    url = target.url
    secure: dict[str, Any] = {"ssl": tls, "server_hostname": url.host} if url.secure else {}
    connect = partial(asyncio.open_connection, port=url.port, limit=_HEAD_BYTES_MAX, **secure)
    attempts = [partial(connect, str(address)) for address in target.addresses]
    connection, _, errors = await staggered_race(attempts, _NEXT_ADDRESS_S)
    if connection is None:
        return f"no connection to {target.addresses[-1]}: {getattr(errors[-1], 'strerror', None) or errors[-1]}"
    reader, writer = connection
    try:
        writer.write(request)
        while True:
            match = _STATUS.match(await reader.readuntil(b"\r\n\r\n"))
            if match is None:
                return "the reply is not HTTP"
            status = int(match[1])
            if status >= _FINAL:
                return "" if status in _ACCEPTED else f"status {status}"
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        return f"the connection ended without a reply: {error}"
    finally:
        writer.transport.abort()


RECEIVER_PUSHES_MAX = 16


class Receiver:
    """Concurrency control of one host and port."""

    def __init__(self) -> None:
        self.limit = 1
        self.running = 0

    def finish(self, *, succeeded: bool) -> None:
        """Note the end of a push."""
        self.running -= 1
        self.limit = min(RECEIVER_PUSHES_MAX, self.limit * 2) if succeeded else 1


@dataclass(eq=False, slots=True)
class PushedSubscription:
    """Tracks when its queue has a message, and then calls ``ready(self)``, perhaps more than once."""

    subscription: Subscription
    receiver: Receiver
    clock: Clock
    ready: Callable[["PushedSubscription"], object]
    receiving: bool = False
    due_ms: int | None = None
    timer: Timer | None = None

    @property
    def queue(self) -> str:
        return push_queue(self.subscription.topic, self.subscription.name)

    def wake(self, due_ms: int) -> None:
        """Note that the queue has, or will have, a message at ``due_ms``."""
        if self.due_ms is None or due_ms < self.due_ms:
            self.due_ms = due_ms
            self.inspect()

    def inspect(self) -> None:
        """Call ``ready`` if a message should be due, else set a timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.due_ms is None or self.receiving:
            return
        if self.due_ms <= self.clock.now_ms():
            self.ready(self)
        else:
            self.timer = self.clock.call_at(self.due_ms, self.inspect)

    def clear_due(self) -> None:
        """Clear the due time and the timer."""
        self.due_ms = None
        self.inspect()


REPLY_S_MAX = 5
"""How long a receiver may take to accept a message (SMQ reference, section 9), including name resolution."""

Attempt = Callable[[Subscription, ReceivedMessage], Awaitable[str]]
"""Push a message; return why it was not accepted, for the log; empty if it was."""

LOG_PERIOD_MS = 60 * SECOND_MS
_SUBJECTS_MAX = 10_000


class LogThrottle:
    """Limits log lines to one per minute and subject."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[Hashable, int] = {}

    def due(self, subject: Hashable) -> bool:
        """Return whether to log a line about ``subject`` now; counts it as logged."""
        now_ms = self._clock.now_ms()
        if now_ms < self._logged.get(subject, 0) + LOG_PERIOD_MS:
            return False
        if len(self._logged) >= _SUBJECTS_MAX:
            self._logged.clear()
        self._logged[subject] = now_ms
        return True


LEASE_S = 15
"""The lease of a message that is being pushed; an attempt takes at most ``REPLY_S_MAX``."""

_RECEIVE_MAX = 16
_AFTER_ERROR_MS = SECOND_MS


@dataclass(kw_only=True)
class Pusher:
    """All pushes of a server, at most ``parallel_max`` at once; ``jitter`` returns a random factor for retries."""

    engine: Engine
    clock: Clock
    attempt: Attempt
    counts: TopicCounts
    parallel_max: int
    jitter: Callable[[], float] = random

    def __post_init__(self) -> None:
        self._free_slots = self.parallel_max
        self._throttle = LogThrottle(self.clock)
        self._subscriptions: dict[str, PushedSubscription] = {}
        self._receivers: dict[tuple[str, int], Receiver] = {}
        self._due_subscriptions: dict[PushedSubscription, None] = {}  # an ordered set of those with a due message
        self._pushes: set[asyncio.Task[None]] = set()
        self._closing = False
        self._is_listing = self._changed = False  # changed since the listing began

    def start(self) -> None:
        """Start pushing."""
        self.engine.watch(PUSHES, self._list)
        self._list(self.clock.now_ms())

    async def close(self) -> None:
        """Start no more pushes, and wait for those in progress."""
        self._closing = True
        self.engine.unwatch(PUSHES)
        for pushed in list(self._subscriptions.values()):
            self._drop(pushed)
        with suppress(VeilmqError):
            await execute(self.engine, ListPushes())  # completes after all earlier commands
        while self._pushes:
            await asyncio.wait(self._pushes)

    def cut(self) -> None:
        """Cancel running pushes, so that ``close`` ends now; they are retried after the next start."""
        for push in self._pushes:
            push.cancel()

    def _list(self, due_ms: int) -> None:
        """List all subscriptions; if they change meanwhile, list them once more."""
        self._changed = self._is_listing
        if not self._closing and not self._is_listing:
            self._is_listing = True
            self.engine.submit(ListPushes(), self._listed)

    def _listed(self, result: list[Subscription] | VeilmqError) -> None:
        self._is_listing = False
        if self._closing:
            return
        if isinstance(result, VeilmqError):
            self.clock.call_at(self.clock.now_ms() + _AFTER_ERROR_MS, partial(self._list, 0))
            return
        for subscription in result:
            url = read_push_url(subscription.push_url)
            receiver = self._receivers.setdefault((url.host, url.port), Receiver())
            pushed = PushedSubscription(subscription, receiver, self.clock, self._ready)
            known = self._subscriptions.setdefault(pushed.queue, pushed)
            known.subscription, known.receiver = subscription, receiver
            if known is pushed:
                self.engine.watch(pushed.queue, pushed.wake)
                pushed.wake(self.clock.now_ms())
        for queue in self._subscriptions.keys() - {push_queue(each.topic, each.name) for each in result}:
            self._drop(self._subscriptions[queue])
        used = {pushed.receiver for pushed in self._subscriptions.values()}
        self._receivers = {name: each for name, each in self._receivers.items() if each in used}
        if self._changed:
            self._list(0)

    def _drop(self, pushed: PushedSubscription) -> None:
        pushed.clear_due()
        self._due_subscriptions.pop(pushed, None)
        del self._subscriptions[pushed.queue]
        self.engine.unwatch(pushed.queue)

    def _ready(self, pushed: PushedSubscription) -> None:
        self._due_subscriptions[pushed] = None
        self._receive_due()

    def _receive_due(self) -> None:
        """Receive for the due subscriptions, in order, while there are free slots."""
        for pushed in list(self._due_subscriptions):
            if not self._free_slots or self._closing:
                return
            receiver = pushed.receiver
            slots = min(self._free_slots, receiver.limit - receiver.running, _RECEIVE_MAX)
            if slots > 0:
                del self._due_subscriptions[pushed]
                pushed.receiving = True
                pushed.clear_due()  # the result of the receive sets the due time again
                receiver.running += slots
                self._free_slots -= slots
                receive = commands.Receive(queue=pushed.queue, count=slots, timeout_s=LEASE_S)
                self.engine.submit(receive, partial(self._on_received, pushed, receiver, slots))

    def _on_received(
        self, pushed: PushedSubscription, receiver: Receiver, slots: int, result: Received | VeilmqError
    ) -> None:
        pushed.receiving = False
        messages = result.messages if isinstance(result, Received) else []
        unused = slots - len(messages)
        receiver.running -= unused
        self._free_slots += unused
        for message in messages:
            push = asyncio.ensure_future(self._push(pushed, receiver, message))
            self._pushes.add(push)
            push.add_done_callback(self._pushes.discard)
        if self._subscriptions.get(pushed.queue) is pushed:
            due_ms = result.next_due_ms if isinstance(result, Received) else self.clock.now_ms() + _AFTER_ERROR_MS
            if due_ms is not None:
                pushed.wake(due_ms)
            pushed.inspect()
        self._receive_due()

    async def _push(self, pushed: PushedSubscription, receiver: Receiver, message: ReceivedMessage) -> None:
        problem = "it was cut short"
        self.counts.pushes_running += 1
        try:
            problem = await self.attempt(pushed.subscription, message)
            await self._settle(pushed, message, problem)
        except VeilmqError as error:
            log.debug("a push of %s was not settled; it is received again: %s", pushed.queue, error)
        finally:
            self.counts.pushes_running -= 1
            receiver.finish(succeeded=not problem)
            self._free_slots += 1
            self._receive_due()

    async def _settle(self, pushed: PushedSubscription, message: ReceivedMessage, problem: str) -> None:
        if not problem:
            await self._delete(pushed, message, PushOutcome.ACCEPTED)
            return
        subscription = pushed.subscription
        delay_s = retry_delay_s(subscription.strategy, message.receive_count, self.jitter())
        topic, name = subscription.topic, subscription.name
        if self._throttle.due((topic, name, delay_s is None)):
            then = "given up" if delay_s is None else f"retried in {delay_s} s"
            text = "message %s was not pushed to subscription %s of %s, and is %s: %s"
            log.warning(text, message.id.hex().upper(), name, topic, then, problem)
        if delay_s is None:
            await self._delete(pushed, message, PushOutcome.GIVEN_UP)
            return
        change = VisibilityChange(receipt=message.receipt, timeout_s=delay_s)
        await execute(self.engine, commands.ChangeVisibility(queue=pushed.queue, changes=(change,)))
        self.counts.pushes[PushOutcome.FAILED] += 1

    async def _delete(self, pushed: PushedSubscription, message: ReceivedMessage, outcome: PushOutcome) -> None:
        await execute(self.engine, commands.Delete(queue=pushed.queue, receipts=(message.receipt,)))
        self.counts.pushes[outcome] += 1


RESOLVE_S_MAX = 5


async def _with_timeout(clock: Clock, seconds: int, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``; raises ``TimeoutError`` after the given seconds of ``clock``."""
    task = asyncio.ensure_future(work)
    timer = clock.call_at(clock.now_ms() + seconds * SECOND_MS, task.cancel)
    try:
        await asyncio.wait({task})
    finally:
        timer.cancel()
        task.cancel()
    if task.cancelled():
        raise TimeoutError
    return task.result()


CERTIFICATE_PATH = "/push-certificate.pem"


class TopicService:
    """The topics of a server. ``handlers`` and ``pages`` are for its dispatcher."""

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
        """``base_url`` is that of this server, ``identity`` the result of ``push_identity``.

        ``wall_s`` is the raw wall clock, which receivers compare with theirs.
        """
        self._engine = engine
        self._clock = clock
        self._wall_s = wall_s
        self._certificate_url = settings.push_certificate_url or base_url + CERTIFICATE_PATH
        self._guard = UrlGuard(AllowList(settings.push_allow or ""))
        self._identity = identity
        self._signer = ThreadPoolExecutor(1, thread_name_prefix="veilmq-push-signer")  # a signature takes a millisecond
        self._throttle = LogThrottle(clock)
        self.counts = TopicCounts()
        self.handlers: Mapping[type[Command], CommandHandler] = {
            PublishToTopic: self._publish,
            Subscribe: partial(BackgroundRequest, self.subscribe),
        }
        self.pages: dict[bytes, RenderedReply] = {}
        self.pusher: Pusher | None = None  # pushing needs an identity
        if identity is not None:
            self.pusher = Pusher(
                engine=engine,
                clock=clock,
                attempt=self.attempt,
                counts=self.counts,
                parallel_max=settings.push_parallel_max,
            )
            self._tls = ssl.create_default_context()
            page = RenderedReply(b"Content-Type: application/x-pem-file\r\n", identity.certificate_pem)
            self.pages[CERTIFICATE_PATH.encode()] = page

    def _publish(self, command: PublishToTopic, wait_s: int | None, done: Done) -> None:
        def log_undeliverable(result: Any) -> None:
            if isinstance(result, PublishedMessage) and result.undeliverable:
                self.counts.undeliverable += len(result.undeliverable)
                for name, reason in result.undeliverable:
                    if self._throttle.due((command.topic, name, type(reason))):
                        text = "message %s of %s did not reach subscription %s: %s"
                        log.warning(text, result.id.hex().upper(), command.topic, name, reason)
            done(result)

        self._engine.submit(command, log_undeliverable)

    async def subscribe(self, command: Subscribe) -> Any:
        """Create a subscription, after the guard has checked its URL. Raises ``VeilmqError``."""
        if url := command.subscription.push_url:
            try:
                await _with_timeout(self._clock, RESOLVE_S_MAX, self._guard.admit(url))
            except TimeoutError:
                raise EndpointRefused(url, "the name of its host was not found in time; try again") from None
        return await execute(self._engine, command)

    async def attempt(self, subscription: Subscription, message: ReceivedMessage) -> str:
        """Return why the message was not accepted, for the log; empty if it was.

        The reason does not contain the URL, which may hold a secret by which the receiver authenticates senders.
        """
        try:
            return await _with_timeout(self._clock, REPLY_S_MAX, self._post(subscription, message))
        except TimeoutError:
            return f"no reply within {REPLY_S_MAX} s"

    async def _post(self, subscription: Subscription, message: ReceivedMessage) -> str:
        try:
            subscription = pushed_to(subscription, message)
            target = await self._guard.admit(subscription.push_url)
            write = partial(
                push_request,
                subscription,
                message,
                target.url,
                date=formatdate(self._wall_s(), usegmt=True),
                certificate_url=self._certificate_url,
                sign=self._identity.sign,
            )
            request = await asyncio.get_running_loop().run_in_executor(self._signer, write)
            return await post(target, request, tls=self._tls)
        except EndpointRefused as error:
            return error.why
        except Exception:
            log.exception("a push of %s of %s failed by a defect of veilmq", subscription.name, subscription.topic)
            return "a defect of this server"


async def push_identity(settings: ServerSettings, store: Store, *, now_s: float) -> Any:
    """Return the ``push_identity.Identity`` of the servers on ``store``; ``None`` if pushing is not allowed.

    Raises ``PushError`` if the settings do not work, ``StoreError`` if the store cannot keep the key.
    """
    if not settings.push_allow:
        return None
    try:
        identity = import_module("veilmq.server.push_identity")
    except ModuleNotFoundError as error:
        raise PushError(
            f"push_allow (--push-allow) needs the module {error.name}, which is not installed: pip install "
            "'veilmq[push]'"
        ) from error
    if settings.push_key is not None:
        return identity.read(settings.push_key, settings.push_certificate)
    try:
        pem = await store.load_or_create(identity.FILE_NAME, lambda: identity.generate(now_s=now_s).encode())
        return identity.decode(pem)
    except VeilmqError as error:
        raise StoreError(f"The key that signs pushes cannot be stored: {error}") from error
