"""The table of a running consumer's metrics: every name, what it says, and where it is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from veilmq.consumer.counts import Spread
from veilmq.consumer.metrics import Kind, Labels, Metric
from veilmq.consumer.policies import Measured, Policy
from veilmq.consumer.runner import Runner
from veilmq.consumer.running import Running

_PREFIX = "veilmq_consumer_"
_HANDLER = ("queue", "handler")

_SPREADS = {
    "queue_wait": "From sending to the first receive.",
    "buffer_wait": "From receive to the start of the handler.",
    "handle_time": "In the handler.",
    "hold_time": "From receive to the confirmed settle.",
}


def figures(running: Running) -> list[Metric]:
    """Return the metrics of ``running``."""
    runners = running.runners
    renewals = running.renewals
    return [
        _metric("events", Kind.COUNTER, "Messages by what happened to them.", (*_HANDLER, "event"), _events, runners),
        *(_metric(name, Kind.GAUGE, text, _HANDLER, _gauge, runners, of) for name, (text, of) in _GAUGES.items()),
        *(
            _metric(f"{name}_seconds", Kind.HISTOGRAM, text, _HANDLER, _spread, runners, name)
            for name, text in _SPREADS.items()
        ),
        _metric("renew_calls", Kind.COUNTER, "Calls that renewed leases.", (), lambda: [((), renewals.calls)]),
        _metric(
            "renew_entries", Kind.COUNTER, "Renewals by what became of them.", ("verdict",), _by, renewals.verdicts
        ),
        _metric("renew_errors", Kind.COUNTER, "Renewals that failed, by why.", ("class",), _by, renewals.errors),
        _metric("renew_rtt_seconds", Kind.HISTOGRAM, "Calls that renewed leases.", (), _one, renewals.took),
        _metric("timer_lateness_seconds", Kind.HISTOGRAM, "From due to renewing.", (), _one, renewals.lateness),
        _metric(
            "margin_at_renewal_seconds", Kind.HISTOGRAM, "Left of the lease at renewing.", (), _one, renewals.margin
        ),
    ]


def lease_length_s(runner: Runner) -> float | None:
    """Return the length of a lease that began now; ``None`` until the first receive, where the queue decides."""
    subscription = runner.subscription
    return subscription.policy.receive_timeout_s(subscription.measured) or runner.lease_s or None


def guard_s(runner: Runner) -> float | None:
    """Return how long before its end such a lease would be renewed; ``None`` where its length is not known."""
    length_s = lease_length_s(runner)
    subscription = runner.subscription
    return None if length_s is None else guard_of(subscription.policy, int(length_s), subscription.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fresh:
    """The ``Terms`` of a lease that began at 0."""

    timeout_s: int
    expires_at_s: float
    measured: Measured
    received_at_s: float = 0.0
    started_at_s: float | None = 0.0
    renewed_at_s: float = 0.0
    jitter: float = 0.0


def guard_of(policy: Policy, timeout_s: int, measured: Measured) -> float:
    """Return how long before its end ``policy`` renews a lease of ``timeout_s`` at the latest; 0 for never."""
    expires_at_s = policy.first_expiry_s(answered_at_s=0.0, timeout_s=timeout_s, measured=measured)
    fresh = _Fresh(timeout_s=timeout_s, expires_at_s=expires_at_s, measured=measured)
    return max(0.0, expires_at_s - policy.renew_at_s(fresh, 0.0))


_GAUGES: dict[str, tuple[str, Callable[[Runner], float | None]]] = {
    "leased": ("Messages in our hands, from receive to settle.", lambda runner: runner.held),
    "running": ("Messages in handlers.", lambda runner: runner.working),
    "buffered": ("Messages that wait for a slot.", lambda runner: runner.waiting),
    "lease_length_seconds": ("Lease of a message received now.", lease_length_s),
    "guard_seconds": ("How long before the end of that lease its renewal begins.", guard_s),
}


def _metric(name: str, kind: Kind, text: str, labels: Labels, read: Callable[..., Any], *arguments: object) -> Metric:
    return Metric(name=_PREFIX + name, kind=kind, text=text, labels=labels, read=partial(read, *arguments))


def _labels(runner: Runner) -> Labels:
    return runner.handler.options.queue, runner.handler.name


def _events(runners: list[Runner]) -> Iterator[tuple[Labels, int]]:
    for runner in runners:
        for name, count in sorted(runner.counts.events.items()):
            yield (*_labels(runner), name), count


def _gauge(runners: list[Runner], of: Callable[[Runner], float | None]) -> Iterator[tuple[Labels, float]]:
    for runner in runners:
        value = of(runner)
        if value is not None:
            yield _labels(runner), value


def _spread(runners: list[Runner], name: str) -> Iterator[tuple[Labels, Spread]]:
    for runner in runners:
        yield _labels(runner), getattr(runner.counts, name)


def _by(counted: dict[str, int]) -> Iterator[tuple[Labels, int]]:
    for name, count in sorted(counted.items()):
        yield (name,), count


def _one(spread: Spread) -> Iterator[tuple[Labels, Spread]]:
    yield (), spread
