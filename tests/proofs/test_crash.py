"""The crash proof: a server is killed again and again under load that uses all features of queues.

A standard queue has delays, changes, late deletes, dead letters and claims; a FIFO queue has groups, deduplication and
claims; move tasks empty the dead-letter queue; events are exported. SIGKILL kills the server on a data folder, one of
three nodes on PostgreSQL, or PostgreSQL itself.

Afterwards every acknowledged send without a requested delete is in exactly one place; no delete acknowledged for the
current receipt was undone; no message was delivered before its deadline or while it was claimed; each receive count
lies between the answered and the attempted receives; each group was delivered in order; a claim had the same messages
at each read; messages were dead-lettered at their limit; move tasks counted the moved messages; receipts and claims act
after a kill; each end of a receipt is in the event log once. `PROVE=whole` kills sixty times, `CRASH_SEED` sets another
seed.
"""

import os
import random
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from pyarrow import dataset

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.client.traffic import drained, send
from tests.proofs.ledger import NodesCaller, Refused, SqsCaller, Unreached
from tests.proofs.loads import (
    BACK,
    DEAD,
    DRAIN_S_MAX,
    MOVES_PER_S,
    PATIENCE_S,
    RECEIVES_MAX,
    Callers,
    Load,
    Mover,
    OrderedLoad,
    Source,
    Threads,
    counts,
    drain,
    patiently,
)
from tests.proofs.served import Served, ServedFolder, StartNode, starting_nodes, wait_until
from tests.server.push_receiver import Receiver
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.core.claims import SourceView

WHOLE = os.environ.get("PROVE") == "whole"
KILLS = 60 if WHOLE else 3
SEED = int(os.environ.get("CRASH_SEED", "20240229"))
NODES = 3
HELD = "held"
HELD_S = 3_600
CLAIMED = 20


class Deployment(NamedTuple):
    """The servers, and the processes to kill, one at a time."""

    servers: Sequence[Served]
    killed: Sequence[Served | PostgresServer]

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self.servers]

    def kill(self, chance: random.Random) -> None:
        one = chance.choice(self.killed)
        one.kill()
        one.start()


@contextmanager
def running(what: str, folder: Path, options: list[str]) -> Iterator[Deployment]:
    if what == "server":
        with ServedFolder(folder / "store", *options) as server:
            yield Deployment([server], [server])
    else:
        with (
            temporary_folder() as data,
            PostgresServer(data) as postgres,
            starting_nodes(postgres.url, folder) as start,
        ):
            nodes = [start(*options) for _ in range(NODES)]
            yield Deployment(nodes, nodes if what == "node" else [postgres])


@pytest.fixture(params=["server", "node", "database"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """Return a deployment with the queues; it exports events every second, in small ranges."""
    options = ["--events-to", str(tmp_path / "events"), "--events-period-s", "1", "--events-per-file", "400"]
    with running(request.param, tmp_path, options) as started:
        with closing(SqsCaller(started.ports[0], DEAD)) as maker:
            for name, attributes in (
                (DEAD, {}),
                (BACK, {}),
                (HELD, {"VisibilityTimeout": str(HELD_S)}),
                (Load.queue, Load.attributes),
                (OrderedLoad.queue, OrderedLoad.attributes),
            ):
                maker.call("CreateQueue", QueueName=name, Attributes=attributes)
        yield started


class Held:
    """Receipts and claims that are unused between kills, and must still act after each."""

    def __init__(self, ports: list[int], chance: random.Random) -> None:
        endpoint = f"http://127.0.0.1:{ports[0]}"
        self._caller = NodesCaller(ports, HELD, chance)
        self._claims = Claims(endpoint, HELD)
        self._handles: list[str] = []
        with HttpQueueClient(endpoint) as client:
            send(client, HELD, CLAIMED)
        epoch = self._claims.open(HELD, hold_s=HELD_S, lease_s=HELD_S).epoch
        for number in (1, 2):
            self._claims.claim(HELD, epoch=epoch, number=number, messages_max=CLAIMED // 2, shard_messages=5)
        self._before = self._standing()

    def close(self) -> None:
        self._caller.close()
        self._claims.close()

    def hold(self, number: int) -> None:
        patiently(partial(self._caller.call, "SendMessage", MessageBody=f"held-{number}"), again=(Unreached,))
        (only,) = self._call("ReceiveMessage", MaxNumberOfMessages=10)["Messages"]
        assert only["Body"] == f"held-{number}"
        self._handles.append(only["ReceiptHandle"])

    def check(self) -> None:
        """Assert that the state is unchanged, extend each lease, and delete the oldest message."""
        self._caller.close()  # of a killed node
        assert self._call("ReceiveMessage", MaxNumberOfMessages=10).get("Messages", []) == []
        for handle in self._handles:
            self._call("ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout=HELD_S)
        assert patiently(partial(counts, self._caller)) == (0, CLAIMED + len(self._handles))
        if len(self._handles) > 2:
            self._call("DeleteMessage", ReceiptHandle=self._handles[0])
            with pytest.raises(Refused, match="InvalidParameterValue"):
                self._call("ChangeMessageVisibility", ReceiptHandle=self._handles.pop(0), VisibilityTimeout=1)
            assert patiently(partial(counts, self._caller)) == (0, CLAIMED + len(self._handles))
        assert patiently(self._standing) == self._before

    def _call(self, action: str, **members: Any) -> dict[str, Any]:
        return patiently(partial(self._caller.call, action, **members))

    def _standing(self) -> tuple[SourceView, list[Any]]:
        (view,) = self._claims.sources()
        shards = [(each.number, shard) for each in view.claims for shard in range(each.shards)]
        batches = [batch for number, shard in shards for batch in self._claims.read(HELD, number=number, shard=shard)]
        rows = [(row["id"], row["body"], row["receive_count"]) for batch in batches for row in batch.to_pylist()]
        return msgspec.structs.replace(view, ready=0, oldest_sent_at_ms=None), rows


class Run:
    """The loads of a run, and their checks."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.load, self.ordered, self.mover = Load(), OrderedLoad(), Mover()
        self.sources = [Source(load, deployment.ports) for load in (self.load, self.ordered)]
        self.moving = 0  # kills while a move task ran
        self._chance = random.Random(SEED)

    def kill(self) -> None:
        ports, chance = self.deployment.ports, self._chance
        standard, fifo = self.sources
        with (
            closing(Held(ports, chance)) as held,
            self.load.callers(ports, standard.step, seed=SEED) as callers,
            self.ordered.callers(ports, fifo.step, seed=SEED + 100),
            Callers(ports, DEAD, [self.mover.step], seed=SEED + 200),
        ):
            for number in range(KILLS):
                callers.until(lambda: self.mover.is_running)
                held.hold(number)
                time.sleep(chance.uniform(0.2, 1.2))
                self.moving += self.mover.is_running
                self.deployment.kill(chance)
                held.check()
            callers.until(self._is_enough)

    def _is_enough(self) -> bool:
        totals = [load.ledger.totals() for load in (self.load, self.ordered)]
        moved = sum(count for _, count in self.mover.tasks.values())
        many = all(sends > 10 * KILLS and deletes > 5 * KILLS for sends, _, deletes in totals)
        return many and moved > KILLS and all(source.acknowledged > 3 for source in self.sources)

    def settle(self) -> list[str]:
        for source in self.sources:
            source.close(self._chance)
        left = [self._drained(load) for load in (self.load, self.ordered)]
        with closing(NodesCaller(self.deployment.ports, DEAD, self._chance)) as caller:
            self._await_tasks(caller)
        with HttpQueueClient(f"http://127.0.0.1:{self.deployment.ports[0]}") as client:
            dead, back = ([message.body for message in drained(client, queue)] for queue in (DEAD, BACK))
        assert {status for status, _ in self.mover.tasks.values()} == {"COMPLETED"}
        assert sum(moved for _, moved in self.mover.tasks.values()) == len(back)
        self._print(left, dead, back)
        everything = left[0] + Counter(dead + back)
        return [
            *self.load.ledger.settle({*everything}),
            *self.load.ledger.check_dead_letters(dead + back, receives_max=RECEIVES_MAX),
            *self.ordered.ledger.settle({*left[1]}),
            *self.ordered.order.violations,
            *(f"{body} is there {count} times" for body, count in (everything + left[1]).items() if count > 1),
        ]

    def _drained(self, load: Load) -> Counter[str]:
        with closing(NodesCaller(self.deployment.ports, load.queue, self._chance)) as caller:
            return drain(caller, load)

    def _await_tasks(self, caller: SqsCaller) -> None:
        def have_ended() -> bool:
            patiently(partial(self.mover.refresh, caller))
            return not self.mover.is_running

        waiting, _ = patiently(partial(counts, caller))  # each whole second moves so many of them
        within_s = DRAIN_S_MAX + waiting / MOVES_PER_S
        wait_until(
            have_ended, within_s=within_s, what=f"the move task does not end: {self.mover.tasks}, {waiting} wait"
        )

    def _print(self, left: list[Counter[str]], dead: list[str], back: list[str]) -> None:
        print(f"\nCRASH_SEED={SEED}: {KILLS} kills, {self.moving} of them while a move task ran")  # noqa: T201
        for load, source, found in zip((self.load, self.ordered), self.sources, left, strict=True):
            sent, received, deleted = load.ledger.totals()
            print(  # noqa: T201 - a proof shows its figures
                f"{load.queue}: {sent} sends acknowledged of {len(load.ledger.messages)}, {received} deliveries"
                f" ({load.ledger.receives_unanswered} receives unanswered), {deleted} deletes acknowledged,"
                f" {source.messages} claimed to number {source.acknowledged}, {found.total()} left"
            )
        print(f"{len(dead)} dead, {len(back)} moved by {len(self.mover.tasks)} tasks")  # noqa: T201


@pytest.mark.slow
@pytest.mark.timeout(3600 if WHOLE else 900)
def test_crashes_lose_no_change(deployment: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(deployment)
    with capsys.disabled():
        run.kill()
        violations = run.settle()
    assert violations == []
    for server in deployment.servers:
        server.stop()
    check_events(tmp_path / "events", [run.load, run.ordered])


def check_events(events: Path, loads: list[Load]) -> None:
    """Assert that the exported events are complete and agree with the ledgers: each receipt has one end."""
    table = dataset.dataset(events / "receipt_closed", format="parquet", partitioning="hive").to_table()
    rows = table.select(["event", "message_id", "receipt", "outcome"]).to_pylist()
    assert sorted(row["event"] for row in rows) == list(range(1, len(rows) + 1))
    ends: dict[str, Counter[tuple[str, int]]] = {}
    for row in rows:
        ends.setdefault(row["outcome"], Counter())[row["message_id"], row["receipt"]] += 1
    late, dead = ends.pop("late_deleted"), ends.pop("dead_lettered")
    once = sum(ends.values(), Counter[tuple[str, int]]())
    assert {*once.values()} == {*late.values()} == {*dead.values()} == {1}
    assert late.keys() <= ends["expired"].keys()
    assert dead.keys() <= ends["expired"].keys() | ends["nacked"].keys()
    for load in loads:
        assert load.received <= {message for message, _ in once}
        assert load.deleted <= {message for message, _ in ends["deleted"]}
        assert load.deleted_late <= {message for message, _ in late}


KILLS_OF_TOPICS = 20 if WHOLE else 3
PUBLISHERS = 3
PER_KILL = 40
TOPIC = "/topics/news"
QUEUES = ("first", "second")
_WAITING = re.compile(r"<MessageCount>(\d+)</MessageCount>")
_BODY = re.compile(r"<MessageBody>([^<]*)</MessageBody>")


@pytest.fixture
def served(tmp_path: Path, receiver: Receiver) -> Iterator[ServedFolder]:
    with ServedFolder(tmp_path / "store", "--push-allow", "127.0.0.1") as folder:
        assert call(folder, "PUT", TOPIC)[0] == 201
        for name in QUEUES:
            assert call(folder, "PUT", f"/queues/{name}")[0] == 201
            subscribe(folder, name, f"acs:mns:r:000000000000:queues/{name}")
        subscribe(folder, "pushed", receiver.url)
        yield folder


def call(served: ServedFolder, method: str, target: str, body: str = "") -> tuple[int, str]:
    """Return status and body of the reply; raises `OSError` or `HTTPException` if there is none."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request(method, target, body.encode(), {"x-mns-version": "2015-06-06"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def subscribe(served: ServedFolder, name: str, endpoint: str) -> None:
    settings = f"<Endpoint>{endpoint}</Endpoint><NotifyContentFormat>SIMPLIFIED</NotifyContentFormat>"
    target = f"{TOPIC}/subscriptions/{name}"
    assert call(served, "PUT", target, f"<Subscription>{settings}</Subscription>")[0] == 201


class Publisher:
    """Publish unique numbers, and record the acknowledged ones."""

    def __init__(self, served: ServedFolder) -> None:
        self.requested: list[str] = []
        self.acknowledged: list[str] = []
        self._served = served
        self._numbers = count()

    def step(self) -> None:
        body = str(next(self._numbers))
        self.requested.append(body)
        message = f"<Message><MessageBody>{body}</MessageBody></Message>"
        if call(self._served, "POST", f"{TOPIC}/messages", message)[0] == 201:
            self.acknowledged.append(body)


def waiting(served: ServedFolder) -> int:
    (count,) = _WAITING.findall(call(served, "GET", TOPIC)[1])
    return int(count)


def emptied(served: ServedFolder, queue: str) -> Counter[str]:
    found: Counter[str] = Counter()
    while True:
        status, page = call(served, "GET", f"/queues/{queue}/messages?numOfMessages=16")
        if status == 404:
            return found
        found.update(_BODY.findall(page))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_publication_reaches_all_subscriptions_or_none_in_crashes(served: ServedFolder, receiver: Receiver) -> None:
    """Each message is pushed at least once, or its push waits for the end of a lease that a kill left.

    `PROVE=whole` kills twenty times, and waits for the last push.
    """
    publisher = Publisher(served)
    with Threads([publisher.step] * PUBLISHERS) as publishers:
        for more in [PER_KILL] * KILLS_OF_TOPICS + [PUBLISHERS + 1]:
            wanted = len(publisher.acknowledged) + more
            publishers.until(lambda: len(publisher.acknowledged) >= wanted)  # noqa: B023
            if more == PER_KILL:
                served.kill()
                served.start()
    first, second = (emptied(served, name) for name in QUEUES)
    assert first == second
    assert set(first.values()) == {1}
    assert set(publisher.acknowledged) <= set(first) <= set(publisher.requested)
    # published after the last start, so that no kill delays its push
    wait_until(lambda: publisher.acknowledged[-1] in receiver.bodies)
    wait_until(lambda: len(set(first) - set(receiver.bodies)) <= (0 if WHOLE else waiting(served)))
    assert set(receiver.bodies) <= set(first)


WAKES = 100 if WHOLE else 3
WAKE_SEED = 20_261_123
QUEUE = "polled"
WAKE_MS_MAX = 50
POLLS_MAX = 6  # the send may be late


@pytest.fixture
def nodes(start_node: StartNode) -> list[Served]:
    running = [start_node() for _ in range(NODES)]
    with closing(SqsCaller(running[0].port, QUEUE)) as maker:
        maker.call("CreateQueue", QueueName=QUEUE)
    return running


@pytest.mark.slow
def test_a_send_wakes_a_long_poll_at_another_node(nodes: list[Served], capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(WAKE_SEED)
    latencies_ms = [wake_ms(nodes, chance) for _ in range(WAKES)]
    with capsys.disabled():
        print(f"\n{latency_summary(latencies_ms)}")  # noqa: T201 - a proof shows its figures
    if WHOLE:  # tests in virtual time show that a notification wakes it, and not a poll
        assert statistics.median(latencies_ms) <= WAKE_MS_MAX


def latency_summary(latencies_ms: list[float]) -> str:
    return (
        f"from a send acknowledged at one node to its long poll answered at another:"
        f" median {statistics.median(latencies_ms):.1f} ms, at most {max(latencies_ms):.1f} ms, of {len(latencies_ms)}"
    )


def wake_ms(nodes: list[Served], chance: random.Random) -> float:
    """Return the time from a send at one node to the reply of a long poll at another."""
    here, there = chance.sample(nodes, 2)
    got: list[float] = []

    def received(caller: SqsCaller) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = caller.call("ReceiveMessage", WaitTimeSeconds=9).get("Messages", [])
        return messages

    def wait() -> None:
        with closing(SqsCaller(there.port, QUEUE)) as caller:
            (message,) = next(filter(None, (received(caller) for _ in range(POLLS_MAX))))
            got.append(time.monotonic())
            caller.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(chance.uniform(0.2, 0.4))
    with closing(SqsCaller(here.port, QUEUE)) as caller:
        caller.call("SendMessage", MessageBody="wake")
    sent_s = time.monotonic()
    waiting.join(PATIENCE_S)
    (got_s,) = got
    return max(0.0, got_s - sent_s) * 1_000
