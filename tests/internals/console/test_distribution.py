"""The histogram of holding times: its columns, its lines, and that all of it is in sight."""

import re

from veilmq.console.distribution import Histogram, histogram
from veilmq.events import ProcessingTimes, bin_of


def drawn(held: ProcessingTimes, *, timeout_s: int = 30, recommended_s: int | None = None) -> Histogram:
    found = histogram(held, timeout_s=timeout_s, recommended_s=recommended_s)
    assert found is not None
    return found


def test_without_receipts_there_is_nothing_to_draw() -> None:
    assert histogram(ProcessingTimes(), timeout_s=30, recommended_s=None) is None


def test_a_column_is_of_those_held_so_long_by_how_they_ended() -> None:
    held = ProcessingTimes(
        deleted={bin_of(1_000): 1_200, bin_of(8_000): 3}, late={bin_of(50_000): 2}, expired={bin_of(30_000): 4}
    )
    found = drawn(held)
    assert [(each.deleted, each.late, each.expired) for each in found.bins] == [
        (1_200, 0, 0),
        (3, 0, 0),
        (0, 0, 4),
        (0, 2, 0),
    ]
    assert re.findall('class="([a-z]+)"', found.columns) == ["deleted", "deleted", "expired", "late"]
    assert "1,200 deleted" in found.columns
    assert min(float(height) for height in re.findall('height="([0-9.]+)"', found.columns)) >= 1.0, (
        "few can be seen, too"
    )


def test_the_lines_are_in_sight_wherever_the_receipts_are() -> None:
    held = ProcessingTimes(deleted={bin_of(20): 1})
    for timeout_s, recommended_s in ((43_200, 1), (1, 43_200), (0, 30)):
        found = drawn(held, timeout_s=timeout_s, recommended_s=recommended_s)
        places = [float(x) for x in re.findall('<line class="(?:in-force|recommended)" x1="([0-9.]+)%"', found.lines)]
        assert len(places) == 2
        assert all(0 <= x <= 100 for x in places)
        if timeout_s:
            assert (places[0] < places[1]) == (timeout_s < recommended_s)


def test_a_recommendation_that_is_in_force_is_one_line() -> None:
    assert drawn(ProcessingTimes(deleted={1: 1}), recommended_s=30).lines.count("<line") == 1
