"""Options of the statistics."""

from dataclasses import dataclass

from veilmq.pipeline.cost import Prices

DEFAULT_PRICES = Prices()


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options of the estimates and recommendations.

    ``quantile`` is reported, and must be identifiable for a recommendation. The weight of a receipt halves every
    ``half_life_days``. ``prior`` is the number of receipts of the queue that a key without receipts borrows.
    ``gain_min`` is the share of the cost that a change must save. ``receives_max`` is the default for queues without
    that setting.
    """

    quantile: float = 0.99
    half_life_days: float = 7.0
    prior: float = 30.0
    prices: Prices = DEFAULT_PRICES
    gain_min: float = 0.10
    receives_max: int = 5

    @property
    def receipts_min(self) -> int:
        """The number of first receipts required for the quantile: 3 / (1 − p), so that three lie beyond it."""
        return round(3.0 / (1.0 - self.quantile))
