"""Stores of records: one suite, run against each; the user's own may run it too."""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from veilmq.consumer import InFile, InMemory
from veilmq.consumer.records import Begun, RecordStore, Standing
from veilmq.testing import SteppedClock

OURS = Begun(Standing.OURS)
Open = Callable[[], RecordStore]


@pytest.fixture
def clock() -> SteppedClock:
    """Give the time of the stores."""
    return SteppedClock()


@pytest.fixture(params=["memory", "file"])
def open_store(request: pytest.FixtureRequest, clock: SteppedClock, tmp_path: Path) -> Open:
    """Return what opens the store; again, it is the same one, for another process."""
    in_memory = InMemory(clock)

    def in_file() -> RecordStore:
        store = InFile(tmp_path / "records.db", wall_s=clock.now_s)
        request.addfinalizer(store.close)
        return store

    return in_file if request.param == "file" else lambda: in_memory


@pytest.fixture
def store(open_store: Open) -> RecordStore:
    """Give an empty store."""
    return open_store()


def test_work_is_begun_once(store: RecordStore, clock: SteppedClock) -> None:
    """Whoever else asks is told how long he should wait; another key is other work."""
    assert store.begin("a", owner="one", for_s=30) == OURS
    clock.advance(10)
    assert store.begin("a", owner="two", for_s=30) == Begun(Standing.BUSY, 20)
    assert store.begin("b", owner="two", for_s=30) == OURS


def test_a_record_ends_by_itself(store: RecordStore, clock: SteppedClock) -> None:
    """As after a crash: the next one begins at the very end, and not before."""
    store.begin("a", owner="one", for_s=30)
    clock.advance(29.5)
    assert store.begin("a", owner="two", for_s=30).standing is Standing.BUSY
    clock.advance(0.5)
    assert store.begin("a", owner="two", for_s=30) == OURS


def test_an_extension_counts_from_the_call(store: RecordStore, clock: SteppedClock) -> None:
    """And is for the owner alone, for as long as it is his."""
    store.begin("a", owner="one", for_s=30)
    clock.advance(20)
    assert store.extend("a", owner="one", for_s=30)
    assert not store.extend("a", owner="two", for_s=300)
    clock.advance(29)
    assert store.begin("a", owner="two", for_s=30) == Begun(Standing.BUSY, 1)
    clock.advance(1)
    assert not store.extend("a", owner="one", for_s=30)
    assert store.begin("a", owner="two", for_s=30) == OURS


def test_what_is_done_is_remembered_for_its_time(store: RecordStore, clock: SteppedClock) -> None:
    """It is nobody's any more."""
    store.begin("a", owner="one", for_s=30)
    store.finish("a", for_s=100)
    assert not store.extend("a", owner="one", for_s=30)
    store.forget("a", owner="one")
    clock.advance(99)
    assert store.begin("a", owner="two", for_s=30) == Begun(Standing.DONE, 1)
    clock.advance(1)
    assert store.begin("a", owner="two", for_s=30) == OURS


def test_what_is_done_is_done_whoever_says_so(store: RecordStore) -> None:
    """He lost his record to another, and has done the work all the same."""
    store.begin("a", owner="two", for_s=30)
    store.finish("a", for_s=100)
    assert store.begin("a", owner="three", for_s=30).standing is Standing.DONE
    store.finish("never begun", for_s=100)
    assert store.begin("never begun", owner="three", for_s=30).standing is Standing.DONE


def test_only_the_owner_forgets(store: RecordStore) -> None:
    """Then anybody may begin."""
    store.begin("a", owner="one", for_s=30)
    store.forget("a", owner="two")
    store.forget("b", owner="two")
    assert store.begin("a", owner="two", for_s=30).standing is Standing.BUSY
    store.forget("a", owner="one")
    assert store.begin("a", owner="two", for_s=30) == OURS


def test_of_many_who_begin_at_once_one_does(open_store: Open) -> None:
    """Through several connections where there are any, key after key."""
    stores = [open_store() for _ in range(4)]
    gate = threading.Barrier(len(stores))
    answers: list[tuple[str, Standing]] = []

    def race(store: RecordStore, owner: str) -> None:
        for number in range(25):
            gate.wait()
            answers.append((f"{number}", store.begin(f"{number}", owner=owner, for_s=30).standing))

    threads = [threading.Thread(target=race, args=(store, f"{n}")) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 100
    assert sorted(key for key, standing in answers if standing is Standing.OURS) == sorted(map(str, range(25)))


def test_records_that_ended_take_no_room(clock: SteppedClock, tmp_path: Path) -> None:
    """Neither here nor there."""
    memory, file = InMemory(clock), InFile(tmp_path / "records.db", wall_s=clock.now_s)
    for number in range(20):
        for store in (memory, file):
            store.begin(f"{number}", owner="one", for_s=30)
            store.extend(f"{number}", owner="one", for_s=30)
    assert len(memory) == 20
    clock.advance(30)
    assert len(memory) == 0
    for number in range(3):
        file.begin(f"new {number}", owner="one", for_s=30)
    assert file._connection.execute("SELECT count(*) FROM record").fetchone() == (3,)
    file.close()


def test_a_file_outlives_its_process(clock: SteppedClock, tmp_path: Path) -> None:
    """What was done stays done."""
    store = InFile(tmp_path / "records.db", wall_s=clock.now_s)
    store.finish("a", for_s=100)
    store.close()
    store = InFile(tmp_path / "records.db", wall_s=clock.now_s)
    assert store.begin("a", owner="one", for_s=30) == Begun(Standing.DONE, 100)
    store.close()


def test_a_write_that_fails_leaves_the_file_usable(tmp_path: Path) -> None:
    """Its transaction is rolled back."""
    store = InFile(tmp_path / "records.db")
    with pytest.raises(TypeError):
        store.begin("a", owner="one", for_s="soon")  # type: ignore[arg-type]
    assert store.begin("a", owner="one", for_s=30) == OURS
    store.close()


def test_waiting_for_the_file_is_no_part_of_the_time(clock: SteppedClock, tmp_path: Path) -> None:
    """A record lasts from the call on: else it would outlive the lease by as long as others kept the file."""
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
        assert called.wait(60), "it has to look at the clock before it waits"
        clock.advance(3)
        other.execute("COMMIT")
        answer.result(60)
    waiting.shutdown()
    other.close()
    assert [store.begin(key, owner="two", for_s=1).left_s for key in "ab"] == [24, 37]
    store.close()
