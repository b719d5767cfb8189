"""Retention of moved messages: by their first sending, wherever they stand, in slices."""

import pytest

from tests.internals.engines.embedded.store import Store
from veilmq.engines.embedded.moved import Moved
from veilmq.engines.embedded.rows import MessageRow
from veilmq.engines.embedded.series import Series

FIRST_SENT_MS = (30, 10, None, 20, 10)
"""By position; the third message was sent to the lane itself."""


class Place:
    """A lane's positions, with the messages above."""

    def __init__(self) -> None:
        self.store = Store()
        self.series = Series(start=0, floor=0, next_position=0, end=100, dense=True)
        self.moved = Moved(journal=self.store.journal, lane=0, series=self.series)
        for first_sent_at_ms in FIRST_SENT_MS:
            self.add(first_sent_at_ms)

    def add(self, first_sent_at_ms: int | None) -> int:
        position = self.series.next
        self.store.journal.add_message(MessageRow(position, bytes(16), 100, "", b"", first_sent_at_ms=first_sent_at_ms))
        self.series.next += 1
        return position

    def ended(self) -> list[int]:
        """Return the positions of all that have ended."""
        every = [self.store.journal.message_at(position) for position in range(self.series.next)]
        return [row.position for row in every if self.moved.has_ended(row)]


@pytest.fixture
def place() -> Place:
    """Return a place of which nothing has ended."""
    return Place()


@pytest.mark.parametrize(("until_ms", "ended"), [(9, []), (10, [1, 4]), (29, [1, 3, 4]), (200, [0, 1, 3, 4])])
def test_those_first_sent_up_to_then_end(place: Place, until_ms: int, ended: list[int]) -> None:
    place.moved.expire(until_ms)
    assert place.ended() == ended
    assert sorted(place.moved.sweep(10)) == ended
    assert not place.moved.left
    place.store.close()


def test_they_go_in_slices_the_first_sent_first_and_are_hidden_while_some_are_left(place: Place) -> None:
    place.moved.expire(20)
    slices, hidden = [], []
    for _ in range(2):
        slices.append(place.moved.sweep(2))
        hidden.append([place.moved.hides(position) for position in (0, 3)])
        for position in slices[-1]:
            place.store.journal.remove(position)
    assert slices == [[1, 4], [3]]
    assert hidden == [[False, True], [False, False]]
    assert place.moved.first_sent_ms() == 30
    place.store.close()


def test_what_came_later_is_judged_by_the_retention_in_force_then(place: Place) -> None:
    place.moved.expire(20)
    assert place.moved.sweep(2) == [1, 4]
    later = place.add(5)
    place.moved.expire(4)  # a longer retention, while some are left that have ended
    assert place.ended() == [1, 3, 4]
    assert later not in place.moved.sweep(10)
    place.moved.expire(5)
    assert place.ended() == [later]
    place.store.close()


def test_a_lane_without_moved_messages_has_no_first_one(place: Place) -> None:
    for position in (0, 1, 3, 4):
        place.store.journal.remove(position)
    assert place.moved.first_sent_ms() is None
    place.store.close()
