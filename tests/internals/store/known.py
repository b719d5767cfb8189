"""What a store knows, by what it does: probes that each begin with the same folder, and give values that JSON has.

The engine before answered them when `folders/` was recorded (see the README there); the store that its folder was
converted to has to answer the same. What differs between two formats, or is random, is left out: the texts of receipts,
positions, sequence numbers, hashes of groups.
"""

import tarfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.store.host import Host, message
from veilmq.core import claims, commands
from veilmq.core.claims import Abandon, ListWriters, Publish, Stage
from veilmq.core.commands import (
    ChangeVisibility,
    Delete,
    InspectLeases,
    InspectQueue,
    Peek,
    PeekedMessage,
    Receive,
    Send,
    ShowAccount,
    VisibilityChange,
)
from veilmq.core.errors import VeilmqError
from veilmq.core.messages import decode_properties
from veilmq.core.receipts import CountEvents, ForgetEvents, PlanExport, ReadEvents, ReceiptClosed, decode_events
from veilmq.core.topics import (
    Forward,
    ForwardEntry,
    ListPushes,
    ListSubscriptions,
    ListTopics,
    PublishToTopic,
    ShowTopic,
    Unsubscribe,
)

FOLDERS = Path(__file__).parent / "folders"
DAY_MS = 86_400_000
LEASE_S = 43_200
_LEFT_OUT = {
    "receipt",
    "sequence",
    "position",
    "group_hash",
    "generation",
    "oldest_sent_at_ms",
    "ready",
    "redelivered",
    "sent",
    "received",
    "deleted",
}


class Known(msgspec.Struct, kw_only=True):
    """A folder, as it was recorded: what was given before, and what each probe answered.

    The store stood at `now_ms`, and the wall clock `ahead_ms` further. `receipts` are those handed out by queue, in
    order; `attempts` are attempt ids, `sent` are group, deduplication id, body and message id of what FIFO queues
    accepted, `stages` are queue, writer, batch, attempt and the bodies of what was staged.
    """

    now_ms: int
    ahead_ms: int
    options: dict[str, Any]
    receipts: dict[str, list[str]] = {}
    attempts: dict[str, list[str]] = {}
    sent: dict[str, list[tuple[str, str, str, str]]] = {}
    stages: list[tuple[str, str, int, str, list[str]]] = []
    deleted: list[str] = []
    answers: dict[str, Any] = {}


def unpack(name: str, place: Path) -> tuple[Path, Known]:
    with tarfile.open(FOLDERS / f"{name}.tar.xz") as tar:
        tar.extractall(place, filter="data")
    return place / "store", msgspec.json.decode((place / "known.json").read_bytes(), type=Known)


def plain(value: Any) -> Any:
    return _without(msgspec.to_builtins(value, order="deterministic", enc_hook=lambda error: type(error).__name__))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without(each) for key, each in value.items() if key not in _LEFT_OUT}
        if kept.get("shards") == 0 and "state" in kept:
            kept["shards"] = 1  # of a claim that is not whole: of its groups it has none yet, or one
        return kept
    return [_without(each) for each in value] if isinstance(value, list | tuple) else value


class Probing:
    """A store that answers probes."""

    def __init__(self, host: Host, known: Known) -> None:
        self.host, self.known = host, known
        self.shown_ms = known.now_ms + known.ahead_ms
        self.queues = self.names()
        self.settle()
        host.sweep()

    def names(self) -> list[str]:
        return sorted(self.host.names())

    def settle(self) -> None:
        for _ in range(30):
            self.host.advance(10)

    def answer(self, command: commands.Command) -> Any:
        return plain(self.raw(command))

    def raw(self, command: commands.Command) -> Any:
        try:
            return self.host.do(command)
        except VeilmqError as error:
            return error

    def everything(self) -> Iterator[Any]:
        for queue in self.queues:
            yield queue, self.answer(commands.ShowQueue(queue=queue, counts=True))
            yield self._messages(queue)
            leases = self.answer(InspectLeases(queue=queue))
            yield sorted(leases, key=lambda each: (each["visible_at_ms"], each["message_id"]))
            yield self.sources(queue)
            yield sorted(self.answer(ListWriters(queue=queue)), key=lambda each: str(each["writer"]))
            yield self.answer(commands.ListMoves(source=queue, count=10))
            yield self.answer(commands.ListDeadLetterSources(queue=queue))
        for account in sorted({queue.split("/")[0] for queue in self.queues}):
            yield self.answer(commands.ListQueues(account=account, views=True))
            yield self.answer(ShowAccount(account=account))
            topics = self.answer(ListTopics(account=account))
            yield topics
            for each in topics["topics"]:
                yield self.answer(ListSubscriptions(topic=each["topic"]))
        yield self.answer(ListPushes())
        yield self.answer(CountEvents())
        yield self.events()
        yield self.host.engine.token_key.hex()

    def summary(self) -> Any:
        views = [self.answer(commands.ShowQueue(queue=each, counts=True)) for each in self.queues]
        return [each["counts"] for each in views], self.events()

    def sources(self, queue: str) -> list[Any]:
        return sorted(self.answer(claims.ListSources(queue=queue)), key=lambda each: str(each["source"]))

    def _messages(self, queue: str) -> Any:
        found = self.answer(InspectQueue(queue=queue))
        for each in found:
            if each["state"] == "in flight" and each["received_at_ms"] is None:  # a claim has it
                each["receive_count"] = 0
            if each["state"] == "visible" and each["received_at_ms"] is None:  # of one that was never hidden
                each["visible_at_ms"] = None
            if each["sent_at_ms"] >= self.shown_ms:
                each["id"] = ""
        return sorted(found, key=lambda each: (each["sent_at_ms"], each["body"]))

    def events(self) -> list[Any]:
        """Return the events, in an order that does not depend on the one in which the janitor found them."""
        counts = self.raw(CountEvents())
        if counts.exported == counts.recorded:
            return []
        page = self.raw(ReadEvents(first=counts.exported + 1, last=counts.recorded, bytes_max=1 << 30))
        found = [event for _, batch in page.batches for event in decode_events(batch)]
        fields = [msgspec.structs.asdict(each) | self._new(each) for each in found]
        return sorted(map(plain, fields), key=lambda each: [str(value) for value in each.values()])

    def _new(self, event: ReceiptClosed) -> dict[str, Any]:
        """Return what nobody knew of an event: ids of messages sent since, and what a receive gave together."""
        received = {"batch_size": 0, "batch_position": 0} if event.received_at_ms >= self.shown_ms else {}
        return received | ({"message_id": b"", "sent_at_ms": 0} if event.sent_at_ms >= self.shown_ms else {})

    def receipts(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for queue, receipts in sorted(self.known.receipts.items()):
            if queue in self.queues:
                yield queue, tuple(receipts)

    def received(self, queue: str, *, timeout_s: int = LEASE_S, keep: bool = False) -> list[Any]:
        found: list[Any] = []
        while got := self.raw(Receive(queue=queue, count=1_000, timeout_s=timeout_s)).messages:
            found += got
            if keep:
                break
            self.host.delete(*(each.receipt for each in got), queue=queue)
        return self.ordered(queue, found)

    def ordered(self, queue: str, messages: list[Any]) -> list[Any]:
        """Return messages as far as their order counts.

        That of groups does not, nor does in a standard queue that of what was received before, has a group, or came as
        a dead letter or since the folder was recorded. Of the latter nobody knew the id, nor quite when it came.
        """
        found: list[tuple[str, Any]] = []
        for each in messages:
            group, new = decode_properties(each.properties).group, each.sent_at_ms >= self.shown_ms
            again = each.receive_count > (not isinstance(each, PeekedMessage))
            if not queue.endswith(".fifo") and (group or again or each.source or new):
                group = f"~{each.body}"
            found.append((group or "", plain(each) | ({"id": "", "sent_at_ms": 0} if new else {})))
        return [each for _, each in sorted(found, key=lambda each: each[0])]

    def pass_time(self, ms: int) -> None:
        self.host.advance(ms)
        self.settle()
        self.host.sweep()

    def cancel_moves(self) -> None:
        """End move tasks: which of two dead letters they take first is nobody's business."""
        for queue in self.queues:
            for each in self.raw(commands.ListMoves(source=queue, count=10)):
                self.raw(commands.CancelMove(source=queue, task=each.id))

    def all_drained(self) -> dict[str, Any]:
        found = {queue: self.received(queue) for queue in self.names()}
        return {queue: messages for queue, messages in found.items() if messages}


def show(probing: Probing) -> Iterator[Any]:
    yield from probing.everything()


def peek(probing: Probing) -> Iterator[Any]:
    for queue in probing.queues:
        yield queue, probing.ordered(queue, probing.raw(Peek(queue=queue, count=1_000)).messages)


def delete(probing: Probing, **how: bool) -> Iterator[Any]:
    for queue, receipts in probing.receipts():
        yield queue, [probing.answer(Delete(queue=queue, receipts=(each,), **how)) for each in receipts]
    yield probing.summary()
    yield probing.all_drained()


def delete_live(probing: Probing) -> Iterator[Any]:
    yield from delete(probing, only_live=True, any_epoch=True)


def delete_any(probing: Probing) -> Iterator[Any]:
    yield from delete(probing, any_receive=True)


def change(probing: Probing) -> Iterator[Any]:
    probing.cancel_moves()
    for queue, receipts in probing.receipts():
        for number, receipt in enumerate(receipts):
            moved = VisibilityChange(receipt=receipt, timeout_s=number * 7 % 50)
            yield probing.answer(ChangeVisibility(queue=queue, changes=(moved,), renew_receipt=number % 2 == 0))
    yield probing.summary()
    probing.pass_time(60_000)
    yield probing.all_drained()
    yield probing.events()


def receive(probing: Probing) -> Iterator[Any]:
    probing.cancel_moves()
    for _ in range(3):
        for queue in probing.queues:
            yield probing.received(queue, timeout_s=30, keep=True)
        probing.pass_time(31_000)
    yield probing.summary()
    yield probing.all_drained()


def wait(probing: Probing) -> Iterator[Any]:
    probing.cancel_moves()
    for passed_ms in (0, 1_000, 10_000, 60_000, 900_000, LEASE_S * 1_000, DAY_MS):
        probing.pass_time(passed_ms)
        yield passed_ms, probing.all_drained()
    yield probing.summary()


def expire(probing: Probing) -> Iterator[Any]:
    """Let all leases end, then retention; late deletes correct what the event log says."""
    probing.cancel_moves()
    probing.pass_time(LEASE_S * 1_000 + 60_000)
    yield probing.events()
    for queue, receipts in probing.receipts():
        yield queue, [probing.answer(Delete(queue=queue, receipts=(each,))) for each in receipts[::2]]
    yield probing.events()
    probing.pass_time(5 * DAY_MS)
    for queue, receipts in probing.receipts():
        yield queue, [probing.answer(Delete(queue=queue, receipts=(each,))) for each in receipts]
    yield probing.summary()


def repeat(probing: Probing) -> Iterator[Any]:
    """Repeat receives by their attempt ids, and sends by their deduplication ids, now and after five minutes."""
    for passed_ms in (0, 0, 200_000, 101_000):
        probing.pass_time(passed_ms)
        for queue, attempts in sorted(probing.known.attempts.items()):
            for each in attempts if passed_ms <= 0 else ():
                yield each, probing.answer(Receive(queue=queue, count=10, attempt_id=each, timeout_s=50))
        for queue, sent in sorted(probing.known.sent.items()):
            ids = {each[3] for each in sent}
            for group, dedup_id, body, _ in sent:
                new = message(body, group=group, dedup_id=dedup_id)
                (stored,) = probing.host.do(Send(queue=queue, messages=(new,)))
                yield body, stored.id.hex() if stored.id.hex() in ids else "new"
    yield probing.all_drained()


def _pages(probing: Probing, queue: str, source: str, claim: Any) -> Iterator[Any]:
    """Yield each shard of a claim: in FIFO queues in the order of each group."""
    for shard in range(claim["shards"]):
        terms: dict[str, Any] = {"queue": queue, "source": source, "number": claim["number"], "shard": shard}
        cursor, found = "", []
        while True:
            page = probing.raw(claims.ReadClaim(**terms, cursor=cursor, messages_max=7))
            if isinstance(page, VeilmqError):
                yield shard, plain(page)
                break
            found += page.messages
            cursor = page.cursor
            if not cursor:
                if queue.endswith(".fifo"):
                    found.sort(key=lambda each: str(decode_properties(each.properties).group))
                else:
                    found.sort(key=lambda each: each.id)
                yield shard, [plain(msgspec.structs.asdict(each)) for each in found]
                break


def _sources(probing: Probing) -> Iterator[tuple[str, Any]]:
    for queue in probing.queues:
        for view in probing.sources(queue):
            yield queue, view


def claim(probing: Probing) -> Iterator[Any]:
    """Go on as the readers of claims do: read, bind what was bound, acknowledge, twice, and bind more."""
    for queue, view in _sources(probing):
        own: dict[str, Any] = {"queue": queue, "source": view["source"], "epoch": view["epoch"]}
        for each in view["claims"]:
            yield from _pages(probing, queue, view["source"], each)
        yield probing.answer(claims.Heartbeat(**own))
        yield _bound(probing, own, view["last"])
        number = max(view["acknowledged"], view["last"])
        yield [probing.answer(claims.AcknowledgeClaims(**own, number=number)) for _ in range(2)]
    probing.pass_time(1_000)
    yield probing.summary()
    for queue, view in _sources(probing):
        own = {"queue": queue, "source": view["source"], "epoch": view["epoch"]}
        more = _bound(probing, own, view["last"] + 1)
        yield more["number"] if isinstance(more, dict) else more


def _bound(probing: Probing, own: dict[str, Any], number: int) -> Any:
    while True:
        bound = probing.answer(claims.Claim(**own, number=number, messages_max=50, shard_messages=5))
        if not isinstance(bound, dict) or not bound["more"]:
            return bound


def give_back(probing: Probing) -> Iterator[Any]:
    """End claims: release, evict, close, and the end of their holds."""
    for number, (queue, view) in enumerate(_sources(probing)):
        own: dict[str, Any] = {"queue": queue, "source": view["source"]}
        opened = [each for each in view["claims"] if each["state"] == "open"]
        if opened:
            read = [each for _, page in _pages(probing, queue, view["source"], opened[0]) for each in page]
            evicted = b64decode(min(each["id"] for each in read))
            yield probing.answer(claims.EvictMessage(**own, number=opened[0]["number"], message=evicted))
            yield probing.answer(claims.ReleaseClaim(**own, number=opened[-1]["number"]))
        if number % 3 == 0:
            yield probing.answer(claims.CloseSource(**own))
    probing.settle()
    yield probing.summary()
    probing.pass_time(4_000_000)
    probing.settle()
    yield [(queue, view) for queue, view in _sources(probing)]
    yield probing.all_drained()


def publish(probing: Probing) -> Iterator[Any]:
    """Go on as writers do: stage again, publish again, and what was staged; or abandon it."""
    probing.cancel_moves()
    for number, (queue, writer, batch, attempt, bodies) in enumerate(probing.known.stages):
        own: dict[str, Any] = {"queue": queue, "writer": writer, "batch": batch}
        news = tuple(message(each, group=each[:1], dedup_id=each) for each in bodies)
        yield probing.answer(Stage(**own, attempt=attempt, part=0, messages=news))
        if number % 4 == 3:
            yield probing.answer(Abandon(**own))
        else:
            published = probing.answer(Publish(**own, attempts=((attempt, len(bodies)),)))
            yield [published[key] for key in ("messages", "again")] if isinstance(published, dict) else published
    for _ in range(8):
        probing.pass_time(5_000)
        probing.settle()
    yield [(queue, probing.answer(ListWriters(queue=queue))) for queue in probing.queues]
    yield probing.all_drained()


def topics(probing: Probing) -> Iterator[Any]:
    probing.pass_time(1)
    accounts = sorted({queue.split("/")[0] for queue in probing.queues})
    names = [each["topic"] for account in accounts for each in probing.answer(ListTopics(account=account))["topics"]]
    for topic in names:
        make = PublishToTopic(topic=topic, size_bytes=1, make=lambda _: message("another", group="g"))
        yield topic, [plain(probing.raw(make))[key] for key in ("deliveries", "undeliverable")]
        yield probing.answer(ShowTopic(topic=topic))
    pushes = probing.answer(ListPushes())
    yield probing.all_drained()
    for each in pushes:
        yield probing.answer(Unsubscribe(topic=each["topic"], name=each["name"]))
    yield probing.answer(ListPushes())


def move(probing: Probing) -> Iterator[Any]:
    for _ in range(5):
        probing.pass_time(1_000)
        probing.settle()
    for queue in probing.queues:
        tasks = probing.answer(commands.ListMoves(source=queue, count=10))
        yield queue, tasks
        for each in probing.raw(commands.ListMoves(source=queue, count=10)):
            yield probing.answer(commands.CancelMove(source=queue, task=each.id))
    yield probing.summary()


def cool_down(probing: Probing) -> Iterator[Any]:
    """Purge, and use names again, before their time and after it; make others."""
    for passed_ms in (0, 60_000):
        probing.pass_time(passed_ms)
        for queue in probing.queues:
            yield probing.answer(commands.PurgeQueue(queue=queue))
        for queue in probing.known.deleted:
            fifo = queue.endswith(".fifo")
            made = probing.answer(commands.CreateQueue(queue=queue, settings={"fifo": fifo}))
            yield made if isinstance(made, str) else made["queue"]
        probing.host.sweep()
        yield probing.events()
    yield probing.summary()


def export(probing: Probing) -> Iterator[Any]:
    """Export events: what was planned, and the rest."""
    for _ in range(4):
        planned = probing.raw(PlanExport(events_max=20))
        yield plain(planned)
        if planned is None:
            break
        page = probing.raw(ReadEvents(first=planned.first, last=planned.last, bytes_max=1 << 30))
        yield [(first, batch.hex()) for first, batch in page.batches]
        while probing.raw(ForgetEvents(last=planned.last)).more:
            pass
        yield probing.answer(CountEvents())


def forward(probing: Probing) -> Iterator[Any]:
    for queue, receipts in probing.receipts():
        of_type = [each for each in probing.queues if each.endswith(".fifo") == queue.endswith(".fifo")]
        target = next(each for each in of_type if each != queue)
        entries = [
            ForwardEntry(receipt=receipt, target=target, reasons={"why": "so"} if number % 2 else None)
            for number, receipt in enumerate(receipts)
        ]
        yield queue, probing.answer(Forward(queue=queue, entries=tuple(entries)))
    yield probing.summary()


def set_again(probing: Probing) -> Iterator[Any]:
    """Change settings: delays of FIFO queues, and a retention that ends what is older."""
    probing.cancel_moves()
    for queue in probing.queues:
        yield probing.answer(commands.SetQueue(queue=queue, settings={"delay_s": 3, "retention_s": 60}))
    probing.pass_time(3_000)
    probing.host.sweep()
    yield probing.summary()
    yield probing.all_drained()


PROBES: dict[str, Callable[[Probing], Iterator[Any]]] = {
    probe.__name__: probe
    for probe in (
        show, peek, delete, delete_live, delete_any, change, receive, wait, expire, repeat, claim, give_back, publish,
        topics, move, cool_down, export, forward, set_again,
    )
}  # fmt: skip


def answers(host: Host, known: Known, name: str) -> list[Any]:
    found: Sequence[Any] = list(PROBES[name](Probing(host, known)))
    decoded: list[Any] = msgspec.json.decode(msgspec.json.encode(found))
    return decoded
