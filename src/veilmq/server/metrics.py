"""Metrics: requests and their durations, queues, topics, and their text for Prometheus.

A request costs one look-up, one search among the bounds and two additions; names, labels and cumulative buckets are
made by ``prometheus_client`` from a snapshot when it is requested.

Counting a queue costs the store some fifty microseconds whatever its backlog. So a snapshot counts at most
``COUNTED_MAX`` queues anew, those never or longest ago counted first, a few at a time, and shows the last counts of the
others. At most ``SHOWN_MAX`` queues are shown.
"""

import asyncio
import enum
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from veilmq.core.claims import ClaimState, ListSources, ListWriters, SourceView
from veilmq.core.commands import Engine, QueueCounts, QueueView, ShowQueue
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import EventCounts
from veilmq.store.port import LATENCY_BOUNDS_S, Figure, Series, execute

COUNTED_TOGETHER = 32
COUNTED_MAX = 1_000
SHOWN_MAX = 10_000


_HELD = frozenset({ClaimState.BINDING, ClaimState.OPEN})


class ClaimCounts(NamedTuple):
    """The claims that sources of a queue hold, their messages, and since when the oldest is bound."""

    claims: int
    messages: int
    oldest_bound_at_ms: int | None


class Counted(NamedTuple):
    """What there is in a queue; ``claims`` is ``None`` where no source is open, ``staged`` without writers."""

    counts: QueueCounts
    claims: ClaimCounts | None
    staged: int | None = None


class QueueCountBook:
    """What was last counted of each queue."""

    def __init__(self, engine: Engine) -> None:
        """Ask ``engine``; nothing is known yet."""
        self._engine = engine
        self._counts: dict[str, Counted] = {}  # in the order in which they were counted

    async def look(self, names: list[str]) -> list[tuple[str, Counted]]:
        """Return the counts of the queues ``names``, those that are known; one that was deleted is left out."""
        shown = dict.fromkeys(names[:SHOWN_MAX])
        self._counts = {name: counts for name, counts in self._counts.items() if name in shown}
        due = [name for name in shown if name not in self._counts]
        due += self._counts
        for first in range(0, min(len(due), COUNTED_MAX), COUNTED_TOGETHER):
            await self._count(due[first : min(first + COUNTED_TOGETHER, COUNTED_MAX)])
        return [(name, self._counts[name]) for name in shown if name in self._counts]

    async def _count(self, names: list[str]) -> None:
        counts = [execute(self._engine, ShowQueue(queue=name, counts=True)) for name in names]
        counts += [execute(self._engine, ListSources(queue=name)) for name in names]
        counts += [execute(self._engine, ListWriters(queue=name)) for name in names]
        answers = await asyncio.gather(*counts, return_exceptions=True)
        views, sources, writers = (answers[first : first + len(names)] for first in range(0, len(answers), len(names)))
        for name, *found in zip(names, views, sources, writers, strict=True):
            self._counts.pop(name, None)
            counted = _counted(*found)
            if counted is not None:
                self._counts[name] = counted


def _counted(view: Any, sources: Any, writers: Any) -> Counted | None:
    """Return what three answers say together, ``None`` where the queue was deleted meanwhile."""
    if not isinstance(view, QueueView) or view.counts is None:
        return None
    return Counted(
        counts=view.counts,
        claims=claim_counts(sources) if isinstance(sources, list) else None,
        staged=sum(writer.staged for writer in writers) if isinstance(writers, list) and writers else None,
    )


def claim_counts(sources: Sequence[SourceView]) -> ClaimCounts | None:
    """Return what ``sources`` hold together, ``None`` without any."""
    if not sources:
        return None
    held = [claim for source in sources for claim in source.claims if claim.state in _HELD]
    return ClaimCounts(
        claims=len(held),
        messages=sum(claim.messages for claim in held),
        oldest_bound_at_ms=min((claim.bound_at_ms for claim in held), default=None),
    )


class PushOutcome(enum.Enum):
    """How an attempt to push a message ended."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    """Another try follows."""
    GIVEN_UP = "given_up"
    """It was the last one: the message is gone."""


class TopicCounts:
    """The counters of one server."""

    def __init__(self) -> None:
        """Begin with none."""
        self.pushes = dict.fromkeys(PushOutcome, 0)
        self.pushes_running = 0
        self.undeliverable = 0


class Metrics:
    """The counters of one server, by action and code: ``OK`` or the name of the error."""

    def __init__(self) -> None:
        """Begin with no series."""
        self._series: dict[tuple[str, str], Series] = {}

    def count(self, action: str, code: str, seconds: float) -> None:
        """Count one answered request; ``action`` and ``code`` are of closed sets."""
        series = self._series.get((action, code))
        if series is None:
            series = self._series[action, code] = Series()
        series.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        series.seconds += seconds

    def copy(self) -> "Metrics":
        """Return the counters as they are now."""
        copied = Metrics()
        for name, series in self._series.items():
            copied._series[name] = series.copy()
        return copied

    def series(self) -> Iterable[tuple[str, str, Series]]:
        """Yield action, code and what was counted, in order."""
        for action, code in sorted(self._series):
            yield action, code, self._series[action, code]


_BOUNDS = (*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf")
_NAMESPACE = "veilmq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One instant of a server; ``queues`` has the full name and what was counted of each that is shown.

    What the store did not return, as it cannot be reached, is ``None``.
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
    in_flight = _family("queue_messages_in_flight", "Messages that were received and not deleted.")
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
