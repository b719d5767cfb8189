"""The rows of topics and subscriptions, found by name."""

from typing import Any, NamedTuple

import msgspec

from veilmq.core.topic_errors import SubscriptionNotFound, TopicNotFound
from veilmq.core.topics import Subscription, SubscriptionView, TopicSettings
from veilmq.engines.named_sql import load

SQL = load("veilmq.engines.postgres", "topics.sql")

_settings = msgspec.json.Decoder(TopicSettings).decode
_subscription = msgspec.json.Decoder(Subscription).decode


class Topic(NamedTuple):
    """One topic as it was at the instant ``now_ms``."""

    number: int
    name: str
    settings: TopicSettings
    created_at_ms: int
    modified_at_ms: int
    now_ms: int


def topic_of(row: Any) -> Topic:
    """Return the topic of a row."""
    number, name, settings, *rest = row
    return Topic(number, name, _settings(settings), *rest)


async def topic_named(connection: Any, name: str, *, locked: bool = False) -> Topic:
    """Return the topic of that full name, for this transaction to change if ``locked``; raises ``TopicNotFound``."""
    row = await connection.fetchrow(SQL["lock_topic" if locked else "find_topic"], name)
    if row is None:
        raise TopicNotFound(name)
    return topic_of(row)


async def subscriptions_of(connection: Any, topic: Topic) -> list[Subscription]:
    """Return the subscriptions of ``topic`` in the order of their names."""
    return [_subscription(content) for content, *_ in await connection.fetch(SQL["subscriptions"], topic.number)]


async def pushed(connection: Any) -> list[Subscription]:
    """Return every subscription of the store that is pushed."""
    return [_subscription(content) for (content,) in await connection.fetch(SQL["pushes"])]


async def view_named(connection: Any, topic: Topic, name: str) -> SubscriptionView:
    """Return a subscription of ``topic``; raises ``SubscriptionNotFound``."""
    row = await connection.fetchrow(SQL["find_subscription"], topic.number, name)
    if row is None:
        raise SubscriptionNotFound(topic.name, name)
    return view_of(row)


def view_of(row: Any) -> SubscriptionView:
    """Return the subscription of a row."""
    content, created_at_ms, modified_at_ms = row
    return SubscriptionView(
        subscription=_subscription(content), created_at_ms=created_at_ms, modified_at_ms=modified_at_ms
    )
