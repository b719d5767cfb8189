"""Claims and their sources: the commands of ``core.claims``.

A command on a source locks its row, so the commands on one source are ordered across nodes; reads lock nothing. A claim
is bound in slices, one command each.

Ending a claim takes effect at once: the messages of an acknowledged claim are deleted, those of a lost or released one
return. The messages follow in slices; each is a transaction that locks the claim's row. The command itself runs the
first slice, so small claims end with it; ``ClaimStep`` runs the others.

Binding a message counts as a receive, and earlier receipts no longer act on it. A claimed message is in flight, but
does not use the in-flight quota of receives and does not expire by retention.
"""

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple, Protocol

import msgspec

from veilmq.core import claims, errors, limits
from veilmq.core.claims import ClaimedMessage, ClaimState, ClaimView, SourceView
from veilmq.core.commands import Command, QueueCounts
from veilmq.core.limits import CLAIM_SHARDS_MAX, SECOND_MS, SOURCE_SILENCE_S
from veilmq.core.settings import dead_letter_refusal
from veilmq.store.transaction import NEVER_MS, QueueRow, Row, Transaction, changes, snapshot

ACKNOWLEDGED = "acknowledged"  # the state of a claim whose messages are being deleted; commands only see its number

_BINDING, _OPEN, _LOST, _RELEASED = (each.value for each in ClaimState)
_CURSOR = re.compile(r"(?:u([0-9]{1,19}))?")
_SEQ_MAX = (1 << 63) - 1  # the highest bigint; no message has it
_DELETE_AFTER_MS = SOURCE_SILENCE_S * SECOND_MS
_PAUSE_MS = 5


class ClaimStep(Command, frozen=True, kw_only=True):
    """Do a slice of background work; returns the ms until the next one is due, or ``None``."""


class BoundClaim(NamedTuple):
    """A row of ``claim``. ``origin`` is that of its queue, ``partition`` has its messages.

    ``filled`` counts the messages in the last shard of a standard queue's claim. A claim without a source is deleted
    when it has ended.
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
    def is_active(self) -> bool:
        """Return whether its messages are bound to its source."""
        return self.state in (_BINDING, _OPEN)


class BindRequest(NamedTuple):
    """At most ``messages`` more, ``shard_messages`` per shard, and ``bytes`` of the whole claim."""

    messages: int
    shard_messages: int
    bytes: int | None


class BindResult(NamedTuple):
    """The number of messages that a slice has bound, and the claim's shards after it."""

    messages: int
    shards: int
    filled: int
    more: bool  # another slice may bind more
    expires: bool = False  # expired messages, which are deleted in slices, may hide more


class ClaimTransaction(Transaction, Protocol):
    """A transaction with the operations of claims on messages; it notifies waiters of messages that become visible."""

    async def bind(self, queue: QueueRow, claim: BoundClaim, request: BindRequest) -> BindResult:
        """Bind a slice of the visible messages in receive order; dead letters are moved as by a receive."""

    def read_claim(
        self, queue: QueueRow, claim: BoundClaim, shard: int, seq: int, count: int
    ) -> AsyncGenerator[tuple[int, ClaimedMessage], None]:
        """Yield up to ``count`` messages of a shard, each after its seq, in order, starting at ``seq``."""

    async def evict(self, queue: QueueRow, claim: BoundClaim, seq: int, target: QueueRow) -> None:
        """Move a message of the claim to ``target`` as a dead letter."""

    async def end_slice(self, queue: QueueRow | None, claim: BoundClaim) -> bool:
        """Delete or return a slice of the messages of an ended claim; return whether there may be more.

        Messages that are expired or in a retired partition are deleted. ``queue`` is ``None`` if it was deleted.
        """

    async def next_visible_ms(self, queue: QueueRow) -> int | None:
        """Return when the next message becomes visible, ``None`` if none will without a command."""


def assign_shards(
    messages: int, claim: BoundClaim, shard_messages: int
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Divide the next messages among the shards of a claim.

    Return (shard, number of messages) pairs, and the number of shards and the messages in the last one afterwards. The
    last shard is filled up; new ones share the rest evenly; the last of ``CLAIM_SHARDS_MAX`` takes all that remains.
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
    """Return the number of shards for message groups, which is final; without ``more``, all messages were found."""
    messages = request.messages if more else found
    return min(CLAIM_SHARDS_MAX, max(1, -(-messages // request.shard_messages)))


class _Source:
    """A source and its claims by number, in order, at ``now_ms``. Lock its row before changing it."""

    def __init__(self, tx: ClaimTransaction, row: Row, now_ms: int) -> None:
        self.tx = tx
        self.now_ms = now_ms
        self.claims: dict[int, BoundClaim] = {}
        self.origin, self.name, self.consumer, self.epoch, self.acknowledged, self.last = row[:6]
        times: Sequence[int] = row[6:]
        self.hold_ms, self.lease_ms, self.beat_at_ms = times

    @classmethod
    async def load(cls, tx: ClaimTransaction, row: Row, now_ms: int) -> "_Source":
        source = cls(tx, row, now_ms)
        for each in map(BoundClaim._make, await tx.rows("claims_of", source.origin, source.name)):
            source.claims[each.number] = each
        return source

    @property
    def active(self) -> list[BoundClaim]:
        return [each for each in self.claims.values() if each.is_active]

    @property
    def skipped(self) -> list[BoundClaim]:
        """The lost and released claims that the last acknowledgement skipped."""
        return [each for each in self.claims.values() if each.number <= self.acknowledged]

    @property
    def hold_until_ms(self) -> int:
        return self.beat_at_ms + self.hold_ms

    @property
    def overdue(self) -> list[BoundClaim]:
        return self.active if self.now_ms >= self.hold_until_ms else []

    def with_expired_hold(self) -> "_Source":
        """Return the source with its claims lost if its hold has expired, even before that is written."""
        self._mark_ended(self.overdue, _LOST)
        return self

    def _mark_ended(self, claims: Iterable[BoundClaim], state: str) -> None:
        self.claims |= {each.number: each._replace(state=state, is_ending=True) for each in claims}

    def open_claim(self, number: int) -> BoundClaim:
        """Return the active claim of that number; raises an error that gives the reason if there is none."""
        if number <= self.acknowledged:
            raise errors.ClaimAcknowledged(number, self.acknowledged)
        found = self.claims.get(number)
        if found is None or not found.is_active:
            is_released = found is not None and found.state == _RELEASED
            raise (errors.ClaimReleased if is_released else errors.ClaimLost)(number)
        return found

    def view(self, backlog: QueueCounts) -> SourceView:
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

    async def view_now(self, queue: QueueRow, *, recent: bool = False) -> SourceView:
        return self.view((await self.tx.counts([queue], recent=recent))[0])

    async def put(self, check_at_ms: int | None = None) -> None:
        """Write the source; its hold is checked at ``check_at_ms``, or when it expires."""
        columns = self.origin, self.name, self.consumer, self.epoch, self.acknowledged, self.last
        times = self.hold_ms, self.lease_ms, self.beat_at_ms, check_at_ms or self.hold_until_ms
        await self.tx.run("put_source", *columns, *times)

    async def beat(self, hold_s: int | None = None, lease_s: int | None = None) -> None:
        if hold_s is not None:
            self.hold_ms = hold_s * SECOND_MS
            self.tx.schedule(ClaimStep)  # it may end before the scheduled check
        if lease_s is not None:
            self.lease_ms = lease_s * SECOND_MS
        self.beat_at_ms = self.now_ms
        await self.put()

    async def end(self, queue: QueueRow, claims: Sequence[BoundClaim], state: str) -> None:
        """End consecutive active claims, and run a first slice; acknowledged claims leave the source."""
        if not claims:
            return
        first, last = claims[0].number, claims[-1].number
        await self.tx.run("end_claims", self.origin, self.name, first, last, state)
        self.tx.schedule(ClaimStep)
        self._mark_ended(claims, state)
        first_claim = self.claims[first]
        if state == ACKNOWLEDGED:
            first_claim = first_claim._replace(source=None)
            self.claims = {number: each for number, each in self.claims.items() if each.state != state}
        await _advance(self.tx, queue, first_claim)

    async def check(self) -> bool:
        """Lose the claims if the hold has expired, or delete a silent source; return whether it was a slice."""
        delete_at_ms = self.beat_at_ms + _DELETE_AFTER_MS
        if not self.active and self.now_ms >= delete_at_ms:
            await delete_sources(self.tx, self.origin, self.name)
            return False
        overdue = self.overdue
        check_at_ms = self.hold_until_ms if self.active and not overdue else delete_at_ms
        if overdue:
            self.tx.require_space()
            queue = await self.tx.find_by_origin(self.origin)
            assert queue is not None, "a deleted queue has no sources"
            await self.end(queue, overdue, _LOST)
        await self.put(check_at_ms)
        return bool(overdue)


async def _detach(tx: Transaction, origin: int, source: str | None, last: int = _SEQ_MAX) -> None:
    """Detach claims up to number ``last`` from their source, or from all sources; ended claims are deleted."""
    await tx.run("detach_claims", origin, source, last)
    await tx.run("delete_ended_claims", origin)


async def delete_sources(tx: Transaction, origin: int, source: str | None = None) -> None:
    """Delete a source, or all without one; it has no active claim."""
    await _detach(tx, origin, source)
    await tx.run("delete_sources", origin, source)


async def _source(
    tx: ClaimTransaction, queue_name: str, name: str, epoch: int | None = None
) -> tuple[QueueRow, _Source]:
    """Lock a source, and return its queue and its state; raises ``SourceNotFound`` or ``EpochFenced``."""
    queue = await tx.queue(queue_name)
    rows = await tx.rows("source", queue.origin, name, "", lock="update")
    if not rows:
        raise errors.SourceNotFound(name)
    source = await _Source.load(tx, rows[0], await tx.now())
    await source.end(queue, source.overdue, _LOST)
    if epoch is not None and epoch != source.epoch:
        raise errors.EpochFenced(epoch, source.epoch)
    return queue, source


@changes
async def open_source(tx: ClaimTransaction, command: claims.OpenSource) -> SourceView:
    queue = await tx.queue(command.queue, lock="share")
    await tx.lock("sources", queue.origin)  # sources of one consumer must not be opened concurrently
    rows = list(await tx.rows("source", queue.origin, command.source, command.consumer, lock="update"))
    now_ms = await tx.now()
    if all(name != command.source for _, name, *_ in rows):
        rows += await tx.rows("insert_source", queue.origin, command.source, now_ms)
    found = {row[1]: await _Source.load(tx, row, now_ms) for row in rows}
    for each in found.values():
        await each.end(queue, each.overdue, _LOST)
    own = found.pop(command.source)
    taken = next((rival for rival in found.values() if rival.active), None)
    if taken is not None and not command.takeover:
        raise errors.ConsumerTaken(command.consumer, taken.name)
    for rival in found.values():
        rival.epoch += 1
        rival.consumer = ""
        await rival.put()
        await rival.end(queue, rival.active, _RELEASED)
    own.epoch += 1
    own.consumer = command.consumer
    await own.beat(command.hold_s, command.lease_s)
    return await own.view_now(queue)


@changes
async def heartbeat(tx: ClaimTransaction, command: claims.Heartbeat) -> SourceView:
    queue, source = await _source(tx, command.queue, command.source, command.epoch)
    await source.beat(command.hold_s, command.lease_s)
    return await source.view_now(queue, recent=True)


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
            await _complete(tx, source.claims[source.last])
        args = queue.origin, queue.partition, source.name, number, source.now_ms
        (bound,) = map(BoundClaim._make, await tx.rows("insert_claim", *args))
    more = False
    if bound.state == _BINDING:
        capacity = max(0, tx.options.claimed_max - await tx.value("claimed", queue.origin))
        result = BindResult(0, bound.shards, bound.filled, more=False)
        if (wanted := min(command.messages_max - bound.messages, capacity)) > 0:
            shard_messages = max(command.shard_messages, -(-command.messages_max // CLAIM_SHARDS_MAX))
            result = await tx.bind(queue, bound, BindRequest(wanted, shard_messages, command.bytes_max))
        more = result.more
        bound = bound._replace(messages=bound.messages + result.messages, shards=result.shards, filled=result.filled)
        if not again and not bound.messages:
            reply = await _empty_reply(tx, queue, number, capacity, more=result.expires)
            if reply.more or not command.empty:
                await tx.run("delete_claim", bound.id)
                return reply
        bound = await (_write if more else _complete)(tx, bound)
    source.last = max(number, source.last)
    if not source.active:
        tx.schedule(ClaimStep)  # a source without claims has no scheduled check of its hold
    await source.beat()
    return claims.Bound(number=number, messages=bound.messages, shards=bound.shards, more=more, again=again)


async def _write(tx: ClaimTransaction, bound: BoundClaim) -> BoundClaim:
    await tx.run("put_claim", bound.id, bound.state, bound.messages, bound.shards, bound.filled)
    return bound


async def _complete(tx: ClaimTransaction, bound: BoundClaim) -> BoundClaim:
    """Complete a claim that is still being bound; return any other one unchanged."""
    if bound.state != _BINDING:
        return bound
    return await _write(tx, bound._replace(state=_OPEN, shards=max(1, bound.shards)))


async def _empty_reply(
    tx: ClaimTransaction, queue: QueueRow, number: int, capacity: int, *, more: bool
) -> claims.Bound:
    if not more and queue.settings.fifo:  # a claim that is ending may block all groups
        for row in await tx.rows("ending_claim", queue.origin, lock="update"):
            await _advance(tx, queue, BoundClaim(*row))
            more = True
    due_ms = await tx.next_visible_ms(queue) if capacity and not more else None  # else the end of a claim wakes waiters
    return claims.Bound(number=number, messages=0, shards=0, more=more, next_due_ms=due_ms)


@changes
async def acknowledge(tx: ClaimTransaction, command: claims.AcknowledgeClaims) -> claims.Acknowledged:
    """Delete a prefix; skipped claims are kept until the next acknowledgement, in case the reply is lost."""
    queue, source = await _source(tx, command.queue, command.source, command.epoch)
    number = command.number
    if number > source.last:
        raise errors.ClaimGap(number, source.last)
    if number > source.acknowledged:
        if source.skipped:
            await _detach(tx, queue.origin, source.name, source.acknowledged)
        for each in source.skipped:
            del source.claims[each.number]
        source.acknowledged = number
        await source.put()
        await source.end(queue, [each for each in source.active if each.number <= number], ACKNOWLEDGED)
    lost = [each.number for each in source.skipped] if number == source.acknowledged else []
    return claims.Acknowledged(acknowledged=source.acknowledged, lost=lost)


@snapshot
async def read(tx: ClaimTransaction, command: claims.ReadClaim) -> claims.ClaimPage:
    """Return messages of a claim. Reading one that is still being bound completes it."""
    queue = await tx.queue(command.queue)
    bound = await _readable(tx, queue, command)
    if bound.state == _BINDING:
        await tx.rows("source", queue.origin, command.source, "", lock="update")
        bound = await _complete(tx, await _readable(tx, queue, command))
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
    row = await tx.row("source", queue.origin, command.source, "")
    if row is None:
        raise errors.ClaimLost(command.number)
    return (await _Source.load(tx, row, await tx.now())).with_expired_hold().open_claim(command.number)


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
    (backlog,) = await tx.counts([queue])
    return [source.with_expired_hold().view(backlog) for source in sources.values()]


@changes
async def release(tx: ClaimTransaction, command: claims.ReleaseClaim) -> SourceView:
    queue, source = await _source(tx, command.queue, command.source)
    with suppress(errors.ClaimReleased):
        await source.end(queue, [source.open_claim(command.number)], _RELEASED)
    return await source.view_now(queue)


@changes
async def close_source(tx: ClaimTransaction, command: claims.CloseSource) -> None:
    queue, source = await _source(tx, command.queue, command.source)
    await source.end(queue, source.active, _RELEASED)
    await delete_sources(tx, queue.origin, source.name)


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
    source.claims[bound.number] = await _write(tx, bound._replace(messages=bound.messages - 1))
    return await source.view_now(queue)


async def _advance(tx: ClaimTransaction, queue: QueueRow | None, claim: BoundClaim) -> None:
    if not await tx.end_slice(queue, claim):
        await tx.run("delete_claim" if claim.source is None else "finish_claim", claim.id)


async def lose_all(tx: Transaction, queue: QueueRow) -> None:
    """Lose the active claims of a queue whose partition is retired; their messages are deleted in slices."""
    await tx.run("end_claims", queue.origin, None, 0, _SEQ_MAX, _LOST)
    tx.schedule(ClaimStep)


@changes
async def step(tx: ClaimTransaction, command: ClaimStep) -> int | None:
    """Check a hold that may have expired, or run a slice; return the ms until the next step, or ``None``.

    Raises ``StoreFull`` if messages should return, which needs space; acknowledged claims are deleted first.
    """
    now_ms = await tx.now()
    ending = [BoundClaim(*row) for row in await tx.rows("ending_claim", None, lock="update skip locked")]
    if not ending or ending[0].state != ACKNOWLEDGED:
        for row in await tx.rows("due_source", now_ms, lock="update skip locked"):
            if await (await _Source.load(tx, row[:-1], now_ms)).check():
                ending = []
    for bound in ending:
        queue = await tx.find_by_origin(bound.origin)
        if queue is not None and queue.partition == bound.partition and bound.state != ACKNOWLEDGED:
            tx.require_space()
        await _advance(tx, queue, bound)
    if await tx.rows("ending_claim", None):
        return _PAUSE_MS
    following = await tx.row("due_source", NEVER_MS)
    return None if following is None else max(following[-1] - now_ms, 0) or _PAUSE_MS
