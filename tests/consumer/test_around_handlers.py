"""Start-up and shutdown functions, dependencies, middleware, sends from handlers, and test clients."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from typing import Any

import msgspec
import pydantic
import pytest

from tests.clients import boto
from tests.consumer import acting
from tests.consumer.workbench import WAIT, Workbench, event, until
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.boto import BotoQueueClient
from veilmq.consumer import Backoff, Batch, CallNext, Consumer, Context, Drop, Reject, RetryLater
from veilmq.core.messages import Attribute
from veilmq.testing import ConsumerBench


class Database:
    def __init__(self) -> None:
        self.rows: list[str] = []
        self.is_open = True


class Cache:
    def __init__(self, database: Database) -> None:
        self.database = database


@pytest.fixture
def app() -> Consumer:
    return Consumer("orders", endpoint="http://127.0.0.1:1")


async def settled(bench: Workbench, app: Consumer, *bodies: str) -> Any:
    """Send ``bodies`` to ``orders``, and run ``app`` until its queues are empty; return the stopped run."""
    for body in bodies:
        bench.client.send("orders", body)
    async with bench.working(app) as running:
        await bench.settled(running)
    return running


async def test_results_of_startup_functions_are_injected_by_type(bench: Workbench) -> None:
    app = bench.consumer("orders")
    bench.client.create_queue("rows")
    calls: list[str] = []

    @app.on_startup
    async def connect() -> Database:
        calls.append("connect")
        await asyncio.sleep(0)
        return Database()

    @app.on_startup
    def warm(database: Database) -> Cache:
        calls.append("warm")
        return Cache(database)

    @app.on_shutdown
    def close(database: Database) -> None:
        calls.append(f"close {sorted(database.rows)}")
        database.is_open = False

    @app.on_shutdown
    async def cool(cache: Cache) -> None:
        calls.append(f"cool {cache.database.is_open}")

    @app.handler(wait=WAIT)
    async def ship(body: str, ctx: Context, database: Database, *, cache: Cache) -> None:
        assert cache.database is database
        database.rows.append(f"{body}{ctx.attempt}")

    @app.handler(queue="rows", wait=WAIT)
    def store(body: str, cache: Cache, spare: str = "spare") -> None:
        cache.database.rows.append(f"{body} in a thread, {spare}")

    bench.client.send("rows", "b")
    await settled(bench, app, "a")
    assert calls == ["connect", "warm", "cool True", "close ['a1', 'b in a thread, spare']"]


async def test_messages_are_handled_between_start_and_shutdown(bench: Workbench) -> None:
    app = bench.consumer("orders")
    order: list[str] = []

    @app.on_startup
    async def slow() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        order.append("started")

    @app.on_shutdown
    def last() -> None:
        order.append("shut down")

    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        order.append("begun")
        begun.set()
        await go_on.wait()
        order.append("done")

    bench.client.send("orders", "a")
    async with bench.working(app) as running:
        await begun.wait()
        stopping = asyncio.create_task(bench.stop(running))
        await asyncio.sleep(0)
        go_on.set()
        await stopping
    assert order == ["started", "begun", "done", "shut down"]


async def test_a_failed_start_calls_the_shutdown_functions_of_what_exists(bench: Workbench) -> None:
    app = bench.consumer("orders")
    calls: list[str] = []

    @app.on_startup
    def first() -> Database:
        return Database()

    @app.on_startup
    def second(database: Database) -> Cache:
        raise ConnectionError("no cache here")

    @app.on_shutdown
    def close(database: Database) -> None:
        calls.append("close")

    @app.on_shutdown
    def cool(cache: Cache) -> None:
        calls.append("cool")

    app.handler(acting.act_async)
    bench.client.send("orders", "a")
    with pytest.raises(ConnectionError, match="no cache here"):
        async with app.running():
            pass
    assert calls == ["close"]
    assert await asyncio.to_thread(bench.counts, "orders") == (1, 0)


def test_a_program_whose_start_fails_exits_with_code_1(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    app = bench.consumer("orders")
    app.handler(acting.act_async)

    @app.on_startup
    def fail() -> None:
        raise ConnectionError("no database here")

    assert app.run() == 1
    assert "no database here" in caplog.text


async def test_a_failing_shutdown_function_stops_no_other(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    app = bench.consumer("orders")
    app.handler(wait=WAIT)(acting.act_async)
    calls: list[str] = []
    app.on_shutdown(lambda: calls.append("first"))

    @app.on_shutdown
    def fail() -> None:
        raise LookupError("gone already")

    running = await settled(bench, app)
    assert (calls, running.exit_code) == (["first"], 0)
    assert "gone already" in caplog.text


def takes(*, app: Consumer, kind: str) -> Callable[[], object]:
    """Return a function that declares or starts a user of a dependency that no start-up function returns."""

    def handler(body: str, database: Database) -> None: ...
    def hook(database: Database) -> None: ...
    def twice() -> Database:
        return Database()

    def untyped(body: str, other) -> None: ...  # type: ignore[no-untyped-def]

    def startup_twice() -> None:
        app.on_startup(twice)
        app.on_startup(twice)

    def start() -> None:
        app.handler(acting.act) if kind != "handler" else app.handler(handler)
        {"startup": app.on_startup, "shutdown": app.on_shutdown}.get(kind, lambda each: each)(hook)
        app.run()

    return {
        "process": lambda: app.handler(pool="process")(handler),
        "untyped": lambda: app.handler(untyped),
        "twice": startup_twice,
    }.get(kind, start)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("handler", "handler .*handler takes Database, which no start-up function before it returns"),
        ("startup", "start-up function .*hook takes Database"),
        ("shutdown", "shutdown function .*hook takes Database"),
        ("process", "runs in other processes"),
        ("untyped", "must take the payload"),
        ("twice", "returns Database, as another start-up function does"),
    ],
)
def test_a_missing_dependency_is_refused_before_the_first_message(app: Consumer, kind: str, sentence: str) -> None:
    """At the declaration where possible, otherwise at the start."""
    with pytest.raises(TypeError, match=sentence):
        takes(app=app, kind=kind)()


async def test_a_startup_result_without_a_type_is_refused(bench: Workbench) -> None:
    app = bench.consumer("orders")
    app.handler(acting.act_async)
    app.on_startup(Database)
    with pytest.raises(TypeError, match="returned something; annotate its result"):
        async with app.running():
            pass


tenant: ContextVar[str] = ContextVar("tenant")


@pytest.mark.parametrize("pool", ["async", "thread"])
async def test_context_variables_of_startup_functions_reach_handlers(bench: Workbench, pool: str) -> None:
    app = bench.consumer("orders")
    seen: list[str] = []

    @app.on_startup
    async def first() -> None:
        tenant.set("first")

    @app.on_startup
    def second() -> None:
        seen.append(tenant.get())
        tenant.set("second")

    @app.on_startup
    async def third() -> None:
        seen.append(tenant.get())

    def note(body: str) -> None:
        seen.append(tenant.get())

    async def note_async(body: str) -> None:
        note(body)

    app.declare(note_async if pool == "async" else note, wait=WAIT)
    await settled(bench, app, "x")
    assert seen == ["first", "second", "second"]


async def test_context_variables_of_a_handler_reach_no_other_call(bench: Workbench) -> None:
    app = bench.consumer("orders")
    seen: list[str] = []

    @app.on_startup
    async def start() -> None:
        tenant.set("start")

    @app.handler(wait=WAIT, concurrency=1)
    async def note(body: str) -> None:
        seen.append(tenant.get())
        tenant.set(body)

    await settled(bench, app, *"abc")
    assert seen == ["start"] * 3


async def test_a_startup_function_may_return_none(bench: Workbench) -> None:
    app = bench.consumer("orders")
    got: list[object] = []

    @app.on_startup
    def connect() -> Database | None:
        return None

    @app.handler(wait=WAIT)
    async def ship(body: str, database: Database | None) -> None:
        got.append(database)

    await settled(bench, app, "a")
    assert got == [None]


async def test_a_stop_cancels_a_waiting_start(bench: Workbench) -> None:
    app = bench.consumer("orders")
    calls: list[str] = []
    waits = asyncio.Event()

    @app.on_startup
    def first() -> Database:
        return Database()

    @app.on_startup
    async def second() -> None:
        waits.set()
        await asyncio.Event().wait()

    @app.on_shutdown
    def close(database: Database) -> None:
        calls.append("close")

    app.handler(acting.act_async)
    bench.client.send("orders", "a")
    running = app.make()
    starting = asyncio.create_task(running.start())
    await waits.wait()
    running.request_stop()
    async with asyncio.timeout(30):
        await starting
    await running.stop()
    assert (calls, running.exit_code, starting.cancelling()) == (["close"], 0, 0)
    assert await asyncio.to_thread(bench.counts, "orders") == (1, 0)


async def test_synchronous_functions_run_in_one_thread(bench: Workbench) -> None:
    """They do not block the event loop, and see the context variables of the program."""
    app = bench.consumer("orders")
    app.handler(wait=WAIT)(acting.act_async)
    loop = asyncio.get_running_loop()
    threads: list[threading.Thread] = []
    tenant.set("north")

    def work() -> None:
        assert tenant.get() == "north"
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        assert turned.wait(60), "the event loop stands still"
        threads.append(threading.current_thread())

    app.on_startup(work)
    app.on_shutdown(work)
    await settled(bench, app)
    assert len(threads) == 2
    assert threads[0] is threads[1] is not threading.current_thread()


async def test_a_stop_does_not_wait_for_a_synchronous_startup_function(bench: Workbench) -> None:
    app = bench.consumer("orders")
    app.handler(wait=WAIT)(acting.act_async)
    began, over, calls = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    @app.on_startup
    def connect() -> Database:
        loop.call_soon_threadsafe(began.set)
        over.wait(60)
        return Database()

    @app.on_shutdown
    def close(database: Database) -> None:
        calls.append("close")

    app.on_shutdown(lambda: calls.append("last"))
    running = app.make()
    starting = asyncio.create_task(running.start())
    try:
        async with asyncio.timeout(30):
            await began.wait()
            running.request_stop()
            await starting
            await running.stop()
    finally:
        over.set()
    assert (calls, running.exit_code) == (["last"], 0)


async def test_the_awaitable_of_a_plain_startup_function_is_awaited(bench: Workbench) -> None:
    app = bench.consumer("orders")
    app.handler(wait=WAIT)(acting.act_async)
    started: list[int] = []

    async def connect(number: int) -> None:
        started.append(number)

    app.on_startup(lambda: connect(1))
    await settled(bench, app)
    assert started == [1]


async def test_a_startup_function_that_raises_stopiteration_fails(bench: Workbench) -> None:
    app = bench.consumer("orders")
    app.handler(wait=WAIT)(acting.act_async)
    app.on_startup(lambda: next(iter(())))
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        async with bench.working(app):
            pass


async def test_a_given_client_stays_open_for_shutdown_functions_and_the_next_run(bench: Workbench) -> None:
    bench.client.create_queue("orders")
    with HttpQueueClient(bench.server.endpoint) as client:
        app = Consumer("orders", client=client, seen=False)
        app.handler(wait=WAIT)(acting.act_async)
        app.on_shutdown(lambda: app.send("orders", "last"))
        for _ in range(2):
            await settled(bench, app)
    assert bench.counts("orders") == (1, 0)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
async def test_middleware_wraps_each_call_in_order(bench: Workbench, pool: str) -> None:
    app = bench.consumer("orders")
    seen: list[tuple[str, str, str]] = []

    def named(name: str) -> Any:
        async def middleware(context: Context, call_next: CallNext) -> None:
            seen.append((context.message.body, name, "begins"))
            try:
                await call_next()
            except Exception as error:
                seen.append((context.message.body, name, type(error).__name__))
                raise
            seen.append((context.message.body, name, "ends"))

        return middleware

    app.middleware(named("outer"))
    app.middleware(named("inner"))
    handler = acting.act_async if pool == "async" else acting.act
    options: Any = {"pool": pool, "concurrency": 1, "dead_letter": "dead", "retry": Backoff("1h", jitter="none")}
    app.declare(handler, wait=WAIT, **options)
    running = await settled(bench, app, "done", "drop", "reject", "retry", "crash")
    ended = {"done": "ends", "drop": "Drop", "reject": "Reject", "retry": "RetryLater"}
    ended["crash"] = "Failed" if pool == "process" else "LookupError"
    for body, end in ended.items():
        steps = [("outer", "begins"), ("inner", "begins"), ("inner", end), ("outer", end)]
        assert [(name, step) for text, name, step in seen if text == body] == steps
    counted = [event(running, name) for name in ("acked", "dropped", "rejected", "retried")]
    assert counted == [1, 1, 1, 2]
    (letter,) = bench.client.receive("dead", wait_s=0)
    assert letter.attributes["veilmq-reason"].text == "bad schema"


@pytest.mark.parametrize(
    ("end", "counted"),
    [
        (Reject("not ours"), "rejected"),
        (RetryLater("1h"), "retried"),
        (LookupError("none"), "retried"),
        (None, "acked"),
    ],
    ids=["reject", "later", "error", "nothing"],
)
async def test_a_middleware_decides_the_result(bench: Workbench, end: Exception | None, counted: str) -> None:
    """It need not call the handler."""
    app = bench.consumer("orders")

    @app.middleware
    async def guard(context: Context, call_next: CallNext) -> None:
        if end is not None:
            raise end

    @app.handler(wait=WAIT, dead_letter="dead", retry=Backoff("1h", jitter="none"))
    async def work(body: str) -> None:
        raise AssertionError("it is not called")

    running = await settled(bench, app, "x")
    assert event(running, counted) == 1


async def test_a_middleware_may_replace_the_message_and_set_context_variables(bench: Workbench) -> None:
    app = bench.consumer("orders")
    bench.client.create_queue("threads")
    seen: list[tuple[int, str]] = []

    @app.middleware
    async def unwrapped(context: Context, call_next: CallNext) -> None:
        tenant.set(context.message.body[0])
        context.message = replace(context.message, body=context.message.body[1:])
        await call_next()

    @app.handler(wait=WAIT)
    async def work(number: int) -> None:
        seen.append((number, tenant.get()))

    @app.handler(queue="threads", wait=WAIT)
    def work_in_thread(number: int) -> None:
        seen.append((number, tenant.get()))

    bench.client.send("threads", "b2")
    await settled(bench, app, "a1")
    assert sorted(seen) == [(1, "a"), (2, "b")]


async def test_a_replaced_message_is_settled_and_counted_as_it_was_received(bench: Workbench) -> None:
    """Its group continues, its copy in the dead-letter queue is not decrypted, and its bytes are free for others."""
    for queue in ("orders.fifo", "dead.fifo"):
        bench.client.create_queue(queue, {"fifo": True})
    app = Consumer("orders.fifo", client=BotoQueueClient(boto.client(bench.server.endpoint)), seen=False)

    @app.middleware
    async def decrypted(context: Context, call_next: CallNext) -> None:
        context.message = replace(context.message, body="-", group=None)
        await call_next()

    @app.handler(wait=WAIT, dead_letter="dead.fifo", max_outstanding_bytes=5)
    async def work(body: str) -> None:
        raise Reject(f"the body is {body}")

    for body in ("first", "other"):
        bench.client.send("orders.fifo", body, group="g", dedup_id=body)
    async with bench.working(app) as running:
        await until(lambda: event(running, "rejected") == 2)
        bench.client.send("orders.fifo", "after", group="g", dedup_id="after")
        await until(lambda: event(running, "rejected") == 3)
    letters = bench.client.receive("dead.fifo", count=10, wait_s=0)
    assert [(letter.body, letter.group) for letter in letters] == [(body, "g") for body in ("first", "other", "after")]


async def test_an_exception_of_a_process_is_a_verb_only_by_its_class(app: Consumer) -> None:
    """Its name does not matter. A handler that cannot be pickled is an error."""
    app.handler(pool="process")(acting.raises_its_own)
    app.handler(pool="process", queue="nested")(lambda body: None)
    async with app.test_client() as client:
        for name in ("Reject", "RetryLater"):
            end = await client.send("orders", name)
            assert (end.outcome, end.error) == ("retried", name)
            assert f"_Outer.{name}" in end.trace
        end = await client.send("nested", "x")
        assert (end.outcome, end.reason.startswith(("Can't pickle", "Can't get local"))) == ("retried", True)


@pytest.mark.parametrize("pool", ["async", "thread", "process"])
async def test_a_traceback_begins_in_the_handler(app: Consumer, pool: Any) -> None:
    app.declare(acting.act_async if pool == "async" else acting.act, pool=pool)
    async with asyncio.timeout(60), app.test_client() as client:
        end = await client.send("orders", "crash")
    first, *_ = re.findall('File "(.*)", line', end.trace)
    assert (first, end.trace.splitlines()[-1]) == (acting.__file__, "LookupError: not yet")


class Ended(BaseException):
    """Like the outcomes of pytest."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise self


class Untraceable(Exception):
    @property
    def __cause__(self) -> None:  # type: ignore[override]
        raise self


@pytest.mark.parametrize(
    "error", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, Ended, Unprintable, Untraceable]
)
async def test_an_exception_that_no_task_can_raise_fails_the_message(app: Consumer, error: type[BaseException]) -> None:
    @app.handler
    def work(body: str) -> None:
        raise error(body)

    @app.handler(queue="async")
    async def work_async(body: str) -> None:
        raise error(body)

    async with asyncio.timeout(30), app.test_client() as client:
        for handler in [work] if error in (StopIteration, KeyboardInterrupt) else [work, work_async]:
            end = await client.send(handler, "not today")
            assert (end.outcome, end.error) == ("retried", error.__name__)
            assert end.reason == ("not today" if error is not Unprintable else "<its str() raises Unprintable>")


@pytest.mark.parametrize(
    ("verb", "outcome"), [(RetryLater, "retried"), (Reject("no"), "rejected"), (Drop(), "dropped")], ids=str
)
async def test_a_handler_may_return_a_verb(app: Consumer, verb: object, outcome: str) -> None:
    @app.handler
    async def work(body: str) -> object:
        return verb

    @app.batch(linger=0, queue="batches")
    async def load(batch: Batch[str]) -> object:
        return verb

    async with asyncio.timeout(30), app.test_client() as client:
        assert {(await client.send(handler, "x")).outcome for handler in (work, load)} == {outcome}


@pytest.mark.filterwarnings("ignore:coroutine")  # never awaited
@pytest.mark.parametrize("pool", ["async", "thread", "process"])
async def test_a_handler_that_returns_an_unawaited_coroutine_fails(app: Consumer, pool: Any) -> None:
    """Or a generator: deleting the message would lose its work."""

    async def forgets_await(body: str) -> object:
        return asyncio.sleep(0)

    def yields(body: str) -> object:
        return (each for each in body)

    handlers: dict[str, Callable[..., object]] = {"async": forgets_await, "thread": yields}
    app.declare(handlers.get(pool, acting.forgets_await), pool=pool)
    async with asyncio.timeout(60), app.test_client() as client:
        end = await client.send("orders", "x")
    assert (end.outcome, end.error) == ("retried", "TypeError")
    assert "nothing runs it" in end.reason


async def test_a_handler_may_return_a_running_task(app: Consumer) -> None:
    done: list[str] = []

    async def work(body: str) -> None:
        done.append(body)

    @app.handler
    async def begin(body: str) -> object:
        return asyncio.ensure_future(work(body))

    async with asyncio.timeout(30), app.test_client() as client:
        assert (await client.send(begin, "x")).outcome == "deleted"
    assert done == ["x"]


async def test_a_process_that_cannot_be_started_retries_the_message(
    app: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.handler(pool="process")(acting.act)

    def start(process: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(SpawnProcess, "start", start)
    async with asyncio.timeout(30), app.test_client() as client:
        end = await client.send("orders", "x")
    assert (end.outcome, end.error) == ("retried", "BlockingIOError")


async def test_a_decoding_error_is_raised_in_the_middleware(bench: Workbench) -> None:
    app = bench.consumer("orders")
    seen: list[str] = []

    @app.middleware
    async def note(context: Context, call_next: CallNext) -> None:
        try:
            await call_next()
        except Exception as error:
            seen.append(str(error))
            raise

    @app.handler(wait=WAIT, dead_letter="dead")
    async def work(number: int) -> None: ...

    running = await settled(bench, app, "one")
    assert (len(seen), event(running, "rejected")) == (1, 1)
    assert "not match the handler's type" in seen[0]


async def test_middleware_of_batches_gets_the_batch(bench: Workbench) -> None:
    app = bench.consumer("orders")
    bench.client.create_queue("rows")
    seen: list[object] = []

    @app.middleware
    async def of_messages(context: Context, call_next: CallNext) -> None:
        seen.append(context.message.body)
        await call_next()

    @app.middleware
    async def of_batches(batch: Batch[int], call_next: CallNext) -> None:
        seen.append(batch.bodies)
        await call_next()

    @app.middleware
    async def of_both(subject: Context | Batch[int], call_next: CallNext) -> None:
        seen.append(type(subject).__name__)
        await call_next()

    @app.handler(wait=WAIT)
    async def one(body: str) -> None: ...

    @app.batch(queue="rows", max_size=2, linger="1h", wait=WAIT)
    async def many(batch: Batch[int]) -> None:
        batch[1].fail(Drop())

    for number in range(2):
        bench.client.send("rows", str(number))
    running = await settled(bench, app, "x")
    assert sorted(map(str, seen)) == ["Batch", "Context", "[0, 1]", "x"]
    assert [running.runners[1].counts.events[name] for name in ("acked", "dropped")] == [1, 1]


@pytest.mark.parametrize("pool", ["async", "thread"])
@pytest.mark.parametrize("handled", [False, True], ids=["before", "after"])
async def test_a_waiting_middleware_is_cancelled_at_a_stop(bench: Workbench, pool: str, handled: bool) -> None:
    waiting = asyncio.Event()
    cancelled: list[bool] = []
    app = bench.consumer("orders", grace="10ms")

    @app.middleware
    async def wait(context: Context, call_next: CallNext) -> None:
        if handled:
            await call_next()
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(context.cancelled.is_set())

    app.declare(acting.act_async if pool == "async" else acting.act, wait=WAIT)
    bench.client.send("orders", "x")
    async with bench.working(app) as running:
        await waiting.wait()
    assert (running.exit_code, cancelled) == (0, [True])
    assert await asyncio.to_thread(bench.counts, "orders") == (1, 0)


def test_an_invalid_middleware_is_refused() -> None:
    def plain(context: Context, call_next: CallNext) -> None: ...
    async def three(context: Context, call_next: CallNext, more: str) -> None: ...

    for wrong in (plain, three):
        with pytest.raises(TypeError, match="must be async, and take a context and call_next"):
            Consumer("orders").middleware(wrong)  # type: ignore[arg-type]


@dataclass
class Order:
    number: int


class Invoice(msgspec.Struct):
    number: int


class Shipment(pydantic.BaseModel):
    number: int


async def test_a_handler_can_send_to_handlers_and_queues(bench: Workbench) -> None:
    app = bench.consumer("orders")
    for queue in ("invoices", "shipments", "notes"):
        bench.client.create_queue(queue)
    got: list[object] = []

    @app.handler(queue="shipments", wait=WAIT)
    async def pack(shipment: Shipment) -> None:
        got.append(shipment)
        await app.send_async("notes", "packed", attributes={"kind": "note"}, delay="15m")

    @app.handler(queue="invoices", wait=WAIT)
    def bill(invoice: Invoice) -> None:
        got.append(invoice)
        app.send(pack, Shipment(number=invoice.number))

    @app.handler(wait=WAIT)
    async def ship(order: Order) -> None:
        got.append(order)
        await app.send_async(bill, Invoice(order.number))

    assert (await app.send_async(ship, Order(7))).id
    async with bench.working(app) as running:
        await until(lambda: len(got) == 3)
        await bench.settled(running)
    assert got == [Order(7), Invoice(7), Shipment(number=7)]
    assert bench.client.receive("notes", wait_s=0) == []
    bench.server.advance(900_000)
    (note,) = bench.client.receive("notes", wait_s=0)
    assert (note.body, note.attributes) == ("packed", {"kind": Attribute("String", "note")})


def test_a_consumer_can_send_without_running(bench: Workbench) -> None:
    app = bench.consumer("steps.fifo", fifo=True)
    for _ in range(2):
        app.send("steps.fifo", b"bytes", group="g", dedup_id="d")
    (message,) = bench.client.receive("steps.fifo", count=10, wait_s=0)
    assert (message.body, message.group, message.dedup_id) == ("bytes", "g", "d")


def test_a_method_can_be_a_handler_and_a_destination(bench: Workbench) -> None:
    class Shop:
        def ship(self, body: str) -> None: ...

    shop = Shop()
    app = bench.consumer("orders")
    app.handler(shop.ship)
    assert app.send(shop.ship, "x").id


@pytest.mark.parametrize(
    ("to", "message", "error", "sentence"),
    [
        (acting.act, "x", ValueError, "has no handler in this consumer; name a queue"),
        ("nowhere", "x", ClientError, "does not exist"),
        ("orders", object(), TypeError, "object"),
    ],
    ids=["function", "queue", "payload"],
)
def test_an_invalid_send_is_refused(
    bench: Workbench, to: Any, message: object, error: type[Exception], sentence: str
) -> None:
    app = bench.consumer("orders")
    with pytest.raises(error, match=sentence):
        app.send(to, message)


async def test_a_bench_receives_the_sends_of_its_handlers(app: Consumer) -> None:
    @app.handler
    async def ship(number: int) -> None:
        await app.send_async("notes", f"shipped {number}", delay="1m")

    async with ConsumerBench(app) as t:
        notes = t.queue("notes")
        t.send(7)
        await t.advance("1s")
        assert (notes.bodies, notes.counts.visible, t.deleted) == (["shipped 7"], 0, 1)
        await t.advance("1m")
        assert notes.counts.visible == 1
    assert app.sender is None


@pytest.mark.parametrize("opened", [ConsumerBench, Consumer.test_client], ids=["bench", "client"])
async def test_a_failed_start_in_a_test_leaves_the_consumer_unchanged(
    app: Consumer, opened: Callable[[Consumer], Any]
) -> None:
    app.handler(acting.act_async)

    @app.on_startup
    def fail() -> None:
        raise ConnectionError("no network in tests")

    async def start() -> None:
        async with opened(app) as entered:
            if isinstance(entered, ConsumerBench):  # which starts the consumer when time passes
                await entered.advance("1s")

    with pytest.raises(ConnectionError):
        await start()
    assert app.sender is None


class Recorder:
    """A consumer with an unreachable server, and its calls."""

    def __init__(self) -> None:
        self.app = app = Consumer("orders", endpoint="http://127.0.0.1:1")
        self.calls: list[str] = []

        @app.on_startup
        def connect() -> Database:
            self.calls.append("connect")
            return Database()

        @app.middleware
        async def note(context: Context, call_next: CallNext) -> None:
            self.calls.append(f"attempt {context.attempt}")
            await call_next()

        @app.handler(retry=Backoff("2s", jitter="none", attempts=3))
        async def ship(order: Order, database: Database, ctx: Context) -> None:
            database.rows.append(ctx.group or "")
            match order.number:
                case 0:
                    raise LookupError("no such article")
                case 1:
                    raise RetryLater("30s")
                case 2:
                    raise Reject("not ours")
                case 3:
                    raise Drop("of no use")
            with ctx.fence():
                await app.send_async("invoices", Invoice(order.number), delay="1500ms", group="g")

        @app.batch(queue="rows", linger="1h", max_size=3)
        def load(batch: Batch[int], database: Database) -> None:
            database.rows += [str(number) for number in batch.bodies]
            batch[0].fail(RetryLater(5))

        self.ship, self.load = ship, load


async def test_a_test_client_returns_the_outcome_of_a_message() -> None:
    recorder = Recorder()
    async with recorder.app.test_client() as client:
        done = await client.send(recorder.ship, Order(7), group="north")
        assert (done.outcome, done.reason) == ("deleted", "")
        ends = [await client.send("orders", Order(number)) for number in range(4)]
        assert [end.outcome for end in ends] == ["retried", "retried", "rejected", "dropped"]
        assert [end.after_s for end in ends] == [2, 30, None, None]
        assert (ends[0].error, ends[0].reason) == ("LookupError", "no such article")
        assert "raise LookupError" in ends[0].trace
        assert [(await client.send(recorder.ship, Order(0), attempt=number)).outcome for number in (2, 3)] == [
            "retried",
            "rejected",
        ]
        unread = await client.send(recorder.ship, "no order")
        assert (unread.outcome, unread.error) == ("rejected", "Undecodable")
    assert [(sent.queue, sent.body, sent.delay_s, sent.group) for sent in client.sent] == [
        ("invoices", '{"number":7}', 2, "g")
    ]
    assert recorder.calls == ["connect", *["attempt 1"] * 5, "attempt 2", "attempt 3", "attempt 1"]


async def test_a_test_client_collects_batches() -> None:
    recorder, database = Recorder(), Database()
    async with recorder.app.test_client({Database: database}) as client:
        ends = await asyncio.gather(*(client.send(recorder.load, each) for each in (1, "x", 2)))
    assert [(end.outcome, end.after_s) for end in ends] == [("retried", 5), ("rejected", None), ("deleted", None)]
    assert (database.rows, recorder.calls) == (["1", "2"], [])


def test_a_test_client_also_works_synchronously() -> None:
    """A given dependency replaces its start-up function."""
    recorder, database = Recorder(), Database()
    with recorder.app.test_client({Database: database}) as client:
        assert client.send(recorder.ship, Order(7), group="south").outcome == "deleted"
        assert client.send(recorder.ship, Order(2)).outcome == "rejected"
        with pytest.raises(ValueError, match="there is no handler for the queue 'invoices'"):
            client.send("invoices", "x")
    assert database.rows == ["south", ""]
    assert [sent.queue for sent in client.sent] == ["invoices"]
    assert recorder.app.sender is None


async def test_a_test_client_reports_released_messages() -> None:
    """Behind a retried message of its group, and at the end of the test."""
    app = Consumer("steps.fifo", endpoint="http://127.0.0.1:1")
    received: list[str] = []
    go_on = asyncio.Event()
    app.on("receive", lambda context: received.append(context.message_id))

    @app.handler
    async def step(body: str) -> None:
        await go_on.wait()
        if body == "bad":
            raise RetryLater("1s")

    async with asyncio.timeout(30):
        async with app.test_client() as client:
            ends = asyncio.gather(*(client.send(step, body, group="g") for body in ("bad", "good")))
            await until(lambda: len(received) == 2)
            go_on.set()
            assert [end.outcome for end in await ends] == ["retried", "released"]
            go_on.clear()
            ends = asyncio.gather(*(client.send(step, "good", group="g") for _ in range(2)))
            await until(lambda: len(received) == 4)
            asyncio.get_running_loop().call_soon(go_on.set)
        assert [end.outcome for end in await ends] == ["deleted", "released"]


async def test_the_log_says_that_the_last_attempt_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    with caplog.at_level(logging.WARNING, "veilmq.consumer"):
        async with recorder.app.test_client() as client:
            await client.send(recorder.ship, Order(0), attempt=3)
    assert "attempt 3, is rejected: LookupError: no such article" in caplog.text
