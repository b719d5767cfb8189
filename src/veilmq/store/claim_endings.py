"""How claims end: messages of acknowledged ones are deleted, those of lost or released ones return.

What a claim is changes at once; its messages follow in slices, each in a transaction that has the claim's row. The
first slice is the command's own, so that small claims end with it; the others go on by themselves (``ClaimStep``).
"""

from collections.abc import Sequence

from veilmq.core.claims import ClaimState
from veilmq.core.commands import Command
from veilmq.core.limits import SECOND_MS, SOURCE_SILENCE_S
from veilmq.store.claim_sources import Source, claim_of, with_claims
from veilmq.store.claimed import ACKNOWLEDGED, BoundClaim, ClaimTransaction
from veilmq.store.transaction import QueueRow, Transaction

_SILENCE_MS = SOURCE_SILENCE_S * SECOND_MS
_PAUSE_MS = 5


class ClaimStep(Command, frozen=True, kw_only=True):
    """Do one slice of what claims do by themselves. Answers in how many ms the next one is due, ``None`` for never."""


# In the transaction of a command, which has locked the source.


async def end(
    tx: ClaimTransaction, queue: QueueRow, source: Source, claims: Sequence[BoundClaim], state: str
) -> Source:
    """End claims in that state, all that are open from the first to the last; return the source as it is then.

    A first slice of the first one is done at once. The source forgets those that are acknowledged.
    """
    if not claims:
        return source
    first, last = claims[0].number, claims[-1].number
    await tx.run("end_claims", source.origin, source.name, first, last, state)
    tx.schedule(ClaimStep)
    source = source.ended(claims, state)
    begun = source.claims[first]
    if state == ACKNOWLEDGED:
        begun = begun._replace(source=None)
        source = source._replace(claims={each: bound for each, bound in source.claims.items() if bound.state != state})
    await _advance(tx, queue, begun)
    return source


async def expired(tx: ClaimTransaction, queue: QueueRow, source: Source) -> Source:
    """Return the source as it is, its claims lost if its hold has ended."""
    if not source.hold_has_ended:
        return source
    return await end(tx, queue, source, source.held, ClaimState.LOST.value)


async def detach(tx: Transaction, source: Source, claims: Sequence[BoundClaim]) -> None:
    """Part claims from their source, all from the first to the last; each is forgotten once it has ended."""
    if claims:
        first, last = claims[0].number, claims[-1].number
        for claim_id, is_ending in await tx.rows("detach_claims", source.origin, source.name, first, last):
            if not is_ending:
                await tx.run("drop_claim", claim_id)


async def advance_of(tx: ClaimTransaction, queue: QueueRow) -> bool:
    """Do a slice for a claim of a queue whose groups are waited for; tell whether there was one."""
    rows = await tx.locked("ending_claim_of", queue.origin)
    if rows:
        await _advance(tx, queue, claim_of(rows[0]))
    return bool(rows)


async def _advance(tx: ClaimTransaction, queue: QueueRow | None, claim: BoundClaim) -> None:
    """Do a slice for a claim, whose row is locked."""
    if not await tx.claimed.end(queue, claim):
        await tx.run("drop_claim" if claim.source is None else "finish_claim", claim.id)


# With the partition of a queue.


async def lock_sources(tx: Transaction, queue: QueueRow) -> None:
    """Have the sources of a queue wait whose partition is about to be retired."""
    await tx.locked("source_names", queue.origin)


async def lose_all(tx: Transaction, queue: QueueRow) -> None:
    """Have the open claims of a queue lost whose partition is retired; their messages are deleted in slices."""
    await tx.run("lose_claims", queue.origin)
    tx.schedule(ClaimStep)


async def forget_all(tx: Transaction, queue: QueueRow) -> None:
    """Forget all sources of a queue that is deleted."""
    await lose_all(tx, queue)
    await tx.run("detach_all_claims", queue.origin)
    await tx.run("delete_ended_claims", queue.origin)
    await tx.run("delete_sources", queue.origin)


# By itself.


async def step(tx: ClaimTransaction, command: ClaimStep) -> int | None:
    """See which hold has ended, or do a slice; return in how many ms there is more to do, ``None`` for never.

    Raises ``StoreFull`` where messages should come back: that takes room. What is acknowledged is deleted before.
    """
    now_ms = await tx.now()
    ending = [claim_of(row) for row in await tx.unlocked("ending_claim")]
    if not ending or ending[0].state != ACKNOWLEDGED:
        for row in await tx.unlocked("due_source", now_ms):
            if await _look(tx, await with_claims(tx, row, now_ms)):
                ending = []
    for claim in ending:
        queue = await _queue_of(tx, claim.origin)
        if queue is not None and queue.partition == claim.partition and claim.state != ACKNOWLEDGED:
            tx.need_room()
        await _advance(tx, queue, claim)
    look_at_ms, is_ending = (await tx.rows("claims_due"))[0]
    if is_ending or look_at_ms is None:
        return _PAUSE_MS if is_ending else None
    return look_at_ms - now_ms if look_at_ms > now_ms else _PAUSE_MS


async def _look(tx: ClaimTransaction, source: Source) -> bool:
    """See whether the hold of a source has ended, or its time; tell whether that was a slice of work."""
    forgotten_ms = source.beat_at_ms + _SILENCE_MS
    if not source.held and source.now_ms >= forgotten_ms:
        await detach(tx, source, list(source.claims.values()))
        await tx.run("delete_source", source.origin, source.name)
        return False
    is_due = source.hold_has_ended
    if is_due:
        tx.need_room()
        queue = await _queue_of(tx, source.origin)
        assert queue is not None, "the sources of a queue are forgotten with it"
        await expired(tx, queue, source)
    look_at_ms = source.hold_until_ms if source.held and not is_due else forgotten_ms
    await tx.run("look_later", source.origin, source.name, look_at_ms)
    return is_due


async def _queue_of(tx: Transaction, origin: int) -> QueueRow | None:
    """Return the queue of that origin, unless it was deleted."""
    name = await tx.value("queue_of_origin", origin)
    return None if name is None else await tx.find(name)
