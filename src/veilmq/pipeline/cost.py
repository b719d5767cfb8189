"""The cost of a visibility timeout for each message, in seconds of work (see ``docs/pipeline.md``).

A message is redelivered whenever a timeout ends before its work, which takes T. With timeouts V1, V2, … of its at most
M receives (one V for a queue; longer ones if an expiry moves the message to the next class),

    C = w · sum over k < M of E[T; T > t_k]   wasted work
      + D · P(T > t_M)                        false dead letters
      + d · q · V1                            waiting after a crash

veilmq fences receipts: only the receipt of the latest receive deletes, so t_k is the longest of the first k timeouts.
If earlier receipts delete (SQS, and veilmq with ``stale_receipts = act``), t_k is their sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.pipeline.survival import Tail
from veilmq.pipeline.tallies import Array

RECEIVES_COUNTED_MAX = 20
"""Beyond so many receives a message costs no more here, or a queue without dead letters would cost without bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices, in seconds of work.

    ``work`` (w): a second of wasted work; ``wait`` (d): a second of waiting; ``dead_letter`` (D): a message that
    becomes a dead letter only because its timeout is too short. If ``fenced``, only the receipt of the latest receive
    deletes.
    """

    work: float = 1.0
    wait: float = 1.0
    dead_letter: float = 60.0
    fenced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The tail of the work, the crash rate (q), and the maximum number of receives (M).

    ``weight`` is the share of messages of this kind. Consumers renew a timeout of ``renewed_from_s`` or more in time,
    so only the work of the share ``unrenewed`` exceeds it."""

    tail: Tail
    crash_rate: float | Array
    receives_max: int
    weight: float = 1.0
    renewed_from_s: float = math.inf
    unrenewed: float | Array = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The summands of the cost of each of several timeouts: wasted work, false dead letters, waiting after a crash."""

    in_vain: Array
    dead: Array
    waiting: Array


def mixed(loads: Sequence[Load]) -> Load:
    """Return one load with the cost of all ``loads`` together, for any timeout; they have equal receives."""
    weights = np.array([load.weight for load in loads])
    shares = weights / weights.sum()
    return Load(
        tail=Tail(
            survival=np.asarray(shares @ np.stack([load.tail.survival for load in loads])),
            work_s=np.asarray(shares @ np.stack([load.tail.work_s for load in loads])),
        ),
        crash_rate=float(shares @ np.array([load.crash_rate for load in loads])),
        receives_max=loads[0].receives_max,
        weight=float(weights.sum()),
    )


def candidates_s() -> Array:
    """Return the candidates: whole seconds from 1 s to 12 h, about 2 % apart."""
    steps = np.geomspace(1.0, float(VISIBILITY_TIMEOUT_S.maximum), 560)
    return np.unique(np.ceil(steps - 1e-9))


def costs(load: Load, timeouts_s: Array, *, prices: Prices, then_s: Sequence[float] = ()) -> Array:
    """Return the cost of each of ``timeouts_s`` as the first one, for each message, times the weight of the load.

    ``then_s`` are the timeouts after each expiry; the last one, or the first one if there are none, applies to
    further receives.
    """
    found = parts(load, timeouts_s, prices=prices, then_s=then_s)
    return found.in_vain + found.dead + found.waiting


def parts(load: Load, timeouts_s: Array, *, prices: Prices, then_s: Sequence[float] = ()) -> Parts:
    """Return the summands of ``costs``."""
    receives = min(max(load.receives_max, 1), RECEIVES_COUNTED_MAX)
    in_force = _in_force(timeouts_s, then_s, receives)
    reached = np.maximum.accumulate(in_force, axis=0) if prices.fenced else np.cumsum(in_force, axis=0)
    outlived = load.weight * np.where(timeouts_s < load.renewed_from_s, 1.0, load.unrenewed)
    in_vain: Array = load.tail.work_beyond(reached[:-1]).sum(axis=-2)
    return Parts(
        in_vain=outlived * prices.work * in_vain,
        dead=outlived * prices.dead_letter * load.tail.beyond(reached[-1]),
        waiting=load.weight * prices.wait * load.crash_rate * timeouts_s,
    )


def cost(load: Load, timeout_s: float, *, prices: Prices, then_s: Sequence[float] = ()) -> float:
    """Return the cost of ``timeout_s``; see ``costs``."""
    return float(costs(load, np.array([timeout_s], dtype=float), prices=prices, then_s=then_s)[0])


def best_s(load: Load, *, prices: Prices) -> tuple[int, float]:
    """Return the timeout with the least cost, and that cost."""
    timeouts = candidates_s()
    each = costs(load, timeouts, prices=prices)
    best = int(np.argmin(each))
    return int(timeouts[best]), float(each[best])


def _in_force(timeouts_s: Array, then_s: Sequence[float], receives: int) -> Array:
    """Return the timeouts, a row for each receive; the last one is repeated."""
    later = [np.full_like(timeouts_s, each) for each in then_s[: receives - 1]]
    rows = [timeouts_s, *later]
    rows += [rows[-1]] * (receives - len(rows))
    return np.stack(rows)
