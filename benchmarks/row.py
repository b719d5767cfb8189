"""A row of the result: one figure for each server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

CEILING = "ceiling"
SUBJECT = "veilmq"
REASONS = ("not installed:", "failed:", "not measured")
NOT_PEERS = (CEILING, "own HTTP class", SUBJECT, "veilmq --memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`values` maps a server's name to its number in `unit`, or to the reason why there is none.

    `compare`: a larger number is better, and ratios between servers are meaningful.
    """

    figure: str
    unit: str
    values: Mapping[str, float | str]
    compare: bool = False
    note: str = ""

    def of_ceiling(self) -> float | None:
        """Return veilmq's share of the ceiling (1.0)."""
        return self._ratio(SUBJECT, CEILING)

    def over_peers(self) -> Mapping[str, float]:
        """Return veilmq ÷ each peer."""
        ratios = {name: self._ratio(SUBJECT, name) for name in self.values if name not in NOT_PEERS}
        return {name: ratio for name, ratio in ratios.items() if ratio is not None}

    def _ratio(self, name: str, base: str) -> float | None:
        value, unit = self.values.get(name), self.values.get(base)
        if not self.compare or not isinstance(value, float) or not isinstance(unit, float) or unit == 0:
            return None
        return value / unit


def alone(figure: str, unit: str, value: float | str, *, note: str = "") -> Row:
    """Return a row with a figure of veilmq only, or the reason why there is none."""
    return Row(figure=figure, unit=unit, values={SUBJECT: value}, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows that were measured together, and their raw results for the JSON file."""

    name: str
    rows: tuple[Row, ...]
    raw: Mapping[str, object] = field(default_factory=dict)


def failed(error: Exception) -> str:
    """Return the text of a cell without a figure: first and last line of the failure (the cause, in a traceback)."""
    lines = str(error).splitlines() or [type(error).__name__]
    return "failed: " + " … ".join(dict.fromkeys((lines[0][:100], lines[-1][:100])))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
