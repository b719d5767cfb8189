"""Topics on every store: settings, subscriptions, deliveries and queues of pushed subscriptions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, fill, hosting, message
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands, errors, topics
from veilmq.core.limits import SMQ_SUBSCRIPTIONS_MAX
from veilmq.core.messages import NewMessage
from veilmq.core.settings import SettingValue

TOPIC = "000000000000/news"
OTHER = "000000000000/copies"
FIFO = "000000000000/jobs.fifo"
URL = "https://hook.example/in"
PUSHED = topics.push_queue(TOPIC, "pushed")
DAY_MS = 86_400_000


@pytest.fixture
def topic(host: Host) -> Host:
    return create_topic_and_queues(host)


def create_topic_and_queues(host: Host) -> Host:
    create(host)
    host.create(QUEUE)
    host.create(OTHER)
    return host


def create(host: Host, name: str = TOPIC, **settings: SettingValue) -> topics.TopicView:
    view: topics.TopicView = host.do(topics.CreateTopic(topic=name, settings=settings))
    return view


def to_queue(name: str, queue: str = QUEUE, **others: Any) -> topics.Subscription:
    return topics.Subscription(topic=TOPIC, name=name, endpoint=f"to {queue}", queue=queue, **others)


def to_url(name: str = "pushed", **others: Any) -> topics.Subscription:
    return topics.Subscription(topic=TOPIC, name=name, endpoint=URL, push_url=URL, **others)


def subscribe(host: Host, *subscriptions: topics.Subscription) -> None:
    for each in subscriptions:
        assert host.do(topics.Subscribe(subscription=each)).is_new


def publishing(
    body: str = "hello", *, tag: str = "", make: Callable[[topics.Notification], NewMessage] | None = None
) -> topics.PublishToTopic:
    """Return the command that publishes ``body``; by default each copy starts with the name of its subscription."""

    def named(notification: topics.Notification) -> NewMessage:
        return message(f"{notification.subscription.name}: {body}")

    return topics.PublishToTopic(topic=TOPIC, size_bytes=len(body), make=make or named, tag=tag)


def publish(host: Host, body: str = "hello", **others: Any) -> topics.PublishedMessage:
    answer: topics.PublishedMessage = host.do(publishing(body, **others))
    return answer


def subscription_names(host: Host, **wanted: Any) -> tuple[list[str], bool]:
    page = host.do(topics.ListSubscriptions(topic=TOPIC, **wanted))
    return [each.subscription.name for each in page.subscriptions], page.more


def test_creating_a_topic_again_needs_equal_settings(host: Host) -> None:
    view = create(host, message_bytes_max=2_048)
    settings = topics.TopicSettings(message_bytes_max=2_048)
    now_ms = host.clock.now_ms()
    assert view == topics.TopicView(
        topic=TOPIC, settings=settings, created_at_ms=now_ms, modified_at_ms=now_ms, is_new=True
    )
    host.advance(5)
    assert not create(host).is_new
    assert not create(host, message_bytes_max=2_048).is_new
    with pytest.raises(errors.TopicExists, match="another operations_logged"):
        create(host, operations_logged=True)


def test_changing_topic_settings_updates_the_modification_time(host: Host) -> None:
    create(host)
    host.advance(5)
    host.do(topics.SetTopic(topic=TOPIC, settings={"operations_logged": True}))
    view = host.do(topics.ShowTopic(topic=TOPIC))
    assert view.settings == topics.TopicSettings(operations_logged=True)
    assert view.modified_at_ms == view.created_at_ms + 5


def test_topics_are_listed_by_account_prefix_and_page(host: Host) -> None:
    for name in ("a1", "b", "a2", "a3"):
        create(host, f"000000000000/{name}")
    create(host, "111111111111/a4")
    page = host.do(topics.ListTopics(account="000000000000", prefix="a", after="a1", count=1))
    assert ([each.topic for each in page.topics], page.more) == (["000000000000/a2"], True)
    page = host.do(topics.ListTopics(account="000000000000"))
    assert ([each.topic for each in page.topics], page.more) == (
        [f"000000000000/{name}" for name in ("a1", "a2", "a3", "b")],
        False,
    )


OF_TOPICS = [
    topics.SetTopic(topic=TOPIC, settings={}), topics.DeleteTopic(topic=TOPIC), topics.ShowTopic(topic=TOPIC),
    topics.Subscribe(subscription=to_url()), topics.ListSubscriptions(topic=TOPIC), publishing(),
]  # fmt: skip
OF_SUBSCRIPTIONS = [
    topics.SetSubscription(topic=TOPIC, name="x", strategy=topics.RetryStrategy.BACKOFF),
    topics.Unsubscribe(topic=TOPIC, name="x"), topics.ShowSubscription(topic=TOPIC, name="x"),
]  # fmt: skip


@pytest.mark.parametrize("command", [*OF_TOPICS, *OF_SUBSCRIPTIONS], ids=lambda command: type(command).__name__)
def test_commands_on_a_missing_topic_fail(host: Host, command: commands.Command) -> None:
    with pytest.raises(errors.TopicNotFound, match="000000000000/news does not exist"):
        host.do(command)


@pytest.mark.parametrize("command", OF_SUBSCRIPTIONS, ids=lambda command: type(command).__name__)
def test_commands_on_a_missing_subscription_fail(topic: Host, command: commands.Command) -> None:
    with pytest.raises(errors.SubscriptionNotFound, match="has no subscription x"):
        topic.do(command)


def test_creating_a_subscription_again_needs_equal_settings(topic: Host) -> None:
    subscribe(topic, to_queue("s", filter_tag="red"))
    topic.advance(5)
    again = topic.do(topics.Subscribe(subscription=to_queue("s", filter_tag="red")))
    assert not again.is_new
    assert again == topic.do(topics.ShowSubscription(topic=TOPIC, name="s"))
    with pytest.raises(errors.SubscriptionExists, match="another filter_tag"):
        topic.do(topics.Subscribe(subscription=to_queue("s")))


def test_only_the_retry_strategy_of_a_subscription_changes(topic: Host) -> None:
    subscribe(topic, to_url())
    topic.advance(5)
    topic.do(topics.SetSubscription(topic=TOPIC, name="pushed", strategy=topics.RetryStrategy.EXPONENTIAL_DECAY))
    view = topic.do(topics.ShowSubscription(topic=TOPIC, name="pushed"))
    assert view.subscription == to_url(strategy=topics.RetryStrategy.EXPONENTIAL_DECAY)
    assert view.modified_at_ms == view.created_at_ms + 5


def test_subscriptions_are_listed_by_prefix_and_page(topic: Host) -> None:
    subscribe(topic, to_queue("b"), to_queue("a2"), to_url("a1"))
    assert subscription_names(topic) == (["a1", "a2", "b"], False)
    assert subscription_names(topic, prefix="a", count=1) == (["a1"], True)
    assert subscription_names(topic, prefix="a", after="a1") == (["a2"], False)


def test_a_missing_queue_cannot_be_subscribed(topic: Host) -> None:
    with pytest.raises(errors.QueueNotFound):
        topic.do(topics.Subscribe(subscription=to_queue("s", "000000000000/nowhere")))
    assert subscription_names(topic) == ([], False)


def test_a_topic_has_a_limit_of_subscriptions(topic: Host) -> None:
    subscribe(topic, *(to_queue(f"s{number}") for number in range(SMQ_SUBSCRIPTIONS_MAX)))
    with pytest.raises(errors.TooManySubscriptions, match=f"may have {SMQ_SUBSCRIPTIONS_MAX} subscriptions"):
        topic.do(topics.Subscribe(subscription=to_queue("one-more")))


def test_every_subscribed_queue_gets_the_message_with_one_id(topic: Host) -> None:
    subscribe(topic, to_queue("s1"), to_queue("s2", OTHER), to_url())
    published = publish(topic)
    assert (published.deliveries, published.undeliverable) == (3, ())
    got = [topic.receive_one(queue=queue) for queue in (QUEUE, OTHER, PUSHED)]
    assert [each.body for each in got] == ["s1: hello", "s2: hello", "pushed: hello"]
    assert {each.id for each in got} == {published.id}


def test_each_copy_is_made_from_its_notification(topic: Host) -> None:
    subscribe(topic, to_queue("s"))
    made: list[topics.Notification] = []

    def make(notification: topics.Notification) -> NewMessage:
        made.append(notification)
        return message("x")

    published = publish(topic, make=make)
    assert made == [
        topics.Notification(subscription=to_queue("s"), id=published.id, published_at_ms=topic.clock.now_ms())
    ]


def test_a_subscription_filter_passes_equal_tags(topic: Host) -> None:
    subscribe(topic, to_queue("all"), to_queue("red", OTHER, filter_tag="red"))
    assert publish(topic, tag="red").deliveries == 2
    assert publish(topic, tag="blue").deliveries == 1
    assert publish(topic).deliveries == 1
    assert (topic.counts(QUEUE), topic.counts(OTHER)) == ((3, 0, 0), (1, 0, 0))


def test_messages_over_the_size_limit_of_the_topic_are_refused(topic: Host) -> None:
    topic.do(topics.SetTopic(topic=TOPIC, settings={"message_bytes_max": 1_024}))
    assert publish(topic, "x" * 1_024).deliveries == 0
    with pytest.raises(errors.MessageTooLong):
        publish(topic, "x" * 1_025)


def test_a_copy_has_the_delay_of_its_queue_and_its_own_priority(topic: Host) -> None:
    topic.set_queue(OTHER, delay_s=60)
    subscribe(topic, to_queue("now"), to_queue("late", OTHER))
    woken = topic.watch(OTHER)
    publish(topic, make=lambda _: message("x", group="g", priority=3))
    assert topic.clock.now_ms() + 60_000 in woken  # perhaps also a late wake-up for the new settings
    assert topic.counts(OTHER) == (0, 0, 1)
    assert topic.receive_one().priority == 3
    topic.advance(60_000)
    assert topic.receive_one(queue=OTHER).body == "x"


def test_publications_to_a_fifo_queue_are_ordered_and_never_duplicates(topic: Host) -> None:
    topic.create(FIFO, fifo=True, content_deduplication=True)
    subscribe(topic, to_queue("ordered", FIFO))
    woken = topic.watch(FIFO)
    ids = [publish(topic, make=lambda _: message("x", group="g")).id for _ in range(2)]
    assert woken[:1] == [topic.clock.now_ms()]
    got = topic.receive(10, queue=FIFO)
    assert [each.id for each in got] == ids
    assert got[0].sequence is not None


def test_a_missing_or_refusing_queue_does_not_affect_other_subscriptions(topic: Host) -> None:
    topic.create(FIFO, fifo=True)
    topic.create("000000000000/small", message_bytes_max=1_024)
    subscribe(
        topic,
        to_queue("fine"),
        to_queue("gone", OTHER),
        to_queue("groupless", FIFO),
        to_queue("small", "000000000000/small"),
    )
    topic.drop(OTHER)
    published = publish(topic, "x" * 1_024)
    assert published.deliveries == 1
    assert [(name, type(why)) for name, why in published.undeliverable] == [
        ("gone", errors.QueueNotFound),
        ("groupless", errors.GroupMissing),
        ("small", errors.MessageTooLong),
    ]
    assert topic.receive_one().body == "fine: " + "x" * 1_024
    topic.create(OTHER)
    assert publish(topic).deliveries == 3


def test_a_publication_is_rolled_back_if_making_a_copy_fails(topic: Host) -> None:
    subscribe(topic, to_queue("a"), to_queue("b", OTHER), to_url())

    def make(notification: topics.Notification) -> NewMessage:
        if notification.subscription.name == "pushed":
            raise ZeroDivisionError
        return message("x")

    failed, fine = topic.do_together(publishing(make=make), publishing())
    assert type(failed).__name__ == "InternalError"
    assert fine.deliveries == 3
    assert [topic.counts(queue) for queue in (QUEUE, OTHER, PUSHED)] == [(1, 0, 0)] * 3


def test_a_full_store_refuses_a_publication_for_all_queues(tmp_path: Path) -> None:
    with on_sqlite(tmp_path / "store").open(database_pages_max=300, purge_pause_s=0, queue_name_pause_s=0) as host:
        create_topic_and_queues(host)
        subscribe(host, to_queue("a"), to_queue("b", OTHER))
        fill(host)
        before = host.counts(QUEUE)[0], host.counts(OTHER)[0]
        with pytest.raises(errors.StoreFull):
            publish(host, "x" * 1_000)
        with pytest.raises(errors.StoreFull):
            host.do(topics.CreateTopic(topic="000000000000/more"))
        with pytest.raises(errors.StoreFull):
            host.do(topics.Subscribe(subscription=to_url()))
        assert (host.counts(QUEUE)[0], host.counts(OTHER)[0]) == before


def test_the_queue_of_a_pushed_subscription_is_not_listed(topic: Host) -> None:
    subscribe(topic, to_url())
    settings = topic.do(commands.ShowQueue(queue=PUSHED)).settings
    assert (settings.retention_s, settings.event_log) == (86_400, "off")
    assert topic.do(commands.ListQueues(account="000000000000")).names == ["copies", "jobs"]
    assert PUSHED in topic.names()  # for the metrics


def test_undelivered_pushes_are_counted_for_a_day(topic: Host) -> None:
    subscribe(topic, to_url(), to_queue("s"))
    publish(topic)
    publish(topic)
    (first,) = topic.receive(queue=PUSHED)
    assert topic.do(topics.ShowTopic(topic=TOPIC)).messages == 2
    assert topic.delete(first.receipt, queue=PUSHED) == [errors.ReceiptState.LIVE]
    assert topic.do(topics.ListTopics(account="000000000000")).topics[0].messages == 1
    topic.advance(DAY_MS)
    assert topic.do(topics.ShowTopic(topic=TOPIC)).messages == 0


def test_watchers_of_pushes_are_notified_of_every_change(topic: Host) -> None:
    lists: list[list[topics.Subscription]] = []
    topic.engine.watch(topics.PUSHES, lambda _: topic.engine.submit(topics.ListPushes(), lists.append))
    subscribe(topic, to_queue("s"))
    assert lists == []
    subscribe(topic, to_url())
    topic.do(topics.SetSubscription(topic=TOPIC, name="pushed", strategy=topics.RetryStrategy.EXPONENTIAL_DECAY))
    topic.do(topics.Unsubscribe(topic=TOPIC, name="pushed"))
    changed = to_url(strategy=topics.RetryStrategy.EXPONENTIAL_DECAY)
    assert lists == [[to_url()], [changed], []]
    topic.engine.unwatch(topics.PUSHES)
    subscribe(topic, to_url())
    assert topic.do(topics.ListPushes()) == [to_url()]


@pytest.mark.parametrize(
    "end",
    [topics.Unsubscribe(topic=TOPIC, name="pushed"), topics.DeleteTopic(topic=TOPIC)],
    ids=["unsubscribe", "delete"],
)
def test_undelivered_pushes_are_deleted_with_the_subscription(topic: Host, end: commands.Command) -> None:
    subscribe(topic, to_url(), to_queue("s"))
    publish(topic)
    woken = topic.watch(PUSHED)
    topic.do(end)
    assert woken == [topic.clock.now_ms()]
    with pytest.raises(errors.QueueNotFound):
        topic.receive(queue=PUSHED)
    assert topic.receive_one().body == "s: hello"
    create(topic)
    subscribe(topic, to_url())
    assert topic.counts(PUSHED) == (0, 0, 0)
    publish(topic, "again")
    assert topic.receive_one(queue=PUSHED).body == "pushed: again"


def test_topics_survive_restarts_and_crashes(durable: Host) -> None:
    create_topic_and_queues(durable)
    create(durable, "000000000000/logged", operations_logged=True)
    subscribe(durable, to_url(filter_tag="x"), to_queue("s"))
    durable.do(topics.SetSubscription(topic=TOPIC, name="pushed", strategy=topics.RetryStrategy.EXPONENTIAL_DECAY))
    published = publish(durable, tag="x")

    def seen() -> list[Any]:
        return [
            durable.do(topics.ListTopics(account="000000000000")),
            durable.do(topics.ListSubscriptions(topic=TOPIC)),
            durable.do(topics.ListPushes()),
            durable.counts(QUEUE),
            durable.counts(PUSHED),
        ]

    before = seen()
    durable.reopen()
    assert seen() == before
    durable.crash()
    assert seen() == before
    assert durable.receive_one(queue=PUSHED).id == published.id
    durable.do(topics.DeleteTopic(topic=TOPIC))
    durable.crash()
    assert durable.do(topics.ListPushes()) == []
    durable.check()


def test_a_rolled_back_batch_is_applied_again_without_the_failing_command(tmp_path: Path) -> None:
    def fail(_: topics.Notification) -> NewMessage:
        raise ZeroDivisionError

    with hosting(tmp_path / "store") as host:
        create_topic_and_queues(host)
        created, subscribed, failed, published = host.do_together(
            topics.CreateTopic(topic="000000000000/more"),
            topics.Subscribe(subscription=to_url()),
            publishing(make=fail),
            publishing(),
        )
        assert (created.is_new, subscribed.is_new, type(failed).__name__) == (True, True, "InternalError")
        assert published.deliveries == 1
        host.reopen()
        assert [each.topic for each in host.do(topics.ListTopics(account="000000000000")).topics] == [
            "000000000000/more",
            TOPIC,
        ]
        assert host.counts(PUSHED) == (1, 0, 0)
