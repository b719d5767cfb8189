"""Numbers over time as a line: within its box, from the first to the last."""

import pytest

from veilmq.console.sparkline import HEIGHT, WIDTH, sparkline


def test_the_line_goes_from_the_first_to_the_last() -> None:
    line = sparkline([(1_000, 0), (2_000, 10), (5_000, 5)])
    assert line is not None
    assert line.points == f"0.0,{HEIGHT - 2}.0 24.0,2.0 {WIDTH}.0,{HEIGHT / 2}"
    assert (line.least, line.most, line.span_ms) == (0, 10, 4_000)


@pytest.mark.parametrize("history", [[], [(1, 5)]])
def test_there_is_no_line_of_less_than_two_points(history: list[tuple[int, int]]) -> None:
    assert sparkline(history) is None


@pytest.mark.parametrize("history", [[(1, 0), (1, 0)], [(1, 7), (2, 7)], [(0, 0), (10**13, 10**18)]])
def test_it_stays_in_its_box(history: list[tuple[int, int]]) -> None:
    line = sparkline(history)
    assert line is not None
    for point in line.points.split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
