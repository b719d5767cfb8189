"""Pauses on disk: what is over is removed, a slice at a time."""

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import DeleteQueue, PurgeQueue
from veilmq.engines.embedded.janitor import Sweep, Swept

DELETED = 700


def test_what_is_over_is_removed() -> None:
    """Without anybody asking, and no sooner; the janitor is told when to look, and that there is more."""
    store = Store(purge_pause_s=120, queue_name_pause_s=60)
    for number in range(DELETED):
        store.create(f"a/q{number}")
        store.run(DeleteQueue(queue=f"a/q{number}"))
    store.create()
    store.run(PurgeQueue(queue=QUEUE))
    begun_ms = store.now_ms
    store.now_ms += 59_500
    assert store.run(Sweep()) == [Swept(more=False, next_due_ms=begun_ms + 60_500)]  # a second later at the least
    assert store.count("pause") == DELETED + 1
    store.now_ms = begun_ms + 60_000
    (swept,) = store.run(Sweep())
    assert swept.more
    assert store.count("pause") == 201
    assert store.run(Sweep()) == [Swept(more=False, next_due_ms=begun_ms + 120_000)]
    assert store.count("pause") == 1
    store.now_ms = begun_ms + 120_000
    store.run(Sweep())
    assert store.count("pause") == 0
    store.close()
