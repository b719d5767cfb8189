"""How long a message that failed stays hidden."""

import pytest

from veilmq.consumer import Backoff


def test_without_jitter_it_doubles_up_to_the_cap() -> None:
    backoff = Backoff("1s", cap="10s", jitter="none")
    assert [backoff.after_s(attempt) for attempt in (1, 2, 3, 4, 5, 1_000_000)] == [1, 2, 4, 8, 10, 10]


def test_full_jitter_draws_from_nothing_to_the_ceiling() -> None:
    """In whole seconds, rounded up, as the queue takes them."""
    draws = iter([0.0, 0.5, 0.99])
    backoff = Backoff("10s", draw=lambda: next(draws))
    assert [backoff.after_s(1) for _ in range(3)] == [0, 5, 10]


def test_it_never_asks_for_more_than_a_queue_allows() -> None:
    assert Backoff("12h", cap="30d", jitter="none").after_s(9) == 43_200


def test_attempts_are_counted_from_one() -> None:
    backoff = Backoff(attempts=3)
    assert [backoff.exhausted(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert not Backoff().exhausted(1_000)


@pytest.mark.parametrize("options", [{"jitter": "some"}, {"attempts": 0}, {"cap": "soon"}], ids=str)
def test_what_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"jitter|tried once|span"):
        Backoff(**options)  # type: ignore[arg-type]
