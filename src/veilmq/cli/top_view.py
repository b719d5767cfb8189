"""What ``veilmq top`` shows of one look: a pure function of the look and of the size of the terminal.

A narrow terminal has fewer columns, a low one fewer rows: of queues those with the most messages are kept, of leases
those that end first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from veilmq.cli.printing import instant
from veilmq.cli.top_look import Look, QueueRow
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus

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
