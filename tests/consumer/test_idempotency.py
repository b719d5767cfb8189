"""Idempotent handlers and the stores of their records."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.consumer import acting
from tests.consumer.workbench import WAIT, WAIT_MS, Job, Workbench, event, until
from tests.testing.advancing import AdvancingClock
from veilmq.client import NewMessage, ReceivedMessage
from veilmq.consumer import Backoff, Batch, ByKey, ByMessageId, Consumer, Drop, Fixed, InFile, InMemory
from veilmq.consumer.records import STORE_CALLS_MAX, Begun, RecordStore, Standing
from veilmq.testing import faults

BRISK = Fixed(10, every=0.02)
ELSEWHERE = "another worker"


class ObservedStore(InMemory):
    """A store that a test observes, blocks and makes fail."""

    def __init__(self) -> None:
        self.clock = AdvancingClock()
        super().__init__(self.clock)
        self.extended = self.begins = 0
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.extensions = threading.Event()
        self.extensions.set()
        self.fails: set[str] = set()

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        self._fail("begin")
        self.begins += 1
        self.begun.set()
        self.gate.wait()
        return super().begin(key, owner=owner, for_s=for_s)

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        self.extended += 1
        self._fail("extend")
        self.extensions.wait()
        return super().extend(key, owner=owner, for_s=for_s)

    async def block_extensions(self) -> None:
        """Return when all threads that extend records wait for ``extensions``."""
        self.extensions.clear()
        waiting = self.extended + STORE_CALLS_MAX
        await until(lambda: self.extended >= waiting)

    def finish(self, key: str, *, for_s: float) -> None:
        self._fail("finish")
        super().finish(key, for_s=for_s)

    def _fail(self, what: str) -> None:
        if what in self.fails:
            raise ConnectionError("the store is down")


@pytest.fixture
def store() -> ObservedStore:
    return ObservedStore()


@pytest.mark.parametrize("result", [None, Drop()], ids=["done", "dropped"])
async def test_a_message_done_by_another_worker_is_deleted_unhandled(
    bench: Workbench, store: ObservedStore, result: object
) -> None:
    bodies: list[str] = []

    async def work(body: str) -> object:
        bodies.append(body)
        return result

    async def one_worker(*sent: str) -> int:
        async with bench.handling(work, *sent, idempotency=ByMessageId(store), lease=30) as running:
            await until(lambda: event(running, "received"))
            await bench.settled(running)
            return event(running, "recognised")

    bench.server.faults.script("DeleteMessageBatch", faults.IGNORED)
    assert await one_worker("x") == 0
    assert bench.counts("orders") == (0, 1)
    bench.server.advance(seconds=30)
    assert await one_worker() == 1
    assert bodies == ["x"]
    assert bench.counts("orders") == (0, 0)


async def test_work_in_progress_elsewhere_is_retried_after_its_record(bench: Workbench, store: ObservedStore) -> None:
    """These retries do not count towards the limit of attempts."""
    job = Job()
    job.go_on.set()
    bench.client.create_queue("orders")
    sent = bench.client.send("orders", "x").id
    store.begin(f"orders:{sent}", owner=ELSEWHERE, for_s=19.5)
    retry = Backoff("1s", attempts=1)
    async with bench.handling(job.work, idempotency=ByMessageId(store), retry=retry) as running:
        await until(lambda: event(running, "retried"))
        await bench.settled(running)
        assert (job.bodies, bench.counts("orders")) == ([], (0, 1))
        bench.server.advance(seconds=19)
        await bench.settled(running)
        assert bench.counts("orders") == (0, 1)
        store.clock.advance(20)
        bench.server.advance(seconds=1)
        await until(lambda: job.bodies)
        await bench.settled(running)
    assert bench.counts("orders") == (0, 0)


async def test_a_record_is_extended_with_the_lease(bench: Workbench, store: ObservedStore) -> None:
    """A store that fails is called again with the next renewal."""
    job = Job()
    store.fails = {"extend"}
    async with bench.handling(job.work, "x", idempotency=ByMessageId(store), lease=BRISK) as running:
        await until(lambda: store.extended > 1)
        store.fails = set()
        store.clock.advance(9.9)
        seen = store.extended
        await until(lambda: store.extended > seen + 1)
        store.clock.advance(5)
        other = store.begin(f"orders:{bench.sent[0]}", owner=ELSEWHERE, for_s=1)
        assert other.left_s == pytest.approx(5, abs=0.5)
        job.go_on.set()
        await bench.settled(running)
    assert count(store) == 1
    assert bench.counts("orders") == (0, 0)


async def test_an_extension_after_the_end_of_the_work_has_no_effect(
    bench: Workbench, store: ObservedStore, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    store.extensions.clear()
    async with bench.handling(job.work, "x", idempotency=ByMessageId(store), lease=BRISK) as running:
        await until(lambda: store.extended)
        job.go_on.set()
        await until(lambda: event(running, "acked"))
        store.begun.clear()
        store.extensions.set()
        await bench.settled(running)
        await until(lambda: not running.runners[0].threads_at_work - running.runners[0].polling)
    assert (bench.counts("orders"), store.begun.is_set()) == ((0, 0), False)
    assert "belongs to another worker" not in caplog.text


async def test_a_handler_is_cancelled_if_another_worker_took_its_record(bench: Workbench, store: ObservedStore) -> None:
    job = Job()
    async with bench.handling(job.work, "x", idempotency=ByMessageId(store), lease=BRISK) as running:
        await store.block_extensions()
        store.clock.advance(60)
        assert store.begin(f"orders:{bench.sent[0]}", owner=ELSEWHERE, for_s=60).standing is Standing.OURS
        store.extensions.set()
        await until(lambda: event(running, "left"))
    assert job.cancelled == ["x"]


async def test_an_expired_record_without_a_new_owner_is_begun_again(bench: Workbench, store: ObservedStore) -> None:
    job = Job()
    async with bench.handling(job.work, "x", idempotency=ByMessageId(store), lease=BRISK) as running:
        await store.block_extensions()
        store.clock.advance(60)
        assert count(store) == 0
        store.gate.clear()
        store.extensions.set()
        await until(lambda: store.begins > STORE_CALLS_MAX)  # each thread found it expired, and begins it
        later = store.extended + 2 * STORE_CALLS_MAX
        store.gate.set()
        await until(lambda: store.extended >= later or event(running, "left"))
        assert count(store) == 1
        job.go_on.set()
        await bench.settled(running)
        assert (event(running, "left"), event(running, "acked")) == (0, 1)
    assert count(store) == 1


async def test_a_record_begun_again_after_a_failure_is_removed(bench: Workbench, store: ObservedStore) -> None:
    go_on = asyncio.Event()

    async def work(body: str) -> None:
        await go_on.wait()
        raise LookupError("not now")

    options: Any = {"lease": BRISK, "retry": Backoff("1h", jitter="none")}
    async with bench.handling(work, "x", idempotency=ByMessageId(store), **options) as running:
        await until(lambda: store.extended)
        store.begun.clear()
        store.gate.clear()
        store.clock.advance(60)
        await until(store.begun.is_set)
        go_on.set()
        await until(lambda: event(running, "retried"))
        store.gate.set()
        await bench.settled(running)
        await until(lambda: not running.runners[0].threads_at_work - running.runners[0].polling)
    assert count(store) == 0


async def test_a_renewal_during_a_slow_begin_extends_the_record(bench: Workbench, store: ObservedStore) -> None:
    job = Job()
    store.gate.clear()
    async with bench.handling(job.work, "x", idempotency=ByMessageId(store), lease=300) as running:
        await until(store.begun.is_set)
        (lease,) = running.table.open_leases()
        await lease.confirmed()
        store.gate.set()
        await until(lambda: store.extended)
        job.go_on.set()
        await bench.settled(running)


async def test_failed_work_leaves_no_record(bench: Workbench, store: ObservedStore) -> None:
    once: Any = {"idempotency": ByMessageId(store), "retry": Backoff(0)}
    async with bench.handling(acting.act_async, "crash", **once) as running:
        await until(lambda: event(running, "acked"))
        await bench.settled(running)
        assert event(running, "started") == 2
    assert (bench.counts("orders"), count(store)) == ((0, 0), 1)


@pytest.mark.parametrize(("base_s", "delay_s"), [(0, 1), (2, 2)])
async def test_a_failing_store_delays_messages_and_loses_none(
    bench: Workbench, store: ObservedStore, base_s: int, delay_s: int
) -> None:
    """Retries do not reject the message; finished work is deleted all the same."""
    job = Job()
    job.go_on.set()
    store.fails = {"begin"}
    once: Any = {"idempotency": ByMessageId(store), "retry": Backoff(base_s, jitter="none", attempts=1)}
    async with bench.handling(job.work, "x", **once) as running:
        await until(lambda: event(running, "retried"))
        await bench.settled(running)
        assert (job.bodies, bench.counts("orders")) == ([], (0, 1))
        store.fails = {"finish"}
        bench.server.advance(1_000 * delay_s - 1)
        assert bench.counts("orders") == (0, 1)
        bench.server.advance(1)
        await until(lambda: job.bodies)
        await bench.settled(running)
    assert bench.counts("orders") == (0, 0)


async def test_messages_with_one_key_share_a_record(bench: Workbench, store: ObservedStore) -> None:
    """Also in a batch; a message whose key cannot be computed is rejected."""
    app = bench.consumer("orders", dead_letter_queue="")
    done: list[str] = []

    def order_of(message: ReceivedMessage) -> Any:
        return message.group if message.body == "None" else message.body.split("=")[1]

    @app.batch(linger=0, wait=WAIT, idempotency=ByKey(store, order_of, "1h"), retry=Backoff(0, attempts=1),
               dead_letter="dead")  # fmt: skip
    async def work(batch: Batch[str]) -> None:
        done.extend(batch.bodies)

    bench.client.send("orders", "order=1")
    async with bench.working(app) as running:
        await until(lambda: done)
        bench.client.send_batch(
            "orders", [NewMessage(body=body) for body in ("order=1", "order=2", "nonsense", *["None"] * 2)]
        )
        await until(lambda: bench.counts("dead") == (3, 0))
        await bench.settled(running)
        assert event(running, "recognised") == 1
    assert done == ["order=1", "order=2"]
    assert bench.counts("orders") == (0, 0)


async def test_two_workers_do_each_work_once(bench: Workbench, tmp_path: Path) -> None:
    """One names the queue, the other has its URL."""
    done: list[str] = []

    async def work(body: str) -> None:
        await asyncio.sleep(0)
        done.append(body)

    def worker(store: InFile, queue: str) -> Consumer:
        app = Consumer(queue, endpoint=bench.server.endpoint, grace="10s")
        app.declare(work, wait=WAIT, lease=30, idempotency=ByKey(store, lambda message: message.body))
        return app

    url = bench.client.create_queue("raced")
    for _ in range(4):
        bench.client.send_batch("raced", [NewMessage(body=f"{number}") for number in range(5)])
    stores = [InFile(tmp_path / "records.db") for _ in range(2)]
    async with bench.working(worker(stores[0], "raced")), bench.working(worker(stores[1], url)):
        while sum(bench.counts("raced")):
            bench.server.advance(WAIT_MS)
            await asyncio.sleep(0)
    for store in stores:
        store.close()
    assert sorted(done) == ["0", "1", "2", "3", "4"]


async def test_a_stop_releases_a_message_whose_store_is_slow(bench: Workbench, store: ObservedStore) -> None:
    store.gate.clear()
    async with bench.handling(refuse, "x", grace="0s", idempotency=ByMessageId(store)) as running:
        await until(store.begun.is_set)
        stopping = asyncio.create_task(bench.stop(running))
        await until(lambda: running.runners[0]._cancelling)
        store.gate.set()
        await stopping
        assert running.exit_code == 0
    assert (bench.counts("orders"), count(store)) == ((1, 0), 0)


async def test_a_message_lost_during_the_begin_is_not_handled(bench: Workbench, store: ObservedStore) -> None:
    store.gate.clear()
    async with bench.handling(refuse, "x", idempotency=ByMessageId(store), lease=BRISK) as running:
        await until(store.begun.is_set)
        bench.client.purge("orders")
        await until(lambda: event(running, "lost"))
        store.gate.set()
        await until(lambda: event(running, "left"))
        await bench.settled(running)
    assert count(store) == 0


async def refuse(body: str) -> None:
    raise AssertionError("the handler must not begin")


def test_a_ttl_of_zero_is_refused(store: ObservedStore) -> None:
    with pytest.raises(ValueError, match="nothing would be remembered"):
        ByMessageId(store, ttl=0)


OURS = Begun(Standing.OURS)
Open = Callable[[], RecordStore]


def count(store: InFile) -> int:
    """Return the number of records that have not expired."""
    query = "SELECT count(*) FROM record WHERE expires_at_s > ?"
    found: int = store._connection.execute(query, (store._now_s(),)).fetchone()[0]
    return found


@pytest.fixture
def clock() -> AdvancingClock:
    return AdvancingClock()


@pytest.fixture(params=["memory", "file"])
def open_store(request: pytest.FixtureRequest, clock: AdvancingClock, tmp_path: Path) -> Open:
    in_memory = InMemory(clock)

    def in_file() -> RecordStore:
        store = InFile(tmp_path / "records.db", wall_s=clock.now_s)
        request.addfinalizer(store.close)
        return store

    return in_file if request.param == "file" else lambda: in_memory


@pytest.fixture
def records(open_store: Open) -> RecordStore:
    return open_store()


def test_a_key_is_begun_by_one_owner_until_its_record_expires(records: RecordStore, clock: AdvancingClock) -> None:
    assert records.begin("a", owner="one", for_s=30) == OURS
    clock.advance(10)
    assert records.begin("a", owner="two", for_s=30) == Begun(Standing.BUSY, 20)
    assert records.begin("b", owner="two", for_s=30) == OURS
    clock.advance(19.5)
    assert records.begin("a", owner="two", for_s=30).standing is Standing.BUSY
    clock.advance(0.5)
    assert records.begin("a", owner="two", for_s=30) == OURS


def test_only_the_owner_extends_a_record_and_from_the_call_on(records: RecordStore, clock: AdvancingClock) -> None:
    records.begin("a", owner="one", for_s=30)
    clock.advance(20)
    assert records.extend("a", owner="one", for_s=30)
    assert not records.extend("a", owner="two", for_s=300)
    clock.advance(29)
    assert records.begin("a", owner="two", for_s=30) == Begun(Standing.BUSY, 1)
    clock.advance(1)
    assert not records.extend("a", owner="one", for_s=30)
    assert records.begin("a", owner="two", for_s=30) == OURS


def test_finished_work_is_kept_for_its_ttl(records: RecordStore, clock: AdvancingClock) -> None:
    records.begin("a", owner="one", for_s=30)
    records.finish("a", for_s=100)
    assert not records.extend("a", owner="one", for_s=30)
    records.forget("a", owner="one")
    clock.advance(99)
    assert records.begin("a", owner="two", for_s=30) == Begun(Standing.DONE, 1)
    clock.advance(1)
    assert records.begin("a", owner="two", for_s=30) == OURS


def test_any_worker_can_finish_a_key(records: RecordStore) -> None:
    """The worker may have lost its record to another."""
    records.begin("a", owner="two", for_s=30)
    records.finish("a", for_s=100)
    assert records.begin("a", owner="three", for_s=30).standing is Standing.DONE
    records.finish("never begun", for_s=100)
    assert records.begin("never begun", owner="three", for_s=30).standing is Standing.DONE


def test_only_the_owner_removes_a_record(records: RecordStore) -> None:
    records.begin("a", owner="one", for_s=30)
    records.forget("a", owner="two")
    records.forget("b", owner="two")
    assert records.begin("a", owner="two", for_s=30).standing is Standing.BUSY
    records.forget("a", owner="one")
    assert records.begin("a", owner="two", for_s=30) == OURS


def test_one_of_many_concurrent_begins_succeeds(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    gate = threading.Barrier(len(stores))
    answers: list[tuple[str, Standing]] = []

    def race(records: RecordStore, owner: str) -> None:
        for number in range(25):
            gate.wait()
            answers.append((f"{number}", records.begin(f"{number}", owner=owner, for_s=30).standing))

    threads = [threading.Thread(target=race, args=(records, f"{n}")) for n, records in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 100
    assert sorted(key for key, standing in answers if standing is Standing.OURS) == sorted(map(str, range(25)))


def test_expired_records_are_deleted(clock: AdvancingClock, tmp_path: Path) -> None:
    memory, file = InMemory(clock), InFile(tmp_path / "records.db", wall_s=clock.now_s)
    for number in range(20):
        for store in (memory, file):
            store.begin(f"{number}", owner="one", for_s=30)
            store.extend(f"{number}", owner="one", for_s=30)
    assert count(memory) == 20
    clock.advance(30)
    assert count(memory) == 0
    for number in range(3):
        file.begin(f"new {number}", owner="one", for_s=30)
    assert file._connection.execute("SELECT count(*) FROM record").fetchone() == (3,)
    file.close()


def test_records_in_a_file_survive_a_restart(clock: AdvancingClock, tmp_path: Path) -> None:
    store = InFile(tmp_path / "records.db", wall_s=clock.now_s)
    store.finish("a", for_s=100)
    store.close()
    store = InFile(tmp_path / "records.db", wall_s=clock.now_s)
    assert store.begin("a", owner="one", for_s=30) == Begun(Standing.DONE, 100)
    store.close()


def test_the_file_is_usable_after_a_failed_write(tmp_path: Path) -> None:
    store = InFile(tmp_path / "records.db")
    with pytest.raises(TypeError):
        store.begin("a", owner="one", for_s="soon")  # type: ignore[arg-type]
    assert store.begin("a", owner="one", for_s=30) == OURS
    store.close()


def test_a_record_counts_from_the_call_not_from_the_lock_of_the_file(clock: AdvancingClock, tmp_path: Path) -> None:
    """Otherwise it would outlive the lease."""
    path = tmp_path / "records.db"
    called = threading.Event()

    def wall_s() -> float:
        called.set()
        return clock.now_s()

    store = InFile(path, wall_s=wall_s)
    store.begin("b", owner="one", for_s=30)
    other = sqlite3.connect(path, isolation_level=None)
    waiting = ThreadPoolExecutor(2)
    for call in (partial(store.begin, "a", owner="one", for_s=30), partial(store.extend, "b", owner="one", for_s=40)):
        called.clear()
        other.execute("BEGIN IMMEDIATE")
        answer = waiting.submit(call)
        assert called.wait(60), "it must read the clock before it waits"
        clock.advance(3)
        other.execute("COMMIT")
        answer.result(60)
    waiting.shutdown()
    other.close()
    assert [store.begin(key, owner="two", for_s=1).left_s for key in "ab"] == [24, 37]
    store.close()
