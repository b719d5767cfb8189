"""Claims: sources, the messages that are bound to them, and how claims end; the commands of ``core.claims``.

A command on a source locks its row, so that commands on one source have an order, whichever node they come to; reading
locks nothing. A claim is bound in slices by as many commands.

How a claim ends is decided at once: messages of acknowledged ones are deleted, those of lost or released ones return.
They follow in slices, each in a transaction that has the claim's row. The first slice is the command's own, so that
small claims end with it; the others go on by themselves (``ClaimStep``).

What is bound counts as received once more, and no receipt from before acts on it. It is in flight, but takes no place
of the quota of receives, and no retention ends it.
"""

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple, Protocol

import msgspec

from veilmq.core import claims, errors, limits
from veilmq.core.claims import ClaimedMessage, ClaimState, ClaimView, SourceView
from veilmq.core.commands import Command
from veilmq.core.limits import CLAIM_SHARDS_MAX, SECOND_MS, SOURCE_SILENCE_S
from veilmq.core.settings import dead_letter_refusal
from veilmq.store.queues import NEVER_MS
from veilmq.store.transaction import QueueRow, Row, Transaction, changes, snapshot

ACKNOWLEDGED = "acknowledged"
"""The state of a claim whose messages are being deleted: commands see its number only."""

_BINDING, _OPEN, _LOST, _RELEASED = (each.value for each in ClaimState)
_CURSOR = re.compile(r"(?:u([0-9]{1,19}))?")
_SEQ_MAX = (1 << 63) - 1  # the highest number of both databases; no message stands there
_SILENCE_MS = SOURCE_SILENCE_S * SECOND_MS
_PAUSE_MS = 5


class ClaimStep(Command, frozen=True, kw_only=True):
    """Do one slice of what claims do by themselves. Answers in how many ms the next one is due, ``None`` for never."""


class BoundClaim(NamedTuple):
    """A row of ``claim``; ``partition`` has its messages, ``filled`` are those in the last shard of a standard queue's.

    ``origin`` is that of its queue. A claim without a source is forgotten when it has ended.
    """

    id: int
    origin: int
    partition: int
    source: str | None
    number: int
    state: str
    messages: int
    shards: int
    filled: int
    bound_at_ms: int
    is_ending: bool

    @property
    def is_held(self) -> bool:
        """Whether its messages are bound to its source."""
        return self.state in (_BINDING, _OPEN)


class BindRequest(NamedTuple):
    """Up to so many more messages, in shards of so many, and so many bytes of all that the claim has."""

    messages: int
    shard_messages: int
    bytes: int | None


class BindResult(NamedTuple):
    """What a slice has bound: so many messages; how many shards the claim has then, and messages in the last one.

    ``more``: there may be more of what is wished; ``expires``: messages past their retention, which go by slices, may
    hide it.
    """

    messages: int
    shards: int
    filled: int
    more: bool
    expires: bool = False


class Backlog(NamedTuple):
    """How many messages of a queue are visible, and when the oldest of all was sent."""

    visible: int
    oldest_sent_at_ms: int | None


class ClaimTransaction(Transaction, Protocol):
    """What claims do with messages, in an open transaction; waiters are notified of what becomes visible."""

    async def bind(self, queue: QueueRow, claim: BoundClaim, request: BindRequest) -> BindResult:
        """Bind a slice of the visible messages, in the order of receives; dead letters move as in a receive."""

    def read_claim(
        self, queue: QueueRow, claim: BoundClaim, shard: int, seq: int, count: int
    ) -> AsyncGenerator[tuple[int, ClaimedMessage], None]:
        """Yield up to ``count`` messages of a shard from ``seq`` on, each behind its seq, in order."""

    async def evict(self, queue: QueueRow, claim: BoundClaim, seq: int, target: QueueRow) -> None:
        """Move a message of the claim to ``target`` as a dead letter."""

    async def end_slice(self, queue: QueueRow | None, claim: BoundClaim) -> bool:
        """Delete a slice of an acknowledged claim, or give one back; return whether there may be more.

        What has passed its retention is deleted either way, and so is what is in a partition that is retired. ``queue``
        is ``None`` when it was deleted.
        """

    async def backlog(self, queue: QueueRow, *, allow_cached: bool) -> Backlog:
        """Count what waits; ``allow_cached``: what was counted a while ago will do where counting takes long."""
        now = await self.counts(queue)
        return Backlog(now.visible, now.oldest_sent_at_ms)

    async def next_visible_ms(self, queue: QueueRow) -> int | None:
        """Return the instant from which a message is visible; ``None`` when none comes by itself."""


def assign_shards(
    messages: int, claim: BoundClaim, shard_messages: int
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Divide the next messages among the shards of a claim.

    Return pairs of a shard and its number of new messages, and the pair of the number of shards and the messages in the
    last one afterwards. The last shard is filled up, and new ones share the rest evenly. The last one of
    ``CLAIM_SHARDS_MAX`` takes everything that remains.
    """
    parts_max = CLAIM_SHARDS_MAX - claim.shards
    room = max(0, shard_messages - claim.filled) if parts_max else messages
    first = min(messages, room) if claim.shards else 0
    rest = messages - first
    parts = min(parts_max, -(-rest // shard_messages))
    pieces = [(claim.shards - 1, first)] if first else []
    pieces += [(claim.shards + each, (each + 1) * rest // parts - each * rest // parts) for each in range(parts)]
    filled = pieces[-1][1] if parts else claim.filled + first
    return pieces, (claim.shards + parts, filled)


def shards_of_groups(found: int, *, more: bool, request: BindRequest) -> int:
    """Return among how many shards groups are divided, once and for all: without ``more``, what was found is all."""
    messages = request.messages if more else found
    return min(CLAIM_SHARDS_MAX, max(1, -(-messages // request.shard_messages)))


class _Source:
    """A source as it is at ``now_ms``, with its claims by their numbers, in order; a change locks its row first."""

    def __init__(self, tx: ClaimTransaction, row: Row, now_ms: int) -> None:
        self.tx = tx
        self.now_ms = now_ms
        self.claims: dict[int, BoundClaim] = {}
        self.origin, self.name, self.consumer, self.epoch, self.acknowledged, self.last = row[:6]
        times: Sequence[int] = row[6:]
        self.hold_ms, self.lease_ms, self.beat_at_ms = times

    @classmethod
    async def of(cls, tx: ClaimTransaction, row: Row, now_ms: int) -> "_Source":
        source = cls(tx, row, now_ms)
        for each in map(BoundClaim._make, await tx.rows("claims_of", source.origin, source.name)):
            source.claims[each.number] = each
        return source

    @property
    def held(self) -> list[BoundClaim]:
        return [each for each in self.claims.values() if each.is_held]

    @property
    def passed(self) -> list[BoundClaim]:
        """The lost and released claims that the last acknowledgement passed over."""
        return [each for each in self.claims.values() if each.number <= self.acknowledged]

    @property
    def hold_until_ms(self) -> int:
        return self.beat_at_ms + self.hold_ms

    @property
    def overdue(self) -> list[BoundClaim]:
        """The open claims that its hold has ended."""
        return self.held if self.now_ms >= self.hold_until_ms else []

    def as_seen(self) -> "_Source":
        """Return what readers see of it: its claims are lost once its hold has ended, though that is not written."""
        self._note_ended(self.overdue, _LOST)
        return self

    def _note_ended(self, claims: Iterable[BoundClaim], state: str) -> None:
        self.claims |= {each.number: each._replace(state=state, is_ending=True) for each in claims}

    def open_claim(self, number: int) -> BoundClaim:
        """Return the claim of that number; raises the reason why there is no open one."""
        if number <= self.acknowledged:
            raise errors.ClaimAcknowledged(number, self.acknowledged)
        found = self.claims.get(number)
        if found is None or not found.is_held:
            is_released = found is not None and found.state == _RELEASED
            raise (errors.ClaimReleased if is_released else errors.ClaimLost)(number)
        return found

    def view(self, backlog: Backlog) -> SourceView:
        lease_until_ms = self.beat_at_ms + self.lease_ms
        claims = [each._asdict() for each in self.claims.values() if each.number > self.acknowledged]
        return SourceView(
            source=self.name,
            consumer=self.consumer,
            epoch=self.epoch,
            acknowledged=self.acknowledged,
            last=self.last,
            alive=self.now_ms < lease_until_ms,
            lease_until_ms=lease_until_ms,
            hold_until_ms=self.hold_until_ms,
            claims=msgspec.convert(claims, list[ClaimView]),
            ready=backlog.visible,
            oldest_sent_at_ms=backlog.oldest_sent_at_ms,
        )

    async def shown(self, queue: QueueRow, *, allow_cached: bool = False) -> SourceView:
        return self.view(await self.tx.backlog(queue, allow_cached=allow_cached))

    async def put(self, check_at_ms: int | None = None) -> None:
        """Write it; its hold is checked then, or when it ends."""
        columns = self.origin, self.name, self.consumer, self.epoch, self.acknowledged, self.last
        times = self.hold_ms, self.lease_ms, self.beat_at_ms, check_at_ms or self.hold_until_ms
        await self.tx.run("put_source", *columns, *times)

    async def beat(self, hold_s: int | None = None, lease_s: int | None = None) -> None:
        """Renew lease and hold, of other lengths where they are given; write it."""
        if hold_s is not None:
            self.hold_ms = hold_s * SECOND_MS
            self.tx.schedule(ClaimStep)  # it may end before what was arranged
        if lease_s is not None:
            self.lease_ms = lease_s * SECOND_MS
        self.beat_at_ms = self.now_ms
        await self.put()

    async def end(self, queue: QueueRow, claims: Sequence[BoundClaim], state: str) -> None:
        """End claims in that state, all that are open from the first to the last.

        A first slice of the first one is done at once. The source forgets those that are acknowledged.
        """
        if not claims:
            return
        first, last = claims[0].number, claims[-1].number
        await self.tx.run("end_claims", self.origin, self.name, first, last, state)
        self.tx.schedule(ClaimStep)
        self._note_ended(claims, state)
        begun = self.claims[first]
        if state == ACKNOWLEDGED:
            begun = begun._replace(source=None)
            self.claims = {number: each for number, each in self.claims.items() if each.state != state}
        await _advance(self.tx, queue, begun)


async def _detach(tx: Transaction, origin: int, source: str | None, last: int = _SEQ_MAX) -> None:
    """Part claims up to the number ``last`` from their source, of all without one; each is forgotten when it ends."""
    await tx.run("detach_claims", origin, source, last)
    await tx.run("delete_ended_claims", origin)


async def _forget(tx: Transaction, origin: int, source: str | None) -> None:
    """Delete a source, all without one, that has no open claim."""
    await _detach(tx, origin, source)
    await tx.run("delete_sources", origin, source)


async def _source(
    tx: ClaimTransaction, queue_name: str, name: str, epoch: int | None = None
) -> tuple[QueueRow, _Source]:
    """Lock a source, and return its queue and what it is now.

    Raises ``QueueNotFound``, ``SourceNotFound``, and ``EpochFenced`` if its epoch is another one.
    """
    queue = await tx.queue(queue_name)
    rows = await tx.rows("source", queue.origin, name, lock="update")
    if not rows:
        raise errors.SourceNotFound(name)
    source = await _Source.of(tx, rows[0], await tx.now())
    await source.end(queue, source.overdue, _LOST)
    if epoch is not None and epoch != source.epoch:
        raise errors.EpochFenced(epoch, source.epoch)
    return queue, source


@changes
async def open_source(tx: ClaimTransaction, command: claims.OpenSource) -> SourceView:
    queue = await tx.queue(command.queue, lock="share")
    await tx.lock("sources", queue.origin)  # two sources of one consumer are not opened at one time
    rows = list(await tx.rows("sources_of_consumer", queue.origin, command.source, command.consumer, lock="update"))
    now_ms = await tx.now()
    if all(name != command.source for _, name, *_ in rows):
        rows += await tx.rows("insert_source", queue.origin, command.source, now_ms)
    found = {row[1]: await _Source.of(tx, row, now_ms) for row in rows}
    for each in found.values():
        await each.end(queue, each.overdue, _LOST)
    ours = found.pop(command.source)
    taken = next((rival for rival in found.values() if rival.held), None)
    if taken is not None and not command.takeover:
        raise errors.ConsumerTaken(command.consumer, taken.name)
    for rival in found.values():
        rival.epoch += 1
        rival.consumer = ""
        await rival.put()
        await rival.end(queue, rival.held, _RELEASED)
    ours.epoch += 1
    ours.consumer = command.consumer
    await ours.beat(command.hold_s, command.lease_s)
    return await ours.shown(queue)


@changes
async def heartbeat(tx: ClaimTransaction, command: claims.Heartbeat) -> SourceView:
    queue, source = await _source(tx, command.queue, command.source, command.epoch)
    await source.beat(command.hold_s, command.lease_s)
    return await source.shown(queue, allow_cached=True)


@changes
async def claim(tx: ClaimTransaction, command: claims.Claim) -> claims.Bound:
    queue, source = await _source(tx, command.queue, command.source, command.epoch)
    number = command.number
    if number > source.last + 1:
        raise errors.ClaimGap(number, source.last)
    again = number <= source.last
    if again:
        bound = source.open_claim(number)
    else:
        if source.last in source.claims:
            await _whole(tx, source.claims[source.last])
        terms = queue.origin, queue.partition, source.name, number, source.now_ms
        (bound,) = map(BoundClaim._make, await tx.rows("insert_claim", *terms))
    more = False
    if bound.state == _BINDING:
        places = max(0, tx.options.claimed_max - await tx.value("claimed", queue.origin))
        part = BindResult(0, bound.shards, bound.filled, more=False)
        if (wanted := min(command.messages_max - bound.messages, places)) > 0:
            shard_messages = max(command.shard_messages, -(-command.messages_max // CLAIM_SHARDS_MAX))
            part = await tx.bind(queue, bound, BindRequest(wanted, shard_messages, command.bytes_max))
        more = part.more
        bound = bound._replace(messages=bound.messages + part.messages, shards=part.shards, filled=part.filled)
        if not again and not bound.messages:
            await tx.run("drop_claim", bound.id)
            return await _nothing(tx, queue, number, places, more=part.expires)
        bound = await (_written if more else _whole)(tx, bound)
    source.last = max(number, source.last)
    if not source.held:
        tx.schedule(ClaimStep)  # no end of a hold was arranged for a source without claims
    await source.beat()
    return claims.Bound(number=number, messages=bound.messages, shards=bound.shards, more=more, again=again)


async def _written(tx: ClaimTransaction, bound: BoundClaim) -> BoundClaim:
    await tx.run("put_claim", bound.id, bound.state, bound.messages, bound.shards, bound.filled)
    return bound


async def _whole(tx: ClaimTransaction, bound: BoundClaim) -> BoundClaim:
    """Have a claim that is being bound whole with what it has; another one stays as it is."""
    if bound.state != _BINDING:
        return bound
    return await _written(tx, bound._replace(state=_OPEN, shards=max(1, bound.shards)))


async def _nothing(tx: ClaimTransaction, queue: QueueRow, number: int, places: int, *, more: bool) -> claims.Bound:
    if not more and queue.settings.fifo:  # all groups may be blocked by a claim that ends
        for row in await tx.rows("ending_claim", queue.origin, lock="update"):
            await _advance(tx, queue, BoundClaim(*row))
            more = True
    due_ms = await tx.next_visible_ms(queue) if places and not more else None  # else the end of a claim notifies
    return claims.Bound(number=number, messages=0, shards=0, more=more, next_due_ms=due_ms)


@changes
async def acknowledge(tx: ClaimTransaction, command: claims.AcknowledgeClaims) -> claims.Acknowledged:
    """Delete a prefix; the claims that were passed over are kept until the next one, for an answer that is lost."""
    queue, source = await _source(tx, command.queue, command.source, command.epoch)
    number = command.number
    if number > source.last:
        raise errors.ClaimGap(number, source.last)
    if number > source.acknowledged:
        if source.passed:
            await _detach(tx, queue.origin, source.name, source.acknowledged)
        for each in source.passed:
            del source.claims[each.number]
        source.acknowledged = number
        await source.put()
        await source.end(queue, [each for each in source.held if each.number <= number], ACKNOWLEDGED)
    lost = [each.number for each in source.passed] if number == source.acknowledged else []
    return claims.Acknowledged(acknowledged=source.acknowledged, lost=lost)


@snapshot
async def read(tx: ClaimTransaction, command: claims.ReadClaim) -> claims.ClaimPage:
    """Return messages of a claim; one that is not whole is whole as it is from then on."""
    queue = await tx.queue(command.queue)
    bound = await _readable(tx, queue, command)
    if bound.state == _BINDING:
        await tx.rows("source", queue.origin, command.source, lock="update")
        bound = await _whole(tx, await _readable(tx, queue, command))
    if not 0 <= command.shard < bound.shards:
        raise errors.ShardNotFound(command.shard, bound.shards)
    found = _CURSOR.fullmatch(command.cursor)
    if found is None or (seq := int(found[1] or 0)) > _SEQ_MAX:
        raise errors.CursorInvalid
    count = max(1, min(command.messages_max, limits.CLAIM_PAGE_MESSAGES))
    bytes_left, page = limits.CLAIM_PAGE_BYTES, list[tuple[int, ClaimedMessage]]()
    async with aclosing(tx.read_claim(queue, bound, command.shard, seq, count)) as messages:
        async for at, message in messages:
            page.append((at, message))
            bytes_left -= len(message.body) + len(message.properties)
            if bytes_left <= 0:
                break
    cursor = f"u{page[-1][0] + 1}" if bytes_left <= 0 or len(page) == count else ""
    return claims.ClaimPage(messages=[message for _, message in page], cursor=cursor)


async def _readable(tx: ClaimTransaction, queue: QueueRow, command: claims.ReadClaim) -> BoundClaim:
    """Return the claim as it is; raises the reason why there is no open one."""
    row = await tx.row("source", queue.origin, command.source)
    if row is None:
        raise errors.ClaimLost(command.number)
    return (await _Source.of(tx, row, await tx.now())).as_seen().open_claim(command.number)


@snapshot
async def list_sources(tx: ClaimTransaction, command: claims.ListSources) -> list[SourceView]:
    queue = await tx.queue(command.queue)
    now_ms = await tx.now()
    rows = await tx.rows("sources", queue.origin, now_ms, command.count)
    if not rows:
        return []
    sources = {row[1]: _Source(tx, row, now_ms) for row in rows}
    for each in map(BoundClaim._make, await tx.rows("claims_of", queue.origin, None)):
        if each.source in sources:
            sources[each.source].claims[each.number] = each
    backlog = await tx.backlog(queue, allow_cached=False)
    return [source.as_seen().view(backlog) for source in sources.values()]


@changes
async def release(tx: ClaimTransaction, command: claims.ReleaseClaim) -> SourceView:
    queue, source = await _source(tx, command.queue, command.source)
    with suppress(errors.ClaimReleased):
        await source.end(queue, [source.open_claim(command.number)], _RELEASED)
    return await source.shown(queue)


@changes
async def close_source(tx: ClaimTransaction, command: claims.CloseSource) -> None:
    queue, source = await _source(tx, command.queue, command.source)
    await source.end(queue, source.held, _RELEASED)
    await _forget(tx, queue.origin, source.name)


@changes
async def evict(tx: ClaimTransaction, command: claims.EvictMessage) -> SourceView:
    queue, source = await _source(tx, command.queue, command.source)
    bound = source.open_claim(command.number)
    seq = await tx.value("find_claimed", bound.partition, bound.id, command.message)
    if seq is None:
        raise errors.MessageNotClaimed(command.number)
    name = queue.settings.dead_letter_queue
    if not name:
        raise errors.DeadLetterQueueRefused("", f"The queue {queue.name} has no dead-letter queue; give it one first.")
    target = await tx.find_target(name, (queue.number, queue.name))
    why = dead_letter_refusal(queue.name, queue.settings, name, None if target is None else target.settings)
    if target is None or why is not None:
        raise errors.DeadLetterQueueRefused(name, why or "")
    await tx.evict(queue, bound, seq, target)
    source.claims[bound.number] = await _written(tx, bound._replace(messages=bound.messages - 1))
    return await source.shown(queue)


async def _advance(tx: ClaimTransaction, queue: QueueRow | None, claim: BoundClaim) -> None:
    """Do a slice for a claim, whose row is locked."""
    if not await tx.end_slice(queue, claim):
        await tx.run("drop_claim" if claim.source is None else "finish_claim", claim.id)


async def lose_all(tx: Transaction, queue: QueueRow) -> None:
    """Have the open claims of a queue lost whose partition is retired; their messages are deleted in slices."""
    await tx.run("end_claims", queue.origin, None, 0, _SEQ_MAX, _LOST)
    tx.schedule(ClaimStep)


async def forget_all(tx: Transaction, queue: QueueRow) -> None:
    """Forget all sources of a queue that is deleted."""
    await lose_all(tx, queue)
    await _forget(tx, queue.origin, None)


@changes
async def step(tx: ClaimTransaction, command: ClaimStep) -> int | None:
    """See which hold has ended, or do a slice; return in how many ms there is more to do, ``None`` for never.

    Raises ``StoreFull`` where messages should come back: that takes room. What is acknowledged is deleted before.
    """
    now_ms = await tx.now()
    ending = [BoundClaim(*row) for row in await tx.rows("ending_claim", None, lock="update skip locked")]
    if not ending or ending[0].state != ACKNOWLEDGED:
        for row in await tx.rows("due_source", now_ms, lock="update skip locked"):
            if await _check_hold(tx, await _Source.of(tx, row[:-1], now_ms)):
                ending = []
    for bound in ending:
        queue = await tx.find_by_origin(bound.origin)
        if queue is not None and queue.partition == bound.partition and bound.state != ACKNOWLEDGED:
            tx.require_room()
        await _advance(tx, queue, bound)
    if await tx.rows("ending_claim", None):
        return _PAUSE_MS
    following = await tx.row("due_source", NEVER_MS)
    return None if following is None else max(following[-1] - now_ms, 0) or _PAUSE_MS


async def _check_hold(tx: ClaimTransaction, source: _Source) -> bool:
    """See whether the hold of a source has ended, or its time; return whether that was a slice of work."""
    forgotten_ms = source.beat_at_ms + _SILENCE_MS
    if not source.held and source.now_ms >= forgotten_ms:
        await _forget(tx, source.origin, source.name)
        return False
    overdue = source.overdue
    check_at_ms = source.hold_until_ms if source.held and not overdue else forgotten_ms
    if overdue:
        tx.require_room()
        queue = await tx.find_by_origin(source.origin)
        assert queue is not None, "the sources of a queue are forgotten with it"
        await source.end(queue, overdue, _LOST)
    await source.put(check_at_ms)
    return bool(overdue)
