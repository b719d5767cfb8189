"""Options of the statistics."""

from dataclasses import dataclass

from veilmq.pipeline.cost import Prices

DEFAULT_PRICES = Prices()


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """How the statistics are made.

    ``quantile`` is the one that is reported and that decides whether anything can be said. Receipts count half after
    ``half_life_days``. ``prior`` is how many receipts of the whole queue are lent to a key that has none of its own.
    ``gain_min`` is the share of the cost that a change must save. ``receives_max`` is taken where the queue's is not
    known.
    """

    quantile: float = 0.99
    half_life_days: float = 7.0
    prior: float = 30.0
    prices: Prices = DEFAULT_PRICES
    gain_min: float = 0.10
    receives_max: int = 5

    @property
    def receipts_min(self) -> int:
        """How many first receipts the quantile needs: 3 / (1 − p), so that three of them lie beyond it."""
        return round(3.0 / (1.0 - self.quantile))
