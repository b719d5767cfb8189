"""Metrics of requests, queues and topics, and their Prometheus text.

A request costs one dict look-up, one bisection and two additions; ``prometheus_client`` makes names, labels and
cumulative buckets when metrics are scraped.

Counting a queue costs the store some fifty microseconds. So a scrape counts at most ``COUNTED_MAX`` queues, some at a
time, those never or longest ago counted first, and reuses the last counts of the others. At most ``SHOWN_MAX`` queues
are shown.
"""

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, metrics_core
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from veilmq.core.commands import Engine, QueueCounts, QueueView
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import EventCounts
from veilmq.server.settings import ServerSettings
from veilmq.store.port import LATENCY_BOUNDS_S, CountQueues, Histogram, Metric, Survey, counter, execute, gauge

COUNT_BATCH = 100
COUNTED_MAX = 1_000
SHOWN_MAX = 10_000


class CountedQueue(NamedTuple):
    """The counts of a queue; ``claims`` and ``staged`` as in ``Survey``, ``None`` without sources and writers."""

    counts: QueueCounts
    claims: Sequence[Any] | None = None
    staged: int | None = None
    in_flight_max: int | None = None
    dead_letter_queue: str = ""


class QueueCountCache:
    """The last counts of each queue; ``settings`` have the default quotas."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._quotas = {False: settings.in_flight_max, True: settings.fifo_in_flight_max}
        self._views: dict[str, QueueView] = {}  # least recently counted first

    async def inspect(self, survey: Survey) -> list[tuple[str, CountedQueue]]:
        """Return the known counts of the queues of ``survey``; deleted queues are omitted."""
        shown = dict.fromkeys(survey.names)
        self._views = {name: view for name, view in self._views.items() if name in shown}
        due = [*(name for name in shown if name not in self._views), *self._views][:COUNTED_MAX]
        batches = [due[first : first + COUNT_BATCH] for first in range(0, len(due), COUNT_BATCH)]
        for names in batches:
            views: list[QueueView] = []
            try:
                views = await execute(self._engine, CountQueues(names=names))
            except VeilmqError:
                batches += [[name] for name in names] if len(names) > 1 else []  # the others are counted alone
            for name in names:
                self._views.pop(name, None)
            self._views |= {view.queue: view for view in views}
        return [(name, self._counted(self._views[name], survey)) for name in shown if name in self._views]

    def _counted(self, view: QueueView, survey: Survey) -> CountedQueue:
        assert view.counts is not None, "requested with counts"
        claims, staged, settings = survey.claims.get(view.queue), survey.staged.get(view.queue), view.settings
        quota = self._quotas[settings.fifo] if settings.in_flight_max is None else settings.in_flight_max
        return CountedQueue(view.counts, claims, staged, quota, settings.dead_letter_queue)


class PushOutcome(enum.Enum):
    """How an attempt to push a message ended; ``FAILED`` is retried."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    GIVEN_UP = "given_up"


class TopicCounts:
    """Counters of pushes, and of messages that did not reach a subscription."""

    def __init__(self) -> None:
        self.pushes = dict.fromkeys(PushOutcome, 0)
        self.pushes_running = 0
        self.undeliverable = 0

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics."""
        pushes = {outcome.value: count for outcome, count in self.pushes.items()}
        text = "Attempts to push a message of a topic to a URL, by outcome."
        yield Metric("pushes", text, "counter", pushes, "outcome")
        yield gauge("pushes_running", "Pushes that wait for a reply.", self.pushes_running)
        text = "Messages of topics that a subscribed queue did not get, because it did not exist or refused them."
        yield counter("topic_messages_undeliverable", text, self.undeliverable)


class Metrics:
    """The request counters of a server by action and code (``OK`` or the name of the error)."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Histogram] = {}

    def count(self, action: str, code: str, seconds: float) -> None:
        """Count one answered request; ``action`` and ``code`` are from closed sets."""
        series = self._series.get((action, code))
        if series is None:
            series = self._series[action, code] = Histogram()
        series.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        series.seconds += seconds

    def series(self) -> list[tuple[str, str, Histogram]]:
        """Return action, code and a copy of each series, sorted."""
        return [(*name, self._series[name].copy()) for name in sorted(self._series)]


_BOUNDS = (*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf")
_FAMILIES: dict[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "durations": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Page:
    """Collector for ``prometheus_client``: ``requests``, as returned by ``Metrics.series``, and other metrics."""

    requests: Sequence[tuple[str, str, Histogram]]
    metrics: Sequence[Metric]

    def collect(self) -> Iterator[metrics_core.Metric]:
        labels, text = ["action", "code"], "Time from the complete request to its reply, with the wait of long polls."
        requests = CounterMetricFamily("veilmq_requests", "Requests answered, by action and code.", labels=labels)
        durations = HistogramMetricFamily("veilmq_request_duration_seconds", text, labels=labels)
        for action, code, series in self.requests:
            requests.add_metric([action, code], series.count)
            durations.add_metric([action, code], _buckets(series), sum_value=series.seconds)
        yield from (requests, durations)
        for metric in self.metrics:
            labels = [metric.label] if metric.label else []
            family: Any = _FAMILIES[metric.kind](f"veilmq_{metric.name}", metric.text, labels=labels)
            for label, value in metric.samples.items():
                values = [label] if labels else []
                if isinstance(value, Histogram):
                    family.add_metric(values, _buckets(value), sum_value=value.seconds)
                else:
                    family.add_metric(values, value)
            yield family


def exposition(requests: Sequence[tuple[str, str, Histogram]], metrics: Sequence[Metric]) -> bytes:
    """Return ``requests``, ``metrics`` and process metrics as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(requests, metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def queue_metrics(queues: Sequence[tuple[str, CountedQueue]], now_ms: int) -> Iterator[Metric]:
    """Yield the metrics of queues, labelled with full names."""
    for name, kind, text, value_of in _BY_QUEUE:
        samples = {queue: value_of(counted, now_ms) for queue, counted in queues}
        known = {queue: value for queue, value in samples.items() if value is not None}
        yield Metric(f"queue_{name}", text, kind, known, "queue")
    sources = Counter(counted.dead_letter_queue for _, counted in queues if counted.dead_letter_queue)
    yield Metric("queue_dead_letter_sources", "Queues that use it as dead-letter queue.", "gauge", sources, "queue")


def event_metrics(events: EventCounts) -> Iterator[Metric]:
    """Yield the metrics of an event log."""
    yield counter("events_recorded", "Events recorded by the event log of this store.", events.recorded)
    yield counter("events_exported", "Events exported from it.", events.exported)
    yield counter("events_dropped", "Events dropped for lack of room.", events.dropped)
    yield gauge("events_waiting", "Events that wait to be exported.", events.waiting)


_BY_QUEUE: tuple[tuple[str, Literal["gauge", "counter"], str, Callable[[CountedQueue, int], float | None]], ...] = (
    ("messages_visible", "gauge", "Messages that can be received.", lambda it, now_ms: it.counts.visible),
    ("messages_in_flight", "gauge", "Messages that were received and not deleted.", lambda it, _: it.counts.in_flight),
    ("in_flight_max", "gauge", "Messages that may be in flight at once.", lambda it, _: it.in_flight_max),
    ("messages_delayed", "gauge", "Messages whose delay has not ended.", lambda it, _: it.counts.delayed),
    ("oldest_message_age_seconds", "gauge", "Age of the oldest message that is not deleted; 0 if there is none.",
     lambda it, now_ms: _age_s(it.counts.oldest_sent_at_ms, now_ms)),
    ("redeliveries", "counter", "Receives of messages that had been received before, since the server's start.",
     lambda it, _: it.counts.redelivered),
    ("messages_sent", "counter",
     "Messages that were sent to the queue, except dead letters, since the server's start.",
     lambda it, _: it.counts.sent),
    ("messages_received", "counter",
     "Messages given by receives or bound by claims, each time, since the server's start.",
     lambda it, _: it.counts.received),
    ("messages_deleted", "counter", "Messages deleted by receipts, forwards or claims, since the server's start.",
     lambda it, _: it.counts.deleted),
    ("claims_held", "gauge", "Claims that are not acknowledged, lost or released.",
     lambda it, _: None if it.claims is None else it.claims[0]),
    ("messages_claimed", "gauge", "Messages in held claims; they are also in flight.",
     lambda it, _: None if it.claims is None else it.claims[1]),
    ("oldest_claim_age_seconds", "gauge", "Time since the oldest held claim was bound; 0 if there is none.",
     lambda it, now_ms: None if it.claims is None else _age_s(it.claims[2], now_ms)),
    ("messages_staged", "gauge", "Messages staged by writers and not published; they are in no queue yet.",
     lambda it, _: it.staged),
)  # fmt: skip
"""Name, kind and text of a metric, and its value for a queue; ``None`` if the queue has none."""


def _age_s(since_ms: int | None, now_ms: int) -> float:
    return 0.0 if since_ms is None else max(0, now_ms - since_ms) / SECOND_MS


def _buckets(series: Histogram) -> list[tuple[str, int]]:
    return list(zip(_BOUNDS, accumulate(series.buckets), strict=True))
