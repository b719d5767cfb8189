"""Who waits at one node is woken by what happens at another: notices, what they hold, and the look in their place."""

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
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres
from tests.store.test_claims import claim, open_source
from tests.store.test_dead_letters import DEAD, pair
from veilmq.core import commands
from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.background import JANITOR_MS
from veilmq.store.postgres.database import DatabaseClock
from veilmq.store.postgres.queues import Catalog
from veilmq.store.postgres.receives import _SharedReceive
from veilmq.store.postgres.wakeups import (
    FIRST_POLL_MS,
    REFRESH_MS,
    SEND_INTERVAL_MS,
    Notification,
    Watches,
    decode_notification,
)
from veilmq.store.queues import NEVER_MS
from veilmq.testing import VirtualClock

KINDS = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
RECEIVE = commands.Receive(queue=QUEUE)
NOTIFY_BYTES_MAX = 7_999


def send(nodes: TwoNodes, *bodies: str, **terms: Any) -> None:
    nodes.host.put(*(message(body, group=body, dedup_id=body, **terms) for body in bodies))


@pytest.fixture
def deaf(postgres_url: str) -> Iterator[TwoNodes]:
    with two_nodes(postgres_url, options=replace(RESTLESS, listens=False)) as nodes:
        nodes.host.create()
        nodes.other.watch(QUEUE, nodes.woken_ms.append)
        yield nodes


@KINDS
def test_a_send_wakes(nodes: TwoNodes, *, fifo: bool) -> None:
    """At once, by a notice: no time passes here, so no look comes in its place."""
    nodes.host.create(fifo=fifo)
    nodes.watch()
    send(nodes, "a")
    nodes.until(lambda: nodes.woken_ms)
    assert nodes.woken_ms == [nodes.host.clock.now_ms()]


@KINDS
def test_a_delayed_one_wakes_with_its_instant(nodes: TwoNodes, *, fifo: bool) -> None:
    nodes.host.create(fifo=fifo, delay_s=5 if fifo else 0)
    nodes.watch()
    send(nodes, "a", delay_s=None if fifo else 5)
    nodes.until(lambda: nodes.woken_ms)
    assert nodes.woken_ms == [nodes.host.clock.now_ms() + 5_000]


@KINDS
def test_a_release_wakes(nodes: TwoNodes, *, fifo: bool) -> None:
    nodes.host.create(fifo=fifo)
    send(nodes, "a")
    (taken,) = nodes.do_there(RECEIVE).messages
    nodes.watch()
    nodes.host.change(taken.receipt, 0)
    nodes.until(lambda: nodes.woken_ms)
    assert min(nodes.woken_ms) <= nodes.host.clock.now_ms()


@KINDS
def test_the_end_of_a_lease_needs_no_notice(nodes: TwoNodes, *, fifo: bool) -> None:
    """A receive that finds nothing is told the instant, whichever node gave the message."""
    nodes.host.create(fifo=fifo)
    send(nodes, "a")
    nodes.host.receive_one(timeout_s=7)
    nodes.watch()
    nodes.told()
    received = nodes.do_there(RECEIVE)
    assert (received.messages, received.next_due_ms) == (
        [],
        nodes.host.clock.now_ms() + 7_000 - FIRST_POLL_MS - 2 * SEND_INTERVAL_MS,
    )
    nodes.advance(received.next_due_ms - nodes.host.clock.now_ms())
    assert len(nodes.do_there(RECEIVE).messages) == 1
    assert not nodes.told()


@KINDS
def test_a_place_at_the_quota_wakes(nodes: TwoNodes, *, fifo: bool) -> None:
    """The node that frees it has never found the queue full; who waits has."""
    nodes.host.create(in_flight_max=1, fifo=fifo)
    send(nodes, "a", "b")
    (taken,) = nodes.host.receive(1)
    nodes.watch()
    assert nodes.do_there(RECEIVE).messages == []
    nodes.advance(SEND_INTERVAL_MS)
    nodes.until(lambda: QUEUE in nodes.first.watches._full)
    nodes.woken_ms.clear()
    nodes.host.delete(taken.receipt)
    nodes.until(lambda: nodes.woken_ms)
    assert len(nodes.do_there(RECEIVE).messages) == 1


def test_what_the_janitor_deletes_wakes(nodes: TwoNodes) -> None:
    nodes.host.create(retention_s=60)
    nodes.host.send(*"ab")
    nodes.watch()
    nodes.advance(JANITOR_MS - 1_000)
    nodes.woken_ms.clear()
    nodes.advance(1_000)
    nodes.advance(SEND_INTERVAL_MS)
    nodes.until(lambda: 0 in nodes.woken_ms)


def test_dead_letters_wake(nodes: TwoNodes) -> None:
    pair(nodes.host, receives_max=1)
    nodes.watch(DEAD)
    nodes.host.send("a")
    nodes.host.receive_one(timeout_s=0)
    assert nodes.host.receive(1) == []
    nodes.until(lambda: nodes.woken_ms)
    assert len(nodes.do_there(commands.Receive(queue=DEAD)).messages) == 1


def test_a_deletion_wakes_and_is_known(nodes: TwoNodes) -> None:
    nodes.host.create()
    nodes.watch()
    nodes.host.drop()
    nodes.until(lambda: nodes.woken_ms)
    with pytest.raises(QueueNotFound):
        nodes.do_there(RECEIVE)


@pytest.mark.parametrize("change", [
    commands.SetQueue(queue=QUEUE, settings={"receive_wait_s": 9}),
    commands.EditQueue(queue=QUEUE, setting="policy", edit=lambda policy: policy + " "),
    commands.TagQueue(queue=QUEUE, tags={"a": "b"}), commands.PurgeQueue(queue=QUEUE),
], ids=lambda change: type(change).__name__)  # fmt: skip
def test_what_was_changed_is_looked_up_again(nodes: TwoNodes, change: commands.Command) -> None:
    nodes.host.create()
    assert nodes.do_there(RECEIVE).receive_wait_s == 0
    catalog = nodes.other.catalog
    assert catalog.cached(QUEUE) is not None
    nodes.told()
    nodes.host.do(change)
    nodes.until(lambda: catalog.cached(QUEUE) is None)


def test_a_node_whose_clock_is_ahead_wakes_at_once(nodes: TwoNodes) -> None:
    """What it has moved or purged is so now for each node, not at the instant that this node takes for the present."""
    pair(nodes.host, receives_max=1)
    nodes.host.send("a")
    nodes.host.receive_one(timeout_s=0)
    open_source(nodes.host)
    now_ms = nodes.host.clock.now_ms()
    woken_ms: list[int] = []
    nodes.first.clock.synchronize(now_ms + 300_000, sent_ms=now_ms)
    nodes.watch(DEAD)
    assert claim(nodes.host).messages == 0  # the only one is a dead letter
    nodes.until(lambda: nodes.woken_ms)
    nodes.first.watch(QUEUE, woken_ms.append)
    nodes.host.purge()
    assert woken_ms == [nodes.first.clock.now_ms()]
    assert max(nodes.woken_ms) <= nodes.host.clock.now_ms()


def test_what_nobody_waits_for_is_told_to_nobody(nodes: TwoNodes) -> None:
    nodes.host.create()
    woken_ms: list[int] = []
    nodes.host.engine.watch(QUEUE, woken_ms.append)
    nodes.told()
    send(nodes, "a")
    assert len(woken_ms) == 1
    assert not nodes.told()


def test_what_comes_up_together_goes_together(nodes: TwoNodes) -> None:
    """One notice at once, and the next one, with the rest, ten milliseconds later."""
    nodes.host.create()
    nodes.host.create("a/other")
    nodes.watch()
    nodes.watch("a/other")
    nodes.told()
    for number in range(10):
        send(nodes, f"m{number}", delay_s=number)
        nodes.host.send("x", queue="a/other")
    now_ms = nodes.host.clock.now_ms()
    told = [(notice.queue, notice.due_ms) for notice in nodes.told()]
    assert told == [(QUEUE, now_ms), ("a/other", now_ms), (QUEUE, now_ms + 1_000)]


def test_an_interest_ends(nodes: TwoNodes) -> None:
    """By itself, soon after nobody waits any more or the node is gone; one long poll after another costs nothing."""
    nodes.host.create()
    nodes.watch()
    nodes.other.unwatch(QUEUE)
    for _ in range(2):
        assert nodes.first.watches.is_awaited(QUEUE)
        nodes.advance(REFRESH_MS)
    assert not nodes.first.watches.is_awaited(QUEUE)
    nodes.told()
    send(nodes, "a")
    assert not nodes.told()
    assert not nodes.first.watches.awaited_until_ms


def test_an_interest_is_repeated(nodes: TwoNodes) -> None:
    """So it holds for as long as somebody waits, though it would be old by then."""
    nodes.host.create()
    nodes.watch()
    for _ in range(5):
        nodes.first.watches.awaited_until_ms.clear()
        nodes.advance(REFRESH_MS)
        nodes.until(lambda: nodes.first.watches.is_awaited(QUEUE))


def test_a_node_that_comes_later_hears_what_is_awaited(nodes: TwoNodes) -> None:
    nodes.host.create()
    nodes.watch()
    nodes.host.reopen()
    nodes.first = nodes.host.engine
    nodes.advance(SEND_INTERVAL_MS)
    nodes.until(lambda: nodes.first.watches.is_awaited(QUEUE))


@KINDS
def test_a_lost_notice_is_made_up_for(nodes: TwoNodes, *, fifo: bool) -> None:
    """By the look that a node has each second at all that is waited for there."""
    nodes.host.create(fifo=fifo)
    nodes.watch()
    nodes.first.watches.awaited_until_ms.clear()
    send(nodes, "a")
    sent_ms = nodes.host.clock.now_ms()
    assert not nodes.told()
    assert nodes.woken_ms == []
    nodes.advance(1_000)
    assert nodes.woken_ms
    assert nodes.host.clock.now_ms() <= sent_ms + 1_010


def test_a_lost_notice_of_a_deletion_is_made_up_for(deaf: TwoNodes) -> None:
    """In the same way, and of a purge: the look names partitions, and finds that they are in use no more."""
    deaf.advance(200)
    assert deaf.woken_ms == []
    deaf.host.purge()
    deaf.advance(200)
    assert deaf.woken_ms == [deaf.host.clock.now_ms()]
    deaf.advance(200)
    assert len(deaf.woken_ms) == 1
    deaf.host.drop()
    deaf.advance(200)
    assert len(deaf.woken_ms) == 2
    with pytest.raises(QueueNotFound):
        deaf.do_there(RECEIVE)
    deaf.advance(200)
    assert len(deaf.woken_ms) == 3  # and so on, for whoever would not look


def test_without_notices_a_node_looks_more_often(deaf: TwoNodes) -> None:
    """Where a pooler passes none on: five times a second, and no more when nobody waits."""
    deaf.host.send("a")
    deaf.advance(199)
    assert deaf.woken_ms == []
    deaf.advance(1)
    assert deaf.woken_ms == [deaf.host.clock.now_ms()]
    deaf.other.unwatch(QUEUE)
    deaf.advance(200)
    assert deaf.host.clock.next_timer_ms() != deaf.host.clock.now_ms() + 200


def test_figures_tell_whether_notifications_arrive(nodes: TwoNodes) -> None:
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
    nodes.end_notices()
    nodes.until(lambda: not figure("arrive"))


def test_what_was_missed_without_a_connection_is_asked_for(nodes: TwoNodes) -> None:
    """A node that has lost it connects again, looks at everything once, and is told from then on as before."""
    nodes.host.create()
    nodes.watch()
    hub = nodes.other.watches
    nodes.end_notices()
    nodes.until(lambda: not hub.receives)
    send(nodes, "a")
    assert nodes.woken_ms == []
    nodes.advance(100)
    nodes.until(lambda: hub.receives)
    nodes.advance(1)
    assert nodes.woken_ms
    nodes.until(lambda: nodes.first.watches.receives)
    nodes.advance(SEND_INTERVAL_MS)
    nodes.until(lambda: nodes.first.watches.is_awaited(QUEUE))
    nodes.woken_ms.clear()
    send(nodes, "b")
    nodes.until(lambda: nodes.woken_ms)


def test_rounds_go_on_after_what_they_could_not_read(postgres_url: str) -> None:
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


# What notices hold, and who is woken when at one node.


def watches_of(heard: Sequence[str] = ()) -> Watches:
    """Return the watches of a node that has heard notices of others."""
    nothing, clock = cast(Any, None), DatabaseClock(VirtualClock())
    watches = Watches(nothing, poll_s=1, clock=clock, catalog=Catalog(PostgresOptions()), start=nothing)
    for text in heard:
        watches._on_notification(None, 0, "", text)
    return watches


def test_notices_are_as_other_versions_say_and_hear_them() -> None:
    """Nodes are upgraded one by one; no name is too long for the server."""
    assert decode_notification('["n","due","a",1]') == Notification("n", "due", "a", 1)
    assert decode_notification('["n","hello"]') == Notification("n", "hello")
    assert watches_of(['["n","awaited","a",0,"by ten"]']).is_awaited("a")
    name = "ä" * (13 + SMQ_QUEUE_NAME_CHARACTERS_MAX)
    assert len(msgspec.json.encode(Notification("0123abcd", "awaited", name, NEVER_MS))) <= NOTIFY_BYTES_MAX


@pytest.mark.parametrize("text", ["", "{}", "[]", '["n"]', '["n","due","a","soon"]', '["n","weather","a"]'])
def test_what_is_not_ours_is_ignored(text: str) -> None:
    """Anybody with an account of the database can say something; a later version may say more."""
    woken: list[int] = []
    watches = watches_of()
    watches.begin("a", woken.append)
    watches._on_notification(None, 0, "", text)
    assert (woken, watches.awaited_until_ms) == ([], {})


def test_a_place_is_told_once_for_each_that_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Watches, "_queue_notification", lambda watches, kind, queue, due_ms: told.append(queue))
    watches = watches_of(['["n","awaited","q"]'])
    watches.freed("q", 1)
    assert told == []
    for times in (1, 2):
        watches._on_notification(None, 0, "", '["n","full","q"]')
        for _ in range(2):
            watches.freed("q", 1)
        assert told == ["q"] * times


def test_a_watch_that_fails_keeps_nobody_from_anything() -> None:
    watches = watches_of()
    woken: list[int] = []

    def fail(due_ms: int) -> None:
        raise RuntimeError(due_ms)

    watches.begin("bad", fail)
    watches.begin("q", woken.append)
    for due_ms, queue in enumerate(("bad", "q", "other")):
        watches.wake(queue, due_ms)
    assert woken == [1]


@pytest.mark.parametrize("fails", [False, True])
def test_dead_letters_of_a_receive_are_told_of_at_its_end(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """When its transaction is committed; of what was rolled back nobody is told."""
    told: list[tuple[str, int]] = []

    async def take(taking: _SharedReceive) -> list[Any]:
        taking.woken["dead"] = 1
        assert told == []
        return [1 / (not fails)]

    monkeypatch.setattr(_SharedReceive, "_lease_with_rules", take)
    node: Any = SimpleNamespace(watches=SimpleNamespace(wake=lambda *due: told.append(due)))
    terms: Any = SimpleNamespace(attempt_id=None)
    with suppress(ZeroDivisionError):
        asyncio.run(_SharedReceive(node, None, cast(Any, SimpleNamespace(origin=1)), terms, (1,), 1).rows())
    assert told == ([] if fails else [("dead", 1)])


def test_waiters_are_woken_behind_the_answer(host: PostgresHost) -> None:
    """A poll that is submitted again before it would pass by the policy that the command has taken away."""
    host.create()
    seen: list[str] = []
    host.engine.watch(QUEUE, lambda due_ms: seen.append("wake"))
    set_queue = commands.SetQueue(queue=QUEUE, settings={"policy": ""})
    host.do_together(set_queue, on_result=lambda answer: seen.append("answer"))
    host.in_loop(lambda: None)
    assert seen[:2] == ["answer", "wake"]
