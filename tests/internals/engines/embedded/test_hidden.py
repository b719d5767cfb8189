"""The hidden run behaves like one sorted list, however little of it fits into memory."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.engines.embedded.store import Store
from veilmq.engines.embedded.hidden import HiddenRun
from veilmq.engines.embedded.rows import Lease
from veilmq.engines.embedded.run import ON_DISK, Key


def _all_alive() -> tuple[int, int, int]:
    return 0, 1 << 62, 1 << 62


_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "drop", "take"]), st.integers(0, 12), st.integers(0, 4)), max_size=60
)


@given(actions=_ACTIONS, window_max=st.sampled_from([1, 2, 7, 100]), horizon=st.sampled_from([None, ON_DISK]))
def test_like_a_sorted_list(actions: list[tuple[str, int, int]], window_max: int, horizon: Key | None) -> None:
    store = Store()
    run = HiddenRun(journal=store.journal, lane=0, window_max=window_max, horizon=horizon, alive=_all_alive)
    model: dict[int, int] = {}
    for action, position, visible_at_ms in actions:
        if action == "put":
            lease = Lease(position, 0, visible_at_ms)
            store.journal.put_lease(lease)
            run.put(lease.position, lease)
            model[position] = visible_at_ms
        elif action == "drop" and position in model:
            store.journal.remove(position)
            store.journal.flush()  # a position lives once in the engine; here it may come back
            run.drop(position)
            del model[position]
        elif action == "take" and model:
            assert run.head() is not None
            taken = run.take()
            assert (taken.visible_at_ms, taken.position) == min((at, where) for where, at in model.items())
            store.journal.remove(taken.position)
            store.journal.flush()
            del model[taken.position]
        head = run.head()
        first = min(((at, where) for where, at in model.items()), default=None)
        assert (None if head is None else (head.visible_at_ms, head.position)) == first
        found = run.get(position)
        assert (None if found is None else found.visible_at_ms) == model.get(position)
        due = sorted((at, where) for where, at in model.items() if at <= visible_at_ms)
        assert [(lease.visible_at_ms, lease.position) for lease in run.in_order(visible_at_ms)] == due
    store.close()


def test_a_look_at_the_order_leaves_memory_as_it_is() -> None:
    """However far it goes behind what is in memory; and it reads no more than it is asked for."""
    store = Store()
    for position in range(100):
        store.journal.put_lease(Lease(position, 0, 1_000 + position))
    run = HiddenRun(journal=store.journal, lane=0, window_max=8, horizon=ON_DISK, alive=_all_alive)
    assert run.head() is not None
    before = dict(run._items), run._horizon
    for count in (1, 8, 9, 100):
        found = list(islice(run.in_order(), count))
        assert [lease.position for lease in found] == list(range(count))
        assert (run._items, run._horizon) == before
    assert [lease.position for lease in run.in_order(1_049)] == list(range(50))
    store.close()


@pytest.mark.parametrize("timeout_ms", [0, 43_200_000])
def test_quick_deletes_under_long_timeouts_do_not_fill_memory(timeout_ms: int) -> None:
    store = Store()
    run = HiddenRun(journal=store.journal, lane=0, window_max=16_384, horizon=None, alive=_all_alive)
    for position in range(20_000):
        run.put(position, Lease(position, 0, position + timeout_ms))
        run.drop(position)
    assert len(run._heap) < 1_000
    store.close()


def test_memory_holds_no_more_than_the_window() -> None:
    store = Store()
    run = HiddenRun(journal=store.journal, lane=0, window_max=100, horizon=None, alive=_all_alive)
    for position in range(10_000):
        lease = Lease(position, 0, 10_000 - position)
        store.journal.put_lease(lease)
        run.put(lease.position, lease)
        assert len(run._items) <= 100
    store.close()


def test_what_was_put_behind_the_horizon_lately_is_found_in_memory() -> None:
    """Who is received behind many others in flight is deleted soon, and costs no look at the disk."""
    store = Store()
    run = HiddenRun(journal=store.journal, lane=0, window_max=8, horizon=None, alive=_all_alive)
    for position in range(20):
        run.put(position, Lease(position, 0, 1_000 + position))  # the journal knows of none of them
    assert [position for position in range(20) if run.get(position) is not None] == [0, 1, 2, 3, 18, 19]
    store.close()
