"""The doctor finds every kind of damage that it looks for, and none in a sound folder."""

from pathlib import Path

import apsw
import pytest

from tests.internals.engines.embedded.store import Store
from veilmq.core.commands import StartMove
from veilmq.engines.embedded.doctor import examine
from veilmq.engines.embedded.folder import DATABASE_NAME, FolderError
from veilmq.engines.examination import Report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    store.create()
    store.send(*"abcdef")
    store.send("g", "h", delay_s=60)
    receipts = [message.receipt for message in store.receive(3).messages]
    store.delete(receipts[1])
    store.change(receipts[0], 0)
    store.close()
    return tmp_path


def _broken(report: Report) -> list[str]:
    return [finding.check for finding in report.findings if not finding.ok]


def test_a_sound_folder_has_no_findings_and_its_facts(folder: Path) -> None:
    report = examine(folder)
    assert report.ok, _broken(report)
    assert len(report.findings) == 34
    assert (report.facts["queues"], report.facts["messages"], report.facts["leases"]) == (1, 7, 4)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("DELETE FROM message WHERE position IN (SELECT min(position) FROM lease)", "every lease has its message"),
        ("UPDATE lease SET lane = lane + 1", "every lease names the lane of its position"),
        ("UPDATE lane SET direct_next = direct_next - 1", "every message lies in a lane, before its next position"),
        (
            "UPDATE message SET position = position + (9 << 41)",
            "every message lies in a lane, before its next position",
        ),
        ("DELETE FROM queue", "every lane belongs to a queue or was purged"),
        (
            "DELETE FROM lease WHERE position IN (SELECT min(position) FROM lease)",
            "messages without a group are received in order: none without a lease before one with a lease",
        ),
        ("DELETE FROM lease WHERE receive_count = 0", "every delayed message has a lease"),
        (
            "UPDATE lease SET epoch = 0 WHERE receive_count > 0",
            "every received message has its count, its epoch and its times",
        ),
        ("UPDATE lane SET messages = messages + 1", "the counters agree with the rows"),
        ("UPDATE lane SET in_flight = in_flight + 1", "the counters agree with the rows"),
        ("UPDATE lane SET delayed = delayed - 1", "the counters agree with the rows"),
        ("UPDATE message SET sent_at_ms = sent_at_ms + 86400000", "nothing was sent after the store's last instant"),
    ],
)
def test_each_damage_is_found(folder: Path, damage: str, check: str) -> None:
    connection = apsw.Connection(str(folder / DATABASE_NAME))
    connection.execute(damage)
    connection.close()
    assert check in _broken(examine(folder))


@pytest.fixture
def ordered(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    store.create(fifo=True)
    store.send_to("aaabbc")
    store.send_to("z" * 512)  # turns of the last so many messages may be without rows
    store.receive(4)
    store.close()
    assert examine(tmp_path).ok
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("UPDATE lease SET group_key = group_key + 1", "every lease names the group of its message"),
        ("UPDATE turn SET lane = lane + 1", "every turn lies in a lane"),
        (
            "DELETE FROM turn WHERE visible_at_ms > 0",
            "every ordered group that has messages, other than the last few, has a turn",
        ),
        ("DELETE FROM message", "every turn of an ordered group has a message"),
        (
            "UPDATE turn SET next_position = next_position - 1",
            "what an ordered group has behind its turn was never received",
        ),
        (
            "UPDATE turn SET visible_at_ms = visible_at_ms - 1",
            "no ordered group has its turn before the end of its leases",
        ),
        (
            "UPDATE turn SET visible_at_ms = visible_at_ms + 1",
            "every ordered group has its turn at an instant of one of its messages",
        ),
    ],
)
def test_each_damage_to_groups_is_found(ordered: Path, damage: str, check: str) -> None:
    connection = apsw.Connection(str(ordered / DATABASE_NAME))
    connection.execute(damage)
    connection.close()
    assert check in _broken(examine(ordered))


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    store = Store(tmp_path, event_log="closed")
    store.create()
    store.send(*"abcd")
    for message in store.receive(4, 1).messages[:3]:
        store.delete(message.receipt)
    store.now_ms += 2_000
    store.receive()
    store.close()
    assert examine(tmp_path).ok
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("DELETE FROM event_batch WHERE number = 2", "events are numbered without a gap"),
        (
            "INSERT INTO expired_receipt SELECT number + 9, position, generation, 0, event FROM expired_receipt",
            "a receipt that expired is kept once",
        ),
        (
            "INSERT INTO logged_lane SELECT number, 'a/jobs', 0 FROM lane",
            "every lane that is logged by itself was purged",
        ),
    ],
)
def test_each_damage_to_events_is_found(logged: Path, damage: str, check: str) -> None:
    connection = apsw.Connection(str(logged / DATABASE_NAME))
    connection.execute(damage)
    connection.close()
    assert check in _broken(examine(logged))


@pytest.fixture
def fair(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    store.create()
    store.send_to("aaabbc")
    store.receive(2)
    store.close()
    assert examine(tmp_path).ok
    return tmp_path


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM turn",
        "UPDATE turn SET next_position = next_position + 1",
        "UPDATE turn SET visible_at_ms = visible_at_ms + 1",
    ],
)
def test_each_damage_to_fair_groups_is_found(fair: Path, damage: str) -> None:
    connection = apsw.Connection(str(fair / DATABASE_NAME))
    connection.execute(damage)
    connection.close()
    assert _broken(examine(fair)) == [
        "every fair group that has messages never received has a turn, not behind the first of them"
    ]


@pytest.fixture
def moving(tmp_path: Path) -> Path:
    store = Store(tmp_path)
    store.create("000000000000/dead")
    store.create(dead_letter_queue="000000000000/dead", receives_max=1)
    store.send(*"abc")
    store.receive(3, timeout_s=0)
    store.receive(3)
    store.run(StartMove(source="000000000000/dead"))
    store.close()
    assert examine(tmp_path).ok
    return tmp_path


_DEAD_LETTERS = "every dead letter has its source, its receives and its times"
_MOVES = "every move task is of a queue, and has moved no more than it was to move"


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("UPDATE message SET source = NULL", _DEAD_LETTERS),
        ("UPDATE message SET receives_before = NULL", _DEAD_LETTERS),
        ("UPDATE message SET first_received_at_ms = NULL", _DEAD_LETTERS),
        ("UPDATE message SET first_sent_at_ms = sent_at_ms + 1", _DEAD_LETTERS),
        ("UPDATE move_task SET queue = queue + 9", _MOVES),
        ("UPDATE move_task SET moved = to_move + 1", _MOVES),
    ],
)
def test_each_damage_to_dead_letters_is_found(moving: Path, damage: str, check: str) -> None:
    connection = apsw.Connection(str(moving / DATABASE_NAME))
    connection.execute(damage)
    connection.close()
    assert check in _broken(examine(moving))


@pytest.mark.parametrize(
    "damage",
    [
        "INSERT INTO subscription VALUES (9, 's', '{}', NULL, 0, 0)",
        "INSERT INTO topic VALUES (1, 't', '{}', 0, 0); INSERT INTO subscription VALUES (1, 's', '{}', 9, 0, 0)",
    ],
    ids=["topic", "queue"],
)
def test_each_damage_to_subscriptions_is_found(folder: Path, damage: str) -> None:
    connection = apsw.Connection(str(folder / DATABASE_NAME))
    list(connection.execute(damage))
    connection.close()
    assert _broken(examine(folder)) == ["every subscription is of a topic, and has the queue that it is pushed from"]


def test_a_damaged_file_is_said_to_be_one(folder: Path) -> None:
    path = folder / DATABASE_NAME
    content = bytearray(path.read_bytes())
    content[4_096 * 3 : 4_096 * 4] = b"\xff" * 4_096
    path.write_bytes(content)
    with pytest.raises(FolderError, match="cannot be read as a database"):
        examine(folder)


def test_it_changes_nothing_and_works_beside_an_open_store(folder: Path) -> None:
    store = Store(folder)
    store.send("more")
    before = (folder / DATABASE_NAME).read_bytes()
    assert examine(folder).facts["messages"] == 8
    assert (folder / DATABASE_NAME).read_bytes() == before
    store.close()


def test_a_folder_without_a_database_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"has no veilmq\.db: name a data folder"):
        examine(tmp_path)
