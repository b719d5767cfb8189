"""The commands on topics and subscriptions; what is published to them goes out in ``topic_messages``.

A subscription that is pushed has a queue of its own from ``Subscribe`` until it ends, which is made and deleted here,
in the same transactions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from veilmq.core.commands import Command
from veilmq.core.errors import StoreFull
from veilmq.core.limits import MESSAGE_BYTES, SMQ_SUBSCRIPTIONS_MAX, SMQ_TOPIC_RETENTION_S
from veilmq.core.ports import Wake
from veilmq.core.settings import QueueSettings
from veilmq.core.topic_errors import SubscriptionExists, TooManySubscriptions, TopicExists
from veilmq.core.topics import (
    PUSHES,
    CreateTopic,
    DeleteTopic,
    ListPushes,
    ListSubscriptions,
    ListTopics,
    SetSubscription,
    SetTopic,
    ShowSubscription,
    ShowTopic,
    Subscribe,
    Subscription,
    SubscriptionPage,
    SubscriptionView,
    TopicPage,
    TopicSettings,
    TopicView,
    Unsubscribe,
    push_queue,
)
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.space import Space
from veilmq.engines.embedded.topic_book import Subscribed, Topic, TopicBook

_PUSH_SETTINGS = QueueSettings(
    retention_s=SMQ_TOPIC_RETENTION_S, message_bytes_max=MESSAGE_BYTES.maximum, event_log="off"
)


class Topics:
    """Create, set, show, list and delete topics; the same of their subscriptions."""

    def __init__(self, *, book: TopicBook, catalog: Catalog, space: Space, wakes: Mapping[str, Wake]) -> None:
        """``book`` has the topics, ``catalog`` the queues, ``wakes`` the watches by name."""
        self._book = book
        self._catalog = catalog
        self._space = space
        self._wakes = wakes
        self.handlers: dict[type[Command], Callable[[Any, int], object]] = {
            CreateTopic: self.create,
            SetTopic: self.set,
            DeleteTopic: self.delete,
            ShowTopic: self.show,
            ListTopics: self.list_topics,
            Subscribe: self.subscribe,
            SetSubscription: self.set_subscription,
            Unsubscribe: self.unsubscribe,
            ShowSubscription: self.show_subscription,
            ListSubscriptions: self.list_subscriptions,
            ListPushes: self.list_pushes,
        }

    # Topics.

    def create(self, command: CreateTopic, now_ms: int) -> TopicView:
        """Add the topic, or find it as it was asked for."""
        topic = self._book.find(command.topic)
        if topic is None:
            self._need_room(now_ms)
            topic = self._book.create(command.topic, TopicSettings().changed(command.settings), now_ms)
            return self._view(topic, now_ms, is_new=True)
        setting = topic.settings.first_difference(command.settings)
        if setting is not None:
            raise TopicExists(command.topic, setting)
        return self._view(topic, now_ms)

    def set(self, command: SetTopic, now_ms: int) -> None:
        """Change settings."""
        topic = self._book.topic(command.topic)
        self._book.change(topic, topic.settings.changed(command.settings), now_ms)

    def delete(self, command: DeleteTopic, now_ms: int) -> None:
        """Remove the topic, its subscriptions and their own queues."""
        topic = self._book.topic(command.topic)
        for each in topic.subscriptions.values():
            self._end(each.subscription, now_ms)
        self._book.delete(topic)

    def show(self, command: ShowTopic, now_ms: int) -> TopicView:
        """Tell what the topic is."""
        return self._view(self._book.topic(command.topic), now_ms)

    def list_topics(self, command: ListTopics, now_ms: int) -> TopicPage:
        """Tell one page of topics."""
        account = f"{command.account}/"
        topics = self._book.topics(
            prefix=account + command.prefix, after=account + command.after, count=command.count + 1
        )
        page = [self._view(topic, now_ms) for topic in topics[: command.count]]
        return TopicPage(topics=page, more=len(topics) > command.count)

    # Subscriptions.

    def subscribe(self, command: Subscribe, now_ms: int) -> SubscriptionView:
        """Add the subscription, with a queue of its own if it is pushed, or find it as it was asked for."""
        wanted = command.subscription
        topic = self._book.topic(wanted.topic)
        existing = topic.subscriptions.get(wanted.name)
        if existing is not None:
            _check_same(existing.subscription, wanted)
            return _told(existing)
        if len(topic.subscriptions) >= SMQ_SUBSCRIPTIONS_MAX:
            raise TooManySubscriptions(SMQ_SUBSCRIPTIONS_MAX)
        self._need_room(now_ms)
        number = None
        if wanted.push_url:
            number = self._catalog.create(push_queue(topic.name, wanted.name), _PUSH_SETTINGS, now_ms).number
        else:
            self._catalog.queue(wanted.queue)
        added = self._book.subscribe(topic, wanted, push_queue=number, now_ms=now_ms)
        self._tell_of_pushes(wanted, now_ms)
        return replace(_told(added), is_new=True)

    def set_subscription(self, command: SetSubscription, now_ms: int) -> None:
        """Change the strategy."""
        topic = self._book.topic(command.topic)
        subscribed = topic.subscribed(command.name)
        self._book.set_strategy(topic, subscribed, command.strategy, now_ms)
        self._tell_of_pushes(subscribed.subscription, now_ms)

    def unsubscribe(self, command: Unsubscribe, now_ms: int) -> None:
        """Remove the subscription, and its own queue."""
        topic = self._book.topic(command.topic)
        self._end(topic.subscribed(command.name).subscription, now_ms)
        self._book.unsubscribe(topic, command.name)

    def show_subscription(self, command: ShowSubscription, now_ms: int) -> SubscriptionView:
        """Tell what the subscription is."""
        return _told(self._book.topic(command.topic).subscribed(command.name))

    def list_subscriptions(self, command: ListSubscriptions, now_ms: int) -> SubscriptionPage:
        """Tell one page of subscriptions."""
        found = [
            _told(each)
            for name, each in self._book.topic(command.topic).subscriptions.items()
            if name > command.after and name.startswith(command.prefix)
        ]
        return SubscriptionPage(subscriptions=found[: command.count], more=len(found) > command.count)

    def list_pushes(self, command: ListPushes, now_ms: int) -> list[Subscription]:
        """Tell all subscriptions that are pushed."""
        everyone = (each.subscription for topic in self._book.topics() for each in topic.subscriptions.values())
        return [subscription for subscription in everyone if subscription.push_url]

    # What they share.

    def _need_room(self, now_ms: int) -> None:
        if self._space.is_short and self._space.look_again(now_ms):
            raise StoreFull

    def _end(self, subscription: Subscription, now_ms: int) -> None:
        """Delete the own queue of a subscription; nobody can have claimed it or staged anything for it."""
        queue = self._catalog.find(push_queue(subscription.topic, subscription.name))
        if queue is not None:
            self._catalog.delete(queue)
            queue.rouse(now_ms)
            self._tell_of_pushes(subscription, now_ms)

    def _tell_of_pushes(self, subscription: Subscription, now_ms: int) -> None:
        wake = self._wakes.get(PUSHES)
        if wake is not None and subscription.push_url:
            wake(now_ms)

    def _view(self, topic: Topic, now_ms: int, *, is_new: bool = False) -> TopicView:
        return TopicView(
            topic=topic.name,
            settings=topic.settings,
            created_at_ms=topic.created_at_ms,
            modified_at_ms=topic.modified_at_ms,
            messages=sum(self._waiting(each.subscription, now_ms) for each in topic.subscriptions.values()),
            is_new=is_new,
        )

    def _waiting(self, subscription: Subscription, now_ms: int) -> int:
        queue = self._catalog.find(push_queue(subscription.topic, subscription.name))
        if queue is None:
            return 0
        queue.expire(now_ms)
        return sum(lane.counters.messages for lane in queue.lanes)


def _check_same(existing: Subscription, wanted: Subscription) -> None:
    """Raise ``SubscriptionExists`` where they differ."""
    for field in Subscription.__struct_fields__:
        if getattr(existing, field) != getattr(wanted, field):
            raise SubscriptionExists(wanted.topic, wanted.name, field)


def _told(subscribed: Subscribed) -> SubscriptionView:
    return SubscriptionView(
        subscription=subscribed.subscription,
        created_at_ms=subscribed.created_at_ms,
        modified_at_ms=subscribed.modified_at_ms,
    )
