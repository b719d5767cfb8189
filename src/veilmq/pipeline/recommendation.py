"""Recommendations: what the statistics say about one queue or one routing key, with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from veilmq.pipeline.estimate import Quantile, Rates


class Confidence(StrEnum):
    """How far a recommendation, or the advice to keep a timeout, can be trusted.

    ``high``: it costs little more than the best in all that the receipts leave open, and the quantile is known to 10 %.
    ``medium``: the quantile is known less well, or only by late deletes, or crashes only by a plateau. ``low``: it may
    cost more, or the queue stands in for a key with few receipts. ``none``: nothing can be said.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """What the queue itself says: its timeout, and how often a message is received (0: as often as it takes).

    ``full_name`` is that of the event log, ``account/name``; empty when it does not matter.
    """

    visibility_timeout_s: int
    receives_max: int = 0
    full_name: str = ""


def plain_name(queue: str) -> str:
    """Return the name of ``queue`` without its account."""
    return queue.rpartition("/")[2]


def facts_for(facts: Mapping[str, QueueFacts], queue: str) -> QueueFacts | None:
    """Return what ``facts``, by plain names, has about ``queue``, and not about one of the same name elsewhere."""
    found = facts.get(plain_name(queue))
    return found if found is not None and found.full_name in {"", queue} else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What one queue (``key`` is ``None``) or one of its routing keys should have; durations in seconds.

    ``recommended_s`` is ``None`` where the timeout is to be kept, or nothing can be said (``confidence`` is then
    ``none``); ``explore_s`` is a longer timeout that would show more. ``change`` is whether the gain is worth it. Costs
    are for each message, ``None`` where unknown: ``cost_current_lower`` and ``cost_recommended_upper`` are bounds at
    95 %, and an advice lies with the second below the first.
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
        """Whether the timeout is to be kept."""
        return self.recommended_s is None and self.confidence is not Confidence.NONE

    @property
    def gain(self) -> float:
        """The share of the current cost that the recommended timeout saves; 0 where unknown."""
        if not self.cost_current or self.cost_recommended is None:
            return 0.0
        return 1.0 - self.cost_recommended / self.cost_current
