"""What a lease keeps for the event log comes back as it was put in, and what is too much as the most."""

import pytest

from veilmq.engines import held


def test_a_receive_and_its_extensions() -> None:
    log = held.placed(held.begun(10, 1_234), 7)
    assert held.is_open(log)
    assert held.read(log) == (0, 10, 7, 1_234)
    for _ in range(3):
        log = held.extended(log)
    assert held.read(log) == (3, 10, 7, 1_234)
    assert not held.is_open(log | held.CLOSED)
    assert held.read(log | held.CLOSED) == (3, 10, 7, 1_234)


def test_a_lease_that_is_not_logged_stays_so() -> None:
    assert held.extended(0) == 0
    assert not held.is_open(0)


def test_what_is_common_takes_few_bytes() -> None:
    assert held.placed(held.begun(10, 0), 9) < 1 << 18


@pytest.mark.parametrize("times", [1, 2])
def test_too_much_is_told_as_the_most(times: int) -> None:
    log = held.placed(held.begun(255 * times, ((1 << 29) - 1) * times), 255 * times)
    for _ in range(0xFFFF * times):
        log = held.extended(log)
    assert held.read(log) == (0xFFFF, 255, 255, (1 << 29) - 1)
    assert log < 1 << 63
