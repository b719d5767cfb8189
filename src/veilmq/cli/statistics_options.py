"""Options of the jobs that reckon with what became of receipts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.options import read_by
from veilmq.client import Unreachable

if TYPE_CHECKING:
    from veilmq.pipeline.recommendation import QueueFacts
    from veilmq.pipeline.tune_options import TuneOptions


def _within(low: float, high: float) -> Parameter:
    """Return a rule for a number between two bounds that it may not reach."""

    def read(text: str) -> float:
        if not low < (number := float(text)) < high:  # which holds of no NaN
            raise ValueError(text)
        return number

    allowed = f"a number, more than {low:g} and less than {high:g}"
    return Parameter(converter=read_by(read, allowed=allowed), metavar="X", negative=())


_ENDLESS = 1e9


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsOptions:
    """How the statistics are made; ``docs/pipeline.md`` explains each of them."""

    quantile: Annotated[
        float, _within(0.5, 0.9999), Parameter(help="The share of work that timeouts are judged by.")
    ] = 0.99
    half_life: Annotated[
        float, _within(0, 3_650), Parameter(help="Days after which a receipt counts half as much.")
    ] = 7.0
    gain_min: Annotated[
        float, _within(0, 1), Parameter(help="The share of the cost that a change must save to be made.")
    ] = 0.10
    price_work: Annotated[float, _within(0, _ENDLESS), Parameter(help="What a second of work done in vain costs.")] = (
        1.0
    )
    price_wait: Annotated[
        float, _within(0, _ENDLESS), Parameter(help="What a second of waiting after a crash costs.")
    ] = 1.0
    price_dead_letter: Annotated[
        float, _within(0, _ENDLESS), Parameter(help="What a dead letter costs that was none.")
    ] = 60.0

    def values(self) -> "TuneOptions":
        """Return them as the jobs take them."""
        from veilmq.pipeline.cost import Prices
        from veilmq.pipeline.tune_options import TuneOptions

        prices = Prices(work=self.price_work, wait=self.price_wait, dead_letter=self.price_dead_letter)
        return TuneOptions(quantile=self.quantile, half_life_days=self.half_life, gain_min=self.gain_min, prices=prices)


def facts(endpoint: str, *, needed: bool = False) -> dict[str, "QueueFacts"]:
    """Ask the server what its queues are set to; without an answer nothing is known, unless it is ``needed``."""
    from veilmq.pipeline.applying import facts_of

    with connect(endpoint) as client:
        try:
            return facts_of(client, client.list_queues())
        except Unreachable:
            if needed:
                raise
            return {}
