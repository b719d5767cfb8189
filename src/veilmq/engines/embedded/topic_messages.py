"""Publishing to a topic: one message becomes one in the queue of every subscription that wants it, or in none.

First it is found out where it can go: which queues there are, which of them take it, and that each has a lane. Nothing
that could refuse it is left after that, so it is stored everywhere in the transaction of its command.
"""

from veilmq.core import fifo
from veilmq.core.commands import NewMessage
from veilmq.core.errors import MessageTooLong, StoreFull, VeilmqError
from veilmq.core.ids import IdSource
from veilmq.core.topics import Notification, PublishedMessage, PublishToTopic, Subscription, push_queue
from veilmq.engines.embedded import groups
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.fifo_sends import FifoSends
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.shown_times import ShownTimes
from veilmq.engines.embedded.space import Space
from veilmq.engines.embedded.topic_book import TopicBook


class TopicMessages:
    """The command ``PublishToTopic``."""

    def __init__(
        self, *, book: TopicBook, catalog: Catalog, space: Space, fifo_sends: FifoSends, shown: ShownTimes
    ) -> None:
        """``fifo_sends`` is the one that the senders use; ``shown`` has what times of messages are shown with."""
        self._book = book
        self._catalog = catalog
        self._space = space
        self._fifo_sends = fifo_sends
        self._shown = shown
        self._ids = IdSource()

    def publish(self, command: PublishToTopic, now_ms: int) -> PublishedMessage:
        """Store the message in the queue of each subscription that wants its tag."""
        topic = self._book.topic(command.topic)
        if command.size_bytes > topic.settings.message_bytes_max:
            raise MessageTooLong(topic.settings.message_bytes_max)
        if self._space.is_short and self._space.look_again(now_ms):
            raise StoreFull
        message_id = self._ids.next()
        published_at_ms = now_ms + self._shown.ahead_ms
        deliveries: list[tuple[Queue, NewMessage]] = []
        undeliverable: list[tuple[str, VeilmqError]] = []
        for name, subscribed in topic.subscriptions.items():
            if not subscribed.subscription.wants(command.tag):
                continue
            notification = Notification(
                subscription=subscribed.subscription, id=message_id, published_at_ms=published_at_ms
            )
            try:
                queue, new = self._catalog.queue(_queue_of(subscribed.subscription)), command.make(notification)
                _check(queue, new)
                deliveries.append((queue, new))
            except StoreFull:
                raise
            except VeilmqError as error:
                undeliverable.append((name, error))
        self._deliver(deliveries, message_id, now_ms)
        return PublishedMessage(id=message_id, deliveries=len(deliveries), undeliverable=tuple(undeliverable))

    def _deliver(self, deliveries: list[tuple[Queue, NewMessage]], message_id: bytes, now_ms: int) -> None:
        for queue, new in deliveries:
            group_key = None if new.group is None else groups.key_of(new.group)
            if queue.settings.fifo:
                assert group_key is not None, "it was looked at before"
                self._fifo_sends.forward(queue, new, message_id, group_key, now_ms)
                queue.rouse_groups(now_ms)
            else:
                queue.rouse(queue.store(queue.lane_for(new), new, message_id, now_ms, group_key))


def _queue_of(subscription: Subscription) -> str:
    return subscription.queue or push_queue(subscription.topic, subscription.name)


def _check(queue: Queue, new: NewMessage) -> None:
    """Raise the reason why the message cannot be stored, if there is one; otherwise it has a lane."""
    if queue.settings.fifo:
        fifo.group_of(new, queue.settings)
    elif new.size_bytes > queue.settings.message_bytes_max:
        raise MessageTooLong(queue.settings.message_bytes_max)
    queue.lane_for(new)
