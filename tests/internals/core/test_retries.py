"""When a push that failed is tried again."""

from veilmq.core.limits import SMQ_TOPIC_RETENTION_S
from veilmq.core.topics import RetryStrategy, retry_delay_s


def delays(strategy: RetryStrategy, chance: float = 0.0) -> list[int]:
    """Return the pauses between all attempts, until the last one."""
    found: list[int] = []
    while (delay_s := retry_delay_s(strategy, len(found) + 1, chance)) is not None:
        found.append(delay_s)
    return found


def test_backoff_tries_three_times_after_ten_to_twenty_seconds() -> None:
    assert delays(RetryStrategy.BACKOFF) == [10, 10, 10]
    assert delays(RetryStrategy.BACKOFF, 0.999_999) == [20, 20, 20]
    assert delays(RetryStrategy.BACKOFF, 0.5) == [15, 15, 15]


def test_exponential_decay_tries_for_a_day_and_ends_within_it() -> None:
    """1, 2, 4 … 512 s, then every 512 s: 176 times; the message is kept for longer than that."""
    found = delays(RetryStrategy.EXPONENTIAL_DECAY, 0.9)
    assert found[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512]
    assert len(found) == 176
    assert set(found[10:]) == {512}
    assert SMQ_TOPIC_RETENTION_S - 512 < sum(found) < SMQ_TOPIC_RETENTION_S
