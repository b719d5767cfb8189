"""The store on SQLite: commands in, one transaction and one sync a batch, then the answers.

Commands that arrive while a batch is being made durable form the next one; there is no timer and no knob. A batch is
applied only after the one before it is durable, so every answer describes a state that is on disk.

When a commit fails in a way that leaves open what is on disk (a failed sync above all), all pending commands get
``OutcomeUnknown`` and the store stops for good; ``on_fatal`` ends the process, and the next start recovers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import apsw

from veilmq.core.commands import Command, ListQueues
from veilmq.core.errors import OutcomeUnknown, ShuttingDown, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Done, Wake
from veilmq.store.clock import StoreClock, stopwatch_s
from veilmq.store.cold import STEPS, Scheduler, Sweep
from veilmq.store.port import FAILED, FULL, NOTHING_HELD_BACK, Figure, Survey, execute, gauge
from veilmq.store.queue_commands import SurveyQueues
from veilmq.store.sqlite.batch import Batch, Entry
from veilmq.store.sqlite.committer import Committer, ThreadCommitter
from veilmq.store.sqlite.database import LONG_LOG, Database, ran_out_of_room
from veilmq.store.sqlite.folder import FolderLock, kept_file, open_connection
from veilmq.store.sqlite.options import EngineOptions
from veilmq.store.sqlite.session import Session
from veilmq.store.sqlite.space import Space

log = logging.getLogger(__name__)

_MARKED_MS = SECOND_MS  # from one mark of the clock to the next
_DELIVERY_S_MAX = 0.003  # in one turn of the loop: encoding takes some 3 ms a megabyte
_DOUBT_MS = 10 * SECOND_MS  # from one look whether a doubted clock is synchronised to the next

_HELD_BACK = (
    "is held back: since the last run the wall clock advanced by more than the store trusts it with, as the kernel did "
    "not call it synchronised. Leases, delays and retention end that much later. "
)
_UNTIL = {
    True: "It is applied once the kernel calls its clock synchronised, or at once by `veilmq clock trust`.",
    False: "If the clock is right, `veilmq clock trust` applies it.",
}


class SqliteStore:
    """``store.port.Store`` on one machine. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        connection: apsw.Connection,
        folder: Path | None,
        lock: FolderLock | None,
        clock: StoreClock,
        options: EngineOptions,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Use ``open``."""
        self._folder = folder
        self._lock = lock
        self.clock = clock
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Entry] = deque()
        self._refusal: VeilmqError | None = None
        self._running = False  # a batch is arranged, or being made durable
        self._closed = False
        self._rest = asyncio.Event()
        self._mark_due_ms = 0
        self._mark_alone = False  # the next mark is written whether or not its batch changes anything
        self._database = Database(connection, options=options)
        space = self._space = Space(folder=folder, database=self._database, options=options)
        self._session = Session(connection, options=options, space=space)
        self.token_key = self._session.kept_key("token_key")
        ((floor_ms, _, mark),) = self._session.rows("progress")
        clock.resume(mark, floor_ms=floor_ms)
        self._batch = Batch(self._session, self._database)
        space.look()
        kind = Committer if folder is None else ThreadCommitter
        self._committer = kind(database=self._database, space=space, committed=self._committed)
        steps: tuple[type[Command], ...] = (Sweep, *STEPS)
        for step in steps:
            self._session.schedulers[step] = Scheduler(step=partial(self._do_slice, step()), clock=clock)
            self._session.schedulers[step].look()
        self._doubting = Scheduler(step=self._settle_clock, clock=clock)
        if clock.doubt is not None:
            self._doubting.look(_DOUBT_MS)
        for warning in self.warnings():
            log.warning("%s", warning)

    @classmethod
    def open(
        cls,
        folder: Path | None,
        *,
        clock: StoreClock,
        options: EngineOptions | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> Self:
        """Open the data folder, made if need be; ``None`` keeps everything in memory and nothing beyond ``close``.

        ``on_fatal`` is called when the store has failed and the process should end. Raises ``FolderError`` for a
        folder that is in use, not veilmq's, of a newer format, or not writable.
        """
        options = options or EngineOptions()
        lock = None if folder is None else FolderLock(folder)
        try:
            return cls(
                connection=open_connection(folder, options),
                folder=folder,
                lock=lock,
                clock=clock,
                options=options,
                on_fatal=on_fatal or _ignore,
            )
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    # The port.

    def submit(self, command: Command, done: Done) -> None:
        """Take ``command``; call ``done`` with its result or error once that is durable."""
        if self._batch.applying:
            self._batch.insert((command, done))
        elif self._refusal is not None:
            self._loop.call_soon(done, self._refusal)
        else:
            self._pending.append((command, done))
            if not self._running:
                self._arrange()

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun; its client has gone."""
        for entry in self._pending:
            if entry[1] == done:
                self._pending.remove(entry)
                return

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` whenever ``queue`` may have a message; see ``core.ports.Engine``."""
        self._session.wakes[queue] = wake
        found = self._session.queues.get(queue)
        if found is not None:
            found.wake = wake

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""
        self._session.wakes.pop(queue, None)
        found = self._session.queues.get(queue)
        if found is not None:
            found.wake = None

    async def close(self) -> None:
        """Finish what was submitted, refuse what comes, and let go of the folder."""
        self._stop_background()
        self._refusal = self._refusal or ShuttingDown()
        while self._running:
            self._rest.clear()
            await self._rest.wait()
        if not self._closed:
            self._closed = True
            self._committer.close()
            try:
                self._mark_end()
                self._database.close()
            finally:
                if self._lock is not None:
                    self._lock.release()

    def _stop_background(self) -> None:
        self._doubting.stop()
        for each in self._session.schedulers.values():
            each.stop()

    def _do_slice(self, step: Command, done: Done) -> None:
        """Have a slice done: it counts until the next one from its batch on, and is answered when that is durable."""
        begun_ms = self.clock.now_ms()

        def answered(due: Any) -> None:
            done(max(0, begun_ms + due - self.clock.now_ms()) if isinstance(due, int) else due)

        self.submit(step, answered)

    def _mark_end(self) -> None:
        """Leave the clock's mark, so that the next start goes on from here; a full disk has an earlier one."""
        if not self.has_failed:
            with suppress(apsw.Error):
                self._session.run("put_mark", self.clock.mark())

    # What an operator asks.

    async def survey(self, names_max: int) -> Survey:
        """Return the first ``names_max`` queues by name, and how many there are."""
        survey: Survey = await execute(self, SurveyQueues(names_max=names_max))
        return survey

    @property
    def kept(self) -> str:
        """Where messages are kept; see ``store.port.Store``."""
        return "in memory only, gone when the server stops" if self._folder is None else f"in {self._folder.resolve()}"

    async def obstacles(self) -> list[str]:
        """Return why no requests should be sent here."""
        return [text for text, holds in {FAILED: self.has_failed, FULL: self.is_short_of_space}.items() if holds]

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        long_log = [LONG_LOG] if self._database.log_is_long else []
        held_ms, doubt = self.clock.held_back_ms(), self.clock.doubt
        if doubt is None or not held_ms:
            return long_log
        return [f"{_span(held_ms)} {_HELD_BACK}{_UNTIL[doubt.synchronised]}", *long_log]

    async def trust_clock(self) -> str:
        """Take the present time for right; see ``store.port.Store``."""
        if self.clock.doubt is None:
            return NOTHING_HELD_BACK
        applied_ms = self.clock.trust()
        self._go_on(applied_ms)
        await self.answered()
        return f"{_span(applied_ms)} that was held back is applied." if applied_ms else NOTHING_HELD_BACK

    def figures(self) -> list[Figure]:
        """Return what there is to tell beside the counts of queues."""
        held_s = self.clock.held_back_ms() / SECOND_MS
        return [
            gauge("store_time_held_back_seconds", "Time that is held back, as the clock is doubted.", held_s),
            gauge("store_wal_bytes", "Bytes in the write-ahead log.", self._database.log_bytes),
        ]

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what the data folder keeps in the file ``name``; raises ``FolderError``."""
        return make() if self._folder is None else kept_file(self._folder / name, make)

    async def answered(self) -> None:
        """Return when what was submitted so far has been answered, which is done in order."""
        await execute(self, ListQueues(account=""))

    @property
    def is_short_of_space(self) -> bool:
        """Whether sends are refused because the disk is nearly full."""
        return self._space.is_short

    @property
    def has_failed(self) -> bool:
        """Whether the store failed and nothing more is accepted."""
        return isinstance(self._refusal, OutcomeUnknown)

    # The clock.

    def _settle_clock(self, done: Done) -> None:
        """Apply what a doubted clock holds back if it is synchronised now and that is enough; else look again."""
        doubt = self.clock.doubt
        if doubt is not None:
            applied_ms = self.clock.settle()
            if self.clock.doubt is None:
                self._go_on(applied_ms)
        done(_DOUBT_MS if self.clock.doubt is not None and self.clock.doubt.synchronised else None)

    def _go_on(self, applied_ms: int) -> None:
        """Have a clock that is not doubted any more marked, and see what has become due by what was held back."""
        if applied_ms:
            log.warning("the clock is trusted: %s that was held back is applied", _span(applied_ms))
        self._mark_due_ms, self._mark_alone = 0, True
        self.submit(ListQueues(account=""), _nothing)
        self._session.schedulers[Sweep].look()

    # Batches.

    def _arrange(self) -> None:
        self._running = True
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        now_ms = self.clock.now_ms()
        mark, alone = None, self._mark_alone
        if now_ms >= self._mark_due_ms:
            mark = self.clock.mark()
            self._mark_due_ms, self._mark_alone = now_ms + _MARKED_MS, False
        try:
            changed = self._batch.run(self._pending, now_ms, self.clock.ahead_ms(now_ms), mark, alone=alone)
        except Exception as error:  # noqa: BLE001 - not even the way back worked
            self._fail(error)
            return
        if changed:
            self._committer.commit()
        else:
            self._deliver()

    def _committed(self, error: BaseException | None) -> None:
        if error is None:
            self._session.accepted.keep()
            self._deliver()
        elif isinstance(error, Exception) and ran_out_of_room(error):
            self._try_again()
        else:
            self._fail(error)

    def _try_again(self) -> None:
        try:
            self._batch.roll_back(self._pending, is_full=True)
        except Exception as worse:  # noqa: BLE001 - not even the way back worked
            self._fail(worse)
        else:
            self._arrange()

    def _deliver(self) -> None:
        if not self._batch.deliver(stopwatch_s() + _DELIVERY_S_MAX):
            self._loop.call_soon(self._deliver)
            return
        self._running = False
        if self._pending:
            self._arrange()
        else:
            self._rest.set()

    def _fail(self, error: BaseException) -> None:
        log.critical("the store failed; what was not acknowledged may or may not be kept", exc_info=error)
        self._refusal = OutcomeUnknown()
        self._stop_background()
        self._batch.fail(self._refusal)
        while self._pending:
            self._loop.call_soon(self._pending.popleft()[1], self._refusal)
        self._running = False
        self._rest.set()
        self._on_fatal(error)


def _span(ms: int) -> str:
    return f"{timedelta(seconds=ms // SECOND_MS)} h"


def _nothing(result: object) -> None:
    """Do nothing: what counts is that the batch is durable."""


def _ignore(error: BaseException) -> None:
    """Leave it at the log."""
