"""Counts of receipts for tests of estimates and costs."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from veilmq.core.receipts import Outcome
from veilmq.pipeline.cells import (
    ARM_BUCKETS,
    EXTENDED,
    HELD,
    VISIBILITY,
    KeyCounts,
    ReceiptCounts,
    bucket_of,
    counted,
    total,
)

NORMAL = NormalDist()
Counts = list[tuple[float, float]]


def receipt_counts(
    *,
    timeout_s: float = 30.0,
    deleted: Counts | None = None,
    late: Counts | None = None,
    nacked: Counts | None = None,
    crashed: float = 0.0,
    extended: bool = False,
) -> ReceiptCounts:
    """Return receipts under one timeout, from pairs of (seconds held, receipts); late ones also count as expired."""
    parts = [
        *((Outcome.DELETED, HELD, *pair) for pair in deleted or []),
        *((Outcome.LATE_DELETED, HELD, *pair) for pair in late or []),
        *((Outcome.NACKED, HELD, *pair) for pair in nacked or []),
        (Outcome.DELETED, VISIBILITY, timeout_s, sum(number for _, number in deleted or [])),
        (Outcome.NACKED, VISIBILITY, timeout_s, sum(number for _, number in nacked or [])),
        (Outcome.LATE_DELETED, VISIBILITY, timeout_s, sum(number for _, number in late or [])),
        (Outcome.EXPIRED, VISIBILITY, timeout_s, crashed + sum(number for _, number in late or [])),
    ]
    arm = EXTENDED if extended else bucket_of(timeout_s) // ARM_BUCKETS
    sides = dict.fromkeys((outcome, axis) for outcome, axis, _, _ in parts)
    found = []
    for side in sides:
        pairs = [(bucket_of(time_s), number) for *its, time_s, number in parts if tuple(its) == side and number]
        places, numbers = [place for place, _ in pairs], [number for _, number in pairs]
        found.append(counted(*side, [arm] * len(pairs), places, numbers))
    return total(found)


def key_with(first: ReceiptCounts, *, queue: str = "jobs", key: str = "a") -> KeyCounts:
    return KeyCounts(queue=queue, key=key, first=first)


def lognormal(
    median_s: float,
    receipts: int,
    *,
    sigma: float = 0.8,
    timeout_s: float = 30.0,
    crash_rate: float = 0.0,
    finishing: bool = True,
) -> ReceiptCounts:
    """Return receipts of log-normal work at exact quantiles; late ones are deleted late if ``finishing``."""
    levels = (np.arange(receipts) + 0.5) / receipts
    times_s = median_s * np.exp(sigma * np.array([NORMAL.inv_cdf(float(level)) for level in levels]))
    weight = 1.0 - crash_rate
    over = times_s[times_s > timeout_s]
    return receipt_counts(
        timeout_s=timeout_s,
        deleted=[(each, weight) for each in times_s[times_s <= timeout_s]],
        late=[(each, weight) for each in over] if finishing else [],
        crashed=receipts * crash_rate + (0.0 if finishing else weight * over.size),
    )


def renewed(every_s: int, held_s: Sequence[int] = range(1, 301)) -> ReceiptCounts:
    """Return one receipt for each of ``held_s``, by consumers that renew every ``every_s``."""
    short = [each for each in held_s if each <= every_s]
    longer = [each for each in held_s if each > every_s]
    found = receipt_counts(deleted=[(each, 1.0) for each in short]) + total(
        receipt_counts(timeout_s=30.0 + each // every_s * every_s, deleted=[(each, 1.0)], extended=True)
        for each in longer
    )
    return replace(found, extensions=float(sum(each // every_s for each in longer)))


def scaled(counts: ReceiptCounts, weight: float) -> ReceiptCounts:
    cells = counts.cells.copy()
    cells["n"] *= weight
    cells["n2"] *= weight**2
    return ReceiptCounts(cells, counts.extensions * weight)
