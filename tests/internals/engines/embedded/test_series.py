"""Retention's floor: found by bisection, wherever rows are missing."""

from hypothesis import given
from hypothesis import strategies as st

from tests.internals.engines.embedded.store import Store
from veilmq.engines.embedded.rows import MessageRow
from veilmq.engines.embedded.series import Series


@given(
    sent=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40),
    until_ms=st.integers(-1, 60),
    floor=st.integers(0, 10),
)
def test_the_floor_is_the_first_position_not_expired(sent: list[tuple[int, bool]], until_ms: int, floor: int) -> None:
    store = Store()
    at_ms, alive = 0, []
    for position, (step_ms, kept) in enumerate(sent):
        at_ms += step_ms
        if kept:
            store.journal.add_message(MessageRow(position, bytes(16), at_ms, "", b""))
            if position >= floor and at_ms > until_ms:
                alive.append((position, at_ms))
    series = Series(start=0, floor=floor, next_position=len(sent), end=100, dense=True)
    first_ms = series.expire(store.journal, until_ms)
    store.close()
    if alive:
        assert first_ms == alive[0][1]
        assert floor <= series.floor <= alive[0][0]
    else:
        assert first_ms is None


def test_a_sweep_takes_at_most_a_slice_and_ends() -> None:
    store = Store()
    for position in range(10):
        store.journal.add_message(MessageRow(position, bytes(16), 0, "", b""))
    series = Series(start=0, floor=0, next_position=10, end=100, dense=True)
    states = [series.swept]
    series.retire()
    slices = []
    for _ in range(3):
        states.append(series.swept)
        slices.append(series.sweep(store.journal, 4))
    states.append(series.swept)
    store.close()
    assert slices == [(0, 4), (4, 8), (8, 10)]
    assert states == [True, False, False, False, True]
