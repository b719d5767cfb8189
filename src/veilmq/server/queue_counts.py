"""The counts of all queues, their claims and what is staged for them, for whoever watches, at a bounded price a look.

Counting a queue costs the engine some fifty microseconds whatever its backlog; ten thousand queues would cost it half a
second. So a look counts at most ``COUNTED_MAX`` queues anew, those first that were never or longest ago counted, a few
between two other things, and tells of the others what was counted last. At most ``SHOWN_MAX`` queues are told of.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from veilmq.core.claims import ClaimState, ListSources, SourceView
from veilmq.core.commands import ShowQueue
from veilmq.core.ports import Engine
from veilmq.core.publications import ListWriters
from veilmq.core.results import QueueCounts, QueueView
from veilmq.store.port import execute

COUNTED_TOGETHER = 32
COUNTED_MAX = 1_000
SHOWN_MAX = 10_000


_HELD = frozenset({ClaimState.BINDING, ClaimState.OPEN})


class ClaimCounts(NamedTuple):
    """The claims that sources of a queue hold, their messages, and since when the oldest is bound."""

    claims: int
    messages: int
    oldest_bound_at_ms: int | None


class Counted(NamedTuple):
    """What there is in a queue; ``claims`` is ``None`` where nobody has opened a source, ``staged`` without writers."""

    counts: QueueCounts
    claims: ClaimCounts | None
    staged: int | None = None


class QueueCountBook:
    """What was last counted of each queue."""

    def __init__(self, engine: Engine) -> None:
        """Ask ``engine``; nothing is known yet."""
        self._engine = engine
        self._counts: dict[str, Counted] = {}  # in the order in which they were counted

    async def look(self, names: list[str]) -> list[tuple[str, Counted]]:
        """Return the counts of the queues ``names``, those that are known; one that was deleted is left out."""
        shown = dict.fromkeys(names[:SHOWN_MAX])
        self._counts = {name: counts for name, counts in self._counts.items() if name in shown}
        due = [name for name in shown if name not in self._counts]
        due += self._counts
        for first in range(0, min(len(due), COUNTED_MAX), COUNTED_TOGETHER):
            await self._count(due[first : min(first + COUNTED_TOGETHER, COUNTED_MAX)])
        return [(name, self._counts[name]) for name in shown if name in self._counts]

    async def _count(self, names: list[str]) -> None:
        asked = [execute(self._engine, ShowQueue(queue=name, counts=True)) for name in names]
        asked += [execute(self._engine, ListSources(queue=name)) for name in names]
        asked += [execute(self._engine, ListWriters(queue=name)) for name in names]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        views, sources, writers = (answers[first : first + len(names)] for first in range(0, len(answers), len(names)))
        for name, *found in zip(names, views, sources, writers, strict=True):
            self._counts.pop(name, None)
            counted = _counted(*found)
            if counted is not None:
                self._counts[name] = counted


def _counted(view: Any, sources: Any, writers: Any) -> Counted | None:
    """Return what three answers say together, ``None`` where the queue was deleted meanwhile."""
    if not isinstance(view, QueueView) or view.counts is None:
        return None
    return Counted(
        counts=view.counts,
        claims=claim_counts(sources) if isinstance(sources, list) else None,
        staged=sum(writer.staged for writer in writers) if isinstance(writers, list) and writers else None,
    )


def claim_counts(sources: Sequence[SourceView]) -> ClaimCounts | None:
    """Return what ``sources`` hold together, ``None`` without any."""
    if not sources:
        return None
    held = [claim for source in sources for claim in source.claims if claim.state in _HELD]
    return ClaimCounts(
        claims=len(held),
        messages=sum(claim.messages for claim in held),
        oldest_bound_at_ms=min((claim.bound_at_ms for claim in held), default=None),
    )
