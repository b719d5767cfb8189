"""Dead letters: who may have which dead-letter queue, when a message goes there, and what it keeps."""

from pathlib import Path
from typing import Any

import pytest

from tests.store.dead_letters import DEAD, DEEPER, LONG_S, bodies, change, create, pair, wear_out
from tests.store.host import QUEUE, Host
from tests.store.stores import on_sqlite
from veilmq.core import commands, results
from veilmq.core.errors import DeadLetterQueueRefused, QueueNotFound
from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE
from veilmq.core.results import ReceiptState
from veilmq.core.settings import SettingValue

# Who may have which.


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ({}, None, "does not exist"),
        ({"fifo": True}, {}, "of another type"),
        ({}, {"fifo": True}, "of another type"),
        ({}, {"redrive_permission": "none"}, "does not allow"),
        ({}, {"redrive_permission": "listed", "redrive_sources": (DEEPER,)}, "does not allow"),
    ],
)
@pytest.mark.parametrize("later", [False, True], ids=["created", "set"])
def test_a_dead_letter_queue_that_cannot_serve_is_refused(
    host: Host, ours: dict[str, SettingValue], theirs: dict[str, SettingValue] | None, why: str, *, later: bool
) -> None:
    """Missing, of another type, or without the permission; nothing is changed then."""
    if theirs is not None:
        create(host, DEAD, **theirs)
    redrive: dict[str, SettingValue] = {"dead_letter_queue": DEAD, "receives_max": 3}
    if later:
        create(host, QUEUE, **ours)
        with pytest.raises(DeadLetterQueueRefused, match=why):
            change(host, QUEUE, **redrive)
        assert host.do(commands.ShowQueue(queue=QUEUE)).settings.dead_letter_queue == ""
    else:
        with pytest.raises(DeadLetterQueueRefused, match=why):
            create(host, QUEUE, **ours, **redrive)
        with pytest.raises(QueueNotFound):
            host.counts()


def test_a_queue_is_not_another_accounts_dead_letter_queue(host: Host) -> None:
    """The rule that looks at names alone."""
    create(host, QUEUE)
    create(host, "111111111111/dead")
    with pytest.raises(DeadLetterQueueRefused, match="another account"):
        change(host, QUEUE, dead_letter_queue="111111111111/dead", receives_max=3)


@pytest.mark.parametrize(
    "theirs",
    [{}, {"redrive_permission": "all"}, {"redrive_permission": "listed", "redrive_sources": (DEEPER, QUEUE)}],
)
def test_a_dead_letter_queue_that_allows_it_serves(host: Host, theirs: dict[str, SettingValue]) -> None:
    """Everyone, or those that are listed."""
    create(host, DEAD, **theirs)
    create(host, QUEUE, dead_letter_queue=DEAD, receives_max=1)
    host.send("a")
    wear_out(host, 2)
    assert host.counts(DEAD) == (1, 0, 0)


def test_other_settings_can_be_changed_while_the_dead_letter_queue_is_gone(host: Host) -> None:
    """Only who names one is asked whether it can serve."""
    pair(host)
    host.do(commands.DeleteQueue(queue=DEAD))
    change(host, QUEUE, visibility_timeout_s=7)
    with pytest.raises(DeadLetterQueueRefused):
        change(host, QUEUE, dead_letter_queue=DEAD, receives_max=5)
    change(host, QUEUE, dead_letter_queue="", receives_max=0)


def test_the_sources_of_a_dead_letter_queue_are_listed(kept: Host) -> None:
    """By name, in pages, as they are now; also after a restart and for one that was created anew."""
    create(kept, DEAD)
    names = [f"000000000000/source-{number}" for number in range(5)]
    for name in reversed(names):
        create(kept, name, dead_letter_queue=DEAD, receives_max=3)
    create(kept, QUEUE)
    change(kept, names[1], dead_letter_queue="", receives_max=0)
    change(kept, QUEUE, dead_letter_queue=DEAD, receives_max=1)
    kept.do(commands.DeleteQueue(queue=names[3]))
    left = [QUEUE, names[0], names[2], names[4]]
    for _ in range(2):
        page = kept.do(commands.ListDeadLetterSources(queue=DEAD))
        assert (page.names, page.more) == (left, False)
        page = kept.do(commands.ListDeadLetterSources(queue=DEAD, count=3))
        assert (page.names, page.more) == (left[:3], True)
        page = kept.do(commands.ListDeadLetterSources(queue=DEAD, count=3, after=left[2]))
        assert (page.names, page.more) == (left[3:], False)
        kept.reopen()
    kept.do(commands.DeleteQueue(queue=DEAD))
    with pytest.raises(QueueNotFound):
        kept.do(commands.ListDeadLetterSources(queue=DEAD))
    assert kept.do(commands.ListDeadLetterSources(queue=QUEUE)).names == []


# When a message goes there.


def test_a_message_is_received_so_often_and_then_moved(host: Host) -> None:
    """It goes when it would be received once too often, in that receive, which looks further."""
    pair(host, receives_max=2)
    host.send("poison")
    assert [host.receive_one(timeout_s=0).receive_count for _ in range(2)] == [1, 2]
    host.send("sound")
    assert (host.counts(), host.counts(DEAD)) == ((2, 0, 0), (0, 0, 0))
    assert bodies(host) == ["sound"]
    assert (host.counts(), host.counts(DEAD)) == ((1, 0, 0), (1, 0, 0))
    assert bodies(host, DEAD) == ["poison"]


def test_a_lower_limit_counts_for_messages_that_are_there(host: Host) -> None:
    """The limit is the queue's, as it is now."""
    pair(host, receives_max=5)
    host.send("a")
    wear_out(host, 2)
    change(host, QUEUE, dead_letter_queue=DEAD, receives_max=2)
    assert bodies(host) == []
    assert bodies(host, DEAD) == ["a"]


def test_a_receive_moves_a_bounded_number_and_says_that_there_is_more(host: Host) -> None:
    """Many dead letters take several receives, each of them short; the sound message behind them comes in the end."""
    pair(host, receives_max=1, visibility_timeout_s=1)
    dead = 2 * DEAD_LETTERS_PER_RECEIVE + 50
    for start in range(0, dead, 50):
        host.send(*(str(number) for number in range(start, start + 50)))
    wear_out(host, 1)
    host.send("sound")
    found = []
    for receives in range(1, 4):
        received = host.do(commands.Receive(queue=QUEUE, count=10))
        found += [each.body for each in received.messages]
        moved = min(dead, receives * DEAD_LETTERS_PER_RECEIVE)
        assert host.counts(DEAD) == (moved, 0, 0)
        if moved < dead:
            assert received.next_due_ms == host.clock.now_ms()
    assert found == ["sound"]


@pytest.mark.differs_on_postgres("a statement moves all that it meets, at most as many messages as were asked for")
def test_a_receive_moves_a_bounded_number_of_bytes(host: Host) -> None:
    """Large dead letters are few in a receive."""
    pair(host, receives_max=1)
    host.send(*["x" * 700_000] * 3)
    wear_out(host, 1)
    assert bodies(host) == []
    assert host.counts(DEAD) == (2, 0, 0)
    assert host.due_ms() == host.clock.now_ms()
    assert bodies(host) == []
    assert (host.counts(), host.counts(DEAD)) == ((0, 0, 0), (3, 0, 0))


def test_the_dead_letter_queue_is_roused_once_a_receive(host: Host) -> None:
    """However many come to it; and not for nothing."""
    pair(host, receives_max=1)
    host.send("a", "b", "c")
    wear_out(host, 1)
    woken: list[int] = []
    host.engine.watch(DEAD, woken.append)
    assert host.receive(10) == []
    assert woken == [host.clock.now_ms()]
    assert host.receive(10) == []
    assert len(woken) == 1


def test_a_poll_on_the_dead_letter_queue_is_answered_in_the_same_batch(host: Host) -> None:
    """Whoever waits there gets the message as soon as it has come."""
    pair(host, receives_max=1)
    host.send("a")
    wear_out(host, 1)
    got: list[Any] = []
    take = commands.Receive(queue=DEAD)
    host.engine.watch(DEAD, lambda due_ms: host.engine.submit(take, got.append))
    assert host.receive(10) == []
    assert [each.body for answer in got for each in answer.messages] == ["a"]


# What it keeps.


def test_a_dead_letter_of_a_standard_queue_keeps_what_it_had(kept: Host) -> None:
    """Id, body, properties, priority, the time at which it was sent, the first receive; its receives go on counting."""
    pair(kept, receives_max=2)
    new = commands.NewMessage(body="a", size_bytes=1, properties=b"opaque", priority=3)
    (sent,) = kept.do(commands.Send(queue=QUEUE, messages=(new,)))
    sent_at_ms = kept.clock.now_ms()
    kept.advance(5)
    wear_out(kept, 2)
    assert bodies(kept) == []
    for count in (3, 4):
        got = kept.receive_one(queue=DEAD, timeout_s=0)
        assert (got.id, got.body, got.properties, got.priority) == (sent.id, "a", b"opaque", 3)
        assert (got.sent_at_ms, got.first_received_at_ms) == (sent_at_ms, sent_at_ms + 5)
        assert (got.receive_count, got.source) == (count, QUEUE)
        kept.crash()


def test_a_message_that_was_not_moved_has_no_source(host: Host) -> None:
    """One that was sent to the dead-letter queue is a message like any other."""
    pair(host)
    host.send("a", queue=DEAD)
    assert host.receive_one(queue=DEAD).source is None


def test_a_receipt_of_the_source_is_gone_and_one_of_the_dead_letter_queue_is_good(host: Host) -> None:
    """The message is another queue's now."""
    pair(host, receives_max=1)
    host.send("a")
    old = host.receive_one(timeout_s=1)
    host.advance(1_000)
    assert bodies(host) == []
    assert host.delete(old.receipt) == [ReceiptState.GONE]
    assert host.change(old.receipt, 10).state is ReceiptState.GONE
    new = host.receive_one(queue=DEAD)
    assert host.delete(new.receipt, queue=DEAD) == [ReceiptState.LIVE]
    assert host.counts(DEAD) == (0, 0, 0)


def test_the_limit_of_a_dead_letter_queue_counts_its_own_receives(host: Host) -> None:
    """A chain: each queue gives the message out as often as it says, and the last source is the nearest."""
    create(host, DEEPER)
    create(host, DEAD, dead_letter_queue=DEEPER, receives_max=3)
    create(host, QUEUE, dead_letter_queue=DEAD, receives_max=2)
    host.send("a")
    sent_at_ms = host.clock.now_ms()
    wear_out(host, 3)
    assert [host.receive_one(queue=DEAD, timeout_s=0).receive_count for _ in range(3)] == [3, 4, 5]
    assert bodies(host, DEAD) == []
    got = host.receive_one(queue=DEEPER)
    assert (got.receive_count, got.source, got.sent_at_ms) == (6, DEAD, sent_at_ms)


# Where it cannot go.


def gone(host: Host) -> None:
    """Delete the dead-letter queue."""
    host.do(commands.DeleteQueue(queue=DEAD))


def forbidden(host: Host) -> None:
    """Withdraw the permission."""
    change(host, DEAD, redrive_permission="none")


@pytest.mark.parametrize("happens", [gone, forbidden])
def test_messages_stay_where_the_dead_letter_queue_is_gone_or_does_not_allow_it(host: Host, happens: Any) -> None:
    """They go on being delivered, as often as it takes."""
    pair(host, receives_max=1)
    host.send("a")
    happens(host)
    assert [host.receive_one(timeout_s=0).receive_count for _ in range(4)] == [1, 2, 3, 4]


def test_messages_go_once_it_is_allowed_again(host: Host) -> None:
    """Nothing of the past stands in the way."""
    pair(host, receives_max=1)
    host.send("a")
    forbidden(host)
    wear_out(host, 3)
    change(host, DEAD, redrive_permission="listed", redrive_sources=(QUEUE,))
    assert bodies(host) == []
    assert bodies(host, DEAD) == ["a"]


@pytest.mark.parametrize("folder", ["memory", "folder"])
def test_dead_letters_stay_and_are_delivered_while_the_disk_is_full(folder: str, tmp_path: Path) -> None:
    """Moving takes room first; nothing is lost, the queue can be drained, and what is left dies when there is room."""
    store = tmp_path / "store" if folder == "folder" else None
    with on_sqlite(store).open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        sent = fill(host)
        wear_out(host, 1)
        delivered = [each for _ in sent for each in host.receive(1)]
        assert host.failures == []
        assert host.counts(DEAD) == (0, 0, 0)
        assert [each.body for each in delivered] == sent
        host.delete(*(each.receipt for each in delivered[2:]))
        host.advance(30_000)
        wear_out(host, 1)
        assert (host.counts(), host.counts(DEAD)) == ((0, 0, 0), (2, 0, 0))


def fill(host: Host) -> list[str]:
    """Send until the store is full; return the bodies."""
    sent: list[str] = []
    while len(sent) < 200:
        body = f"{len(sent)}-{'x' * 20_000}"
        (answer,) = host.do_together(
            commands.Send(queue=QUEUE, messages=(commands.NewMessage(body=body, size_bytes=1),))
        )
        if not isinstance(answer, list):
            return sent
        sent.append(body)
    pytest.fail("the store took everything")


def test_a_move_that_fills_the_disk_is_undone_and_the_receive_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reserve was not seen in time: the transaction runs out of room, and is done once more without the move."""
    with on_sqlite(tmp_path / "store").open(database_pages_max=350, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        host.send(*("x" * 500_000 for _ in range(2)))
        wear_out(host, 1)
        for _ in range(6):
            host.receive(10, timeout_s=1)
            host.advance(1_000)
            total = sum(host.counts()) + sum(host.counts(DEAD))
            assert (total, host.failures) == (2, [])


# Retention.


def test_a_dead_letter_of_a_standard_queue_ends_by_when_it_was_sent(host: Host) -> None:
    """The dead-letter queue's retention, counted from the first sending; never delivered from then on."""
    pair(host, receives_max=1, retention_s=100)
    host.send("a")
    host.advance(50_000)
    wear_out(host, 2)  # two seconds
    host.send("young", queue=DEAD)
    host.advance(47_999)
    assert bodies(host, DEAD) == ["a", "young"]
    receipt = host.receive(1, queue=DEAD, timeout_s=60)[0].receipt
    host.advance(1)
    assert host.delete(receipt, queue=DEAD) == [ReceiptState.GONE]
    assert bodies(host, DEAD) == ["young"]
    assert host.counts(DEAD) == (1, 0, 0)


@pytest.mark.parametrize("receipts", [0, 1], ids=["waiting", "in flight"])
def test_the_end_of_a_dead_letter_is_counted_and_swept(kept: Host, receipts: int) -> None:
    """Counters and rows agree, waiting or in flight, after a restart too."""
    pair(kept, receives_max=1, retention_s=60)
    kept.send("a", "b", "c")
    wear_out(kept, 2)
    assert len(kept.receive(receipts, queue=DEAD)) == receipts
    kept.reopen()
    kept.advance(57_999)
    assert sum(kept.counts(DEAD)) == 3
    kept.advance(1)
    assert kept.counts(DEAD) == (0, 0, 0)
    assert kept.due_ms(queue=DEAD) is None
    kept.check()


@pytest.mark.differs_on_postgres("looks into the folder of the store")
def test_the_janitor_ends_dead_letters_that_nobody_asks_for(kept: Host) -> None:
    """Their rows go without a command on the queue."""
    pair(kept, receives_max=1, retention_s=60)
    kept.send(*(str(number) for number in range(150)))
    wear_out(kept, 3)
    assert kept.counts(DEAD) == (150, 0, 0)
    kept.advance(60_000)
    assert kept.folder is not None
    assert kept.rows("message") == 0


def test_many_dead_letters_that_end_at_once_are_never_delivered(host: Host) -> None:
    """More than a command deletes: what is left is passed over, and the living message behind them comes."""
    create(host, DEAD, retention_s=LONG_S)
    create(host, QUEUE, dead_letter_queue=DEAD, receives_max=1, retention_s=LONG_S)
    for start in range(0, 1_600, 400):
        host.send(*(str(number) for number in range(start, start + 400)))
    wear_out(host, 1)
    while sum(host.counts()):
        host.receive(10)
    held = host.receive(1, queue=DEAD, timeout_s=43_200)[0]
    host.advance(60_000)
    host.send("living", queue=DEAD)
    change(host, DEAD, retention_s=60)
    assert host.delete(held.receipt, queue=DEAD) == [ReceiptState.GONE]
    found = [body for _ in range(3) for body in bodies(host, DEAD)]
    assert set(found) == {"living"}
    assert host.counts(DEAD) == (1, 0, 0)


def test_a_longer_retention_counts_for_all_dead_letters_that_come_from_then_on(host: Host) -> None:
    """However far the shorter one had come: what it ended is gone, and nothing else."""
    create(host, DEAD, retention_s=60)
    create(host, QUEUE, dead_letter_queue=DEAD, receives_max=1, retention_s=LONG_S)
    host.send("ends", "waits")
    host.receive(1, timeout_s=0)
    host.receive(1, timeout_s=600)
    assert host.receive(1) == []
    assert host.counts(DEAD) == (1, 0, 0)
    host.advance(60_001)
    assert host.counts(DEAD) == (0, 0, 0)
    change(host, DEAD, retention_s=LONG_S)
    host.advance(600_000)
    assert host.receive(10) == []
    assert bodies(host, DEAD) == ["waits"]


def test_a_purge_of_the_dead_letter_queue_takes_all(kept: Host) -> None:
    """Moved messages are messages of that queue."""
    pair(kept, receives_max=1)
    kept.send("a", "b")
    wear_out(kept, 2)
    assert kept.counts(DEAD) == (2, 0, 0)
    kept.do(commands.PurgeQueue(queue=DEAD))
    assert kept.counts(DEAD) == (0, 0, 0)
    kept.reopen()
    assert kept.counts(DEAD) == (0, 0, 0)


def test_a_dead_letter_survives_a_crash_once(kept: Host) -> None:
    """It is in one of the two queues, whatever moment it was."""
    pair(kept, receives_max=1)
    kept.send("a")
    wear_out(kept, 1)
    kept.crash()
    assert (kept.counts(), kept.counts(DEAD)) == ((1, 0, 0), (0, 0, 0))
    assert bodies(kept) == []
    kept.crash()
    assert (kept.counts(), kept.counts(DEAD)) == ((0, 0, 0), (1, 0, 0))
    kept.check()


def test_what_a_receive_of_a_dead_letter_answers_is_a_plain_message(host: Host) -> None:
    """No field is forgotten: all but the source and the count are those of the message before."""
    pair(host, receives_max=1)
    host.send("a")
    before = host.receive_one(timeout_s=0)
    bodies(host)
    after = host.receive_one(queue=DEAD, timeout_s=0)
    same = [name for name in results.ReceivedMessage.__struct_fields__ if getattr(before, name) == getattr(after, name)]
    others = {"receipt", "receive_count", "source"}
    assert set(same) == set(results.ReceivedMessage.__struct_fields__) - others
