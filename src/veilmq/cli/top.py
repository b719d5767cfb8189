"""``veilmq top``: rows of queues, workers and leases, the picture made of them, and the terminal that shows it."""

import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import urllib3
from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from veilmq.cli.command import CommandFailed, Endpoint, Json, UsageError, instant, print_json, whole_number
from veilmq.cli.connection import connect
from veilmq.client import ClientError, HttpQueueClient, Unreachable
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus, replies
from veilmq.core.limits import SECOND_MS, Range
from veilmq.wire.sqs.names import full_name

QUEUES_MAX = 200
"""Queues that are looked at, the first ones by name: each costs a request a look."""
PATIENCE_S = 2.0
AGE = "veilmq_queue_oldest_message_age_seconds"
REDELIVERIES = "veilmq_queue_redeliveries_total"

_SAMPLE = re.compile(r'^(\w+)\{queue="([^"]*)"\} (\S+)$', re.MULTILINE)
_GONE = ("QueueDoesNotExist", "NonExistentQueue")


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue; ``None`` for what nobody tells."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    oldest_s: float | None = None
    redeliveries: int | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What there was to see at ``at_ms``; ``silent`` are the places of workers that did not answer."""

    endpoint: str
    at_ms: int
    queues: Sequence[QueueRow]
    queues_in_all: int
    workers: Sequence[WorkerStatus]
    silent: Sequence[str]


class Observer:
    """Looks as often as it is told to."""

    def __init__(self, client: HttpQueueClient, *, prefix: str, admin: str | None, workers: Sequence[str]) -> None:
        """``admin`` is the URL of the server's metrics, ``workers`` are URLs of workers elsewhere."""
        self._client = client
        self._prefix = prefix
        self._admin = admin
        self._workers = workers
        timeout = urllib3.Timeout(PATIENCE_S)
        self._pages = urllib3.PoolManager(retries=False, timeout=timeout)

    def queues(self) -> tuple[list[QueueRow], int]:
        """Return the rows of queues, and how many there are; raises ``ClientError`` and ``Unreachable``."""
        names = self._client.list_queues(self._prefix)
        samples = self._samples() if self._admin else {}
        return [row for name in names[:QUEUES_MAX] for row in self._row(name, samples)], len(names)

    def workers(self) -> tuple[list[WorkerStatus], list[str]]:
        """Return what workers do, and the places of those that did not answer."""
        found: list[WorkerStatus] = []
        silent: list[str] = []
        for place, data in (*self._here(), *self._elsewhere()):
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
        redeliveries = samples.get((REDELIVERIES, label))
        yield QueueRow(
            queue=name,
            visible=status.visible,
            in_flight=status.in_flight,
            delayed=status.delayed,
            oldest_s=samples.get((AGE, label)),
            redeliveries=None if redeliveries is None else int(redeliveries),
        )

    def _samples(self) -> dict[tuple[str, str], float]:
        data = self._page(f"{self._admin}/metrics")
        text = "" if data is None else data.decode(errors="replace")
        return {(name, queue): float(value) for name, queue, value in _SAMPLE.findall(text)}

    def _here(self) -> Iterator[tuple[str, bytes | None]]:
        for path, data in replies():
            yield path.stem, data

    def _elsewhere(self) -> Iterator[tuple[str, bytes | None]]:
        for url in self._workers:
            yield url, self._page(f"{url.rstrip('/')}/status")

    def _page(self, url: str) -> bytes | None:
        try:
            answer = self._pages.request("GET", url)
        except urllib3.exceptions.HTTPError:
            return None
        return bytes(answer.data) if answer.status == 200 else None


Row = TypeVar("Row")

UNKNOWN = "–"
_SHORT_S = 5.0
_LINES_OF_TITLES = 8
_STYLES = {"held": "", "suspect": "yellow", "lost": "red", "ended": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """A column that is shown in terminals of at least ``from_width`` characters."""

    title: str
    tell: Callable[[Row], str | Text]
    from_width: int = 0
    is_number: bool = True


class Handling(NamedTuple):
    """A handler, and the worker that it is part of."""

    worker: WorkerStatus
    handler: HandlerStatus


class Held(NamedTuple):
    """A lease, and the worker that has it."""

    worker: WorkerStatus
    lease: LeaseStatus


def view(look: Look, *, width: int, height: int | None = None, failure: str | None = None) -> RenderableType:
    """Return the whole picture; ``height`` bounds its lines, ``None`` shows everything.

    ``failure`` is why the queues could not be looked at.
    """
    handlings = [Handling(worker, handler) for worker in look.workers for handler in worker.handlers]
    leases = [Held(worker, lease) for worker in look.workers for lease in worker.leases]
    leases.sort(key=lambda held: (held.lease.left_s, held.lease.message_id))
    rooms = _rooms([len(look.queues), len(handlings), len(leases)], height)
    queues = _fullest(look.queues, rooms[0])
    parts: list[RenderableType] = [
        Text(f"{look.endpoint}  {instant(look.at_ms)}", style="bold", no_wrap=True, overflow="ellipsis"),
        _table(queues, QUEUES, width) if failure is None else Text(failure, style="red"),
        *_rest(look.queues_in_all - len(queues), "more queues; those with the most messages are shown, up to 200"),
        _table(handlings[: rooms[1]], WORKERS, width),
        *_rest(len(handlings) - rooms[1], "more handlers"),
        *(Text(f"no answer from {place}", style="red") for place in look.silent),
        _table(leases[: rooms[2]], LEASES, width),
        *_rest(sum(each.handler.leased for each in handlings) - min(rooms[2], len(leases)), "more leases"),
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


QUEUES: Sequence[Column[QueueRow]] = (
    Column(title="queue", tell=lambda row: row.queue, is_number=False),
    Column(title="visible", tell=lambda row: str(row.visible)),
    Column(title="in flight", tell=lambda row: str(row.in_flight)),
    Column(title="delayed", tell=lambda row: str(row.delayed), from_width=50),
    Column(title="oldest", tell=lambda row: span(row.oldest_s), from_width=60),
    Column(
        title="redelivered",
        tell=lambda row: UNKNOWN if row.redeliveries is None else str(row.redeliveries),
        from_width=72,
    ),
)
WORKERS: Sequence[Column[Handling]] = (
    Column(title="worker", tell=lambda row: _name(row.worker), is_number=False),
    Column(title="queue", tell=lambda row: row.handler.queue, from_width=60, is_number=False),
    Column(title="handler", tell=lambda row: row.handler.handler, from_width=50, is_number=False),
    Column(title="running", tell=lambda row: str(row.handler.running)),
    Column(title="buffered", tell=lambda row: str(row.handler.buffered), from_width=40),
    Column(title="done", tell=lambda row: str(row.handler.events.get("acked", 0)), from_width=72),
    Column(title="redelivered", tell=lambda row: str(row.handler.events.get("redelivered", 0)), from_width=84),
)
LEASES: Sequence[Column[Held]] = (
    Column(title="message", tell=lambda row: row.lease.message_id, is_number=False),
    Column(title="worker", tell=lambda row: row.worker.worker, from_width=100, is_number=False),
    Column(title="queue", tell=lambda row: row.lease.queue, from_width=72, is_number=False),
    Column(title="handler", tell=lambda row: row.lease.handler, from_width=120, is_number=False),
    Column(title="attempt", tell=lambda row: str(row.lease.attempt), from_width=84),
    Column(title="held", tell=lambda row: span(row.lease.held_s), from_width=60),
    Column(title="lease", tell=lambda row: _state(row.lease), from_width=40, is_number=False),
    Column(title="left", tell=lambda row: _left(row.lease)),
)


def _table(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int) -> Table:
    shown = [column for column in columns if column.from_width <= width]
    table = Table(box=None, pad_edge=False, expand=True, header_style="reverse")
    for number, column in enumerate(shown):
        justify: Any = "right" if column.is_number else "left"
        table.add_column(
            column.title, justify=justify, no_wrap=True, overflow="ellipsis", ratio=1 if number == 0 else None
        )
    for row in rows:
        table.add_row(*(column.tell(row) for column in shown))
    return table


def _rest(count: int, what: str) -> list[Text]:
    return [Text(f"… and {count} {what}", style="dim", no_wrap=True, overflow="ellipsis")] if count > 0 else []


def _rooms(wanted: list[int], height: int | None) -> list[int]:
    """Return how many rows each table has: all it wants, or shares of what there is, which who needs less leaves."""
    if height is None:
        return wanted
    left = max(0, height - _LINES_OF_TITLES)
    rooms = dict.fromkeys(range(len(wanted)), 0)
    for tables, place in enumerate(sorted(rooms, key=lambda place: wanted[place])):
        rooms[place] = min(wanted[place], left // (len(wanted) - tables))
        left -= rooms[place]
    return list(rooms.values())


def _fullest(rows: Sequence[QueueRow], room: int) -> list[QueueRow]:
    kept = sorted(rows, key=lambda row: (-row.visible - row.in_flight - row.delayed, row.queue))[:room]
    return sorted(kept, key=lambda row: row.queue)


def _name(worker: WorkerStatus) -> str:
    return f"{worker.worker} (stopping)" if worker.stopping else worker.worker


def _state(lease: LeaseStatus) -> Text:
    return Text(lease.state if lease.running else f"{lease.state}, waits", style=_STYLES.get(lease.state, ""))


def _left(lease: LeaseStatus) -> Text:
    return Text(span(lease.left_s), style="yellow" if lease.left_s < _SHORT_S else "")


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


EVERY_S = Range(minimum=1, maximum=3_600, default=1)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def top(
    *,
    prefix: Annotated[str, Parameter(show_default=False, help="Only queues whose names begin with this.")] = "",
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
        str | None,
        Parameter(metavar="URL", help="The server's metrics. On this machine: the port behind the endpoint's."),
    ] = None,
    every: Annotated[int, whole_number(EVERY_S, "Seconds from one look to the next.")] = EVERY_S.default,
    once: Annotated[bool, Parameter(negative=(), show_default=False, help="Look once, print it, and end.")] = False,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Watch queues, workers, and the leases of their messages; q or Ctrl-C ends it.

    Workers of this user on this machine are found by themselves. With --json
    each look is one line.
    """
    live = not once and not json
    if live and not sys.stdout.isatty():
        raise UsageError("The output is no terminal; use --once, or --json.")
    from veilmq.cli.top import Observer, print_looks, show_live

    with ExitStack() as stack:
        client = stack.enter_context(connect(endpoint))
        observer = Observer(client, prefix=prefix, admin=admin or _beside(endpoint), workers=workers or ())
        stack.callback(observer.close)
        if live:
            show_live(observer, endpoint, every)
        else:
            print_looks(observer, endpoint, every, once=once, json=json)


def _beside(endpoint: str) -> str | None:
    """Return where a server on this machine has its metrics, unless it was told otherwise; elsewhere nobody knows."""
    parts = urlsplit(endpoint)
    if parts.hostname not in _LOOPBACK or parts.port is None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port + 1}"
