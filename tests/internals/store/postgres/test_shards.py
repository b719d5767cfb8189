"""Several databases as one store: their identity, the places of queues, and service while one of them is down."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import eq
from typing import Any
from urllib.parse import urlsplit

import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.store.host import QUEUE, decode_events, message
from tests.store.postgres_host import (
    RESTLESS,
    ShardsHost,
    connected,
    empty,
    hosting_shards,
    prepare,
    set_clock,
    until_a_session_waits_for_a_lock,
)
from tests.store.test_dead_letters import DEAD, dead_letter
from veilmq.core import commands
from veilmq.core.commands import SetAccount, ShowAccount
from veilmq.core.errors import OutcomeUnknown, QueueNotFound, ReceiptInvalid, ShuttingDown, StoreUnavailable
from veilmq.core.receipts import KEY_BYTES, CountEvents, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.settings import AccountSettings
from veilmq.store.port import CountQueues, Finding, StoreError, SurveyQueues, execute
from veilmq.store.postgres import Shards, databases
from veilmq.store.postgres.database import POLL_MS
from veilmq.store.postgres.databases import ONE_STORE, PLACES, examine_together
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.outbox import CLAIM_MS
from veilmq.store.postgres.store import REFRESH_MS
from veilmq.store.postgres.transaction import JANITOR_MS
from veilmq.store.urls import remove_passwords
from veilmq.testing import VirtualClock

LATER = "000000000000/later"
IMPATIENT = replace(RESTLESS, acquire_s=2.0)


@pytest.fixture
def host(shard_urls: list[str]) -> Iterator[ShardsHost]:
    with hosting_shards(shard_urls) as opened:
        yield opened


def names(number: int) -> list[str]:
    return [f"000000000000/q{each}" for each in range(number)]


# The identity of the databases.


def refusal(host: ShardsHost, *urls: str) -> str:
    async def attempt() -> str:
        with pytest.raises(StoreError) as found:
            await Shards.open(urls, clock=host.clock, options=RESTLESS)
        return str(found.value)

    return host.run(attempt())


@pytest.mark.parametrize(
    ("places", "why"),
    [
        pytest.param([1, 0], "it is number 2 of the databases of its store; name the first one", id="another order"),
        pytest.param([1], "it is number 2 of the databases of its store; name the first one", id="without the home"),
        pytest.param([0, 0], "it is number 1 of its store, and named as number 2", id="one twice"),
        # The second one is refused before the third one is opened; all are closed.
        pytest.param([0, None, 1], 'database "missing" does not exist', id="one that is not there"),
    ],
)
def test_databases_in_the_wrong_order_are_refused(host: ShardsHost, places: list[int | None], why: str) -> None:
    """Each knows its place, and only the home knows the others."""
    missing = urlsplit(host.urls[1])._replace(path="/missing").geturl()
    assert why in refusal(host, *(missing if place is None else host.urls[place] for place in places))


def test_database_of_another_store_is_refused(host: ShardsHost, new_database: str) -> None:
    """One with queues, and one that has joined another store."""

    async def fill() -> None:
        engine = await Shards.open([new_database], clock=host.clock, options=RESTLESS)
        await execute(engine, commands.CreateQueue(queue=QUEUE))
        await engine.close()

    host.run(fill())
    assert "it belongs to another store; name the one that was number 2" in refusal(host, host.urls[0], new_database)
    assert "it belongs to another store" in refusal(host, new_database, host.urls[1])


def test_list_can_add_a_database_at_the_end(shard_urls: list[str]) -> None:
    """A database with queues becomes the first of two; after that, the list is not needed."""

    async def before() -> None:
        for url in shard_urls:
            await empty(url)
        clock = VirtualClock()
        await set_clock(shard_urls[0], clock.now_ms())  # another test may have left a later time
        engine = await Shards.open(shard_urls[:1], clock=clock, options=RESTLESS)
        await execute(engine, commands.CreateQueue(queue=QUEUE))
        await execute(engine, commands.Send(queue=QUEUE, messages=(message("kept"),)))
        await engine.close()

    asyncio.run(before())
    host = ShardsHost(shard_urls)
    host.create(LATER)
    assert (host.place_of(QUEUE), host.place_of(LATER)) == (0, 1)
    assert host.receive_one().body == "kept"
    del host.urls[1]
    host.reopen()
    host.send("there", queue=LATER)
    host.close()


# Places of queues.


async def sweep_places(store: Shards) -> None:
    async with store.shards[0].database.connection() as home:
        await store.sweep(home)


def test_new_queue_goes_to_the_database_with_the_fewest(host: ShardsHost) -> None:
    """And stays there; a deleted queue counts until its place is deleted."""
    for name in names(4):
        host.create(name)
    assert [host.place_of(name) for name in names(4)] == [0, 1, 0, 1]
    for name in names(4)[::2]:
        host.drop(name)
    host.create(LATER)
    assert host.place_of(LATER) == 0  # the numbers are still equal
    host.advance(JANITOR_MS)  # the cooldown of deleted names has ended
    host.run(sweep_places(host.engine))
    for name in names(7)[4:]:
        host.create(name)
    assert [host.place_of(name) for name in names(7)[4:]] == [0, 0, 1]


def test_listings_include_all_databases(host: ShardsHost) -> None:
    """By name, in pages; also dead-letter sources and the operator's view. Accounts are in the home."""
    host.create(DEAD)
    for name in names(5):
        host.create(name, dead_letter_queue=DEAD, receives_max=1)
    page = host.do(commands.ListQueues(account="000000000000", prefix="q", count=3, views=True))
    assert (page.names, page.more) == (["q0", "q1", "q2"], True)
    assert [view.queue for view in page.views] == names(3)
    page = host.do(commands.ListQueues(account="000000000000", prefix="q", after="q2", count=3))
    assert (page.names, page.more) == (["q3", "q4"], False)
    page = host.do(commands.ListDeadLetterSources(queue=DEAD, after=names(5)[0], count=3))
    assert (page.names, page.more) == (names(5)[1:4], True)
    assert host.do(SurveyQueues(names_max=2))[:2] == ([DEAD, names(1)[0]], 6)
    assert sorted(view.queue for view in host.do(CountQueues(names=[*names(5), LATER]))) == names(5)
    host.do(SetAccount(account="000000000000", settings=AccountSettings(logging_bucket="b")))
    assert host.do(ShowAccount(account="000000000000")).logging_bucket == "b"
    assert host.run(host.engine.readiness_failures()) == []
    assert {figure.name for figure in host.engine.metrics()} > {"store_reachable", "store_outbox_relayed"}


def test_receipts_are_valid_in_one_database(host: ShardsHost) -> None:
    for name in names(2):
        host.create(name)
        host.send("a", queue=name)
    receipt = host.receive_one(queue=names(2)[0]).receipt
    (answer,) = host.delete(receipt, queue=names(2)[1])
    assert isinstance(answer, ReceiptInvalid)


def test_node_finds_queues_recreated_in_another_database(host: ShardsHost) -> None:
    """The cached place is wrong, so it is looked up again."""

    async def open_other() -> Shards:
        return await Shards.open(host.urls, clock=host.clock, options=RESTLESS)

    async def create() -> None:
        await sweep_places(other)
        await execute(other, commands.CreateQueue(queue=LATER))
        await execute(other, commands.CreateQueue(queue=QUEUE))
        await other.close()

    host.create(QUEUE)
    woken = host.watch()
    other = host.run(open_other())
    host.run(execute(other, commands.DeleteQueue(queue=QUEUE)))
    host.advance(JANITOR_MS)
    host.run(create())
    assert (host.place_of(LATER), host.place_of(QUEUE)) == (0, 1)
    host.send("a")
    assert host.receive_one().body == "a"
    woken.clear()
    host.send("b")
    assert woken
    assert [QUEUE in each.watches._wakes for each in host.engine.shards.values()] == [False, True]
    host.drop()
    with pytest.raises(QueueNotFound):
        host.send("c")


def test_events_of_all_databases_are_exported(shard_urls: list[str]) -> None:
    """One range of one database at a time; each database numbers its own events, and names of ranges are unique."""
    with hosting_shards(shard_urls, options=replace(RESTLESS, event_log="closed")) as host:
        for name in names(2):
            host.create(name)
            host.send("a", "b", "c", queue=name)
            host.delete(*(each.receipt for each in host.receive(10, queue=name)), queue=name)
        ranges, events = [], []
        while (planned := host.do(PlanExport(events_max=2))) is not None:
            ranges.append(planned)
            page = host.do(ReadEvents(first=planned.first, last=planned.last, bytes_max=1 << 20))
            events += [event for _, batch in page.batches for event in decode_events(batch)]
            while host.do(ForgetEvents(last=planned.last)).more:
                pass
        assert sorted(event.queue for event in events) == [names(2)[0]] * 3 + [names(2)[1]] * 3
        assert len({(each.node, each.first) for each in ranges}) == len(ranges)
        counts = host.do(CountEvents())
        assert (counts.recorded, counts.exported) == (6, 6)


def test_refresh_does_not_delay_other_queues(host: ShardsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also tries to open databases that are down, which takes long."""
    host.create(QUEUE)
    host.values("INSERT INTO mq.shard_of (name, place) VALUES ($1, 7)", LATER)
    host.reopen()

    async def play() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def refresh() -> None:
            begun.set()
            await goes_on.wait()

        monkeypatch.setattr(host.engine, "refresh", refresh)
        elsewhere = asyncio.ensure_future(execute(host.engine, commands.ShowQueue(queue=LATER)))
        await begun.wait()
        try:
            async with asyncio.timeout(60):
                await execute(host.engine, commands.ShowQueue(queue=QUEUE))
        finally:
            goes_on.set()
        with pytest.raises(StoreUnavailable):
            await elsewhere

    host.run(play())


# While one database is down.


@pytest.fixture
def two_servers(postgres_url: str, new_database: str) -> Iterator[tuple[ShardsHost, PostgresServer]]:
    with temporary_folder() as folder, PostgresServer(folder / "second", settings={"fsync": "off"}) as server:
        for url in (new_database, server.url):
            asyncio.run(prepare(url))
        with hosting_shards([new_database, server.url], options=IMPATIENT) as host:
            yield host, server


def take_down(host: ShardsHost, server: PostgresServer) -> None:
    host.down.add(1)
    server.kill()


def start_again(host: ShardsHost, server: PostgresServer) -> None:
    """Start the second server again, and set its clock, whose table the kill has emptied."""
    server.start()
    host.values("INSERT INTO mq.test_clock VALUES ($1)", host.clock.now_ms(), url=server.url)
    host.down.clear()


def reachable(host: ShardsHost) -> dict[str, Any]:
    return next(dict(each.samples) for each in host.engine.metrics() if each.name == "store_reachable")


def test_other_databases_keep_serving(two_servers: tuple[ShardsHost, PostgresServer]) -> None:
    """Its queues and listings fail temporarily; dead letters for it wait; then all continues."""
    host, server = two_servers
    host.create(QUEUE)
    host.create(DEAD)
    host.set_queue(dead_letter_queue=DEAD, receives_max=1)
    assert (host.place_of(QUEUE), host.place_of(DEAD)) == (0, 1)
    dead_letter(host, "before")
    take_down(host, server)
    for _ in range(3):
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            host.send("refused", queue=DEAD)
    with pytest.raises(StoreUnavailable):
        host.do(commands.ListQueues(account="000000000000"))
    with pytest.raises(StoreUnavailable):
        host.do(commands.ListDeadLetterSources(queue=DEAD))
    host.send("a", "b")
    assert len(host.receive(10, timeout_s=0)) == 2
    assert host.receive(10) == []  # they are dead letters in the outbox
    assert host.counts(QUEUE) == (0, 0, 0)
    host.create(LATER)
    assert host.run(host.engine.readiness_failures()) == []
    assert reachable(host) == {"1": True, "2": False}
    assert host.engine.warnings() == ["Database 2 cannot be reached, and its queues are unavailable."]
    start_again(host, server)
    assert host.place_of(LATER) == 0
    host.advance(CLAIM_MS + POLL_MS)
    host.advance(POLL_MS)
    assert sorted(each.body for each in host.receive(10, queue=DEAD)) == ["a", "b", "before"]
    assert len(host.do(commands.ListQueues(account="000000000000")).names) == 3


def test_waiting_move_task_does_not_block_others(two_servers: tuple[ShardsHost, PostgresServer]) -> None:
    """Its next dead letter came from the database that is down; another task continues, and it does later."""
    host, server = two_servers
    near, far, dead, other, other_dead = (f"000000000000/{name}" for name in ("near", "far", "dead", "other", "odd"))
    for name in (near, far, dead):
        host.create(name)
    assert [host.place_of(name) for name in (near, far, dead)] == [0, 1, 0]
    host.create("000000000000/filler")
    host.create(other)
    host.create("000000000000/filler-2")
    host.create(other_dead)
    assert [host.place_of(name) for name in (other, other_dead)] == [0, 0]
    for source, target in ((near, dead), (far, dead), (other, other_dead)):
        host.set_queue(source, dead_letter_queue=target, receives_max=1)
    for source, letters in ((near, "ab"), (far, "ab"), (other, "abcde")):
        dead_letter(host, *letters, queue=source)
        host.advance(CLAIM_MS + POLL_MS)
    for source in (dead, other_dead):
        host.do(commands.StartMove(source=source, moves_per_s_max=1))
    assert (host.counts(near), host.counts(other)) == ((1, 0, 0), (1, 0, 0))
    take_down(host, server)
    host.reopen()  # all caches are empty
    for _ in range(8):
        host.advance(1_000)
    assert (host.counts(near), host.counts(dead)) == ((2, 0, 0), (2, 0, 0))
    assert (host.counts(other), host.counts(other_dead)) == ((5, 0, 0), (0, 0, 0))
    start_again(host, server)
    host.advance(CLAIM_MS + POLL_MS)
    for _ in range(3):
        host.advance(POLL_MS)
    assert (host.counts(far), host.counts(dead)) == ((2, 0, 0), (0, 0, 0))


def test_node_starts_without_it(two_servers: tuple[ShardsHost, PostgresServer]) -> None:
    host, server = two_servers
    for name in names(2):
        host.create(name)
    take_down(host, server)
    host.reopen()
    host.send("a", queue=names(2)[0])
    with pytest.raises(StoreUnavailable):
        host.send("b", queue=names(2)[1])
    assert reachable(host) == {"1": True, "2": False}
    assert host.engine.warnings() == ["Database 2 cannot be reached, and its queues are unavailable."]
    start_again(host, server)
    host.advance(REFRESH_MS)
    host.send("c", queue=names(2)[1])
    assert (reachable(host), host.engine.warnings()) == ({"1": True, "2": True}, [])
    assert host.receive_one(queue=names(2)[1]).body == "c"


@pytest.fixture
def without_home(new_database: str) -> Iterator[tuple[ShardsHost, PostgresServer]]:
    """A node started while the home, on that server, is down; each database has a queue."""
    with temporary_folder() as folder, PostgresServer(folder / "home", settings={"fsync": "off"}) as server:
        for url in (new_database, server.url):
            asyncio.run(prepare(url))
        with hosting_shards([server.url, new_database], options=IMPATIENT) as host:
            for name in names(2):
                host.create(name)
            host.down.add(0)
            server.kill()
            host.reopen()
            yield host, server


def test_node_without_the_home_serves_the_other_databases(without_home: tuple[ShardsHost, PostgresServer]) -> None:
    """Cached queues and those that other databases have; no others, and no new queues. Commands find them too."""
    host, _ = without_home
    assert host.run(databases.known_urls(host.urls[0])) == {1: remove_passwords(host.urls[1])}, "for the doctor"
    host.send("a", queue=names(2)[1])
    assert host.receive_one(queue=names(2)[1]).body == "a"
    with pytest.raises(StoreUnavailable):
        host.send("a", queue=names(2)[0])
    with pytest.raises(StoreUnavailable):
        host.create(LATER)


def test_cached_queue_of_the_home_is_not_searched_elsewhere(without_home: tuple[ShardsHost, PostgresServer]) -> None:
    """While the home is down, the other databases get no queries for it."""
    host, server = without_home
    start_again(host, server)
    host.advance(REFRESH_MS)
    host.send("a", queue=names(2)[0])
    host.down.add(0)
    server.kill()
    for _ in range(3):
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            host.send("b", queue=names(2)[0])
    assert names(2)[0] not in host.engine._places
    host.send("c", queue=names(2)[1])


def test_empty_database_cannot_replace_the_home(without_home: tuple[ShardsHost, PostgresServer]) -> None:
    """It has no queues: those of the home would seem deleted, and new ones would take their names."""
    host, server = without_home
    server.start()
    host.run(empty(server.url))
    host.values("INSERT INTO mq.test_clock VALUES ($1)", host.clock.now_ms(), url=server.url)
    host.advance(REFRESH_MS)
    host.advance(REFRESH_MS)
    with pytest.raises(StoreUnavailable):
        host.send("a", queue=names(2)[0])
    assert host.values("SELECT count(*) FROM mq.setting WHERE name = 'store'", url=server.url) == [0]


# The doctor's checks across databases.


NOWHERE = "postgresql://u:s3cret@127.0.0.1:1/x"
A, B, C = (f"000000000000/{name}" for name in "abc")

REPAIR = (  # from docs/stores.md
    f"INSERT INTO mq.shard_of (name, place) VALUES ('{B}', 1) ON CONFLICT (name) DO UPDATE SET place = excluded.place"
)


@pytest.fixture
def three(host: ShardsHost) -> ShardsHost:
    """The first database has the queues A and C, the second B."""
    for name in (A, B, C):
        host.create(name)
    return host


def faults(host: ShardsHost, urls: Sequence[str] = ()) -> dict[str, str]:
    return {
        each.check: each.detail
        for each in host.run(examine_together(dict(enumerate(urls or host.urls))))
        if not each.ok
    }


def execute_at(host: ShardsHost, place: int, statement: str) -> None:
    host.values(statement, url=host.urls[place])


def test_healthy_store_passes(three: ShardsHost) -> None:
    """Also with queues of the home from before the other databases, which may have no place."""
    assert faults(three) == {}
    execute_at(three, 0, f"DELETE FROM mq.shard_of WHERE name = '{A}'")
    assert faults(three) == {}


def test_new_databases_pass(three: ShardsHost) -> None:
    for url in three.urls:
        three.run(empty(url))
    assert faults(three) == {}


@pytest.mark.parametrize(
    "change", [f"DELETE FROM mq.shard_of WHERE name = '{B}'", f"UPDATE mq.shard_of SET place = 0 WHERE name = '{B}'"]
)
def test_misplaced_queue_is_reported(three: ShardsHost, change: str) -> None:
    """Its place is missing or wrong, for example because the home was restored from a backup."""
    execute_at(three, 0, change)
    (found,) = faults(three).items()
    assert found[0] == PLACES
    assert found[1].endswith(f"has queues (1) that the home locates elsewhere, the first is {B}")
    execute_at(three, 0, REPAIR)
    assert faults(three) == {}


def test_check_reads_all_pages(three: ShardsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_PAGE", 1)
    assert faults(three) == {}
    execute_at(three, 0, "UPDATE mq.shard_of SET place = 1")
    assert faults(three)[PLACES].endswith(f"has queues (2) that the home locates elsewhere, the first is {A}")


def test_queue_recreated_during_the_check_is_no_fault(three: ShardsHost) -> None:
    """It is deleted, and recreated at another place, between the reads of queues and places."""

    async def play() -> list[Finding]:
        async with connected(three.urls[0]) as connection:
            async with connection.transaction():
                await connection.execute("LOCK TABLE mq.shard_of")
                examining = asyncio.ensure_future(examine_together(dict(enumerate(three.urls))))
                await until_a_session_waits_for_a_lock(connection)
                await connection.execute("UPDATE mq.shard_of SET place = 1 WHERE name = $1", C)
                await connection.execute("DELETE FROM mq.queue WHERE name = $1", C)
            return await examining

    assert [each for each in three.run(play()) if not each.ok] == []


def test_databases_in_the_wrong_order_are_reported(three: ShardsHost) -> None:
    """Their queues are not compared then: all would be misplaced."""
    found = faults(three, three.urls[::-1])
    assert "it is number 2 of its store, and named as number 1" in found[ONE_STORE]
    assert "it is number 1 of its store, and named as number 2" in found[ONE_STORE]
    assert found[PLACES].startswith("not checked: ")


def test_database_of_another_store_is_reported(three: ShardsHost) -> None:
    """One of another store, and one with queues that belongs to no store."""
    execute_at(three, 1, "UPDATE mq.setting SET value = 'another' WHERE name = 'store'")
    assert "it belongs to another store" in faults(three)[ONE_STORE]
    execute_at(three, 1, "DELETE FROM mq.setting WHERE name = 'store'")
    assert "it has queues of its own, so it cannot be number 2 of another store" in faults(three)[ONE_STORE]


@pytest.mark.parametrize("place", [0, 1])
def test_unreachable_database_is_reported(three: ShardsHost, place: int) -> None:
    """The others are compared; the text has no password."""
    urls = [NOWHERE if each == place else url for each, url in enumerate(three.urls)]
    found = faults(three, urls)
    assert set(found) == {ONE_STORE, PLACES}
    for detail in found.values():
        assert detail.startswith("postgresql://u:***@127.0.0.1:1/x cannot be used: ")


def test_older_schema_is_reported_with_its_remedy(three: ShardsHost) -> None:
    execute_at(three, 1, "UPDATE mq.migration SET number = -number WHERE number > 3")
    try:
        assert "run `veilmq migrate`" in faults(three)[ONE_STORE]
    finally:
        execute_at(three, 1, "UPDATE mq.migration SET number = -number WHERE number < 0")


def test_commands_on_several_databases(host: ShardsHost) -> None:
    """A receive that is withdrawn before its queue was found leases nothing; an unknown queue has no sources."""
    host.create()
    host.send("a")

    async def withdrawn() -> None:
        answers: list[object] = []
        host.engine.submit(commands.Receive(queue=QUEUE, count=1), answers.append)
        host.engine.withdraw(partial(eq, answers.append))
        await execute(host.engine, commands.ListQueues(account="nobody"))

    host.run(withdrawn())
    assert host.receive_one().receive_count == 1
    with pytest.raises(QueueNotFound):
        host.do(commands.ListDeadLetterSources(queue="000000000000/none"))
    assert len(host.engine.token_key) == KEY_BYTES

    async def closed() -> list[object]:
        answers: list[object] = []
        await host.engine.close()
        host.engine.submit(commands.ListQueues(account="nobody"), answers.append)
        return answers

    assert [type(answer) for answer in host._runner.run(closed())] == [ShuttingDown]


def test_concurrent_dead_letters_for_another_database_do_not_exhaust_the_connections(shard_urls: list[str]) -> None:
    """Each receive holds a connection to the home while it looks its dead-letter queue up there."""
    with hosting_shards(shard_urls, options=replace(IMPATIENT, connections=2)) as host:
        for source, target in zip(names(12)[::2], names(12)[1::2], strict=True):
            host.create(source)
            host.create(target)
            assert (host.place_of(source), host.place_of(target)) == (0, 1)
            host.set_queue(source, dead_letter_queue=target, receives_max=1)
            host.send("a", queue=source)
            host.receive_one(queue=source, timeout_s=0)
        host.reopen()  # all caches are empty
        receives = [
            commands.Receive(queue=source, count=1) for source, _ in zip(names(12)[::2], names(12)[1::2], strict=True)
        ]
        assert [answer.messages for answer in host.do_together(*receives)] == [[]] * 6


def test_receive_withdrawn_during_the_search_for_its_queue_leases_nothing(
    host: ShardsHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has disconnected; another one, which waits for the same search, gets the message."""
    for name in names(2):
        host.create(name)
    host.send("a", queue=names(2)[1])
    host.reopen()

    async def play() -> list[object]:
        engine_of, searching, goes_on = host.engine.engine_of, asyncio.Event(), asyncio.Event()

        async def search(name: str, *, not_at: int | None = None) -> PostgresEngine:
            searching.set()
            await goes_on.wait()
            return await engine_of(name, not_at=not_at)

        monkeypatch.setattr(host.engine, "engine_of", search)
        answers: list[object] = []
        receive = commands.Receive(queue=names(2)[1], count=1)
        host.engine.submit(receive, answers.append)
        await searching.wait()
        other = asyncio.ensure_future(execute(host.engine, receive))
        await asyncio.sleep(0)
        host.engine.withdraw(partial(eq, answers.append))
        goes_on.set()
        assert [each.body for each in (await other).messages] == ["a"]
        return answers

    assert host.run(play()) == []


def test_failing_reply_callback_is_called_once(host: ShardsHost) -> None:
    results: list[object] = []

    def fail(result: object) -> None:
        results.append(result)
        raise OSError

    host.in_loop(lambda: host.engine.submit(commands.ListQueues(account="nobody"), fail))
    assert [type(result) for result in results] == [commands.QueuePage]
