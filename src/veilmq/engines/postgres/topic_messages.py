"""Publishing to a topic: one message becomes one in the queue of every subscription that wants it, or in none.

First it is found out where it can go: which queues there are, and which of them take it. Then it is stored everywhere
in one transaction.
"""

from typing import Any, NamedTuple

from veilmq.core import fifo
from veilmq.core.commands import NewMessage
from veilmq.core.errors import InternalError, MessageTooLong, QueueNotFound, StoreUnavailable, VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.topics import Notification, PublishedMessage, PublishToTopic, Subscription, push_queue
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.deliveries import Deliveries, Delivery
from veilmq.engines.postgres.next_visible import rouse_groups
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, PartitionRetired
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.topic_rows import Topic, subscriptions_of, topic_named
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.watches import Watches


class _Published(NamedTuple):
    """What a publication came to: what was delivered, and when each of it is visible."""

    deliveries: list[Delivery]
    due_ms: list[int]
    undeliverable: list[tuple[str, VeilmqError]]


class TopicMessages:
    """The command ``PublishToTopic``."""

    def __init__(
        self, *, database: Database, catalog: Catalog, watches: Watches, positions: Positions, totals: Totals
    ) -> None:
        """``watches`` hears of what has come to queues; ``positions`` and ``totals`` are the node's."""
        self._database = database
        self._catalog = catalog
        self._watches = watches
        self._deliveries = Deliveries(positions=positions, totals=totals)
        self._positions = positions
        self._ids = IdSource()

    async def publish(self, command: PublishToTopic) -> PublishedMessage:
        """Store the message in the queue of each subscription that wants its tag."""
        message_id = self._ids.next()
        async with self._database.connection() as connection:
            published = await self._until_done(connection, command, message_id)
            for delivery, due_ms in zip(published.deliveries, published.due_ms, strict=True):
                if delivery.queue.settings.fifo:
                    await rouse_groups(connection, delivery.queue, self._watches)
                else:
                    self._watches.wake(delivery.queue.name, due_ms)
        return PublishedMessage(
            id=message_id, deliveries=len(published.deliveries), undeliverable=tuple(published.undeliverable)
        )

    async def _until_done(self, connection: Any, command: PublishToTopic, message_id: bytes) -> _Published:
        for _ in range(COLLISIONS_MAX):
            try:
                async with connection.transaction():
                    return await self._publish(connection, command, message_id)
            except COLLISIONS:
                self._positions.jump()
            except PartitionRetired:  # what the node knows of a queue was old
                for each in await self._wanting(connection, command):
                    self._catalog.forget(_queue_of(each))
        raise InternalError

    async def _publish(self, connection: Any, command: PublishToTopic, message_id: bytes) -> _Published:
        topic = await topic_named(connection, command.topic)
        if command.size_bytes > topic.settings.message_bytes_max:
            raise MessageTooLong(topic.settings.message_bytes_max)
        deliveries: list[Delivery] = []
        undeliverable: list[tuple[str, VeilmqError]] = []
        for each in await subscriptions_of(connection, topic):
            if not each.wants(command.tag):
                continue
            notification = Notification(subscription=each, id=message_id, published_at_ms=topic.now_ms)
            try:
                queue = await self._queue(connection, topic, _queue_of(each))
                new = command.make(notification)
                _check(queue, new)
                deliveries.append(Delivery(queue, new, message_id))
            except StoreUnavailable:  # of another database, which may well take it: not now, for nobody
                raise
            except VeilmqError as error:
                undeliverable.append((each.name, error))
        return _Published(deliveries, await self._deliveries.store(connection, deliveries), undeliverable)

    async def _queue(self, connection: Any, topic: Topic, name: str) -> Queue:
        """Return the queue of a subscription, wherever it is."""
        queue = self._catalog.known(name) or await self._catalog.target(connection, name, (0, topic.name))
        if queue is None:
            raise QueueNotFound(name)
        return queue

    async def _wanting(self, connection: Any, command: PublishToTopic) -> list[Subscription]:
        topic = await topic_named(connection, command.topic)
        return [each for each in await subscriptions_of(connection, topic) if each.wants(command.tag)]


def _queue_of(subscription: Subscription) -> str:
    return subscription.queue or push_queue(subscription.topic, subscription.name)


def _check(queue: Queue, new: NewMessage) -> None:
    """Raise the reason why the message cannot be stored, if there is one."""
    if queue.settings.fifo:
        fifo.group_of(new, queue.settings)
    elif new.size_bytes > queue.settings.message_bytes_max:
        raise MessageTooLong(queue.settings.message_bytes_max)
