"""What commands share: how they fail, their common options, what they print, and how they are stopped."""

import os
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
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from veilmq.client.transport import ENDPOINT_VARIABLES, endpoint_of
from veilmq.core.limits import SECOND_MS, Range
from veilmq.server import settings


class CommandFailed(Exception):
    """The command was right and could not be done; exit code 1."""


class UsageError(Exception):
    """The command was asked wrongly; exit code 2."""


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


Value = TypeVar("Value")


def _endpoint(_: Any, tokens: Sequence[Token]) -> str:
    """Return the URL that was given; an empty variable names no server, and the next one counts."""
    (token,) = tokens
    return endpoint_of(os.environ) if token.source == "env" else token.value


Endpoint = Annotated[
    str,
    Parameter(
        name="--endpoint",
        env_var=ENDPOINT_VARIABLES,
        converter=_endpoint,
        metavar="URL",
        help="Server to talk to.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print JSON, for machines.")]
Yes = Annotated[bool, Parameter(name="--yes", negative=(), show_default=False, help="Do not ask for confirmation.")]
Queue = Annotated[str, Parameter(help="Name of the queue.")]


def read_by(read: Callable[[str], Value], *, allowed: str) -> Callable[[Any, Sequence[Token]], Value]:
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


def whole_number(allowed: Range, text: str) -> Parameter:
    """Return an option for a number in a range, which its help tells and its value must keep."""
    kind = settings.whole_number(allowed)
    help_text = f"{text} From {allowed.minimum} to {allowed.maximum}."
    return Parameter(converter=read_by(kind.read, allowed=kind.allowed), metavar="N", negative=(), help=help_text)


def own_number(allowed: Range, text: str) -> Parameter:
    """Return an option for a number in a range, as text, or ``''`` for the server's setting."""

    def check(_: Any, value: str | None) -> None:
        if value and not (value.isdecimal() and allowed.holds(int(value))):
            raise ValueError(f"Must be a whole number from {allowed.minimum} to {allowed.maximum}, or ''.")

    help_text = f"{text} From {allowed.minimum} to {allowed.maximum}; '' for the server's setting."
    return Parameter(validator=check, metavar="N", negative=(), help=help_text)


def print_json(value: Any) -> None:
    """Print ``value`` as one JSON document on one line."""
    print(msgspec.json.encode(value).decode())


def print_aligned(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns; further lines of a value stay in its column."""
    pairs = [(name, str(value)) for name, value in rows]
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        print(name.ljust(width) + value.replace("\n", "\n" + " " * width))


def instant(at_ms: int) -> str:
    """Return an instant as a date and a time of day in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // SECOND_MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def confirm(question: str, *, yes: bool) -> None:
    """Return if ``yes`` or the person at the terminal says so; raises otherwise.

    Without a terminal nobody can be asked, and silence is no consent: ``--yes`` is needed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("There is no terminal to ask for confirmation at; add --yes if you are sure.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was done.")


Report = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@contextmanager
def progress(what: str, *, unit: str) -> Iterator[Report]:
    """Show a bar on standard error for a while; ``what`` is done to so many ``unit``."""
    columns = (
        TextColumn(f"{what} {{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=0)

        def report(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        yield report


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
