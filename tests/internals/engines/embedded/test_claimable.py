"""Claims and the runs of a lane: what is claimed stays on the disk."""

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store, rows_read
from veilmq.core import claims
from veilmq.core.commands import PurgeQueue
from veilmq.engines.embedded.janitor import Sweep


def test_claimed_leases_are_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them to end, and they may be many."""
    store = Store()
    store.create()
    store.send(*(str(number) for number in range(20)))
    store.receive(20, timeout_s=0)
    store.run(claims.OpenSource(queue=QUEUE, source="s"))
    store.run(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=20))
    assert store.machine.catalog.queue(QUEUE).lanes[0]._hidden._items == {}
    read = rows_read(monkeypatch, store, "leases_at_instant")
    for _ in range(3):
        assert store.bodies() == []
        store.send("a")
        assert store.bodies(timeout_s=0) == ["a"]
        assert store.delete(store.receive(timeout_s=60).messages[0].receipt)
    assert sum(read) == 0
    store.close()


def test_a_purged_lane_is_swept_whatever_of_it_was_claimed() -> None:
    """The janitor may come before the step that drops the ranges."""
    store = Store()
    store.create()
    store.send("a", "b", "c")
    store.run(claims.OpenSource(queue=QUEUE, source="s"))
    store.run(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=2))
    store.run(PurgeQueue(queue=QUEUE))
    for _ in range(3):
        store.run(Sweep())
    assert store.count("message") == 0
    assert store.machine.catalog.retired == {}
    store.close()
