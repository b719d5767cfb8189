"""What is said once in a while."""

from veilmq.server import pushes as seldom
from veilmq.server.pushes import PERIOD_MS, LogThrottle
from veilmq.testing import VirtualClock


def test_each_subject_is_due_once_a_minute() -> None:
    clock = VirtualClock()
    said = LogThrottle(clock)
    assert [said.due("a"), said.due("a"), said.due("b")] == [True, False, True]
    clock.advance(PERIOD_MS - 1)
    assert not said.due("a")
    clock.advance(1)
    assert said.due("a")


def test_so_many_subjects_are_remembered_and_no_more() -> None:
    said = LogThrottle(VirtualClock())
    for subject in range(seldom._SUBJECTS_MAX):
        said.due(subject)
    assert not said.due(0)
    assert said.due("one more")
    assert said.due(0)
