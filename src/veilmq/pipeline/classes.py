"""Classes: group routing keys that share a timeout, so that a few timeouts cost nearly as little as one per key.

Keys are sorted by their own best timeout; a class is a range of neighbours in that order. Dynamic programming proceeds
from the longest class down, in O(K G²) for K classes and G groups of keys: for each first group and number of classes
it keeps the cheapest partition of all groups from there on. The longer classes are fixed at that point, so the cost
includes expiries that move a message to the next class. Finally, each timeout in turn is optimised with the others
fixed, until the cost no longer falls.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilmq.pipeline.cost import Load, Prices, best_s, candidates_s, cost, costs, mixed
from veilmq.pipeline.tallies import Array

GROUPS_MAX = 120
"""More keys are first grouped with their neighbours, so that thousands of keys take only seconds."""

_ROUNDS_MAX = 20
_NEAR = 1.3


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
    partition = _cheapest([mixed([loads[index] for index in group]) for group in groups], count, prices)
    members = [0] * len(loads)
    for number, (start, stop) in enumerate(zip(partition.starts, (*partition.starts[1:], len(groups)), strict=True)):
        for index in (index for group in groups[start:stop] for index in group):
            members[index] = number
    timeouts_s = _polished(loads, members, partition.timeouts_s, prices)
    return Classes(timeouts_s, tuple(members), cost_of_classes(loads, members, timeouts_s, prices=prices))


def cost_of_classes(
    loads: Sequence[Load], members: Sequence[int], timeouts_s: Sequence[float], *, prices: Prices
) -> float:
    """Return the cost of ``loads`` if each starts in its class in ``members``, and an expiry moves it to the next."""
    return sum(
        cost(load, timeouts_s[number], prices=prices, then_s=timeouts_s[number + 1 :])
        for load, number in zip(loads, members, strict=True)
    )


def _cheapest(groups: Sequence[Load], count: int, prices: Prices) -> _Partition:
    """Return the cheapest partition of ``groups`` into 1 … ``count`` classes."""
    timeouts_s = candidates_s()
    above = {len(groups): _Partition(0.0)}
    found = []
    for _ in range(min(count, len(groups))):
        partitions: dict[int, _Partition] = {}
        for stop, partition in above.items():
            _extend(partitions, groups[:stop], partition, timeouts_s, prices)
        if 0 not in partitions:  # the class above has the shortest possible timeout
            break
        found.append(partitions[0])
        above = {start: partition for start, partition in partitions.items() if start}
    return min(found, key=lambda partition: partition.cost)


def _extend(
    partitions: dict[int, _Partition], groups: Sequence[Load], above: _Partition, timeouts_s: Array, prices: Prices
) -> None:
    """Add one class below ``above``, of each possible number of the last ``groups``; keep the cheapest partitions."""
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


def _polished(
    loads: Sequence[Load], members: Sequence[int], timeouts_s: Sequence[float], prices: Prices
) -> tuple[int, ...]:
    """Move each timeout in turn, between its neighbours, to where all loads cost least."""
    numbers = range(len(timeouts_s))
    classes = [mixed([load for load, own in zip(loads, members, strict=True) if own == each]) for each in numbers]
    now = [*timeouts_s]
    for _ in range(_ROUNDS_MAX):
        before = [*now]
        for number in numbers:
            now[number] = _best_between(classes, now, number, prices)
        if now == before:
            break
    return tuple(int(each) for each in now)


def _best_between(classes: Sequence[Load], timeouts_s: Sequence[float], number: int, prices: Prices) -> float:
    """Return the cheapest timeout near that of the class ``number``, between those of its neighbours."""
    below = timeouts_s[number - 1] if number else 0.0
    above = timeouts_s[number + 1] if number + 1 < len(timeouts_s) else math.inf
    now = timeouts_s[number]
    every = candidates_s()
    free = every[(every > below) & (every < above) & (every > now / _NEAR) & (every < now * _NEAR)]
    return float(min((now, *free.tolist()), key=lambda each: _with(classes, timeouts_s, number, each, prices)))


def _with(classes: Sequence[Load], timeouts_s: Sequence[float], number: int, timeout_s: float, prices: Prices) -> float:
    changed = [*timeouts_s[:number], timeout_s, *timeouts_s[number + 1 :]]
    return cost_of_classes(classes, range(len(classes)), changed, prices=prices)
