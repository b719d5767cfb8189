"""``veilmq worker`` and ``veilmq forward``, with their logs and metrics."""

import importlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import CommandFailed, Result, command, stop_on_signals
from veilmq.cli.connection import Server, environment
from veilmq.cli.options import UsageError, content, number, option, read_by
from veilmq.client import QueueClient
from veilmq.client.api import Forwards
from veilmq.consumer import Consumer, forwarding
from veilmq.consumer.app import statuses
from veilmq.consumer.forwarding_rules import Rules, TableRouter, read_rules
from veilmq.consumer.metrics import exported, served
from veilmq.consumer.processes import Supervisor, process_number
from veilmq.core.limits import Range
from veilmq.core.settings import read_table
from veilmq.wire.sqs.names import is_fifo

LogLevel = Literal["debug", "info", "warning", "error"]
_LEVEL = read_by(
    lambda text: {each: each for each in get_args(LogLevel)}[text.lower()], "debug, info, warning or error"
)
LogFormat = Literal["text", "json"]
LOG_FORMAT = option("Format of the log; json is one object a line.", default="text")
METRICS_PORT = number(
    Range(minimum=0, maximum=65_535, default=9_326), "Port for Prometheus metrics; by default there is none."
)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One object for each record: time, level, logger, message, and the fields of its ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=repr).decode()
        except (RecursionError, UnicodeEncodeError):  # a value contains itself, or bytes that are no text
            shown = {name: str(value).encode(errors="backslashreplace").decode() for name, value in line.items()}
            return msgspec.json.encode(shown).decode()


def _log_as(level: str, form: str) -> None:
    """Log to standard error, from ``level``, in the format ``form``."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("urllib3").setLevel("DEBUG" if level == "debug" else "ERROR")  # it repeats each failed attempt
    if form == "json":
        logging.getLogger().handlers[0].setFormatter(JsonLines())


def _serve_metrics(port: int | None, stack: ExitStack) -> None:
    """Serve metrics on ``port``, if any, until ``stack`` closes."""
    try:
        stack.enter_context(served(port, statuses))
    except OSError as error:
        raise CommandFailed(f"--metrics-port: {error}.") from error


@partial(command, prints=False)
def worker(
    place: Annotated[str, Parameter(help="Module and name of the consumer, such as shop.orders:app.")],
    /,
    *,
    metrics_port: int | None = METRICS_PORT,
    hidden: bool = option("Hide this worker from `veilmq top`."),
    create: bool = option("Create the queues that its handlers name."),
    opentelemetry: bool = option("Export spans and metrics by OTLP, configured by OTEL_* variables."),
    processes: int = number(Range(minimum=1, maximum=64, default=1), "Number of processes, restarted if they crash."),
    reload: bool = option("Restart when a Python file in this folder changes."),
    log: LogLevel = option("Minimum level to log.", default="info", converter=_LEVEL),
    log_format: LogFormat = LOG_FORMAT,
) -> int:
    """Run the consumer of a module until SIGTERM or SIGINT.

    The current folder is searched for the module first. The exit code is 0 if
    all messages were settled, 1 if a queue could not be consumed, 3 if a
    handler did not stop or a message could not be settled.
    """
    _log_as(log, log_format)
    os.environ.update(environment())  # for the consumer's endpoint and key
    if process_number() is None and (processes > 1 or reload):
        if reload:
            importlib.import_module("watchfiles")  # report a missing module before anything starts
        command = [sys.executable, "-m", "veilmq", "worker", place, "--log", log, "--log-format", log_format]
        command += ["--metrics-port", str(metrics_port)] if metrics_port is not None else []
        flags = {"--hidden": hidden, "--create": create, "--opentelemetry": opentelemetry}
        command += [flag for flag, is_given in flags.items() if is_given]
        return Supervisor(command, count=processes, reload=Path.cwd() if reload else None).run()
    consumer = _load(place)
    consumer.seen = consumer.seen and not hidden
    consumer.create = consumer.create or create
    consumer.opentelemetry = consumer.opentelemetry or opentelemetry
    port, consumer.metrics_port = consumer.metrics_port if metrics_port is None else metrics_port, None
    with ExitStack() as stack:
        _serve_metrics(port, stack)
        return consumer.run()


def _load(place: str) -> Consumer:
    """Return the consumer at ``place``. Raises ``UsageError`` if there is none."""
    module_name, _, name = place.partition(":")
    if not module_name or module_name.startswith(".") or not name:
        raise UsageError(f"{place!r} names no consumer; write module:name, such as shop.orders:app.")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - sys.path holds text
    try:
        module = importlib.import_module(module_name)
    except (ModuleNotFoundError, OSError) as error:
        if not f"{module_name}.".startswith(f"{getattr(error, 'name', None)}."):
            raise ImportError(f"{module_name} cannot be imported") from error  # it exists, and its own import failed
        raise UsageError(f"There is no module {module_name!r} here.") from error
    consumer = getattr(module, name, None)
    if not isinstance(consumer, Consumer):
        raise UsageError(f"{name!r} of {module_name!r} is no veilmq.consumer.Consumer.")
    if not consumer.handlers:
        raise UsageError(f"The consumer {place} has no handler; declare one with @{name}.handler.")
    try:
        consumer.check()
    except TypeError as error:
        raise UsageError(f"The consumer {place} cannot start: {error}.") from error
    return consumer


@command
def forward(
    *,
    intake: Annotated[str, Parameter(name="--from", metavar="QUEUE", help="Name of the intake queue.")],
    rules: Rules | None = content(lambda raw: read_rules(raw.decode("utf-8-sig")), "TOML file with forwarding rules."),
    table: TableRouter | None = content(
        lambda text: TableRouter(read_table(text)), "Instead of rules: a routing table, as written by route-table."
    ),
    create: bool = option("Create missing target queues."),
    plain: bool = option("Send and delete, even if the server can forward."),
    until_empty: bool = option("Exit when no message is left."),
    workers: int = number(forwarding.WORKERS, "Number of concurrent batches."),
    timeout: int = number(
        forwarding.TIMEOUT_S, "Seconds after which a message that was not forwarded returns to the intake."
    ),
    wait: int = number(forwarding.WAIT_S, "Seconds for which a receive waits for a message; a stop can take as long."),
    every: int = number(forwarding.REPORT_S, "Seconds between lines of progress."),
    metrics_port: int | None = METRICS_PORT,
    log: LogLevel = option("Minimum level to log.", default="warning", converter=_LEVEL),
    log_format: LogFormat = LOG_FORMAT,
    server: Server,
) -> Result:
    """Forward each message of a queue to the queue that the rules select, until stopped.

    No message is lost if the command is killed. Restarting it, or running it
    several times concurrently, is safe.
    """
    _log_as(log, log_format)
    router = rules or table
    if router is None or (rules and table):
        raise UsageError("Give either --rules FILE or --table FILE.")
    forwarding.check_targets(intake, router.targets)
    client, forwards, fifo = QueueClient(server), Forwards(server, intake), is_fifo(intake)
    with ExitStack() as stack:
        client.show(intake)
        for created in forwarding.ready_queues(client, router.targets, create=create):
            print(f"{created}: created", file=sys.stderr)
        relay: forwarding.Relay = partial(forwarding.relay_by_sending, client, intake, fifo=fifo)
        method = "by sending and deleting"
        if not plain and forwarding.can_forward(forwards):
            relay = partial(forwarding.relay_in_transactions, forwards, fifo=fifo)
            method = "each message in one transaction"
        stop = stack.enter_context(stop_on_signals())
        print(f"{intake}: forwarding to {', '.join(router.targets)}, {method}", file=sys.stderr, flush=True)
        options: dict[str, Any] = {"workers": workers, "timeout_s": timeout, "wait_s": wait, "until_empty": until_empty}
        forwarder = forwarding.Forwarder(client, router, relay, intake=intake, stop=stop, **options)
        stack.enter_context(exported(forwarding.forwarder_metrics(intake, forwarder.totals)))
        _serve_metrics(metrics_port, stack)
        totals = forwarder.run(report=_progress(intake, every), every_s=every)
    return _result(intake, totals)


def _progress(intake: str, every_s: int) -> Callable[[forwarding.Totals], None]:
    """Return a callback that prints a line of progress if the totals have changed."""
    before = forwarding.Totals()

    def print_progress(totals: forwarding.Totals) -> None:
        nonlocal before
        if totals != before:
            messages = totals.forwarded.total()
            rate = (messages - before.forwarded.total()) / every_s
            stayed = f", {totals.failed.total()} stayed" if totals.failed else ""
            print(f"{intake}: {messages} messages forwarded ({rate:.0f}/s){stayed}", file=sys.stderr, flush=True)
            before = totals

    return print_progress


def _result(intake: str, totals: forwarding.Totals) -> Result:
    forwarded, stayed = Counter[str](), {reason: count for (reason,), count in totals.failed.items()}
    for (queue, _), count in totals.forwarded.items():
        forwarded[queue] += count
    each = ", ".join(f"{queue} {count}" for queue, count in sorted(forwarded.items()))
    lines = [f"{intake}: {forwarded.total()} messages forwarded{f' ({each})' if each else ''}"]
    if stayed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(stayed.items()))
        lines.append(f"{intake}: {totals.failed.total()} attempts failed, and the messages stayed ({reasons})")
    document = {"intake": intake, "messages": forwarded.total(), "forwarded": forwarded, "stayed": stayed}
    return Result(document, "\n".join(lines))
