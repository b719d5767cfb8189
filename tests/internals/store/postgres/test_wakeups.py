"""Waiters on one node are woken by events on another: notifications, their content, and the polls without them."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.internals.store.postgres.nodes import TwoNodes, two_nodes
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres, set_clock
from tests.store.test_claims import claim, open_source
from tests.store.test_dead_letters import DEAD, pair
from veilmq.core import commands
from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX
from veilmq.server.long_polling import LongPolls
from veilmq.store.port import execute
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.database import DatabaseClock
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.queues import Catalog
from veilmq.store.postgres.receives import _SharedReceive
from veilmq.store.postgres.transaction import JANITOR_MS
from veilmq.store.postgres.wakeups import (
    FIRST_POLL_MS,
    REFRESH_MS,
    SEND_INTERVAL_MS,
    Notification,
    Watches,
    decode_notification,
)
from veilmq.store.transaction import NEVER_MS
from veilmq.testing import VirtualClock

for_each_kind = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
RECEIVE = commands.Receive(queue=QUEUE)
SEND_DELAYED = commands.Send(queue=QUEUE, messages=(message("a", delay_s=5),))
NOTIFY_BYTES_MAX = 7_999


def send(nodes: TwoNodes, *bodies: str, **terms: Any) -> None:
    nodes.host.put(*(message(body, group=body, dedup_id=body, **terms) for body in bodies))


@pytest.fixture
def without_notifications(postgres_url: str) -> Iterator[TwoNodes]:
    with two_nodes(postgres_url, options=replace(RESTLESS, listens=False)) as nodes:
        nodes.host.create()
        nodes.other.watch(QUEUE, nodes.woken_ms.append)
        yield nodes


@for_each_kind
def test_send_wakes(nodes: TwoNodes, *, fifo: bool) -> None:
    """By a notification: no time passes here, so no poll does it."""
    nodes.host.create(fifo=fifo)
    nodes.watch()
    send(nodes, "a")
    nodes.until(lambda: nodes.woken_ms)
    assert nodes.woken_ms == [nodes.host.clock.now_ms()]


@for_each_kind
def test_delayed_send_wakes_with_its_due_time(nodes: TwoNodes, *, fifo: bool) -> None:
    nodes.host.create(fifo=fifo, delay_s=5 if fifo else 0)
    nodes.watch()
    send(nodes, "a", delay_s=None if fifo else 5)
    nodes.until(lambda: nodes.woken_ms)
    assert nodes.woken_ms == [nodes.host.clock.now_ms() + 5_000]


@for_each_kind
def test_release_wakes(nodes: TwoNodes, *, fifo: bool) -> None:
    nodes.host.create(fifo=fifo)
    send(nodes, "a")
    (taken,) = nodes.do_at_other(RECEIVE).messages
    nodes.watch()
    nodes.host.change(taken.receipt, 0)
    nodes.until(lambda: nodes.woken_ms)
    assert min(nodes.woken_ms) <= nodes.host.clock.now_ms()


@for_each_kind
def test_end_of_a_lease_needs_no_notification(nodes: TwoNodes, *, fifo: bool) -> None:
    """An empty receive returns the instant, whichever node has leased the message."""
    nodes.host.create(fifo=fifo)
    send(nodes, "a")
    nodes.host.receive_one(timeout_s=7)
    nodes.watch()
    nodes.take_sent()
    received = nodes.do_at_other(RECEIVE)
    assert (received.messages, received.next_due_ms) == (
        [],
        nodes.host.clock.now_ms() + 7_000 - FIRST_POLL_MS - 2 * SEND_INTERVAL_MS,
    )
    nodes.advance(received.next_due_ms - nodes.host.clock.now_ms())
    assert len(nodes.do_at_other(RECEIVE).messages) == 1
    assert not nodes.take_sent()


@for_each_kind
def test_free_slot_wakes(nodes: TwoNodes, *, fifo: bool) -> None:
    """The node that frees the slot has never been over the quota; the waiter's node has."""
    nodes.host.create(in_flight_max=1, fifo=fifo)
    send(nodes, "a", "b")
    (taken,) = nodes.host.receive(1)
    nodes.watch()
    assert nodes.do_at_other(RECEIVE).messages == []
    nodes.advance(SEND_INTERVAL_MS)
    nodes.until(lambda: QUEUE in nodes.first.watches._full)
    nodes.woken_ms.clear()
    nodes.host.delete(taken.receipt)
    nodes.until(lambda: nodes.woken_ms)
    assert len(nodes.do_at_other(RECEIVE).messages) == 1


def test_janitor_wakes(postgres_url: str) -> None:
    with two_nodes(postgres_url, options=replace(RESTLESS, poll_s=1_000)) as nodes:  # no poll does it
        nodes.host.create(retention_s=60)
        nodes.host.send(*"ab")
        nodes.watch()
        nodes.advance(JANITOR_MS - 1_000)
        nodes.woken_ms.clear()
        nodes.advance(1_000)
        nodes.advance(SEND_INTERVAL_MS)
        nodes.until(lambda: nodes.woken_ms)


def test_dead_letter_wakes(nodes: TwoNodes) -> None:
    pair(nodes.host, receives_max=1)
    nodes.watch(DEAD)
    nodes.host.send("a")
    nodes.host.receive_one(timeout_s=0)
    assert nodes.host.receive(1) == []
    nodes.until(lambda: nodes.woken_ms)
    assert len(nodes.do_at_other(commands.Receive(queue=DEAD)).messages) == 1


def test_a_row_from_before_a_change_is_not_cached(host: PostgresHost) -> None:
    """The reply to a lookup may arrive after the notification of the change."""
    host.create()
    node = cast(PostgresEngine, host.engine)

    async def look_up() -> Any:
        async with node.database.connection() as connection:

            async def fetch_late(*args: Any) -> Any:
                row = await connection.fetchrow(*args)
                await execute(node, commands.SetQueue(queue=QUEUE, settings={"visibility_timeout_s": 7}))
                return row

            await node.catalog.look_up(SimpleNamespace(fetchrow=fetch_late), QUEUE)
        await execute(node, commands.Send(queue=QUEUE, messages=(message("a"),)))
        return await execute(node, RECEIVE)

    (received,) = host.run(look_up()).messages
    assert received.visible_at_ms == host.clock.now_ms() + 7_000


def test_deletion_wakes_and_clears_the_cache(nodes: TwoNodes) -> None:
    nodes.host.create()
    nodes.watch()
    nodes.host.drop()
    nodes.until(lambda: nodes.woken_ms)
    with pytest.raises(QueueNotFound):
        nodes.do_at_other(RECEIVE)


@pytest.mark.parametrize("change", [
    commands.SetQueue(queue=QUEUE, settings={"receive_wait_s": 9}),
    commands.EditQueue(queue=QUEUE, setting="policy", edit=lambda policy: policy + " "),
    commands.TagQueue(queue=QUEUE, tags={"a": "b"}), commands.PurgeQueue(queue=QUEUE),
], ids=lambda change: type(change).__name__)  # fmt: skip
def test_changed_queue_is_looked_up_again(nodes: TwoNodes, change: commands.Command) -> None:
    nodes.host.create()
    assert nodes.do_at_other(RECEIVE).receive_wait_s == 0
    catalog = nodes.other.catalog
    assert catalog.cached(QUEUE) is not None
    nodes.take_sent()
    nodes.host.do(change)
    nodes.until(lambda: catalog.cached(QUEUE) is None)


def test_node_with_a_fast_clock_wakes_at_once(nodes: TwoNodes) -> None:
    """Moves and purges are due now for each node, not at this node's idea of the time."""
    pair(nodes.host, receives_max=1)
    nodes.host.send("a")
    nodes.host.receive_one(timeout_s=0)
    open_source(nodes.host)
    now_ms = nodes.host.clock.now_ms()
    woken_ms: list[int] = []
    nodes.first.clock.synchronize(now_ms + 300_000, sent_ms=now_ms)
    nodes.watch(DEAD)
    assert claim(nodes.host).messages == 0  # the only message is a dead letter
    nodes.until(lambda: nodes.woken_ms)
    nodes.first.watch(QUEUE, woken_ms.append)
    nodes.host.purge()
    assert woken_ms == [nodes.first.clock.now_ms()]
    assert max(nodes.woken_ms) <= nodes.host.clock.now_ms()


def test_queue_without_waiters_is_not_notified(nodes: TwoNodes) -> None:
    nodes.host.create()
    woken_ms: list[int] = []
    nodes.host.engine.watch(QUEUE, woken_ms.append)
    nodes.take_sent()
    send(nodes, "a")
    assert len(woken_ms) == 1
    assert not nodes.take_sent()


def test_notifications_are_batched(nodes: TwoNodes) -> None:
    """One is sent at once, the rest in one batch ten milliseconds later."""
    nodes.host.create()
    nodes.host.create("a/other")
    nodes.watch()
    nodes.watch("a/other")
    nodes.take_sent()
    for number in range(10):
        send(nodes, f"m{number}", delay_s=number)
        nodes.host.send("x", queue="a/other")
    now_ms = nodes.host.clock.now_ms()
    notified = [(each.queue, each.due_ms) for each in nodes.take_sent()]
    assert notified == [(QUEUE, now_ms), ("a/other", now_ms), (QUEUE, now_ms + 1_000)]


def test_subscription_expires(nodes: TwoNodes) -> None:
    """Soon after the last waiter or the end of the node; successive long polls cost nothing."""
    nodes.host.create()
    nodes.watch()
    nodes.other.unwatch(QUEUE)
    for _ in range(2):
        assert nodes.first.watches.is_awaited(QUEUE)
        nodes.advance(REFRESH_MS)
    assert not nodes.first.watches.is_awaited(QUEUE)
    nodes.take_sent()
    send(nodes, "a")
    assert not nodes.take_sent()
    assert not nodes.first.watches.awaited_until_ms


def test_subscription_is_renewed(nodes: TwoNodes) -> None:
    """Otherwise it would expire although there are waiters."""
    nodes.host.create()
    nodes.watch()
    for _ in range(5):
        nodes.first.watches.awaited_until_ms.clear()
        nodes.advance(REFRESH_MS)
        nodes.until(lambda: nodes.first.watches.is_awaited(QUEUE))


def test_new_node_gets_all_subscriptions(nodes: TwoNodes) -> None:
    nodes.host.create()
    nodes.watch()
    nodes.host.reopen()
    nodes.first = nodes.host.engine
    nodes.advance(SEND_INTERVAL_MS)
    nodes.until(lambda: nodes.first.watches.is_awaited(QUEUE))


@for_each_kind
def test_poll_covers_a_lost_notification(nodes: TwoNodes, *, fifo: bool) -> None:
    """Once a second, for all queues with waiters on the node."""
    nodes.host.create(fifo=fifo)
    nodes.watch()
    nodes.first.watches.awaited_until_ms.clear()
    send(nodes, "a")
    sent_ms = nodes.host.clock.now_ms()
    assert not nodes.take_sent()
    assert nodes.woken_ms == []
    nodes.advance(1_000)
    assert nodes.woken_ms
    assert nodes.host.clock.now_ms() <= sent_ms + 1_010


def test_poll_covers_a_lost_deletion(without_notifications: TwoNodes) -> None:
    """And a purge: the poll finds that the partition is retired."""
    without_notifications.advance(200)
    assert without_notifications.woken_ms == []
    without_notifications.host.purge()
    without_notifications.advance(200)
    assert without_notifications.woken_ms == [without_notifications.host.clock.now_ms()]
    without_notifications.advance(200)
    assert len(without_notifications.woken_ms) == 1
    without_notifications.host.drop()
    without_notifications.advance(200)
    assert len(without_notifications.woken_ms) == 2
    with pytest.raises(QueueNotFound):
        without_notifications.do_at_other(RECEIVE)
    without_notifications.advance(200)
    assert len(without_notifications.woken_ms) == 3  # repeated until the waiter receives


def test_node_polls_more_often_without_notifications(without_notifications: TwoNodes) -> None:
    """With a pooler that drops them: five times a second, and not without waiters."""
    without_notifications.host.send("a")
    without_notifications.advance(199)
    assert without_notifications.woken_ms == []
    without_notifications.advance(1)
    assert without_notifications.woken_ms == [without_notifications.host.clock.now_ms()]
    without_notifications.other.unwatch(QUEUE)
    without_notifications.advance(200)
    assert without_notifications.host.clock.next_timer_ms() != without_notifications.host.clock.now_ms() + 200


def test_metrics_show_whether_notifications_arrive(nodes: TwoNodes) -> None:
    def figure(name: str) -> Any:
        (samples,) = [each.samples for each in nodes.other.metrics() if each.name == f"store_notifications_{name}"]
        return samples[""]

    nodes.host.create()
    nodes.watch()
    received, sent = figure("received"), figure("sent")
    send(nodes, "a")
    nodes.until(lambda: nodes.woken_ms)
    assert (figure("arrive"), figure("received"), figure("sent")) == (1, received + 1, sent)
    assert sent > 0
    nodes.terminate_listeners()
    nodes.until(lambda: not figure("arrive"))


def test_reconnect_makes_up_for_missed_notifications(nodes: TwoNodes) -> None:
    """The node reconnects, polls once, and gets notifications again."""
    nodes.host.create()
    nodes.watch()
    hub = nodes.other.watches
    nodes.terminate_listeners()
    nodes.until(lambda: not hub.notifications_arrive)
    send(nodes, "a")
    assert nodes.woken_ms == []
    nodes.advance(100)
    nodes.until(lambda: hub.notifications_arrive)
    nodes.advance(1)
    assert nodes.woken_ms
    nodes.until(lambda: nodes.first.watches.notifications_arrive)
    nodes.advance(SEND_INTERVAL_MS)
    nodes.until(lambda: nodes.first.watches.is_awaited(QUEUE))
    nodes.woken_ms.clear()
    send(nodes, "b")
    nodes.until(lambda: nodes.woken_ms)


def test_polls_continue_after_an_error(postgres_url: str) -> None:
    woken_ms: list[int] = []
    with hosting_postgres(postgres_url, options=replace(RESTLESS, listens=False)) as host:
        host.create()
        host.send("a")
        host.reopen()
        host.values("UPDATE mq.queue SET settings = '{'")
        host.in_loop(lambda: host.engine.watch(QUEUE, woken_ms.append))
        host.advance(1_000)
        assert woken_ms == []
        host.values("UPDATE mq.queue SET settings = '{}'")
        host.advance(1_000)
        assert woken_ms


def test_a_long_poll_does_not_spin_after_a_step_back_of_the_database(postgres_url: str) -> None:
    """The message that it awaits is due before the node's time of the step."""
    with hosting_postgres(postgres_url) as host:
        host.create()
        began_ms, received = host.clock.now_ms(), list[Any]()
        polls = LongPolls(engine=host.engine, clock=host.engine.clock)
        host.in_loop(lambda: polls.submit(RECEIVE, 20, received.append))
        host.run(host.engine.drain())
        host.run(set_clock(host.url, began_ms - 10_000))
        host.in_loop(lambda: host.clock.advance(1_000))  # a poll
        host.run(host.engine.drain())
        host.in_loop(lambda: host.engine.submit(SEND_DELAYED, received.append))
        host.run(asyncio.wait_for(host.engine.drain(), 30))
        assert polls.parked == 1
        host.run(set_clock(host.url, began_ms - 4_000))
        host.in_loop(lambda: host.clock.advance(6_000))
        host.run(host.engine.drain())
        assert [each.body for each in received[-1].messages] == ["a"]


# Notifications and waiters of one node.


def watches_of(texts: Sequence[str] = ()) -> Watches:
    """Return the watches of a node that has received notifications of others."""
    nothing, clock = cast(Any, None), DatabaseClock(VirtualClock())
    watches = Watches(nothing, poll_s=1, clock=clock, catalog=Catalog(PostgresOptions()), start=nothing)
    for text in texts:
        watches._receive(None, 0, "", text)
    return watches


def test_format_of_notifications_is_stable() -> None:
    """In a rolling upgrade, other versions read them; even the longest name fits into a notification."""
    assert decode_notification('["n","due","a",1]') == Notification("n", "due", "a", 1)
    assert decode_notification('["n","hello"]') == Notification("n", "hello")
    assert watches_of(['["n","awaited","a",0,"by ten"]']).is_awaited("a")
    name = "ä" * (13 + SMQ_QUEUE_NAME_CHARACTERS_MAX)
    assert len(msgspec.json.encode(Notification("0123abcd", "awaited", name, NEVER_MS))) <= NOTIFY_BYTES_MAX


@pytest.mark.parametrize("text", ["", "{}", "[]", '["n"]', '["n","due","a","soon"]', '["n","weather","a"]'])
def test_unknown_notifications_are_ignored(text: str) -> None:
    """Any account of the database can send one, and a later version may send more kinds."""
    woken: list[int] = []
    watches = watches_of()
    watches.watch("a", woken.append)
    watches._receive(None, 0, "", text)
    assert (woken, watches.awaited_until_ms) == ([], {})


def test_free_slot_notifies_once_per_full_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    notified: list[str] = []
    monkeypatch.setattr(Watches, "_queue_notification", lambda watches, kind, queue, due_ms: notified.append(queue))
    watches = watches_of(['["n","awaited","q"]'])
    watches.slot_freed("q", 1)
    assert notified == []
    for times in (1, 2):
        watches._receive(None, 0, "", '["n","full","q"]')
        for _ in range(2):
            watches.slot_freed("q", 1)
        assert notified == ["q"] * times


@pytest.mark.parametrize("fails", [False, True])
def test_only_notifications_that_were_sent_are_counted(*, fails: bool) -> None:
    async def execute(*_: Any, **options: Any) -> None:
        if fails:
            raise ConnectionResetError

    watches = watches_of()
    watches._connection = cast(Any, SimpleNamespace(execute=execute, terminate=lambda: None))
    watches._pending = {("due", "q"): 1}
    asyncio.run(watches._send())
    assert [each.samples[""] for each in watches.metrics() if each.name.endswith("_sent")] == [not fails]


def test_failing_watch_disturbs_nothing() -> None:
    watches = watches_of()
    woken: list[int] = []

    def fail(due_ms: int) -> None:
        raise RuntimeError(due_ms)

    watches.watch("bad", fail)
    watches.watch("q", woken.append)
    for due_ms, queue in enumerate(("bad", "q", "other")):
        watches.wake(queue, due_ms)
    assert woken == [1]


@pytest.mark.parametrize("fails", [False, True])
def test_dead_letters_of_a_receive_notify_after_its_commit(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """A rolled-back receive notifies of nothing."""
    notified: list[tuple[str, int]] = []

    async def take(taking: _SharedReceive) -> list[Any]:
        taking.woken["dead"] = 1
        assert notified == []
        return [1 / (not fails)]

    monkeypatch.setattr(_SharedReceive, "_lease_with_rules", take)
    node: Any = SimpleNamespace(watches=SimpleNamespace(wake=lambda *due: notified.append(due)))
    terms: Any = SimpleNamespace(attempt_id=None)
    with suppress(ZeroDivisionError):
        asyncio.run(_SharedReceive(node, None, cast(Any, SimpleNamespace(origin=1)), terms, (1,), 1).rows())
    assert notified == ([] if fails else [("dead", 1)])


def test_waiters_are_woken_after_the_reply(host: PostgresHost) -> None:
    """A poll that is resubmitted earlier would miss the policy that the command has removed."""
    host.create()
    seen: list[str] = []
    host.engine.watch(QUEUE, lambda due_ms: seen.append("wake"))
    set_queue = commands.SetQueue(queue=QUEUE, settings={"policy": ""})
    host.do_together(set_queue, on_result=lambda answer: seen.append("answer"))
    host.in_loop(lambda: None)
    assert seen[:2] == ["answer", "wake"]
