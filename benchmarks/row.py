"""One row of the result: one figure, and what each server reached in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CEILING = "ceiling"
SUBJECT = "veilmq"
REASONS = ("not installed:", "failed:", "not measured")
NOT_PEERS = (CEILING, "own HTTP class", SUBJECT, "veilmq --memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`values` maps a server's name to its number in `unit`, or to the reason why there is none.

    `compare` says that a bigger number is better and that ratios between servers mean something.
    """

    figure: str
    unit: str
    values: Mapping[str, float | str]
    compare: bool = False
    note: str = ""

    def of_ceiling(self) -> float | None:
        """veilmq's share of the ceiling, 1.0 being the ceiling itself."""
        return self._ratio(SUBJECT, CEILING)

    def over_peers(self) -> Mapping[str, float]:
        """How many times as much as each peer veilmq does."""
        ratios = {name: self._ratio(SUBJECT, name) for name in self.values if name not in NOT_PEERS}
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    def _ratio(self, name: str, base: str) -> float | None:
        value, unit = self.values.get(name), self.values.get(base)
        if not self.compare or not isinstance(value, float) or not isinstance(unit, float) or unit == 0:
            return None
        return value / unit


def alone(figure: str, unit: str, value: float | str, *, note: str = "") -> Row:
    """A figure of veilmq alone, or the reason why there is none."""
    return Row(figure=figure, unit=unit, values={SUBJECT: value}, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows that were measured together, and the raw results behind them for the JSON file."""

    name: str
    rows: tuple[Row, ...]
    raw: Mapping[str, object] = field(default_factory=dict)


def failed(error: Exception) -> str:
    """The text of a cell without a figure: what failed, and the last line of it, where a traceback says why."""
    lines = str(error).splitlines() or [type(error).__name__]
    return "failed: " + " … ".join(dict.fromkeys((lines[0][:100], lines[-1][:100])))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
