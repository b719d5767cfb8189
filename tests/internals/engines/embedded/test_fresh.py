"""The ready window: bounded in messages and bytes, and nothing skipped when it is refilled."""

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import NewMessage, Receive, Send
from veilmq.engines.embedded.fresh import BodyCache, FreshRun
from veilmq.engines.embedded.rows import MessageRow


def _run(store: Store, *, cache: BodyCache, window_max: int) -> FreshRun:
    return FreshRun(journal=store.journal, cache=cache, window_max=window_max, start=0, end=0)


def test_bodies_in_memory_are_bounded_by_bytes_and_given_back() -> None:
    store, cache = Store(), BodyCache(bytes_max=3_500)
    run = _run(store, cache=cache, window_max=100)
    for position in range(20):
        row = MessageRow(position, bytes(16), 0, "x" * 100, b"")
        store.journal.add_message(row)
        run.append(row)
    assert cache.bytes_left == 0  # ten messages of 100 bytes, and 250 more for each
    bodies = 0
    while run.head() is not None:
        run.take()
        bodies += 1
        assert cache.bytes_left >= 0
    assert (bodies, cache.bytes_left) == (20, 3_500)
    store.close()


def test_with_no_cache_at_all_messages_are_read_one_by_one() -> None:
    store = Store(body_cache_bytes=0)
    store.create()
    store.send("a", "b", "c")
    assert store.bodies(10) == ["a", "b", "c"]
    store.close()


def test_a_send_behind_what_is_only_on_disk_keeps_its_place() -> None:
    store = Store(ready_window_messages=2)
    store.create()
    store.send("a", "b", "c")
    assert store.bodies() == ["a"]
    store.send("d")
    assert store.bodies(10) == ["b", "c", "d"]
    store.close()


def test_a_receive_in_the_batch_of_its_send_sees_it_whatever_the_window() -> None:
    store = Store(ready_window_messages=1, body_cache_bytes=0)
    store.create()
    messages = tuple(NewMessage(body=body, size_bytes=1) for body in "abc")
    _, received = store.run(Send(queue=QUEUE, messages=messages), Receive(queue=QUEUE, count=10))
    assert [message.body for message in received.messages] == ["a", "b", "c"]
    store.close()


def test_a_message_that_was_taken_can_be_put_back_and_others_be_dropped() -> None:
    store, cache = Store(), BodyCache(bytes_max=10_000)
    run = _run(store, cache=cache, window_max=100)
    rows = [MessageRow(position, bytes(16), 0, "x" * 100, b"") for position in range(5)]
    for row in rows:
        store.journal.add_message(row)
        run.append(row)
    left = cache.bytes_left
    assert run.take() == rows[0]
    run.put_back(rows[0])
    assert (run.head(), cache.bytes_left) == (rows[0], left)
    run.drop({0, 3, 99})
    assert [run.take() for _ in range(3)] == [rows[1], rows[2], rows[4]]
    assert (run.head(), cache.bytes_left) == (None, 10_000)
    store.close()
