"""Declarations of handlers, and the errors for invalid ones."""

import asyncio
import gc
import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.consumer import acting
from veilmq.client import HttpQueueClient, QueueClient
from veilmq.consumer import Batch, ByKey, Consumer, Context, InMemory
from veilmq.consumer.context import Cause
from veilmq.consumer.handlers import PAYLOAD
from veilmq.consumer.pools import ProcessPool, Worker
from veilmq.testing import RunningServer, SystemClock


def declared(function: Callable[..., Any], **options: Any) -> Any:
    app = Consumer("orders")
    assert app.handler(**options)(function) is function, "the decorator returns the function unchanged"
    return app.handlers[0]


async def plain(body: str) -> None: ...


def test_payload_and_context_may_be_in_any_order() -> None:
    async def context_first(ctx: Context, body: str) -> None: ...

    assert declared(context_first).parameters == (Context, PAYLOAD)
    assert declared(plain).parameters == (PAYLOAD,)


@pytest.mark.parametrize("source", ["argument", "VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"])
def test_the_endpoint_is_the_argument_or_the_first_variable_that_is_not_empty(
    source: str, monkeypatch: pytest.MonkeyPatch, server: RunningServer, client: HttpQueueClient
) -> None:
    order = ["VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"]
    client.create_queue("orders")
    client.send("orders", "a")
    for number, variable in enumerate(order):
        is_earlier = source != "argument" and number < order.index(source)
        monkeypatch.setenv(variable, "" if is_earlier else "http://127.0.0.1:1")
    if source != "argument":
        monkeypatch.setenv(source, server.endpoint)
    app = Consumer("orders", endpoint=server.endpoint if source == "argument" else None)
    assert handled(app, server) == ["a"]


def test_create_creates_missing_queues_and_keeps_existing_ones(server: RunningServer, client: HttpQueueClient) -> None:
    client.create_queue("existing", {"visibility_timeout_s": 77})
    app = Consumer("orders.fifo", endpoint=server.endpoint, create=True)
    app.handler(queue="existing", dead_letter="dead")(plain)

    async def work() -> None:
        async with app.running():
            await asyncio.to_thread(server.wait_until, lambda: server.parked == 2)

    app.handler(plain)
    asyncio.run(work())
    assert client.list_queues() == ["dead", "existing", "orders.fifo"]
    assert client.show("orders.fifo").settings.fifo
    assert client.show("existing").settings.visibility_timeout_s == 77


def handled(app: Consumer, server: RunningServer) -> list[str]:
    """Run ``app`` until it has handled a message; return the handled bodies."""
    bodies: list[str] = []

    @app.handler
    async def note(body: str) -> None:
        bodies.append(body)

    async def work() -> None:
        async with app.running():
            await asyncio.to_thread(server.wait_until, lambda: bodies)

    asyncio.run(work())
    return bodies


def test_each_queue_has_one_handler() -> None:
    app = Consumer("orders")
    app.handler(plain)
    app.handler(queue="returns")(plain)
    with pytest.raises(ValueError, match="has a handler already"):
        app.handler(queue="returns")(plain)


async def no_parameter() -> None: ...


async def two_payloads(body: str, more: str) -> None: ...


async def load(batch: Batch[str]) -> None: ...


def generator(body: str) -> Iterator[str]:
    yield body


async def async_generator(body: str) -> AsyncIterator[str]:
    yield body


@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="must not yield"):
        declared(function)


@pytest.mark.parametrize("function", [no_parameter, two_payloads])
def test_a_handler_must_take_one_payload(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="must take the payload"):
        declared(function)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"concurrency": 0}, "at least 1"),
        ({"prefetch": -1}, "at least 0"),
        ({"polls": 0}, "at least 1"),
        ({"max_outstanding_bytes": 0}, "at least 1"),
        ({"wait": "21s"}, "1 to 20"),
        ({"wait": 0}, "1 to 20"),
        ({"timeout": "13h"}, "12 hours"),
        ({"timeout": 0}, "12 hours"),
        ({"lease": "soon"}, "not a duration"),
        ({"lease": 0}, "cannot be kept"),
        ({"pool": "fibre"}, "use one of"),
        ({"pool": "thread"}, "cannot run in the thread pool"),
        ({"on_lost": "ignore"}, "on_lost"),
        ({"kill_on_lost": True}, "needs pool='process'"),
        ({"retry": "5s"}, "must be a Backoff"),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        declared(plain, **options)


@pytest.mark.parametrize(
    ("queue", "options"), [("a.fifo", {}), ("a", {"max_size": 0}), ("a", {"max_size": 1_001})], ids=str
)
def test_an_invalid_batch_handler_is_refused(queue: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"FIFO|max_size"):
        Consumer(queue).batch(**options)(load)


def test_a_batch_handler_of_the_process_pool_is_refused() -> None:
    def load_plain(batch: Batch[str]) -> None:
        pass

    with pytest.raises(ValueError, match="async or the thread pool"):
        Consumer("a").batch(pool="process")(load_plain)


def test_a_consumer_without_handlers_does_not_run() -> None:
    with pytest.raises(ValueError, match="has no handler"):
        Consumer("orders").run()


async def test_in_a_running_event_loop_only_the_async_forms_work() -> None:
    """As in a notebook. No coroutine is left that was never awaited, and no loop that was never closed."""
    app = Consumer("orders")
    app.handler(plain)
    with pytest.raises(RuntimeError, match=r"async with app\.running"):
        app.run()
    with pytest.raises(RuntimeError, match="async with"), app.test_client():
        pass
    gc.collect()


def without_database() -> Consumer:
    """Return a consumer whose start fails."""
    app = Consumer("orders")
    app.handler(plain)

    @app.on_startup
    def connect() -> None:
        raise ConnectionError("no database")

    return app


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_after_a_run_signals_have_their_default_effect(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", new_loop)
    assert without_database().run() == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_test_client_whose_start_fails_leaves_no_event_loop() -> None:
    with pytest.raises(ConnectionError, match="no database"), without_database().test_client():
        pass
    gc.collect()


UNGUARDED = """
from veilmq.consumer import Consumer

app = Consumer("orders", endpoint={endpoint!r})

@app.handler(pool="process")
def ship(body: str) -> None: ...

app.run()
"""


@pytest.mark.slow
def test_a_process_of_the_pool_that_imports_an_unguarded_main_module_is_no_second_consumer(tmp_path: Path) -> None:
    with RunningServer(clock=SystemClock()) as server:
        server.queue("orders").send("tea")
        (tmp_path / "shop.py").write_text(UNGUARDED.format(endpoint=server.endpoint), encoding="utf-8")
        consumer = subprocess.Popen([sys.executable, tmp_path / "shop.py"], stderr=subprocess.PIPE, text=True)
        assert consumer.stderr is not None
        error = next((line for line in consumer.stderr if line.startswith("RuntimeError: ")), None)
        consumer.kill()
        consumer.communicate()
        assert error is not None
        assert error.startswith("RuntimeError: the process pool imports this module")
        assert len(server.queue("orders").in_flight) == 1


async def key(_: object) -> str:
    return "one"


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Consumer("orders").on("settle", key),
        lambda: Consumer("orders").batch(group_by=key),
        lambda: declared(plain, on_lost=key),
        lambda: ByKey(InMemory(), key),  # type: ignore[arg-type]  # each message would have another key
    ],
    ids=["hook", "group_by", "on_lost", "key"],
)
def test_an_async_function_that_nothing_would_await_is_refused(declare: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="is async"):
        declare()


def test_an_unknown_hook_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no hook 'begin'"):
        Consumer("orders").on("begin", print)


def test_stopping_a_dead_process_raises_nothing() -> None:
    worker = Worker(declared(acting.act, pool="process"))
    worker._pipe, child_end = multiprocessing.Pipe()
    child_end.close()
    worker.stop(Cause.SHUTDOWN)


def test_closing_an_unused_process_pool_starts_no_process() -> None:
    ProcessPool(declared(acting.act, pool="process"), (), {}).close()


def test_concurrent_first_sends_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    both, clients = threading.Barrier(2), list[QueueClient]()

    def connect() -> QueueClient:
        with suppress(threading.BrokenBarrierError):  # only one thread connects
            both.wait(0.2)
        clients.append(HttpQueueClient(server.endpoint))
        return clients[-1]

    with RunningServer() as server, ThreadPoolExecutor(2) as threads:
        server.queue("orders")
        app = Consumer("orders")
        monkeypatch.setattr(app, "_connect", connect)
        assert len({sent.id for sent in threads.map(partial(app.send, "orders"), "ab")}) == 2
        (client,) = clients
        client.close()
