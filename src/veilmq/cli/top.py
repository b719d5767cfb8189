"""``veilmq top``: tables of queues, workers and leases on a terminal.

Queues are read over SQS with the user's permissions. Values without an SQS attribute (the age of the oldest message,
redeliveries) come from the server's metrics if they can be reached.
"""

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import urllib3
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from veilmq.cli.command import Result, command, instant
from veilmq.cli.connection import Server
from veilmq.cli.options import JSON, UsageError, number, option
from veilmq.client import ClientError, QueueClient, Unreachable
from veilmq.client.transport import new_pools
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus, replies
from veilmq.core.limits import Range
from veilmq.wire.sqs.names import full_name

QUEUES_MAX = 200
"""The number of queues that are read, in the order of names; each costs a request."""
EVERY_S = Range(minimum=1, maximum=3_600, default=1)
READING_SHARE = 0.1
"""The maximum share of time spent reading; if the server is slow, pauses are longer."""
UNKNOWN = "–"

_PATIENCE_S = 2.0
_AGE = "veilmq_queue_oldest_message_age_seconds"
_REDELIVERIES = "veilmq_queue_redeliveries_total"
_SAMPLE = re.compile(r'^(\w+)\{queue="([^"]*)"\} (\S+)$', re.MULTILINE)
_GONE = ("QueueDoesNotExist", "NonExistentQueue")
_THIS_MACHINE = re.compile(r"(https?://(?:127\.0\.0\.1|localhost|\[::1\])):([0-9]+)/?")
_WIDTH_OF_FILES = 120
_SHORT_S = 5.0
_LINES_OF_TITLES = 8
_STYLES = {"held": "", "suspect": "yellow", "lost": "red", "ended": "red"}
_QUIT = frozenset(b"qQ\x04")  # Ctrl-D

Row = TypeVar("Row")


@command
def top(
    *,
    prefix: str = option("Only queues whose names begin with this."),
    workers: tuple[str, ...] = option("A worker on another machine, at its --metrics-port; may be repeated.", "URL"),
    admin: str | None = option("The server's metrics. On this machine: the port after the endpoint's.", "URL"),
    every: int = number(EVERY_S, "Seconds between updates."),
    once: bool = option("Print the state once, and exit."),
    json: bool = JSON,
    server: Server,
) -> None:
    """Watch queues, workers, and the leases of their messages; q or Ctrl-C exits.

    Workers of this user on this machine are found automatically. With --json
    each update is one line.
    """
    live = not once and not json
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES, highlight=False)
    if live and (not sys.stdout.isatty() or console.is_dumb_terminal):
        raise UsageError("The output is not a terminal, or one that cannot be redrawn; use --once, or --json.")
    if admin is None and (here := _THIS_MACHINE.fullmatch(server.endpoint)):
        admin = f"{here[1]}:{int(here[2]) + 1}"
    screen = Live(console=console, screen=True, auto_refresh=False) if live else nullcontext()
    client = QueueClient(server)
    with suppress(KeyboardInterrupt), _keys() as wait_for_quit, screen:
        while True:
            began_s, failure = time.monotonic(), None
            queues: tuple[list[QueueRow], int] = [], 0
            try:
                queues = read_queues(client, prefix=prefix, admin=admin)
            except (ClientError, Unreachable) as error:
                if not live:
                    raise
                failure = str(error)  # the next update tries again
            snapshot = Snapshot(server.endpoint, time.time_ns() // 1_000_000, *queues, *read_workers(workers))
            page = view(snapshot, width=console.width, height=console.height if live else None, failure=failure)
            if isinstance(screen, Live):
                screen.update(page, refresh=True)
            elif json:
                Result(snapshot, "").show(json=True)
            else:
                console.print(page)
            if once or wait_for_quit(pause_s(time.monotonic() - began_s, every)):
                return


def pause_s(took_s: float, every_s: float) -> float:
    return max(every_s - took_s, took_s * (1 / READING_SHARE - 1), 0.0)


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; unknown values are ``None``."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_s: float | None = None
    redeliveries: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The state at ``at_ms``; ``silent`` are the sockets and URLs of workers that did not reply."""

    endpoint: str
    at_ms: int
    queues: Sequence[QueueRow]
    queues_in_all: int
    workers: Sequence[WorkerStatus]
    silent: Sequence[str]


def read_queues(client: QueueClient, *, prefix: str, admin: str | None) -> tuple[list[QueueRow], int]:
    """Return the rows of up to ``QUEUES_MAX`` queues, and the total number; ``admin`` is the URL of the admin port.

    Raises ``ClientError`` and ``Unreachable``.
    """
    names = client.list_queues(prefix)
    text = (_page(f"{admin}/metrics") if admin else None) or b""
    samples = {(name, queue): float(value) for name, queue, value in _SAMPLE.findall(text.decode(errors="replace"))}
    rows = []
    for name in names[:QUEUES_MAX]:
        try:
            status = client.show(name)
        except ClientError as error:
            if error.code.endswith(_GONE):  # deleted meanwhile
                continue
            raise
        counts = {"visible": status.visible, "in_flight": status.in_flight, "delayed": status.delayed}
        oldest_s, redeliveries = (samples.get((metric, full_name(status.url))) for metric in (_AGE, _REDELIVERIES))
        received = None if redeliveries is None else int(redeliveries)
        rows.append(QueueRow(queue=name, **counts, oldest_s=oldest_s, redeliveries=received))
    return rows, len(names)


def read_workers(urls: Sequence[str]) -> tuple[list[WorkerStatus], list[str]]:
    """Return the status of workers on this machine and at ``urls``, and the places of those that did not reply."""
    found: list[WorkerStatus] = []
    silent: list[str] = []
    here = ((path.stem, data) for path, data in replies())
    elsewhere = ((url, _page(f"{url.rstrip('/')}/status")) for url in urls)
    for place, data in (*here, *elsewhere):
        try:
            found += msgspec.json.decode(data or b"", type=list[WorkerStatus])
        except (msgspec.DecodeError, UnicodeDecodeError):
            silent.append(place)
    return sorted(found, key=attrgetter("worker")), silent


def _page(url: str) -> bytes | None:
    try:
        reply = new_pools().request("GET", url, retries=False, timeout=_PATIENCE_S)
    except urllib3.exceptions.HTTPError:
        return None
    return bytes(reply.data) if reply.status == 200 else None


# The page is a pure function of the snapshot and of the terminal's size. A narrow terminal shows fewer columns. A low
# one shows fewer rows: the queues with the most messages, and the leases that end first.


HandlerRow = tuple[WorkerStatus, HandlerStatus]
LeaseRow = tuple[WorkerStatus, LeaseStatus]
Column = tuple[str, int, str, Callable[[Row], str | int | Text]]
"""Title, minimum width of the terminal, ``<`` or ``>`` for the alignment, and the content."""

QUEUES: Sequence[Column[QueueRow]] = (
    ("queue", 0, "<", lambda row: row.queue),
    ("visible", 0, ">", lambda row: row.visible),
    ("in flight", 0, ">", lambda row: row.in_flight),
    ("delayed", 50, ">", lambda row: row.delayed),
    ("oldest", 60, ">", lambda row: span(row.oldest_s)),
    ("redelivered", 72, ">", lambda row: UNKNOWN if row.redeliveries is None else row.redeliveries),
)
WORKERS: Sequence[Column[HandlerRow]] = (
    ("worker", 0, "<", lambda row: row[0].worker + " (stopping)" * row[0].stopping),
    ("queue", 60, "<", lambda row: row[1].queue),
    ("handler", 50, "<", lambda row: row[1].handler),
    ("running", 0, ">", lambda row: row[1].running),
    ("buffered", 40, ">", lambda row: row[1].buffered),
    ("done", 72, ">", lambda row: row[1].events.get("acked", 0)),
    ("redelivered", 84, ">", lambda row: row[1].events.get("redelivered", 0)),
)
LEASES: Sequence[Column[LeaseRow]] = (
    ("message", 0, "<", lambda row: row[1].message_id),
    ("worker", 100, "<", lambda row: row[0].worker),
    ("queue", 72, "<", lambda row: row[1].queue),
    ("handler", 120, "<", lambda row: row[1].handler),
    ("attempt", 84, ">", lambda row: row[1].attempt),
    ("held", 60, ">", lambda row: span(row[1].held_s)),
    ("lease", 40, "<", lambda row: Text(row[1].state + ", waits" * (not row[1].running), _STYLES[row[1].state])),
    ("left", 0, ">", lambda row: Text(span(row[1].left_s), style="yellow" if row[1].left_s < _SHORT_S else "")),
)


def view(snapshot: Snapshot, *, width: int, height: int | None = None, failure: str | None = None) -> RenderableType:
    """Render the page with up to ``height`` lines (``None``: all); ``failure`` is why the queues could not be read."""
    handlers = [(worker, handler) for worker in snapshot.workers for handler in worker.handlers]
    leases = [(worker, lease) for worker in snapshot.workers for lease in worker.leases]
    leases.sort(key=lambda row: (row[1].left_s, row[1].message_id))
    heights = _heights([len(snapshot.queues), len(handlers), len(leases)], height)
    fullest = sorted(snapshot.queues, key=lambda row: (-row.visible - row.in_flight - row.delayed, row.queue))
    queues = sorted(fullest[: heights[0]], key=attrgetter("queue"))
    more_leases = sum(handler.leased for _, handler in handlers) - min(heights[2], len(leases))
    parts: list[RenderableType] = [
        Text(f"{snapshot.endpoint}  {instant(snapshot.at_ms)}", style="bold", no_wrap=True, overflow="ellipsis"),
        _table(queues, QUEUES, width) if failure is None else Text(failure, style="red"),
        *_rest(snapshot.queues_in_all - len(queues), "more queues; the fullest of the first 200 by name are shown"),
        _table(handlers[: heights[1]], WORKERS, width),
        *_rest(len(handlers) - heights[1], "more handlers"),
        *(Text(f"no answer from {place}", style="red") for place in snapshot.silent),
        _table(leases[: heights[2]], LEASES, width),
        *_rest(more_leases, "more leases"),
    ]
    return Group(*parts)


def span(seconds: float | None) -> str:
    """Format a duration in at most six characters: ``4.2 s``, ``12:05``, ``3 h 20``, ``2 d``."""
    if seconds is None:
        return UNKNOWN
    if abs(seconds) < 100:
        return f"{seconds:.1f} s"
    sign, whole = "-" * (seconds < 0), int(abs(seconds))
    if whole < 3_600:
        return f"{sign}{whole // 60}:{whole % 60:02}"
    return f"{sign}{whole // 3_600} h {whole // 60 % 60:02}" if whole < 360_000 else f"{sign}{whole // 86_400} d"


def _table(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int) -> Table:
    shown = [column for column in columns if column[1] <= width]
    table = Table(box=None, pad_edge=False, expand=True, header_style="reverse")
    for index, (title, _, side, _) in enumerate(shown):
        justify: Any = "right" if side == ">" else "left"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", ratio=None if index else 1)
    for row in rows:
        cells = [content(row) for *_, content in shown]
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells))  # a str is markup
    return table


def _rest(count: int, what: str) -> list[Text]:
    return [Text(f"… and {count} {what}", style="dim", no_wrap=True, overflow="ellipsis")] if count > 0 else []


def _heights(needed: list[int], height: int | None) -> list[int]:
    """Return the number of rows of each table: all, or an equal share that includes what small tables do not need."""
    if height is None:
        return needed
    left = max(0, height - _LINES_OF_TITLES)
    heights = dict.fromkeys(range(len(needed)), 0)
    for tables, index in enumerate(sorted(heights, key=lambda index: needed[index])):
        heights[index] = min(needed[index], left // (len(needed) - tables))
        left -= heights[index]
    return list(heights.values())


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for a number of seconds, and returns true early when the user presses a quit key.

    Keys need no Enter; the terminal is restored at the end. SIGTERM raises ``KeyboardInterrupt``, like Ctrl-C. Without
    a keyboard the function only waits.
    """
    keyboard = [sys.stdin] if sys.stdin.isatty() else []

    def wait(seconds: float) -> bool:
        readable, _, _ = select.select(keyboard, [], [], seconds)
        return bool(readable) and not _QUIT.isdisjoint(os.read(sys.stdin.fileno(), 1_024) or _QUIT)

    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        if keyboard:
            import termios  # not on all systems
            import tty

            stack.enter_context(suppress(termios.error))  # the terminal was closed
            stack.callback(termios.tcsetattr, sys.stdin, termios.TCSADRAIN, termios.tcgetattr(sys.stdin))
            tty.setcbreak(sys.stdin)
        yield wait
