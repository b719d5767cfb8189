"""Commands that go on until they are stopped."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set; a second one ends the process as usual."""
    stop = threading.Event()
    before: dict[signal.Signals, object] = {}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])  # type: ignore[arg-type]  # what signal() itself has returned

    for sign in (signal.SIGINT, signal.SIGTERM):
        before[sign] = signal.signal(sign, note)
    try:
        yield stop
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)  # type: ignore[arg-type]  # the same
