"""Batches of the store on SQLite: what fails fails alone, and the order in which commands of a batch are applied."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.commands import Delete, Receive, Send
from veilmq.core.errors import InternalError, ReceiptState
from veilmq.store.sqlite import standard


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Return an open store with a queue."""
    host = Host(tmp_path / "store")
    host.create()
    yield host
    host.close()


def send(*bodies: str) -> Send:
    """Return a command that sends messages."""
    return Send(queue=QUEUE, messages=tuple(message(body) for body in bodies))


def test_a_command_that_fails_fails_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its batch are carried out, and what it wrote before is undone."""
    add = standard._add

    def failing(session: Any, queue: Any, command: Send, *rest: Any) -> Any:
        added = add(session, queue, command, *rest)
        if command.messages[-1].body == "bad":
            raise RuntimeError("a defect")
        return added

    monkeypatch.setattr(standard, "_add", failing)
    first, bad, second, received = host.do_together(
        send("a"), send("b", "bad"), send("c"), Receive(queue=QUEUE, count=9)
    )
    assert [len(first), len(second)] == [1, 1]
    assert isinstance(bad, InternalError)
    assert [each.body for each in received.messages] == ["a", "c"]
    host.check()
    host.reopen()
    assert host.counts() == (0, 2, 0)


def test_a_receive_does_not_see_what_is_sent_behind_it(host: Host) -> None:
    """So a client that pipelines both gets the answers of that order; the next receive has the message."""
    first, _, second = host.do_together(Receive(queue=QUEUE), send("a"), Receive(queue=QUEUE))
    assert [len(first.messages), len(second.messages)] == [0, 1]


def test_a_delete_behind_a_receive_comes_after_it(host: Host) -> None:
    """The receipt of a message whose lease has ended is superseded by a receive before it, and not by one behind it."""
    host.send("a")
    receipt = host.receive_one(timeout_s=1).receipt
    host.advance(1_000)
    received, states = host.do_together(Receive(queue=QUEUE), Delete(queue=QUEUE, receipts=(receipt,)))
    assert [len(received.messages), states] == [1, [ReceiptState.SUPERSEDED]]
    host.advance(30_000)
    again = received.messages[0].receipt
    states, late = host.do_together(Delete(queue=QUEUE, receipts=(again,)), Receive(queue=QUEUE))
    assert [states, late.messages] == [[ReceiptState.EXPIRED], []]


def test_a_receive_that_hides_nothing_leaves_its_messages_to_the_next_one(host: Host) -> None:
    """Of the same batch, too."""
    host.send("a")
    first, second = host.do_together(Receive(queue=QUEUE, timeout_s=0), Receive(queue=QUEUE))
    assert [each.receive_count for each in (*first.messages, *second.messages)] == [1, 2]


def test_queues_of_a_batch_do_not_mix(host: Host) -> None:
    """Their rows are written together."""
    names = [f"000000000000/q{number}" for number in range(5)]
    for name in names:
        host.create(name)
    host.do_together(*(Send(queue=name, messages=(message(name),)) for name in names))
    received = host.do_together(*(Receive(queue=name) for name in names))
    assert [each.messages[0].body for each in received] == names
    deletes = [
        Delete(queue=name, receipts=(each.messages[0].receipt,)) for name, each in zip(names, received, strict=True)
    ]
    assert host.do_together(*deletes) == [[ReceiptState.LIVE]] * 5
    assert host.rows("message") == 0


def test_a_command_that_is_no_hot_one_is_a_barrier(host: Host) -> None:
    """What came before it is counted, what comes behind it is not."""
    view = host.do_together(send("a"), commands.ShowQueue(queue=QUEUE, counts=True), send("b"))[1]
    assert view.counts.visible == 1


def test_large_sends_are_left_to_the_next_batch(host: Host) -> None:
    """A batch has so many bytes; all are stored, in order."""
    answers = host.do_together(*(send(f"{number}" + "x" * 900_000) for number in range(6)))
    assert all(len(answer) == 1 for answer in answers)
    bodies = [each.body[0] for _ in range(6) for each in host.receive(1)]
    assert bodies == [f"{number}" for number in range(6)]
