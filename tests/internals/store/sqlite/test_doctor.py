"""The doctor finds every kind of damage that it checks, and none in a sound folder."""

import shutil
from pathlib import Path

import apsw
import pytest

from tests.store.host import QUEUE, Host, hosting, message
from veilmq.core.claims import Claim, OpenSource, Stage
from veilmq.core.commands import PurgeQueue, Send
from veilmq.core.messages import NewMessage
from veilmq.core.topics import CreateTopic, Subscribe, Subscription
from veilmq.store.sqlite.copying import examine
from veilmq.store.sqlite.database import DATABASE_NAME

DEAD, FIFO, FAIR = "000000000000/dead", "000000000000/ordered", "000000000000/fair"
CLAIMED, ORDERED, TOPIC = "000000000000/claimed", "000000000000/ordered-claimed", "000000000000/news"


def _grouped(host: Host, queue: str, groups: str, *, delay_s: int | None = None) -> None:
    for number, group in enumerate(groups):
        new: NewMessage = message(group, group=group, dedup_id=f"{groups} {number}", delay_s=delay_s)
        host.do(Send(queue=queue, messages=(new,)))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "store"
    with hosting(folder) as host:
        assert isinstance(host, Host)
        host.create(DEAD)
        host.create(dead_letter_queue=DEAD, receives_max=1)
        host.send("dead")
        host.receive(timeout_s=0)
        host.send(*"abcdef")
        host.receive(3)
        host.send("delayed", delay_s=60)
        host.create(FAIR)
        _grouped(host, FAIR, "aab")
        host.receive(queue=FAIR)
        host.create(FIFO, fifo=True)
        _grouped(host, FIFO, "aaab")
        host.change(host.receive(2, queue=FIFO)[0].receipt, 5, queue=FIFO)
        _grouped(host, FIFO, "d", delay_s=60)
        host.create("000000000000/logged", event_log="closed", visibility_timeout_s=1)
        host.send(*"abc", queue="000000000000/logged")
        for message_ in host.receive(2, queue="000000000000/logged"):
            host.delete(message_.receipt, queue="000000000000/logged")
        host.receive(queue="000000000000/logged")
        host.advance(1_000)
        host.receive(queue="000000000000/logged")
        host.do(Stage(queue=QUEUE, writer="job", batch=1, attempt="a", part=0, messages=(message("staged"),)))
        for queue in (CLAIMED, ORDERED):
            host.create(queue, fifo=queue == ORDERED)
            _grouped(host, queue, "xy")
            host.send("z", queue=queue) if queue == CLAIMED else None
            opened = host.do(OpenSource(queue=queue, source="reader"))
            host.do(Claim(queue=queue, source="reader", epoch=opened.epoch, number=1, messages_max=9))
        host.create("000000000000/purged")
        host.send("purged", queue="000000000000/purged")
        host.stop()
        host.do(PurgeQueue(queue="000000000000/purged"))
        host.do(CreateTopic(topic=TOPIC))
        host.do(Subscribe(subscription=Subscription(topic=TOPIC, name="s", endpoint="s", push_url="http://a.example/")))
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "store"))


def _broken(folder: Path, damage: str) -> list[str]:
    with apsw.Connection(str(folder / DATABASE_NAME)) as connection:
        connection.execute(damage)
    connection.close()
    return [finding.check for finding in examine(folder).findings if not finding.ok]


# Damages that each check finds, in the order of the checks.
DAMAGES = {
    "every queue has a partition, and every partition in use a queue": [
        "UPDATE queue SET qp = qp + 9",
        """INSERT INTO queue (name, settings, created_at, modified_at, qp, origin)
        VALUES ('a', '{"dead_letter_queue": ""}', 0, 0, 99, 99)""",
        "DELETE FROM queue WHERE name = '000000000000/jobs'",
    ],
    "every message has one place in a queue, and every place its message": [
        "DELETE FROM visibility WHERE receive_count > 0",
        "DELETE FROM ready",
        "DELETE FROM ordered WHERE visible_at IS NULL AND seq > 0",
        "DELETE FROM message WHERE seq IN (SELECT seq FROM visibility)",
        "DELETE FROM message WHERE seq IN (SELECT seq FROM ordered)",
        "UPDATE ready SET first_seq = (SELECT min(seq) FROM visibility)",
    ],
    "every place is in a partition": ["DELETE FROM part WHERE retired"],
    "every row names the group of its message, and so does its lane": [
        "UPDATE message SET grp = grp + 1",
        "UPDATE visibility SET lane = 8",
        "UPDATE ready SET lane = 17",
        "UPDATE visibility SET grp = NULL",
    ],
    "messages of FIFO queues are ordered, and no others": [
        """UPDATE queue SET settings = replace(CAST(settings AS TEXT), '"fifo":true', '"fifo":false')"""
    ],
    "every run of the ready list has all of its messages": ["UPDATE ready SET last_seq = last_seq + 1"],
    "every unclaimed message of a FIFO queue is in a run, which counts its messages": [
        "DELETE FROM ordered_run",
        "UPDATE ordered_run SET first_seq = last_seq + 1",
        "UPDATE ordered_run SET messages = messages + 1",
        "UPDATE ordered_run SET first_seq = first_seq - (1 << 40)",
        "INSERT INTO ordered_run (partition, last_seq, first_seq, messages) VALUES (1, 9, 1, 0)",
    ],
    "the totals agree with the rows": [
        "UPDATE part SET messages = messages + 1",
        "UPDATE part SET in_flight = in_flight + 1",
        "UPDATE part SET delayed = delayed - 1 WHERE delayed > 0",
    ],
    "every received message has its count, its epoch and its times": [
        "UPDATE visibility SET epoch = 0",
        "UPDATE visibility SET received_at = NULL",
        "UPDATE ordered SET first_received_at = NULL WHERE receive_count > 0",
        "UPDATE ordered SET receive_count = 0 WHERE receive_count > 0",
    ],
    "every dead letter has its source, its receives and its first receive": [
        "UPDATE message SET source = NULL",
        "UPDATE message SET receives_before = NULL",
        "UPDATE message SET first_received_at_ms = NULL",
    ],
    "every group of a standard queue has a row with its first message": [
        "DELETE FROM fair_group",
        "UPDATE fair_group SET head_at = head_at - 1",
        "UPDATE fair_group SET head_seq = head_seq + 1",
        "UPDATE fair_group SET grp = grp + 1",
        "INSERT INTO fair_group SELECT partition, lane, grp + 1, head_at, head_seq FROM fair_group",
    ],
    "every ordered group has its cursor and its number": [
        "DELETE FROM ordered WHERE seq = 0",
        "DELETE FROM message_group",
    ],
    "every cursor names instants and messages of its group": [
        "DELETE FROM ordered WHERE seq > 0",
        "UPDATE ordered SET head_seq = head_seq + 1 WHERE seq = 0",
        "UPDATE ordered SET fixed_at = fixed_at - 1 WHERE seq = 0",
        "UPDATE ordered SET floating_seq = floating_seq + 1 WHERE seq = 0",
        "UPDATE ordered SET head_seq = NULL WHERE seq = 0",
    ],
    "a group with received messages becomes ready when its last lease ends, and its cursor has the last of them": [
        "UPDATE ordered SET received_to = 0 WHERE seq = 0",
        "UPDATE ordered SET received_to = head_seq WHERE seq = 0",
        "UPDATE ordered SET fixed_at = fixed_at - 1 WHERE seq = 0",
        "UPDATE ordered SET fixed_at = NULL WHERE seq = 0",
        "UPDATE ordered SET floating_seq = head_seq WHERE seq = 0",
    ],
    "a group without received messages becomes ready no later than its first message": [
        "UPDATE ordered SET floating_seq = NULL WHERE seq = 0",
        "UPDATE ordered SET fixed_at = fixed_at + 1 WHERE seq = 0",
    ],
    "every cursor counts the messages hidden until its group is ready, and other hidden messages are apart": [
        "UPDATE ordered SET in_flight = in_flight + 1 WHERE seq = 0",
        "UPDATE ordered SET apart = 1 WHERE receive_count > 0",
        "UPDATE ordered SET apart = 0",
    ],
    "every cursor covers all messages with their own delay": ["UPDATE ordered SET own_to = 0"],
    "every claim counts its claimed messages, and has a source while it is active": [
        "DELETE FROM claim",
        "UPDATE claim SET remaining = remaining - 1",
        "UPDATE claim SET messages = messages + 1",
        "DELETE FROM claimed WHERE first_received_at IS NULL",
        "DELETE FROM source",
    ],
    "claimed messages of FIFO queues, and no others, are hidden forever": [
        "UPDATE ordered SET visible_at = 1 WHERE visible_at = 4611686018427387903",
        "UPDATE ordered SET visible_at = 4611686018427387903 WHERE seq > 0 AND visible_at IS NULL",
    ],
    "no seq exceeds the last assigned one": [
        "UPDATE message SET seq = seq + (1 << 40) WHERE seq = (SELECT max(seq) FROM message)"
    ],
    "the deduplication log has no gap": [
        "DELETE FROM accepted WHERE number = 2",
        "UPDATE accepted SET entries = CAST('half' AS BLOB)",
    ],
    "events are numbered without a gap": ["DELETE FROM event_batch WHERE number = 2"],
    "every expired receipt is stored once": [
        "INSERT INTO expired_receipt SELECT number + 9, seq, generation, 0, event FROM expired_receipt"
    ],
    "every stage has a writer, and as many messages as it counts": [
        "DELETE FROM writer",
        "UPDATE stage SET messages = messages + 1",
        "DELETE FROM stage",
    ],
    "every stage of a publication exists until it is published": [
        "INSERT INTO publication (qp, writer_id, batch, stages, next_at) VALUES (1, 1, 1, '{1,9}', 0)"
    ],
    "every move task has a queue, and has moved no more messages than planned": [
        "INSERT INTO move (id, queue_id, source, status, moved, to_move, started_at, next_at) "
        f"VALUES (CAST('id' AS BLOB), {queue}, 'a', 'completed', {moved}, 1, 0, 0)"
        for queue, moved in ((99, 0), (1, 2), (1, -1))
    ],
    "every subscription has a topic and, if it is pushed, a queue": [
        "DELETE FROM topic",
        "UPDATE subscription SET name = 't'",
    ],
}


@pytest.mark.parametrize(
    ("check", "damage"), [(check, damage) for check, damages in DAMAGES.items() for damage in damages]
)
def test_each_damage_is_found(folder: Path, check: str, damage: str) -> None:
    assert check in _broken(folder, damage)


def test_the_doctor_works_beside_an_open_store_and_changes_nothing(folder: Path) -> None:
    with hosting(folder) as host:
        host.sweep()
        host.send("more", "and more")
        before = (folder / DATABASE_NAME).read_bytes()
        assert examine(folder).facts["messages"] == 24
        assert (folder / DATABASE_NAME).read_bytes() == before
