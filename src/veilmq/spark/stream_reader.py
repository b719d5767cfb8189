"""The streaming reader: claims as offsets.

An offset is a number; what it means was bound at the server before Spark logs it, and stays bound until the batch is
finished for certain. So whatever is repeated reads the same messages: a task, a stage, a batch after a crash.

1. ``latestOffset(start)``: acknowledge ``start`` where that is safe (``Progress``), bind the next number.
2. ``partitions(start, end)``: one for each shard of the claims between. After a crash this is the first call.
3. ``read``: pages of a shard, in Arrow; as often as Spark likes, wherever it likes.
4. ``commit(end)``: acknowledge ``end``, if 1. could not yet.

Spark gives no other sign that a query ends well, so nothing depends on ``stop``. Executors and the process that plans
unpickle a reader of their own; what belongs to the driver's begins with its first call.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from veilmq.client.claims import Claims
from veilmq.client.errors import ClientError
from veilmq.core import limits
from veilmq.core.claims import Bound, ClaimState, ClaimView, SourceView
from veilmq.spark.held_source import HeldSource, open_claims, warn_of_others
from veilmq.spark.offsets import INITIAL, Offset, Progress
from veilmq.spark.options import Connection
from veilmq.spark.patience import LOST, SourceFailed, advised, patiently
from veilmq.spark.source_options import EMPTY, SKIP, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("veilmq.spark")


_LIMITS: dict[type[ReadLimit], Callable[[Any], int]] = {
    ReadMaxRows: lambda limit: limit.max_rows,
    ReadAllAvailable: lambda limit: limits.CLAIM_MESSAGES.maximum,
}


class ClaimsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one queue as a stream."""

    def __init__(self, options: SourceOptions) -> None:
        """Open nothing: this also runs where plans are made, and in executors."""
        self._options = options
        self._name = str(uuid.uuid4())  # of the source, where the checkpoint has none yet
        self._held: HeldSource | None = None
        self._forgotten: str | None = None  # the source of the checkpoint, if the server does not know it any more
        self._progress = Progress()
        self._acknowledged = 0
        self._shards: dict[int, int] = {}  # of the claims that were bound here and are not acknowledged
        self._messages: dict[int, int] = {}  # of the same, and of those that are read again
        self._figures = {"acknowledged": 0, "duplicatesKeptAway": 0}  # messages of this run
        self._ready = 0  # messages that were visible and not bound, lately
        self._budget: int | None = None  # messages still to be taken by a query that ends with what is there now

    def __reduce__(self) -> tuple[type, tuple[SourceOptions]]:
        """Pickle the options alone."""
        return ClaimsStreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Return where every new checkpoint begins; never logged, so it is always the same."""
        return INITIAL.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch may have by the options."""
        return ReadMaxRows(self._options.messages_max or limits.CLAIM_MESSAGES.default)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Count what is visible now; the query ends when that many messages are read."""
        from veilmq.client.http import HttpQueueClient  # noqa: PLC0415 - no task needs it, and each imports this module

        self._progress.ordered = True  # Spark refuses to track this trigger asynchronously
        at = self._options.connection
        with HttpQueueClient(at.endpoint, key=at.key) as client:
            self._budget = patiently(lambda: client.show(at.queue).visible, self._options.patience_s)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Finish what ends at ``start``, and return where the next batch ends; ``start`` where there is nothing."""
        with advised():
            held, begin = self._begin(self._offset(start))
            if self._progress.finished(begin.number):
                self._acknowledge(held, begin.number)
            number, bound = self._claim_next(held, begin.number + 1, self._messages_max(limit))
            if not bound.shards:
                self._rest(held, begin.number)
                return start
        self._shards[number] = bound.shards
        self._messages[number] = bound.messages
        self._ready = max(0, self._ready - bound.messages)
        self._figures["duplicatesKeptAway"] += bound.messages if bound.again else 0
        self._progress.made(number)
        first = None if number == start["n"] + 1 else number
        return Offset(source=held.name, number=number, first=first, queue=self._options.connection.queue_name).json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return how queue and stream stand, in messages and seconds, for the progress of the query."""
        if self._held is None:
            return None
        view, now_ms = self._held.view, self._held.view.lease_until_ms - 1_000 * self._options.lease_s
        age_ms = 0 if view.oldest_sent_at_ms is None else max(0, now_ms - view.oldest_sent_at_ms)
        claimed = sum(self._messages.values())
        return {"backlog": self._ready, "oldestAgeSeconds": age_ms / 1_000, "claimed": claimed, **self._figures}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the shards of the claims after ``start`` up to ``end``."""
        begin, until = self._offset(start), self._offset(end)
        numbers = begin.claims_to(until)
        if not numbers:
            return []
        self._progress.planned(begin.number)
        with advised():
            held = self._hold(until.source)
            if not all(number in self._shards for number in numbers):
                self._shards |= self._replayed(held.renew(), numbers)
        return [ShardPartition(held.name, number, shard) for number in numbers for shard in range(self._shards[number])]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the messages of a shard."""
        assert isinstance(partition, ShardPartition)
        return read_shard(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge ``end``, which Spark keeps as finished."""
        until = self._offset(end)
        if self._held is None or self._held.name != until.source:
            return  # of a source that the server has forgotten
        self._progress.committed(until.number)
        with advised():
            self._acknowledge(self._held, until.number)

    def stop(self) -> None:
        """Let the source go, if Spark asks for it; as a rule it ends the process instead."""
        if self._held is not None:
            self._held.stop()

    def _offset(self, json: dict[str, Any]) -> Offset:
        return Offset.of(json, queue=self._options.connection.queue_name)

    def _begin(self, start: Offset) -> tuple[HeldSource, Offset]:
        """Return the source that goes on after ``start``, renewed and found good, and where it stands."""
        if start.source == self._forgotten:
            start = Offset(source=self._name)
        held = self._hold(start.source or self._name)
        view = held.renew()
        self._ready = view.ready
        if start.number > view.last == 0:
            return self._begin_anew(held)
        self._check_lost(view, start)
        return held, start

    def _begin_anew(self, held: HeldSource) -> tuple[HeldSource, Offset]:
        """Go on with another source: the server has forgotten this one, and whether its last batch was deleted."""
        if self._options.on_lost_claim != SKIP:
            raise SourceFailed(
                "The queue does not know this stream: it rested for weeks, or the checkpoint is of another queue or of "
                "a server with other data. Go on with onLostClaim=skip, if it is the right queue; messages of the last "
                "batch come again if they were not deleted then."
            )
        held.stop()
        self._held, self._forgotten = None, held.name
        return self._hold(self._name), Offset(source=self._name)

    def _hold(self, name: str) -> HeldSource:
        if self._held is None:
            if name == self._name:
                warn_of_others(name, self._options)
            hold_s = self._options.hold_s or limits.CLAIM_HOLD_S.default
            self._held = HeldSource.open(name, self._options, hold_s=hold_s)
            self._acknowledged = self._held.view.acknowledged
            if self._budget is not None and self._options.takeover:
                self._budget = max(self._budget, self._held.view.ready)  # with what the other stream gave back
        assert self._held.name == name, "a query has one source"
        return self._held

    def _check_lost(self, view: SourceView, end: Offset) -> None:
        """See to claims of finished batches that are lost; those before ``end.first`` were in none."""
        numbers = range(end.first or 0, end.number + 1)
        lost = [claim for claim in view.claims if claim.number in numbers and claim.state is not ClaimState.OPEN]
        if not lost:
            return
        what = f"{sum(claim.messages for claim in lost):,} messages of the claims {[claim.number for claim in lost]}"
        if self._options.on_lost_claim != SKIP:
            raise SourceFailed(
                f"The stream was down for longer than its hold, or an operator released its claims. {what} are in the "
                "sink and in the queue again: they will come twice. Go on with onLostClaim=skip."
            )
        _log.warning("%s were written and went back to the queue: they come twice.", what)

    def _acknowledge(self, held: HeldSource, number: int) -> None:
        if number <= self._acknowledged:
            return
        answer = held.acknowledge(number)
        self._acknowledged = answer.acknowledged
        deleted = sum(count for bound, count in self._messages.items() if bound <= number and bound not in answer.lost)
        self._figures["acknowledged"] += deleted
        self._messages = {bound: count for bound, count in self._messages.items() if bound > number}
        self._shards = {bound: shards for bound, shards in self._shards.items() if bound > number}

    def _rest(self, held: HeldSource, number: int) -> None:
        if number > self._acknowledged and self._progress.finished_by_rest(number, time.monotonic()):
            self._acknowledge(held, number)

    def _messages_max(self, limit: ReadLimit) -> int:
        wanted = _LIMITS[type(limit)](limit)
        return wanted if self._budget is None else min(wanted, self._budget)

    def _claim_next(self, held: HeldSource, number: int, messages_max: int) -> tuple[int, Bound]:
        """Bind ``number``, or the first behind it that is not lost: nobody has logged that one, so nobody misses it.

        What an earlier process bound and never told Spark is taken in any case, or it would be held for ever.
        """
        wait_s = 0 if self._budget is not None else self._options.wait_s
        while True:
            wanted = max(messages_max, 1) if number <= held.view.last else messages_max
            if not wanted:
                return number, Bound(number=number, messages=0, shards=0)
            try:
                bound = held.claim(number, wanted, wait_s=wait_s)
            except ClientError as error:
                number = self._number_behind(error, held, number)
                continue
            if self._budget is not None and not bound.again:
                self._budget -= bound.messages
            return number, bound

    def _number_behind(self, error: ClientError, held: HeldSource, number: int) -> int:
        if error.code in LOST:
            _log.info("Claim %s was bound and never used, and its messages went back to the queue.", number)
            return number + 1
        if error.code == "ClaimAcknowledged" and self._options.on_acked_replay == EMPTY:
            return held.renew().acknowledged + 1
        raise error

    def _replayed(self, view: SourceView, numbers: range) -> dict[int, int]:
        """Return how many shards each of ``numbers`` has, which an earlier process bound; 0 for one to be skipped."""
        known = open_claims(view)
        self._messages |= {number: known[number].messages for number in numbers if number in known}
        self._figures["duplicatesKeptAway"] += sum(known[number].messages for number in numbers if number in known)
        return {number: self._shards_of(number, known.get(number), view) for number in numbers}

    def _shards_of(self, number: int, claim: ClaimView | None, view: SourceView) -> int:
        if claim is not None:
            return claim.shards
        if number <= view.acknowledged:
            return self._none(number, "ClaimAcknowledged", skipped=self._options.on_acked_replay == EMPTY)
        if number > view.last:
            return self._none(number, "ClaimGap", skipped=self._options.on_lost_claim == SKIP and not view.last)
        messages = sum(each.messages for each in view.claims if each.number == number)
        return self._none(number, "ClaimLost", skipped=self._options.on_lost_claim == SKIP, messages=messages)

    def _none(self, number: int, code: str, *, skipped: bool, messages: int = 0) -> int:
        if not skipped:
            raise ClientError(code, f"Claim {number} of the batch that is to be repeated cannot be read.", 410)
        again = f"its {messages:,} messages are in the queue again and come in a later batch"
        _log.warning("Claim %s is skipped (%s): %s, twice if the sink has them already.", number, code, again)
        return 0


class ShardPartition(InputPartition):
    """A shard of claim ``number`` of ``source``."""

    def __init__(self, source: str, number: int, shard: int) -> None:
        """Name it."""
        super().__init__((source, number, shard))
        self.source = source
        self.number = number
        self.shard = shard


def read_shard(options: SourceOptions, partition: ShardPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the messages of ``partition`` in their order; raises ``SourceFailed`` where they are not to be had."""
    rows = 0
    with advised():
        try:
            for batch in _pages(_claims(options.connection), partition, options.patience_s):
                rows += batch.num_rows
                yield batch
        except ClientError as error:
            if error.code not in LOST or options.on_lost_claim != SKIP:
                raise
            place = f"claim {partition.number}, shard {partition.shard}"
            _log.warning("%s ends after %d messages, which come twice; the others come later: %s", place, rows, error)


@lru_cache
def _claims(at: Connection) -> Claims:
    """Return the client of this worker: it serves many tasks, and they need not connect and ask for the URL again."""
    return Claims(at.endpoint, at.queue, key=at.key)


def _pages(claims: Claims, partition: ShardPartition, patience_s: int) -> "Iterator[pa.RecordBatch]":
    cursor = ""
    while True:
        batches, cursor = patiently(partial(_page, claims, partition, cursor), patience_s)
        yield from batches
        if not cursor:
            return


def _page(claims: Claims, partition: ShardPartition, cursor: str) -> "tuple[list[pa.RecordBatch], str]":
    return claims.page(partition.source, number=partition.number, shard=partition.shard, cursor=cursor)
