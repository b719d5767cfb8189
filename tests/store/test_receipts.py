"""Batches of receipts (the effects of one receipt: `test_model`), watches, and withdrawn commands."""

from functools import partial
from operator import eq
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.commands import VisibilityChange
from veilmq.core.errors import InternalError, LeaseTooLong, ReceiptInvalid, ReceiptState, ShuttingDown

OTHER = "000000000000/other"


@pytest.fixture
def one(host: Host) -> Host:
    host.create()
    host.create(OTHER)
    host.send("a")
    return host


def test_each_delete_of_a_batch_has_its_own_result(one: Host) -> None:
    one.send("b", "c")
    a, b, _ = (each.receipt for each in one.receive(10))
    first, second, third, fourth = one.delete(a, "nonsense", a, b)
    assert (first, third, fourth) == (ReceiptState.LIVE, ReceiptState.GONE, ReceiptState.LIVE)
    assert isinstance(second, ReceiptInvalid)
    assert one.counts() == (0, 1, 0)


def test_each_visibility_change_of_a_batch_has_its_own_result(one: Host) -> None:
    receipt = one.receive_one().receipt
    changes = [("nonsense", 1), (receipt, 5), (receipt, 43_201), (receipt, 9)]
    answers = one.do(
        commands.ChangeVisibility(
            queue=QUEUE, changes=tuple(VisibilityChange(receipt=text, timeout_s=after) for text, after in changes)
        )
    )
    assert isinstance(answers[0], ReceiptInvalid)
    assert isinstance(answers[2], LeaseTooLong)
    assert [answer.state for answer in (answers[1], answers[3])] == [ReceiptState.LIVE] * 2
    assert one.due_ms() == one.clock.now_ms() + 9_000


def test_a_receipt_may_act_only_while_it_is_live(one: Host) -> None:
    receipt = one.receive_one(timeout_s=1).receipt
    one.advance(1_000)
    assert one.delete(receipt, only_live=True) == [ReceiptState.EXPIRED]
    assert one.change(receipt, 30, only_live=True).state is ReceiptState.EXPIRED
    assert one.counts() == (1, 0, 0)
    assert one.delete(receipt) == [ReceiptState.EXPIRED]
    assert one.counts() == (0, 0, 0)


class Watcher:
    """Record wake-ups of a queue; with ``receives``, submit a receive at each."""

    def __init__(self, host: Host, *, receives: bool = False) -> None:
        self.woken_ms: list[int] = []
        self.answers: list[Any] = []
        self._host = host
        self._receives = receives
        host.engine.watch(QUEUE, self._wake)

    def _wake(self, due_ms: int) -> None:
        self.woken_ms.append(due_ms)
        if self._receives:
            self._host.engine.submit(commands.Receive(queue=QUEUE), self.answers.append)


def test_a_visibility_change_wakes_with_the_new_deadline(host: Host) -> None:
    host.create()
    host.send("a")
    old = host.receive_one(timeout_s=0)
    new = host.receive_one()
    watcher = Watcher(host)
    host.change(old.receipt, 0)
    assert watcher.woken_ms == []
    host.change(new.receipt, 3)
    host.change(new.receipt, 0)
    now_ms = host.clock.now_ms()
    assert watcher.woken_ms == [now_ms + 3_000, now_ms]


@pytest.mark.differs_on_postgres("there are no batches")
def test_a_receive_submitted_by_a_watch_is_applied_next_in_the_batch(host: Host) -> None:
    host.create()
    watcher = Watcher(host, receives=True)
    _, late = host.do_together(commands.Send(queue=QUEUE, messages=(message("a"),)), commands.Receive(queue=QUEUE))
    assert [each.body for each in watcher.answers[0].messages] == ["a"]
    assert late.messages == []


def test_other_queues_do_not_wake_a_watch_and_unwatch_ends_it(host: Host) -> None:
    host.create()
    host.create("a/other")
    watcher = Watcher(host)
    host.send("a", queue="a/other")
    assert watcher.woken_ms == []
    host.engine.unwatch(QUEUE)
    host.send("a")
    assert watcher.woken_ms == []


def test_a_receive_returns_the_time_of_the_next_message(host: Host) -> None:
    host.create(receive_wait_s=7)
    now_ms = host.clock.now_ms()
    answer = host.do(commands.Receive(queue=QUEUE))
    assert (answer.messages, answer.next_due_ms, answer.receive_wait_s) == ([], None, 7)
    host.send("a", delay_s=20)
    assert host.due_ms() == now_ms + 20_000
    host.send("b")
    assert host.due_ms() == now_ms
    held = host.receive_one(timeout_s=10)
    assert host.due_ms() == now_ms + 10_000
    host.delete(held.receipt)
    assert host.due_ms() == now_ms + 20_000


def test_withdrawing_an_answered_command_has_no_effect(host: Host) -> None:
    host.create()
    answers: list[Any] = []
    host.in_loop(lambda: host.engine.submit(commands.Receive(queue=QUEUE), answers.append))
    assert host.engine.withdraw(partial(eq, answers.append)) == []
    assert len(answers) == 1


def test_closing_completes_submitted_commands_and_refuses_later_ones(durable: Host) -> None:
    durable.create()
    answers = durable.close_with(
        commands.Send(queue=QUEUE, messages=(message("before"),)),
        commands.Send(queue=QUEUE, messages=(message("after"),)),
    )
    assert not isinstance(answers[0], Exception)
    assert isinstance(answers[1], ShuttingDown)
    assert durable.receive_one().body == "before"


@pytest.mark.differs_on_postgres("watches are called after the commit, so their failure cannot undo it")
def test_a_failing_watch_fails_only_its_send(host: Host) -> None:
    host.create()

    def fail(due_ms: int) -> None:
        raise RuntimeError(due_ms)

    host.engine.watch(QUEUE, fail)
    with pytest.raises(Exception, match="failed on this request"):
        host.send("a")
    host.engine.unwatch(QUEUE)
    assert host.counts() == (0, 0, 0)
    host.send("b")
    assert host.receive_one().body == "b"


@pytest.mark.differs_on_postgres("watches are called after the commit, so their failure cannot undo it")
def test_a_fifo_message_of_a_failed_batch_is_no_duplicate_of_itself(host: Host) -> None:
    """The commands run again, each alone, and the deduplication log has nothing of their first run."""
    host.create()
    host.create(OTHER, fifo=True)

    def fail(due_ms: int) -> None:
        raise RuntimeError(due_ms)

    host.engine.watch(QUEUE, fail)
    fine = commands.Send(queue=OTHER, messages=(message("a", group="g", dedup_id="a"),))
    results = host.do_together(fine, commands.Send(queue=QUEUE, messages=(message("b"),)))
    assert [isinstance(each, InternalError) for each in results] == [False, True]
    assert host.bodies(queue=OTHER) == ["a"]


def test_a_send_wakes_at_the_end_of_its_delay_and_a_refused_one_does_not(host: Host) -> None:
    host.create(message_bytes_max=1_024)
    watcher = Watcher(host)
    host.put(message("x" * 2_000))
    host.send("a")
    host.send("b", delay_s=5)
    host.send("c", "d", delay_s=7)
    now_ms = host.clock.now_ms()
    assert watcher.woken_ms == [now_ms, now_ms + 5_000, now_ms + 7_000]


def test_a_withdrawn_receive_takes_nothing(host: Host) -> None:
    host.create()
    host.send("a")
    answers: list[Any] = []
    withdrawn: list[Any] = []

    def submit_and_withdraw() -> None:
        host.engine.submit(commands.Receive(queue=QUEUE), answers.append)
        withdrawn.extend(host.engine.withdraw(partial(eq, answers.append)))

    host.in_loop(submit_and_withdraw)
    assert (answers, withdrawn) == ([], [answers.append])
    assert host.counts() == (1, 0, 0)
