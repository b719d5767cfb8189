"""The counters in Prometheus' text format, made by ``prometheus_client`` from one snapshot when somebody asks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from veilmq.core.events import EventCounts
from veilmq.core.limits import SECOND_MS
from veilmq.server.metrics import Metrics
from veilmq.server.queue_counts import Counted
from veilmq.server.topic_counts import TopicCounts
from veilmq.store.port import LATENCY_BOUNDS_S, Figure, Series

_BOUNDS = (*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf")
_NAMESPACE = "veilmq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One instant of a server; ``queues`` has the full name and what was counted of each that is told of.

    What the store did not tell, as it cannot be reached, is ``None``.
    """

    metrics: Metrics
    queues: Sequence[tuple[str, Counted]]
    queues_in_all: int | None
    now_ms: int
    parked_polls: int
    open_connections: int
    events: EventCounts | None
    event_export_failures: int
    topics: TopicCounts = field(default_factory=TopicCounts)
    store: Sequence[Figure] = ()
    http_bytes: Mapping[str, int] = field(default_factory=dict)


def exposition(snapshot: Snapshot) -> bytes:
    """Return ``snapshot``, and what the process uses, as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from _requests(self._snapshot.metrics)
        yield from _queues(self._snapshot)
        yield from _claims(self._snapshot)
        yield _staged(self._snapshot)
        yield from _events(self._snapshot)
        yield from _topics(self._snapshot.topics)
        yield from map(_of_store, self._snapshot.store)
        if self._snapshot.queues_in_all is not None:
            yield _gauge("queues", "Queues that there are.", self._snapshot.queues_in_all)
        yield _gauge("long_polls_parked", "Receives and claims that wait for a message.", self._snapshot.parked_polls)
        yield _gauge("connections_open", "Connections of clients.", self._snapshot.open_connections)
        yield _http_bytes(self._snapshot.http_bytes)


def _http_bytes(held: Mapping[str, int]) -> Metric:
    text = "Bytes of large request bodies and of answers that clients do not read, of http_bytes_max."
    family = GaugeMetricFamily(f"{_NAMESPACE}_http_bytes", text, labels=["what"])
    for what, size_bytes in held.items():
        family.add_metric([what], size_bytes)
    return family


def _requests(metrics: Metrics) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        f"{_NAMESPACE}_requests", "Requests answered, by action and code.", labels=["action", "code"]
    )
    durations = HistogramMetricFamily(
        f"{_NAMESPACE}_request_duration_seconds",
        "From the whole request to its reply; the waiting of long polls included.",
        labels=["action", "code"],
    )
    for action, code, series in metrics.series():
        labels = [action, code]
        requests.add_metric(labels, series.count)
        durations.add_metric(labels, _buckets(series), sum_value=series.seconds)
    yield requests
    yield durations


def _buckets(series: Series) -> list[tuple[str, int]]:
    return list(zip(_BOUNDS, accumulate(series.buckets), strict=True))


def _of_store(figure: Figure) -> Metric:
    name, labels = f"{_NAMESPACE}_{figure.name}", [figure.label] if figure.label else []
    family: Any = _FAMILIES[figure.kind](name, figure.text, labels=labels)
    for label, value in figure.samples.items():
        values = [label] if labels else []
        if isinstance(value, Series):
            family.add_metric(values, _buckets(value), sum_value=value.seconds)
        else:
            family.add_metric(values, value)
    made: Metric = family
    return made


_FAMILIES: dict[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "durations": HistogramMetricFamily,
}


def _queues(snapshot: Snapshot) -> Iterator[Metric]:
    visible = _family("queue_messages_visible", "Messages that can be received.")
    in_flight = _family("queue_messages_in_flight", "Messages that somebody has received and not deleted.")
    delayed = _family("queue_messages_delayed", "Messages whose delay has not ended.")
    oldest = _family("queue_oldest_message_age_seconds", "Age of the oldest message not deleted; 0 without any.")
    redelivered = _total("queue_redeliveries", "Receives of messages that had been received before")
    totals = {
        "sent": _total("queue_messages_sent", "Messages that were sent here, in any way but as dead letters"),
        "received": _total("queue_messages_received", "Messages given by receives or bound by claims, each time"),
        "deleted": _total("queue_messages_deleted", "Messages deleted by those who had them"),
    }
    for queue, (counts, *_) in snapshot.queues:
        sent_at_ms = snapshot.now_ms if counts.oldest_sent_at_ms is None else counts.oldest_sent_at_ms
        visible.add_metric([queue], counts.visible)
        in_flight.add_metric([queue], counts.in_flight)
        delayed.add_metric([queue], counts.delayed)
        oldest.add_metric([queue], max(0, snapshot.now_ms - sent_at_ms) / SECOND_MS)
        redelivered.add_metric([queue], counts.redelivered)
        for name, total in totals.items():
            total.add_metric([queue], getattr(counts, name))
    yield from (visible, in_flight, delayed, oldest, redelivered, *totals.values())


def _claims(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield what sources hold, of those queues that have any."""
    claims = _family("queue_claims_held", "Claims that are not acknowledged, lost or released.")
    messages = _family("queue_messages_claimed", "Messages in claims that are held; they are in flight, too.")
    oldest = _family("queue_oldest_claim_age_seconds", "Time since the oldest claim held was bound; 0 without any.")
    for queue, (_, held, _) in snapshot.queues:
        if held is None:
            continue
        bound_at_ms = snapshot.now_ms if held.oldest_bound_at_ms is None else held.oldest_bound_at_ms
        claims.add_metric([queue], held.claims)
        messages.add_metric([queue], held.messages)
        oldest.add_metric([queue], max(0, snapshot.now_ms - bound_at_ms) / SECOND_MS)
    yield from (claims, messages, oldest)


def _staged(snapshot: Snapshot) -> Metric:
    """Return what writers have staged, of those queues that have any."""
    staged = _family("queue_messages_staged", "Messages staged by writers and not published; they are in no queue yet.")
    for queue, counted in snapshot.queues:
        if counted.staged is not None:
            staged.add_metric([queue], counted.staged)
    return staged


def _events(snapshot: Snapshot) -> Iterator[Metric]:
    counts = snapshot.events
    yield _counter("event_export_failures", "Exports that failed; another try follows.", snapshot.event_export_failures)
    if counts is None:
        return
    yield _counter("events_recorded", "Events that the event log of this store has had.", counts.recorded)
    yield _counter("events_exported", "Events that were exported from it.", counts.exported)
    yield _counter("events_dropped", "Events that there was no room for.", counts.dropped)
    yield _gauge("events_waiting", "Events that wait to be exported.", counts.waiting)


def _topics(counts: TopicCounts) -> Iterator[Metric]:
    pushes = CounterMetricFamily(
        f"{_NAMESPACE}_pushes", "Attempts to push a message of a topic to a URL, by outcome.", labels=["outcome"]
    )
    for outcome, count in counts.pushes.items():
        pushes.add_metric([outcome.value], count)
    yield pushes
    yield _gauge("pushes_running", "Pushes that wait for an answer.", counts.pushes_running)
    yield _counter(
        "topic_messages_undeliverable",
        "Messages of topics that a subscribed queue did not get, as it was gone or refused them.",
        counts.undeliverable,
    )


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{_NAMESPACE}_{name}", text, value=value)


def _total(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{_NAMESPACE}_{name}", f"{text}, since the server's start.", labels=["queue"])


def _family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_NAMESPACE}_{name}", text, labels=["queue"])


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_NAMESPACE}_{name}", text, value=value)
