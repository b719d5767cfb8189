"""What was recommended for a queue's timeout, and what is known of how long its messages are held.

Both are files that others write: the server exports the event log, ``veilmq pipeline tune`` recommends. The server
reads them for the console, as ``Past``.
"""

from typing import Protocol

import msgspec

from veilmq.events import ProcessingTimes


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A recommendation for a queue as a whole (``pipeline.tune.Recommendation`` has the same names).

    ``current_s`` is the timeout that it was made for, ``recommended_s`` ``None`` where nothing can be said, and
    ``explore_s`` then a longer one that would show more.
    """

    queue: str
    current_s: int
    recommended_s: int | None
    explore_s: int | None
    change: bool
    confidence: str
    reason: str


class Past(Protocol):
    """Looks into what was."""

    async def held_times(self, queue: str) -> ProcessingTimes | str:
        """Return how long receipts of ``queue`` (a full name) were held, or a sentence that says why nobody knows."""

    async def advice(self, queue: str) -> Advice | str:
        """Return what is recommended for ``queue``, or a sentence that says why nothing is."""
