"""What was, for pages of the console: how long receipts were held, and what is recommended, read from Parquet files.

Files are read in a thread, one queue at a time, and what was read is good for a while; so whoever reloads a page a
hundred times reads once. pyarrow, which reads them, is an extra.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from veilmq.console.advice import Advice
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.events import ProcessingTimes

T = TypeVar("T")

KEPT_MS = 30 * SECOND_MS
_KEPT_MAX = 256

NO_LOG = (
    "The event log is not exported, so nobody knows how long messages were held. Start the server with --events-to and "
    "a folder."
)
ELSEWHERE = "The event log is exported to {place}, which this page does not read; it reads folders of this machine."
NO_ARROW = "Reading the event log needs pyarrow, which this install does not have: pip install 'veilmq[arrow]'."
NO_FOLDER = (
    "Nothing is recommended here. Run veilmq pipeline tune, and start the server with --recommendations and the folder "
    "recommendations of its state."
)
NO_ADVICE = "There is no recommendation for this queue in {folder}: veilmq pipeline tune has not seen it yet."


class PastReceipts:
    """Reads for one server. ``events_to`` and ``recommendations`` are its settings."""

    def __init__(self, *, events_to: str | None, recommendations: Path | None, clock: Clock) -> None:
        """Read nothing yet."""
        self._events_to = events_to
        self._recommendations = recommendations
        self._clock = clock
        self._reading = asyncio.Lock()
        self._kept: dict[tuple[str, str], tuple[int, Any]] = {}

    async def held_times(self, queue: str) -> ProcessingTimes | str:
        """Return how long receipts of ``queue`` (a full name) were held, or a sentence that says why nobody knows."""
        if self._events_to is None:
            return NO_LOG
        place = self._events_to.removeprefix("file://")
        if "://" in place:
            return ELSEWHERE.format(place=place.partition("://")[0] + "://…")
        return await self._read("held", queue, lambda files: files.held.read_processing_times(Path(place), queue))

    async def advice(self, queue: str) -> Advice | str:
        """Return what is recommended for ``queue``, or a sentence that says why nothing is."""
        folder = self._recommendations
        if folder is None:
            return NO_FOLDER
        found = await self._read("advice", queue, lambda files: files.advice.read(folder, queue))
        return NO_ADVICE.format(folder=folder) if found is None else found

    async def _read(self, kind: str, queue: str, read: "Callable[[_Files], T]") -> T | str:
        async with self._reading:
            now_ms = self._clock.now_ms()
            read_at_ms, kept = self._kept.get((kind, queue), (now_ms - KEPT_MS, None))
            if now_ms - read_at_ms < KEPT_MS:
                return cast(T, kept)
            try:
                files = _Files()
            except ModuleNotFoundError:
                return NO_ARROW
            fresh = await asyncio.to_thread(read, files)
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[kind, queue] = now_ms, fresh
            return fresh


class _Files:
    """What reads files; raises ``ModuleNotFoundError`` without the extra."""

    def __init__(self) -> None:
        self.held: Any = import_module("veilmq.events.parquet")
        self.advice: Any = import_module("veilmq.server.recommendation_files")
