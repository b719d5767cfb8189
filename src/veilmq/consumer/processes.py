"""Several processes of one worker, and those that are started again when its code changes.

A process that ends by itself is started again, after a pause that doubles with each time up to half a minute, and
begins anew once one has lived for a minute. Where none has lived so long yet and one ends by an exit code, the start
has failed, and all end. A signal is passed on to each process, so that all stop in their own order. For a reload each
stops so, and is started again. The processes are in sessions of their own: a Ctrl-C at the terminal reaches them once,
from here. Their standard input is a pipe from here; when that ends, since this process was killed, they stop.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from veilmq.consumer.clock import SystemClock

_log = logging.getLogger("veilmq.consumer")

NUMBER = "VEILMQ_PROCESS"
PAUSE_S = 0.5
PAUSE_S_MAX = 30.0
LIVED_S = 60.0
"""A process that has lived for so long has started as it should."""
SIGNALLED = 128  # and the number of a signal: the exit code of a process that it has ended
_CODES: dict[int, int] = {signal.SIGTERM: 0, signal.SIGINT: 0}
"""Exit codes by signal: one that these have ended had received nothing yet, else it would have stopped in order."""


def process_number() -> int | None:
    """Return which of a supervisor's processes this is, from 0; ``None`` where there is no supervisor."""
    number = os.environ.get(NUMBER, "")
    return int(number) if number.isdecimal() else None


class Supervisor:
    """Keeps ``count`` processes of one command running, until SIGTERM or SIGINT."""

    def __init__(self, command: Sequence[str], *, count: int, reload: Path | None = None) -> None:
        """With ``reload`` they are started again when a Python file in that folder changes."""
        self._command = command
        self._count = count
        self._reload = reload
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stop = asyncio.Event()
        self._woken = asyncio.Event()
        self._ending: set[int] = set()
        self._lived = False
        self._codes: list[int] = []
        self._clock = SystemClock()

    def run(self) -> int:
        """Return the exit code when all have ended: that of the first one that ended by another than 0."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)
        async with asyncio.TaskGroup() as tasks:
            if self._reload is not None:
                tasks.create_task(self._watch(self._reload))
            for process in range(self._count):
                tasks.create_task(self._keep(process))
        return next((code for code in self._codes if code), 0)

    def _signal(self, number: signal.Signals, *, stop: bool = True) -> None:
        """Have all processes end, for good or for a start with new code.

        One that does already gets no second signal, which would cancel its handlers, but for a second stop.
        """
        hurry = stop and self._stop.is_set()
        if stop:
            self._stop.set()
        for process in (self._processes[key] for key in self._processes if hurry or key not in self._ending):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                process.send_signal(number)
        self._ending |= self._processes.keys()
        self._woken.set()
        self._woken.clear()

    async def _watch(self, folder: Path) -> None:
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 (an extra)

        async for changes in awatch(folder, watch_filter=PythonFilter(), stop_event=self._stop):
            names = ", ".join(sorted({Path(path).name for _, path in changes}))
            _log.info("%s changed, starting again", names)
            self._signal(signal.SIGTERM, stop=False)

    async def _keep(self, number: int) -> None:
        """Start process ``number``, and start it again whenever it ends, until the stop."""
        pause_s = PAUSE_S
        while not self._stop.is_set():
            began_s = self._clock.now_s()
            process = self._processes[number] = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, NUMBER: str(number)},
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            if self._stop.is_set():  # while it was being started
                process.terminate()
            code = await process.wait()
            del self._processes[number]
            lived = self._clock.now_s() - began_s >= LIVED_S
            self._lived = self._lived or lived
            failed = code > 0 and number not in self._ending
            if failed and self._reload is None and not self._lived and not self._stop.is_set():
                _log.error("worker process %d could not start, it ended with code %d: stopping", number, code)
                self._signal(signal.SIGTERM)
            if self._stop.is_set():
                self._codes.append(code if code >= 0 else _CODES.get(-code, SIGNALLED - code))
            elif number in self._ending:
                self._ending.remove(number)
                pause_s = PAUSE_S
            else:
                pause_s = PAUSE_S if lived else pause_s
                again_s = None if failed and self._reload is not None else pause_s  # else at a change
                again = "at the next change" if again_s is None else f"in {again_s:.1f} s"
                _log.warning("worker process %d ended with code %d, starts again %s", number, code, again)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), again_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
