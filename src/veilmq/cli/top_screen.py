"""What becomes of looks: the terminal filled with one after the other, or a line, or a table, for each."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console
from rich.live import Live

from veilmq.cli.failures import CommandFailed
from veilmq.cli.printing import print_json
from veilmq.cli.top_keys import keys
from veilmq.cli.top_look import Look, Observer, QueueRow
from veilmq.cli.top_view import view
from veilmq.client import ClientError, Unreachable
from veilmq.core.limits import SECOND_MS

ASKING_SHARE = 0.1
"""Of the time, at most, is spent asking: a look that takes longer is followed by a longer pause."""
_ONCE_WIDTH = 120


def print_looks(observer: Observer, endpoint: str, every_s: int, *, once: bool, json: bool) -> None:
    """Print looks, as tables or as lines of JSON: one, or one after the other until the user leaves."""
    console = Console(width=None if sys.stdout.isatty() else _ONCE_WIDTH, highlight=False)
    with suppress(KeyboardInterrupt), keys() as left:
        while True:
            began_s = time.monotonic()
            look = _look(observer, endpoint)
            if json:
                print_json(look)
                sys.stdout.flush()
            else:
                console.print(view(look, width=console.width))
            if once or left(pause_s(time.monotonic() - began_s, every_s)):
                return


def show_live(observer: Observer, endpoint: str, every_s: int) -> None:
    """Fill the terminal with one look after the other, until the user leaves."""
    console = Console(highlight=False)
    screen = Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), keys() as left, screen:
        while True:
            began_s = time.monotonic()
            failure = None
            try:
                look = _look(observer, endpoint)
            except (ClientError, Unreachable) as error:  # it may be back at the next look, and the workers are there
                look, failure = _look_at_workers(observer, endpoint), str(error)
            seen = view(look, width=console.width, height=console.height, failure=failure)
            screen.update(seen, refresh=True)
            if left(pause_s(time.monotonic() - began_s, every_s)):
                return


def pause_s(took_s: float, every_s: float) -> float:
    """Return how long to wait after a look that took ``took_s``."""
    return max(every_s - took_s, took_s * (1 / ASKING_SHARE - 1), 0.0)


def _look(observer: Observer, endpoint: str) -> Look:
    queues, queues_in_all = observer.queues()
    return _look_at_workers(observer, endpoint, queues, queues_in_all)


def _look_at_workers(
    observer: Observer, endpoint: str, queues: Sequence[QueueRow] = (), queues_in_all: int = 0
) -> Look:
    try:
        workers, silent = observer.workers()
    except OSError as error:
        raise CommandFailed(f"The workers of this machine cannot be looked at: {error}.") from error
    return Look(
        endpoint=endpoint,
        at_ms=time.time_ns() // (SECOND_MS * 1_000),
        queues=queues,
        queues_in_all=queues_in_all,
        workers=workers,
        silent=silent,
    )
