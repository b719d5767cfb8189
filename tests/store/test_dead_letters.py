"""Dead letters: allowed dead-letter queues, when messages are moved, and the fields they keep."""

from pathlib import Path
from uuid import UUID

import pytest

from tests.store.host import QUEUE, Host, fill, message
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands
from veilmq.core.commands import MoveStatus, MoveTask
from veilmq.core.errors import DeadLetterQueueRefused, QueueNotFound, ReceiptState
from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE
from veilmq.core.messages import Attribute, NewMessage, Properties, decode_properties, encode_properties
from veilmq.core.settings import SettingValue

PAUSE_MS = 10

DEAD = "000000000000/dead"
DEEPER = "000000000000/deeper"
LONG_S = 1_209_600


def pair(host: Host, *, receives_max: int = 2, **settings: SettingValue) -> None:
    host.create(DEAD, **settings)
    host.create(QUEUE, dead_letter_queue=DEAD, receives_max=receives_max, **settings)


def receive_repeatedly(host: Host, times: int, queue: str = QUEUE) -> None:
    for _ in range(times):
        while host.receive(10, queue=queue, timeout_s=1):
            pass
        host.advance(1_000)


def bodies(host: Host, queue: str = QUEUE) -> list[str]:
    return host.bodies(10, queue=queue, timeout_s=0)


def dead_letter(host: Host, *sent: str, queue: str = QUEUE) -> None:
    host.send(*sent, queue=queue)
    receive_repeatedly(host, 1, queue)
    while any(host.counts(queue)):
        host.receive(10, queue=queue)


def start(host: Host, destination: str | None = None, rate: int | None = None, source: str = DEAD) -> MoveTask:
    task: MoveTask = host.do(commands.StartMove(source=source, destination=destination, moves_per_s_max=rate))
    assert task.status is MoveStatus.RUNNING
    return task


def latest(host: Host, source: str = DEAD) -> MoveTask:
    task: MoveTask
    (task,) = host.do(commands.ListMoves(source=source))
    return task


def run(host: Host, time_ms: int) -> None:
    for _ in range(0, time_ms, PAUSE_MS):
        host.advance(PAUSE_MS)


def finish(host: Host, source: str = DEAD) -> MoveTask:
    """Advance until the task has ended, as little as possible; return it."""
    for _ in range(1_000):
        task = latest(host, source)
        if task.status is not MoveStatus.RUNNING:
            return task
        host.advance(PAUSE_MS)
    pytest.fail("the task does not end")


@pytest.mark.parametrize(("ours", "theirs", "why"), [
    ({}, None, "does not exist"), ({"fifo": True}, {}, "has another type"), ({}, {"fifo": True}, "has another type"),
    ({}, {"redrive_permission": "none"}, "does not allow"),
    ({}, {"redrive_permission": "listed", "redrive_sources": (DEEPER,)}, "does not allow"),
])  # fmt: skip
@pytest.mark.parametrize("later", [False, True], ids=["created", "set"])
def test_an_invalid_dead_letter_queue_is_refused(
    host: Host, ours: dict[str, SettingValue], theirs: dict[str, SettingValue] | None, why: str, *, later: bool
) -> None:
    if theirs is not None:
        host.create(DEAD, **theirs)
    redrive: dict[str, SettingValue] = {"dead_letter_queue": DEAD, "receives_max": 3}
    if later:
        host.create(QUEUE, **ours)
        with pytest.raises(DeadLetterQueueRefused, match=why):
            host.set_queue(QUEUE, **redrive)
        assert host.do(commands.ShowQueue(queue=QUEUE)).settings.dead_letter_queue == ""
    else:
        with pytest.raises(DeadLetterQueueRefused, match=why):
            host.create(QUEUE, **ours, **redrive)
        with pytest.raises(QueueNotFound):
            host.counts()


def test_a_dead_letter_queue_must_be_of_the_same_account(host: Host) -> None:
    host.create(QUEUE)
    host.create("111111111111/dead")
    with pytest.raises(DeadLetterQueueRefused, match="another account"):
        host.set_queue(dead_letter_queue="111111111111/dead", receives_max=3)


@pytest.mark.parametrize(
    "theirs", [{}, {"redrive_permission": "all"}, {"redrive_permission": "listed", "redrive_sources": (DEEPER, QUEUE)}]
)
def test_a_dead_letter_queue_may_permit_its_sources(host: Host, theirs: dict[str, SettingValue]) -> None:
    host.create(DEAD, **theirs)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    host.send("a")
    receive_repeatedly(host, 2)
    assert host.counts(DEAD) == (1, 0, 0)


def test_other_settings_can_change_while_the_dead_letter_queue_is_deleted(host: Host) -> None:
    pair(host)
    host.drop(DEAD)
    host.set_queue(visibility_timeout_s=7)
    with pytest.raises(DeadLetterQueueRefused):
        host.set_queue(dead_letter_queue=DEAD, receives_max=5)
    host.set_queue(dead_letter_queue="", receives_max=0)


def test_the_sources_of_a_dead_letter_queue_are_listed(durable: Host) -> None:
    durable.create(DEAD)
    names = [f"000000000000/source-{number}" for number in range(5)]
    for name in reversed(names):
        durable.create(name, dead_letter_queue=DEAD, receives_max=3)
    durable.create(QUEUE)
    durable.set_queue(names[1], dead_letter_queue="", receives_max=0)
    durable.set_queue(dead_letter_queue=DEAD, receives_max=1)
    durable.drop(names[3])
    left = [QUEUE, names[0], names[2], names[4]]
    for _ in range(2):
        page = durable.do(commands.ListDeadLetterSources(queue=DEAD))
        assert (page.names, page.more) == (left, False)
        page = durable.do(commands.ListDeadLetterSources(queue=DEAD, count=3))
        assert (page.names, page.more) == (left[:3], True)
        page = durable.do(commands.ListDeadLetterSources(queue=DEAD, count=3, after=left[2]))
        assert (page.names, page.more) == (left[3:], False)
        durable.reopen()
    durable.drop(DEAD)
    with pytest.raises(QueueNotFound):
        durable.do(commands.ListDeadLetterSources(queue=DEAD))
    assert durable.do(commands.ListDeadLetterSources(queue=QUEUE)).names == []


def test_a_lower_receive_limit_applies_to_present_messages(host: Host) -> None:
    pair(host, receives_max=5)
    host.send("a")
    receive_repeatedly(host, 2)
    host.set_queue(dead_letter_queue=DEAD, receives_max=2)
    assert bodies(host) == []
    assert bodies(host, DEAD) == ["a"]


def test_dead_letters_moved_by_one_receive_keep_their_send_order(host: Host) -> None:
    pair(host, receives_max=1)
    host.send("a", "b")
    assert [host.bodies(1, timeout_s=timeout_s) for timeout_s in (2, 1)] == [["a"], ["b"]]
    host.advance(2_000)
    assert bodies(host) == []
    assert bodies(host, DEAD) == ["a", "b"]


def test_a_receive_replaces_dead_letters_by_other_messages(host: Host) -> None:
    """Not by those that it has already, which stay visible without a timeout."""
    pair(host, receives_max=1)
    host.send("dead")
    host.receive(1, timeout_s=0)
    host.send("a", "b", "c")
    assert host.bodies(3, timeout_s=0) == ["a", "b", "c"]
    assert bodies(host, DEAD) == ["dead"]


def test_a_dead_letter_that_arrives_during_a_lease_is_counted_once(host: Host) -> None:
    pair(host, receives_max=1)
    host.send("held", queue=DEAD)
    host.receive(1, queue=DEAD, timeout_s=5)
    host.send("a")
    host.advance(1_000)
    host.receive(1, timeout_s=0)
    assert host.receive(1) == []
    host.advance(4_000)
    assert host.counts(DEAD) == (2, 0, 0)


def test_a_receive_moves_a_bounded_number_of_dead_letters(host: Host) -> None:
    pair(host, receives_max=1, visibility_timeout_s=1)
    dead = 2 * DEAD_LETTERS_PER_RECEIVE + 50
    host.send(*map(str, range(dead)))
    receive_repeatedly(host, 1)
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


@pytest.mark.differs_on_postgres("a statement moves all that it finds, at most as many as requested")
def test_a_receive_moves_a_bounded_number_of_bytes(host: Host) -> None:
    pair(host, receives_max=1)
    host.send(*["x" * 700_000] * 3)
    receive_repeatedly(host, 1)
    assert bodies(host) == []
    assert host.counts(DEAD) == (2, 0, 0)
    assert host.due_ms() == host.clock.now_ms()
    assert bodies(host) == []
    assert (host.counts(), host.counts(DEAD)) == ((0, 0, 0), (3, 0, 0))


def test_a_receive_wakes_the_dead_letter_queue_once(host: Host) -> None:
    pair(host, receives_max=1)
    host.send("a", "b", "c")
    receive_repeatedly(host, 1)
    woken = host.watch(DEAD)
    assert host.receive(10) == []
    assert woken == [host.clock.now_ms()]
    assert host.receive(10) == []
    assert len(woken) == 1


def test_a_dead_letter_of_a_standard_queue_keeps_its_fields(durable: Host) -> None:
    pair(durable, receives_max=2)
    (sent,) = durable.put(NewMessage(body="a", size_bytes=1, properties=b"opaque", priority=3))
    sent_at_ms = durable.clock.now_ms()
    durable.advance(5)
    receive_repeatedly(durable, 2)
    assert bodies(durable) == []
    for count in (3, 4):
        got = durable.receive_one(queue=DEAD, timeout_s=0)
        assert (got.id, got.body, got.properties, got.priority) == (sent.id, "a", b"opaque", 3)
        assert (got.sent_at_ms, got.first_received_at_ms) == (sent_at_ms, sent_at_ms + 5)
        assert (got.receive_count, got.source) == (count, QUEUE)
        durable.crash()


@pytest.mark.parametrize("folder", ["memory", "folder"])
def test_messages_are_delivered_instead_of_dead_lettered_while_the_store_is_full(folder: str, tmp_path: Path) -> None:
    store = tmp_path / "store" if folder == "folder" else None
    with on_sqlite(store).open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        sent = fill(host, "x" * 20_000)
        receive_repeatedly(host, 1)
        delivered = [each for _ in sent for each in host.receive(1)]
        assert host.failures == []
        assert host.counts(DEAD) == (0, 0, 0)
        assert [each.body for each in delivered] == sent
        host.delete(*(each.receipt for each in delivered[2:]))
        host.advance(30_000)
        receive_repeatedly(host, 1)
        assert (host.counts(), host.counts(DEAD)) == ((0, 0, 0), (2, 0, 0))


def test_a_receive_that_fills_the_store_runs_again_without_dead_lettering(tmp_path: Path) -> None:
    with on_sqlite(tmp_path / "store").open(database_pages_max=350, free_space_reserve_bytes=0) as host:
        pair(host, receives_max=1)
        host.send(*("x" * 500_000 for _ in range(2)))
        receive_repeatedly(host, 1)
        for _ in range(6):
            host.receive(10, timeout_s=1)
            host.advance(1_000)
            total = sum(host.counts()) + sum(host.counts(DEAD))
            assert (total, host.failures) == (2, [])


@pytest.mark.differs_on_postgres("reads the folder of the store")
def test_the_janitor_deletes_expired_dead_letters(durable: Host) -> None:
    pair(durable, receives_max=1, retention_s=60)
    durable.send(*(str(number) for number in range(150)))
    receive_repeatedly(durable, 3)
    assert durable.counts(DEAD) == (150, 0, 0)
    durable.advance(60_000)
    assert durable.folder is not None
    assert durable.rows("message") == 0


def test_many_dead_letters_that_expire_together_are_never_delivered(host: Host) -> None:
    """There are more than one command deletes."""
    host.create(DEAD, retention_s=LONG_S)
    host.create(dead_letter_queue=DEAD, receives_max=1, retention_s=LONG_S)
    host.send(*map(str, range(1_600)))
    receive_repeatedly(host, 1)
    while sum(host.counts()):
        host.receive(10)
    held = host.receive(1, queue=DEAD, timeout_s=43_200)[0]
    host.advance(60_000)
    host.send("living", queue=DEAD)
    host.set_queue(DEAD, retention_s=60)
    assert host.delete(held.receipt, queue=DEAD) == [ReceiptState.GONE]
    found = [body for _ in range(3) for body in bodies(host, DEAD)]
    assert set(found) == {"living"}
    assert host.counts(DEAD) == (1, 0, 0)


def test_a_longer_retention_applies_to_later_dead_letters(durable: Host) -> None:
    durable.create(DEAD, retention_s=60)
    durable.create(dead_letter_queue=DEAD, receives_max=1, retention_s=LONG_S)
    durable.send("ends", "waits")
    durable.receive(1, timeout_s=0)
    durable.receive(1, timeout_s=600)
    assert durable.receive(1) == []
    assert durable.counts(DEAD) == (1, 0, 0)
    durable.advance(60_001)
    assert durable.counts(DEAD) == (0, 0, 0)
    durable.set_queue(DEAD, retention_s=LONG_S)
    durable.advance(600_000)
    assert durable.receive(10) == []
    durable.crash()
    assert bodies(durable, DEAD) == ["waits"]


@pytest.mark.parametrize("fifo", [False, True])
def test_receives_add_up_along_dead_letter_queues(host: Host, *, fifo: bool) -> None:
    host.create(DEEPER, fifo=fifo)
    host.create(DEAD, dead_letter_queue=DEEPER, receives_max=1, fifo=fifo)
    host.create(QUEUE, dead_letter_queue=DEAD, receives_max=2, fifo=fifo)
    host.put(message("a", group="g", dedup_id="a") if fifo else message("a"))
    first_ms = host.clock.now_ms()
    for queue, received in ((QUEUE, ["a"]), (QUEUE, ["a"]), (QUEUE, []), (DEAD, ["a"]), (DEAD, [])):
        assert bodies(host, queue) == received
        host.advance(7)
    got = host.receive_one(queue=DEEPER)
    assert (got.receive_count, got.first_received_at_ms, got.source) == (4, first_ms, DEAD)


def take(host: Host, queue: str = QUEUE, *, timeout_s: int = 0) -> list[str]:
    return host.bodies(10, queue=queue, timeout_s=timeout_s)


@pytest.fixture
def ordered(host: Host) -> Host:
    pair(host, receives_max=1, fifo=True)
    return host


def dead_letter_in_order(host: Host, *bodies: str) -> None:
    host.send_to_groups(*bodies)
    assert sorted(take(host)) == sorted(bodies)
    assert take(host) == []


def groups(bodies: list[str]) -> dict[str, list[str]]:
    return {group: [body for body in bodies if body[0] == group] for group in {body[0] for body in bodies}}


def test_a_fifo_receive_moves_a_bounded_number_of_dead_letters(ordered: Host) -> None:
    ordered.put(*[NewMessage(body="a", size_bytes=1, group=str(place), dedup_id=str(place)) for place in range(150)])
    assert sum(len(ordered.receive(10, timeout_s=30)) for _ in range(15)) == 150
    ordered.advance(30_000)
    assert take(ordered) == []
    assert ordered.counts(DEAD) == (DEAD_LETTERS_PER_RECEIVE, 0, 0)
    assert take(ordered) == []
    assert ordered.counts(DEAD) == (150, 0, 0)


def test_a_fifo_dead_letter_gets_a_new_send_time_and_sequence_number(ordered: Host) -> None:
    ordered.send_to_groups("a0", queue=DEAD)
    (sent,) = ordered.send_to_groups("a1")
    first_ms = ordered.clock.now_ms()
    take(ordered)
    ordered.advance(5_000)
    take(ordered)
    first, second = ordered.receive(10, queue=DEAD)
    assert (second.body, second.id, second.source) == ("a1", sent.id, QUEUE)
    assert (second.sent_at_ms, second.first_received_at_ms) == (first_ms + 5_000, first_ms)
    assert second.receive_count == 2
    assert first.sequence is not None
    assert second.sequence is not None
    assert second.sequence > first.sequence


def test_a_fifo_receive_returns_the_message_behind_a_dead_letter(ordered: Host) -> None:
    ordered.send_to_groups("a1", "a2")
    assert ordered.bodies(1, timeout_s=0) == ["a1"]
    assert ordered.bodies(1, timeout_s=0) == ["a2"]


def test_a_fifo_dead_letter_is_never_a_duplicate(ordered: Host) -> None:
    ordered.send_to_groups("a1", queue=DEAD)
    dead_letter_in_order(ordered, "a1")
    assert take(ordered, DEAD) == ["a1", "a1"]
    dead_letter_in_order(ordered, "a2")
    ordered.send_to_groups("a2", queue=DEAD)
    assert take(ordered, DEAD) == ["a1", "a1", "a2", "a2"]


@pytest.mark.parametrize("given", ["mine", None])
def test_the_deduplication_id_of_a_fifo_dead_letter_is_its_message_id(ordered: Host, given: str | None) -> None:
    """As Amazon SQS documents. A move task keeps the id."""
    ordered.set_queue(content_deduplication=True)
    carried = Properties(attributes={"n": Attribute("Number", "1")}, group="a", dedup_id=given)
    new = NewMessage(body="a1", size_bytes=2, group="a", dedup_id=given, properties=encode_properties(carried))
    (sent,) = ordered.put(new)
    (before,) = ordered.receive(10, timeout_s=0)
    assert decode_properties(before.properties) == carried
    assert take(ordered) == []
    id_text = str(UUID(bytes=sent.id))
    (dead,) = ordered.receive(10, queue=DEAD, timeout_s=0)
    expected = Properties(attributes=carried.attributes, group="a", dedup_id=id_text)
    assert decode_properties(dead.properties) == expected
    start(ordered)
    finish(ordered)
    (back,) = ordered.receive(10)
    assert decode_properties(back.properties) == expected


def test_a_receipt_of_a_message_that_was_dead_lettered_is_gone(ordered: Host) -> None:
    ordered.send_to_groups("a1")
    old = ordered.receive(1, timeout_s=1)[0]
    ordered.advance(1_000)
    assert take(ordered) == []
    assert ordered.delete(old.receipt) == [ReceiptState.GONE]
    ordered.send_to_groups("a2")
    assert take(ordered, timeout_s=30) == ["a2"]
    new = ordered.receive(1, queue=DEAD)[0]
    assert ordered.delete(new.receipt, queue=DEAD) == [ReceiptState.LIVE]


def test_fifo_messages_stay_in_order_while_the_dead_letter_queue_is_deleted(ordered: Host) -> None:
    ordered.send_to_groups("a1", "a2")
    ordered.drop(DEAD)
    for _ in range(4):
        assert take(ordered) == ["a1", "a2"]


def test_a_move_skips_groups_in_flight(ordered: Host) -> None:
    ordered.create("000000000000/other", fifo=True)
    dead_letter_in_order(ordered, "a1", "a2", "b1")
    held = ordered.receive(1, queue=DEAD, timeout_s=600)[0]
    assert held.body == "a1"
    start(ordered, "000000000000/other")
    assert finish(ordered).messages_moved == 1
    assert take(ordered, "000000000000/other") == ["b1"]
    assert ordered.delete(held.receipt, queue=DEAD) == [ReceiptState.LIVE]
    assert take(ordered, DEAD) == ["a2"]


def test_a_fifo_message_that_was_moved_back_is_not_a_duplicate(ordered: Host) -> None:
    (sent,) = ordered.send_to_groups("a1")
    take(ordered)
    take(ordered)
    start(ordered)
    finish(ordered)
    (got,) = ordered.receive(10)
    assert (got.body, got.receive_count, got.source) == ("a1", 1, None)
    assert got.id != sent.id
    assert got.sequence is not None
    assert sent.sequence is not None
    assert got.sequence > sent.sequence


def test_a_moved_fifo_message_ignores_the_delay_of_the_queue(ordered: Host) -> None:
    dead_letter_in_order(ordered, "a1", "b1")
    ordered.send_to_groups("a2")
    start(ordered)
    finish(ordered)
    ordered.set_queue(delay_s=60)
    assert sorted(take(ordered)) == ["a1", "b1"]
    ordered.advance(60_000)
    assert take(ordered) == ["a2"]


def test_a_fifo_message_without_a_source_fails_the_move_and_blocks_nothing(ordered: Host) -> None:
    ordered.send_to_groups("a1", "a2", queue=DEAD)
    start(ordered)
    assert finish(ordered).status is MoveStatus.FAILED
    assert take(ordered, DEAD) == ["a1", "a2"]
    start(ordered)
    assert finish(ordered).status is MoveStatus.FAILED
    assert take(ordered, DEAD) == ["a1", "a2"]


def test_fifo_dead_letters_and_moves_survive_crashes(durable: Host) -> None:
    pair(durable, receives_max=1, fifo=True)
    bodies = [f"{group}{number}" for number in range(3) for group in "abc"]
    durable.send_to_groups(*bodies)
    take(durable)
    durable.crash()
    take(durable)
    durable.crash()
    assert (durable.counts(), durable.counts(DEAD)) == ((0, 0, 0), (9, 0, 0))
    start(durable, rate=10)
    assert latest(durable).messages_to_move == 9
    while latest(durable).status is MoveStatus.RUNNING:
        run(durable, 100)
        durable.crash()
        moved = latest(durable).messages_moved
        assert (sum(durable.counts()), sum(durable.counts(DEAD))) == (moved, 9 - moved)
        durable.check()
    assert (latest(durable).status, latest(durable).messages_moved) == (MoveStatus.COMPLETED, 9)
    found = [each for _ in range(3) for each in take(durable, timeout_s=600)]
    assert groups(found) == groups(sorted(bodies))


def test_a_purge_of_the_dead_letter_queue_deletes_dead_letters(durable: Host) -> None:
    pair(durable, receives_max=1)
    durable.send("a", "b")
    receive_repeatedly(durable, 2)
    assert durable.counts(DEAD) == (2, 0, 0)
    durable.purge(DEAD)
    assert durable.counts(DEAD) == (0, 0, 0)
    durable.reopen()
    assert durable.counts(DEAD) == (0, 0, 0)
