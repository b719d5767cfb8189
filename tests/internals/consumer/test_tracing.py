"""Spans of messages, linked to the sender's, with events of the lease; tested with OpenTelemetry's SDK."""

import asyncio
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.consumer import acting
from tests.consumer.simulation import message
from tests.consumer.workbench import WAIT, Workbench, until, workbench
from veilmq.client import HttpQueueClient
from veilmq.client.messages import NewMessage, traced
from veilmq.consumer import Batch, Consumer, Fixed
from veilmq.consumer.tracing import amazons_context, sender_of, tracing
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer, faults

AMAZONS = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with workbench() as bench:
        yield bench


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(autouse=True)
def tracer(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> trace.Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return provider.get_tracer("shop")


def run(bench: Workbench, app: Consumer) -> None:
    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)

    asyncio.run(scenario())


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_span_starts_a_trace_is_linked_to_the_senders_and_contains_the_handlers(
    bench: Workbench, exporter: InMemorySpanExporter, tracer: trace.Tracer
) -> None:
    app = bench.consumer("traced")

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        with tracer.start_as_current_span("inside"):
            await asyncio.sleep(0)

    with tracer.start_as_current_span("outside") as outside:
        sent = bench.client.send("traced", "x", attributes=traced())
    run(bench, app)
    spans = by_name(exporter)
    span, inside = spans["process traced"], spans["inside"]
    assert span.kind is SpanKind.CONSUMER
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [outside.get_span_context().span_id]
    assert inside.parent is not None
    assert inside.parent.span_id == span.context.span_id
    assert dict(span.attributes or {}) == {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "traced",
        "messaging.message.id": sent.id,
        "veilmq.handler": "work",
        "veilmq.attempt": 1,
        "veilmq.outcome": "done",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_handler_in_a_thread_runs_inside_its_span(
    bench: Workbench, exporter: InMemorySpanExporter, tracer: trace.Tracer
) -> None:
    app = bench.consumer("traced-thread")

    @app.handler(wait=WAIT)
    def work(body: str) -> None:
        tracer.start_span("inside").end()

    bench.client.send("traced-thread", "x")
    run(bench, app)
    spans = by_name(exporter)
    assert spans["process traced-thread"].links == ()
    parent = spans["inside"].parent
    assert parent is not None
    assert parent.span_id == spans["process traced-thread"].context.span_id


def test_each_message_of_a_batch_has_a_span_and_none_is_current(
    bench: Workbench, exporter: InMemorySpanExporter, tracer: trace.Tracer
) -> None:
    app = bench.consumer("traced-batch")

    @app.batch(max_size=2, linger="1h", wait=WAIT)
    async def work(batch: Batch[str]) -> None:
        tracer.start_span("inside").end()

    bench.client.send_batch("traced-batch", [NewMessage(body="x"), NewMessage(body="y")])
    run(bench, app)
    assert sorted(span.name for span in exporter.get_finished_spans()) == ["inside", *["process traced-batch"] * 2]
    assert by_name(exporter)["inside"].parent is None


def test_the_span_of_a_failed_message_has_the_traceback(bench: Workbench, exporter: InMemorySpanExporter) -> None:
    app = bench.consumer("traced-failing")
    app.declare(acting.act_async, wait=WAIT)
    bench.client.send("traced-failing", "crash")
    run(bench, app)
    span = by_name(exporter)["process traced-failing"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "not yet")
    assert (span.attributes or {})["error.type"] == "LookupError"
    (event,) = span.events
    assert event.name == "exception"
    assert "not yet" in str((event.attributes or {})["exception.stacktrace"])


def test_renewals_are_events_of_the_span(bench: Workbench, exporter: InMemorySpanExporter) -> None:
    app = bench.consumer("traced-renewing")
    renewed: list[str] = []
    app.on("renew", lambda ctx: renewed.append(ctx.message_id))

    @app.handler(wait=WAIT, lease=Fixed(30, 0.01))
    async def work(body: str) -> None:
        await until(lambda: len(renewed) > 1)

    sent = bench.client.send("traced-renewing", "x")
    run(bench, app)
    (span,) = exporter.get_finished_spans()
    assert set(renewed) == {sent.id}
    assert len(span.events) >= 2
    event = span.events[0]
    assert event.name == "veilmq.lease.renewal"
    assert (event.attributes or {})["veilmq.seconds"] == 30


def test_a_lost_lease_is_an_event_and_an_error(bench: Workbench, exporter: InMemorySpanExporter) -> None:
    """Another consumer receives the message while the handler runs."""
    app = bench.consumer("traced-losing")

    @app.handler(wait=WAIT, lease=Fixed(30, 0.05))
    async def work(body: str) -> None:
        bench.server.faults.script("ChangeMessageVisibilityBatch", faults.UNAVAILABLE, times=None)
        bench.server.advance(31_000)
        assert bench.client.receive("traced-losing", wait_s=0)
        bench.server.faults.clear()
        await asyncio.Event().wait()

    bench.client.send("traced-losing", "x")
    run(bench, app)
    (span,) = exporter.get_finished_spans()
    assert "veilmq.lease.lost" in [event.name for event in span.events]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["veilmq.outcome"] == "left"


def test_amazons_trace_header_is_used_without_trace_attributes() -> None:
    span = trace.get_current_span(sender_of(message(trace_header=AMAZONS))).get_span_context()
    assert f"{span.trace_id:032x}" == "5759e988bd862e3fe1be46a994272793"
    assert f"{span.span_id:016x}" == "53995c3f42cd8ad8"
    assert span.trace_flags.sampled
    own = Attribute(type="String", text="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    span = trace.get_current_span(
        sender_of(message(attributes={"traceparent": own}, trace_header=AMAZONS))
    ).get_span_context()
    assert f"{span.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "header", ["", "Root=1-5759e988-bd862e3fe1be46a994272793", "Root=1-2-3;Parent=53995c3f42cd8ad8"]
)
def test_an_incomplete_trace_header_is_ignored(header: str) -> None:
    assert amazons_context(header) is None


def test_a_received_message_has_the_trace_header(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    url = veilmq_server.queue("traced-by-amazon").url
    header = {"AWSTraceHeader": {"DataType": "String", "StringValue": AMAZONS}}
    veilmq_boto3.send_message(QueueUrl=url, MessageBody="x", MessageSystemAttributes=header)
    with HttpQueueClient(veilmq_server.endpoint) as client:
        (message,) = client.receive("traced-by-amazon", wait_s=0)
    assert message.trace_header == AMAZONS


def test_without_a_provider_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing() is not None
    monkeypatch.undo()
    assert tracing() is None


def print_body(body: str) -> None: ...


def test_without_the_library_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Consumer("orders")
    app.handler(print_body)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert app.make().runners[0].tracing is None


def test_existing_trace_attributes_are_kept(tracer: trace.Tracer) -> None:
    mine = {"traceparent": Attribute(type="String", text="mine"), "kind": Attribute(type="String", text="film")}
    assert traced() == {}
    with tracer.start_as_current_span("outside"):
        assert traced(mine) == mine
        assert set(traced({"kind": mine["kind"]})) == {"traceparent", "kind"}
