"""Polls a queue: as many messages as there is room for, through one poll while the queue is quiet, several after a hit.

A poll that fails is followed by a pause, from one second up to ten. Only what no pause can mend ends the intake: the
queue does not exist, or we are not allowed to receive from it.

Messages are leased in the thread that received them: an event loop that is blocked costs no lease.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from veilmq.client.messages import ClientError
from veilmq.client.sqs import QueueClient
from veilmq.consumer.endings import FIFO_SUFFIX
from veilmq.consumer.handlers import Options
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.leases import Lease
from veilmq.consumer.policies import checked_timeout_s
from veilmq.consumer.verdicts import plain_code
from veilmq.core.limits import SQS_RECEIVE_COUNT

T = TypeVar("T")

PAUSE_S = 1.0
PAUSE_S_MAX = 10.0
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

_log = logging.getLogger("veilmq.consumer")


class Receiver:
    """One queue, as one handler receives from it. ``receive`` may be called by several threads at once."""

    def __init__(self, client: QueueClient, options: Options, table: LeaseTable, *, create: bool = False) -> None:
        """Ask nothing yet; with ``create`` make the queue, and its dead-letter queue, before the first receive."""
        self._client = client
        self._options = options
        self._table = table
        self.fifo = options.queue.endswith(FIFO_SUFFIX)
        self.subscription = table.subscribe(
            options.queue, options.policy, fifo=self.fifo, strict=options.strict, cap_s=options.timeout_s
        )
        self._queues_timeout_s: int | None = None
        self._names_timeout = not options.policy.queue_decides
        self._missing = [queue for queue in (options.dead_letter, options.queue) if queue] if create else []

    def receive(self, count: int) -> list[Lease]:
        """Wait for up to ``count`` messages.

        Raises ``ClientError``, ``Unreachable``, and ``ValueError`` for a queue whose messages are never hidden.
        """
        table, options = self._table, self._options
        self._create()
        timeout_s = table.receive_timeout_s(self.subscription)
        in_force_s = self._queues_timeout() if timeout_s is None else timeout_s
        requested_at_s = table.clock.now_s()
        messages = self._client.receive(
            options.queue,
            count=count,
            timeout_s=in_force_s if self._names_timeout else timeout_s,
            wait_s=options.wait_s,
            attempt_id=str(uuid.uuid4()) if self.fifo else None,
        )
        return table.take(
            self.subscription,
            messages,
            requested_at_s=requested_at_s,
            answered_at_s=table.clock.now_s(),
            timeout_s=in_force_s,
        )

    def _create(self) -> None:
        """Make the queues that are named; one that is there stays as it is, and a URL names one that is there."""
        for queue in list(self._missing):
            if "/" not in queue:
                self._client.create_queue(queue, {"fifo": True} if queue.endswith(FIFO_SUFFIX) else {})
        self._missing = []

    def _queues_timeout(self) -> int:
        """Return the queue's own visibility timeout, read once.

        It is sent with each receive, so that nobody can change it under our leases, except where the policy leaves it
        to the queue; and there, too, if the queue has visibility rules: they give each message another timeout, and no
        answer says which.
        """
        if self._queues_timeout_s is None:
            settings = self._client.show(self._options.queue).settings
            if settings.visibility_rules:
                self._names_timeout = True
            self._queues_timeout_s = checked_timeout_s(settings.visibility_timeout_s)
        return self._queues_timeout_s


class Intake(Generic[T]):
    """``fill`` starts the polls that there is room for; call it whenever there may be more room."""

    def __init__(
        self,
        receive: Callable[[int], Awaitable[list[T]]],
        *,
        room: Callable[[], int],
        taken: Callable[[list[T]], object],
        failed: Callable[[Exception], object],
        polls_max: int,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        hang_up: Callable[[], object] = lambda: None,
    ) -> None:
        """``receive`` polls for up to so many messages, ``taken`` is given what came, ``failed`` what nothing mends.

        ``room`` says how many messages may come now, apart from what polls on their way may bring; ``hang_up`` has the
        server answer those.
        """
        self._receive = receive
        self._room = room
        self._taken = taken
        self._failed = failed
        self._polls_max = polls_max
        self._pause = pause
        self._hang_up = hang_up
        self._polls: set[asyncio.Task[None] | None] = set()
        self._asked = 0
        self._busy = False
        self._failures = 0
        self._stopped = False
        self._pausing: asyncio.Task[None] | None = None
        self.errors = 0

    @property
    def polling(self) -> int:
        """Return how many polls are on their way."""
        return len(self._polls)

    def fill(self) -> None:
        """Start the polls that there is room for."""
        while not self._stopped and self._pausing is None and len(self._polls) < (self._polls_max if self._busy else 1):
            count = min(SQS_RECEIVE_COUNT.maximum, self._room() - self._asked)
            if count < 1:
                return
            self._asked += count
            poll = asyncio.get_running_loop().create_task(self._poll(count))
            self._polls.add(poll)

    async def answered(self) -> None:
        """Return when the polls that are on their way now have been answered."""
        if polls := [poll for poll in self._polls if poll is not None]:
            await asyncio.wait(polls)

    async def stop(self) -> None:
        """Start no more polls, have those on their way answered, and return when they have been.

        One that waits for a thread or a connection is hung up on as soon as it is sent.
        """
        self._stopped = True
        if self._pausing is not None:
            self._pausing.cancel()
        while polls := [poll for poll in self._polls if poll is not None]:
            self._hang_up()
            await asyncio.wait(polls, timeout=HANG_UP_EVERY_S)

    async def _poll(self, count: int) -> None:
        received: list[T] = []
        try:
            received = await self._receive(count)
            self._failures = 0
            self._busy = bool(received)
        except Exception as error:  # noqa: BLE001 - whatever it was, a consumer that gave up would be worse
            self._after_failure(error)
        finally:
            self._asked -= count
            self._polls -= {asyncio.current_task()}
        self._taken(received)
        self.fill()

    def _after_failure(self, error: Exception) -> None:
        self.errors += 1
        if is_fatal(error):
            self._stopped = True
            self._failed(error)
            return
        if self._stopped:
            return  # a server that was hung up on need not answer
        self._busy = False
        pause_s = min(PAUSE_S * 2**self._failures, PAUSE_S_MAX) * (0.75 + random.random() / 4)
        self._failures = min(self._failures + 1, 10)
        _log.warning("receiving failed, trying again in %.1f s: %s", pause_s, error)
        if self._pausing is None and not self._stopped:
            self._pausing = asyncio.get_running_loop().create_task(self._wait(pause_s))

    async def _wait(self, pause_s: float) -> None:
        try:
            await self._pause(pause_s)
        finally:
            self._pausing = None
        self.fill()


def is_fatal(error: Exception) -> bool:
    """Tell whether no pause mends ``error``: the queue is not there, not ours, or not to be consumed."""
    return isinstance(error, ValueError) or (isinstance(error, ClientError) and plain_code(error.code) in FATAL_CODES)
