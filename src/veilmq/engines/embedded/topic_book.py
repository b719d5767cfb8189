"""The topics of one store and their subscriptions: in memory as a whole, and in the journal.

They are few and small beside messages, and every publication needs those of its topic.
"""

from bisect import bisect_left, bisect_right, insort

import msgspec
from msgspec.structs import replace

from veilmq.core.topic_errors import SubscriptionNotFound, TopicNotFound
from veilmq.core.topics import RetryStrategy, Subscription, TopicSettings
from veilmq.engines.embedded.journal import Journal

_encode = msgspec.json.Encoder().encode
_settings = msgspec.json.Decoder(TopicSettings).decode
_subscription = msgspec.json.Decoder(Subscription).decode


class Subscribed(msgspec.Struct, eq=False):
    """A subscription as it is now."""

    subscription: Subscription
    created_at_ms: int
    modified_at_ms: int


class Topic(msgspec.Struct, eq=False):
    """A topic as it is now; ``subscriptions`` are by their names, in the order of names."""

    number: int
    name: str
    settings: TopicSettings
    created_at_ms: int
    modified_at_ms: int
    subscriptions: dict[str, Subscribed] = {}

    def subscribed(self, name: str) -> Subscribed:
        """Return the subscription of that name; raises ``SubscriptionNotFound``."""
        try:
            return self.subscriptions[name]
        except KeyError:
            raise SubscriptionNotFound(self.name, name) from None


class TopicBook:
    """All topics by full name."""

    def __init__(self, *, journal: Journal) -> None:
        """Load what ``journal`` has."""
        self._journal = journal
        self._topics = {
            row[1]: Topic(row[0], row[1], _settings(row[2]), *row[3:]) for row in journal.rows("all_topics")
        }
        self._names = sorted(self._topics)
        by_number = {topic.number: topic for topic in self._topics.values()}
        for number, content, *times in journal.rows("all_subscriptions"):
            subscription = _subscription(content)
            by_number[number].subscriptions[subscription.name] = Subscribed(subscription, *times)

    def find(self, name: str) -> Topic | None:
        """Return the topic of that full name, if there is one."""
        return self._topics.get(name)

    def topic(self, name: str) -> Topic:
        """Return the topic of that full name; raises ``TopicNotFound``."""
        try:
            return self._topics[name]
        except KeyError:
            raise TopicNotFound(name) from None

    def topics(self, *, prefix: str = "", after: str = "", count: int | None = None) -> list[Topic]:
        """Return up to ``count`` topics whose full names begin with ``prefix`` and follow ``after``, in order."""
        start = max(bisect_left(self._names, prefix), bisect_right(self._names, after))
        end = None if count is None else start + count
        return [self._topics[name] for name in self._names[start:end] if name.startswith(prefix)]

    def create(self, name: str, settings: TopicSettings, now_ms: int) -> Topic:
        """Add a topic that does not exist yet."""
        ((number,),) = self._journal.write("insert_topic", name, _encode(settings), now_ms, now_ms)
        topic = self._topics[name] = Topic(number, name, settings, now_ms, now_ms)
        insort(self._names, name)
        return topic

    def change(self, topic: Topic, settings: TopicSettings, now_ms: int) -> None:
        """Give ``topic`` other settings."""
        topic.settings = settings
        topic.modified_at_ms = now_ms
        self._journal.write("update_topic", _encode(settings), now_ms, topic.number)

    def delete(self, topic: Topic) -> None:
        """Remove ``topic`` and its subscriptions."""
        self._journal.write("delete_subscriptions_of", topic.number)
        self._journal.write("delete_topic", topic.number)
        del self._topics[topic.name]
        del self._names[bisect_left(self._names, topic.name)]

    def subscribe(self, topic: Topic, subscription: Subscription, *, push_queue: int | None, now_ms: int) -> Subscribed:
        """Add a subscription that does not exist yet; ``push_queue`` is the number of its own queue, if it has one."""
        added = Subscribed(subscription, now_ms, now_ms)
        name = subscription.name
        topic.subscriptions = dict(sorted({**topic.subscriptions, name: added}.items()))
        content = _encode(subscription)
        self._journal.write("insert_subscription", topic.number, name, content, push_queue, now_ms, now_ms)
        return added

    def set_strategy(self, topic: Topic, subscribed: Subscribed, strategy: RetryStrategy, now_ms: int) -> None:
        """Have the pushes of a subscription tried again otherwise."""
        subscribed.subscription = replace(subscribed.subscription, strategy=strategy)
        subscribed.modified_at_ms = now_ms
        content, name = _encode(subscribed.subscription), subscribed.subscription.name
        self._journal.write("update_subscription", content, now_ms, topic.number, name)

    def unsubscribe(self, topic: Topic, name: str) -> None:
        """Remove a subscription."""
        del topic.subscriptions[name]
        self._journal.write("delete_subscription", topic.number, name)
