"""The table of a forwarder's metrics: every name, what it says, and where it is read."""

from collections.abc import Callable, Iterator
from functools import partial

from veilmq.consumer.metrics import Kind, Labels, Metric
from veilmq.forwarding.tally import Totals

NO_RULE = "default"
"""The label of what no rule held of."""

_PREFIX = "veilmq_forward_"


def figures(intake: str, totals: Callable[[], Totals]) -> list[Metric]:
    """Return the metrics of the forwarder of ``intake``, which ``totals`` are read from."""
    single: dict[str, tuple[str, Callable[[Totals], int]]] = {
        "received": ("Messages received from the intake.", lambda found: found.received),
        "retried": ("Of them, those that had been received before.", lambda found: found.again),
        "unmatched": ("Messages forwarded to the default queue, as no rule held.", _unmatched),
        "gone": ("Messages that were in the intake no more.", lambda found: found.gone),
    }
    return [
        *(_metric(name, text, (), partial(_one, intake, totals, of)) for name, (text, of) in single.items()),
        _metric("forwarded", "Messages forwarded.", ("queue", "rule"), partial(_routed, intake, totals)),
        _metric("failed", "Attempts after which a message stayed.", ("reason",), partial(_stayed, intake, totals)),
    ]


def _metric(name: str, text: str, labels: Labels, read: Callable[[], Iterator[tuple[Labels, int]]]) -> Metric:
    return Metric(name=_PREFIX + name, kind=Kind.COUNTER, text=text, labels=("intake", *labels), read=read)


def _one(intake: str, totals: Callable[[], Totals], of: Callable[[Totals], int]) -> Iterator[tuple[Labels, int]]:
    yield (intake,), of(totals())


def _routed(intake: str, totals: Callable[[], Totals]) -> Iterator[tuple[Labels, int]]:
    for (queue, rule), count in totals().routed.items():
        yield (intake, queue, NO_RULE if rule is None else rule), count


def _stayed(intake: str, totals: Callable[[], Totals]) -> Iterator[tuple[Labels, int]]:
    for reason, count in totals().stayed.items():
        yield (intake, reason), count


def _unmatched(totals: Totals) -> int:
    return sum(count for (_, rule), count in totals.routed.items() if rule is None)
