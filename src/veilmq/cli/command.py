"""What commands share: how they fail, options, what they print, questions, progress, and how they are stopped."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter, Token

from veilmq.core.limits import SECOND_MS, Range

Value = TypeVar("Value")
Rows = Iterable[tuple[str, object]]
"""Names and values; further lines of a value stay in its column."""


class CommandFailed(Exception):
    """The command was right and could not be done; exit code 1. The text says what to do."""


class UsageError(Exception):
    """The command line is wrong; exit code 2. The text says what to do."""


# Options.


def option(text: str, metavar: str | None = None, *, name: str | None = None) -> Parameter:
    """Return an option whose default is not worth showing: a switch, one that may be repeated, a text left out."""
    named: dict[str, Any] = (
        {"name": name} if name else {}
    )  # without one a name of the same parameter that is given apart holds
    return Parameter(**named, negative=(), show_default=False, metavar=metavar, help=text)


def read_by(read: Callable[[str], Value], *, allowed: object) -> Callable[[Any, Sequence[Token]], Value]:
    """Return what converts the word of an option, or of an argument, with ``read``.

    What ``read`` refuses with ``ValueError`` is a ``UsageError`` that names the option and says, with ``allowed``, what
    it must be. Left to the library, 1.5 would be the whole number 2, and abc "unable to convert" without a range.
    """

    def convert(_: Any, tokens: Sequence[Token]) -> Value:
        (token,) = tokens
        try:
            return read(token.value)
        except ValueError:
            place = f" for {token.keyword}" if token.keyword else ""
            raise UsageError(f'Invalid value "{token.value}"{place}. Must be {allowed}.') from None

    return convert


def read_pair(text: str, refusal: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``; raises ``UsageError`` with the text ``refusal``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(refusal)
    return name, value


def whole_number(allowed: Range, text: str) -> Parameter:
    """Return an option for a number in a range, which its help names and its value must keep."""
    text = f"{text} From {allowed.minimum} to {allowed.maximum}."
    return Parameter(converter=read_by(allowed.read, allowed=allowed), metavar="N", negative=(), help=text)


Json = Annotated[bool, option("Print one JSON document on one line.", name="--json")]
Yes = Annotated[bool, option("Do not ask for confirmation.", name="--yes")]
Queue = Annotated[str, Parameter(help="Name of the queue.")]
AdminEndpoint = Annotated[
    str, Parameter(name="--admin-endpoint", metavar="URL", help="The server's port for health and metrics.")
]
DEFAULT_ADMIN_ENDPOINT = "http://127.0.0.1:9325"


# What commands print.


def print_json(value: Any) -> None:
    """Print ``value`` as one JSON document on one line."""
    print(msgspec.json.encode(value).decode())


def print_aligned(rows: Rows) -> None:
    """Print names and values in two columns."""
    pairs = [(name, str(value)) for name, value in rows]
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        print(name.ljust(width) + value.replace("\n", "\n" + " " * width))


def print_result(value: Any, shown: str | Iterable[Rows], *, json: bool) -> None:
    """Print ``value`` as JSON, or else ``shown``: a text, or aligned rows in blocks with an empty line between."""
    if json:
        print_json(value)
    elif isinstance(shown, str):
        print(shown)
    else:
        for place, rows in enumerate(shown):
            if place:
                print()
            print_aligned(rows)


def instant(at_ms: int) -> str:
    """Return an instant as a date and a time of day in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // SECOND_MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@contextmanager
def progress(what: str, *, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Give a function for how many ``unit`` are done, and of how many: a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    text = TextColumn(f"{what} {{task.completed:,.0f}} {unit}")
    console = Console(stderr=True)
    with Progress(
        text, BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# Questions, missing modules, signals.


def confirm(question: str, *, yes: bool) -> None:
    """Return if ``yes``, or if the answer at the terminal is yes; raises otherwise.

    Without a terminal there is no answer, and silence is no consent: ``--yes`` is needed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Confirmation needs a terminal; add --yes to go on without it.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was done.")


@contextmanager
def needs_extra(name: str, *, command: str) -> Iterator[None]:
    """Turn a failing import of a third party's module into a ``CommandFailed`` that names the extra ``name``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "veilmq":
            raise  # a defect of ours, which no extra repairs
        raise CommandFailed(
            f"veilmq {command} needs the module {error.name}, which the plain install does not have: "
            f"pip install 'veilmq[{name}]'"
        ) from error


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set; a second one ends the process as usual."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[number])

    for each in (signal.SIGINT, signal.SIGTERM):
        before[int(each)] = signal.signal(each, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
