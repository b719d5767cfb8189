"""Pushes: messages from the queues of subscriptions with a URL are posted there, and tried again when that failed.

A pushed subscription has a queue of its own in the store, and is served as a consumer serves one: its messages are
received with a lease, deleted when the receiver has accepted them, and hidden until the next try otherwise. So nothing
that waits to be pushed is lost with the process. Subscriptions that have a message stand in a row; the first takes as
many messages as its receiver, and all together, have places for, and goes to the end. So nothing polls, and no
subscription waits for the receiver of another. How often a message was tried is how often it was received.

A receiver begins with one push at a time; each that it accepts doubles that, up to a bound, and each failure brings it
back to one. So a host that does not reply takes one of the shared places, for some seconds each time.

The guard leads from a URL to an address that may be connected to. A name is resolved once, and the connection goes to
the address that was checked: where its owner points the name a moment later plays no part. The guard decides at the
subscription, and again before each push. A reply counts by its status alone: a redirection is a status as any other.
No proxy is used.
"""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from ipaddress import ip_address
from random import random
from threading import Thread
from typing import NamedTuple

from veilmq.core import commands
from veilmq.core.commands import Clock, Engine, Received, ReceivedMessage, Timer, VisibilityChange
from veilmq.core.errors import EndpointRefused, QueueNotFound, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.topics import PUSHES, ListPushes, PushUrl, Subscription, push_queue, read_push_url, retry_delay_s
from veilmq.server.metrics import PushOutcome, TopicCounts
from veilmq.server.setting_kinds import Address, AllowList, unmapped
from veilmq.store.port import execute
from veilmq.wire.smq.topics import Sign, push_request


class PushError(Exception):
    """Messages cannot be pushed as the settings say; the text says why and what to do."""


Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Name and port → addresses as text; raises ``OSError``."""

_REMEDY = "add it to the server's setting push_allow (--push-allow) to let messages be pushed there"
_LOOKED_UP_MAX = 64


class Target(NamedTuple):
    """A URL, and the addresses that may be connected to for it, one at least, in the order in which to try them."""

    url: PushUrl
    addresses: list[Address]


class Guard:
    """What may be pushed to."""

    def __init__(self, allowed: AllowList, *, resolve: Resolve | None = None) -> None:
        """Names are looked up by ``resolve``, or by the system."""
        self._allowed = allowed
        self._resolve = resolve or SystemResolver()

    async def admit(self, text: str) -> Target:
        """Return the target of the URL ``text``; raises ``EndpointRefused``."""
        url = read_push_url(text)
        if not self._allowed:
            raise EndpointRefused(text, f"no host is allowed; {_REMEDY}")
        named = self._allowed.names(url.host, url.port)
        if not named and not self._allowed.has_networks:  # the name is not even looked up
            raise EndpointRefused(text, f"{url.host} port {url.port} is not allowed; {_REMEDY}")
        addresses = await self._addresses(text, url)
        allowed = [unmapped(each) for each in addresses if self._allowed.holds(each, url.port, named=named)]
        if not allowed:
            raise EndpointRefused(text, _reason(url, addresses, named=named))
        return Target(url, allowed)

    async def _addresses(self, text: str, url: PushUrl) -> list[Address]:
        literal = _literal(url.host)
        if literal is not None:
            return [literal]
        try:
            found = await self._resolve(url.host, url.port)
        except OSError as error:
            raise EndpointRefused(text, f"the name {url.host} cannot be resolved ({error.strerror or error})") from None
        return [ip_address(address) for address in found]


class SystemResolver:
    """Looks names up as every program of the machine does, in a thread for each name.

    The system may take half a minute for a name whose servers are dead, also when no push waits any more. So pushes
    share the look-up of a name, and the threads do not delay the end of the process.
    """

    def __init__(self) -> None:
        """Look up nothing yet."""
        self._looking: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def __call__(self, name: str, port: int) -> list[str]:
        """Return the addresses of ``name``; raises ``OSError``."""
        looking = self._looking.get((name, port))
        if looking is None:
            if len(self._looking) >= _LOOKED_UP_MAX:
                raise OSError("too many names are being looked up")
            looking = self._begin(name, port)
        return await asyncio.shield(looking)

    def _begin(self, name: str, port: int) -> "asyncio.Future[list[str]]":
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[list[str]] = loop.create_future()
        self._looking[name, port] = looking

        def found(answer: list[str] | OSError) -> None:
            del self._looking[name, port]
            if isinstance(answer, OSError):
                looking.set_exception(answer)
                looking.exception()  # perhaps no push waits for it any more
            else:
                looking.set_result(answer)

        def look_up() -> None:
            answer = _look_up(name, port)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(found, answer)

        Thread(target=look_up, name=f"veilmq-push-{name}", daemon=True).start()
        return looking


def _look_up(name: str, port: int) -> list[str] | OSError:
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError as error:
        return OSError(str(error))
    return [str(address[0]).partition("%")[0] for *_, address in found]


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _reason(url: PushUrl, addresses: list[Address], *, named: bool) -> str:
    if not named:
        return f"{url.host} port {url.port} is not allowed; {_REMEDY}"
    leads = ", ".join(map(str, addresses)) or "nowhere"
    return (
        f"{url.host} leads to {leads}, which is no public address; add that address, or its network, to the server's "
        "setting push_allow (--push-allow), too"
    )


_HEAD_BYTES_MAX = 65_536
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
_FINAL = 200


class NoAnswer(Exception):
    """The receiver could not be reached, or answered no HTTP; ``str()`` says what happened."""


async def post(target: Target, request: bytes, *, tls: ssl.SSLContext) -> int:
    """Return the status with which ``target`` answers ``request``; raises ``NoAnswer``. Cancel it to end it."""
    reader, writer = await _connect(target, tls)
    try:
        writer.write(request)
        return await _status(reader)
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        raise NoAnswer(f"the connection ended without an answer: {error}") from None
    finally:
        writer.transport.abort()


async def _connect(target: Target, tls: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of the addresses where that is possible."""
    url, problem = target.url, ""
    for address in target.addresses:
        try:
            return await asyncio.open_connection(
                str(address),
                url.port,
                limit=_HEAD_BYTES_MAX,
                ssl=tls if url.secure else None,
                server_hostname=url.host if url.secure else None,
            )
        except OSError as error:  # those of TLS are, too
            problem = f"no connection to {address}: {error.strerror or error}"
    raise NoAnswer(problem)


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the final status; those before it only say that the receiver is at it."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        match = _STATUS.match(head)
        if match is None:
            raise NoAnswer("the answer is no HTTP")
        status = int(match[1])
        if status >= _FINAL:
            return status


PARALLEL_MAX = 16


class Receiver:
    """One host at one port."""

    __slots__ = ("bound", "running")

    def __init__(self) -> None:
        """Begin with one at a time."""
        self.bound = 1
        self.running = 0

    @property
    def free(self) -> int:
        """Return how many more pushes it may get now."""
        return max(0, self.bound - self.running)

    def end(self, *, succeeded: bool) -> None:
        """Take note that a push to it has ended."""
        self.running -= 1
        self.bound = min(PARALLEL_MAX, self.bound * 2) if succeeded else 1


class PushedSubscription:
    """Knows when its queue has a message; ``ready`` is called with it when that is now, perhaps more than once."""

    __slots__ = ("_clock", "_due_ms", "_ready", "_timer", "asking", "queue", "receiver", "subscription")

    def __init__(
        self,
        subscription: Subscription,
        receiver: Receiver,
        *,
        clock: Clock,
        ready: Callable[["PushedSubscription"], object],
    ) -> None:
        """Begin with nothing known."""
        self.subscription = subscription
        self.receiver = receiver
        self.queue = push_queue(subscription.topic, subscription.name)
        self.asking = False
        self._clock = clock
        self._ready = ready
        self._due_ms: int | None = None
        self._timer: Timer | None = None

    def wake(self, due_ms: int) -> None:
        """Hear that the queue has, or will have, a message at ``due_ms``."""
        if self._due_ms is None or due_ms < self._due_ms:
            self._due_ms = due_ms
            self.look()

    def ask(self) -> None:
        """Begin a receive: its result says anew what is known."""
        self.asking = True
        self.rest()

    def look(self) -> None:
        """Be ready if there should be a message by now; if later, make sure to look then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due_ms is None or self.asking:
            return
        if self._due_ms <= self._clock.now_ms():
            self._ready(self)
        else:
            self._timer = self._clock.call_at(self._due_ms, self.look)

    def rest(self) -> None:
        """Forget what is known."""
        self._due_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


log = logging.getLogger(__name__)

ANSWER_S_MAX = 5
"""How long a receiver has to accept a message (SMQ reference, section 9); to find and reach it is a part of that."""

_ACCEPTED = range(200, 300)


class Attempts:
    """What all attempts of a server share."""

    def __init__(
        self, *, guard: Guard, sign: Sign, certificate_url: str, clock: Clock, wall_s: Callable[[], float]
    ) -> None:
        """``clock`` ends attempts; ``wall_s`` is the raw wall clock, which receivers compare with theirs."""
        self._guard = guard
        self._sign = sign
        self._certificate_url = certificate_url
        self._clock = clock
        self._wall_s = wall_s
        self._tls = ssl.create_default_context()
        self._signer = ThreadPoolExecutor(1, thread_name_prefix="veilmq-push-signer")  # a signature takes a millisecond

    async def attempt(self, subscription: Subscription, message: ReceivedMessage) -> str:
        """Return why the message was not accepted, for the log; an empty text when it was.

        The URL is no part of it: it may hold a secret, by which its receiver knows who may push.
        """
        posting = asyncio.ensure_future(self._post(subscription, message))
        timer = self._clock.call_at(self._clock.now_ms() + ANSWER_S_MAX * SECOND_MS, posting.cancel)
        try:
            await asyncio.wait({posting})
        finally:
            timer.cancel()
            posting.cancel()
        if posting.cancelled():
            return f"no answer within {ANSWER_S_MAX} s"
        return posting.result()

    async def _post(self, subscription: Subscription, message: ReceivedMessage) -> str:
        try:
            target = await self._guard.admit(subscription.push_url)
            write = partial(
                push_request,
                subscription,
                message,
                target.url,
                date=formatdate(self._wall_s(), usegmt=True),
                certificate_url=self._certificate_url,
                sign=self._sign,
            )
            request = await asyncio.get_running_loop().run_in_executor(self._signer, write)
            status = await post(target, request, tls=self._tls)
        except EndpointRefused as error:
            return error.why
        except NoAnswer as error:
            return str(error)
        except Exception:
            log.exception("a push of %s of %s failed for a reason of our own", subscription.name, subscription.topic)
            return "a defect of this server"
        return "" if status in _ACCEPTED else f"status {status}"


PERIOD_MS = 60 * SECOND_MS
_SUBJECTS_MAX = 10_000


class LogThrottle:
    """Remembers what was said lately."""

    def __init__(self, clock: Clock) -> None:
        """Begin with nothing said."""
        self._clock = clock
        self._said: dict[Hashable, int] = {}

    def due(self, subject: Hashable) -> bool:
        """Return whether a line about ``subject`` is due; the caller logs it."""
        now_ms = self._clock.now_ms()
        if now_ms < self._said.get(subject, 0) + PERIOD_MS:
            return False
        if len(self._said) >= _SUBJECTS_MAX:
            self._said.clear()
        self._said[subject] = now_ms
        return True


LEASE_S = 15
"""How long a message that is being pushed is hidden; an attempt may last ``ANSWER_S_MAX``."""

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
        self._throttle = LogThrottle(clock)
        self._lines: dict[str, PushedSubscription] = {}
        self._receivers: dict[tuple[str, int], Receiver] = {}
        self._row: dict[PushedSubscription, None] = {}  # a set in order
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
            await execute(self._engine, ListPushes())  # its result comes after all earlier ones
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
        line = PushedSubscription(subscription, self._receiver(subscription), clock=self._clock, ready=self._stand)
        known = self._lines.get(line.queue)
        if known is not None:
            known.subscription, known.receiver = subscription, line.receiver
            return
        self._lines[line.queue] = line
        self._engine.watch(line.queue, line.wake)
        line.wake(self._clock.now_ms())

    def _drop(self, line: PushedSubscription) -> None:
        line.rest()
        self._row.pop(line, None)
        if self._lines.pop(line.queue, None) is not None:
            self._engine.unwatch(line.queue)

    def _receiver(self, subscription: Subscription) -> Receiver:
        url = read_push_url(subscription.push_url)
        return self._receivers.setdefault((url.host, url.port), Receiver())

    def _stand(self, line: PushedSubscription) -> None:
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

    def _ask(self, line: PushedSubscription, places: int) -> None:
        line.ask()
        line.receiver.running += places
        self._places -= places
        take = commands.Receive(queue=line.queue, count=places, timeout_s=LEASE_S)
        self._engine.submit(take, partial(self._taken, line, line.receiver, places))

    def _taken(self, line: PushedSubscription, receiver: Receiver, places: int, result: Received | VeilmqError) -> None:
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

    async def _push(self, line: PushedSubscription, receiver: Receiver, message: ReceivedMessage) -> None:
        problem = "it was cut short"
        self._counts.pushes_running += 1
        try:
            problem = await self._attempts.attempt(line.subscription, message)
            await self._settle(line, message, problem)
        except VeilmqError as error:
            log.debug("a push of %s was not settled; it comes again: %s", line.queue, error)
        finally:
            self._counts.pushes_running -= 1
            receiver.end(succeeded=not problem)
            self._places += 1
            self._fill()

    async def _settle(self, line: PushedSubscription, message: ReceivedMessage, problem: str) -> None:
        """Delete the message, or have it tried again."""
        if not problem:
            await self._delete(line, message, PushOutcome.ACCEPTED)
            return
        delay_s = retry_delay_s(line.subscription.strategy, message.receive_count, self._chance())
        self._log_failure(line.subscription, message, problem, delay_s)
        if delay_s is None:
            await self._delete(line, message, PushOutcome.GIVEN_UP)
            return
        change = VisibilityChange(receipt=message.receipt, timeout_s=delay_s)
        await execute(self._engine, commands.ChangeVisibility(queue=line.queue, changes=(change,)))
        self._counts.pushes[PushOutcome.FAILED] += 1

    async def _delete(self, line: PushedSubscription, message: ReceivedMessage, outcome: PushOutcome) -> None:
        await execute(self._engine, commands.Delete(queue=line.queue, receipts=(message.receipt,)))
        self._counts.pushes[outcome] += 1

    def _log_failure(
        self, subscription: Subscription, message: ReceivedMessage, problem: str, delay_s: int | None
    ) -> None:
        if self._throttle.due((subscription.topic, subscription.name, delay_s is None)):
            then = "given up" if delay_s is None else f"tried again in {delay_s} s"
            log.warning(
                "message %s was not pushed to subscription %s of %s, and is %s: %s",
                message.id.hex().upper(),
                subscription.name,
                subscription.topic,
                then,
                problem,
            )
