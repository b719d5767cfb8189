"""The committer: makes batches durable, in place where that is quick and in a thread where it is not.

COMMIT blocks for the length of a sync and needs no Python, so in a thread it costs one release of the GIL and the loop
goes on parsing. But handing over costs too (two switches of threads, and the loop has the GIL first): where syncs are
quick, a batch in place was measured at 10 % more requests a second. So the usual length of a sync decides, batch by
batch, and a commit that moves the log always has the thread. Only commits in place tell that length: in the thread the
wait for the GIL would count too. So while the thread has the commits, a few are made in place to look again: a slow
disk keeps the loop for one sync in many. A loop of many short turns starves the thread of the GIL: it releases the GIL
and takes it again before the thread wakes up, for up to 100 ms. So the loop sleeps for a moment while a commit takes
long. One batch is under way at a time. A store in memory has nothing to wait for and always commits in place.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

from veilmq.store.clock import stopwatch_s
from veilmq.store.sqlite.database import Database
from veilmq.store.sqlite.space import Space

_QUICK_S = 0.001
_SYNCS_REMEMBERED = 8
_COMMITS_PER_LOOK = 64
_COMMITS_PER_QUICK = 16  # so many more for each time that a look took as long as a quick sync may
_GIVES_AFTER_S = 0.005  # the loop gives the thread the GIL, each time that a commit has taken so much longer
_GIVEN_S_MAX = 0.000_5

Committed = Callable[[BaseException | None], object]
"""Called in the event loop's thread with what went wrong, ``None`` when the batch is durable."""


class Committer:
    """Commits in place."""

    def __init__(self, *, database: Database, space: Space, committed: Committed) -> None:
        """``committed`` is called once for each ``commit``."""
        self._database = database
        self._space = space
        self._committed = committed

    def commit(self) -> None:
        """Make the batch that the journal has finished durable."""
        self._committed(self._try())

    def close(self) -> None:
        """End; nothing is under way."""

    def _try(self) -> BaseException | None:
        try:
            self._database.commit()
            self._space.look()
        except BaseException as error:  # noqa: BLE001 - the engine decides what it means, in its own thread
            return error
        return None


class ThreadCommitter(Committer):
    """Commits in a thread of its own, but for syncs that are usually quicker than the hand-over is worth."""

    def __init__(
        self, *, database: Database, space: Space, committed: Committed, stopwatch: Callable[[], float] = stopwatch_s
    ) -> None:
        """Start the thread; called in the event loop. ``stopwatch`` gives seconds."""
        super().__init__(database=database, space=space, committed=committed)
        self._loop = asyncio.get_running_loop()
        self._stopwatch = stopwatch
        self._usual_s = 0.0
        self._commits_to_look = 0
        self._work: SimpleQueue[bool] = SimpleQueue()
        self._ended = Event()  # the thread needs the GIL no more
        self._giving: asyncio.TimerHandle | None = None
        self._thread = Thread(target=self._run, name="veilmq-committer", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Have the batch made durable; ``committed`` follows, before or after this returns."""
        if self._database.moves_log:
            self._hand_over()
        elif self._usual_s < _QUICK_S or self._commits_to_look <= 0:
            self._committed(self._timed_try())
        else:
            self._commits_to_look -= 1
            self._hand_over()

    def close(self) -> None:
        """End the thread."""
        self._work.put(False)
        self._thread.join()

    def _hand_over(self) -> None:
        self._ended.clear()
        self._work.put(True)
        self._giving = self._loop.call_later(_GIVES_AFTER_S, self._give_gil)

    def _give_gil(self) -> None:
        """Let the thread have the GIL: a loop of many short turns takes it again before a waiting thread wakes up."""
        if not self._ended.wait(_GIVEN_S_MAX):
            self._giving = self._loop.call_later(_GIVES_AFTER_S, self._give_gil)

    def _run(self) -> None:
        while self._work.get():
            error = self._try()
            self._ended.set()
            self._loop.call_soon_threadsafe(self._return, error)

    def _return(self, error: BaseException | None) -> None:
        if self._giving is not None:
            self._giving.cancel()
        self._committed(error)

    def _timed_try(self) -> BaseException | None:
        started_s = self._stopwatch()
        error = self._try()
        took_s = self._stopwatch() - started_s
        self._usual_s += (took_s - self._usual_s) / _SYNCS_REMEMBERED
        self._commits_to_look = _COMMITS_PER_LOOK + int(_COMMITS_PER_QUICK * took_s / _QUICK_S)
        return error
