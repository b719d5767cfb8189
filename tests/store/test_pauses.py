"""After a purge a queue rests, and after a deletion its name: to the millisecond, over restarts, and not for ever."""

from collections.abc import Iterator

import pytest

from tests.store.host import QUEUE, Host
from tests.store.stores import Store
from veilmq.core import commands
from veilmq.core.errors import PurgeInProgress, QueueDeletedRecently, QueueNotFound
from veilmq.core.limits import PURGE_PAUSE_S, QUEUE_NAME_PAUSE_S

PURGE = commands.PurgeQueue(queue=QUEUE)
DELETE = commands.DeleteQueue(queue=QUEUE)


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    """Return an engine whose queues rest as long as they do by default, with one queue."""
    with store.open(purge_pause_s=PURGE_PAUSE_S, queue_name_pause_s=QUEUE_NAME_PAUSE_S) as opened:
        opened.create()
        yield opened


def test_a_queue_is_purged_once_a_minute(host: Host) -> None:
    """The second purge is refused until exactly a minute has passed, and deletes nothing."""
    host.do(PURGE)
    host.send("a")
    host.advance(59_999)
    with pytest.raises(PurgeInProgress) as refusal:
        host.do(PURGE)
    assert (refusal.value.queue, refusal.value.pause_s) == (QUEUE, 60)
    assert host.counts() == (1, 0, 0)
    host.advance(1)
    host.do(PURGE)
    assert host.counts() == (0, 0, 0)
    with pytest.raises(PurgeInProgress):
        host.do(PURGE)


def test_a_refused_purge_begins_no_pause(host: Host) -> None:
    """The minute is counted from the purge that happened."""
    host.do(PURGE)
    host.advance(30_000)
    with pytest.raises(PurgeInProgress):
        host.do(PURGE)
    host.advance(30_000)
    host.do(PURGE)


def test_queues_rest_alone(host: Host) -> None:
    """Another queue may be purged; one that is not there is not there, purged or not."""
    host.create("a/other")
    host.do(PURGE)
    host.do(commands.PurgeQueue(queue="a/other"))
    host.do(DELETE)
    with pytest.raises(QueueNotFound):
        host.do(PURGE)


def test_the_name_of_a_deleted_queue_rests_a_minute(host: Host) -> None:
    """It is free exactly a minute later; other names are free at once."""
    host.do(DELETE)
    host.create("a/other")
    host.advance(59_999)
    with pytest.raises(QueueDeletedRecently) as refusal:
        host.create()
    assert (refusal.value.queue, refusal.value.pause_s) == (QUEUE, 60)
    host.advance(1)
    host.create()
    assert host.create() == host.do(commands.ShowQueue(queue=QUEUE)), "a queue that is there is found"


def test_a_queue_of_a_used_name_has_no_past(host: Host) -> None:
    """It may be purged though the one before it was purged lately."""
    host.advance(1_000)
    host.do(DELETE)
    host.advance(60_000)
    host.create()
    host.advance(1)
    host.do(PURGE)
    host.do(DELETE)
    host.advance(60_000)
    host.create()
    host.do(PURGE)


@pytest.mark.parametrize("again", ["reopen", "crash"])
def test_pauses_survive(kept_store: Store, again: str) -> None:
    """A restart ends neither, and neither is longer for it."""
    with kept_store.open(purge_pause_s=PURGE_PAUSE_S, queue_name_pause_s=QUEUE_NAME_PAUSE_S) as host:
        host.create()
        host.create("a/gone")
        host.do(PURGE)
        host.do(commands.DeleteQueue(queue="a/gone"))
        host.advance(59_999)
        getattr(host, again)()
        with pytest.raises(PurgeInProgress):
            host.do(PURGE)
        with pytest.raises(QueueDeletedRecently):
            host.create("a/gone")
        host.advance(1)
        host.do(PURGE)
        host.create("a/gone")


def test_pauses_are_as_long_as_they_are_set(kept_store: Store) -> None:
    """Each by its own option, and also those that were begun under another one."""
    with kept_store.open(purge_pause_s=5, queue_name_pause_s=7) as host:
        host.create()
        host.do(PURGE)
        host.advance(5_000)
        host.do(PURGE)
        host.do(DELETE)
        host.advance(6_999)
        with pytest.raises(QueueDeletedRecently):
            host.create()
        host.advance(1)
        host.create()
        host.do(DELETE)
    with kept_store.open(purge_pause_s=PURGE_PAUSE_S) as host:
        host.create()
        host.do(DELETE)
        host.create()
