"""``veilmq top``: rows of queues, workers and leases, the picture made of them, and the terminal that shows it.

Queues are read as by any client, with the caller's permissions. What SQS has no attribute for (the age of the oldest
message, redeliveries) comes from the server's metrics, where these can be reached.
"""

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from types import FrameType
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import urllib3
from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from veilmq.cli.command import CommandFailed, Json, UsageError, instant, option, print_json, whole_number
from veilmq.cli.connection import Endpoint, connect
from veilmq.client import ClientError, HttpQueueClient, Unreachable
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus, replies
from veilmq.core.limits import Range
from veilmq.wire.sqs.names import full_name

QUEUES_MAX = 200
"""Queues that are read, the first ones by name: each costs a request."""
EVERY_S = Range(minimum=1, maximum=3_600, default=1)
READING_SHARE = 0.1
"""Of the time, at most, is spent reading: a slow server is followed by a longer pause."""
UNKNOWN = "–"

_PATIENCE_S = 2.0
_AGE = "veilmq_queue_oldest_message_age_seconds"
_REDELIVERIES = "veilmq_queue_redeliveries_total"
_SAMPLE = re.compile(r'^(\w+)\{queue="([^"]*)"\} (\S+)$', re.MULTILINE)
_GONE = ("QueueDoesNotExist", "NonExistentQueue")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_WIDTH_OF_FILES = 120
_SHORT_S = 5.0
_LINES_OF_TITLES = 8
_STYLES = {"held": "", "suspect": "yellow", "lost": "red", "ended": "red"}
_QUIT = frozenset(b"qQ\x04")  # Ctrl-D

Row = TypeVar("Row")


def top(
    *,
    prefix: Annotated[str, option("Only queues whose names begin with this.")] = "",
    workers: Annotated[
        list[str] | None,
        Parameter(
            name="--workers",
            metavar="URL",
            negative=(),
            consume_multiple=False,
            help="A worker on another machine, at its --metrics-port; may be repeated.",
        ),
    ] = None,
    admin: Annotated[
        str | None, option("The server's metrics. On this machine: the port after the endpoint's.", "URL")
    ] = None,
    every: Annotated[int, whole_number(EVERY_S, "Seconds between updates.")] = EVERY_S.default,
    once: Annotated[bool, option("Print the state once, and exit.")] = False,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Watch queues, workers, and the leases of their messages; q or Ctrl-C exits.

    Workers of this user on this machine are found by themselves. With --json
    each update is one line.
    """
    live = not once and not json
    if live and not sys.stdout.isatty():
        raise UsageError("The output is no terminal; use --once, or --json.")
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES, highlight=False)
    screen = Live(console=console, screen=True, auto_refresh=False) if live else None
    with connect(HttpQueueClient, endpoint) as client, suppress(KeyboardInterrupt), _keys() as left:
        observer = Observer(client, prefix=prefix, admin=admin or _beside(endpoint), workers=workers or ())
        with closing(observer), screen or nullcontext():
            while True:
                began_s, failure = time.monotonic(), None
                try:
                    look = _look(observer, endpoint, *observer.queues())
                except (ClientError, Unreachable) as error:
                    if not live:
                        raise
                    look, failure = _look(observer, endpoint), str(error)  # the server may be back at the next update
                if screen is not None:
                    seen = view(look, width=console.width, height=console.height, failure=failure)
                    screen.update(seen, refresh=True)
                elif json:
                    print_json(look)
                    sys.stdout.flush()
                else:
                    console.print(view(look, width=console.width))
                if once or left(pause_s(time.monotonic() - began_s, every)):
                    return


def _beside(endpoint: str) -> str | None:
    """Return where a server on this machine has its metrics by default; of others it is unknown."""
    parts = urlsplit(endpoint)
    if parts.hostname not in _LOOPBACK or parts.port is None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port + 1}"


def pause_s(took_s: float, every_s: float) -> float:
    """Return how long to wait after an update that took ``took_s``."""
    return max(every_s - took_s, took_s * (1 / READING_SHARE - 1), 0.0)


# What is read.


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; ``None`` for what is unknown."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_s: float | None = None
    redeliveries: int | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The state at ``at_ms``; ``silent`` are the places of workers that did not reply."""

    endpoint: str
    at_ms: int
    queues: Sequence[QueueRow]
    queues_in_all: int
    workers: Sequence[WorkerStatus]
    silent: Sequence[str]


def _look(observer: "Observer", endpoint: str, queues: Sequence[QueueRow] = (), queues_in_all: int = 0) -> Look:
    try:
        workers, silent = observer.workers()
    except OSError as error:
        raise CommandFailed(f"The workers of this machine cannot be read: {error}.") from error
    return Look(
        endpoint=endpoint,
        at_ms=time.time_ns() // 1_000_000,
        queues=queues,
        queues_in_all=queues_in_all,
        workers=workers,
        silent=silent,
    )


class Observer:
    """Reads queues and workers; ``admin`` is the URL of the server's metrics, ``workers`` are URLs of workers."""

    def __init__(self, client: HttpQueueClient, *, prefix: str, admin: str | None, workers: Sequence[str]) -> None:
        self._client = client
        self._prefix = prefix
        self._admin = admin
        self._workers = workers
        self._pages = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(_PATIENCE_S))

    def queues(self) -> tuple[list[QueueRow], int]:
        """Return the rows of queues, and how many there are; raises ``ClientError`` and ``Unreachable``."""
        names = self._client.list_queues(self._prefix)
        text = (self._page(f"{self._admin}/metrics") if self._admin else None) or b""
        found = _SAMPLE.findall(text.decode(errors="replace"))
        samples = {(name, queue): float(value) for name, queue, value in found}
        return [row for name in names[:QUEUES_MAX] for row in self._row(name, samples)], len(names)

    def workers(self) -> tuple[list[WorkerStatus], list[str]]:
        """Return what workers do, and the places of those that did not reply."""
        found: list[WorkerStatus] = []
        silent: list[str] = []
        here = ((path.stem, data) for path, data in replies())
        elsewhere = ((url, self._page(f"{url.rstrip('/')}/status")) for url in self._workers)
        for place, data in (*here, *elsewhere):
            try:
                found += msgspec.json.decode(data or b"", type=list[WorkerStatus])
            except msgspec.DecodeError:
                silent.append(place)
        return sorted(found, key=lambda worker: worker.worker), silent

    def close(self) -> None:
        """Close the idle connections."""
        self._pages.clear()

    def _row(self, name: str, samples: dict[tuple[str, str], float]) -> Iterator[QueueRow]:
        try:
            status = self._client.show(name)
        except ClientError as error:
            if error.code.endswith(_GONE):  # it was deleted meanwhile
                return
            raise
        label = full_name(status.url)
        redeliveries = samples.get((_REDELIVERIES, label))
        yield QueueRow(
            queue=name,
            visible=status.visible,
            in_flight=status.in_flight,
            delayed=status.delayed,
            oldest_s=samples.get((_AGE, label)),
            redeliveries=None if redeliveries is None else int(redeliveries),
        )

    def _page(self, url: str) -> bytes | None:
        try:
            reply = self._pages.request("GET", url)
        except urllib3.exceptions.HTTPError:
            return None
        return bytes(reply.data) if reply.status == 200 else None


# The picture: a pure function of the look and of the size of the terminal. A narrow terminal has fewer columns, a low
# one fewer rows: of queues those with the most messages are kept, of leases those that end first.


Handling = tuple[WorkerStatus, HandlerStatus]
Held = tuple[WorkerStatus, LeaseStatus]
Column = tuple[str, int, str, Callable[[Row], str | int | Text]]
"""Title, the least width of a terminal that shows it, ``<`` or ``>`` for its side, and its content."""

QUEUES: Sequence[Column[QueueRow]] = (
    ("queue", 0, "<", lambda row: row.queue),
    ("visible", 0, ">", lambda row: row.visible),
    ("in flight", 0, ">", lambda row: row.in_flight),
    ("delayed", 50, ">", lambda row: row.delayed),
    ("oldest", 60, ">", lambda row: span(row.oldest_s)),
    ("redelivered", 72, ">", lambda row: UNKNOWN if row.redeliveries is None else row.redeliveries),
)
WORKERS: Sequence[Column[Handling]] = (
    ("worker", 0, "<", lambda row: row[0].worker + " (stopping)" * row[0].stopping),
    ("queue", 60, "<", lambda row: row[1].queue),
    ("handler", 50, "<", lambda row: row[1].handler),
    ("running", 0, ">", lambda row: row[1].running),
    ("buffered", 40, ">", lambda row: row[1].buffered),
    ("done", 72, ">", lambda row: row[1].events.get("acked", 0)),
    ("redelivered", 84, ">", lambda row: row[1].events.get("redelivered", 0)),
)
LEASES: Sequence[Column[Held]] = (
    ("message", 0, "<", lambda row: row[1].message_id),
    ("worker", 100, "<", lambda row: row[0].worker),
    ("queue", 72, "<", lambda row: row[1].queue),
    ("handler", 120, "<", lambda row: row[1].handler),
    ("attempt", 84, ">", lambda row: row[1].attempt),
    ("held", 60, ">", lambda row: span(row[1].held_s)),
    ("lease", 40, "<", lambda row: _state(row[1])),
    ("left", 0, ">", lambda row: Text(span(row[1].left_s), style="yellow" if row[1].left_s < _SHORT_S else "")),
)


def view(look: Look, *, width: int, height: int | None = None, failure: str | None = None) -> RenderableType:
    """Return the whole picture; ``height`` bounds its lines, ``None`` shows everything.

    ``failure`` is why the queues could not be read.
    """
    handlings = [(worker, handler) for worker in look.workers for handler in worker.handlers]
    leases = [(worker, lease) for worker in look.workers for lease in worker.leases]
    leases.sort(key=lambda held: (held[1].left_s, held[1].message_id))
    rooms = _rooms([len(look.queues), len(handlings), len(leases)], height)
    fullest = sorted(look.queues, key=lambda row: (-row.visible - row.in_flight - row.delayed, row.queue))
    queues = sorted(fullest[: rooms[0]], key=lambda row: row.queue)
    parts: list[RenderableType] = [
        Text(f"{look.endpoint}  {instant(look.at_ms)}", style="bold", no_wrap=True, overflow="ellipsis"),
        _table(queues, QUEUES, width) if failure is None else Text(failure, style="red"),
        *_rest(look.queues_in_all - len(queues), "more queues; those with the most messages are shown, up to 200"),
        _table(handlings[: rooms[1]], WORKERS, width),
        *_rest(len(handlings) - rooms[1], "more handlers"),
        *(Text(f"no answer from {place}", style="red") for place in look.silent),
        _table(leases[: rooms[2]], LEASES, width),
        *_rest(sum(handler.leased for _, handler in handlings) - min(rooms[2], len(leases)), "more leases"),
    ]
    return Group(*parts)


def span(seconds: float | None) -> str:
    """Return a span of time in at most six characters: ``4.2 s``, ``12:05``, ``3 h 20``, ``2 d``."""
    if seconds is None:
        return UNKNOWN
    if abs(seconds) < 100:
        return f"{seconds:.1f} s"
    whole = int(abs(seconds))
    sign = "-" if seconds < 0 else ""
    if whole < 3_600:
        return f"{sign}{whole // 60}:{whole % 60:02}"
    if whole < 100 * 3_600:
        return f"{sign}{whole // 3_600} h {whole // 60 % 60:02}"
    return f"{sign}{whole // 86_400} d"


def _table(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int) -> Table:
    shown = [column for column in columns if column[1] <= width]
    table = Table(box=None, pad_edge=False, expand=True, header_style="reverse")
    for number, (title, _, side, _) in enumerate(shown):
        justify: Any = "right" if side == ">" else "left"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", ratio=None if number else 1)
    for row in rows:
        cells = [content(row) for *_, content in shown]
        table.add_row(*(str(cell) if isinstance(cell, int) else cell for cell in cells))
    return table


def _rest(count: int, what: str) -> list[Text]:
    return [Text(f"… and {count} {what}", style="dim", no_wrap=True, overflow="ellipsis")] if count > 0 else []


def _rooms(wanted: list[int], height: int | None) -> list[int]:
    """Return how many rows each table has: all that it needs, or an equal share, to which small tables leave theirs."""
    if height is None:
        return wanted
    left = max(0, height - _LINES_OF_TITLES)
    rooms = dict.fromkeys(range(len(wanted)), 0)
    for tables, place in enumerate(sorted(rooms, key=lambda place: wanted[place])):
        rooms[place] = min(wanted[place], left // (len(wanted) - tables))
        left -= rooms[place]
    return list(rooms.values())


def _state(lease: LeaseStatus) -> Text:
    return Text(lease.state if lease.running else f"{lease.state}, waits", style=_STYLES.get(lease.state, ""))


# The keyboard: keys one by one, without Enter, and a terminal that is left as it was found.


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits for so many seconds, and returns early, and true, when the user quits.

    SIGTERM quits as Ctrl-C does: by ``KeyboardInterrupt``. Without a keyboard it only waits.
    """

    def wait(seconds: float) -> bool:
        readable, _, _ = select.select([sys.stdin] if is_keyboard else [], [], [], seconds)
        return bool(readable) and not _QUIT.isdisjoint(os.read(sys.stdin.fileno(), 1_024) or _QUIT)

    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with _unbuffered() as is_keyboard:
            yield wait
    finally:
        signal.signal(signal.SIGTERM, before)


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
        with suppress(termios.error):
            termios.tcsetattr(number, termios.TCSADRAIN, before)
