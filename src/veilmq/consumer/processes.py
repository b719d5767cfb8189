"""A supervisor for several processes of a worker, with reload when code changes.

- A process that exits is restarted after a pause, which doubles up to 30 seconds and is reset once a process has run
  for a minute.
- If a process exits with an error code before any has run for a minute, the start has failed and all are stopped.
- Signals are passed on, so that each process shuts down in order. A reload does the same, then restarts it.
- Each process has its own session, so that it gets a Ctrl-C once, from the supervisor. Its stdin is a pipe from the
  supervisor; the process stops when the pipe closes because the supervisor was killed.
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
STARTED_S = 60.0
"""A process that has run so long has started successfully."""
SIGNALLED = 128  # plus the signal's number: the exit code of a process that a signal has ended
_CODES: dict[int, int] = {signal.SIGTERM: 0, signal.SIGINT: 0}
"""Exit codes by signal. These end a process only before it handles signals, when it has received no messages."""


def process_number() -> int | None:
    """Return the number of this process of a supervisor, from 0; ``None`` without a supervisor."""
    number = os.environ.get(NUMBER, "")
    return int(number) if number.isdecimal() else None


class Supervisor:
    """Runs ``count`` processes of one command until SIGTERM or SIGINT."""

    def __init__(self, command: Sequence[str], *, count: int, reload: Path | None = None) -> None:
        """The processes are restarted when a Python file in the folder ``reload`` changes."""
        self._command = command
        self._count = count
        self._reload = reload
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stop = asyncio.Event()
        self._woken = asyncio.Event()
        self._stopping: set[int] = set()
        self._started = False  # a process has run for STARTED_S
        self._codes: list[int] = []
        self._clock = SystemClock()

    def run(self) -> int:
        """Run until all processes have ended, and return the first exit code that is not 0, else 0."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal, number)
        async with asyncio.TaskGroup() as tasks:
            if self._reload is not None:
                tasks.create_task(self._watch(self._reload))
            for process in range(self._count):
                tasks.create_task(self._keep_running(process))
        return next((code for code in self._codes if code), 0)

    def _signal(self, number: signal.Signals, *, stop: bool = True) -> None:
        """Send a signal to all processes, to stop or to restart them.

        A second signal would cancel handlers, so a process that is stopping gets one only at a second stop.
        """
        again = stop and self._stop.is_set()
        if stop:
            self._stop.set()
        for process in (self._processes[key] for key in self._processes if again or key not in self._stopping):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                process.send_signal(number)
        self._stopping |= self._processes.keys()
        self._woken.set()
        self._woken.clear()

    async def _watch(self, folder: Path) -> None:
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 (an extra)

        async for changes in awatch(folder, watch_filter=PythonFilter(), stop_event=self._stop):
            names = ", ".join(sorted({Path(path).name for _, path in changes}))
            _log.info("%s changed, starting again", names)
            self._signal(signal.SIGTERM, stop=False)

    async def _keep_running(self, number: int) -> None:
        pause_s = PAUSE_S
        while not self._stop.is_set():
            started_s = self._clock.now_s()
            process = self._processes[number] = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, NUMBER: str(number)},
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            if self._stop.is_set():  # meanwhile
                process.terminate()
            code = await process.wait()
            del self._processes[number]
            had_started = self._clock.now_s() - started_s >= STARTED_S
            self._started = self._started or had_started
            failed = code > 0 and number not in self._stopping
            if failed and self._reload is None and not self._started and not self._stop.is_set():
                _log.error("worker process %d could not start, it ended with code %d: stopping", number, code)
                self._signal(signal.SIGTERM)
            if self._stop.is_set():
                self._codes.append(code if code >= 0 else _CODES.get(-code, SIGNALLED - code))
            elif number in self._stopping:
                self._stopping.remove(number)
                pause_s = PAUSE_S
            else:
                pause_s = PAUSE_S if had_started else pause_s
                wait_s = None if failed and self._reload is not None else pause_s  # None: until a change
                when = "at the next change" if wait_s is None else f"in {wait_s:.1f} s"
                _log.warning("worker process %d ended with code %d, starts again %s", number, code, when)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), wait_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
