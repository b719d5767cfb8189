"""The streaming reader of claims: an offset is the number of a claim.

The server binds messages to the claim before Spark logs the number, and keeps them bound until the batch is certainly
finished. So every repeated task, stage or batch reads the same messages.

1. ``latestOffset(start)``: acknowledge ``start`` if that is safe (``Progress``), and bind the next number.
2. ``partitions(start, end)``: one partition for each shard of the claims in between. After a crash, the first call.
3. ``read``: Arrow pages of a shard, any number of times, in any process.
4. ``commit(end)``: acknowledge ``end``, if step 1 could not.

Spark does not always call ``stop`` at the end of a query, so nothing depends on it. Only the driver's reader opens its
source, at the first call; executors and the planning process unpickle their own readers.

Opening a source starts an epoch and fences earlier users. A thread renews lease and hold until ``stop``, the end of the
process, or an error that ends the epoch. Other errors may be temporary: a proxy while the server restarts, a policy
during a change.
"""

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from veilmq.client.api import Claims
from veilmq.client.messages import ClientError, Unreachable
from veilmq.core import limits
from veilmq.core.claims import Acknowledged, Bound, ClaimState, ClaimView, SourceView
from veilmq.spark.offsets import Offset, QueueStreamReader
from veilmq.spark.options import CLAIMS, EMPTY, SKIP, Connection, SourceOptions
from veilmq.spark.retries import LOST, SourceFailed, with_remedies

HEARTBEATS_PER_LEASE = 3
"""Or per hold, if that is shorter."""
SOURCE_ENDED = frozenset({"EpochFenced", "SourceNotFound", "QueueNotFound"})
"""Error codes of a heartbeat after which the source cannot be renewed."""

_log = logging.getLogger("veilmq.spark")


class HeldSource:
    """One epoch of one source. ``view`` is its last state from the server."""

    def __init__(self, claims: Claims, view: SourceView, options: SourceOptions) -> None:
        self.view = view
        self._claims = claims
        self._options = options
        self._stopped = threading.Event()

    @classmethod
    def open(cls, name: str, options: SourceOptions, *, hold_s: int) -> Self:
        """Open the source ``name`` and start its heartbeat thread; raises ``ClientError`` and ``Unreachable``."""
        claims = connect(options.connection)
        consumer, takeover = options.consumer, options.takeover
        view = claims.open(name, consumer=consumer, takeover=takeover, hold_s=hold_s, lease_s=options.lease_s)
        held = cls(claims, view, options)
        beats = connect(replace(options.connection, patience_s=0))  # the next heartbeat is the retry
        threading.Thread(target=held._renew, args=(beats,), name="veilmq-heartbeat", daemon=True).start()
        return held

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.view.source

    def renew(self) -> SourceView:
        """Renew lease and hold, and return the state of the source."""
        self.view = self._claims.heartbeat(self.name, epoch=self.view.epoch)
        return self.view

    def claim(self, number: int, messages_max: int, *, wait_s: int = 0, empty: bool | None = None) -> Bound:
        """Bind claim ``number``, or return its binding; waits up to ``wait_s`` for a message, or binds it ``empty``."""
        options = self._options
        return self._claims.claim(
            self.name,
            epoch=self.view.epoch,
            number=number,
            messages_max=messages_max,
            shard_messages=options.shard_messages,
            bytes_max=options.bytes_max,
            wait_s=wait_s,
            empty=empty,
        )

    def acknowledge(self, number: int) -> Acknowledged:
        """Delete the messages of all claims up to ``number``."""
        return self._claims.acknowledge(self.name, epoch=self.view.epoch, number=number)

    def stop(self) -> None:
        """Stop the heartbeats: the source's hold starts to run."""
        self._stopped.set()

    def _renew(self, claims: Claims) -> None:
        lease_s = self._options.lease_s
        while not self._stopped.wait(min(lease_s, self._options.hold_s or lease_s) / HEARTBEATS_PER_LEASE):
            try:
                claims.heartbeat(source=self.name, epoch=self.view.epoch)
            except (ClientError, Unreachable) as error:
                if isinstance(error, ClientError) and error.code in SOURCE_ENDED:
                    _log.warning("Heartbeats of the source %s end: %s", self.name, error)
                    return
                _log.warning("A heartbeat of the source %s failed: %s", self.name, error)


def connect(at: Connection) -> Claims:
    """Return a client for the claims of a queue."""
    return Claims(at.transport(), at.queue)


_shared = lru_cache(connect)
"""A client that all tasks of this worker share, so that they need not reconnect."""


def open_claims(view: SourceView) -> dict[int, ClaimView]:
    """Return the readable claims of ``view`` by number."""
    return {claim.number: claim for claim in view.claims if claim.state is ClaimState.OPEN}


class ClaimsStreamReader(QueueStreamReader):
    """Reads one queue as a stream."""

    mode = CLAIMS
    messages_max = limits.CLAIM_MESSAGES.default
    messages_all = limits.CLAIM_MESSAGES.maximum
    _held: HeldSource | None

    def __init__(self, options: SourceOptions) -> None:
        """Open nothing: this also runs in planning processes and executors."""
        super().__init__(options)
        self._name = options.stream or str(uuid.uuid4())  # name of the source for a new checkpoint
        self._unknown_source: str | None = None  # the source in the checkpoint, if the server has deleted it
        self._acknowledged = 0
        self._shards: dict[int, int] = {}  # by claim, of unacknowledged claims that this process has bound
        self._messages: dict[int, int] = {}  # by claim, of those and of repeated claims
        self._counters = {"acknowledged": 0, "duplicatesKeptAway": 0}  # messages of this run
        self._ready = 0  # visible messages that are not bound, by the last reply

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return metrics of queue and stream, in messages and seconds, for the progress of the query."""
        if self._held is None:
            return None
        view, now_ms = self._held.view, self._held.view.lease_until_ms - 1_000 * self._options.lease_s
        age_ms = 0 if view.oldest_sent_at_ms is None else max(0, now_ms - view.oldest_sent_at_ms)
        claimed = sum(self._messages.values())
        return {"backlog": self._ready, "oldestAgeSeconds": age_ms / 1_000, "claimed": claimed, **self._counters}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a shard."""
        assert isinstance(partition, ShardPartition)
        return read_shard(self._options, partition)

    def _begin(self, start: Offset) -> Offset:
        """Renew the source for the batch after ``start``, and return the offset at which it starts.

        A new source replaces one that the server has deleted. Lost claims of the batch that ends at ``start`` are an
        error, or logged; claims before ``start.first`` were in no batch.
        """
        if start.source == self._unknown_source:
            start = Offset(source=self._name)
        if self._held is None and not start.source:
            self._warn_of_others()
        held = self._hold(start.source or self._name)
        view = held.renew()
        self._ready = view.ready
        skips = self._options.on_lost_claim == SKIP
        if start.number > view.last == 0:
            if not skips:
                raise SourceFailed(
                    "The queue has no record of this stream: it was idle for weeks, or the checkpoint is of another "
                    "queue or of a server with other data. If it is the right queue, restart with onLostClaim=skip; "
                    "messages of the last batch that were not deleted are delivered again."
                )
            held.stop()
            self._held, self._unknown_source, self._name = None, held.name, str(uuid.uuid4())
            self._hold(self._name)
            return Offset(source=self._name)
        numbers = range(start.first or 0, start.number + 1)
        lost = [claim for claim in view.claims if claim.number in numbers and claim.state is not ClaimState.OPEN]
        if lost:
            messages = sum(claim.messages for claim in lost)
            numbered = f"{messages:,} messages of the claims {[claim.number for claim in lost]}"
            loss = f"{numbered} are in the sink, and back in the queue unless purged: they are delivered twice"
            if not skips:
                raise SourceFailed(
                    "The stream was down for longer than its hold, or an operator released its claims, or purged them. "
                    f"{loss}. Restart with onLostClaim=skip."
                )
            _log.warning("%s.", loss)
        return start

    def _hold(self, name: str) -> HeldSource:
        options = self._options
        if self._held is None:
            self._held = HeldSource.open(name, options, hold_s=options.hold_s or limits.CLAIM_HOLD_S.default)
            self._acknowledged = self._held.view.acknowledged
            if self._budget is not None and options.takeover:
                self._budget = max(self._budget, self._held.view.ready)  # includes the messages of the other stream
        assert self._held.name == name, "a query has one source"
        return self._held

    def _warn_of_others(self) -> None:
        """Warn if a new stream ends another one of its consumer, or if claims of a dead stream hold messages."""
        with connect(self._options.connection) as claims:
            views = claims.sources()
        for view in views:
            held = sum(claim.messages for claim in open_claims(view).values())
            if view.source != self._name and view.consumer == self._options.consumer != "" and view.alive and not held:
                remedy = "which ends now: give each query its own consumer"
                _log.warning("The consumer %s has another stream, %s, %s.", view.consumer, view.source, remedy)
            elif view.source != self._name and held and not view.alive:
                action = "they return to the queue when its hold ends, or at once with `veilmq claims close`"
                _log.warning("The dead stream %s has %d claimed messages: %s.", view.source, held, action)

    def _finish(self, number: int) -> None:
        if number <= self._acknowledged:
            return
        assert self._held is not None, "a batch is finished after the source was opened"
        result = self._held.acknowledge(number)
        self._acknowledged = result.acknowledged
        deleted = sum(count for bound, count in self._messages.items() if bound <= number and bound not in result.lost)
        self._counters["acknowledged"] += deleted
        self._messages = {bound: count for bound, count in self._messages.items() if bound > number}
        self._shards = {bound: shards for bound, shards in self._shards.items() if bound > number}

    def _next(self, begin: Offset, messages_max: int) -> int | None:
        """Bind the next number, and skip lost ones, which Spark has not logged.

        A claim that an earlier process bound, and that Spark has not logged, is used regardless of ``messages_max``;
        otherwise it would stay bound for ever.
        """
        held, number = self._hold(begin.source or self._name), begin.number + 1
        wait_s = 0 if self._budget is not None else self._options.wait_s
        while wanted := max(messages_max, 1) if number <= held.view.last else messages_max:
            try:
                bound = held.claim(number, wanted, wait_s=wait_s)
            except ClientError as error:
                if error.code in LOST:
                    _log.info("Claim %s was bound and never used; its messages are back in the queue.", number)
                    number += 1
                    continue
                if error.code != "ClaimAcknowledged" or self._options.on_acked_replay != EMPTY:
                    raise
                self._shards[number] = 0  # an empty batch, because a sink skips the batch numbers that it has stored
                return number
            if not bound.shards:
                break
            if self._budget is not None and not bound.again:
                self._budget -= bound.messages
            self._shards[number] = bound.shards
            self._messages[number] = bound.messages
            self._ready = max(0, self._ready - bound.messages)
            self._counters["duplicatesKeptAway"] += bound.messages if bound.again else 0
            return number
        return None

    def _parts(self, until: Offset, numbers: range) -> Sequence[InputPartition]:
        held = self._hold(until.source)
        if not all(number in self._shards for number in numbers):  # an earlier process has bound them
            view = held.renew()
            claims = open_claims(view)
            messages = {number: claims[number].messages for number in numbers if number in claims}
            self._messages |= messages
            self._counters["duplicatesKeptAway"] += sum(messages.values())
            self._shards |= {number: self._shards_of(number, claims.get(number), view) for number in numbers}
        return [ShardPartition(held.name, number, shard) for number in numbers for shard in range(self._shards[number])]

    def _shards_of(self, number: int, claim: ClaimView | None, view: SourceView) -> int:
        """Return the number of shards of a claim that an earlier process bound; 0 for a claim to skip."""
        if claim is not None:
            return claim.shards
        is_skipped, messages = self._options.on_lost_claim == SKIP, 0
        if number <= view.acknowledged:
            code, is_skipped = "ClaimAcknowledged", self._options.on_acked_replay == EMPTY
        elif number > view.last:
            code, is_skipped = "ClaimGap", is_skipped and not view.last
        else:
            code, messages = "ClaimLost", sum(each.messages for each in view.claims if each.number == number)
        if not is_skipped:
            raise ClientError(code, f"Claim {number} of the repeated batch cannot be read.", 410)
        again = f"its {messages:,} messages are back in the queue and are read by a later batch"
        _log.warning("Claim %s is skipped (%s): %s, twice if the sink has them already.", number, code, again)
        return 0


@dataclass
class ShardPartition(InputPartition):
    """A shard of claim ``number`` of ``source``."""

    source: str
    number: int
    shard: int


def read_shard(options: SourceOptions, partition: ShardPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``partition`` in order; raises ``SourceFailed`` if they cannot be read."""
    rows = 0
    with with_remedies():
        try:
            claims = _shared(options.connection)
            for batch in claims.read(partition.source, number=partition.number, shard=partition.shard):
                rows += batch.num_rows
                yield batch
        except ClientError as error:
            if error.code not in LOST or options.on_lost_claim != SKIP:
                raise
            shard = f"Shard {partition.shard} of claim {partition.number}"
            _log.warning("%s ends after %d messages, which are delivered twice: %s", shard, rows, error)
