"""A repetition of an attempt tells who waits what it frees: the place of each message, and its group."""

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import NewMessage, Receive, Send


def test_a_repetition_that_releases_its_message_is_heard_of_at_the_limit() -> None:
    store = Store()
    store.create(fifo=True, in_flight_max=1)
    for group in "ab":
        new = NewMessage(body=group, size_bytes=1, group=group, dedup_id=group)
        store.run(Send(queue=QUEUE, messages=(new,)))
    attempt = Receive(queue=QUEUE, attempt_id="x", timeout_s=30)
    first, second = store.run(attempt, Receive(queue=QUEUE))
    assert (len(first.messages), second.messages) == (1, [])
    told: list[int] = []
    store.machine.watch(QUEUE, told.append)
    (again,) = store.run(Receive(queue=QUEUE, attempt_id="x", timeout_s=0))
    assert again.messages[0].receipt == first.messages[0].receipt
    assert told == [store.now_ms]
    store.close()
