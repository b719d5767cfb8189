"""Options of the jobs that evaluate receipts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.options import read_by
from veilmq.client import Unreachable

if TYPE_CHECKING:
    from veilmq.pipeline.cost import TuneOptions
    from veilmq.pipeline.tune import QueueFacts


def _within(low: float, high: float) -> Parameter:
    """Return the parameter of a number between two bounds, both exclusive."""

    def read(text: str) -> float:
        if not low < (number := float(text)) < high:  # also rejects NaN
            raise ValueError(text)
        return number

    allowed = f"a number, more than {low:g} and less than {high:g}"
    return Parameter(converter=read_by(read, allowed=allowed), metavar="X", negative=())


_ENDLESS = 1e9


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsOptions:
    """Options of the statistics; ``docs/pipeline.md`` explains them."""

    quantile: Annotated[
        float, _within(0.5, 0.9999), Parameter(help="Quantile of the work by which timeouts are judged.")
    ] = 0.99
    half_life: Annotated[
        float, _within(0, 3_650), Parameter(help="Days after which the weight of a receipt halves.")
    ] = 7.0
    gain_min: Annotated[float, _within(0, 1), Parameter(help="Share of the cost that a change must save.")] = 0.10
    price_work: Annotated[float, _within(0, _ENDLESS), Parameter(help="Cost of a second of wasted work.")] = 1.0
    price_wait: Annotated[float, _within(0, _ENDLESS), Parameter(help="Cost of a second of waiting after a crash.")] = (
        1.0
    )
    price_dead_letter: Annotated[float, _within(0, _ENDLESS), Parameter(help="Cost of a false dead letter.")] = 60.0

    def values(self) -> "TuneOptions":
        """Return the options of the jobs."""
        from veilmq.pipeline.cost import Prices, TuneOptions

        prices = Prices(work=self.price_work, wait=self.price_wait, dead_letter=self.price_dead_letter)
        return TuneOptions(quantile=self.quantile, half_life_days=self.half_life, gain_min=self.gain_min, prices=prices)


def facts(endpoint: str, *, needed: bool = False) -> dict[str, "QueueFacts"]:
    """Return the settings of all queues; none if the server does not answer, unless they are ``needed``."""
    from veilmq.pipeline.tune import facts_of

    with connect(endpoint) as client:
        try:
            return facts_of(client, client.list_queues())
        except Unreachable:
            if needed:
                raise
            return {}
