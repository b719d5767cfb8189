"""Sources in memory and in the tables alike: where each is, whose hold has ended, and who is forgotten.

Whatever ends a claim goes through here: a hold that has ended, an operator, a takeover, a purge. What the claim is
changes at once, its messages follow in slices (``claim_endings``). A hold that has ended is seen by every command on
its source, and by a ``look`` at that instant.
"""

from veilmq.core.claims import ClaimState
from veilmq.core.errors import ClaimAcknowledged, ClaimLost, ClaimReleased, EpochFenced, SourceNotFound
from veilmq.engines.embedded.claim_endings import Endings
from veilmq.engines.embedded.claim_store import BoundClaim, ClaimStore, Source
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.run import NEVER_MS

_FORGOTTEN_PER_LOOK = 100

_REFUSED = {ClaimState.LOST.value: ClaimLost, ClaimState.RELEASED.value: ClaimReleased}


class Sources:
    """All sources of one store, by their queues and names."""

    def __init__(self, *, store: ClaimStore, endings: Endings) -> None:
        """``load`` fills it; ``endings`` is who brings messages back."""
        self._store = store
        self._endings = endings
        self._sources: dict[int, dict[str, Source]] = {}  # by the numbers of queues, and by their names
        self.look_ms = NEVER_MS
        """When the next hold ends, or a source may be forgotten; not later than that."""

    def load(self, queues: dict[int, Queue]) -> None:
        """Go on with what the store has; ``queues`` are all there are, by their numbers."""
        sources, bound = self._store.load()
        for source in sources:
            self._sources.setdefault(source.queue, {})[source.name] = source
            self._look_at(source)
        lanes = {lane.number: lane for queue in queues.values() for lane in queue.lanes}
        for claim in bound:
            for number, messages in claim.by_lane.items():
                if number in lanes:
                    lanes[number].counters.claimed += messages
            if not claim.is_held and (claim.by_lane or claim.source is None):
                self._endings.begin(claim, queues.get(claim.queue))

    # Finding.

    def of(self, queue: Queue) -> list[Source]:
        """Return the sources of a queue."""
        return list(self._sources.get(queue.number, {}).values())

    def get(self, queue: Queue, name: str, now_ms: int) -> Source | None:
        """Return the source of that name as it is now, ``None`` when there is none."""
        source = self._sources.get(queue.number, {}).get(name)
        if source is not None:
            self.expire(source, queue, now_ms)
        return source

    def find(self, queue: Queue, name: str, now_ms: int) -> Source:
        """Return the source of that name as it is now; raises ``SourceNotFound``."""
        source = self.get(queue, name, now_ms)
        if source is None:
            raise SourceNotFound(name)
        return source

    def fenced(self, queue: Queue, name: str, epoch: int, now_ms: int) -> Source:
        """Return the source if that is its epoch; raises ``EpochFenced``."""
        source = self.find(queue, name, now_ms)
        if epoch != source.epoch:
            raise EpochFenced(epoch, source.epoch)
        return source

    @staticmethod
    def open_claim(source: Source, number: int) -> BoundClaim:
        """Return the claim of that number; raises what tells why there is no open one."""
        if number <= source.acknowledged:
            raise ClaimAcknowledged(number, source.acknowledged)
        claim = source.claims.get(number)
        if claim is None:
            raise ClaimLost(number)
        if not claim.is_held:
            raise _REFUSED[claim.state](number)
        return claim

    # Living.

    def add(self, queue: Queue, name: str, now_ms: int) -> Source:
        """Return a new source, which the next ``beat`` stores."""
        source = Source(0, queue.number, name, "", 0, 0, 0, "[]", 0, 0, now_ms)
        self._sources.setdefault(queue.number, {})[name] = source
        return source

    def beat(self, source: Source, now_ms: int, *, hold_s: int | None = None, lease_s: int | None = None) -> None:
        """Renew lease and hold, of other lengths where they are given."""
        source.beat_at_ms = now_ms
        source.hold_s = source.hold_s if hold_s is None else hold_s
        source.lease_s = source.lease_s if lease_s is None else lease_s
        self._store.put_source(source)
        self._look_at(source)

    def fence(self, source: Source, queue: Queue, now_ms: int) -> None:
        """Have another source take its place: its epoch is over, its claims are released."""
        source.epoch += 1
        source.consumer = ""
        self._store.put_source(source)
        self.first_slice(self.give_all_up(source, queue, ClaimState.RELEASED), queue, now_ms)

    # Ending.

    def expire(self, source: Source, queue: Queue, now_ms: int) -> None:
        """Have its claims lost if its hold has ended."""
        if source.holds and now_ms >= source.hold_until_ms:
            self.first_slice(self.give_all_up(source, queue, ClaimState.LOST), queue, now_ms)

    def give_all_up(self, source: Source, queue: Queue, state: ClaimState) -> list[BoundClaim]:
        """End all open claims of a source, in that state; return them."""
        held = [claim for claim in source.claims.values() if claim.is_held]
        for claim in held:
            self.give_up(claim, queue, state)
        return held

    def give_up(self, claim: BoundClaim, queue: Queue, state: ClaimState) -> None:
        """End an open claim in that state; its messages are to follow."""
        claim.state = state.value
        self._store.put_claim(claim)
        self._endings.begin(claim, queue)

    def first_slice(self, ended: list[BoundClaim], queue: Queue, now_ms: int) -> None:
        """Do a slice of what has just ended, so that small claims end with their command."""
        if ended:
            self._endings.advance(ended[0], queue, now_ms)

    def detach(self, claim: BoundClaim) -> None:
        """Part a claim from its source; it is forgotten when its messages are gone or back."""
        claim.source = None
        if claim.is_held or self._endings.has(claim):
            self._store.put_claim(claim)
        else:
            self._store.delete_claim(claim)

    def forget(self, source: Source) -> None:
        """Remove a source, whose claims have ended."""
        del self._sources[source.queue][source.name]
        if not self._sources[source.queue]:
            del self._sources[source.queue]
        for claim in source.claims.values():
            self.detach(claim)
        self._store.delete_source(source)

    def look(self, queues: dict[int, Queue], now_ms: int) -> None:
        """See whose hold has ended, and forget who is silent."""
        every = [source for sources in self._sources.values() for source in sources.values()]
        silent = []
        for source in every:
            if source.holds and now_ms >= source.hold_until_ms:
                self.give_all_up(source, queues[source.queue], ClaimState.LOST)
            elif not source.holds and now_ms >= source.forgotten_ms:
                silent.append(source)
        for source in silent[:_FORGOTTEN_PER_LOOK]:
            self.forget(source)
        self.look_ms = NEVER_MS
        for sources in self._sources.values():
            for source in sources.values():
                self._look_at(source)

    def _look_at(self, source: Source) -> None:
        self.look_ms = min(self.look_ms, source.hold_until_ms if source.holds else source.forgotten_ms)
