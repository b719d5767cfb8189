"""Recommendations for a queue or a routing key, with their reasons."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from veilmq.pipeline.estimate import Quantile, Rates


class Confidence(StrEnum):
    """The confidence of a recommendation, or of keeping the current timeout.

    ``high``: the timeout costs little more than the best one in nearly all draws, and the quantile is known to 10 %.
    ``medium``: the quantile is known less precisely, or only by late deletes, or crashes only by a plateau. ``low``: it
    may cost more, or the key borrows receipts of its queue. ``none``: no statement is possible.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """Settings of a queue: its timeout, and the maximum number of receives of a message (0: unlimited).

    ``full_name`` is the name in the event log, ``account/name``; empty matches every account.
    """

    visibility_timeout_s: int
    receives_max: int = 0
    full_name: str = ""


def plain_name(queue: str) -> str:
    """Return the name of ``queue`` without its account."""
    return queue.rpartition("/")[2]


def facts_for(facts: Mapping[str, QueueFacts], queue: str) -> QueueFacts | None:
    """Return the entry of ``facts`` (by plain name) for ``queue``; ``None`` if it belongs to another account."""
    found = facts.get(plain_name(queue))
    return found if found is not None and found.full_name in {"", queue} else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The recommendation for a queue (``key`` is ``None``) or one of its routing keys; durations in seconds.

    ``recommended_s`` is ``None`` if the current timeout should be kept, or if no statement is possible (``confidence``
    is then ``none``). ``explore_s`` is a longer timeout that would provide more data. ``change`` is whether the gain is
    large enough. Costs are per message, ``None`` if unknown; ``cost_current_lower`` and ``cost_recommended_upper`` are
    95 % bounds, and for a recommendation the second is below the first.
    """

    queue: str
    key: str | None
    receipts: float
    first_receipts: float
    quantile: Quantile
    rates: Rates
    renewal_s: float | None
    longest_s: float
    current_s: int
    recommended_s: int | None
    explore_s: int | None
    cost_current: float | None
    cost_recommended: float | None
    cost_current_lower: float | None
    cost_recommended_upper: float | None
    crash_lower: float
    crash_upper: float
    confidence: Confidence
    change: bool
    reason: str

    @property
    def keeps(self) -> bool:
        """Whether the current timeout should be kept."""
        return self.recommended_s is None and self.confidence is not Confidence.NONE

    @property
    def gain(self) -> float:
        """The share of the current cost that the recommended timeout saves; 0 if unknown."""
        if not self.cost_current or self.cost_recommended is None:
            return 0.0
        return 1.0 - self.cost_recommended / self.cost_current
