"""The commands on topics and subscriptions; what is published to them goes out in ``topic_messages``.

A subscription that is pushed has a queue of its own from ``Subscribe`` until it ends, which is made and deleted here,
in the same transactions. Whoever changes a topic or its subscriptions locks the topic's row.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import MESSAGE_BYTES, SMQ_SUBSCRIPTIONS_MAX, SMQ_TOPIC_RETENTION_S
from veilmq.core.settings import QueueSettings
from veilmq.core.topic_errors import SubscriptionExists, SubscriptionNotFound, TooManySubscriptions, TopicExists
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
from veilmq.engines.postgres import queue_rows
from veilmq.engines.postgres.catalog import SQL as QUEUES
from veilmq.engines.postgres.catalog import Catalog, queue_of
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.on_queue import retention_ms, sql
from veilmq.engines.postgres.topic_rows import (
    SQL,
    Topic,
    pushed,
    subscriptions_of,
    topic_named,
    topic_of,
    view_named,
    view_of,
)
from veilmq.engines.postgres.watches import Watches

_PUSH_SETTINGS = QueueSettings(
    retention_s=SMQ_TOPIC_RETENTION_S, message_bytes_max=MESSAGE_BYTES.maximum, event_log="off"
)


class Topics:
    """Create, set, show, list and delete topics; the same of their subscriptions."""

    def __init__(self, *, database: Database, catalog: Catalog, watches: Watches) -> None:
        """``watches`` hears of subscriptions that are pushed, and of their queues."""
        self._database = database
        self._catalog = catalog
        self._watches = watches

    # Topics.

    async def create(self, command: CreateTopic) -> TopicView:
        """Add the topic, or find it as it was asked for."""
        settings = TopicSettings().changed(command.settings)
        async with self._database.connection() as connection:
            row = await connection.fetchrow(SQL["insert_topic"], command.topic, msgspec.json.encode(settings))
            if row is not None:
                return replace(await self._view(connection, topic_of(row)), is_new=True)
            topic = await topic_named(connection, command.topic)
            setting = topic.settings.first_difference(command.settings)
            if setting is not None:
                raise TopicExists(command.topic, setting)
            return await self._view(connection, topic)

    async def set(self, command: SetTopic) -> None:
        """Change settings."""
        async with self._database.connection() as connection, connection.transaction():
            topic = await topic_named(connection, command.topic, locked=True)
            settings = topic.settings.changed(command.settings)
            await connection.execute(SQL["update_topic"], topic.number, msgspec.json.encode(settings))

    async def delete(self, command: DeleteTopic) -> None:
        """Remove the topic, its subscriptions and their own queues."""
        async with self._database.connection() as connection, connection.transaction():
            topic = await topic_named(connection, command.topic, locked=True)
            ended = await subscriptions_of(connection, topic)
            for each in ended:
                await self._end(connection, each)
            await connection.execute(SQL["delete_topic"], topic.number)
        self._tell_of_ends(ended, topic.now_ms)

    async def show(self, command: ShowTopic) -> TopicView:
        """Tell what the topic is."""
        async with self._database.connection() as connection:
            return await self._view(connection, await topic_named(connection, command.topic))

    async def list_topics(self, command: ListTopics) -> TopicPage:
        """Tell one page of topics."""
        account = f"{command.account}/"
        async with self._database.connection() as connection:
            rows = await connection.fetch(
                SQL["list_topics"], account + command.prefix, account + command.after, command.count + 1
            )
            page = [await self._view(connection, topic_of(row)) for row in rows[: command.count]]
        return TopicPage(topics=page, more=len(rows) > command.count)

    # Subscriptions.

    async def subscribe(self, command: Subscribe) -> SubscriptionView:
        """Add the subscription, with a queue of its own if it is pushed, or find it as it was asked for."""
        wanted = command.subscription
        async with self._database.connection() as connection, connection.transaction():
            topic = await topic_named(connection, wanted.topic, locked=True)
            try:
                existing = await view_named(connection, topic, wanted.name)
            except SubscriptionNotFound:
                added = await self._add(connection, topic, wanted)
            else:
                _check_same(existing.subscription, wanted)
                return existing
        self._tell_of_pushes(wanted, topic.now_ms)
        return replace(added, is_new=True)

    async def _add(self, connection: Any, topic: Topic, wanted: Subscription) -> SubscriptionView:
        if await connection.fetchval(SQL["count_subscriptions"], topic.number) >= SMQ_SUBSCRIPTIONS_MAX:
            raise TooManySubscriptions(SMQ_SUBSCRIPTIONS_MAX)
        if wanted.push_url:
            await queue_rows.insert(connection, push_queue(topic.name, wanted.name), _PUSH_SETTINGS)
        else:
            if await self._catalog.settings(connection, wanted.queue) is None:
                raise QueueNotFound(wanted.queue)
        content = msgspec.json.encode(wanted)
        pushed = bool(wanted.push_url)
        return view_of(
            await connection.fetchrow(SQL["insert_subscription"], topic.number, wanted.name, content, pushed)
        )

    async def set_subscription(self, command: SetSubscription) -> None:
        """Change the strategy."""
        async with self._database.connection() as connection, connection.transaction():
            topic = await topic_named(connection, command.topic, locked=True)
            before = await view_named(connection, topic, command.name)
            changed = replace(before.subscription, strategy=command.strategy)
            content = msgspec.json.encode(changed)
            await connection.execute(SQL["update_subscription"], topic.number, command.name, content)
        self._tell_of_pushes(changed, topic.now_ms)

    async def unsubscribe(self, command: Unsubscribe) -> None:
        """Remove the subscription, and its own queue."""
        async with self._database.connection() as connection, connection.transaction():
            topic = await topic_named(connection, command.topic, locked=True)
            ended = (await view_named(connection, topic, command.name)).subscription
            await self._end(connection, ended)
            await connection.execute(SQL["delete_subscription"], topic.number, command.name)
        self._tell_of_ends([ended], topic.now_ms)

    async def show_subscription(self, command: ShowSubscription) -> SubscriptionView:
        """Tell what the subscription is."""
        async with self._database.connection() as connection:
            return await view_named(connection, await topic_named(connection, command.topic), command.name)

    async def list_subscriptions(self, command: ListSubscriptions) -> SubscriptionPage:
        """Tell one page of subscriptions."""
        async with self._database.connection() as connection:
            topic = await topic_named(connection, command.topic)
            rows = await connection.fetch(
                SQL["list_subscriptions"], topic.number, command.prefix, command.after, command.count + 1
            )
        found = [view_of(row) for row in rows[: command.count]]
        return SubscriptionPage(subscriptions=found, more=len(rows) > command.count)

    async def list_pushes(self, command: ListPushes) -> list[Subscription]:
        """Tell all subscriptions that are pushed."""
        async with self._database.connection() as connection:
            return await pushed(connection)

    # What they share.

    async def _end(self, connection: Any, subscription: Subscription) -> None:
        """Delete the own queue of a subscription, if it has one."""
        if subscription.push_url:
            name = push_queue(subscription.topic, subscription.name)
            row = await connection.fetchrow(QUEUES["lock_queue"], name)
            if row is not None:
                await queue_rows.remove(connection, queue_of(row))

    def _tell_of_ends(self, ended: list[Subscription], now_ms: int) -> None:
        for each in ended:
            if each.push_url:
                name = push_queue(each.topic, each.name)
                self._catalog.forget(name)
                self._watches.wake(name, now_ms)
                self._tell_of_pushes(each, now_ms)

    # A node that misses what is told here finds no queue of that name in its next round, and has pushes listed then.

    def _tell_of_pushes(self, subscription: Subscription, now_ms: int) -> None:
        if subscription.push_url:
            self._watches.wake(PUSHES, now_ms)

    async def _view(self, connection: Any, topic: Topic) -> TopicView:
        subscriptions = await subscriptions_of(connection, topic)
        return TopicView(
            topic=topic.name,
            settings=topic.settings,
            created_at_ms=topic.created_at_ms,
            modified_at_ms=topic.modified_at_ms,
            messages=sum([await self._waiting(connection, each) for each in subscriptions]),
        )

    async def _waiting(self, connection: Any, subscription: Subscription) -> int:
        if not subscription.push_url:
            return 0
        queue = await self._catalog.find(connection, push_queue(subscription.topic, subscription.name))
        if queue is None:
            return 0
        counts = await connection.fetchrow(sql(queue)["count"], queue.partition, retention_ms(queue))
        return int(counts["visible"] + counts["in_flight"] + counts["delayed"])


def _check_same(existing: Subscription, wanted: Subscription) -> None:
    """Raise ``SubscriptionExists`` where they differ."""
    for field in Subscription.__struct_fields__:
        if getattr(existing, field) != getattr(wanted, field):
            raise SubscriptionExists(wanted.topic, wanted.name, field)
