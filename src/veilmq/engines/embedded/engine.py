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
from pathlib import Path
from typing import Self

import apsw

from veilmq.core.commands import Command, ListQueues
from veilmq.core.errors import OutcomeUnknown, ShuttingDown, VeilmqError
from veilmq.core.ports import Clock, Done, Wake
from veilmq.engines.embedded.batch import Batch, Entry
from veilmq.engines.embedded.claims import ClaimStep
from veilmq.engines.embedded.committer import Committer, ThreadCommitter
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
from veilmq.engines.figures import Figure
from veilmq.engines.store import FAILED, FULL, NOTHING_HELD_BACK, Survey

log = logging.getLogger(__name__)

_LATE_START_MS = 60_000


class EmbeddedEngine:
    """``engines.store.Store`` on one machine. Every method belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        journal: Journal,
        folder: Path | None,
        lock: FolderLock | None,
        clock: Clock,
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
        self.behind_ms = _catch_up(clock, journal)
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

    @classmethod
    def open(
        cls,
        folder: Path | None,
        *,
        clock: Clock,
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
                self._journal.close()
            finally:
                self._release()

    def _stop_helpers(self) -> None:
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
        return []

    async def trust_clock(self) -> str:
        """Take the present time for right; see ``engines.store.Store``."""
        return NOTHING_HELD_BACK

    def figures(self) -> list[Figure]:
        """Return nothing: what there is to tell is in the counts of queues."""
        return []

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

    @property
    def started_late(self) -> bool:
        """Whether at the start the clock was more than a minute behind the last instant of the store."""
        return self.behind_ms > _LATE_START_MS

    # Batches.

    def _arrange(self) -> None:
        self._running = True
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        try:
            changed = self._batch.run(self._pending, self.clock.now_ms())
        except Exception as error:  # noqa: BLE001 - not even the way back worked
            self._fail(error)
            return
        if changed:
            self._committer.commit()
        else:
            self._deliver()

    def _committed(self, error: BaseException | None) -> None:
        if error is None:
            self._deliver()
            self._mind_the_janitor()
            self._look()
        elif isinstance(error, apsw.FullError):
            self._try_again(error)
        else:
            self._fail(error)

    def _try_again(self, error: apsw.FullError) -> None:
        try:
            self._pending.extendleft(reversed(self._batch.roll_back(error)))
        except Exception as worse:  # noqa: BLE001 - not even the way back worked
            self._fail(worse)
        else:
            self._arrange()

    def _deliver(self) -> None:
        self._batch.deliver()
        self._running = False
        if self._pending:
            self._arrange()
        else:
            self._rest.set()

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


def _catch_up(clock: Clock, journal: Journal) -> int:
    last_ms = journal.last_instant_ms()
    behind_ms = max(0, last_ms - clock.now_ms())
    if behind_ms > _LATE_START_MS:
        log.warning("the clock is %d s behind the store's last instant: time goes on from there", behind_ms // 1_000)
    clock.catch_up(last_ms)
    return behind_ms


def _ignore(error: BaseException) -> None:
    """Leave it at the log."""
