"""The SQLite store: it forms batches of commands, commits each with one sync, and then delivers the results.

Commands that arrive while a batch is committed form the next one. A batch is applied only after the previous one is
durable, so every result describes a state that is on disk. It expects as many commands as the previous one had and as
arrived meanwhile, and waits a moment for them: clients send their next command soon after a reply. If the first ones
started a batch, clients would split into groups that alternate, each with its own sync.

If a failed commit leaves the state on disk unknown (such as a failed sync), all pending commands fail with
``OutcomeUnknown`` and the store stops; ``on_fatal`` ends the process, and the next start recovers.

The usual duration of a sync decides where commits run. In a thread, COMMIT releases the GIL and the loop continues to
parse, at the cost of two thread switches: with fast syncs, committing in place gave 10 % more requests per second. A
commit that checkpoints the log always uses the thread. Only commits in place measure the duration (in the thread it
would include the wait for the GIL), so a few are always made there: with a slow disk, one sync in many blocks the loop.
A loop with many short callbacks reacquires the GIL before the thread wakes up, for up to 100 ms; therefore the loop
sleeps briefly while a commit takes long.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import apsw

from veilmq.core.commands import Command, Done, ListQueues, Wake
from veilmq.core.errors import OutcomeUnknown, ShuttingDown, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.store.clock import SystemClock, stopwatch_s
from veilmq.store.cold import STEPS, Scheduler, Sweep
from veilmq.store.port import FAILED, FULL, NOTHING_HELD_BACK, Metric, Store, execute, gauge
from veilmq.store.sqlite import database
from veilmq.store.sqlite.batch import Batch, Entry
from veilmq.store.sqlite.database import Database, EngineOptions
from veilmq.store.sqlite.session import Session

log = logging.getLogger(__name__)

_MARK_INTERVAL_MS = SECOND_MS  # between marks of the clock
_DELIVERY_S_MAX = 0.003  # per iteration of the loop: encoding takes about 3 ms per megabyte

_SYNCS_AVERAGED = 8
_COMMITS_PER_TRIAL = 64
_COMMITS_PER_SYNC_S = 16_000  # more commits between trials, per second that the last trial took
_YIELD_INTERVAL_S = 0.005  # how often the loop yields the GIL to a commit in the thread
_YIELD_S_MAX = 0.000_5
_WAIT_PER_SYNC = 0.25  # for expected commands
_WAIT_S_MAX = 0.000_05
_WAITS_S_MAX = 0.005  # beside clients whose requests take the loop long, each iteration brings a few commands

_HELD_BACK = (
    "is held back: since the last run the wall clock advanced by more than an hour, and the kernel did not report it "
    "as synchronised. Leases, delays and retention end that much later. "
)
_UNTIL = {
    True: "It is applied when the kernel reports its clock as synchronised, or at once by `veilmq clock trust`.",
    False: "If the clock is right, `veilmq clock trust` applies it.",
}


class Committer:
    """Make batches durable, one at a time: in place, or in a thread if syncs take longer than a thread switch."""

    def __init__(self, database: Database, committed: Callable[[BaseException | None], object]) -> None:
        """``committed`` is called in the loop once per ``commit``, with the error or ``None``."""
        self._database = database
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._commits_to_trial = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="veilmq-committer")  # starts with its first commit

    def commit(self) -> None:
        """Make the batch durable; ``committed`` is called before or after this returns."""
        if not self._database.checkpoint_due and (
            self._database.usual_sync_s < database.QUICK_S or self._commits_to_trial <= 0
        ):
            started_s = stopwatch_s()
            error = self._commit_now()
            took_s = stopwatch_s() - started_s
            self._database.usual_sync_s += (took_s - self._database.usual_sync_s) / _SYNCS_AVERAGED
            self._commits_to_trial = _COMMITS_PER_TRIAL + int(_COMMITS_PER_SYNC_S * took_s)
            self._committed(error)
        else:
            self._commits_to_trial -= 1
            work = self._thread.submit(self._commit_now)
            work.add_done_callback(lambda work: self._loop.call_soon_threadsafe(self._committed, work.result()))
            self._loop.call_later(_YIELD_INTERVAL_S, self._yield_gil, work)

    def close(self) -> None:
        """End the thread; no commit is in progress."""
        self._thread.shutdown()

    def _commit_now(self) -> BaseException | None:
        try:
            self._database.commit()
            self._database.check_space()
        except BaseException as error:  # noqa: BLE001 - the store handles it in its own thread
            return error
        return None

    def _yield_gil(self, work: Future[BaseException | None]) -> None:
        if not work.done() and wait([work], _YIELD_S_MAX).not_done:
            self._loop.call_later(_YIELD_INTERVAL_S, self._yield_gil, work)


class SqliteStore(Store):
    """The store on one machine. All methods must be called from the event loop's thread."""

    def __init__(
        self,
        folder: Path | None,
        *,
        clock: SystemClock,
        options: EngineOptions | None = None,
        on_fatal: Callable[[BaseException], object] | None = None,
    ) -> None:
        """Open the data folder, created if missing; ``None`` keeps everything in memory until ``close``.

        ``on_fatal`` is called when the store has failed and the process should exit. Raises ``FolderError`` if the
        folder is in use, not writable, of a newer format, or not a veilmq folder.
        """
        options = options or EngineOptions()
        folder = self._folder = folder and folder.absolute()  # the process may change its directory
        self.clock = clock
        self._on_fatal = on_fatal or _ignore
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Entry] = deque()
        self._refusal: VeilmqError | None = None
        self._running = False  # a batch is scheduled or in progress
        self._expected = 0  # commands of the next batch
        self._idle = asyncio.Event()
        self._mark_due_ms = 0
        self._mark_alone = False  # write the next mark even if its batch changes nothing
        with ExitStack() as resources, database.usable(folder):
            if folder is not None:
                resources.enter_context(database.locked(folder))
            connection = database.open_connection(folder, options)
            resources.callback(connection.close)  # checkpoints the log
            self._database = Database(connection, folder, options=options)
            self._session = Session(connection, options=options, database=self._database)
            self._token_key = self._session.secret_key("token_key")
            ((floor_ms, _, mark),) = self._session.rows("progress")
            clock.resume(mark, floor_ms=floor_ms)
            self._batch = Batch(self._session)
            self._database.check_space()
            self._committer = Committer(self._database, self._committed)
            resources.callback(self._close_committer_and_write_mark)
            self._resources = resources.pop_all()
        steps: tuple[type[Command], ...] = (Sweep, *STEPS)
        for step in steps:
            scheduler = self._session.schedulers[step] = Scheduler(step=partial(self._step, step()), clock=clock)
            scheduler.schedule()
        for warning in self.warnings():
            log.warning("%s", warning)

    # The port.

    @property
    def token_key(self) -> bytes:
        return self._token_key

    def submit(self, command: Command, done: Done) -> None:
        if self._batch.applying:
            self._batch.woken.append((command, done))
        elif self._refusal is not None:
            self._loop.call_soon(done, self._refusal)
        else:
            self._pending.append((command, done))
            if not self._running:
                self._running = True
                self._loop.call_soon(self._run)

    def withdraw(self, matches: Callable[[Done], bool]) -> list[Done]:
        withdrawn = [done for _, done in self._pending if matches(done)]
        self._pending = deque(entry for entry in self._pending if not matches(entry[1]))
        return withdrawn

    def watch(self, queue: str, wake: Wake) -> None:
        self._session.wakes[queue] = wake
        if queue in self._session.queues:
            self._session.queues[queue].wake = wake

    def unwatch(self, queue: str) -> None:
        self._session.wakes.pop(queue, None)
        if queue in self._session.queues:
            self._session.queues[queue].wake = None

    async def close(self) -> None:
        """Finish submitted commands, refuse new ones, and release the folder."""
        self._stop_background()
        self._refusal = self._refusal or ShuttingDown()
        await self.drain()
        self._resources.close()

    def _close_committer_and_write_mark(self) -> None:
        self._committer.close()
        if not self.has_failed:
            with suppress(apsw.Error):  # a full disk has an earlier mark
                self._session.run("put_mark", self.clock.mark())

    def _stop_background(self) -> None:
        for each in self._session.schedulers.values():
            each.stop()

    def _step(self, step: Command, done: Done) -> None:
        """Run a slice. Its pause counts from the start of its batch; ``done`` is called once the batch is durable."""
        begun_ms, now_ms = self.clock.now_ms(), self.clock.now_ms
        self.submit(step, lambda due: done(max(0, begun_ms + due - now_ms()) if isinstance(due, int) else due))

    # Status and operation.

    @property
    def location(self) -> str:
        return "in memory only, lost when the server stops" if self._folder is None else f"in {self._folder.resolve()}"

    async def readiness_failures(self) -> list[str]:
        return [text for text, holds in {FAILED: self.has_failed, FULL: self._database.low_disk_space}.items() if holds]

    def warnings(self) -> list[str]:
        held_ms, doubt = self.clock.held_back_ms(), self.clock.doubt
        held = [f"{_span(held_ms)} {_HELD_BACK}{_UNTIL[doubt.synchronised]}"] if doubt is not None and held_ms else []
        return held + [database.LONG_LOG] * self._database.log_is_long

    async def trust_clock(self) -> str:
        if self.clock.doubt is None:
            return NOTHING_HELD_BACK
        applied_ms = self.clock.trust()
        self._apply_clock(applied_ms)
        await execute(self, ListQueues(account=""))  # waits for what ``_apply_clock`` has submitted
        return f"{_span(applied_ms)} that was held back is applied." if applied_ms else NOTHING_HELD_BACK

    def metrics(self) -> list[Metric]:
        held_s = self.clock.held_back_ms() / SECOND_MS
        return [
            gauge("store_time_held_back_seconds", "Time that is held back, because the clock is doubted.", held_s),
            *self._database.metrics(),
        ]

    async def load_or_create(self, name: str, create: Callable[[], bytes]) -> bytes:
        """Return the content of the file ``name`` in the data folder, created if missing; raises ``FolderError``."""
        return create() if self._folder is None else database.load_or_create(self._folder / name, create)

    async def drain(self) -> None:
        while self._running:
            self._idle.clear()
            await self._idle.wait()

    @property
    def has_failed(self) -> bool:
        """Return whether the store has failed and accepts no commands."""
        return isinstance(self._refusal, OutcomeUnknown)

    # The clock.

    def _apply_clock(self, applied_ms: int) -> None:
        """Write a mark of the clock, which is trusted again, and run what the added time has made due."""
        if applied_ms:
            log.warning("the clock is trusted: %s that was held back is applied", _span(applied_ms))
        self._mark_due_ms, self._mark_alone = 0, True
        self.submit(ListQueues(account=""), _ignore)
        self._session.schedulers[Sweep].schedule()

    # Batches.

    def _run(self, seen: int = 0, until_s: float = 0, latest_s: float = 0) -> None:
        """Run a batch, or return to the loop for expected commands; ``seen`` were pending in the last iteration.

        It waits until none has arrived for a quarter of a sync, at most 50 µs, and 5 ms in all.
        """
        pending = len(self._pending)
        if pending < self._expected:
            now_s = stopwatch_s()
            latest_s = latest_s or now_s + _WAITS_S_MAX
            if pending > seen:
                until_s = now_s + min(self._database.usual_sync_s * _WAIT_PER_SYNC, _WAIT_S_MAX)
            if now_s < latest_s and (pending > seen or now_s < until_s):
                self._loop.call_soon(self._run, pending, until_s, latest_s)
                return
        self._expected = pending
        now_ms, mark = self.clock.now_ms(), None
        try:
            if now_ms >= self._mark_due_ms:
                self._database.check_files()
                applied_ms = self.clock.settle()
                if applied_ms is not None:
                    self._apply_clock(applied_ms)
                    now_ms = self.clock.now_ms()
                mark = self.clock.mark()
                self._mark_due_ms = now_ms + _MARK_INTERVAL_MS
            changed = self._batch.run(self._pending, now_ms, self.clock.ahead_ms(now_ms), mark, alone=self._mark_alone)
        except Exception as error:  # noqa: BLE001 - the rollback failed, too
            self._fail(error)
            return
        if changed:
            self._mark_alone = False
            self._committer.commit()
        else:
            if self._mark_alone:  # the batch failed
                self._mark_due_ms = 0
            self._deliver()

    def _committed(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                if not database.disk_is_full(error):
                    raise error
                self._batch.roll_back(self._pending, error)
        except BaseException as worse:  # noqa: BLE001 - the rollback may have failed, too
            self._fail(worse)
        else:
            self._deliver()

    def _deliver(self) -> None:
        if not self._batch.deliver(stopwatch_s() + _DELIVERY_S_MAX):
            self._loop.call_soon(self._deliver)
            return
        self._running = bool(self._pending)
        if self._running:
            self._expected += len(self._pending)
            self._loop.call_soon(self._run)
        else:
            self._idle.set()

    def _fail(self, error: BaseException) -> None:
        log.critical("the store failed; commands that were not acknowledged may or may not be durable", exc_info=error)
        self._refusal = OutcomeUnknown()
        self._stop_background()
        self._batch.fail(self._refusal)
        while self._pending:
            self._loop.call_soon(self._pending.popleft()[1], self._refusal)
        self._running = False
        self._idle.set()
        self._on_fatal(error)


def _span(ms: int) -> str:
    return f"{timedelta(seconds=ms // SECOND_MS)} h".replace(", ", " and ")


def _ignore(result: object) -> None:
    """Ignore the value: the caller needs no callback."""
