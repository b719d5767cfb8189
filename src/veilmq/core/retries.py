"""When a push that failed is tried again (SMQ reference, section 9)."""

from veilmq.core.topics import RetryStrategy

_BACKOFF_RETRIES = 3
_BACKOFF_S_MIN, _BACKOFF_S_MAX = 10, 20
_DECAY_RETRIES = 176
_DECAY_S_MAX = 512


def retry_delay_s(strategy: RetryStrategy, failures: int, chance: float) -> int | None:
    """Return the pause after the failure number ``failures``, counted from 1; ``None`` when that was the last one.

    ``chance`` is a random number from 0 up to, not including, 1.
    """
    return _DELAYS[strategy](failures, chance)


def _backoff_s(failures: int, chance: float) -> int | None:
    if failures > _BACKOFF_RETRIES:
        return None
    return _BACKOFF_S_MIN + int(chance * (_BACKOFF_S_MAX - _BACKOFF_S_MIN + 1))


def _decay_s(failures: int, chance: float) -> int | None:
    if failures > _DECAY_RETRIES:
        return None
    return min(1 << (failures - 1), _DECAY_S_MAX)


_DELAYS = {RetryStrategy.BACKOFF: _backoff_s, RetryStrategy.EXPONENTIAL_DECAY: _decay_s}
