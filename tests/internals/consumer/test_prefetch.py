"""How many messages are held ready."""

from veilmq.consumer.intake import Prefetch


def test_nothing_is_held_ready_before_anything_is_known_or_when_handlers_are_slow() -> None:
    prefetch = Prefetch()
    assert prefetch.target(10, lease_s=30) == 0
    prefetch.handled(2.0)
    prefetch.received(0.01)
    assert prefetch.target(10, lease_s=30) == 0


def test_what_is_handled_during_two_receives_is_held_ready() -> None:
    """Ten slots of 10 ms make 1,000 a second; a receive of 10 ms counts a fifth at first."""
    prefetch = Prefetch()
    prefetch.handled(0.01)
    prefetch.received(0.05)
    assert prefetch.target(10, lease_s=30) == 21


def test_it_ends_at_what_the_user_says_and_at_half_a_lease() -> None:
    prefetch = Prefetch(5)
    prefetch.handled(0.5)
    prefetch.received(1.0)
    assert prefetch.target(100, lease_s=30) == 5
    assert prefetch.target(2, lease_s=1) == 2
