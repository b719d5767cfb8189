"""The synchronous_commit of each command, recorded when rows are written; and what a node logs about it."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, execute, hosting_postgres, prepare
from veilmq.core import commands
from veilmq.core.commands import ReceivedMessage
from veilmq.core.topics import CreateTopic, Forward, ForwardEntry
from veilmq.store.port import execute as store_execute
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.schema import CommitDurability, Durability

FIFO = "000000000000/jobs.fifo"
DEAD = "000000000000/dead"
STANDARD = replace(RESTLESS, durability=Durability.STANDARD)

_WATCH = """
CREATE SCHEMA seen;
CREATE TABLE seen.level (level text NOT NULL);
CREATE FUNCTION seen.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO seen.level VALUES (current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'mq' AND tablename <> 'test_clock' LOOP
        EXECUTE format('CREATE TRIGGER seen AFTER INSERT OR UPDATE OR DELETE ON mq.%I FOR EACH ROW '
            'EXECUTE FUNCTION seen.note()', name);
    END LOOP;
END $$;
"""
_SET = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I {}', current_database()); END $$"


@contextmanager
def recording(host: PostgresHost) -> Iterator[PostgresHost]:
    host.run(execute(host.url, _WATCH))
    try:
        yield host
    finally:
        host.run(execute(host.url, "DROP SCHEMA seen CASCADE"))


@pytest.fixture
def watched(postgres_url: str) -> Iterator[PostgresHost]:
    """A node with `STANDARD`, two queues and a dead-letter queue; writes are recorded."""
    with hosting_postgres(postgres_url, options=STANDARD) as host, recording(host):
        host.create(DEAD)
        host.create(QUEUE, dead_letter_queue=DEAD, receives_max=2)
        host.create(FIFO, fifo=True)
        yield host


def recorded_levels(host: PostgresHost, act: Callable[[], object]) -> set[str]:
    host.values("DELETE FROM seen.level")
    act()
    return {*host.values("DELETE FROM seen.level RETURNING level")}


def send(host: PostgresHost, queue: str) -> object:
    group = "a" if queue == FIFO else None
    return host.put(message("a", group=group, dedup_id=group), queue=queue)


@pytest.mark.parametrize(("queue", "level"), [(QUEUE, "off"), (FIFO, "on")])
def test_receives_changes_and_deletes_on_standard_queues_do_not_wait(
    watched: PostgresHost, queue: str, level: str
) -> None:
    """Sends do, also all commands on FIFO queues, and the first lookup of a queue."""
    assert recorded_levels(watched, lambda: send(watched, queue)) == {"on"}
    watched.reopen()
    held: list[ReceivedMessage] = []
    assert recorded_levels(watched, lambda: held.append(watched.receive_one(queue=queue))) == {"on"}
    assert recorded_levels(watched, lambda: watched.change(held[0].receipt, 0, queue=queue)) == {level}
    assert recorded_levels(watched, lambda: held.append(watched.receive_one(queue=queue))) == {level}
    assert recorded_levels(watched, lambda: watched.delete(held[1].receipt, queue=queue)) == {level}


def test_dead_letters_commit_with_their_receive(watched: PostgresHost) -> None:
    send(watched, QUEUE)
    for _ in range(2):
        watched.change(watched.receive_one().receipt, 0)
    assert recorded_levels(watched, lambda: watched.receive(1)) == {"off"}
    assert watched.counts(DEAD) == (1, 0, 0)


def test_moves_and_queue_commands_wait(watched: PostgresHost) -> None:
    """A forward, a move task with its slices, a purge, changes and the deletion of a queue."""
    send(watched, QUEUE)
    entries = (ForwardEntry(receipt=watched.receive_one().receipt, target=DEAD),)
    assert recorded_levels(watched, lambda: watched.do(Forward(queue=QUEUE, entries=entries))) == {"on"}
    assert recorded_levels(watched, lambda: watched.do(commands.StartMove(source=DEAD, destination=QUEUE))) == {"on"}
    watched.advance(1_000)
    assert (watched.counts(QUEUE), watched.counts(DEAD)) == ((1, 0, 0), (0, 0, 0))
    for command in (
        commands.PurgeQueue(queue=QUEUE),
        commands.TagQueue(queue=QUEUE, tags={"a": "b"}),
        commands.SetQueue(queue=QUEUE, settings={"delay_s": 1}),
        commands.CreateQueue(queue="000000000000/more"),
        commands.DeleteQueue(queue=QUEUE),
    ):
        assert recorded_levels(watched, lambda command=command: watched.do(command)) == {"on"}  # type: ignore[misc]


def test_queue_recreated_as_fifo_waits(watched: PostgresHost) -> None:
    send(watched, QUEUE)
    watched.receive(1)
    send(watched, FIFO)
    for statement in (
        "UPDATE mq.part SET retired = true WHERE qp = (SELECT qp FROM mq.queue WHERE name = $1)",
        "DELETE FROM mq.queue WHERE name = $1",
        f"UPDATE mq.queue SET name = $1 WHERE name = '{FIFO}'",
    ):
        watched.values(statement, QUEUE)
    assert recorded_levels(watched, watched.receive_one) == {"on"}


def test_strict_is_the_default(host: PostgresHost) -> None:
    with recording(host):
        host.create()
        send(host, QUEUE)
        assert recorded_levels(host, lambda: host.receive(1)) == {"on"}


@pytest.mark.slow
def test_replies_about_commits_that_are_not_replicated_wait() -> None:
    """A repeated command writes nothing, and the standby may not have what the first one wrote."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(stack.enter_context(temporary_folder()) / "pg"))
        asyncio.run(prepare(server.url))
        host = stack.enter_context(hosting_postgres(server.url))
        host.create(QUEUE)
        host.create(FIFO, fifo=True)
        letter = message("a", group="a", dedup_id="a")
        create, publish = commands.CreateQueue(queue=QUEUE), commands.Send(queue=FIFO, messages=(letter,))
        repeated: list[commands.Command] = [create, CreateTopic(topic="000000000000/t"), publish]
        for name in (QUEUE, FIFO):
            host.put(letter if name == FIFO else message("a"), queue=name)
            repeated.append(commands.Delete(queue=name, receipts=(host.receive_one(queue=name).receipt,)))
        for command in repeated:
            host.do(command)

        async def waits(command: commands.Command) -> bool:
            reply = asyncio.create_task(store_execute(host.engine, command))
            while not (is_waiting := server.sql("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")):
                if (await asyncio.wait({reply}, timeout=0.01))[0]:
                    break
            set_standbys(server, "")
            await reply
            return bool(is_waiting)

        found = []
        for command in repeated:
            set_standbys(server, "lost")
            found.append(host.run(waits(command)))
        assert found == [True] * 5


def set_standbys(server: PostgresServer, names: str) -> None:
    server.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    server.sql("SELECT pg_reload_conf()")
    while server.sql("SHOW synchronous_standby_names") != names:
        pass


@contextmanager
def operator_setting(host: PostgresHost, level: str) -> Iterator[None]:
    host.values(_SET.format(f"SET synchronous_commit = {level}"))
    try:
        yield
    finally:
        host.values(_SET.format("RESET synchronous_commit"))


@pytest.mark.parametrize(
    ("level", "waits"),
    [("off", "on"), ("local", "on"), ("on", "on"), ("remote_write", "remote_write"), ("remote_apply", "remote_apply")],
)
def test_strict_keeps_the_operators_setting_unless_it_is_weaker(
    host: PostgresHost, caplog: pytest.LogCaptureFixture, level: str, waits: str
) -> None:
    """A node logs at its start that it raises the setting."""
    with operator_setting(host, level), caplog.at_level(logging.INFO):
        assert host.run(settings_of(host, "synchronous_commit")) == [waits, waits]
    assert f"durable here, without waiting for a standby (synchronous_commit {waits})" in caplog.text
    assert (f"synchronous_commit is {level} for this database" in caplog.text) is (level != waits)
    assert "fsync is off" in caplog.text


async def settings_of(host: PostgresHost, name: str) -> list[str]:
    database = Database(host.url, options=RESTLESS, clock=host.clock)
    await database.open()
    try:
        found = []
        for _ in range(2):
            async with database.connection() as connection:
                found.append(await connection.fetchval("SELECT current_setting($1)", name))
        return found
    finally:
        await database.close()


def test_description_of_durability() -> None:
    good = CommitDurability(
        mode=Durability.STRICT, waits="on", set_to="on", standbys="ANY 1 (*)", fsync=True, full_page_writes=True
    )
    assert good.warnings == []
    assert str(good) == "strict: commits are durable here and on standbys (ANY 1 (*)) (synchronous_commit on)"
    standard = replace(good, mode=Durability.STANDARD, standbys="", full_page_writes=False)
    assert str(standard).endswith(
        "receives, changes and deletes of standard queues may be undone by a crash of the database"
    )
    (warning,) = standard.warnings
    assert "SET full_page_writes = on" in warning


def test_statements_read_committed_rows(host: PostgresHost) -> None:
    """The isolation level is set, whatever the default of the database."""
    assert host.run(settings_of(host, "transaction_isolation")) == ["read committed"] * 2
