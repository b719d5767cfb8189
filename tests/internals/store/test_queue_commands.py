"""Queues in both dialects: what follows a purge, listings by what is set, cooldowns that are over, and errors."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.store.host import QUEUE, Host
from tests.store.postgres_host import Store, hosting_postgres, on_postgres, on_sqlite, open_engine
from veilmq.core import commands
from veilmq.core.commands import QueueView
from veilmq.core.errors import PurgeInProgress, QueueExists, SettingsConflict
from veilmq.core.messages import NewMessage
from veilmq.store import claims, publications
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.transaction import QueueRow, Transaction

DEAD = "000000000000/dead"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return on_sqlite(tmp_path / "store")
    return on_postgres(request.getfixturevalue("postgres_url"))


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    with store.open() as opened:
        opened.create()
        yield opened


PURGE, DELETE = commands.PurgeQueue(queue=QUEUE), commands.DeleteQueue(queue=QUEUE)


@pytest.mark.parametrize(
    ("feature", "hook", "command"),
    [
        (claims, "lose_all", PURGE),
        (publications, "forget", DELETE),
        (claims, "forget_all", DELETE),
    ],
    ids=["purge", "deletion-writers", "deletion-claims"],
)
def test_what_follows_is_part_of_a_purge_and_a_deletion(
    host: Host, monkeypatch: pytest.MonkeyPatch, feature: ModuleType, hook: str, command: commands.Command
) -> None:
    """An error there undoes what was written before, the retired partition included."""
    met: list[Any] = []
    follow = getattr(feature, hook)

    async def refuse(tx: Transaction, queue: QueueRow) -> None:
        await follow(tx, queue)
        met.append((queue.name, queue.partition == queue.origin))
        await tx.run("put_setting", "hook", b"written")
        raise SettingsConflict("hook", "No.")

    async def read(tx: Transaction, queue: QueueRow) -> None:
        await follow(tx, queue)
        met.append(await tx.value("setting", "hook"))

    host.send("a")
    monkeypatch.setattr(feature, hook, refuse)
    with pytest.raises(SettingsConflict):
        host.do(command)
    assert (met, host.counts()) == ([(QUEUE, True)], (1, 0, 0))
    monkeypatch.setattr(feature, hook, read)
    host.do(command)
    assert met[1:] == [None]


def test_sources_are_those_that_are_set_now(host: Host) -> None:
    host.create(DEAD)
    for name in ("c", "a", "b"):
        host.create(f"000000000000/{name}", dead_letter_queue=DEAD, receives_max=1)
    host.do(commands.SetQueue(queue="000000000000/b", settings={"dead_letter_queue": "", "receives_max": 0}))
    page = host.do(commands.ListDeadLetterSources(queue=DEAD, count=1))
    assert (page.names, page.more) == (["000000000000/a"], True)
    page = host.do(commands.ListDeadLetterSources(queue=DEAD, after="000000000000/a", count=1))
    assert (page.names, page.more) == (["000000000000/c"], False)


def test_cooldowns_that_are_over_are_forgotten(store: Store) -> None:
    with store.open(purge_pause_s=90, queue_name_pause_s=30) as host:
        host.create()
        host.create(DEAD)
        host.do(commands.PurgeQueue(queue=QUEUE))
        host.do(commands.DeleteQueue(queue=DEAD))
        for time_ms, left in ((29_999, 2), (1, 1), (59_999, 1), (1, 0)):
            host.advance(time_ms)
            host.sweep()
            assert host.rows("pause") == left


def test_a_refused_command_leaves_the_counters_alone(store: Store) -> None:
    with store.open(purge_pause_s=60) as host:
        host.create(delay_s=1)
        host.do(commands.PurgeQueue(queue=QUEUE))
        host.send("a")
        for command, error in (
            (commands.PurgeQueue(queue=QUEUE), PurgeInProgress),
            (commands.SetQueue(queue=QUEUE, settings={"fifo": True}), SettingsConflict),
            (commands.CreateQueue(queue=QUEUE, settings={"delay_s": 2}), QueueExists),
        ):
            with pytest.raises(error):
                host.do(command)
        assert host.do(commands.ShowQueue(queue=QUEUE, counts=True)).counts.sent == 1


def test_a_retention_that_grows_brings_nothing_back(host: Host) -> None:
    """Nor one that grows twice, though caches are dropped in between."""
    host.send("a")
    host.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": 60}))
    host.advance(60_000)
    for retention_s in (100, 200):
        host.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": retention_s}))
        host.forget()
    assert (host.counts(), host.receive()) == ((0, 0, 0), [])
    host.send("b")
    host.advance(199_999)
    assert host.counts() == (1, 0, 0)


def test_a_deletion_and_a_new_queue_of_the_name_in_one_batch(tmp_path: Path) -> None:
    """What was sent before is gone with its totals; what follows is the new one's."""
    with on_sqlite(tmp_path / "store").open() as host:
        assert isinstance(host, Host)
        host.create()
        send = commands.Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),))
        delete, create = commands.DeleteQueue(queue=QUEUE), commands.CreateQueue(queue=QUEUE)
        show = commands.ShowQueue(queue=QUEUE, counts=True)
        *_, view = host.do_together(send, delete, create, send, send, show)
        assert (view.counts.visible, view.counts.sent) == (2, 2)
        host.sweep()
        host.check()
        assert host.rows("part") == 1
        host.forget()
        assert host.counts() == (2, 0, 0)


def test_two_nodes_create_a_queue_at_once(postgres_url: str) -> None:
    """One of them makes it, and the other one finds it."""
    with hosting_postgres(postgres_url) as host:

        async def other_node() -> PostgresEngine:
            return await open_engine(host.url, clock=host.clock)

        second: Any = host.run(other_node())
        views: list[QueueView] = []
        for number in range(10):
            create = commands.CreateQueue(queue=f"000000000000/q{number}")

            def submit(create: commands.CreateQueue = create) -> None:
                for engine in (host.engine, second):
                    engine.submit(create, views.append)

            host.in_loop(submit)
        host.run(second.close())
        assert sorted(view.is_new for view in views) == [False] * 10 + [True] * 10
