"""Probes of a store's behaviour: each starts with a copy of the same folder, and yields values that JSON can represent.

The previous engine's results were recorded with `folders/` (see the README there); the converted store must give the
same. Values that are random or differ between the formats are omitted: receipts, positions, sequence numbers, hashes of
groups.
"""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.store.host import Host, decode_events, message
from veilmq.core import claims, commands
from veilmq.core.claims import Abandon, ListWriters, Publish, Stage
from veilmq.core.commands import (
    Delete,
    InspectLeases,
    InspectQueue,
    Receive,
    Send,
    ShowAccount,
)
from veilmq.core.errors import VeilmqError
from veilmq.core.messages import decode_properties
from veilmq.core.receipts import CountEvents, ForgetEvents, PlanExport, ReadEvents, ReceiptClosed
from veilmq.core.topics import (
    ListPushes,
    ListSubscriptions,
    ListTopics,
)
from veilmq.wire.sqs.names import is_fifo

FOLDERS = Path(__file__).parent / "folders"
DAY_MS = 86_400_000
LEASE_S = 43_200
_OMITTED = {
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
    """A recorded folder: what the engine had issued and stored, and its results of each probe.

    Store time was `now_ms`, and shown time `ahead_ms` more. `receipts` are in order, by queue; `attempts` are attempt
    ids; `sent` has group, deduplication id, body and message id of messages accepted by FIFO queues; `stages` has
    queue, writer, batch, attempt and the staged bodies.
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


def comparable(value: Any) -> Any:
    return _without(msgspec.to_builtins(value, order="deterministic", enc_hook=lambda error: type(error).__name__))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without(each) for key, each in value.items() if key not in _OMITTED}
        if kept.get("shards") == 0 and "state" in kept:
            kept["shards"] = 1  # a claim that is still being bound has 0 or 1
        return kept
    return [_without(each) for each in value] if isinstance(value, list | tuple) else value


class Prober:
    """A store, with the commands that probes share."""

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

    def result(self, command: commands.Command) -> Any:
        return comparable(self.raw(command))

    def raw(self, command: commands.Command) -> Any:
        try:
            return self.host.do(command)
        except VeilmqError as error:
            return error

    def everything(self) -> Iterator[Any]:
        for queue in self.queues:
            yield queue, self.result(commands.ShowQueue(queue=queue, counts=True))
            yield self._messages(queue)
            leases = self.result(InspectLeases(queue=queue))
            yield sorted(leases, key=lambda each: (each["visible_at_ms"], each["message_id"]))
            yield self.sources(queue)
            yield sorted(self.result(ListWriters(queue=queue)), key=lambda each: str(each["writer"]))
            yield self.result(commands.ListMoves(source=queue, count=10))
            yield self.result(commands.ListDeadLetterSources(queue=queue))
        for account in sorted({queue.split("/")[0] for queue in self.queues}):
            yield self.result(commands.ListQueues(account=account, views=True))
            yield self.result(ShowAccount(account=account))
            topics = self.result(ListTopics(account=account))
            yield topics
            for each in topics["topics"]:
                yield self.result(ListSubscriptions(topic=each["topic"]))
        yield self.result(ListPushes())
        yield self.result(CountEvents())
        yield self.events()
        yield self.host.engine.token_key.hex()

    def summary(self) -> Any:
        views = [self.result(commands.ShowQueue(queue=each, counts=True)) for each in self.queues]
        return [each["counts"] for each in views], self.events()

    def sources(self, queue: str) -> list[Any]:
        return sorted(self.result(claims.ListSources(queue=queue)), key=lambda each: str(each["source"]))

    def _messages(self, queue: str) -> Any:
        found = self.result(InspectQueue(queue=queue))
        for each in found:
            if each["state"] == "in flight" and each["received_at_ms"] is None:  # claimed
                each["receive_count"] = 0
            if each["state"] == "visible" and each["received_at_ms"] is None:  # never hidden
                each["visible_at_ms"] = None
            if each["sent_at_ms"] >= self.shown_ms:
                each["id"] = ""
        return sorted(found, key=lambda each: (each["sent_at_ms"], each["body"]))

    def events(self) -> list[Any]:
        """Return the events in an order that is independent of the janitor's."""
        counts = self.raw(CountEvents())
        if counts.exported == counts.recorded:
            return []
        page = self.raw(ReadEvents(first=counts.exported + 1, last=counts.recorded, bytes_max=1 << 30))
        found = [event for _, batch in page.batches for event in decode_events(batch)]
        fields = [msgspec.structs.asdict(each) | self._unknown_fields(each) for each in found]
        return sorted(map(comparable, fields), key=lambda each: [str(value) for value in each.values()])

    def _unknown_fields(self, event: ReceiptClosed) -> dict[str, Any]:
        """Return fixed values for fields that were not recorded: ids of later messages, batches of later receives."""
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
        return self.in_order(queue, found)

    def in_order(self, queue: str, messages: list[Any]) -> list[Any]:
        """Return messages in their guaranteed order.

        Groups have no order, nor, in a standard queue, messages that were received before, have a group, are dead
        letters, or arrived after the recording. Of the latter, ids and times are omitted.
        """
        found: list[tuple[str, Any]] = []
        for each in messages:
            group, new = decode_properties(each.properties).group, each.sent_at_ms >= self.shown_ms
            redelivered = each.receive_count > 1
            if not queue.endswith(".fifo") and (group or redelivered or each.source or new):
                group = f"~{each.body}"
            found.append((group or "", comparable(each) | ({"id": "", "sent_at_ms": 0} if new else {})))
        return [each for _, each in sorted(found, key=lambda each: each[0])]

    def pass_time(self, ms: int) -> None:
        self.host.advance(ms)
        self.settle()
        self.host.sweep()

    def cancel_moves(self) -> None:
        """Cancel move tasks, because the order in which they move dead letters is not specified."""
        for queue in self.queues:
            for each in self.raw(commands.ListMoves(source=queue, count=10)):
                self.raw(commands.CancelMove(source=queue, task=each.id))

    def drain_all(self) -> dict[str, Any]:
        found = {queue: self.received(queue) for queue in self.names()}
        return {queue: messages for queue, messages in found.items() if messages}


def show(prober: Prober) -> Iterator[Any]:
    yield from prober.everything()


def delete(prober: Prober) -> Iterator[Any]:
    for queue, receipts in prober.receipts():
        yield queue, [prober.result(Delete(queue=queue, receipts=(each,))) for each in receipts]
    yield prober.summary()
    yield prober.drain_all()


def receive(prober: Prober) -> Iterator[Any]:
    prober.cancel_moves()
    for _ in range(3):
        for queue in prober.queues:
            yield prober.received(queue, timeout_s=30, keep=True)
        prober.pass_time(31_000)
    yield prober.summary()
    yield prober.drain_all()


def expire(prober: Prober) -> Iterator[Any]:
    """Let all leases end, then retention; late deletes correct events."""
    prober.cancel_moves()
    prober.pass_time(LEASE_S * 1_000 + 60_000)
    yield prober.events()
    for queue, receipts in prober.receipts():
        yield queue, [prober.result(Delete(queue=queue, receipts=(each,))) for each in receipts[::2]]
    yield prober.events()
    prober.pass_time(5 * DAY_MS)
    for queue, receipts in prober.receipts():
        yield queue, [prober.result(Delete(queue=queue, receipts=(each,))) for each in receipts]
    yield prober.summary()


def repeat(prober: Prober) -> Iterator[Any]:
    """Repeat receives by attempt id and sends by deduplication id, at once and after five minutes."""
    for passed_ms in (0, 0, 200_000, 101_000):
        prober.pass_time(passed_ms)
        for queue, attempts in sorted(prober.known.attempts.items()):
            for each in attempts if passed_ms <= 0 else ():
                yield each, prober.result(Receive(queue=queue, count=10, attempt_id=each, timeout_s=50))
        for queue, sent in sorted(prober.known.sent.items()):
            ids = {each[3] for each in sent}
            for group, dedup_id, body, _ in sent:
                new = message(body, group=group, dedup_id=dedup_id)
                (stored,) = prober.host.do(Send(queue=queue, messages=(new,)))
                yield body, stored.id.hex() if stored.id.hex() in ids else "new"
    yield prober.drain_all()


def _pages(prober: Prober, queue: str, source: str, claim: Any) -> Iterator[Any]:
    """Yield each shard of a claim; in FIFO queues, sorted by group."""
    for shard in range(claim["shards"]):
        terms: dict[str, Any] = {"queue": queue, "source": source, "number": claim["number"], "shard": shard}
        cursor, found = "", []
        while True:
            page = prober.raw(claims.ReadClaim(**terms, cursor=cursor, messages_max=7))
            if isinstance(page, VeilmqError):
                yield shard, comparable(page)
                break
            found += page.messages
            cursor = page.cursor
            if not cursor:
                if queue.endswith(".fifo"):
                    found.sort(key=lambda each: str(decode_properties(each.properties).group))
                else:
                    found.sort(key=lambda each: each.id)
                yield shard, [comparable(msgspec.structs.asdict(each)) for each in found]
                break


def _sources(prober: Prober) -> Iterator[tuple[str, Any]]:
    for queue in prober.queues:
        for view in prober.sources(queue):
            yield queue, view


def claim(prober: Prober) -> Iterator[Any]:
    """Continue as readers of claims do: read, bind again, acknowledge twice, and bind more."""
    for queue, view in _sources(prober):
        own: dict[str, Any] = {"queue": queue, "source": view["source"], "epoch": view["epoch"]}
        for each in view["claims"]:
            yield from _pages(prober, queue, view["source"], each)
        yield prober.result(claims.Heartbeat(**own))
        yield _bound(prober, own, view["last"])
        number = max(view["acknowledged"], view["last"])
        yield [prober.result(claims.AcknowledgeClaims(**own, number=number)) for _ in range(2)]
    prober.pass_time(1_000)
    yield prober.summary()
    for queue, view in _sources(prober):
        own = {"queue": queue, "source": view["source"], "epoch": view["epoch"]}
        more = _bound(prober, own, view["last"] + 1)
        yield more["number"] if isinstance(more, dict) else more


def _bound(prober: Prober, own: dict[str, Any], number: int) -> Any:
    while True:
        bound = prober.result(claims.Claim(**own, number=number, messages_max=50, shard_messages=5))
        if not isinstance(bound, dict) or not bound["more"]:
            return bound


def publish(prober: Prober) -> Iterator[Any]:
    """Continue as writers do: stage again, publish again, publish what was staged, or abandon it."""
    prober.cancel_moves()
    for number, (queue, writer, batch, attempt, bodies) in enumerate(prober.known.stages):
        own: dict[str, Any] = {"queue": queue, "writer": writer, "batch": batch}
        messages = tuple(message(each, group=each[:1], dedup_id=each) for each in bodies)
        if not is_fifo(queue):  # the old version ignored these ids; the properties have them
            messages = tuple(msgspec.structs.replace(each, dedup_id=None) for each in messages)
        yield prober.result(Stage(**own, attempt=attempt, part=0, messages=messages))
        if number % 4 == 3:
            yield prober.result(Abandon(**own))
        else:
            published = prober.result(Publish(**own, attempts=((attempt, len(bodies)),)))
            yield [published[key] for key in ("messages", "again")] if isinstance(published, dict) else published
    for _ in range(8):
        prober.pass_time(5_000)
        prober.settle()
    yield [(queue, prober.result(ListWriters(queue=queue))) for queue in prober.queues]
    yield prober.drain_all()


def cool_down(prober: Prober) -> Iterator[Any]:
    """Purge, and reuse names, during the cooldowns and afterwards; create others."""
    for passed_ms in (0, 60_000):
        prober.pass_time(passed_ms)
        for queue in prober.queues:
            yield prober.result(commands.PurgeQueue(queue=queue))
        for queue in prober.known.deleted:
            fifo = queue.endswith(".fifo")
            made = prober.result(commands.CreateQueue(queue=queue, settings={"fifo": fifo}))
            yield made if isinstance(made, str) else made["queue"]
        prober.host.sweep()
        yield prober.events()
    yield prober.summary()


def export(prober: Prober) -> Iterator[Any]:
    """Export the planned range, and all other events."""
    for _ in range(4):
        planned = prober.raw(PlanExport(events_max=20))
        yield comparable(planned)
        if planned is None:
            break
        page = prober.raw(ReadEvents(first=planned.first, last=planned.last, bytes_max=1 << 30))
        yield [(first, batch.hex()) for first, batch in page.batches]
        while prober.raw(ForgetEvents(last=planned.last)).more:
            pass
        yield prober.result(CountEvents())


PROBES: dict[str, Callable[[Prober], Iterator[Any]]] = {
    probe.__name__: probe for probe in (show, delete, receive, expire, repeat, claim, publish, cool_down, export)
}


def answers(host: Host, known: Known, name: str) -> list[Any]:
    found: Sequence[Any] = list(PROBES[name](Prober(host, known)))
    decoded: list[Any] = msgspec.json.decode(msgspec.json.encode(found))
    return decoded
