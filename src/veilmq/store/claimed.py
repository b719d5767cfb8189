"""The messages of claims, as a dialect binds, reads and ends them; ``claims`` and ``claim_endings`` have the rules.

What is bound counts as received once more, and no receipt from before acts on it. It is in flight, but takes no place
of the quota of receives, and no retention ends it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from veilmq.core.claims import ClaimedMessage, ClaimState
from veilmq.core.limits import CLAIM_SHARDS_MAX
from veilmq.store.transaction import QueueRow, Transaction

ACKNOWLEDGED = "acknowledged"
"""The state of a claim whose messages are being deleted: commands see its number only."""


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
        return self.state in (ClaimState.BINDING.value, ClaimState.OPEN.value)


class Wish(NamedTuple):
    """Up to so many more messages, in shards of so many, and so many bytes of all that the claim has."""

    messages: int
    shard_messages: int
    bytes: int | None


class Part(NamedTuple):
    """What a slice has bound: so many messages; how many shards the claim has then, and messages in the last one.

    ``more`` tells whether there may be more of what is wished, ``expires`` whether messages past their retention, which
    go by slices, may hide it.
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


class ClaimedMessages(ABC):
    """What claims do with messages, in an open transaction; waiters hear of what becomes visible."""

    claimed_max: int
    """How many messages of a queue may be claimed."""

    @abstractmethod
    async def bind(self, queue: QueueRow, claim: BoundClaim, wish: Wish) -> Part:
        """Bind a slice of the visible messages, in the order of receives; dead letters move as in a receive."""

    @abstractmethod
    async def read(
        self, queue: QueueRow, claim: BoundClaim, shard: int, seq: int, count: int, bytes_max: int
    ) -> Sequence[tuple[int, ClaimedMessage]]:
        """Return up to ``count`` messages of a shard from ``seq`` on, each behind its seq, in order.

        The one that brings bodies and properties to ``bytes_max`` is the last.
        """

    @abstractmethod
    async def find(self, queue: QueueRow, claim: BoundClaim, message: bytes) -> int | None:
        """Return the seq of the message of that id, if the claim has it; looks at all that the claim has."""

    @abstractmethod
    async def evict(self, queue: QueueRow, claim: BoundClaim, seq: int, target: QueueRow) -> None:
        """Move a message of the claim to ``target`` as a dead letter."""

    @abstractmethod
    async def end(self, queue: QueueRow | None, claim: BoundClaim) -> bool:
        """Delete a slice of an acknowledged claim, or give one back; tell whether there may be more.

        What has passed its retention is deleted either way, and so is what is in a partition that is retired. ``queue``
        is ``None`` when it was deleted.
        """

    @abstractmethod
    async def backlog(self, queue: QueueRow, *, lately: bool) -> Backlog:
        """Count what waits; ``lately``: what was counted a while ago will do where counting takes long."""

    @abstractmethod
    async def next_visible_ms(self, queue: QueueRow) -> int | None:
        """Return the instant from which a message is visible; ``None`` when none comes by itself."""


class ClaimTransaction(Transaction):
    """A transaction that can do so."""

    claimed: ClaimedMessages


def placed(messages: int, claim: BoundClaim, shard_messages: int) -> list[tuple[int, int]]:
    """Return how many of the next messages go to which shard.

    The last one gets what it has room for, and new ones share the rest evenly. Of ``CLAIM_SHARDS_MAX`` the last one
    takes all that comes.
    """
    parts_max = CLAIM_SHARDS_MAX - claim.shards
    room = max(0, shard_messages - claim.filled) if parts_max else messages
    first = min(messages, room) if claim.shards else 0
    rest = messages - first
    parts = min(parts_max, -(-rest // shard_messages))
    pieces = [(claim.shards - 1, first)] if first else []
    return pieces + [(claim.shards + each, (each + 1) * rest // parts - each * rest // parts) for each in range(parts)]


def filled(pieces: list[tuple[int, int]], claim: BoundClaim) -> tuple[int, int]:
    """Return how many shards the claim has with what was ``placed``, and how many messages its last one has."""
    if not pieces:
        return claim.shards, claim.filled
    shard, messages = pieces[-1]
    return shard + 1, messages + (claim.filled if shard == claim.shards - 1 else 0)


def shards_of_groups(found: int, *, more: bool, wish: Wish) -> int:
    """Return among how many shards groups are divided, once and for all: without ``more``, what was found is all."""
    messages = wish.messages if more else found
    return min(CLAIM_SHARDS_MAX, max(1, -(-messages // wish.shard_messages)))
