"""Telemetry of a consumer: Prometheus metrics at a port, and OpenTelemetry over OTLP."""

import asyncio
import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need
from tests.consumer import acting
from tests.consumer.workbench import WAIT, workbench
from tests.tidy.tree import SRC
from veilmq.client import HttpQueueClient
from veilmq.consumer import Consumer
from veilmq.testing import RunningServer, SystemClock

SHOP = """
from veilmq.consumer import Consumer

app = Consumer("orders", create=True)


@app.handler(queue="invoices")
def bill(body: str) -> None:
    print("billed", flush=True)


@app.handler
async def ship(body: str) -> None:
    await app.send_async(bill, body)
"""


def read(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as reply:
        text: str = reply.read().decode()
        return text


async def test_a_running_consumer_serves_metrics_and_status(caplog: pytest.LogCaptureFixture) -> None:
    with workbench() as bench, caplog.at_level(logging.INFO, "veilmq.consumer"):
        app = bench.consumer("orders")
        app.metrics_port = 0
        app.declare(acting.act_async, wait=WAIT)
        bench.client.send("orders", "x")
        async with bench.working(app) as running:
            await bench.settled(running)
            (port,) = [record.args[0] for record in caplog.records if "metrics at port" in record.msg]  # type: ignore[index]
            text = await asyncio.to_thread(read, int(str(port)), "/metrics")
            (status,) = json.loads(await asyncio.to_thread(read, int(str(port)), "/status"))
        assert 'veilmq_consumer_events_total{event="acked",handler="act_async",queue="orders"} 1.0' in text
        assert status["pid"] == os.getpid()
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(read, int(str(port)), "/metrics")


@pytest.mark.parametrize(("port", "reason"), [(None, "Address already in use"), (70_000, "there is no such port")])
def test_an_unusable_port_is_an_error(port: int | None, reason: str) -> None:
    with socket.create_server(("", 0)) as taken:
        port = port or taken.getsockname()[1]
        app = Consumer("orders", endpoint="http://127.0.0.1:1", metrics_port=port)
        app.handler(acting.act)
        with pytest.raises(OSError, match=f"cannot listen at {port}: {reason}"):
            app.run()


class Collector(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Received)

    def bodies(self, path: str, kind: Any) -> Iterator[Any]:
        for place, body in self.requests:
            if place == path:
                message = kind()
                message.ParseFromString(body)
                yield message


class Received(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.requests.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        yield collector
        collector.shutdown()


def worker(folder: Path, server: RunningServer, collector_port: int, **environment: str) -> subprocess.Popen[str]:
    need(importlib.util.find_spec("google.protobuf"), "opentelemetry-exporter-otlp-proto-http (make setup)")
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    command = [sys.executable, "-m", "veilmq", "worker", "shop:app", "--opentelemetry"]
    environment |= {"PYTHONPATH": str(SRC), "VEILMQ_ENDPOINT": server.endpoint}
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector_port}"
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=os.environ | environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
def test_spans_and_metrics_are_exported_before_the_end(tmp_path: Path) -> None:
    with RunningServer(clock=SystemClock()) as server, collecting() as collector:
        shop = worker(tmp_path, server, collector.server_port, OTEL_SERVICE_NAME="shop")
        with shop, HttpQueueClient(server.endpoint) as client:
            server.wait_until(lambda: server.parked == 2)
            client.send("orders", "x")
            assert shop.stdout is not None
            assert shop.stdout.readline() == "billed\n"
            server.wait_until(lambda: not client.show("invoices").in_flight)
            shop.send_signal(signal.SIGTERM)
            _, log = shop.communicate(timeout=60)
            assert shop.returncode == 0, log
    metrics_service: Any = importlib.import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    trace_service: Any = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    resources = [
        resource
        for request in collector.bodies("/v1/traces", trace_service.ExportTraceServiceRequest)
        for resource in request.resource_spans
    ]
    spans = {span.name: span for each in resources for scope in each.scope_spans for span in scope.spans}
    assert {value.value.string_value for value in resources[0].resource.attributes if value.key == "service.name"} == {
        "shop"
    }
    assert [link.span_id for link in spans["process invoices"].links] == [spans["process orders"].span_id]
    acked = [
        ({each.key: each.value.string_value for each in point.attributes}["queue"], point.as_int)
        for request in collector.bodies("/v1/metrics", metrics_service.ExportMetricsServiceRequest)
        for each in request.resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
        if metric.name == "veilmq_consumer_events"
        for point in metric.sum.data_points
        if any(each.value.string_value == "acked" for each in point.attributes)
    ]
    assert {("orders", 1), ("invoices", 1)} <= set(acked)


@pytest.mark.slow
def test_a_collector_that_does_not_answer_does_not_delay_the_end(tmp_path: Path) -> None:
    with RunningServer(clock=SystemClock()) as server, socket.create_server(("127.0.0.1", 0)) as mute:
        shop = worker(tmp_path, server, mute.getsockname()[1], OTEL_EXPORTER_OTLP_TIMEOUT="600")
        try:
            server.wait_until(lambda: server.parked == 2)
            shop.send_signal(signal.SIGTERM)
            shop.communicate(timeout=60)
            assert shop.returncode == 0
        finally:
            shop.kill()


@pytest.mark.parametrize("module", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http.trace_exporter"])
def test_the_error_without_the_extra_names_it(module: str) -> None:
    program = (
        f"import sys; sys.modules['{module}'] = None;"
        "from veilmq.consumer import Consumer; app = Consumer('orders', opentelemetry=True);"
        "app.handler(lambda body: None); app.run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert "pip install 'veilmq[otlp]'" in done.stderr
