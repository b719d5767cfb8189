"""The invariants of a queue, each under its own name."""

import itertools
from collections import Counter

import pytest

from tests.store.host import QUEUE, Host
from veilmq.core import commands
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import NewMessage
from veilmq.core.settings import SettingValue


def test_conservation(host: Host) -> None:
    """Sent = deleted + visible + in flight + delayed + past retention + purged, at every moment of a long life."""
    host.create(visibility_timeout_s=5, retention_s=60)
    sent = ended = 0
    for turn in range(40):
        host.send(f"{turn}-a", f"{turn}-b")
        host.send(f"{turn}-c", delay_s=3)
        sent += 3
        got = host.receive(2)
        ended += sum(state is ReceiptState.LIVE for state in host.delete(*(each.receipt for each in got[:1])))
        if turn == 20:
            ended += sum(host.counts())
            host.do(commands.PurgeQueue(queue=QUEUE))
        before = sum(host.counts())
        assert sent == ended + before
        host.advance(4_000)
        ended += before - sum(host.counts())  # nothing but retention can have ended any
    host.advance(60_000)
    assert host.counts() == (0, 0, 0)


def test_retention_is_the_only_end_that_nobody_asks_for(host: Host) -> None:
    """Without it, whatever time does, the sum stays."""
    host.create(visibility_timeout_s=5)
    for turn in range(30):
        host.send(str(turn), delay_s=turn % 4)
        host.receive(turn % 3)
        host.advance(1_700)
        assert sum(host.counts()) == turn + 1


def test_exclusivity(host: Host) -> None:
    """Ten receives in one batch share ten messages without overlap, and of each message one receipt is in force."""
    host.create()
    host.send(*(str(number) for number in range(10)))
    answers = host.do_together(*(commands.Receive(queue=QUEUE, count=3) for _ in range(10)))
    got = [each for answer in answers for each in answer.messages]
    assert sorted(each.body for each in got) == [str(number) for number in range(10)]
    host.advance(30_000)
    again = host.receive(10)
    states = host.delete(*(each.receipt for each in got), *(each.receipt for each in again))
    assert states == [ReceiptState.SUPERSEDED] * 10 + [ReceiptState.LIVE] * 10


@pytest.mark.parametrize("delay_s", [0, 1, 30])
@pytest.mark.parametrize("timeout_s", [1, 30])
def test_punctuality(host: Host, delay_s: int, timeout_s: int) -> None:
    """Never before `visible_at_ms`, and by the first receive from then on; `next_due_ms` names that instant."""
    host.create(visibility_timeout_s=timeout_s)
    host.send("a", delay_s=delay_s)
    for count, hidden_s in enumerate((delay_s, timeout_s, timeout_s), start=1):
        if hidden_s:
            assert host.due_ms() == host.clock.now_ms() + hidden_s * 1_000
            host.advance(hidden_s * 1_000 - 1)
            assert host.receive(10) == []
            host.advance(1)
        assert host.due_ms() == host.clock.now_ms()
        assert host.receive_one().receive_count == count


def test_staleness(host: Host) -> None:
    """A superseded receipt changes nothing, by whatever command, however often."""
    host.create()
    host.send("a")
    old = host.receive_one(timeout_s=0)
    new = host.receive_one(timeout_s=60)
    for only_live, renew in itertools.product((False, True), repeat=2):
        assert host.delete(old.receipt, only_live=only_live) == [ReceiptState.SUPERSEDED]
        change = host.change(old.receipt, 0, only_live=only_live, renew_receipt=renew)
        assert (change.state, change.visible_at_ms, change.receipt) == (ReceiptState.SUPERSEDED, None, None)
    assert host.counts() == (0, 1, 0)
    assert host.due_ms() == new.visible_at_ms
    assert host.delete(new.receipt) == [ReceiptState.LIVE]


@pytest.mark.parametrize("delete_first", [False, True])
def test_order(kept: Host, *, delete_first: bool) -> None:
    """Each group gives its messages in the order of sending, and nothing while one is in flight, over crashes too."""
    kept.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": True}))
    bodies = [f"{group}{number}" for number in range(6) for group in "abc"]
    messages = [NewMessage(body=body, size_bytes=2, group=body[0], dedup_id=body) for body in bodies]
    kept.do(commands.Send(queue=QUEUE, messages=tuple(messages)))
    deleted: list[str] = []
    while sum(kept.counts()):
        got = kept.receive(2, timeout_s=1)
        kept.crash()
        blocked = {each.body[0] for each in got}
        others = kept.receive(20, timeout_s=1)
        assert blocked.isdisjoint(each.body[0] for each in others), "a group gave more while it was in flight"
        first = {each.body[0]: each for each in reversed([*got, *others])}
        for group, each in first.items():
            assert each.body == f"{group}{sum(body[0] == group for body in deleted)}", "not the next one of its group"
        done = got if delete_first else got[:1]
        kept.delete(*(each.receipt for each in done))
        deleted += [each.body for each in done]
        kept.advance(1_000)
    assert sorted(deleted) == sorted(bodies)


@pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "crashed"])
def test_durability(kept: Host, *, abruptly: bool) -> None:
    """What was acknowledged is there, with its lease, its receive count and its first-receive time; receipts work."""
    kept.create(visibility_timeout_s=60)
    kept.send("held", "deleted", "released")
    held, deleted, released = kept.receive(3)
    kept.delete(deleted.receipt)
    kept.change(released.receipt, 0)
    kept.send("delayed", delay_s=30)
    before = kept.counts()
    assert before == (1, 1, 1)
    if abruptly:
        kept.crash()
    else:
        kept.reopen()
    assert kept.counts() == before
    assert kept.delete(deleted.receipt) == [ReceiptState.GONE]
    back = kept.receive_one()
    assert (back.body, back.receive_count, back.id) == ("released", 2, released.id)
    assert back.first_received_at_ms == released.first_received_at_ms
    assert kept.due_ms() == kept.clock.now_ms() + 30_000
    kept.advance(59_999)
    assert kept.receive_one().body == "delayed"
    assert kept.change(held.receipt, 1).state is ReceiptState.LIVE
    assert kept.delete(held.receipt) == [ReceiptState.LIVE]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("receives_max", [1, 3])
def test_mortality(kept: Host, receives_max: int, *, fifo: bool) -> None:
    """Each message is given out exactly as often as its queue allows, then dead-lettered, once, over crashes too."""
    dead = "000000000000/dead"
    redrive: dict[str, SettingValue] = {"dead_letter_queue": dead, "receives_max": receives_max}
    kept.do(commands.CreateQueue(queue=dead, settings={"fifo": fifo}))
    kept.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": fifo, **redrive}))
    bodies = [str(number) for number in range(8)]
    messages = [NewMessage(body=body, size_bytes=1, group=body if fifo else None, dedup_id=body) for body in bodies]
    kept.do(commands.Send(queue=QUEUE, messages=tuple(messages)))
    given = Counter[str]()
    while sum(kept.counts()):
        given.update(each.body for each in kept.receive(3, timeout_s=1))
        kept.crash()
        assert sum(kept.counts()) + sum(kept.counts(dead)) == len(bodies)
        kept.advance(500)
    assert given == dict.fromkeys(bodies, receives_max)
    arrived = kept.receive(10, queue=dead)
    assert sorted(each.body for each in arrived) == bodies
    assert {(each.receive_count, each.source) for each in arrived} == {(receives_max + 1, QUEUE)}
