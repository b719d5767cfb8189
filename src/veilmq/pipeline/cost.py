"""The cost of a visibility timeout for each message, in seconds of work (see ``docs/pipeline.md``).

A message is redelivered whenever a timeout ends before its work, which takes T. With timeouts V1, V2, … of its at most
M receives (one V for a queue; longer ones if an expiry moves the message to the next class),

    C = w · sum over k < M of E[T; T > t_k]   wasted work
      + D · P(T > t_M)                        false dead letters
      + d · q · V1                            waiting after a crash

veilmq fences receipts: only the receipt of the latest receive deletes, so t_k is the longest of the first k timeouts.
If earlier receipts delete (SQS, and veilmq with ``stale_receipts = act``), t_k is their sum.

A class is a group of routing keys that share a timeout, so that a few timeouts cost nearly as little as one per key.
Keys are sorted by their own best timeout; a class is a range of neighbours in that order. Dynamic programming proceeds
from the longest class down, in O(K G²) for K classes and G groups of keys: for each first group and number of classes
it keeps the cheapest partition of all groups from there on. The longer classes are fixed at that point, so the cost
includes expiries that move a message to the next class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.pipeline.cells import Array
from veilmq.pipeline.options import Prices
from veilmq.pipeline.survival import Tail

RECEIVES_COUNTED_MAX = 20
"""The maximum number of receives that are counted; otherwise the cost without a dead-letter queue is unbounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The tail of the work, the crash rate (q), and the maximum number of receives (M).

    ``weight`` is the share of messages of this kind. Consumers renew a timeout of ``renewed_from_s`` or more in time,
    so only the work of the share ``unrenewed`` exceeds it.
    """

    tail: Tail
    crash_rate: float | Array
    receives_max: int
    weight: float = 1.0
    renewed_from_s: float = math.inf
    unrenewed: float | Array = 0.0


def mixed(loads: Sequence[Load]) -> Load:
    """Return one load with the total cost of ``loads`` for any timeout; all have the same ``receives_max``."""
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
    """Return the candidate timeouts: whole seconds from 1 s to 12 h, about 2 % apart."""
    steps = np.geomspace(1.0, float(VISIBILITY_TIMEOUT_S.maximum), 560)
    return np.unique(np.ceil(steps - 1e-9))


def costs(load: Load, timeouts_s: Array, *, prices: Prices, then_s: Sequence[float] = ()) -> Array:
    """Return the cost per message, times the weight of the load, of each of ``timeouts_s`` as the first timeout.

    ``then_s`` are the timeouts of the following receives; the last timeout is repeated.
    """
    return np.asarray(parts(load, timeouts_s, prices=prices, then_s=then_s).sum(axis=0))


def parts(load: Load, timeouts_s: Array, *, prices: Prices, then_s: Sequence[float] = ()) -> Array:
    """Return the summands of ``costs``: wasted work, false dead letters, and waiting after a crash."""
    receives = min(max(load.receives_max, 1), RECEIVES_COUNTED_MAX)
    rows = [timeouts_s, *(np.full_like(timeouts_s, each) for each in then_s[: receives - 1])]
    in_force = np.stack(rows + [rows[-1]] * (receives - len(rows)))  # a row for each receive; the last one is repeated
    reached = np.maximum.accumulate(in_force, axis=0) if prices.fenced else np.cumsum(in_force, axis=0)
    outlived = load.weight * np.where(timeouts_s < load.renewed_from_s, 1.0, load.unrenewed)
    wasted = outlived * prices.work * load.tail.work_beyond(reached[:-1]).sum(axis=-2)
    dead = outlived * prices.dead_letter * load.tail.beyond(reached[-1])
    return np.stack([wasted, dead, load.weight * prices.wait * load.crash_rate * timeouts_s])


def best_s(load: Load, *, prices: Prices) -> tuple[int, float]:
    """Return the timeout with the least cost, and that cost."""
    timeouts = candidates_s()
    each = costs(load, timeouts, prices=prices)
    best = int(np.argmin(each))
    return int(timeouts[best]), float(each[best])


GROUPS_MAX = 120
"""More keys are first grouped with their neighbours, so that thousands of keys take only seconds."""


@dataclass(frozen=True, slots=True)
class Classes:
    """``timeouts_s`` are the timeouts of the classes, ascending; ``members`` has the class index of each load.

    ``cost`` is per message if the weights of the loads sum to 1.
    """

    timeouts_s: tuple[int, ...]
    members: tuple[int, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class _Partition:
    """The cheapest partition of the groups from one on: the first group and the timeout of each class."""

    cost: float
    starts: tuple[int, ...] = ()
    timeouts_s: tuple[float, ...] = ()


def classes_of(loads: Sequence[Load], count: int, *, prices: Prices) -> Classes:
    """Return the cheapest partition of ``loads`` (at least one) into at most ``count`` classes."""
    own_s = [best_s(load, prices=prices)[0] for load in loads]
    order = sorted(range(len(loads)), key=own_s.__getitem__)
    groups = [part.tolist() for part in np.array_split(np.array(order), min(len(order), GROUPS_MAX))]
    mixtures = [mixed([loads[index] for index in group]) for group in groups]
    timeouts_s = candidates_s()
    above = {len(groups): _Partition(0.0)}
    found = []
    for _ in range(min(count, len(groups))):
        partitions: dict[int, _Partition] = {}
        for stop, partition in above.items():
            _extend(partitions, mixtures[:stop], partition, timeouts_s, prices)
        if 0 not in partitions:  # the class above has the shortest possible timeout
            break
        found.append(partitions[0])
        above = {start: partition for start, partition in partitions.items() if start}
    best = min(found, key=lambda partition: partition.cost)
    members = [0] * len(loads)
    for number, (start, stop) in enumerate(zip(best.starts, (*best.starts[1:], len(groups)), strict=True)):
        for index in (index for group in groups[start:stop] for index in group):
            members[index] = number
    return Classes(tuple(map(int, best.timeouts_s)), tuple(members), best.cost)


def _extend(
    partitions: dict[int, _Partition], groups: Sequence[Load], above: _Partition, timeouts_s: Array, prices: Prices
) -> None:
    """Add to ``above`` one shorter class with any number of the last ``groups``; keep the cheapest partitions."""
    shorter = timeouts_s[timeouts_s < above.timeouts_s[0]] if above.timeouts_s else timeouts_s
    if not shorter.size:
        return
    total = np.zeros_like(shorter)
    for start in reversed(range(len(groups))):
        total += costs(groups[start], shorter, prices=prices, then_s=above.timeouts_s)
        best = int(np.argmin(total))
        full_cost = above.cost + float(total[best])
        if start not in partitions or full_cost < partitions[start].cost:
            partitions[start] = _Partition(full_cost, (start, *above.starts), (float(shorter[best]), *above.timeouts_s))
