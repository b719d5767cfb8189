"""What a lease keeps for the event log comes back as it was put in, and what is too much as the most."""

import pytest

from veilmq.store.events import LOG_CLOSED, log_begun, log_extended, log_is_open, log_placed, read_log


def test_a_receive_and_its_extensions() -> None:
    log = log_placed(log_begun(10, 1_234), 7)
    assert log_is_open(log)
    assert read_log(log) == (0, 10, 7, 1_234)
    for _ in range(3):
        log = log_extended(log)
    assert read_log(log) == (3, 10, 7, 1_234)
    assert not log_is_open(log | LOG_CLOSED)
    assert read_log(log | LOG_CLOSED) == (3, 10, 7, 1_234)


def test_a_lease_that_is_not_logged_stays_so() -> None:
    assert log_extended(0) == 0
    assert not log_is_open(0)


def test_what_is_common_takes_few_bytes() -> None:
    assert log_placed(log_begun(10, 0), 9) < 1 << 18


@pytest.mark.parametrize("times", [1, 2])
def test_too_much_is_told_as_the_most(times: int) -> None:
    log = log_placed(log_begun(255 * times, ((1 << 29) - 1) * times), 255 * times)
    for _ in range(0xFFFF * times):
        log = log_extended(log)
    assert read_log(log) == (0xFFFF, 255, 255, (1 << 29) - 1)
    assert log < 1 << 63
