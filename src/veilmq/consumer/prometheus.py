"""A running consumer's numbers for Prometheus; only ``metrics`` imports this, where prometheus-client is installed.

They are read when somebody looks, so counting costs a running handler next to nothing.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from veilmq.consumer.counts import EDGES_S, Spread
from veilmq.consumer.running import Running

_SPREADS = {
    "queue_wait": "From sending to the first receive.",
    "buffer_wait": "From receive to the start of the handler.",
    "handle_time": "In the handler.",
    "hold_time": "From receive to the confirmed settle.",
}


class Collector:
    """What ``prometheus_client`` asks at each look."""

    def __init__(self, running: Running) -> None:
        """Tell of ``running``."""
        self._running = running

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        yield from self._counters()
        yield from self._gauges()
        yield from self._histograms()

    def _counters(self) -> Iterator[Any]:
        events = CounterMetricFamily(
            "veilmq_consumer_events", "Messages by what happened to them.", labels=("queue", "handler", "event")
        )
        for runner in self._running.runners:
            labels = (runner.handler.options.queue, runner.handler.name)
            for name, count in sorted(runner.counts.events.items()):
                events.add_metric((*labels, name), count)
        yield events
        renewals = self._running.renewals
        yield CounterMetricFamily("veilmq_consumer_renew_calls", "Calls that renewed leases.", value=renewals.calls)
        entries = CounterMetricFamily(
            "veilmq_consumer_renew_entries", "Renewals by what became of them.", labels=("verdict",)
        )
        for name, count in sorted(renewals.verdicts.items()):
            entries.add_metric((name,), count)
        yield entries

    def _gauges(self) -> Iterator[Any]:
        for name, text in (("held", "In our hands."), ("working", "In handlers."), ("waiting", "Waiting for a slot.")):
            gauge = GaugeMetricFamily(f"veilmq_consumer_{name}", f"Messages: {text}", labels=("queue", "handler"))
            for runner in self._running.runners:
                gauge.add_metric((runner.handler.options.queue, runner.handler.name), getattr(runner, name))
            yield gauge

    def _histograms(self) -> Iterator[Any]:
        for name, text in _SPREADS.items():
            family = HistogramMetricFamily(f"veilmq_consumer_{name}_seconds", text, labels=("queue", "handler"))
            for runner in self._running.runners:
                labels = (runner.handler.options.queue, runner.handler.name)
                spread: Spread = getattr(runner.counts, name)
                family.add_metric(labels, buckets(spread), spread.sum_s)
            yield family
        took = self._running.renewals.took
        yield HistogramMetricFamily(
            "veilmq_consumer_renew_rtt_seconds",
            "Calls that renewed leases.",
            buckets=buckets(took),
            sum_value=took.sum_s,
        )


def buckets(spread: Spread) -> list[tuple[str, float]]:
    """Return the cumulative buckets of ``spread``, as Prometheus has them."""
    edges = [*map(str, EDGES_S), "+Inf"]
    return list(zip(edges, map(float, accumulate(spread.counts)), strict=True))
