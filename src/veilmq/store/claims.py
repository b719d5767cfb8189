"""Claims: the commands of ``core.claims``.

A command on a source locks its row, so that commands on one source have an order, whichever node they come to; reading
locks nothing. A claim is bound in slices by as many commands, and ends in slices (``claim_endings``).
"""

import re

from veilmq.core import claims, limits, redrive
from veilmq.core.claims import ClaimState, ClaimView, SourceView
from veilmq.core.errors import (
    ClaimGap,
    ClaimLost,
    ClaimReleased,
    ConsumerTaken,
    CursorInvalid,
    DeadLetterQueueRefused,
    EpochFenced,
    MessageNotClaimed,
    ShardNotFound,
    SourceNotFound,
)
from veilmq.core.limits import SECOND_MS
from veilmq.store.claim_endings import ClaimStep, advance_of, detach, end, expired
from veilmq.store.claim_sources import Source, claim_of, put, source_of, with_claims
from veilmq.store.claimed import ACKNOWLEDGED, Backlog, BoundClaim, ClaimTransaction, Part, Wish
from veilmq.store.transaction import QueueRow

_CURSOR = re.compile(r"(?:u([0-9]{1,19}))?")
_SEQ_MAX = (1 << 63) - 1  # the highest number of both databases; no message stands there


async def _source(tx: ClaimTransaction, queue: QueueRow, name: str) -> Source:
    """Lock the source and return it as it is now; raises ``SourceNotFound``."""
    rows = await tx.locked("source", queue.origin, name)
    if not rows:
        raise SourceNotFound(name)
    return await expired(tx, queue, await with_claims(tx, rows[0], await tx.now()))


async def _fenced(tx: ClaimTransaction, queue: QueueRow, name: str, epoch: int) -> Source:
    """Do the same if that is its epoch; raises ``EpochFenced``."""
    source = await _source(tx, queue, name)
    if epoch != source.epoch:
        raise EpochFenced(epoch, source.epoch)
    return source


async def _beat(
    tx: ClaimTransaction, source: Source, *, hold_s: int | None = None, lease_s: int | None = None
) -> Source:
    """Renew lease and hold, of other lengths where they are given; write the source."""
    if hold_s is not None:  # it may end before what was arranged
        tx.schedule(ClaimStep)
    source = source._replace(
        hold_ms=source.hold_ms if hold_s is None else hold_s * SECOND_MS,
        lease_ms=source.lease_ms if lease_s is None else lease_s * SECOND_MS,
        beat_at_ms=source.now_ms,
    )
    await put(tx, source)
    return source


async def _view(tx: ClaimTransaction, queue: QueueRow, source: Source, *, lately: bool = False) -> SourceView:
    return _seen(source, await tx.claimed.backlog(queue, lately=lately))


# The commands of readers.


async def open_source(tx: ClaimTransaction, command: claims.OpenSource) -> SourceView:
    """Begin a new epoch."""
    queue = await tx.queue(command.queue, lock="queue_shared")
    await tx.lock("sources", queue.origin)  # two sources of one consumer are not opened at one time
    rows = list(await tx.locked("sources_of_consumer", queue.origin, command.source, command.consumer))
    now_ms = await tx.now()
    if all(name != command.source for _, name, *_ in rows):
        rows += await tx.rows("insert_source", queue.origin, command.source, now_ms)
    found = [await expired(tx, queue, await with_claims(tx, row, now_ms)) for row in rows]
    rivals = [each for each in found if each.name != command.source]
    taken = next((rival for rival in rivals if rival.held), None)
    if taken is not None and not command.takeover:
        raise ConsumerTaken(command.consumer, taken.name)
    for rival in rivals:
        await put(tx, rival._replace(epoch=rival.epoch + 1, consumer=""))
        await end(tx, queue, rival, rival.held, ClaimState.RELEASED.value)
    (ours,) = (each for each in found if each.name == command.source)
    ours = ours._replace(epoch=ours.epoch + 1, consumer=command.consumer)
    return await _view(tx, queue, await _beat(tx, ours, hold_s=command.hold_s, lease_s=command.lease_s))


async def heartbeat(tx: ClaimTransaction, command: claims.Heartbeat) -> SourceView:
    """Renew lease and hold."""
    queue = await tx.queue(command.queue)
    source = await _fenced(tx, queue, command.source, command.epoch)
    source = await _beat(tx, source, hold_s=command.hold_s, lease_s=command.lease_s)
    return await _view(tx, queue, source, lately=True)


async def claim(tx: ClaimTransaction, command: claims.Claim) -> claims.Bound:
    """Bind, go on binding, or return what was bound."""
    queue = await tx.queue(command.queue)
    source = await _fenced(tx, queue, command.source, command.epoch)
    number = command.number
    if number > source.last + 1:
        raise ClaimGap(number, source.last)
    again = number <= source.last
    if again:
        bound = source.open_claim(number)
    else:
        if source.last in source.claims:
            await _whole(tx, source.claims[source.last])
        row = await tx.row("insert_claim", queue.origin, queue.partition, source.name, number, source.now_ms)
        assert row is not None, "it is there with its insertion"
        bound = claim_of(row)
    more, places = False, 0
    if bound.state == ClaimState.BINDING.value:
        places = max(0, tx.claimed.claimed_max - await tx.value("claimed", queue.origin))
        part = await _bind(tx, queue, bound, command, places)
        bound, more = bound._replace(messages=bound.messages + part.messages, shards=part.shards), part.more
        if not again and not bound.messages:
            await tx.run("drop_claim", bound.id)
            return await _nothing(tx, queue, number, places, expires=part.expires)
        bound = await _grown(tx, bound._replace(filled=part.filled), more=more)
    await _beat(tx, source._replace(last=number if not again else source.last))
    return claims.Bound(number=number, messages=bound.messages, shards=bound.shards, more=more, again=again)


async def _bind(tx: ClaimTransaction, queue: QueueRow, bound: BoundClaim, command: claims.Claim, places: int) -> Part:
    wanted = min(command.messages_max - bound.messages, places)
    if wanted <= 0:
        return Part(0, bound.shards, bound.filled, more=False)
    shard_messages = max(command.shard_messages, -(-command.messages_max // limits.CLAIM_SHARDS_MAX))
    return await tx.claimed.bind(queue, bound, Wish(wanted, shard_messages, command.bytes_max))


async def _grown(tx: ClaimTransaction, bound: BoundClaim, *, more: bool) -> BoundClaim:
    """Write a claim that has grown; without ``more`` it is whole."""
    if not more:
        bound = bound._replace(state=ClaimState.OPEN.value, shards=max(1, bound.shards))
    await tx.run("put_claim", bound.id, bound.state, bound.messages, bound.shards, bound.filled)
    return bound


async def _whole(tx: ClaimTransaction, bound: BoundClaim) -> BoundClaim:
    """Have a claim that is being bound whole with what it has."""
    return await _grown(tx, bound, more=False) if bound.state == ClaimState.BINDING.value else bound


async def _nothing(tx: ClaimTransaction, queue: QueueRow, number: int, places: int, *, expires: bool) -> claims.Bound:
    if expires or (queue.settings.fifo and await advance_of(tx, queue)):  # all groups may be blocked by that claim
        return claims.Bound(number=number, messages=0, shards=0, more=True)
    due_ms = await tx.claimed.next_visible_ms(queue) if places else None  # else the end of a claim notifies
    return claims.Bound(number=number, messages=0, shards=0, next_due_ms=due_ms)


async def acknowledge(tx: ClaimTransaction, command: claims.AcknowledgeClaims) -> claims.Acknowledged:
    """Delete a prefix; the claims that were passed over are kept until the next one, for an answer that is lost."""
    queue = await tx.queue(command.queue)
    source = await _fenced(tx, queue, command.source, command.epoch)
    number = command.number
    if number > source.last:
        raise ClaimGap(number, source.last)
    if number > source.acknowledged:
        await detach(tx, source, source.passed)
        source = source._replace(acknowledged=number)
        await put(tx, source)
        covered = [each for each in source.held if each.number <= number]
        source = await end(tx, queue, source, covered, ACKNOWLEDGED)
    lost = [each.number for each in source.passed] if number == source.acknowledged else []
    return claims.Acknowledged(acknowledged=source.acknowledged, lost=lost)


async def read(tx: ClaimTransaction, command: claims.ReadClaim) -> claims.ClaimPage:
    """Return messages of a claim; one that is not whole is whole as it is from then on."""
    queue = await tx.queue(command.queue)
    bound = await _readable(tx, queue, command)
    if bound.state == ClaimState.BINDING.value:
        await tx.locked("source", queue.origin, command.source)
        bound = await _whole(tx, await _readable(tx, queue, command))
    if not 0 <= command.shard < bound.shards:
        raise ShardNotFound(command.shard, bound.shards)
    found = _CURSOR.fullmatch(command.cursor)
    if found is None or (seq := int(found[1] or 0)) > _SEQ_MAX:
        raise CursorInvalid
    count = max(1, min(command.messages_max, limits.CLAIM_PAGE_MESSAGES))
    page = await tx.claimed.read(queue, bound, command.shard, seq, count, limits.CLAIM_PAGE_BYTES)
    messages = [message for _, message in page]
    is_full = sum(len(each.body) + len(each.properties) for each in messages) >= limits.CLAIM_PAGE_BYTES
    cursor = f"u{page[-1][0] + 1}" if is_full or len(page) == count else ""
    return claims.ClaimPage(messages=messages, cursor=cursor)


async def _readable(tx: ClaimTransaction, queue: QueueRow, command: claims.ReadClaim) -> BoundClaim:
    """Return the claim as it is; raises the reason why there is no open one."""
    row = await tx.row("source", queue.origin, command.source)
    if row is None:
        raise ClaimLost(command.number)
    source = await with_claims(tx, row, await tx.now())
    return (source.as_expired() if source.hold_has_ended else source).open_claim(command.number)


# The commands of operators.


async def list_sources(tx: ClaimTransaction, command: claims.ListSources) -> list[SourceView]:
    """Return the sources, those with open claims first."""
    queue = await tx.queue(command.queue)
    now_ms = await tx.now()
    rows = await tx.rows("sources", queue.origin, now_ms, command.count)
    bound: dict[str | None, list[BoundClaim]] = {name: [] for _, name, *_ in rows}
    for row in await tx.rows("claims_of_queue", queue.origin) if rows else ():
        each = claim_of(row)
        bound.setdefault(each.source, []).append(each)
    backlog = await tx.claimed.backlog(queue, lately=False) if rows else Backlog(0, None)
    sources = [source_of(row, bound[row[1]], now_ms) for row in rows]
    return [_seen(each.as_expired() if each.hold_has_ended else each, backlog) for each in sources]


async def release(tx: ClaimTransaction, command: claims.ReleaseClaim) -> SourceView:
    """Give the messages of a claim back."""
    queue = await tx.queue(command.queue)
    source = await _source(tx, queue, command.source)
    try:
        bound = source.open_claim(command.number)
    except ClaimReleased:
        return await _view(tx, queue, source)
    source = await end(tx, queue, source, [bound], ClaimState.RELEASED.value)
    return await _view(tx, queue, source)


async def close_source(tx: ClaimTransaction, command: claims.CloseSource) -> None:
    """Give everything back and forget the source."""
    queue = await tx.queue(command.queue)
    source = await _source(tx, queue, command.source)
    source = await end(tx, queue, source, source.held, ClaimState.RELEASED.value)
    await detach(tx, source, list(source.claims.values()))
    await tx.run("delete_source", queue.origin, source.name)


async def evict(tx: ClaimTransaction, command: claims.EvictMessage) -> SourceView:
    """Move one message to the dead-letter queue."""
    queue = await tx.queue(command.queue)
    source = await _source(tx, queue, command.source)
    bound = source.open_claim(command.number)
    seq = await tx.claimed.find(queue, bound, command.message)
    if seq is None:
        raise MessageNotClaimed(command.number)
    await tx.claimed.evict(queue, bound, seq, await _dead_letter_queue(tx, queue))
    bound = bound._replace(messages=bound.messages - 1)
    await tx.run("put_claim", bound.id, bound.state, bound.messages, bound.shards, bound.filled)
    return await _view(tx, queue, source._replace(claims={**source.claims, bound.number: bound}))


async def _dead_letter_queue(tx: ClaimTransaction, queue: QueueRow) -> QueueRow:
    name = queue.settings.dead_letter_queue
    if not name:
        raise DeadLetterQueueRefused("", f"The queue {queue.name} has no dead-letter queue; give it one first.")
    target = await tx.target(name, (queue.number, queue.name))
    why = redrive.refusal(queue.name, queue.settings, name, None if target is None else target.settings)
    if target is None or why is not None:
        raise DeadLetterQueueRefused(name, why or "")
    return target


def _seen(source: Source, backlog: Backlog) -> SourceView:
    lease_until_ms = source.beat_at_ms + source.lease_ms
    return SourceView(
        source=source.name,
        consumer=source.consumer,
        epoch=source.epoch,
        acknowledged=source.acknowledged,
        last=source.last,
        alive=source.now_ms < lease_until_ms,
        lease_until_ms=lease_until_ms,
        hold_until_ms=source.hold_until_ms,
        claims=[
            ClaimView(
                number=each.number,
                state=ClaimState(each.state),
                messages=each.messages,
                shards=each.shards,
                bound_at_ms=each.bound_at_ms,
            )
            for each in source.claims.values()
            if each.number > source.acknowledged
        ],
        ready=backlog.visible,
        oldest_sent_at_ms=backlog.oldest_sent_at_ms,
    )
