"""The committer: a thread that makes batches durable while the event loop goes on.

COMMIT blocks for the length of a sync and needs no Python, so it runs here with the GIL released once; the loop parses
the requests of the next batch meanwhile. One batch is under way at a time. A store in memory has nothing to wait for
and commits in place.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.space import Space

Committed = Callable[[BaseException | None], object]
"""Called in the event loop's thread with what went wrong, ``None`` when the batch is durable."""


class Committer:
    """Commits in place."""

    def __init__(self, *, journal: Journal, space: Space, committed: Committed) -> None:
        """``committed`` is called once for each ``commit``."""
        self._journal = journal
        self._space = space
        self._committed = committed

    def commit(self) -> None:
        """Make the batch that the journal has finished durable."""
        self._committed(self._try())

    def close(self) -> None:
        """End; nothing is under way."""

    def _try(self) -> BaseException | None:
        try:
            self._journal.commit()
            self._space.look()
        except BaseException as error:  # noqa: BLE001 - the engine decides what it means, in its own thread
            return error
        return None


class ThreadCommitter(Committer):
    """Commits in a thread of its own."""

    def __init__(self, *, journal: Journal, space: Space, committed: Committed) -> None:
        """Start the thread; called in the event loop."""
        super().__init__(journal=journal, space=space, committed=committed)
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[bool] = SimpleQueue()
        self._thread = Thread(target=self._run, name="veilmq-committer", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Have the batch made durable; ``committed`` follows."""
        self._work.put(True)

    def close(self) -> None:
        """End the thread."""
        self._work.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._work.get():
            self._loop.call_soon_threadsafe(self._committed, self._try())
