"""The embedded engine: commands in, one transaction and one sync a batch, then the answers.

Commands that arrive while a batch is being made durable form the next one; there is no timer and no knob. Nobody hears
an answer before the sync of its batch has returned, and a batch is applied only after the one before it is durable: so
every answer describes a state that is on disk.

When a commit fails in a way that leaves open what is on disk (a failed sync above all), all that wait get
``OutcomeUnknown`` and the engine stops for good; ``on_fatal`` ends the process, and the next start recovers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Self

import apsw

from veilmq.core.commands import Command, ListQueues
from veilmq.core.errors import OutcomeUnknown, ShuttingDown, VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Done, Timer, Wake
from veilmq.engines.clock import StoreClock, stopwatch_s
from veilmq.engines.embedded.batch import Batch, Entry
from veilmq.engines.embedded.claims import ClaimStep
from veilmq.engines.embedded.committer import Committer, ThreadCommitter
from veilmq.engines.embedded.database import LONG_LOG, ran_out_of_room
from veilmq.engines.embedded.folder import FolderLock, open_journal
from veilmq.engines.embedded.janitor import Janitor
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.kept_file import kept_file
from veilmq.engines.embedded.keys import TOKEN_KEY, kept_key
from veilmq.engines.embedded.machine import Machine
from veilmq.engines.embedded.mover import Mover
from veilmq.engines.embedded.moves import MoveStep
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.publications import PublicationStep
from veilmq.engines.embedded.space import Space
from veilmq.engines.execute import execute
from veilmq.engines.figures import Figure, gauge
from veilmq.engines.store import FAILED, FULL, NOTHING_HELD_BACK, Survey

log = logging.getLogger(__name__)

_MARKED_MS = SECOND_MS  # from one mark of the clock to the next
_DELIVERY_S_MAX = 0.003  # in one turn of the loop: encoding takes some 3 ms a megabyte
_DOUBT_MS = 10 * SECOND_MS  # from one look whether a doubted clock is synchronised to the next


class EmbeddedEngine:
    """``engines.store.Store`` on one machine. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        journal: Journal,
        folder: Path | None,
        lock: FolderLock | None,
        clock: StoreClock,
        options: EngineOptions,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Use ``open``."""
        self._journal = journal
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
        clock.resume(journal.mark(), floor_ms=journal.last_instant_ms())
        journal.put_mark(clock.mark())
        self._mark_due_ms = 0
        self._mark_alone = False  # the next mark is written whether or not its batch changes anything
        self._doubting: Timer | None = None
        self.token_key = kept_key(journal, TOKEN_KEY)
        self._space = Space(folder=folder, journal=journal, options=options)
        self._machine = Machine(journal=journal, options=options, space=self._space)
        self._batch = Batch(machine=self._machine, journal=journal)
        if journal.finish(clock.now_ms()):
            journal.commit()
        self._space.look()
        kind = Committer if folder is None else ThreadCommitter
        self._committer = kind(journal=journal, space=self._space, committed=self._committed)
        self._janitor = Janitor(submit=self.submit, clock=clock)
        self._janitor.wake()
        self._mover = Mover(step=MoveStep(), submit=self.submit, clock=clock)
        self._publisher = Mover(step=PublicationStep(), submit=self.submit, clock=clock)
        self._claimant = Mover(step=ClaimStep(), submit=self.submit, clock=clock)
        self._look()
        for warning in self.warnings():
            log.warning("%s", warning)
        self._doubt()

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
                journal=open_journal(folder, options),
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
        self._machine.watch(queue, wake)

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""
        self._machine.unwatch(queue)

    async def close(self) -> None:
        """Finish what was submitted, refuse what comes, and let go of the folder."""
        self._stop_helpers()
        self._refusal = self._refusal or ShuttingDown()
        while self._running:
            self._rest.clear()
            await self._rest.wait()
        if not self._closed:
            self._closed = True
            self._committer.close()
            try:
                self._mark_end()
                self._journal.close()
            finally:
                self._release()

    def _mark_end(self) -> None:
        """Leave the clock's mark, so that the next start goes on from here; a full disk has an earlier one."""
        if not self.has_failed:
            with suppress(apsw.Error):
                self._journal.put_mark(self.clock.mark(), alone=True)
                self._journal.finish(self.clock.now_ms())
                self._journal.commit()

    def _stop_helpers(self) -> None:
        if self._doubting is not None:
            self._doubting.cancel()
        self._janitor.stop()
        self._mover.stop()
        self._publisher.stop()
        self._claimant.stop()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    # What an operator asks.

    def queues(self) -> list[str]:
        """Return the full names of all queues, in order."""
        return self._machine.catalog.names()

    async def survey(self, names_max: int) -> Survey:
        """Return the first ``names_max`` queues by name, and how many there are."""
        names = self.queues()
        return Survey(names[:names_max], len(names))

    @property
    def kept(self) -> str:
        """Where messages are kept; see ``engines.store.Store``."""
        return "in memory only, gone when the server stops" if self._folder is None else f"in {self._folder.resolve()}"

    async def obstacles(self) -> list[str]:
        """Return why no requests should be sent here."""
        return [text for text, holds in {FAILED: self.has_failed, FULL: self.is_short_of_space}.items() if holds]

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        long_log = [LONG_LOG] if self._journal.log_is_long else []
        held_ms, doubt = self.clock.held_back_ms(), self.clock.doubt
        if doubt is None or not held_ms:
            return long_log
        return [f"{_span(held_ms)} {_HELD_BACK}{_UNTIL[doubt.synchronised]}", *long_log]

    async def trust_clock(self) -> str:
        """Take the present time for right; see ``engines.store.Store``."""
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
            gauge("store_wal_bytes", "Bytes in the write-ahead log.", self._journal.log_bytes),
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

    def _doubt(self) -> None:
        """Look from time to time whether a clock that is doubted is synchronised now, if that is enough."""
        doubt = self.clock.doubt
        if doubt is not None and doubt.synchronised:
            self._doubting = self.clock.call_at(self.clock.now_ms() + _DOUBT_MS, self._doubt_again)

    def _doubt_again(self) -> None:
        self._doubting = None
        applied_ms = self.clock.settle()
        if self.clock.doubt is None:
            self._go_on(applied_ms)
        self._doubt()

    def _go_on(self, applied_ms: int) -> None:
        """Have a clock that is not doubted any more marked, and see what has become due by what was held back."""
        if applied_ms:
            log.warning("the clock is trusted: %s that was held back is applied", _span(applied_ms))
        self._mark_due_ms, self._mark_alone = 0, True
        self.submit(ListQueues(account=""), _nothing)
        self._janitor.wake()

    # Batches.

    def _arrange(self) -> None:
        self._running = True
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        now_ms = self.clock.now_ms()
        if now_ms >= self._mark_due_ms:
            self._journal.put_mark(self.clock.mark(), alone=self._mark_alone)
            self._mark_due_ms, self._mark_alone = now_ms + _MARKED_MS, False
        try:
            changed = self._batch.run(self._pending, now_ms, self.clock.ahead_ms(now_ms))
        except Exception as error:  # noqa: BLE001 - not even the way back worked
            self._fail(error)
            return
        if changed:
            self._committer.commit()
        else:
            self._deliver(changed=False)

    def _committed(self, error: BaseException | None) -> None:
        if error is None:
            self._deliver(changed=True)
        elif isinstance(error, Exception) and ran_out_of_room(error):
            self._try_again(error)
        else:
            self._fail(error)

    def _try_again(self, error: Exception) -> None:
        try:
            self._batch.roll_back(error)
        except Exception as worse:  # noqa: BLE001 - not even the way back worked
            self._fail(worse)
        else:
            self._arrange()

    def _deliver(self, *, changed: bool) -> None:
        if not self._batch.deliver(stopwatch_s() + _DELIVERY_S_MAX):
            self._loop.call_soon(partial(self._deliver, changed=changed))
            return
        self._running = False
        if self._pending:
            self._arrange()
        else:
            self._rest.set()
        if changed:
            self._mind_the_janitor()
            self._look()

    def _look(self) -> None:
        self._mover.look(self._machine.moves.due_ms)
        self._publisher.look(self._machine.publications.due_ms)
        self._claimant.look(self._machine.claims.due_ms)

    def _mind_the_janitor(self) -> None:
        if self._machine.catalog.unsettled:
            self._janitor.wake()
        elif self._janitor.idle:
            self._janitor.look_later(self.clock.now_ms())

    def _fail(self, error: BaseException) -> None:
        log.critical("the store failed; what was not acknowledged may or may not be kept", exc_info=error)
        self._refusal = OutcomeUnknown()
        self._stop_helpers()
        self._batch.fail(self._refusal)
        while self._pending:
            self._loop.call_soon(self._pending.popleft()[1], self._refusal)
        self._running = False
        self._rest.set()
        self._on_fatal(error)


_HELD_BACK = (
    "is held back: since the last run the wall clock advanced by more than the store trusts it with, as the kernel did "
    "not call it synchronised. Leases, delays and retention end that much later. "
)
_UNTIL = {
    True: "It is applied once the kernel calls its clock synchronised, or at once by `veilmq clock trust`.",
    False: "If the clock is right, `veilmq clock trust` applies it.",
}


def _span(ms: int) -> str:
    return f"{timedelta(seconds=ms // SECOND_MS)} h"


def _nothing(result: object) -> None:
    """Do nothing: what counts is that the batch is durable."""


def _ignore(error: BaseException) -> None:
    """Leave it at the log."""
