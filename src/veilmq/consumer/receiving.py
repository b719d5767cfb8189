"""Receives messages and leases them, in the thread that received them: no event loop that is blocked costs a lease."""

import uuid

from veilmq.client.port import MessageClient
from veilmq.consumer.dead_letters import FIFO_SUFFIX
from veilmq.consumer.handlers import Options
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.leases import Lease
from veilmq.consumer.policies import checked_timeout_s


class Receiver:
    """One queue, as one handler receives from it. ``receive`` may be called by several threads at once."""

    def __init__(self, client: MessageClient, options: Options, table: LeaseTable, *, create: bool = False) -> None:
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
