"""The loads of the proofs: threads that call a server, and what each of them does."""

import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPException
from itertools import count
from typing import ClassVar, NamedTuple, Self, TypeVar

from tests.proofs.ledger import (
    TICK_S,
    GroupOrder,
    Ledger,
    NodesCaller,
    Receipt,
    Refused,
    SqsCaller,
    Unanswered,
    Unreached,
)
from veilmq.client import ClientError, Unreachable
from veilmq.client.api import Claims
from veilmq.core.claims import ClaimState, SourceView

PATIENCE_S = 60
PAUSE_S = 0.02

Step = Callable[[SqsCaller, random.Random, int], None]
"""One iteration of a thread: gets its caller, its random numbers and a unique number."""


class Threads:
    """Repeat each of `steps` in its own thread within the context; go on after an unanswered request."""

    def __init__(self, steps: Iterable[Callable[[], object]]) -> None:
        self._errors: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(step,)) for step in steps]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert self._errors == []

    def until(self, condition: Callable[[], object]) -> None:
        give_up_at_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_at_s, "the load did not get so far"
            time.sleep(PAUSE_S)

    def _run(self, step: Callable[[], object]) -> None:
        try:
            while not self._stop.is_set():
                try:
                    step()
                except (Unanswered, OSError, HTTPException):
                    time.sleep(PAUSE_S)
        except BaseException as error:
            self._errors.append(error)
            raise


class Callers(Threads):
    """The same with steps on one queue, which get their arguments here."""

    def __init__(self, ports: Sequence[int], queue: str, steps: Sequence[Step], *, seed: int) -> None:
        chances = [random.Random(seed + place) for place in range(len(steps))]
        numbers = [count(place + len(steps), len(steps)) for place in range(len(steps))]
        self._callers = [NodesCaller(ports, queue, chance) for chance in chances]
        arguments = zip(steps, self._callers, chances, numbers, strict=True)
        super().__init__([partial(_call, *each) for each in arguments])

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for caller in self._callers:
            caller.close()


def _call(step: Step, caller: SqsCaller, chance: random.Random, numbers: Iterator[int]) -> None:
    step(caller, chance, next(numbers))


TIMEOUT_S = 2
LONGER_S = 3
DELAY_S = 1
RECEIVES_MAX = 3
GROUPS = 10
DEAD = "dead"
BACK = "back"
ARN = "arn:aws:sqs:us-east-1:000000000000:{}"
MOVES_PER_S = 5
CLAIMS_OPEN_MAX = 4
LATE_SHARE = 0.2
DRAIN_S_MAX = 60.0  # without a message
SOURCE = "source"
HOLD_S = 3_600
UNANSWERED = (Unanswered, Unreachable, ClientError)

Value = TypeVar("Value")
now_s = time.monotonic


class Load:
    """Producers and consumers on a standard queue: delays, changes, deletes in time and late, and dead letters."""

    queue = "busy"
    attributes: ClassVar = {
        "VisibilityTimeout": str(TIMEOUT_S),
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN.format(DEAD), "maxReceiveCount": RECEIVES_MAX}),
    }
    delete_share, change_share = 0.5, 0.3
    timeouts_s: ClassVar[tuple[int, ...]] = (0, 0, 1, LONGER_S)
    wait_s = 0

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.received: set[str] = set()  # ids of messages with a receipt
        self.deleted: set[str] = set()  # ids of those that were deleted in time, for certain
        self.deleted_late: set[str] = set()
        self._left: deque[Receipt] = deque()  # unused receipts

    def callers(self, ports: Sequence[int], *more: Step, seed: int) -> Callers:
        """Return two producers, three consumers, and a caller for each of `more`."""
        return Callers(ports, self.queue, [self.produce] * 2 + [self.consume] * 3 + [*more], seed=seed)

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        bodies = [f"{number}-{place}" for place in range(chance.choice((1, 1, 5)))]
        delay_s = chance.choice((0, 0, 0, DELAY_S))
        self.ledger.send_requested(bodies, hidden_until_s=now_s() - TICK_S + delay_s)
        entries = [{"Id": str(at), "MessageBody": body, "DelaySeconds": delay_s} for at, body in enumerate(bodies)]
        assert not caller.call("SendMessageBatch", Entries=entries).get("Failed")
        self.ledger.send_acknowledged(bodies)
        time.sleep(0.04)

    def consume(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        """Receive, and delete, change or abandon each message; delete one that was abandoned long ago."""
        receipts = self.receive(caller, chance.choice((1, 5, 10)))
        for receipt in receipts:
            fate = chance.random()
            if fate < self.delete_share:
                self._delete(caller, receipt)
            elif fate < self.delete_share + self.change_share:
                self._change(caller, receipt, timeout_s=chance.choice(self.timeouts_s))
            else:  # as if its consumer had died: the lease expires
                self._left.append(receipt)
        self._delete_late(caller, chance)
        time.sleep(0.01)

    def receive(self, caller: SqsCaller, count: int) -> list[Receipt]:
        with self.ledger.receiving():
            requested_s = now_s()
            answer = caller.call(
                "ReceiveMessage",
                MaxNumberOfMessages=count,
                WaitTimeSeconds=self.wait_s,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
            replied_s = now_s()
            receipts = [
                self.ledger.received(
                    each["Body"],
                    each["ReceiptHandle"],
                    int(each["Attributes"]["ApproximateReceiveCount"]),
                    requested_s=requested_s,
                    replied_s=replied_s,
                    timeout_s=TIMEOUT_S,
                    message_id=each["MessageId"].replace("-", ""),
                )
                for each in answer.get("Messages", [])
            ]
        self.received.update(receipt.message_id for receipt in receipts)
        return receipts

    def note_claimed(self, rows: list[tuple[str, int]], *, requested_s: float, replied_s: float) -> list[Receipt]:
        return [self.ledger.claimed(body, count, requested_s=requested_s, replied_s=replied_s) for body, count in rows]

    def delete_requested(self, receipt: Receipt) -> None:
        self.ledger.delete_requested(receipt)

    def _delete(self, caller: SqsCaller, receipt: Receipt) -> None:
        self.delete_requested(receipt)
        caller.call("DeleteMessage", ReceiptHandle=receipt.handle)
        if self.ledger.delete_acknowledged(receipt, replied_s=now_s()):
            self.deleted.add(receipt.message_id)

    def _delete_late(self, caller: SqsCaller, chance: random.Random) -> None:
        """Delete by the oldest abandoned receipt, or drop it, if it has certainly expired."""
        with suppress(IndexError):
            receipt = self._left.popleft()
            if receipt.over_s >= now_s():
                self._left.appendleft(receipt)
            elif chance.random() < LATE_SHARE:
                self._delete(caller, receipt)
                self.deleted_late.add(receipt.message_id)

    def _change(self, caller: SqsCaller, receipt: Receipt, *, timeout_s: int) -> None:
        requested_s = now_s()
        self.ledger.change_requested(receipt, requested_s=requested_s, timeout_s=timeout_s)
        caller.call("ChangeMessageVisibility", ReceiptHandle=receipt.handle, VisibilityTimeout=timeout_s)
        self.ledger.change_acknowledged(receipt, requested_s=requested_s, replied_s=now_s(), timeout_s=timeout_s)


class OrderedLoad(Load):
    """The same on a FIFO queue: each producer has its own groups, and repeats a send until it is acknowledged."""

    queue = "ordered.fifo"
    attributes: ClassVar = {"FifoQueue": "true", "VisibilityTimeout": str(TIMEOUT_S)}
    delete_share, change_share = 0.85, 0.1
    timeouts_s = (0,)

    def __init__(self) -> None:
        super().__init__()
        self.order = GroupOrder()
        self._next: Counter[str] = Counter()
        self._sequences: dict[str, str] = {}

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        group = f"{threading.get_ident()}.{chance.randrange(GROUPS)}"
        body = f"{group}:{self._next[group]}"
        if body not in self.ledger.messages:
            self.ledger.send_requested([body])
        answer = caller.call("SendMessage", MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body)
        assert self._sequences.setdefault(body, answer["SequenceNumber"]) == answer["SequenceNumber"]
        self.ledger.send_acknowledged([body])
        self._next[group] += chance.random() < 0.8
        time.sleep(0.02)

    def receive(self, caller: SqsCaller, count: int) -> list[Receipt]:
        receipts = super().receive(caller, count)
        self.order.delivered([_group_and_number(receipt.body) for receipt in receipts])
        return receipts

    def note_claimed(self, rows: list[tuple[str, int]], *, requested_s: float, replied_s: float) -> list[Receipt]:
        self.order.delivered([_group_and_number(body) for body, _ in rows])
        return super().note_claimed(rows, requested_s=requested_s, replied_s=replied_s)

    def delete_requested(self, receipt: Receipt) -> None:
        if receipt.over_s >= now_s():
            super().delete_requested(receipt)
            self.order.delete_requested(*_group_and_number(receipt.body))

    def _delete(self, caller: SqsCaller, receipt: Receipt) -> None:
        with _refused_when_over(receipt):
            super()._delete(caller, receipt)

    def _change(self, caller: SqsCaller, receipt: Receipt, *, timeout_s: int) -> None:
        with _refused_when_over(receipt):
            super()._change(caller, receipt, timeout_s=timeout_s)


def _group_and_number(body: str) -> tuple[str, int]:
    group, number = body.split(":")
    return group, int(number)


@contextmanager
def _refused_when_over(receipt: Receipt) -> Iterator[None]:
    try:
        yield
    except Refused:
        assert now_s() >= receipt.sure_until_s, f"{receipt.body}: a receipt in force was refused"


class Source:
    """A reader of claims on the queue of `load`, like that of Spark; all of its calls may be repeated."""

    def __init__(self, load: Load, ports: Sequence[int]) -> None:
        self.acknowledged = self.messages = 0
        self._load = load
        self._claims = [Claims(f"http://127.0.0.1:{port}", load.queue) for port in ports]
        self._epoch = self._last = 0
        self._open: dict[int, Claim] = {}
        self._released: set[int] = set()

    def step(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        if not self._epoch or chance.random() < 0.1:
            self._epoch = self._call(chance, partial(Claims.open, source=SOURCE, hold_s=HOLD_S)).epoch
        self._check(self._call(chance, partial(Claims.heartbeat, source=SOURCE, epoch=self._epoch)))
        if len(self._open) < CLAIMS_OPEN_MAX:
            self._bind(chance)
        if self._open:
            self._read_again(chance, chance.choice([*self._open]))
        if len(self._open) > CLAIMS_OPEN_MAX // 2 and chance.random() < 0.3:
            self._release(chance, max(self._open))
        elif self._open and chance.random() < 0.4:
            self._acknowledge(chance, chance.choice([*self._open]))
        time.sleep(0.05)

    def close(self, chance: random.Random) -> None:
        for number in [*self._open]:
            self._read_again(chance, number)
            self._note_released(number)
        self._call(chance, partial(Claims.close_source, source=SOURCE))

    def _call(self, chance: random.Random, call: Callable[[Claims], Value]) -> Value:
        return patiently(lambda: call(chance.choice(self._claims)))

    def _check(self, view: SourceView) -> None:
        assert (view.acknowledged, view.last) == (self.acknowledged, self._last)
        open_now = {each.number: each.messages for each in view.claims if each.state is ClaimState.OPEN}
        assert open_now == {number: len(each.receipts) for number, each in self._open.items()}

    def _bind(self, chance: random.Random) -> None:
        number, requested_s = self._last + 1, now_s()
        many, shard = chance.choice((1, 10, 40)), chance.choice((1, 7, 100))
        bind = partial(Claims.claim, source=SOURCE, epoch=self._epoch, messages_max=many, shard_messages=shard)
        while (bound := self._call(chance, partial(bind, number=number))).more:
            pass
        replied_s = now_s()
        if bound.shards:
            shards = self._read(chance, number, bound.shards)
            rows = [row for shard in shards for row in shard]
            assert len(rows) == bound.messages
            receipts = self._load.note_claimed(rows, requested_s=requested_s, replied_s=replied_s)
            self._open[number], self._last = Claim(shards, receipts), number
            self.messages += len(rows)

    def _read(self, chance: random.Random, number: int, shards: int) -> list[list[tuple[str, int]]]:
        def rows(claims: Claims, *, shard: int) -> list[tuple[str, int]]:
            batches = claims.read(SOURCE, number=number, shard=shard)
            return [(row["body"], row["receive_count"]) for batch in batches for row in batch.to_pylist()]

        return [self._call(chance, partial(rows, shard=shard)) for shard in range(shards)]

    def _read_again(self, chance: random.Random, number: int) -> None:
        shards = self._open[number].shards
        assert self._read(chance, number, len(shards)) == shards, f"claim {number} has changed"

    def _acknowledge(self, chance: random.Random, number: int) -> None:
        receipts = [each for open_, claim in self._open.items() if open_ <= number for each in claim.receipts]
        for each in receipts:
            self._load.delete_requested(each)
        answer = self._call(chance, partial(Claims.acknowledge, source=SOURCE, epoch=self._epoch, number=number))
        assert answer.acknowledged == number
        assert self._released.issuperset(answer.lost)
        for each in receipts:
            self._load.ledger.delete_acknowledged(each, replied_s=now_s())
        self._open = {open_: claim for open_, claim in self._open.items() if open_ > number}
        self.acknowledged = number

    def _release(self, chance: random.Random, number: int) -> None:
        self._note_released(number)
        self._call(chance, partial(Claims.release, source=SOURCE, number=number))
        self._released.add(number)

    def _note_released(self, number: int) -> None:
        for each in self._open.pop(number).receipts:
            self._load.ledger.change_requested(each, requested_s=now_s(), timeout_s=0)


class Claim(NamedTuple):
    """An open claim: the bodies and receive counts of each shard, and its messages as receipts."""

    shards: list[list[tuple[str, int]]]
    receipts: list[Receipt]


class Mover:
    """Start one move task after the other on the dead-letter queue, and record their states."""

    def __init__(self) -> None:
        self.tasks: dict[int, tuple[str, int]] = {}  # start → status and moved messages

    @property
    def is_running(self) -> bool:
        return any(status == "RUNNING" for status, _ in self.tasks.values())

    def step(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        self.refresh(caller)
        if not self.is_running and counts(caller)[0] >= MOVES_PER_S:
            arns = {"SourceArn": ARN.format(DEAD), "DestinationArn": ARN.format(BACK)}
            caller.call("StartMessageMoveTask", **arns, MaxNumberOfMessagesPerSecond=MOVES_PER_S)
        time.sleep(0.05)

    def refresh(self, caller: SqsCaller) -> None:
        for each in caller.call("ListMessageMoveTasks", SourceArn=ARN.format(DEAD), MaxResults=10)["Results"]:
            self.tasks[each["StartedTimestamp"]] = each["Status"], each["ApproximateNumberOfMessagesMoved"]


def patiently(call: Callable[[], Value], *, again: tuple[type[Exception], ...] = UNANSWERED) -> Value:
    deadline_s = now_s() + PATIENCE_S
    while True:
        try:
            return call()
        except again as error:
            if now_s() > deadline_s or (isinstance(error, ClientError) and error.status < 500):
                raise
        time.sleep(PAUSE_S)


def counts(caller: SqsCaller) -> tuple[int, int]:
    names = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]
    attributes = caller.call("GetQueueAttributes", AttributeNames=names)["Attributes"]
    visible, in_flight, delayed = (int(attributes[name]) for name in names)
    return visible, in_flight + delayed


def drain(caller: SqsCaller, load: Load) -> Counter[str]:
    """Receive and delete all messages of the queue of `load`, waiting for leases and delays; return the bodies."""
    found, deadline_s = Counter[str](), now_s() + DRAIN_S_MAX
    while True:
        # A node may still refuse requests after the last kill.
        if receipts := patiently(partial(load.receive, caller, 10), again=(Unreached,)):
            for each in receipts:
                load.delete_requested(each)
            entries = [{"Id": str(at), "ReceiptHandle": each.handle} for at, each in enumerate(receipts)]
            delete = partial(caller.call, "DeleteMessageBatch", Entries=entries)
            assert not patiently(delete, again=(Unreached,)).get("Failed")
            found.update(each.body for each in receipts)
            deadline_s = now_s() + DRAIN_S_MAX
        elif patiently(partial(counts, caller), again=(Unreached,)) == (0, 0):
            return found
        else:
            assert now_s() < deadline_s, "the queue does not drain"
            time.sleep(0.05)
