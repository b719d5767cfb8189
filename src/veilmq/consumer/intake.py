"""From the queue to the handler: polls, how many messages may come, and the order in which they are handled."""

import asyncio
import logging
import random
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from veilmq.client.messages import ClientError, ReceivedMessage
from veilmq.client.sqs import QueueClient
from veilmq.consumer.context import Context, Item, Undecodable
from veilmq.consumer.handlers import OUTSTANDING_BYTES_MAX, Batching, Handler, Options
from veilmq.consumer.leases import Lease, Subscription
from veilmq.consumer.renewal_policies import checked_timeout_s, plain_code
from veilmq.core.limits import SQS_RECEIVE_COUNT
from veilmq.wire.sqs.names import is_fifo

_log = logging.getLogger("veilmq.consumer")

POLL_PAUSE_S = 1.0
POLL_PAUSE_S_MAX = 10.0
HANG_UP_EVERY_S = 0.05
FATAL_CODES = frozenset(
    {
        "AccessDenied",
        "InvalidAddress",
        "InvalidClientTokenId",
        "InvalidSignature",
        "NonExistentQueue",
        "QueueDoesNotExist",
        "SignatureDoesNotMatch",
        "UnrecognizedClient",
    }
)


@dataclass(eq=False)
class Intake:
    """One queue, as one handler receives from it.

    ``fill`` starts the polls that there is room for; call it whenever there may be more room. ``in_thread`` calls a
    function that blocks. ``room`` says how many messages may come now, apart from what polls on their way may bring;
    ``taken`` is given what came, ``failed`` what nothing mends. With ``create`` make the queue, and its dead-letter
    queue, before the first receive.
    """

    client: QueueClient
    options: Options
    subscription: Subscription
    in_thread: Callable[..., Awaitable[Any]]
    room: Callable[[], int]
    taken: Callable[[list[Lease]], object]
    failed: Callable[[Exception], object]
    create: bool = False
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        options = self.options
        self.prefetch = Prefetch(options.prefetch)
        self._queues_timeout_s: int | None = None
        self._names_timeout = not options.policy.queue_decides
        self._missing = [queue for queue in (options.dead_letter, options.queue) if queue and self.create]
        self.polls: set[Any] = set()
        """The tasks of those on their way."""
        self._requested = 0
        self._busy = False
        self._failures = 0
        self._stopped = False
        self._pausing: asyncio.Task[None] | None = None

    def receive(self, count: int) -> list[Lease]:
        """Wait for up to ``count`` messages; several threads may do so at once.

        The timeout that the queue has is read once, and sent with each receive, so that it cannot change under our
        leases, except where the policy leaves it to the queue; and there, too, if the queue has visibility rules: they
        give each message another timeout, and no reply says which.

        Raises ``ClientError``, ``Unreachable``, and ``ValueError`` for a queue whose messages are never hidden.
        """
        subscription, options = self.subscription, self.options
        table = subscription.table
        for queue in self._missing:  # one that is there stays as it is, and a URL names one that is there
            if "/" not in queue:
                self.client.create_queue(queue, {"fifo": True} if is_fifo(queue) else {})
        self._missing = []
        timeout_s = table.receive_timeout_s(subscription)
        in_force_s = timeout_s
        if in_force_s is None:
            if self._queues_timeout_s is None:
                settings = self.client.show(options.queue).settings
                self._names_timeout = self._names_timeout or bool(settings.visibility_rules)
                self._queues_timeout_s = checked_timeout_s(settings.visibility_timeout_s)
            in_force_s = self._queues_timeout_s
        requested_at_s = table.clock.now_s()
        messages = self.client.receive(
            options.queue,
            count=count,
            timeout_s=in_force_s if self._names_timeout else timeout_s,
            wait_s=options.wait_s,
            attempt_id=str(uuid.uuid4()) if subscription.fifo else None,
        )
        return table.take(
            subscription,
            messages,
            requested_at_s=requested_at_s,
            answered_at_s=table.clock.now_s(),
            timeout_s=in_force_s,
        )

    def fill(self) -> None:
        """Start the polls that there is room for."""
        polls_max = self.options.polls if self._busy else 1
        while not self._stopped and self._pausing is None and len(self.polls) < polls_max:
            count = min(SQS_RECEIVE_COUNT.maximum, self.room() - self._requested)
            if count < 1:
                return
            self._requested += count
            self.polls.add(asyncio.get_running_loop().create_task(self._poll(count)))

    async def stop(self) -> None:
        """Start no more polls, have those on their way answered, and return when they have been.

        One that waits for a thread or a connection is hung up on as soon as it is sent.
        """
        self._stopped = True
        if self._pausing is not None:
            self._pausing.cancel()
        while self.polls:
            self.client.hang_up()
            await asyncio.wait(self.polls, timeout=HANG_UP_EVERY_S)

    async def _poll(self, count: int) -> None:
        loop, received = asyncio.get_running_loop(), list[Lease]()
        began_s = loop.time()
        try:
            received = await self.in_thread(self.receive, count)
            self._failures = 0
            self._busy = bool(received)
            if len(received) == count:  # it did not wait for more
                self.prefetch.received(loop.time() - began_s)
        except Exception as error:  # noqa: BLE001 - whatever it was, a consumer that gave up would be worse
            if is_fatal(error):
                self._stopped = True
                self.failed(error)
            elif not self._stopped:  # a server that was hung up on need not reply
                self._busy = False
                pause_s = min(POLL_PAUSE_S * 2**self._failures, POLL_PAUSE_S_MAX) * (0.75 + random.random() / 4)
                self._failures = min(self._failures + 1, 10)
                _log.warning("receiving failed, trying again in %.1f s: %s", pause_s, error)
                if self._pausing is None:
                    self._pausing = loop.create_task(self._wait(pause_s))
        finally:
            self._requested -= count
            self.polls.discard(asyncio.current_task())
        self.taken(received)
        self.fill()

    async def _wait(self, pause_s: float) -> None:
        try:
            await self.pause(pause_s)
        finally:
            self._pausing = None
        self.fill()


def is_fatal(error: Exception) -> bool:
    """Return whether no pause mends ``error``: the queue is not there, not ours, or not to be consumed."""
    return isinstance(error, ValueError) or (isinstance(error, ClientError) and plain_code(error.code) in FATAL_CODES)


# How many messages are worth having here before a slot is free for them.
#
# Enough that handlers do not wait for a receive, and no more: one that waits here is renewed, counts as received, and
# no other consumer can have it. Slow handlers need none.

SLOW_S = 1.0
PREFETCH_MAX = 100
_SHARE = 0.2


class Prefetch:
    """Follows how long handlers and receives take."""

    def __init__(self, most: int | None = None) -> None:
        self._most = PREFETCH_MAX if most is None else most
        self._handle_s: float | None = None
        self._receive_s = 0.0

    def handled(self, took_s: float) -> None:
        """Take in how long one handler took."""
        self._handle_s = took_s if self._handle_s is None else self._handle_s + _SHARE * (took_s - self._handle_s)

    def received(self, took_s: float) -> None:
        """Take in how long a receive took that brought messages."""
        self._receive_s += _SHARE * (min(took_s, SLOW_S) - self._receive_s)

    def target(self, concurrency: int, *, lease_s: float) -> int:
        """Return how many to hold ready: what is handled during two receives, and within half a lease."""
        if self._handle_s is None or self._handle_s > SLOW_S:
            return 0
        per_s = concurrency / max(self._handle_s, 0.0001)
        return int(min(self._most, per_s * 2 * self._receive_s + 1, per_s * lease_s / 2))


# How many bytes of bodies are held, and how many more messages may come before they are too many.
#
# What a receive brings is not known before: the mean of what came so far stands for it. With nothing held, one
# message may come, whatever its size.


class Outstanding:
    """Counts the bodies of messages from their receive to their settle."""

    def __init__(self, bytes_max: int = OUTSTANDING_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._messages = 0
        self._received_bytes = 0
        self.held_bytes = 0

    def add(self, message: ReceivedMessage) -> None:
        """Count ``message``, which has come."""
        size = body_bytes(message)
        self._messages += 1
        self._received_bytes += size
        self.held_bytes += size

    def remove(self, message: ReceivedMessage) -> None:
        """Count ``message`` no more: it is settled."""
        self.held_bytes -= body_bytes(message)

    def room(self, most: int) -> int:
        """Return how many messages may come, up to ``most``: one at least until the limit is reached."""
        left = self._bytes_max - self.held_bytes
        if left <= 0:
            return 0
        if left * self._messages >= most * self._received_bytes:
            return most
        return max(1, left * self._messages // self._received_bytes)


def body_bytes(message: ReceivedMessage) -> int:
    """Return the length of the body of ``message`` in UTF-8."""
    body = message.body
    return len(body) if body.isascii() else len(body.encode())


# Which messages the next call of the handler is given: in the order of arrival one, or a batch; and in a FIFO queue one
# of each group at a time.
#
# The rest of a group waits behind the one in work. When that fails, the rest is handed back to be released at once: the
# queue gives nothing of the group until the head returns, so the order holds without a wait here.
#
# A batch stays open until it is full, or its first message has lingered and a call could begin. The one that began
# first is given first: a backlog of one key does not keep the messages of another from the handler.


class Schedule:
    """Messages that wait for a call of ``handler``."""

    def __init__(self, handler: Handler, *, ordered: bool, wake: Callable[[], object]) -> None:
        """``ordered`` keeps groups in order; ``wake`` is called when a batch has waited long enough."""
        self._handler = handler
        self._ordered = ordered
        self._wake = wake
        self._ready: deque[list[Context]] = deque()
        self._groups: dict[str, deque[Context]] = {}
        """The message of each group that is ready or in work, with those that wait behind it."""
        self._open: dict[object, tuple[float, list[Context]]] = {}
        """When each is due, with its messages, by key; the first is due first."""
        self._timer: asyncio.TimerHandle | None = None
        self.ready = 0
        """How many could begin now, or when their batch is full or has waited."""
        self.behind = 0
        """How many wait behind another of their group."""

    def __len__(self) -> int:
        """Return how many messages wait."""
        return self.ready + self.behind

    def add(self, delivery: Context) -> None:
        """Put ``delivery`` at the end of its group, of its batch, or of all.

        Raises what the user's function for keys of batches raises, and ``TypeError`` for what is no key.
        """
        group, batching = delivery.message.group, self._handler.batching
        if self._ordered and group is not None:
            if group in self._groups:
                self._groups[group].append(delivery)
                self.behind += 1
                return
            self._groups[group] = deque([delivery])
        if batching is None:
            self._ready.append([delivery])
        else:
            key, due_s = self._key(batching, delivery), asyncio.get_running_loop().time() + batching.linger_s
            _, members = self._open.setdefault(key, (due_s, []))
            members.append(delivery)
            if len(members) >= batching.size_max:
                self._ready.append(members)
                del self._open[key]
        self.ready += 1

    def next(self) -> list[Context]:
        """Take what the next call is given; nothing when there is nothing to call for yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._open:
            loop, (key, (due_s, members)) = asyncio.get_running_loop(), next(iter(self._open.items()))
            is_first = not self._ready or members[0].lease.received_at_s < self._ready[0][0].lease.received_at_s
            if is_first and loop.time() >= due_s:
                self._ready.appendleft(members)
                del self._open[key]
            elif not self._ready:
                self._timer = loop.call_at(due_s, self._wake)
        if not self._ready:
            return []
        taken = self._ready.popleft()
        self.ready -= len(taken)
        return taken

    def done(self, delivery: Context) -> None:
        """Let the next of the group begin: ``delivery`` is settled for good."""
        group = self._headed_by(delivery)
        if len(group) > 1:
            group.popleft()
            self.behind -= 1
            self.ready += 1
            self._ready.append([group[0]])
        elif group:
            del self._groups[delivery.message.group or ""]

    def failed(self, delivery: Context) -> list[Context]:
        """Return what waited behind ``delivery``, which returns later; it waits here no more."""
        group = self._headed_by(delivery)
        if group:
            del self._groups[delivery.message.group or ""]
            self.behind -= len(group) - 1
        return list(group)[1:]

    def remove(self, delivery: Context) -> list[Context]:
        """Take out ``delivery``, which waits and is ours no more, with what waits behind it: that is returned."""
        for members in (*self._ready, *(members for _, members in self._open.values())):
            if delivery in members:
                members.remove(delivery)
                self.ready -= 1
                if not members:
                    self._ready = deque(filter(None, self._ready))
                    self._open = {key: batch for key, batch in self._open.items() if batch[1]}
                return self.failed(delivery)
        group = self._groups.get(delivery.message.group or "", deque())
        if delivery not in islice(group, 1, None):
            return []
        behind = []
        while (last := group.pop()) is not delivery:
            behind.append(last)
        self.behind -= len(behind) + 1
        return behind[::-1]

    def drain(self) -> list[Context]:
        """Take out everything that waits; groups with a message in work stay closed."""
        waiting = [*(members for _, members in self._open.values()), *self._ready]
        waiting += [list(group)[1:] for group in self._groups.values()]
        drained = [delivery for members in waiting for delivery in members]
        self._open.clear()
        self._ready.clear()
        self._groups = {name: deque([group[0]]) for name, group in self._groups.items()}
        self.ready = self.behind = 0
        return drained

    def _headed_by(self, delivery: Context) -> deque[Context]:
        """Return the group that ``delivery`` heads; none where it has come again before the reply to the release."""
        group = self._groups.get(delivery.message.group or "")
        return group if group and group[0] is delivery else deque()

    def _key(self, batching: Batching, delivery: Context) -> object:
        if batching.key is None:
            return None
        try:
            return batching.key(Item(self._handler.decode(delivery.message), delivery))
        except Undecodable:
            return None  # it fails with its batch's call, alone
