"""Claims: the commands of ``core.claims``, and the work that goes on by itself.

Sources and their claims stand in memory and in the tables alike (``claim_sources``); what a claim has is ranges of
positions, in the tables alone. A claim is bound in slices by as many commands (``claim_binding``), and ends in slices
(``claim_endings``), for which ``ClaimStep`` comes.
"""

from collections.abc import Callable
from heapq import nsmallest
from typing import Any

import msgspec

from veilmq.core import claims, limits
from veilmq.core.claims import ClaimState, SourceView
from veilmq.core.commands import Command
from veilmq.core.errors import ClaimGap, ClaimLost, ClaimReleased, ConsumerTaken, MessageNotClaimed
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.claim_binding import Binding, Wish
from veilmq.engines.embedded.claim_endings import Endings, tell
from veilmq.engines.embedded.claim_reads import ClaimReads
from veilmq.engines.embedded.claim_sources import Sources
from veilmq.engines.embedded.claim_store import ACKNOWLEDGED, BoundClaim, ClaimStore, Source
from veilmq.engines.embedded.claim_views import seen
from veilmq.engines.embedded.dead_letters import DeadLetters, carried
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.moves import Stepped
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.run import CLAIMED_MS, NEVER_MS
from veilmq.engines.embedded.shown_times import ShownTimes

_PAUSE_MS = 5


class ClaimStep(Command, frozen=True, kw_only=True):
    """Do one slice of what claims have to do by themselves. Answers ``moves.Stepped``."""


class Claims:
    """The sources of one store: their commands, and the work."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        journal: Journal,
        dead_letters: DeadLetters,
        options: EngineOptions,
        shown: ShownTimes,
    ) -> None:
        """Go on with what ``journal`` has; ``shown`` has the difference that new claims keep."""
        self._catalog = catalog
        self._store = ClaimStore(journal=journal)
        self._binding = Binding(store=self._store, journal=journal, dead_letters=dead_letters, options=options)
        self._endings = Endings(store=self._store, journal=journal, options=options)
        self._reads = ClaimReads(journal=journal)
        self._dead_letters = dead_letters
        self._claimed_max = options.claimed_max
        self._sources = Sources(store=self._store, endings=self._endings)
        self._sources.load(self._queues())
        self._shown = shown
        self._next_step_ms = 0

    def _queues(self) -> dict[int, Queue]:
        return {queue.number: queue for queue in self._catalog.queues()}

    @property
    def handlers(self) -> dict[type[Command], Callable[[Any, int], object]]:
        """The handler of each command."""
        return {
            claims.OpenSource: self.open,
            claims.Claim: self.claim,
            claims.Heartbeat: self.heartbeat,
            claims.AcknowledgeClaims: self.acknowledge,
            claims.ReadClaim: self.read,
            claims.ReleaseClaim: self.release,
            claims.EvictMessage: self.evict,
            claims.ListSources: self.list_sources,
            claims.CloseSource: self.close,
            ClaimStep: self.step,
        }

    # The commands of readers.

    def open(self, command: claims.OpenSource, now_ms: int) -> SourceView:
        """Begin a new epoch."""
        queue = self._catalog.queue(command.queue)
        rivals = [
            each
            for each in self._sources.of(queue)
            if command.consumer and each.consumer == command.consumer and each.name != command.source
        ]
        for rival in rivals:
            self._sources.expire(rival, queue, now_ms)
            if rival.holds and not command.takeover:
                raise ConsumerTaken(command.consumer, rival.name)
        for rival in rivals:
            self._sources.fence(rival, queue, now_ms)
        source = self._sources.get(queue, command.source, now_ms) or self._sources.add(queue, command.source, now_ms)
        source.consumer = command.consumer
        source.epoch += 1
        self._sources.beat(source, now_ms, hold_s=command.hold_s, lease_s=command.lease_s)
        return self._view(source, queue, now_ms)

    def heartbeat(self, command: claims.Heartbeat, now_ms: int) -> SourceView:
        """Renew lease and hold."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.fenced(queue, command.source, command.epoch, now_ms)
        self._sources.beat(source, now_ms, hold_s=command.hold_s, lease_s=command.lease_s)
        return self._view(source, queue, now_ms)

    def claim(self, command: claims.Claim, now_ms: int) -> claims.Bound:
        """Bind, go on binding, or tell what was bound."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.fenced(queue, command.source, command.epoch, now_ms)
        number = command.number
        if number > source.last + 1:
            raise ClaimGap(number, source.last)
        if number <= source.last:
            claim = self._sources.open_claim(source, number)
        else:
            self._settle(source.claims.get(source.last))
            claim = BoundClaim(0, source.number, queue.number, number, ClaimState.BINDING.value, bound_at_ms=now_ms)
            claim.ahead_ms = self._shown.ahead_ms
            claim.bytes = 0
        again = claim.id > 0
        if claim.state == ClaimState.BINDING.value:
            self._bind(queue, claim, command, now_ms)
        if not claim.id:
            return self._nothing(queue, number, now_ms)
        source.claims[number] = claim
        source.last = max(source.last, number)
        self._sources.beat(source, now_ms)
        more = claim.state == ClaimState.BINDING.value
        return claims.Bound(number=number, messages=claim.messages, shards=claim.shards, more=more, again=again)

    def _bind(self, queue: Queue, claim: BoundClaim, command: claims.Claim, now_ms: int) -> None:
        queue.expire(now_ms)
        shard_messages = max(command.shard_messages, -(-command.messages_max // limits.CLAIM_SHARDS_MAX))
        wanted = min(command.messages_max, claim.messages + self._places(queue))
        wish = Wish(wanted, shard_messages, command.bytes_max)
        if not self._binding.bind(queue, claim, wish, now_ms) and claim.id:
            self._whole(claim, shard_messages)

    def _places(self, queue: Queue) -> int:
        claimed = sum(lane.counters.claimed - lane.counters.doomed for lane in queue.lanes)
        return max(0, self._claimed_max - claimed)

    def _whole(self, claim: BoundClaim, shard_messages: int) -> None:
        claim.state = ClaimState.OPEN.value
        claim.shards = max(1, claim.shards, -(-claim.messages // shard_messages))
        self._store.put_claim(claim)

    def _settle(self, claim: BoundClaim | None) -> None:
        """Let the claim be whole with what it has, if it is not."""
        if claim is not None and claim.state == ClaimState.BINDING.value:
            self._whole(claim, limits.CLAIM_SHARD_MESSAGES)

    def _nothing(self, queue: Queue, number: int, now_ms: int) -> claims.Bound:
        if queue.settings.fifo and self._endings.advance_of(queue, now_ms):  # all groups may be blocked by that claim
            return claims.Bound(number=number, messages=0, shards=0, more=True)
        due_ms = queue.next_message_ms(now_ms) if self._places(queue) else NEVER_MS  # the end of a claim tells
        return claims.Bound(number=number, messages=0, shards=0, next_due_ms=None if due_ms >= CLAIMED_MS else due_ms)

    def acknowledge(self, command: claims.AcknowledgeClaims, now_ms: int) -> claims.Acknowledged:
        """Delete a prefix."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.fenced(queue, command.source, command.epoch, now_ms)
        number = command.number
        if number > source.last:
            raise ClaimGap(number, source.last)
        if number > source.acknowledged:
            self._acknowledge(source, queue, number, now_ms)
        lost = msgspec.json.decode(source.lost, type=list[int]) if number == source.acknowledged else []
        return claims.Acknowledged(acknowledged=source.acknowledged, lost=lost)

    def _acknowledge(self, source: Source, queue: Queue, number: int, now_ms: int) -> None:
        covered = [source.claims.pop(each) for each in list(source.claims) if each <= number]
        held = [claim for claim in covered if claim.is_held]
        lost = [claim.number for claim in covered if not claim.is_held]
        for claim in covered:
            self._sources.detach(claim)
        for claim in held:
            claim.state = ACKNOWLEDGED
            self._store.put_claim(claim)
            self._endings.begin(claim, queue)
        source.acknowledged = number
        source.lost = msgspec.json.encode(lost).decode()
        self._store.put_source(source)
        self._sources.first_slice(held, queue, now_ms)

    def read(self, command: claims.ReadClaim, now_ms: int) -> claims.ClaimPage:
        """Tell messages of a claim; who reads a claim that is not whole has it whole as it is."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.get(queue, command.source, now_ms)
        if source is None:
            raise ClaimLost(command.number)
        claim = self._sources.open_claim(source, command.number)
        self._settle(claim)
        return self._reads.read(queue, claim, command)

    # The commands of operators.

    def list_sources(self, command: claims.ListSources, now_ms: int) -> list[SourceView]:
        """Tell the sources, those with open claims first."""
        queue = self._catalog.queue(command.queue)
        sources = self._sources.of(queue)
        for source in sources:
            self._sources.expire(source, queue, now_ms)
        found = nsmallest(command.count, sources, lambda source: (not source.holds, -source.beat_at_ms, source.name))
        counts = queue.counts(now_ms)
        return [seen(source, counts=counts, now_ms=now_ms) for source in found]

    def release(self, command: claims.ReleaseClaim, now_ms: int) -> SourceView:
        """Give the messages of a claim back."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.find(queue, command.source, now_ms)
        try:
            claim = self._sources.open_claim(source, command.number)
        except ClaimReleased:
            return self._view(source, queue, now_ms)
        self._sources.give_up(claim, queue, ClaimState.RELEASED)
        self._sources.first_slice([claim], queue, now_ms)
        return self._view(source, queue, now_ms)

    def close(self, command: claims.CloseSource, now_ms: int) -> None:
        """Give everything back and forget the source."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.find(queue, command.source, now_ms)
        held = self._sources.give_all_up(source, queue, ClaimState.RELEASED)
        self._sources.forget(source)
        self._sources.first_slice(held, queue, now_ms)

    def evict(self, command: claims.EvictMessage, now_ms: int) -> SourceView:
        """Move one message to the dead-letter queue."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.find(queue, command.source, now_ms)
        claim = self._sources.open_claim(source, command.number)
        position = self._store.find(claim, command.message)
        if position is None:
            raise MessageNotClaimed(command.number)
        part = self._store.range_of(claim, position)
        (lane,) = (lane for lane in queue.lanes if lane.number == part.lane)
        target = self._dead_letters.target(queue, now_ms)
        home = target.lane(lane.priority, lane.kind)
        self._store.take_out(claim, part, position)
        home.add_moved(carried(*lane.take_out(position, claim.bound_at_ms, now_ms), queue), now_ms)
        target.rouse(now_ms)
        claim.messages -= 1
        claim.by_lane[lane.number] -= 1
        self._store.put_claim(claim)
        tell(queue, now_ms)
        return self._view(source, queue, now_ms)

    def purge(self, queue: Queue) -> None:
        """Take note that the messages of the queue are deleted: its open claims are lost."""
        for source in self._sources.of(queue):
            self._sources.give_all_up(source, queue, ClaimState.LOST)

    def delete(self, queue: Queue) -> None:
        """Forget the sources of a queue that is deleted."""
        self.purge(queue)
        for source in self._sources.of(queue):
            self._sources.forget(source)

    # The work that goes on by itself.

    @property
    def due_ms(self) -> int:
        """When the next slice is due; ``NEVER_MS`` when there is nothing to wait for."""
        return self._next_step_ms if self._endings else self._sources.look_ms

    def step(self, command: ClaimStep, now_ms: int) -> Stepped:
        """See whose hold has ended, forget who is silent, and do one slice for a claim that ends."""
        queues = self._queues()
        if now_ms >= self._sources.look_ms:
            self._sources.look(queues, now_ms)
        self._endings.step(queues, now_ms)
        self._next_step_ms = now_ms + _PAUSE_MS
        return Stepped(due_ms=self.due_ms)

    def _view(self, source: Source, queue: Queue, now_ms: int) -> SourceView:
        return seen(source, counts=queue.counts(now_ms), now_ms=now_ms)
