"""Sizes of backlog, and the curve that is drawn from them."""

import pytest

from benchmarks.backlog import curves, sizes
from benchmarks.row import Section


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        pytest.param(1_000, [1_000], id="smallest"),
        pytest.param(100_000, [1_000, 10_000, 100_000], id="a power"),
        pytest.param(3_000_000, [1_000, 10_000, 100_000, 1_000_000, 3_000_000], id="not a power"),
    ],
)
def test_sizes_grow_tenfold_and_end_at_the_largest(most: int, expected: list[int]) -> None:
    assert sizes(most) == expected


def test_a_curve_is_drawn_per_kind_and_sections_without_points_are_passed_over() -> None:
    point = {"kind": "waiting", "messages": 1_000, "pair_us": 80.0}
    sections = [Section(name="send", rows=()), Section(name="backlog", rows=(), raw={"points": [point]})]
    assert curves(sections) == {"waiting": [(1_000, 80.0)]}
