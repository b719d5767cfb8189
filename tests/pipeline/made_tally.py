"""Tallies made by hand, for tests of what is reckoned from them."""

from statistics import NormalDist

import numpy as np

from veilmq.pipeline.tallies import EDGES_S, Array, KeyTally, Tally

NORMAL = NormalDist()


def counts(*pairs: tuple[float, float]) -> Array:
    """Return how many receipts lie in which bucket, from pairs of (seconds, receipts)."""
    made = np.zeros(EDGES_S.size)
    for time_s, receipts in pairs:
        made[np.searchsorted(EDGES_S, time_s)] += receipts
    return made


def key_tally(first: Tally, *, queue: str = "jobs", key: str = "a") -> KeyTally:
    """Return a key that has first receipts alone."""
    return KeyTally(queue=queue, key=key, first=first, all=first)


def lognormal(
    median_s: float,
    receipts: int,
    *,
    sigma: float = 0.8,
    timeout_s: float = 30.0,
    crash_rate: float = 0.0,
    finishing: bool = True,
) -> Tally:
    """Return what ``receipts`` receipts of log-normal work leave, at exact quantiles; late deletes if ``finishing``."""
    levels = (np.arange(receipts) + 0.5) / receipts
    times_s = median_s * np.exp(sigma * np.array([NORMAL.inv_cdf(float(level)) for level in levels]))
    alive = receipts * (1.0 - crash_rate)
    weight = alive / receipts
    in_time = times_s[times_s <= timeout_s]
    late = times_s[times_s > timeout_s]
    return Tally(
        deleted=counts(*((each, weight) for each in in_time)),
        late=counts(*((each, weight) for each in late if finishing)),
        expired=counts((timeout_s, weight * late.size + receipts - alive)),
        corrected=counts((timeout_s, weight * late.size if finishing else 0.0)),
        in_force=counts((timeout_s, receipts)),
    )
