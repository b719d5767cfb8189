"""Shared by commands: results, failures, confirmation, progress and signals."""

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
"""Names and values; a value may have several lines."""


class CommandFailed(Exception):
    """A valid command failed; exit code 1. The text has the remedy."""


class Result(NamedTuple):
    """The output of a command: with ``--json`` ``value`` on one line, else ``text``, and ``note`` on stderr."""

    value: Any
    text: str
    note: str = ""
    code: int = 0

    def show(self, *, json: bool) -> int:
        """Print the result, and return the exit code. An empty ``text`` prints nothing."""
        if json:
            print(msgspec.json.encode(self.value).decode())
        elif self.text:
            print(self.text)
        if self.note and not json:
            print(self.note, file=sys.stderr)
        sys.stdout.flush()
        return self.code


def command(function: Callable[..., Result | int | None], *, prints: bool = True) -> Callable[..., int | None]:
    """Make ``function`` a command: convert its options, print its ``Result``, and close its ``server``'s connection.

    With ``prints`` it gets the option ``--json``.
    """
    signature = signature_of(function, json=JSON) if prints else signature_of(function)
    takes_json = "json" in inspect.signature(function).parameters

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> int | None:
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        json = bound.arguments.get("json", False) if takes_json else bound.arguments.pop("json", False)
        with ExitStack() as stack:
            if server := bound.arguments.get("server"):
                stack.callback(server.close)
            result = function(*bound.args, **bound.kwargs)
            return result.show(json=json) if isinstance(result, Result) else result

    run.__signature__ = signature  # type: ignore[attr-defined]  # for inspect
    run.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return run


def group(name: str, *functions: Callable[..., Result | None], **named: Callable[..., Result]) -> App:
    """Return the group of commands ``name``; commands have the names of their functions or keywords."""
    app = App(name=name, group_parameters=Group("Parameters", help_formatter=_required_first))
    for each, function in [*((None, each) for each in functions), *named.items()]:
        app.command(command(function), name=each)
    return app


def _required_first(console: Any, options: Any, panel: Any) -> None:
    """Show the options of a command, the required ones first."""
    from cyclopts.help import DefaultFormatter

    panel.entries.sort(key=lambda each: not each.required)
    DefaultFormatter()(console, options, panel)


def aligned(*blocks: Rows) -> str:
    """Format names and values in two columns, without values that are ``None``; an empty line separates ``blocks``."""
    texts = []
    for rows in blocks:
        shown = [(name, str(value)) for name, value in rows if value is not None]
        width = max((len(name) for name, _ in shown), default=0) + 2
        texts.append("\n".join(name.ljust(width) + value.replace("\n", "\n" + " " * width) for name, value in shown))
    return "\n\n".join(texts)


def instant(at_ms: int) -> str:
    """Format an instant as date and time in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // SECOND_MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@contextmanager
def progress(unit: str, totals: Mapping[str, int | None]) -> Iterator[Callable[..., None]]:
    """Show a progress bar for each name in ``totals`` (``None``: unknown) if stderr is a terminal.

    The context yields a function that takes a name, the number of ``unit`` done and, optionally, a new total.
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


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless ``yes``. Raises ``CommandFailed`` if denied, ``UsageError`` without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("Confirmation needs a terminal; add --yes to go on without it.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was done.")


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set; a second signal ends the process as usual."""
    stop = threading.Event()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, handlers[signal.Signals(number)])

    with ExitStack() as stack:
        for number, handler in handlers.items():
            signal.signal(number, on_signal)
            stack.callback(signal.signal, number, handler)
        yield stop
