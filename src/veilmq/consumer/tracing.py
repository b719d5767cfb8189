"""A span for each message through OpenTelemetry's API; imported only if that is installed.

The span covers the handler's call. It starts a new trace, linked to the sender's. Changes of the lease are its events.
Names and attributes follow the semantic conventions for messaging; others begin with ``veilmq``.
"""

import atexit
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from veilmq import __version__
from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.context import Context, EndingKind
from veilmq.consumer.handlers import Handler
from veilmq.consumer.leases import Lease, LeaseState, RenewalRequest
from veilmq.consumer.metrics import OTEL_SCOPE, is_configured
from veilmq.consumer.renewal_policies import RenewalResult

_AMAZONS = re.compile(r"(?:^|;)\s*(Root|Parent|Sampled)=([^;]*)")
_AMAZONS_TRACE = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})", re.IGNORECASE)
FLUSH_S = 2.0
_exporters: list[Any] = []

_FAILED = (EndingKind.RETRY, EndingKind.REJECT, EndingKind.LEFT)


class Tracing:
    """Spans through one provider. Thread-safe."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer(OTEL_SCOPE, __version__)
        self._spans: dict[Lease, Span] = {}

    def renewed(self, requests: Sequence[RenewalRequest], results: Sequence[RenewalResult]) -> None:
        """Add an event for each renewal to the span of its message, if the handler runs."""
        for one, result in zip(requests, results, strict=True):
            if (span := self._spans.get(one.lease)) is not None:
                span.add_event("veilmq.lease.renewal", {"veilmq.result": result.value, "veilmq.seconds": one.for_s})

    def changed(self, lease: Lease, state: LeaseState) -> None:
        """Add an event for the new state to the span of the message, if the handler runs."""
        if (span := self._spans.get(lease)) is not None:
            span.add_event(f"veilmq.lease.{state.value}")

    @contextmanager
    def spans(self, deliveries: Sequence[Context], handler: Handler) -> Iterator[None]:
        """Open a span for each message while ``handler`` runs; the span of a single message is the current one."""
        started = [self._start(delivery, handler) for delivery in deliveries]
        single = len(started) == 1 and handler.batching is None  # no one span is right for a batch
        token = contexts.attach(trace.set_span_in_context(*started[0]) if single else contexts.Context())
        try:
            yield
        finally:
            contexts.detach(token)
            for delivery in deliveries:
                self._end(delivery)

    def _start(self, delivery: Context, handler: Handler) -> tuple[Span, contexts.Context]:
        """Start the span of a message, and return it with the sender's context."""
        message = delivery.message
        queue = handler.options.queue.rpartition("/")[2]
        sender_context = sender_of(message)
        sender = trace.get_current_span(sender_context).get_span_context()
        span = self._tracer.start_span(
            f"process {queue}",
            context=contexts.Context(),
            kind=SpanKind.CONSUMER,
            links=[Link(sender)] if sender.is_valid else [],
            attributes={
                "messaging.system": "aws_sqs",
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": queue,
                "messaging.message.id": message.id,
                "veilmq.handler": handler.name,
                "veilmq.attempt": delivery.attempt,
            },
        )
        self._spans[delivery.lease] = span
        return span, sender_context

    def _end(self, delivery: Context) -> None:
        """End the span of a message, which has no ending if its handler was abandoned."""
        span, ending = self._spans.pop(delivery.lease), delivery.ending
        if ending is not None:
            span.set_attribute("veilmq.outcome", ending.kind.value)
        if ending is not None and ending.kind in _FAILED:
            span.set_status(Status(StatusCode.ERROR, ending.reason))
            if ending.error:
                span.set_attribute("error.type", ending.error)
            if ending.trace:
                names = ("exception.type", "exception.message", "exception.stacktrace")
                texts = (ending.error, ending.reason, ending.trace)
                span.add_event("exception", dict(zip(names, texts, strict=True)))
        span.end()


def tracing() -> Tracing | None:
    """Return tracing through the configured provider, if any."""
    provider = trace.get_tracer_provider()
    return Tracing(provider) if is_configured(provider) else None


@cache
def configure() -> None:
    """Export spans and metrics by OTLP, configured by ``OTEL_*``; configured providers are kept.

    Raises ``ModuleNotFoundError`` without the extra ``otlp``.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    if not is_configured(trace.get_tracer_provider()):
        provider = TracerProvider()
        _exporters.append(spans := OTLPSpanExporter())
        provider.add_span_processor(BatchSpanProcessor(spans))
        trace.set_tracer_provider(provider)
    if not is_configured(metrics.get_meter_provider()):
        _exporters.append(exporter := OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(exporter)]))


def flush() -> None:
    """Export pending spans and metrics, for up to ``FLUSH_S``.

    A collector that has not replied by then does not delay the end of the process.
    """
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider())
    flushes = [provider.force_flush for provider in providers if hasattr(provider, "force_flush")]
    # In a thread, because the SDK does not keep its timeouts.
    flushing = threading.Thread(target=lambda: [flush() for flush in flushes], daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)
    if flushing.is_alive():
        while _exporters:
            atexit.register(_exporters.pop().shutdown)  # runs before the providers' own handlers, which would retry


def sender_of(message: ReceivedMessage) -> contexts.Context:
    """Return the sender's context, from the attributes of ``message`` or Amazon's trace header."""
    carrier = {name.lower(): value.text for name, value in message.attributes.items() if value.text is not None}
    found = propagate.extract(carrier, contexts.Context())
    if not trace.get_current_span(found).get_span_context().is_valid and message.trace_header is not None:
        amazons = amazons_context(message.trace_header)
        if amazons is not None:
            return trace.set_span_in_context(trace.NonRecordingSpan(amazons), found)
    return found


def amazons_context(header: str) -> SpanContext | None:
    """Parse a trace header: ``Root=1-<8 hex>-<24 hex>;Parent=<16 hex>;Sampled=1``."""
    fields = dict(_AMAZONS.findall(header))
    root = _AMAZONS_TRACE.fullmatch(fields.get("Root", ""))
    parent = re.fullmatch(r"[0-9a-fA-F]{16}", fields.get("Parent", ""))
    if root is None or parent is None:
        return None
    sampled = TraceFlags(TraceFlags.SAMPLED if fields.get("Sampled") == "1" else TraceFlags.DEFAULT)
    return SpanContext(int(root[1] + root[2], 16), int(parent[0], 16), is_remote=True, trace_flags=sampled)
