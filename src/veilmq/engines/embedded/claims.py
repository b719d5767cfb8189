"""Claims: the commands of ``core.claims``, and the work that goes on by itself.

Sources and their claims stand in memory and in the tables alike; what a claim has is ranges of positions, in the tables
alone. A claim is bound in slices by as many commands (``claim_binding``), and ends in slices (``claim_endings``).

A hold that has ended is seen by every command on its source, and by a ``ClaimStep`` at that instant: the claims are
lost from then on, their messages follow in slices.
"""

from collections.abc import Callable
from heapq import nsmallest
from typing import Any

import msgspec

from veilmq.core import claims, limits
from veilmq.core.claims import ClaimState, SourceView
from veilmq.core.commands import Command
from veilmq.core.errors import (
    ClaimAcknowledged,
    ClaimGap,
    ClaimLost,
    ClaimReleased,
    ConsumerTaken,
    EpochFenced,
    MessageNotClaimed,
    SourceNotFound,
)
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.claim_binding import Binding, Wish
from veilmq.engines.embedded.claim_endings import Endings, tell
from veilmq.engines.embedded.claim_reads import ClaimReads
from veilmq.engines.embedded.claim_store import ACKNOWLEDGED, BoundClaim, ClaimStore, Source
from veilmq.engines.embedded.claim_views import seen
from veilmq.engines.embedded.dead_letters import DeadLetters, carried
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.moves import Stepped
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.run import CLAIMED_MS, NEVER_MS

_PAUSE_MS = 5
_FORGOTTEN_PER_STEP = 100

_REFUSED = {ClaimState.LOST.value: ClaimLost, ClaimState.RELEASED.value: ClaimReleased}


class ClaimStep(Command, frozen=True, kw_only=True):
    """Do one slice of what claims have to do by themselves. Answers ``moves.Stepped``."""


class Claims:
    """The sources of one store: their commands, and the work."""

    def __init__(
        self, *, catalog: Catalog, journal: Journal, dead_letters: DeadLetters, options: EngineOptions
    ) -> None:
        """Go on with what ``journal`` has."""
        self._catalog = catalog
        self._store = ClaimStore(journal=journal)
        self._binding = Binding(store=self._store, journal=journal, dead_letters=dead_letters, options=options)
        self._endings = Endings(store=self._store, journal=journal, options=options)
        self._reads = ClaimReads(journal=journal)
        self._dead_letters = dead_letters
        self._claimed_max = options.claimed_max
        self._sources: dict[int, dict[str, Source]] = {}  # by the numbers of queues, and by their names
        self._next_step_ms = 0
        self._look_ms = NEVER_MS  # when the next hold ends, or a source may be forgotten; not later than that
        self._load()

    def _load(self) -> None:
        sources, bound = self._store.load()
        for source in sources:
            self._sources.setdefault(source.queue, {})[source.name] = source
            self._look_at(source)
        queues = self._queues()
        lanes = {lane.number: lane for queue in queues.values() for lane in queue.lanes}
        for claim in bound:
            for number, messages in claim.by_lane.items():
                if number in lanes:
                    lanes[number].counters.claimed += messages
            if not claim.is_held and (claim.by_lane or claim.source is None):
                self._endings.begin(claim, queues.get(claim.queue))

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

    # Finding.

    def _source(self, queue: Queue, name: str, now_ms: int) -> Source:
        source = self._sources.get(queue.number, {}).get(name)
        if source is None:
            raise SourceNotFound(name)
        self._expire(source, queue, now_ms)
        return source

    def _fenced(self, queue: Queue, name: str, epoch: int, now_ms: int) -> Source:
        source = self._source(queue, name, now_ms)
        if epoch != source.epoch:
            raise EpochFenced(epoch, source.epoch)
        return source

    def _open_claim(self, source: Source, number: int) -> BoundClaim:
        """Return the claim of that number; raises what tells why there is no open one."""
        if number <= source.acknowledged:
            raise ClaimAcknowledged(number, source.acknowledged)
        claim = source.claims.get(number)
        if claim is None:
            raise ClaimLost(number)
        if not claim.is_held:
            raise _REFUSED[claim.state](number)
        return claim

    # The commands of readers.

    def open(self, command: claims.OpenSource, now_ms: int) -> SourceView:
        """Begin a new epoch."""
        queue = self._catalog.queue(command.queue)
        sources = self._sources.setdefault(queue.number, {})
        rivals = [
            each
            for each in sources.values()
            if command.consumer and each.consumer == command.consumer and each.name != command.source
        ]
        for rival in rivals:
            self._expire(rival, queue, now_ms)
            if rival.holds and not command.takeover:
                raise ConsumerTaken(command.consumer, rival.name)
        for rival in rivals:
            self._fence(rival, queue, now_ms)
        source = sources.get(command.source)
        if source is None:
            source = Source(0, queue.number, command.source, "", 0, 0, 0, "[]", 0, 0, now_ms)
            sources[command.source] = source
        else:
            self._expire(source, queue, now_ms)
        source.consumer = command.consumer
        source.epoch += 1
        self._beat(source, now_ms, hold_s=command.hold_s, lease_s=command.lease_s)
        return self._view(source, queue, now_ms)

    def _fence(self, rival: Source, queue: Queue, now_ms: int) -> None:
        rival.epoch += 1
        rival.consumer = ""
        self._store.put_source(rival)
        self._first_slice(self._give_all_up(rival, queue, ClaimState.RELEASED), queue, now_ms)

    def heartbeat(self, command: claims.Heartbeat, now_ms: int) -> SourceView:
        """Renew lease and hold."""
        queue = self._catalog.queue(command.queue)
        source = self._fenced(queue, command.source, command.epoch, now_ms)
        self._beat(source, now_ms, hold_s=command.hold_s, lease_s=command.lease_s)
        return self._view(source, queue, now_ms)

    def _beat(self, source: Source, now_ms: int, *, hold_s: int | None = None, lease_s: int | None = None) -> None:
        source.beat_at_ms = now_ms
        source.hold_s = source.hold_s if hold_s is None else hold_s
        source.lease_s = source.lease_s if lease_s is None else lease_s
        self._store.put_source(source)
        self._look_at(source)

    def claim(self, command: claims.Claim, now_ms: int) -> claims.Bound:
        """Bind, go on binding, or tell what was bound."""
        queue = self._catalog.queue(command.queue)
        source = self._fenced(queue, command.source, command.epoch, now_ms)
        number = command.number
        if number > source.last + 1:
            raise ClaimGap(number, source.last)
        if number <= source.last:
            claim = self._open_claim(source, number)
        else:
            self._settle(source.claims.get(source.last))
            claim = BoundClaim(0, source.number, queue.number, number, ClaimState.BINDING.value, bound_at_ms=now_ms)
        again = claim.id > 0
        if claim.state == ClaimState.BINDING.value:
            self._bind(queue, claim, command, now_ms)
        if not claim.id:
            return self._nothing(queue, number, now_ms)
        source.claims[number] = claim
        source.last = max(source.last, number)
        self._beat(source, now_ms)
        more = claim.state == ClaimState.BINDING.value
        return claims.Bound(number=number, messages=claim.messages, shards=claim.shards, more=more, again=again)

    def _bind(self, queue: Queue, claim: BoundClaim, command: claims.Claim, now_ms: int) -> None:
        queue.expire(now_ms)
        shard_messages = max(command.shard_messages, -(-command.messages_max // limits.CLAIM_SHARDS_MAX))
        wish = Wish(min(command.messages_max, claim.messages + self._places(queue)), shard_messages)
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
        due_ms = queue.next_message_ms(now_ms)
        return claims.Bound(number=number, messages=0, shards=0, next_due_ms=None if due_ms >= CLAIMED_MS else due_ms)

    def acknowledge(self, command: claims.AcknowledgeClaims, now_ms: int) -> claims.Acknowledged:
        """Delete a prefix."""
        queue = self._catalog.queue(command.queue)
        source = self._fenced(queue, command.source, command.epoch, now_ms)
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
            self._detach(claim)
        for claim in held:
            claim.state = ACKNOWLEDGED
            self._store.put_claim(claim)
            self._endings.begin(claim, queue)
        source.acknowledged = number
        source.lost = msgspec.json.encode(lost).decode()
        self._store.put_source(source)
        self._first_slice(held, queue, now_ms)

    def _detach(self, claim: BoundClaim) -> None:
        """Part a claim from its source; it is forgotten when its messages are gone or back."""
        claim.source = None
        if claim.is_held or self._endings.has(claim):
            self._store.put_claim(claim)
        else:
            self._store.delete_claim(claim)

    def read(self, command: claims.ReadClaim, now_ms: int) -> claims.ClaimPage:
        """Tell messages of a claim; who reads a claim that is not whole has it whole as it is."""
        queue = self._catalog.queue(command.queue)
        source = self._sources.get(queue.number, {}).get(command.source)
        if source is None:
            raise ClaimLost(command.number)
        self._expire(source, queue, now_ms)
        claim = self._open_claim(source, command.number)
        self._settle(claim)
        return self._reads.read(queue, claim, command)

    # The commands of operators.

    def list_sources(self, command: claims.ListSources, now_ms: int) -> list[SourceView]:
        """Tell the sources, those with open claims first."""
        queue = self._catalog.queue(command.queue)
        sources = list(self._sources.get(queue.number, {}).values())
        for source in sources:
            self._expire(source, queue, now_ms)
        found = nsmallest(command.count, sources, lambda source: (not source.holds, -source.beat_at_ms, source.name))
        ready = queue.counts(now_ms).visible
        return [seen(source, ready=ready, now_ms=now_ms) for source in found]

    def release(self, command: claims.ReleaseClaim, now_ms: int) -> SourceView:
        """Give the messages of a claim back."""
        queue = self._catalog.queue(command.queue)
        source = self._source(queue, command.source, now_ms)
        try:
            claim = self._open_claim(source, command.number)
        except ClaimReleased:
            return self._view(source, queue, now_ms)
        self._give_up(claim, queue, ClaimState.RELEASED)
        self._first_slice([claim], queue, now_ms)
        return self._view(source, queue, now_ms)

    def close(self, command: claims.CloseSource, now_ms: int) -> None:
        """Give everything back and forget the source."""
        queue = self._catalog.queue(command.queue)
        source = self._source(queue, command.source, now_ms)
        held = self._give_all_up(source, queue, ClaimState.RELEASED)
        self._forget(source)
        self._first_slice(held, queue, now_ms)

    def evict(self, command: claims.EvictMessage, now_ms: int) -> SourceView:
        """Move one message to the dead-letter queue."""
        queue = self._catalog.queue(command.queue)
        source = self._source(queue, command.source, now_ms)
        claim = self._open_claim(source, command.number)
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

    # What ends claims.

    def _expire(self, source: Source, queue: Queue, now_ms: int) -> None:
        if source.holds and now_ms >= source.hold_until_ms:
            self._first_slice(self._give_all_up(source, queue, ClaimState.LOST), queue, now_ms)

    def _give_all_up(self, source: Source, queue: Queue, state: ClaimState) -> list[BoundClaim]:
        held = [claim for claim in source.claims.values() if claim.is_held]
        for claim in held:
            self._give_up(claim, queue, state)
        return held

    def _give_up(self, claim: BoundClaim, queue: Queue, state: ClaimState) -> None:
        claim.state = state.value
        self._store.put_claim(claim)
        self._endings.begin(claim, queue)

    def _first_slice(self, ended: list[BoundClaim], queue: Queue, now_ms: int) -> None:
        if ended:
            self._endings.advance(ended[0], queue, now_ms)

    def purge(self, queue: Queue) -> None:
        """Take note that the messages of the queue are deleted: its open claims are lost."""
        for source in self._sources.get(queue.number, {}).values():
            self._give_all_up(source, queue, ClaimState.LOST)

    def delete(self, queue: Queue) -> None:
        """Forget the sources of a queue that is deleted."""
        self.purge(queue)
        for source in list(self._sources.get(queue.number, {}).values()):
            self._forget(source)
        self._sources.pop(queue.number, None)

    def _forget(self, source: Source) -> None:
        del self._sources[source.queue][source.name]
        for claim in source.claims.values():
            self._detach(claim)
        self._store.delete_source(source)

    # The work that goes on by itself.

    @property
    def due_ms(self) -> int:
        """When the next slice is due; ``NEVER_MS`` when there is nothing to wait for."""
        return self._next_step_ms if self._endings else self._look_ms

    def step(self, command: ClaimStep, now_ms: int) -> Stepped:
        """See whose hold has ended, forget who is silent, and do one slice for a claim that ends."""
        if now_ms >= self._look_ms:
            self._look(now_ms)
        self._endings.step(self._queues(), now_ms)
        self._next_step_ms = now_ms + _PAUSE_MS
        return Stepped(due_ms=self.due_ms)

    def _look(self, now_ms: int) -> None:
        queues = self._queues()
        silent = []
        for sources in self._sources.values():
            for source in sources.values():
                if source.holds and now_ms >= source.hold_until_ms:
                    self._give_all_up(source, queues[source.queue], ClaimState.LOST)
                elif not source.holds and now_ms >= source.forgotten_ms:
                    silent.append(source)
        for source in silent[:_FORGOTTEN_PER_STEP]:
            self._forget(source)
        self._look_ms = NEVER_MS
        for sources in self._sources.values():
            for source in sources.values():
                self._look_at(source)

    def _look_at(self, source: Source) -> None:
        self._look_ms = min(self._look_ms, source.hold_until_ms if source.holds else source.forgotten_ms)

    def _view(self, source: Source, queue: Queue, now_ms: int) -> SourceView:
        return seen(source, ready=queue.counts(now_ms).visible, now_ms=now_ms)
