"""What commands share: results, failures, questions, progress, and how they are stopped."""

import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple

import msgspec
from cyclopts import App, Group

from veilmq.cli.options import JSON, UsageError, signature_of
from veilmq.core.limits import SECOND_MS

Rows = Iterable[tuple[str, object]]
"""Names and values; further lines of a value stay in its column."""


class CommandFailed(Exception):
    """The command was right and could not be done; exit code 1. The text says what to do."""


class Result(NamedTuple):
    """What a command prints: ``value`` as one JSON document on one line, or else ``text``, with ``note`` to stderr."""

    value: Any
    text: str
    note: str = ""
    code: int = 0

    def show(self, *, json: bool) -> int:
        """Print it, and return the exit code ``code``; without ``text`` there is no line."""
        if json:
            print(msgspec.json.encode(self.value).decode())
        elif self.text:
            print(self.text)
        if self.note and not json:
            print(self.note, file=sys.stderr)
        sys.stdout.flush()
        return self.code


def command(function: Callable[..., Result | int | None], *, prints: bool = True) -> Callable[..., int | None]:
    """Return the command ``function`` with its options and, if it ``prints``, ``--json``, which shows its result.

    It closes the connection to its ``server``.
    """
    signature = signature_of(function, json=JSON) if prints else signature_of(function)
    takes_json = "json" in inspect.signature(function).parameters

    @wraps(function)
    def run(*arguments: Any, **given: Any) -> int | None:
        bound = signature.bind(*arguments, **given)
        bound.apply_defaults()
        json = bound.arguments.get("json", False) if takes_json else bound.arguments.pop("json", False)
        with ExitStack() as stack:
            if server := bound.arguments.get("server"):
                stack.callback(server.close)
            result = function(*bound.args, **bound.kwargs)
            return result.show(json=json) if isinstance(result, Result) else result

    run.__signature__ = signature  # type: ignore[attr-defined]  # what inspect reads instead of the real one
    run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return run


def group(name: str, *functions: Callable[..., Result | None], **named: Callable[..., Result]) -> App:
    """Return the commands ``name …``; one has the name of its function, unless it is given by another."""
    app = App(name=name, group_parameters=Group("Parameters", help_formatter=_required_first))
    for each, function in [*((None, each) for each in functions), *named.items()]:
        app.command(command(function), name=each)
    return app


def _required_first(console: Any, options: Any, panel: Any) -> None:
    """Show the options of a command, those that are required before all others, in whatever table they are."""
    from cyclopts.help import DefaultFormatter

    panel.entries.sort(key=lambda each: not each.required)
    DefaultFormatter()(console, options, panel)


def aligned(*blocks: Rows) -> str:
    """Return names and values in two columns, without those that are ``None``; an empty line is between ``blocks``."""
    texts = []
    for rows in blocks:
        shown = [(name, str(value)) for name, value in rows if value is not None]
        width = max((len(name) for name, _ in shown), default=0) + 2
        texts.append("\n".join(name.ljust(width) + value.replace("\n", "\n" + " " * width) for name, value in shown))
    return "\n\n".join(texts)


def instant(at_ms: int) -> str:
    """Return an instant as a date and a time of day in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // SECOND_MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@contextmanager
def progress(unit: str, totals: Mapping[str, int | None]) -> Iterator[Callable[..., None]]:
    """Give a function for how many ``unit`` of a name are done: a bar for each on a terminal, nothing elsewhere.

    ``totals`` has the names, and how many there are; the function may be given that too.
    """
    if not sys.stderr.isatty():
        yield lambda name, done, total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, done, total=None: bars.update(bar[name], completed=done, total=total)


# Questions and signals.


def confirm(question: str, *, yes: bool) -> None:
    """Return if ``yes``, or if the answer at the terminal is yes; raises otherwise.

    Without a terminal there is no answer, and silence is no consent: ``--yes`` is needed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Confirmation needs a terminal; add --yes to go on without it.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was done.")


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set; a second one ends the process as usual."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    with ExitStack() as stack:
        for number, handler in before.items():
            signal.signal(number, note)
            stack.callback(signal.signal, number, handler)
        yield stop
