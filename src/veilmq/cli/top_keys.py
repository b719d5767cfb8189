"""The keyboard of a live view: keys one by one, without Enter, and a terminal that is left as it was found."""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

QUIT = frozenset(b"qQ\x04")
"""What leaves the view, beside Ctrl-C: q, and Ctrl-D."""

_TYPED_BYTES_MAX = 1_024


@contextmanager
def keys() -> Iterator[Callable[[float], bool]]:
    """Give what waits for so many seconds, and tells whether the user wants to leave before they are over.

    SIGTERM leaves the view as Ctrl-C does: by ``KeyboardInterrupt``. Without a keyboard it only waits.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with _unbuffered() as is_keyboard:
            yield lambda seconds: _wait(seconds, is_keyboard=is_keyboard)
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait(seconds: float, *, is_keyboard: bool) -> bool:
    readable, _, _ = select.select([sys.stdin] if is_keyboard else [], [], [], seconds)
    if not readable:
        return False
    typed = os.read(sys.stdin.fileno(), _TYPED_BYTES_MAX)
    return not typed or not QUIT.isdisjoint(typed)


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _unbuffered() -> Iterator[bool]:
    if not sys.stdin.isatty():
        yield False
        return
    import termios  # not every system has them
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield True
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(number, termios.TCSADRAIN, before)
