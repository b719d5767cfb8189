"""The turns of a lane behave like one sorted list, and their windows hold what there is room for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.engines.embedded.store import Store
from veilmq.engines.embedded.fresh import BodyCache
from veilmq.engines.embedded.rows import MessageRow
from veilmq.engines.embedded.run import CLAIMED_MS, ON_DISK, Key
from veilmq.engines.embedded.turns import Turn, Turns

_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["file", "begin", "end", "aside"]), st.integers(0, 12), st.integers(0, 4)), max_size=60
)
_LAST = 1 << 40


def _turns(store: Store, *, window_max: int = 100, rows_max: int = 100, bytes_max: int = 10_000) -> Turns:
    return Turns(
        journal=store.journal,
        cache=BodyCache(bytes_max=bytes_max),
        lane=0,
        window_max=window_max,
        rows_max=rows_max,
        horizon=None,
    )


def _send(store: Store, turns: Turns, group: int, position: int) -> Turn:
    """Send a message to a group, as a lane does."""
    row = MessageRow(position, bytes(16), position, f"m{position}", b"", group)
    store.journal.add_message(row)
    turn = turns.of(group)
    if turn is None:
        turn = Turn(group, position, position, position, whole=True)
        turns.file(turn, position, position)
    turns.append(turn, row)
    return turn


@given(actions=_ACTIONS, window_max=st.sampled_from([1, 2, 7, 100]), horizon=st.sampled_from([None, ON_DISK]))
def test_like_a_sorted_list(actions: list[tuple[str, int, int]], window_max: int, horizon: Key | None) -> None:
    store = Store()
    turns = Turns(
        journal=store.journal,
        cache=BodyCache(bytes_max=0),
        lane=0,
        window_max=window_max,
        rows_max=1,
        horizon=horizon,
    )
    model: dict[int, tuple[int, int]] = {}
    for step, (action, group, visible_at_ms) in enumerate(actions):
        turn = turns.of(group)
        assert (None if turn is None else (turn.visible_at_ms, turn.head_position)) == model.get(group)
        if action == "begin" and turn is None:
            turns.begin(Turn(group, visible_at_ms, step, step))
            model[group] = (visible_at_ms, step)
        elif action in ("file", "begin") or (action == "aside" and turn is not None):
            turn = turn or Turn(group, 0, step, step)
            if action == "aside":
                turns.set_aside(turn)
            turns.file(turn, visible_at_ms, step)
            model[group] = (visible_at_ms, step)
        elif turn is not None:
            turns.end(turn)
            del model[group]
        head = turns.head()
        first = min(model.values(), default=None)
        assert (None if head is None else (head.visible_at_ms, head.head_position)) == first
        assert [(turn.visible_at_ms, turn.head_position) for turn in turns.in_order()] == sorted(model.values())
    store.close()


def test_memory_holds_no_more_turns_than_the_window() -> None:
    store = Store()
    turns = _turns(store, window_max=100)
    for group in range(10_000):
        turns.file(Turn(group, 0, group, group), 10_000 - group, group)
        assert len(turns._items) == len(turns._groups) <= 100
    store.close()


def test_a_turn_that_was_begun_has_no_row_before_it_has_to() -> None:
    """It has to be stored before a position, when it leaves memory, or when its messages are claimed."""
    store = Store()
    turns = _turns(store, window_max=100)
    for group in range(6):
        turns.begin(Turn(group, 10, group, group))
        turns.file(_turn(turns, group), 20 + group, group)
    assert _stored(store) == []
    turns.end(_turn(turns, 0))
    turns.store_before(3)
    assert _stored(store) == [1, 2]
    turns.file(_turn(turns, 4), CLAIMED_MS, 4)
    assert _stored(store) == [1, 2, 4]
    for group in range(6, 106):
        turns.begin(Turn(group, group, group, group))
    gone = set(range(1, 106)) - {turn.group_key for turn in turns._items.values()}
    assert len(gone) > 50, "the window was halved"
    assert set(_stored(store)) == gone | {1, 2, 4}
    turns.end(_turn(turns, 1))
    turns.clear()
    assert set(_stored(store)) == gone | {2, 4}
    store.close()


def _turn(turns: Turns, group: int) -> Turn:
    turn = turns.of(group)
    assert turn is not None
    return turn


def _stored(store: Store) -> list[int]:
    store.journal.flush()
    return [group for (group,) in store.journal.begin().execute("SELECT group_key FROM turn ORDER BY 1")]


def test_what_was_just_sent_needs_no_reading() -> None:
    store = Store()
    turns = _turns(store)
    turn = _send(store, turns, group=1, position=5)
    _send(store, turns, group=1, position=6)
    store.journal.roll_back()  # nothing is left to be read
    assert [turns.pop(turn).position for _ in range(2)] == [5, 6]
    assert turns.first(turn, _LAST) is None
    assert turn.next_position == 7
    store.close()


@pytest.mark.parametrize("bytes_max", [0, 600, 10_000])
def test_every_message_is_there_in_order_however_little_is_kept(bytes_max: int) -> None:
    store = Store()
    turns = _turns(store, rows_max=3, bytes_max=bytes_max)
    for position in range(40):
        _send(store, turns, group=position % 2, position=position)
    for group in range(2):
        turn = turns.of(group)
        assert turn is not None
        got = []
        while (row := turns.first(turn, _LAST)) is not None:
            assert turns.pop(turn) is row
            turns.trim(turn)
            got.append(row.position)
        assert got == list(range(group, 40, 2))
    assert turns._rows == turns._bytes == 0
    assert turns._cache.bytes_left == bytes_max
    store.close()


def test_a_message_that_was_put_back_comes_again() -> None:
    store = Store()
    turns = _turns(store)
    turn = _send(store, turns, group=1, position=5)
    _send(store, turns, group=1, position=6)
    turns.put_back(turn, turns.pop(turn))
    assert turn.next_position == 5
    turns.empty(turn)
    first = turns.first(turn, _LAST)
    assert first is not None
    assert [turns.pop(turn).position for _ in range(2)] == [first.position, 6] == [5, 6]
    store.close()


def test_a_turn_that_leaves_memory_takes_its_window_along() -> None:
    store = Store()
    turns = _turns(store, window_max=2)
    for position in range(6):
        _send(store, turns, group=position, position=position)
    assert turns._rows == sum(len(turn.rows) for turn in turns._groups.values()) <= 2
    turns.clear()
    assert turns._rows == turns._bytes == 0
    store.close()


def test_the_lane_bounds_all_windows_together() -> None:
    store = Store()
    turns = _turns(store, rows_max=7)
    for position in range(100):
        _send(store, turns, group=position % 10, position=position)
    assert turns._rows == 7
    store.close()


def test_a_window_that_is_lent_is_kept_until_others_need_its_room() -> None:
    store = Store()
    turns = _turns(store, rows_max=3)
    turn, _ = [_send(store, turns, 1, position) for position in (0, 1)]
    turns.set_aside(turn)
    turns.lend(turn)
    assert len(turn.rows) == 2
    *_, other = [_send(store, turns, 2, position) for position in (2, 3, 4)]
    assert (len(turn.rows), len(other.rows)) == (0, 3)
    turns.file(turn, 0, 0)
    first = turns.first(turn, _LAST)
    assert first is not None
    assert first.body == "m0"
    store.close()


def test_windows_that_are_lent_are_emptied_and_cleared_with_all_others() -> None:
    store = Store()
    turns = _turns(store)
    for let_go in (turns.empty_all, turns.clear):
        turn = Turn(1, 0, 0, 0, whole=True)
        turns.file(turn, 0, 0)
        turns.append(turn, MessageRow(0, bytes(16), 0, "m0", b"", 1))
        turns.set_aside(turn)
        turns.lend(turn)
        let_go()
        assert turn.rows == []
    store.close()
