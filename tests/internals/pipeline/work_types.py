"""Forty types of work whose truth is known (``simulated_queue`` plays what a queue makes of them).

Work takes a log-normal time with a sigma of 0.8; its median rises from type to type, from 0.2 s to five minutes. A
message takes the same time at each attempt. Three receives in a thousand end with the death of the consumer. The
queue has a timeout of 30 s and five receives; one receive in a hundred has 120 s instead, and another 480 s, by way
of exploration. A consumer that is late finishes all the same and deletes with a receipt that is superseded by then,
which the server logs and does not honour.

Some types are otherwise: ``GIVING_UP`` stop at the deadline (no late deletes), and longer timeouts are not explored;
``EXPLORED`` stop too, but one receive in five is longer; ``RARE`` have 200 messages each.
"""

import math

import numpy as np

from veilmq.pipeline.cells import EDGES_S, Array
from veilmq.pipeline.cost import Load, Prices, best_s, cost
from veilmq.pipeline.survival import Tail

TYPES = 40
SIGMA = 0.8
Z_99 = 2.3263478740408408
CRASH_RATE = 0.003
RECEIVES_MAX = 5
TIMEOUT_MS = 30_000
LONGER_MS = 120_000
LONGEST_MS = 480_000
GIVING_UP = frozenset({9, 27})
EXPLORED = frozenset({17, 20})
RARE = (4, 14, 24)
RARE_MESSAGES = 200
DAYS = 3
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
SEED = 20260101
QUEUE = "jobs"

COMMON = [each for each in range(TYPES) if each not in RARE]
TURNS = [*COMMON, *(each for each in sorted(EXPLORED) for _ in range(2))]
"""The common types by turns; those that are explored have three turns, as only some receipts are informative."""


def name_of(number: int) -> str:
    """Return the routing key of a type."""
    return f"type-{number:02}"


def median_s(number: int) -> float:
    """Return the median of the working time of a type."""
    return float(0.2 * math.exp(0.188 * number))


def p99_s(number: int) -> float:
    """Return the true p99 of the working time of a type."""
    return float(median_s(number) * math.exp(SIGMA * Z_99))


def longest_s(number: int) -> float:
    """Return the longest timeout in force for a type."""
    return (TIMEOUT_MS if number in GIVING_UP else LONGEST_MS) / 1000.0


def is_identifiable(number: int, first_receipts: float) -> bool:
    """Return whether the p99 of a type can be known by its timeouts: fifty receipts are at risk there, in truth."""
    longer = 0.2 if number in EXPLORED else 0.0 if number in GIVING_UP else 0.02
    share = 1.0 if p99_s(number) < TIMEOUT_MS / 1000.0 else longer if p99_s(number) < longest_s(number) else 0.0
    return 0.01 * share * first_receipts >= 50.0


def true_load(number: int, *, weight: float = 1.0) -> Load:
    """Return the load of a type, from the distribution itself."""
    mu = math.log(median_s(number))
    z = (np.log(EDGES_S) - mu) / SIGMA
    work_s = math.exp(mu + SIGMA**2 / 2.0) * _beyond(z - SIGMA)
    return Load(tail=Tail(_beyond(z), work_s), crash_rate=CRASH_RATE, receives_max=RECEIVES_MAX, weight=weight)


def true_cost(number: int, timeout_s: float, *, prices: Prices) -> float:
    """Return what a timeout truly costs for each message of a type."""
    return cost(true_load(number), timeout_s, prices=prices)


def true_best(number: int, *, prices: Prices) -> tuple[int, float]:
    """Return the best timeout of a type, and its cost."""
    return best_s(true_load(number), prices=prices)


def _beyond(z: Array) -> Array:
    return np.array([0.5 * math.erfc(each / math.sqrt(2.0)) for each in z])
