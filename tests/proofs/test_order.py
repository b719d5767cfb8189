"""The books of order see each kind of violation, and none where there is none."""

from tests.proofs.order import GroupOrder


def test_an_honest_run_has_no_violation() -> None:
    """Given together, given again, and given on when the earlier ones may be gone."""
    order = GroupOrder()
    order.given([("a", 0), ("b", 0), ("a", 1)])
    order.given([("a", 0), ("a", 1)])
    order.delete_asked("a", 1)
    order.given([("a", 0)])
    order.delete_asked("a", 0)
    order.delete_asked("a", 0)
    order.given([("a", 2), ("a", 3)])
    order.given([("a", 2), ("a", 3)])
    assert order.violations == []


def test_a_message_that_comes_too_early() -> None:
    """An earlier one of its group is still there."""
    order = GroupOrder()
    order.given([("a", 0), ("b", 0)])
    order.delete_asked("b", 0)
    order.given([("a", 1)])
    assert order.violations == ["1 of a was given before 0"]


def test_a_message_that_comes_behind_a_later_one() -> None:
    """In the same answer."""
    order = GroupOrder()
    order.given([("a", 1), ("a", 0)])
    assert len(order.violations) == 2
