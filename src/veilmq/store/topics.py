"""Topics, their subscriptions, and publishing to them.

A pushed subscription has its own queue from ``Subscribe`` to its end, created and deleted here in the same
transactions. A command that changes a topic or its subscriptions locks the topic.

A published message is stored in the queue of every matching subscription in one transaction: all queues are found and
checked first, then all get the message.
"""

from uuid import UUID

import msgspec
from msgspec.structs import replace

from veilmq.core import errors, topics
from veilmq.core.limits import MESSAGE_BYTES, SMQ_SUBSCRIPTIONS_MAX, SMQ_TOPIC_RETENTION_S
from veilmq.core.messages import NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.store import queue_commands
from veilmq.store.transaction import AFTER_NAMES, Lock, QueueRow, Row, Transaction, changes, checked, reads, snapshot

PUSH_SETTINGS = QueueSettings(
    retention_s=SMQ_TOPIC_RETENTION_S, message_bytes_max=MESSAGE_BYTES.maximum, event_log="off"
)
_read_settings = msgspec.json.Decoder(topics.TopicSettings).decode
_read_subscription = msgspec.json.Decoder(topics.Subscription).decode


def _topic(row: Row) -> tuple[int, topics.TopicView]:
    number, name, settings, created_at_ms, modified_at_ms = row
    times = {"created_at_ms": created_at_ms, "modified_at_ms": modified_at_ms}
    return number, topics.TopicView(topic=name, settings=_read_settings(settings), **times)


async def _find(tx: Transaction, name: str, *, lock: Lock | None = None) -> tuple[int, topics.TopicView]:
    rows = await tx.rows("topic", name, lock=lock)
    if not rows:
        raise errors.TopicNotFound(name)
    return _topic(rows[0])


async def _subscriptions(tx: Transaction, number: int) -> list[topics.Subscription]:
    rows = await tx.rows("subscriptions", number, "", "", AFTER_NAMES, SMQ_SUBSCRIPTIONS_MAX)
    return [_read_subscription(content) for content, *_ in rows]


def _subscription_view(row: Row) -> topics.SubscriptionView:
    subscription = _read_subscription(row[0])
    return topics.SubscriptionView(subscription=subscription, created_at_ms=row[1], modified_at_ms=row[2])


@changes
async def create_topic(tx: Transaction, command: topics.CreateTopic) -> topics.TopicView:
    while not (rows := await tx.rows("topic", command.topic, lock="share")):
        tx.require_space()
        settings = msgspec.json.encode(topics.TopicSettings().changed(command.settings))
        row = await tx.row("insert_topic", command.topic, settings, await tx.now())
        if row is not None:
            return replace(_topic(row)[1], is_new=True)
    number, topic = _topic(rows[0])
    setting = topic.settings.first_difference(command.settings)
    if setting is not None:
        raise errors.TopicExists(command.topic, setting)
    return await _with_count(tx, number, topic)


@changes
async def set_topic(tx: Transaction, command: topics.SetTopic) -> None:
    number, topic = await _find(tx, command.topic, lock="update")
    settings = topic.settings.changed(command.settings)
    await tx.run("update_topic", number, msgspec.json.encode(settings), await tx.now())


@changes
async def delete_topic(tx: Transaction, command: topics.DeleteTopic) -> None:
    number, _ = await _find(tx, command.topic, lock="update")
    for each in await _subscriptions(tx, number):
        await _end(tx, each)
    await tx.run("delete_subscriptions", number, None)
    await tx.run("delete_topic", number)


@reads
async def show_topic(tx: Transaction, command: topics.ShowTopic) -> topics.TopicView:
    return await _with_count(tx, *await _find(tx, command.topic))


@reads
async def list_topics(tx: Transaction, command: topics.ListTopics) -> topics.TopicPage:
    account = f"{command.account}/"
    prefix = account + command.prefix
    rows = await tx.rows("topics", prefix, account + command.after, prefix + AFTER_NAMES, command.count + 1)
    page = [await _with_count(tx, *_topic(row)) for row in rows[: command.count]]
    return topics.TopicPage(topics=page, more=len(rows) > command.count)


async def _with_count(tx: Transaction, number: int, topic: topics.TopicView) -> topics.TopicView:
    pushed = [each.name for each in await _subscriptions(tx, number) if each.push_url]
    queues = await tx.find_all([topics.push_queue(topic.topic, name) for name in pushed])
    counts = await tx.counts(queues, recent=True)
    return replace(topic, messages=sum(each.visible + each.in_flight + each.delayed for each in counts))


@changes
async def subscribe(tx: Transaction, command: topics.Subscribe) -> topics.SubscriptionView:
    wanted = command.subscription
    number, _ = await _find(tx, wanted.topic, lock="update")
    for row in await tx.rows("subscription", number, wanted.name):
        existing = _subscription_view(row)
        for field in topics.Subscription.__struct_fields__:
            if getattr(existing.subscription, field) != getattr(wanted, field):
                raise errors.SubscriptionExists(wanted.topic, wanted.name, field)
        return existing
    if len(await _subscriptions(tx, number)) >= SMQ_SUBSCRIPTIONS_MAX:
        raise errors.TooManySubscriptions(SMQ_SUBSCRIPTIONS_MAX)
    tx.require_space()
    if wanted.push_url:
        await queue_commands.add(tx, topics.push_queue(wanted.topic, wanted.name), PUSH_SETTINGS)
    elif await tx.settings(wanted.queue) is None:
        raise errors.QueueNotFound(wanted.queue)
    now_ms, pushed = await tx.now(), bool(wanted.push_url)
    await tx.run("insert_subscription", number, wanted.name, msgspec.json.encode(wanted), pushed, now_ms)
    _notify_pushers(tx, wanted)
    return topics.SubscriptionView(subscription=wanted, created_at_ms=now_ms, modified_at_ms=now_ms, is_new=True)


@changes
async def set_subscription(tx: Transaction, command: topics.SetSubscription) -> None:
    number, view = await _subscription(tx, command.topic, command.name, lock="update")
    changed = replace(view.subscription, strategy=command.strategy)
    await tx.run("update_subscription", number, command.name, msgspec.json.encode(changed), await tx.now())
    _notify_pushers(tx, changed)


@changes
async def unsubscribe(tx: Transaction, command: topics.Unsubscribe) -> None:
    number, view = await _subscription(tx, command.topic, command.name, lock="update")
    await _end(tx, view.subscription)
    await tx.run("delete_subscriptions", number, command.name)


@snapshot
async def show_subscription(tx: Transaction, command: topics.ShowSubscription) -> topics.SubscriptionView:
    _, view = await _subscription(tx, command.topic, command.name)
    return view


@snapshot
async def list_subscriptions(tx: Transaction, command: topics.ListSubscriptions) -> topics.SubscriptionPage:
    (number, _), prefix = await _find(tx, command.topic), command.prefix
    rows = await tx.rows("subscriptions", number, prefix, command.after, prefix + AFTER_NAMES, command.count + 1)
    found = [_subscription_view(row) for row in rows[: command.count]]
    return topics.SubscriptionPage(subscriptions=found, more=len(rows) > command.count)


@reads
async def list_pushes(tx: Transaction, command: topics.ListPushes) -> list[topics.Subscription]:
    return [_read_subscription(content) for (content,) in await tx.rows("pushes")]


async def _subscription(
    tx: Transaction, topic: str, name: str, *, lock: Lock | None = None
) -> tuple[int, topics.SubscriptionView]:
    number, _ = await _find(tx, topic, lock=lock)
    row = await tx.row("subscription", number, name)
    if row is None:
        raise errors.SubscriptionNotFound(topic, name)
    return number, _subscription_view(row)


async def _end(tx: Transaction, subscription: topics.Subscription) -> None:
    if subscription.push_url:
        name = topics.push_queue(subscription.topic, subscription.name)
        queue = await tx.find(name, "update")
        if queue is not None:
            await queue_commands.remove(tx, queue)
        _notify_pushers(tx, subscription)


def _notify_pushers(tx: Transaction, subscription: topics.Subscription) -> None:
    """Notify the pushers. A node that misses this finds no such queue in its next poll, and then lists all pushes."""
    if subscription.push_url:
        tx.notify(topics.PUSHES)


@changes
async def publish(tx: Transaction, command: topics.PublishToTopic) -> topics.PublishedMessage:
    number, topic = await _find(tx, command.topic)
    if command.size_bytes > topic.settings.message_bytes_max:
        raise errors.MessageTooLong(topic.settings.message_bytes_max)
    tx.require_space()
    message_id, published_at_ms = tx.ids.next(), tx.shown(await tx.now())
    deliveries: list[tuple[QueueRow, NewMessage]] = []
    undeliverable: list[tuple[str, errors.VeilmqError]] = []
    subscriptions = await _subscriptions(tx, number)
    if not subscriptions:
        await _find(tx, topic.topic)  # raises if the topic was deleted meanwhile
    for each in subscriptions:
        if each.filter_tag not in ("", command.tag):
            continue
        name = each.queue or topics.push_queue(topic.topic, each.name)
        try:
            queue = await tx.find_target(name, (0, topic.topic))
            if queue is None:
                raise errors.QueueNotFound(name)
            notification = topics.Notification(subscription=each, id=message_id, published_at_ms=published_at_ms)
            message = command.make(notification)
            (new,) = checked([replace(message, dedup_id=str(UUID(bytes=message_id)))], None, queue.settings)
            if isinstance(new, errors.VeilmqError):
                raise new
            deliveries.append((queue, new))
        except (errors.StoreFull, errors.StoreUnavailable):  # temporary: fail, so that a retry reaches all queues
            raise
        except errors.VeilmqError as error:
            undeliverable.append((each.name, error))
    # In a fixed order, so that concurrent publications do not deadlock.
    for queue, new in sorted(deliveries, key=lambda delivery: delivery[0].partition):
        await tx.store(queue, [new], [message_id])
    return topics.PublishedMessage(id=message_id, deliveries=len(deliveries), undeliverable=tuple(undeliverable))
