"""Topics and their subscriptions, and what is published to them.

A subscription that is pushed has a queue of its own from ``Subscribe`` until it ends; it is made and deleted here, in
the same transactions. A command that changes a topic or its subscriptions locks the topic.

A message that is published becomes one in the queue of every subscription that wants it, in one transaction: first it
is found out which queues there are and which of them take it, then it is stored in all of these.
"""

from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from veilmq.core import fifo
from veilmq.core.commands import NewMessage
from veilmq.core.errors import MessageTooLong, QueueNotFound, StoreFull, StoreUnavailable, VeilmqError
from veilmq.core.limits import MESSAGE_BYTES, SMQ_SUBSCRIPTIONS_MAX, SMQ_TOPIC_RETENTION_S
from veilmq.core.settings import QueueSettings
from veilmq.core.topic_errors import (
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
    TopicExists,
    TopicNotFound,
)
from veilmq.core.topics import (
    PUSHES,
    CreateTopic,
    DeleteTopic,
    ListPushes,
    ListSubscriptions,
    ListTopics,
    Notification,
    PublishedMessage,
    PublishToTopic,
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
from veilmq.store import queue_commands
from veilmq.store.transaction import LAST, QueueRow, Row, Transaction

PUSH_SETTINGS = QueueSettings(
    retention_s=SMQ_TOPIC_RETENTION_S, message_bytes_max=MESSAGE_BYTES.maximum, event_log="off"
)
_read_settings = msgspec.json.Decoder(TopicSettings).decode
_read_subscription = msgspec.json.Decoder(Subscription).decode


class Topic(NamedTuple):
    """A row of ``topic``."""

    number: int
    name: str
    settings: TopicSettings
    created_at_ms: int
    modified_at_ms: int


def _topic(row: Row) -> Topic:
    number, name, settings, created_at_ms, modified_at_ms = row
    return Topic(number, name, _read_settings(settings), created_at_ms, modified_at_ms)


async def _find(tx: Transaction, name: str) -> Topic:
    row = await tx.row("topic", name)
    if row is None:
        raise TopicNotFound(name)
    return _topic(row)


async def _locked(tx: Transaction, name: str) -> Topic:
    if not await tx.lock("topic", name):
        raise TopicNotFound(name)
    return await _find(tx, name)


async def _subscriptions(tx: Transaction, topic: Topic) -> list[Subscription]:
    return [
        _read_subscription(content)
        for content, *_ in await tx.rows("subscriptions", topic.number, "", "", LAST, SMQ_SUBSCRIPTIONS_MAX)
    ]


def _subscribed(row: Row) -> SubscriptionView:
    content, created_at_ms, modified_at_ms = row
    return SubscriptionView(
        subscription=_read_subscription(content), created_at_ms=created_at_ms, modified_at_ms=modified_at_ms
    )


# Topics.


async def create_topic(tx: Transaction, command: CreateTopic) -> TopicView:
    """Add the topic, or find it as it was asked for."""
    while (row := await tx.row("topic", command.topic)) is None:
        tx.need_room()
        settings = msgspec.json.encode(TopicSettings().changed(command.settings))
        row = await tx.row("insert_topic", command.topic, settings, await tx.now())
        if row is not None:
            return replace(await _view(tx, _topic(row)), is_new=True)
    topic = _topic(row)
    setting = topic.settings.first_difference(command.settings)
    if setting is not None:
        raise TopicExists(command.topic, setting)
    return await _view(tx, topic)


async def set_topic(tx: Transaction, command: SetTopic) -> None:
    """Change settings."""
    topic = await _locked(tx, command.topic)
    settings = topic.settings.changed(command.settings)
    await tx.run("update_topic", topic.number, msgspec.json.encode(settings), await tx.now())


async def delete_topic(tx: Transaction, command: DeleteTopic) -> None:
    """Remove the topic, its subscriptions and their own queues."""
    topic = await _locked(tx, command.topic)
    for each in await _subscriptions(tx, topic):
        await _end(tx, each)
    await tx.run("delete_subscriptions", topic.number)
    await tx.run("delete_topic", topic.number)


async def show_topic(tx: Transaction, command: ShowTopic) -> TopicView:
    """Return what the topic is."""
    return await _view(tx, await _find(tx, command.topic))


async def list_topics(tx: Transaction, command: ListTopics) -> TopicPage:
    """Return one page of topics."""
    account = f"{command.account}/"
    prefix = account + command.prefix
    rows = await tx.rows("topics", prefix, account + command.after, prefix + LAST, command.count + 1)
    page = [await _view(tx, _topic(row)) for row in rows[: command.count]]
    return TopicPage(topics=page, more=len(rows) > command.count)


async def _view(tx: Transaction, topic: Topic) -> TopicView:
    """Return the topic with the count of what waits to be pushed."""
    waiting = 0
    for each in await _subscriptions(tx, topic):
        queue = await tx.find(push_queue(topic.name, each.name)) if each.push_url else None
        if queue is not None:
            counts = await tx.counts(queue)
            waiting += counts.visible + counts.in_flight + counts.delayed
    return TopicView(
        topic=topic.name,
        settings=topic.settings,
        created_at_ms=topic.created_at_ms,
        modified_at_ms=topic.modified_at_ms,
        messages=waiting,
    )


# Subscriptions.


async def subscribe(tx: Transaction, command: Subscribe) -> SubscriptionView:
    """Add the subscription, with a queue of its own if it is pushed, or find it as it was asked for."""
    wanted = command.subscription
    topic = await _locked(tx, wanted.topic)
    row = await tx.row("subscription", topic.number, wanted.name)
    if row is not None:
        existing = _subscribed(row)
        for field in Subscription.__struct_fields__:
            if getattr(existing.subscription, field) != getattr(wanted, field):
                raise SubscriptionExists(wanted.topic, wanted.name, field)
        return existing
    if await tx.value("count_subscriptions", topic.number) >= SMQ_SUBSCRIPTIONS_MAX:
        raise TooManySubscriptions(SMQ_SUBSCRIPTIONS_MAX)
    tx.need_room()
    if wanted.push_url:
        await queue_commands.add(tx, push_queue(topic.name, wanted.name), PUSH_SETTINGS)
    elif await tx.settings(wanted.queue) is None:
        raise QueueNotFound(wanted.queue)
    now_ms, pushed = await tx.now(), bool(wanted.push_url)
    await tx.run("insert_subscription", topic.number, wanted.name, msgspec.json.encode(wanted), pushed, now_ms)
    _changed(tx, wanted)
    return SubscriptionView(subscription=wanted, created_at_ms=now_ms, modified_at_ms=now_ms, is_new=True)


async def set_subscription(tx: Transaction, command: SetSubscription) -> None:
    """Change the strategy."""
    topic = await _locked(tx, command.topic)
    changed = replace((await _subscription(tx, topic, command.name)).subscription, strategy=command.strategy)
    await tx.run("update_subscription", topic.number, command.name, msgspec.json.encode(changed), await tx.now())
    _changed(tx, changed)


async def unsubscribe(tx: Transaction, command: Unsubscribe) -> None:
    """Remove the subscription, and its own queue."""
    topic = await _locked(tx, command.topic)
    await _end(tx, (await _subscription(tx, topic, command.name)).subscription)
    await tx.run("delete_subscription", topic.number, command.name)


async def show_subscription(tx: Transaction, command: ShowSubscription) -> SubscriptionView:
    """Return what the subscription is."""
    return await _subscription(tx, await _find(tx, command.topic), command.name)


async def list_subscriptions(tx: Transaction, command: ListSubscriptions) -> SubscriptionPage:
    """Return one page of subscriptions."""
    topic, prefix = await _find(tx, command.topic), command.prefix
    rows = await tx.rows("subscriptions", topic.number, prefix, command.after, prefix + LAST, command.count + 1)
    found = [_subscribed(row) for row in rows[: command.count]]
    return SubscriptionPage(subscriptions=found, more=len(rows) > command.count)


async def list_pushes(tx: Transaction, command: ListPushes) -> list[Subscription]:
    """Return all subscriptions that are pushed."""
    return [_read_subscription(content) for (content,) in await tx.rows("pushes")]


async def _subscription(tx: Transaction, topic: Topic, name: str) -> SubscriptionView:
    row = await tx.row("subscription", topic.number, name)
    if row is None:
        raise SubscriptionNotFound(topic.name, name)
    return _subscribed(row)


async def _end(tx: Transaction, subscription: Subscription) -> None:
    """Delete the own queue of a subscription, if it has one."""
    if subscription.push_url:
        name = push_queue(subscription.topic, subscription.name)
        queue = await tx.find(name) if await tx.lock("queue", name) else None
        if queue is not None:
            await queue_commands.remove(tx, queue)
        _changed(tx, subscription)


def _changed(tx: Transaction, subscription: Subscription) -> None:
    """Have pushes follow; a node that misses it finds no queue of that name in its next round and lists pushes then."""
    if subscription.push_url:
        tx.notify(PUSHES)


# Messages.


async def publish(tx: Transaction, command: PublishToTopic) -> PublishedMessage:
    """Store the message in the queue of each subscription that wants its tag."""
    topic = await _find(tx, command.topic)
    if command.size_bytes > topic.settings.message_bytes_max:
        raise MessageTooLong(topic.settings.message_bytes_max)
    tx.need_room()
    message_id, published_at_ms = tx.ids.next(), tx.shown(await tx.now())
    deliveries: list[tuple[QueueRow, NewMessage]] = []
    undeliverable: list[tuple[str, VeilmqError]] = []
    subscriptions = await _subscriptions(tx, topic)
    if not subscriptions:
        await _find(tx, topic.name)  # they may have gone with the topic since it was looked up
    for each in subscriptions:
        if not each.wants(command.tag):
            continue
        name = each.queue or push_queue(topic.name, each.name)
        try:
            queue = await tx.target(name, (0, topic.name))
            if queue is None:
                raise QueueNotFound(name)
            new = command.make(Notification(subscription=each, id=message_id, published_at_ms=published_at_ms))
            _check(queue, new)
            deliveries.append((queue, replace(new, dedup_id=str(UUID(bytes=message_id)))))
        except (StoreFull, StoreUnavailable):  # it may well be taken: later, and by all of them
            raise
        except VeilmqError as error:
            undeliverable.append((each.name, error))
    # In one order, so that two publications do not wait for each other.
    for queue, new in sorted(deliveries, key=lambda delivery: delivery[0].partition):
        await tx.store(queue, [new], [message_id])
    return PublishedMessage(id=message_id, deliveries=len(deliveries), undeliverable=tuple(undeliverable))


def _check(queue: QueueRow, new: NewMessage) -> None:
    """Raise the reason why the message cannot be stored, if there is one."""
    if queue.settings.fifo:
        fifo.group_of(new, queue.settings)
    elif new.size_bytes > queue.settings.message_bytes_max:
        raise MessageTooLong(queue.settings.message_bytes_max)
