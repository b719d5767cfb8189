"""A look at a lane costs no more than a receive: it goes past as much as one receive would, and no further."""

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import NewMessage, Send
from veilmq.core.looks import Peek
from veilmq.engines.embedded import peekable
from veilmq.engines.embedded.fifo_lane import PASSED_OVER_MAX

DEAD = "000000000000/dead"


@pytest.mark.parametrize(("cap", "shown"), [(5, []), (6, ["5"])])
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_no_more_is_passed_over_than_a_receive_buries(
    monkeypatch: pytest.MonkeyPatch, cap: int, shown: list[str], *, fifo: bool
) -> None:
    monkeypatch.setattr(peekable, "DEAD_LETTERS_PER_RECEIVE", cap)
    store = Store()
    store.create(DEAD, fifo=fifo)
    store.create(dead_letter_queue=DEAD, receives_max=2, fifo=fifo)
    for number in range(6):
        new = NewMessage(body=f"{number}", size_bytes=1, group="g" if fifo else None, dedup_id=f"{number}")
        store.run(Send(queue=QUEUE, messages=(new,)))
    for count in (6, 5):
        store.receive(count, timeout_s=0)
    store.now_ms += 1
    (peeked,) = store.run(Peek(queue=QUEUE, count=10))
    assert [each.body for each in peeked.messages] == shown
    store.close()


def test_no_more_delayed_messages_are_passed_over_than_by_a_receive() -> None:
    store = Store()
    store.create(fifo=True)
    for number in range(PASSED_OVER_MAX + 3):
        is_delayed = number not in (PASSED_OVER_MAX, PASSED_OVER_MAX + 2)
        new = NewMessage(
            body=f"{number}", size_bytes=3, group="g", dedup_id=f"{number}", delay_s=5 if is_delayed else 0
        )
        store.run(Send(queue=QUEUE, messages=(new,)))
    (peeked,) = store.run(Peek(queue=QUEUE, count=10))
    assert [each.body for each in peeked.messages] == [f"{PASSED_OVER_MAX}"] == store.bodies(10)
    store.close()
