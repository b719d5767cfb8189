"""The low-water mark: from where in a partition's index a receive begins to look.

What was deleted or hidden leaves entries behind that nobody removes while some transaction is open, so a receive from
the very beginning gets slower with every message that is consumed meanwhile. But what becomes visible does so at the
present instant or later; so once a receive has taken messages, nothing of their priority can be before the last of
them, except for what was committed late, or given back by a node that failed. Therefore looks begin right behind that
message (with its instant, if that is the present one), now and then a little before it, and once a second, and
whenever nothing is found, at the beginning.

While a transaction is open for long, even those few looks from the beginning become dear. So they are had for a tenth
of the time at the most; whoever finds nothing meanwhile is told when the next one may be.
"""

from dataclasses import dataclass, field
from typing import Any

from veilmq.core.limits import PRIORITY, SECOND_MS
from veilmq.core.ports import Clock
from veilmq.engines.clock import stopwatch_s

_LATE_MS = 50
_LOOKS_PER_NEAR_ONE = 16
_WHOLE_LOOK_MS = SECOND_MS
_DEAR_S = 0.02
_DEAR_FACTOR = 8
_DEAR_LOOKS = 2  # once may be chance: a busy machine
_COSTS_PER_INTERVAL = 10
_PARTITIONS_MAX = 10_000
_LANES = PRIORITY.maximum
BEGINNING = [0] * _LANES + [-1] * _LANES
"""What is before every message: an instant and a position for each priority, first all instants, then the positions."""


@dataclass(slots=True)
class _Marks:
    """The last message that was taken of each priority, and which kind of look is due.

    From ``whole_at_ms`` on the next look is from the beginning; none is before ``again_at_s`` of the stopwatch, however
    little is found. The present look began at ``began_s``; one that was not from the beginning took ``usual_s``, and
    the last ``dear_looks`` from there took far longer.
    """

    whole_at_ms: int = 0
    again_at_s: float = 0.0
    looks: int = 0
    is_whole: bool = False
    began_s: float = 0.0
    usual_s: float | None = None
    dear_looks: int = 0
    last: list[int] = field(default_factory=lambda: list(BEGINNING))


class LowWater:
    """The marks of one node. Standard queues alone have them: a group may come up by an instant that is long past."""

    def __init__(self, *, clock: Clock) -> None:
        """``clock`` says when to look from the beginning."""
        self._clock = clock
        self._marks: dict[int, _Marks] = {}

    def of(self, partition: int) -> list[int]:
        """Return behind what to look for messages of each priority, in the form of ``BEGINNING``."""
        marks = self._marks.get(partition)
        if marks is None:
            if len(self._marks) >= _PARTITIONS_MAX:
                self._marks.clear()
            marks = self._marks[partition] = _Marks()
        marks.began_s = stopwatch_s()
        marks.is_whole = self._clock.now_ms() >= marks.whole_at_ms and marks.began_s >= marks.again_at_s
        if marks.is_whole:
            marks.whole_at_ms = self._clock.now_ms() + _WHOLE_LOOK_MS
            return BEGINNING
        marks.looks += 1
        return _near(marks.last) if marks.looks % _LOOKS_PER_NEAR_ONE == 0 else marks.last

    def instead(self, partition: int) -> list[int] | None:
        """Return the beginning, for a look that found nothing and began elsewhere; ``None`` for no other look."""
        marks = self._marks.get(partition)
        if marks is None or marks.is_whole:
            return None
        _end(marks)
        marks.began_s = stopwatch_s()
        marks.is_whole = marks.began_s >= marks.again_at_s
        return BEGINNING if marks.is_whole else None

    def found(self, partition: int, rows: list[Any]) -> None:
        """Take note of what the look took, and of what it cost."""
        marks = self._marks.get(partition)
        if marks is None:
            return
        _end(marks)
        for priority in {row["priority"] for row in rows}:
            instant, position, now_ms = max(
                (row["was_visible_at"], row["seq"], row["now"]) for row in rows if row["priority"] == priority
            )
            marks.last[priority - 1] = instant
            marks.last[_LANES + priority - 1] = position if instant < now_ms else -1

    def known(self, partition: int) -> tuple[list[int], int | None]:
        """Return behind what anything is, and in how many ms there may be a look at what is not; ``None``: at once."""
        marks = self._marks.get(partition)
        if marks is None:
            return BEGINNING, None
        left_s = marks.again_at_s - stopwatch_s()
        return marks.last, int(left_s * SECOND_MS) + 1 if left_s > 0 else None

    def clear(self) -> None:
        """Look from the beginning everywhere: after a failover, the clock may be another one."""
        self._marks.clear()


def _end(marks: _Marks) -> None:
    """Take note of what the look cost that ends."""
    cost_s = stopwatch_s() - marks.began_s
    if not marks.is_whole:
        marks.usual_s = cost_s
        return
    marks.is_whole = False
    is_dear = marks.usual_s is not None and cost_s >= max(_DEAR_S, _DEAR_FACTOR * marks.usual_s)
    marks.dear_looks = marks.dear_looks + 1 if is_dear else 0
    marks.again_at_s = stopwatch_s() + _COSTS_PER_INTERVAL * cost_s if marks.dear_looks >= _DEAR_LOOKS else 0.0


def _near(last: list[int]) -> list[int]:
    return [max(0, instant - _LATE_MS) for instant in last[:_LANES]] + BEGINNING[_LANES:]
