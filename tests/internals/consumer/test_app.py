"""What may be declared, and what is refused when it is."""

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.consumer import acting
from veilmq.client import HttpQueueClient, QueueClient
from veilmq.consumer import Batch, Consumer, Context
from veilmq.consumer.context import Cause
from veilmq.consumer.handlers import PAYLOAD
from veilmq.consumer.pools import ProcessPool, Worker
from veilmq.testing import RunningServer


def declared(function: Callable[..., Any], **options: Any) -> Any:
    app = Consumer("orders")
    assert app.handler(**options)(function) is function, "it stays an ordinary function"
    return app.handlers[0]


async def plain(body: str) -> None:
    """Take a body."""


def test_payload_and_context_may_come_in_any_order() -> None:
    async def turned(ctx: Context, body: str) -> None: ...

    assert declared(turned).parameters == (Context, PAYLOAD)
    assert declared(plain).parameters == (PAYLOAD,)


@pytest.mark.parametrize("place", ["argument", "VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"])
def test_a_consumer_finds_its_server(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its argument, then by the first of the variables; what stands behind names a server that is not there."""
    order = ["VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"]
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        client.send("orders", "a")
        for number, variable in enumerate(order):
            is_before = place != "argument" and number < order.index(place)
            monkeypatch.setenv(variable, "" if is_before else "http://127.0.0.1:1")  # an empty one names none
        if place != "argument":
            monkeypatch.setenv(place, server.endpoint)
        app = Consumer("orders", endpoint=server.endpoint if place == "argument" else None)
        assert handled(app, server) == ["a"]


def test_a_consumer_makes_the_queues_that_its_handlers_name() -> None:
    """A FIFO queue by its name; one that is there keeps its settings."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("there", {"visibility_timeout_s": 77})
        app = Consumer("orders.fifo", endpoint=server.endpoint, create=True)
        app.handler(queue="there", dead_letter="dead")(plain)

        async def work() -> None:
            async with app.running():
                await asyncio.to_thread(server.wait_until, lambda: server.parked == 2)

        app.handler(plain)
        asyncio.run(work())
        assert client.list_queues() == ["dead", "orders.fifo", "there"]
        assert client.show("orders.fifo").settings.fifo
        assert client.show("there").settings.visibility_timeout_s == 77


def test_without_being_told_to_a_consumer_makes_no_queue() -> None:
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        app = Consumer("orders", endpoint=server.endpoint)
        app.handler(plain)
        assert app.run() == 1
        assert client.list_queues() == []


def handled(app: Consumer, server: RunningServer) -> list[str]:
    """Run ``app`` until it has handled a message, and return what it has handled."""
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


async def nothing() -> None:
    """Take nothing."""


async def both(body: str, more: str) -> None:
    """Take too much."""


async def load(batch: Batch[str]) -> None:
    """Take a batch."""


def yields(body: str) -> Iterator[str]:
    """Do nothing when called."""
    yield body


async def yields_later(body: str) -> AsyncIterator[str]:
    """Do nothing when called, either."""
    yield body


@pytest.mark.parametrize("function", [yields, yields_later])
def test_a_generator_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="must not yield"):
        declared(function)


@pytest.mark.parametrize("function", [nothing, both], ids=["nothing", "both"])
def test_a_signature_that_no_message_fits_is_refused(function: Callable[..., Any]) -> None:
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
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        declared(plain, **options)


@pytest.mark.parametrize(
    ("queue", "options"), [("a.fifo", {}), ("a", {"max_size": 0}), ("a", {"max_size": 1_001})], ids=str
)
def test_a_batch_that_cannot_be_is_refused(queue: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"FIFO|max_size"):
        Consumer(queue).batch(**options)(load)


def test_a_consumer_without_handlers_does_not_run() -> None:
    with pytest.raises(ValueError, match="has no handler"):
        Consumer("orders").run()


def test_an_unknown_hook_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no hook 'begin'"):
        Consumer("orders").on("begin", print)


def test_a_stop_that_meets_a_process_which_has_just_died_goes_on() -> None:
    """The others are to be stopped too, and every lease to be released."""
    worker = Worker(declared(acting.act, pool="process"))
    worker._pipe, theirs = multiprocessing.Pipe()
    theirs.close()
    worker.stop(Cause.SHUTDOWN)


def test_a_process_pool_starts_no_process_before_it_is_needed() -> None:
    ProcessPool(declared(acting.act, pool="process"), (), {}).close()


def test_threads_that_send_first_at_the_same_time_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would be left with its connections."""
    both, made = threading.Barrier(2), list[QueueClient]()

    def connect() -> QueueClient:
        with suppress(threading.BrokenBarrierError):  # as only one thread has come
            both.wait(0.2)
        made.append(HttpQueueClient(server.endpoint))
        return made[-1]

    with RunningServer() as server, ThreadPoolExecutor(2) as threads:
        server.queue("orders")
        app = Consumer("orders")
        monkeypatch.setattr(app, "_connect", connect)
        assert len({sent.id for sent in threads.map(partial(app.send, "orders"), "ab")}) == 2
        (client,) = made
        client.close()
