"""Recommendations: what the statistics say about one queue or one routing key, with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from veilmq.pipeline.finding import Quantile
from veilmq.pipeline.rates import Rates


class Confidence(StrEnum):
    """How far a recommendation can be trusted.

    ``high``: the quantile is seen below the longest timeout in force, and known to 10 %. ``medium``: it is known less
    well, or only through late deletes. ``low``: it is the queue's, for a key with few receipts. ``none``: there is no
    recommendation.
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

    ``recommended_s`` is ``None`` when nothing can be said; ``explore_s`` is then a longer timeout that would show more.
    ``change`` is whether the gain is worth it. Costs are for each message, ``None`` where unknown.
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
    confidence: Confidence
    change: bool
    reason: str

    @property
    def gain(self) -> float:
        """The share of the current cost that the recommended timeout saves; 0 where unknown."""
        if not self.cost_current or self.cost_recommended is None:
            return 0.0
        return 1.0 - self.cost_recommended / self.cost_current
