"""The node's state in memory: noisy groups, messages in flight, and low-water marks."""

import json
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import asyncpg
import pytest

from tests.internals.store.postgres.nodes import TwoNodes
from tests.store.host import QUEUE, Host, message
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.commands import MessageState
from veilmq.core.messages import Lease
from veilmq.core.settings import QueueSettings
from veilmq.store.port import CountQueues, execute
from veilmq.store.postgres.database import SETTINGS
from veilmq.store.postgres.node import FairShares, LowWater, PartitionCache, keys_of, lease_of
from veilmq.store.postgres.queues import BEGINNING, STANDARD, Queue
from veilmq.testing import VirtualClock

NOISY, QUIET = "noisy", "quiet"
BATCH = 100
EXPLAIN = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT mq.fair_choose(qp, 1, 1 << 30, $1, '{}', true) FROM mq.queue
"""


@pytest.fixture
def queue(host: PostgresHost) -> PostgresHost:
    host.create()
    return host


@pytest.fixture
def fair_nodes(nodes: TwoNodes) -> TwoNodes:
    nodes.host.create()
    return nodes


# Fair queues: the cost of receives, queues without groups, several nodes.


def send(host: Host, group: str | None, *bodies: str) -> None:
    for start in range(0, len(bodies), BATCH):
        host.put(*(message(body, group=group) for body in bodies[start : start + BATCH]))


def receive_at_other(nodes: TwoNodes, count: int = 1) -> list[str]:
    received: commands.Received = nodes.do_at_other(commands.Receive(queue=QUEUE, count=count, timeout_s=3_600))
    return [each.body for each in received.messages]


def test_message_of_a_quiet_group_is_found_behind_a_backlog(queue: PostgresHost) -> None:
    """Also among ten times as many groups: the statement reads no more pages, except for the noisy group."""

    async def explain() -> Any:
        async with connected(queue.url) as connection:
            await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off")
            noisy = keys_of([message("n", group=NOISY)])
            await connection.fetch(EXPLAIN, noisy)  # the first statement of a connection also reads the catalog
            return json.loads(await connection.fetchval(EXPLAIN, noisy))[0]["Plan"]

    pages = []
    for messages, groups in ((300, range(30)), (3_000, range(30, 330))):
        send(queue, NOISY, *(f"n{number}" for number in range(messages)))
        queue.put(*(message(f"m{number}", group=f"g{number}") for number in groups))
        plan = queue.run(explain())
        pages.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    assert pages[1] <= pages[0] + 20


@pytest.mark.usefixtures("new_tables")
def test_cost_of_a_noisy_groups_message_is_independent_of_the_count(queue: PostgresHost) -> None:
    """Only the last message checks whether its group has more."""
    send(queue, NOISY, *(f"n{number}" for number in range(400)))
    queue.receive(40, timeout_s=3_600)
    read = []
    for messages in (20, 200):
        before = queue.entries_read()
        assert len(queue.receive(messages, timeout_s=0)) == messages
        read.append(queue.entries_read() - before)
    assert read[1] < 10 * read[0]


@pytest.mark.usefixtures("new_tables")
@pytest.mark.parametrize("ended", [False, True], ids=["claimed", "ended"])
def test_receive_skips_some_hundreds_of_empty_groups(queue: PostgresHost, *, ended: bool) -> None:
    """Each would take a lock; beyond them, a message is found by its time."""
    read = []
    for groups in (1_500, 3_000):
        for number in range(0, groups, BATCH):
            queue.put(*(message("old", group=f"{groups} {number + each}") for each in range(BATCH)))
        if ended:
            queue.set_queue(retention_s=60)
            queue.advance(59_000)
            queue.reopen()  # the janitor runs a minute later
            queue.advance(1_000)
        else:
            queue.do(OpenSource(queue=QUEUE, source=f"s{groups}"))
            command = Claim(queue=QUEUE, source=f"s{groups}", number=1, epoch=1, messages_max=groups)
            while queue.do(command).more:
                pass
        send(queue, QUIET, "q")
        before = queue.entries_read()
        assert queue.bodies() == ["q"]
        read.append(queue.entries_read() - before)
        queue.purge()
    assert 2 * read[1] < 3 * read[0]


def test_queue_without_groups_uses_the_plain_statements(queue: PostgresHost) -> None:
    queue.send("a", "b")
    first, second = queue.receive(10)
    queue.change(first.receipt, 0)
    queue.delete(second.receipt)
    assert queue.receive(10)

    async def prepared() -> list[str]:
        async with queue.engine.database.connection() as connection:  # type: ignore[attr-defined]
            return [text for (text,) in await connection.fetch("SELECT statement FROM pg_prepared_statements")]

    texts = queue.run(prepared())
    assert any("mq.msg" in text for text in texts)
    assert not any("fair" in re.sub("--.*", "", text) for text in texts)


def test_counts_of_many_queues_take_three_statements(queue: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape of metrics counts a thousand queues."""
    names = [QUEUE, *(f"{QUEUE}{number}" for number in range(9))]
    for number, name in enumerate(names[1:]):
        queue.create(name, fifo=bool(number % 2))
        queue.put(message("a", group="a", dedup_id="a" if number % 2 else None), queue=name)
    queue.receive_one(queue=names[1])
    queue.receive_one(queue=names[2])
    kind: Any = asyncpg.Connection
    statements, execute_one = list[str](), kind._execute

    def counting(connection: Any, text: str, *args: Any, **options: Any) -> Any:
        statements.append(text)
        return execute_one(connection, text, *args, **options)

    monkeypatch.setattr(kind, "_execute", counting)
    views = {view.queue: view.counts for view in queue.do(CountQueues(names=[*names, "a/none"]))}
    found = [(views[name].visible, views[name].in_flight, views[name].sent, views[name].received) for name in names]
    assert found == [(0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 1, 1), *[(1, 0, 1, 0)] * 7]
    assert (len(views), len(statements)) == (10, 3)


def test_turns_are_corrected_and_swept(queue: PostgresHost) -> None:
    """A group without messages loses its turn when the turn is due, or when its last message has expired."""
    for number in range(20):
        send(queue, f"g{number}", f"m{number}")
    queue.delete(*(each.receipt for each in queue.receive(10, timeout_s=60)))
    assert queue.rows("fair_turn") == 20
    queue.advance(60_000)
    assert len(queue.receive(10)) == 10
    assert queue.rows("fair_turn") == 10
    queue.set_queue(retention_s=60)
    queue.advance(120_000)
    assert queue.rows("fair_turn") == 0
    queue.drop()
    queue.check()


def test_node_sees_noisy_groups_of_another_node(fair_nodes: TwoNodes) -> None:
    send(fair_nodes.host, NOISY, *(f"n{number}" for number in range(60)))
    assert len([each for _ in range(4) for each in fair_nodes.host.receive(10, timeout_s=3_600)]) == 40
    send(fair_nodes.host, QUIET, "q")
    assert receive_at_other(fair_nodes, 2) == ["q", "n40"]


def test_node_sees_deletes_of_another_node_within_a_second(fair_nodes: TwoNodes) -> None:
    send(fair_nodes.host, NOISY, *(f"n{number}" for number in range(29)))
    held = fair_nodes.host.receive(29, timeout_s=3_600)
    fair_nodes.do_at_other(commands.Delete(queue=QUEUE, receipts=tuple(each.receipt for each in held)))
    fair_nodes.advance(1_000)
    send(fair_nodes.host, NOISY, *(f"m{number}" for number in range(3)))
    send(fair_nodes.host, "other", *(f"o{number}" for number in range(40)))
    assert [each.body for each in fair_nodes.host.receive(2, timeout_s=3_600)] == ["o0", "o1"], (
        "a second of work is noisy"
    )
    fair_nodes.advance(1_200_000)
    assert fair_nodes.host.receive(1, timeout_s=3_600)[0].body == "m0", "a second that was long ago is not"


def test_node_sees_a_noisy_group_drained_by_another_node(fair_nodes: TwoNodes) -> None:
    """Within a second; messages of other groups are still visible."""
    host = fair_nodes.host
    send(host, NOISY, *(f"n{number}" for number in range(41)))
    held = host.receive(40, timeout_s=3_600)
    send(host, QUIET, "q")
    (first,) = host.receive(1, timeout_s=3_600)
    assert first.body == "q"
    host.delete(*(each.receipt for each in held))
    assert receive_at_other(fair_nodes) == ["n40"]
    send(host, QUIET, "q1")
    fair_nodes.advance(1_000)
    assert host.bodies(1) == ["q1"]
    send(host, NOISY, "n")
    send(host, QUIET, "q2")
    assert host.bodies(2) == ["n", "q2"]


def test_messages_sent_by_another_node_are_received_at_once(fair_nodes: TwoNodes) -> None:
    fair_nodes.do_at_other(commands.Send(queue=QUEUE, messages=(message("a"),)))
    assert receive_at_other(fair_nodes) == ["a"]
    send(fair_nodes.host, QUIET, "b")
    (received,) = fair_nodes.do_at_other(commands.Receive(queue=QUEUE)).messages
    assert (received.body, received.priority) == ("b", 8)


BUSY = 7
HOUR_MS = 3_600_000


def leases(first: int, end: int, *, since_ms: int = 0) -> dict[int, Lease]:
    return {position: Lease(ends_at_ms=HOUR_MS, group=BUSY, since_ms=since_ms) for position in range(first, end)}


def shares(number: int) -> FairShares:
    made = FairShares(VirtualClock())
    for position, lease in leases(0, number).items():
        made.begin_lease(position, lease, 0)
    return made


@pytest.mark.parametrize(("whole", "noisy"), [(True, []), (False, [BUSY])])
def test_complete_refresh_ends_missing_leases(whole: bool, noisy: list[int]) -> None:
    seen = shares(40)
    assert seen.noisy(0) == [BUSY]
    seen.mark_drained(BUSY)
    seen.merge(leases(0, 29), 0, whole=whole)
    assert seen.noisy(0) == noisy


def test_delete_during_a_refresh_wins() -> None:
    """Eleven messages are deleted after they were read: their leases do not return."""
    seen = shares(40)
    seen.mark_drained(BUSY)
    seen.touched = set()
    for position in range(11):
        seen.end_lease(position, 0)
    seen.merge(leases(0, 40), 0, whole=True)
    assert seen.noisy(0) == []


def test_delivery_during_a_refresh_stays_in_flight() -> None:
    seen = shares(20)
    seen.touched = set()
    for position, lease in leases(20, 40).items():
        seen.begin_lease(position, lease, 0)
    seen.merge(leases(0, 20), 0, whole=True)
    assert seen.noisy(0) == [BUSY]


def test_message_received_again_by_another_node_has_a_new_lease() -> None:
    seen = shares(1)
    seen.merge(leases(0, 1, since_ms=5_000), 5_000, whole=True)
    assert seen.noisy(5_000) == [BUSY]


def test_lease_ends_with_the_retention() -> None:
    seen, row = FairShares(VirtualClock()), {"group_key": BUSY, "sent_at": -1_000}
    queue = Queue(1, QUEUE, QueueSettings(retention_s=1), 0, 0, 1, 1)
    for position in range(30):
        seen.begin_lease(position, lease_of(queue, row, HOUR_MS, 0), 0)
    seen.expire_leases(1)
    assert seen.noisy(1) == []


def test_noisy_groups_are_ordered_by_messages_in_flight() -> None:
    seen = shares(40)
    for position in range(100, 131):
        seen.begin_lease(position, Lease(HOUR_MS, BUSY + 1, 0), 0)
    assert seen.noisy(0, judge=False) == [BUSY + 1, BUSY]
    assert seen.noisy(0) == [BUSY + 1, BUSY]


def test_ended_leases_are_forgotten_before_their_deadline() -> None:
    """A queue may deliver and delete a thousand messages a second, each hidden for an hour."""
    seen = shares(10)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for position in range(10, 50_000):
        seen.begin_lease(position, Lease(HOUR_MS, BUSY, 0), 0)
        seen.end_lease(position, 0)
    grown_bytes = sum(each.size_diff for each in tracemalloc.take_snapshot().compare_to(before, "filename"))
    tracemalloc.stop()
    assert grown_bytes < 1_000_000
    seen.expire_leases(HOUR_MS)
    assert seen.noisy(HOUR_MS) == []


def test_busy_group_is_noisy_again_after_its_silence() -> None:
    """Its processing time still counts, with a half-life of a minute."""
    seen = shares(1)
    seen.end_lease(0, 100_000)
    assert seen.noisy(300_000) == []
    seen.stored([BUSY], [{"sent_at": 300_001}])
    assert seen.noisy(300_001) == [BUSY]


# Large in-flight quotas: one node counts for all at intervals.


QUOTA = 5
ESTIMATED = replace(RESTLESS, in_flight_max=QUOTA, fifo_in_flight_max=QUOTA, in_flight_counted_max=0)


@pytest.fixture(params=[{}, {"fifo": True}], ids=["standard", "fifo"])
def full(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url, options=ESTIMATED) as opened:
        opened.create(**request.param)
        opened.put(*(message(f"m{number}", group=f"g{number}", dedup_id=f"m{number}") for number in range(20)))
        yield opened


def received(host: PostgresHost) -> commands.Received:
    answer: commands.Received = host.do(commands.Receive(queue=QUEUE, count=10))
    return answer


def test_own_receives_count_at_once(full: PostgresHost) -> None:
    """Own deletes and releases, too; a receive over the quota gets the time of the next attempt."""
    full.advance(1)
    taken = full.receive(3) + full.receive(10)
    assert len(taken) == QUOTA
    none = received(full)
    assert (none.messages, none.next_due_ms) == ([], full.clock.now_ms() + 1_000)
    full.delete(taken[0].receipt)
    full.change(taken[1].receipt, 0)
    assert len(full.receive(10)) == 2
    assert received(full).messages == []


def test_expired_leases_count_until_the_next_count(full: PostgresHost) -> None:
    assert len(full.receive(10, timeout_s=1)) == QUOTA
    full.advance(999)
    assert received(full).messages == []
    full.advance(1)
    assert len(full.receive(10)) == QUOTA


def test_receive_without_a_timeout_uses_no_slot(full: PostgresHost) -> None:
    for _ in range(4):
        assert len(full.receive(3, timeout_s=0)) == 3


def test_repeated_attempt_uses_no_more_slots(full: PostgresHost) -> None:
    attempt = commands.Receive(queue=QUEUE, count=3, attempt_id="x")
    given = [each.id for each in full.do(attempt).messages]
    if full.do(commands.ShowQueue(queue=QUEUE)).settings.fifo:
        assert [each.id for each in full.do(attempt).messages] == given
    assert len(full.receive(10)) == QUOTA - 3


def test_watch_is_woken_for_a_free_slot(full: PostgresHost) -> None:
    (first, *_) = full.receive(10)
    assert received(full).messages == []
    woken_ms = full.watch()
    full.delete(first.receipt)
    assert full.clock.now_ms() in woken_ms


async def receive(node: Any, count: int) -> int:
    return len((await execute(node, commands.Receive(queue=QUEUE, count=count, timeout_s=100))).messages)


@pytest.mark.parametrize(("first", "there", "next_ms", "more"), [
    pytest.param(3, 1, 1_000, 1, id="near: each second"),
    pytest.param(1, 4, 10_000, 0, id="far, until half of it is taken: each ten seconds"),
])  # fmt: skip
def test_nodes_see_each_others_receives_at_the_next_count(
    full: PostgresHost, first: int, there: int, next_ms: int, more: int
) -> None:
    """One node counts and the other reads the count, so until then each can deliver up to the quota."""
    other = full.run(open_engine(full.url, clock=full.clock, options=ESTIMATED))
    assert full.run(receive(full.engine, first)) == first
    assert full.run(receive(other, there)) == there
    full.advance(1_000)
    if next_ms > 1_000:
        assert full.run(receive(full.engine, 1)) == 1  # it does not know the other four yet
        full.advance(next_ms - 1_000)
    assert full.run(receive(full.engine, 10)) == more
    full.advance(10_000)
    assert full.run(receive(other, 10)) == 0
    full.run(other.close())


# Small in-flight quotas; beside delayed messages they cost no more.


SMALL = replace(RESTLESS, in_flight_max=QUOTA, fifo_in_flight_max=QUOTA)
DELAYED = 2_500


@pytest.fixture(params=[{}, {"fifo": True}], ids=["standard", "fifo"])
def delayed(request: pytest.FixtureRequest, new_tables: None, postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url, options=SMALL) as opened:
        opened.create(**request.param)
        is_fifo, names = bool(request.param), count()

        for delay_s in (0, *[900] * (DELAYED // BATCH)):
            groups = [f"g{next(names)}" if is_fifo else None for _ in range(BATCH)]
            opened.put(*(message("", delay_s=delay_s, group=each, dedup_id=each) for each in groups))
        opened.advance(1)
        yield opened


def test_few_receives_count_past_delayed_messages(delayed: PostgresHost) -> None:
    read = []
    for receives in (1, 11):
        before = delayed.entries_read()
        for _ in range(receives):
            (each,) = delayed.receive(1)
            delayed.delete(each.receipt)
        read.append(delayed.entries_read() - before)
    assert read[1] - read[0] < DELAYED


def test_nodes_keep_a_small_quota_beside_delayed_messages(delayed: PostgresHost) -> None:
    other = delayed.run(open_engine(delayed.url, clock=delayed.clock, options=SMALL))
    given = [delayed.run(receive(node, 2)) for node in (delayed.engine, other, other, delayed.engine)]
    assert given == [2, 2, 1, 0]
    delayed.advance(100_000)
    taken = [delayed.receive(1)[0] for _ in range(QUOTA)]
    delayed.delete(taken[0].receipt)
    assert [delayed.run(receive(node, 9)) for node in (delayed.engine, other)] == [1, 0]
    delayed.advance(100_000)
    delayed.set_queue(visibility_timeout_s=3_600)  # leases end behind the delays
    first = delayed.receive(2)
    assert delayed.run(receive(other, 9)) == QUOTA - 2
    delayed.delete(first[0].receipt)
    delayed.advance(1_000)
    given = [delayed.run(receive(node, 9)) for node in (other, delayed.engine)]
    assert given == [1, 0], "the other node's count has seen what was deleted"
    delayed.run(other.close())


# Low-water marks: scans start behind consumed messages, and no visible message is missed for long.


COUNTERS = count(1)


def committed_late(host: PostgresHost, body: str, visible_at_ms: int) -> None:
    (partition,) = host.values("SELECT qp FROM mq.queue WHERE name = $1", QUEUE)
    terms = partition, [next(COUNTERS)], [8], [0], [bytes(16)], [None], [body]
    host.values(STANDARD["send"], *terms)
    host.values("UPDATE mq.msg SET visible_at = $2 WHERE qp = $1 AND body = $3", partition, visible_at_ms, body)


def test_late_commit_is_found_within_a_second(stopwatch: list[float], queue: PostgresHost) -> None:
    """While there are other messages; without them, or if it is only a little late, at once."""
    queue.advance(10_000)
    first_ms = queue.clock.now_ms()
    queue.send(*"abcdefgh")
    assert queue.bodies(1) == ["a"]
    committed_late(queue, "late", first_ms - 1_000)
    queue.advance(999)
    assert queue.bodies(1) == ["b"]
    queue.advance(1)
    assert queue.bodies(1) == ["late"]
    assert queue.bodies(10) == ["c", "d", "e", "f", "g", "h"]
    committed_late(queue, "latest", first_ms - 2_000)
    assert queue.bodies(1) == ["latest"]


def test_slightly_late_commit_is_found_soon(queue: PostgresHost) -> None:
    queue.advance(10_000)
    queue.send(*map(str, range(40)))
    assert queue.bodies(1) == ["0"]
    committed_late(queue, "nearly", queue.clock.now_ms() - 50)
    assert "nearly" in [body for _ in range(16) for body in queue.bodies(1)]


def test_each_priority_has_its_own_mark(queue: PostgresHost) -> None:
    """Messages that became visible before those of a higher priority are not skipped."""
    queue.send("old", priority=9)
    queue.advance(10_000)
    queue.send("new", "newer", priority=1)
    assert queue.bodies(1) == ["new"]
    assert queue.bodies(2) == ["newer", "old"]


@pytest.mark.usefixtures("tables")
def test_receive_scans_the_index_from_its_mark(queue: PostgresHost) -> None:
    """The plan reads no entry before the mark, and sorts nothing."""

    async def plan() -> str:
        async with connected(queue.url) as connection:
            for name, value in SETTINGS.items():
                await connection.execute("SELECT set_config($1, $2, false)", name, value)
            types = "bigint, int, bigint, bigint, bigint[], bigint, bigint, bigint, bigint[]"
            await connection.execute(f"PREPARE receive({types}) AS {STANDARD['receive']}")
            rows = await connection.fetch("EXPLAIN EXECUTE receive(1, 1, 1, 1, '{}', 1, NULL, NULL, NULL)")
            return "\n".join(row[0] for row in rows)

    plan_text = queue.run(plan())
    (condition,) = [line for line in plan_text.splitlines() if "Index Cond" in line and "visible_at" in line]
    assert "ROW(visible_at, seq) > ROW(" in condition
    assert "visible_at <= clock" in condition
    assert "Sort" not in plan_text


def row(priority: int, visible_at_ms: int, position: int) -> dict[str, int]:
    return {"priority": priority, "was_visible_at": visible_at_ms, "seq": position, "now": 500}


def test_full_scan_once_a_second() -> None:
    """A scan starts behind the last received message; without one, or after a second, at the beginning."""
    clock = VirtualClock()
    low_water = LowWater(clock)
    low_water.record([row(8, 100, 1)])
    assert low_water.begin() == BEGINNING
    low_water.record([row(8, 300, 7), row(8, 300, 9), row(8, 200, 11), row(1, 50, 3)])
    behind = low_water.begin()
    assert (behind[7], behind[16 + 7], behind[0], behind[16], behind[1], behind[17]) == (300, 9, 50, 3, 0, -1)
    low_water.record([row(2, 500, 7)])
    assert (behind[1], behind[17]) == (500, -1), "more may come up at the present instant"
    clock.advance(1_000)
    assert low_water.begin() == BEGINNING
    low_water.record([])
    assert low_water.begin() == behind


def test_failover_clears_all_marks(host: PostgresHost) -> None:
    """The new primary's clock may differ."""
    node: Any = host.engine
    node.low_water[1].record([row(8, 100, 1)])
    node.database.on_lost()
    assert node.low_water[1].marks == BEGINNING


def test_partition_cache_is_cleared_when_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.store.postgres.node._CACHED_PARTITIONS_MAX", 2)
    known: PartitionCache[list[int]] = PartitionCache(list)
    for partition in range(3):
        known[partition].append(partition)
        assert known[partition] == [partition]
    assert [*known] == [2]


def test_empty_partial_scan_is_followed_by_a_full_scan() -> None:
    low_water = LowWater(VirtualClock())
    low_water.begin()
    assert low_water.begin_full_scan() is None
    low_water.record([row(8, 100, 1)])
    low_water.begin()
    assert low_water.begin_full_scan() == BEGINNING


def test_slow_full_scans_take_a_tenth_of_the_time(stopwatch: list[float]) -> None:
    """From the second slow one on; waiters get the time of the next one."""
    clock = VirtualClock()
    low_water = LowWater(clock)
    assert (low_water.marks, low_water.full_scan_wait_ms) == (BEGINNING, None)
    for again_ms in (None, None, 4_000):
        assert low_water.begin() == BEGINNING
        stopwatch[0] += 0.4
        low_water.record([row(8, 100, 1)])
        wait_ms = low_water.full_scan_wait_ms
        assert wait_ms == (None if again_ms is None else pytest.approx(again_ms, abs=1))
        assert low_water.begin() == low_water.marks != BEGINNING
        stopwatch[0] += 0.01
        low_water.record([])
        clock.advance(1_000)
    stopwatch[0] += 3.98
    behind = low_water.marks
    assert low_water.begin() == behind
    assert low_water.begin_full_scan() is None
    low_water.record([])
    stopwatch[0] += 0.02
    assert (low_water.marks, low_water.full_scan_wait_ms) == (behind, None)
    assert low_water.begin() == BEGINNING


@pytest.mark.usefixtures("new_tables")
@pytest.mark.parametrize("held", [False, True])
def test_consumed_messages_cost_little_during_a_long_transaction(queue: PostgresHost, held: bool) -> None:
    """Dead entries cannot be removed meanwhile: each is read when its message is received, and rarely again."""
    messages, at_once = 1_000, 10
    for number in range(messages // at_once):
        queue.send(*[str(number)] * at_once)
        queue.advance(1)
    before = queue.entries_read()

    async def drain() -> int:
        async with connected(queue.url) as connection, connection.transaction(isolation="repeatable_read"):
            if held:
                await connection.execute("SELECT FROM mq.queue")
            taken = 0
            while batch := (await execute(queue.engine, commands.Receive(queue=QUEUE, count=at_once))).messages:
                receipts = tuple(each.receipt for each in batch)
                await execute(queue.engine, commands.Delete(queue=QUEUE, receipts=receipts))
                taken += len(batch)
            return taken

    assert queue.run(drain()) == messages
    assert queue.entries_read() - before < 10 * messages


@pytest.mark.usefixtures("new_tables")
def test_expired_messages_cost_peeks_and_receives_nothing(host: PostgresHost) -> None:
    """Before the janitor deletes them."""
    host.create(retention_s=60)
    ended = 1_000
    for _ in range(ended // BATCH):
        host.send(*["old"] * BATCH)
    host.advance(60_001)
    host.reopen()
    before = host.entries_read()
    assert host.bodies() == []
    host.send("new")
    assert [each.body for each in host.do(commands.Peek(queue=QUEUE)).messages] == ["new"]
    inspected = host.do(commands.InspectQueue(queue=QUEUE, state=MessageState.VISIBLE, count=10))
    assert [each.body for each in inspected] == ["new"]
    assert host.bodies() == ["new"]
    assert host.bodies() == []
    assert host.entries_read() - before < ended
