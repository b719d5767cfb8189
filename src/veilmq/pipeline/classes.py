"""Classes: which routing keys share a timeout, so that a few timeouts cost nearly as little as one for each key.

Keys are sorted by the timeout that each would choose for itself; a class is a run of neighbours in that order. A
dynamic programme goes from the longest class down, O(K G²) for K classes and G groups of keys: for every first group
and number of classes it keeps the cheapest way to serve all groups from there on. As the classes above are settled by
then, an expiry that moves a message to the next class is part of the cost. At last each timeout is moved once more
while all others stand, until nothing gets cheaper.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilmq.pipeline.cost import Load, Prices, best_s, candidates_s, cost, costs, mixed
from veilmq.pipeline.tallies import Array

GROUPS_MAX = 120
"""More keys than these are first put together by neighbours, so that thousands of keys stay a matter of seconds."""

_ROUNDS_MAX = 20
_NEAR = 1.3


@dataclass(frozen=True, slots=True)
class Classes:
    """``timeouts_s`` of the classes in rising order, and to which of them each load belongs, in the order given.

    ``cost`` is for each message, if the weights of the loads add up to 1.
    """

    timeouts_s: tuple[int, ...]
    members: tuple[int, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class _Way:
    """The cheapest way to serve all groups from one on: the first group and the timeout of each class."""

    cost: float
    starts: tuple[int, ...] = ()
    timeouts_s: tuple[float, ...] = ()


def classes_of(loads: Sequence[Load], count: int, *, prices: Prices) -> Classes:
    """Return the best way to put ``loads`` (at least one) into at most ``count`` classes."""
    own_s = [best_s(load, prices=prices)[0] for load in loads]
    order = sorted(range(len(loads)), key=own_s.__getitem__)
    groups = [part.tolist() for part in np.array_split(np.array(order), min(len(order), GROUPS_MAX))]
    way = _cheapest([mixed([loads[index] for index in group]) for group in groups], count, prices)
    members = [0] * len(loads)
    for number, (start, stop) in enumerate(zip(way.starts, (*way.starts[1:], len(groups)), strict=True)):
        for index in (index for group in groups[start:stop] for index in group):
            members[index] = number
    timeouts_s = _polished(loads, members, way.timeouts_s, prices)
    return Classes(timeouts_s, tuple(members), cost_of_classes(loads, members, timeouts_s, prices=prices))


def cost_of_classes(
    loads: Sequence[Load], members: Sequence[int], timeouts_s: Sequence[float], *, prices: Prices
) -> float:
    """Return what ``loads`` cost when each begins in the class of ``members``, and expiries move up."""
    return sum(
        cost(load, timeouts_s[number], prices=prices, then_s=timeouts_s[number + 1 :])
        for load, number in zip(loads, members, strict=True)
    )


def _cheapest(groups: Sequence[Load], count: int, prices: Prices) -> _Way:
    """Return the best of 1 … ``count`` classes for all ``groups``."""
    timeouts_s = candidates_s()
    above = {len(groups): _Way(0.0)}
    found = []
    for _ in range(min(count, len(groups))):
        ways: dict[int, _Way] = {}
        for stop, way in above.items():
            _extend(ways, groups[:stop], way, timeouts_s, prices)
        if 0 not in ways:  # the class above has the shortest timeout there is
            break
        found.append(ways[0])
        above = {start: way for start, way in ways.items() if start}
    return min(found, key=lambda way: way.cost)


def _extend(ways: dict[int, _Way], groups: Sequence[Load], above: _Way, timeouts_s: Array, prices: Prices) -> None:
    """Put one more class below ``above``, of the last so many of ``groups``, wherever that is the cheapest way yet."""
    shorter = timeouts_s[timeouts_s < above.timeouts_s[0]] if above.timeouts_s else timeouts_s
    if not shorter.size:
        return
    together = np.zeros_like(shorter)
    for start in reversed(range(len(groups))):
        together += costs(groups[start], shorter, prices=prices, then_s=above.timeouts_s)
        best = int(np.argmin(together))
        price = above.cost + float(together[best])
        if start not in ways or price < ways[start].cost:
            ways[start] = _Way(price, (start, *above.starts), (float(shorter[best]), *above.timeouts_s))


def _polished(
    loads: Sequence[Load], members: Sequence[int], timeouts_s: Sequence[float], prices: Prices
) -> tuple[int, ...]:
    """Move one timeout after the other, between its neighbours, to where all loads together cost least."""
    numbers = range(len(timeouts_s))
    classes = [mixed([load for load, its in zip(loads, members, strict=True) if its == each]) for each in numbers]
    now = [*timeouts_s]
    for _ in range(_ROUNDS_MAX):
        before = [*now]
        for number in numbers:
            now[number] = _best_between(classes, now, number, prices)
        if now == before:
            break
    return tuple(int(each) for each in now)


def _best_between(classes: Sequence[Load], timeouts_s: Sequence[float], number: int, prices: Prices) -> float:
    """Return the best timeout near that of the class ``number``, between those of its neighbours."""
    below = timeouts_s[number - 1] if number else 0.0
    above = timeouts_s[number + 1] if number + 1 < len(timeouts_s) else math.inf
    now = timeouts_s[number]
    every = candidates_s()
    free = every[(every > below) & (every < above) & (every > now / _NEAR) & (every < now * _NEAR)]
    return float(min((now, *free.tolist()), key=lambda each: _with(classes, timeouts_s, number, each, prices)))


def _with(classes: Sequence[Load], timeouts_s: Sequence[float], number: int, timeout_s: float, prices: Prices) -> float:
    changed = [*timeouts_s[:number], timeout_s, *timeouts_s[number + 1 :]]
    return cost_of_classes(classes, range(len(classes)), changed, prices=prices)
