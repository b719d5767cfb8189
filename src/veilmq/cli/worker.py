"""``veilmq worker`` and ``veilmq forward``, with their logs and the port for their metrics."""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import (
    CommandFailed,
    Json,
    UsageError,
    needs_extra,
    option,
    print_result,
    stop_on_signals,
    whole_number,
)
from veilmq.cli.connection import Endpoint, connect, environment
from veilmq.client import HttpQueueClient
from veilmq.client.api import Forwards
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.consumer import Consumer, forwarding
from veilmq.consumer.forwarding_rules import Router, RoutesError, TableRouter, read_rules
from veilmq.consumer.metrics import exported, served
from veilmq.consumer.processes import Supervisor, process_number
from veilmq.consumer.running import statuses
from veilmq.core.limits import Range
from veilmq.core.settings import TableError, read_table
from veilmq.wire.sqs.names import is_fifo

LogLevel = Annotated[
    str, Parameter(name="--log", metavar="LEVEL", help="Least level to log: debug, info, warning, error.")
]
LogFormat = Annotated[
    str,
    Parameter(name="--log-format", metavar="FORMAT", help="Format of the log: text, or json for one object a line."),
]
MetricsPort = Annotated[
    int | None,
    whole_number(
        Range(minimum=0, maximum=65_535, default=9_326), "Port for Prometheus's metrics; without it there is none."
    ),
]

PROCESSES = Range(minimum=1, maximum=64, default=1)

T = TypeVar("T")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One object for each record: time, level, logger, message, and the fields of its ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


_FORMATTERS = {
    "text": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JsonLines(),
}


def _log_as(level: str, form: str) -> None:
    """Log to standard error from ``level`` on, in the format ``form``; raises ``UsageError``."""
    severity = logging.getLevelName(level.upper())
    if not isinstance(severity, int):
        raise UsageError(f"--log: {level!r} is no level; use debug, info, warning or error.")
    if form not in _FORMATTERS:
        raise UsageError(f"--log-format: {form!r} is none; use {' or '.join(_FORMATTERS)}.")
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[form])
    logging.basicConfig(level=severity, handlers=[handler])


@contextmanager
def _metrics_served(port: int | None, *, command: str) -> Iterator[None]:
    """Serve on ``port`` while the context lasts; ``None`` for not at all. Raises ``CommandFailed``."""
    with ExitStack() as stack:
        try:
            with needs_extra("server", command=f"{command} --metrics-port"):
                stack.enter_context(served(port, statuses))
        except OSError as error:
            raise CommandFailed(f"--metrics-port: {error}.") from error
        yield


def worker(
    place: Annotated[str, Parameter(help="Module and name of the consumer, such as shop.orders:app.")],
    /,
    *,
    metrics_port: MetricsPort = None,
    hidden: Annotated[bool, option("Hide this worker from `veilmq top`.")] = False,
    create: Annotated[bool, option("Create the queues that its handlers name.")] = False,
    opentelemetry: Annotated[bool, option("Export spans and metrics by OTLP, as OTEL_* variables say.")] = False,
    processes: Annotated[int, whole_number(PROCESSES, "Number of processes; one that crashes is started again.")] = (
        PROCESSES.default
    ),
    reload: Annotated[bool, option("Start again when a Python file in this folder changes.")] = False,
    log: LogLevel = "info",
    log_format: LogFormat = "text",
) -> int:
    """Run the consumer of a module until SIGTERM or SIGINT.

    Modules are looked for in the current folder first. The exit code is 0 when
    all messages were settled, 1 when a queue could not be consumed, 3 when a
    handler did not stop or a message could not be settled.
    """
    _log_as(log, log_format)
    os.environ.update(environment())  # the consumer reads endpoint and key there
    if process_number() is None and (processes > 1 or reload):
        if reload:
            with needs_extra("reload", command="worker --reload"):
                importlib.import_module("watchfiles")
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
    with _metrics_served(port, command="worker"):
        return consumer.run()


def _load(place: str) -> Consumer:
    """Return the consumer at ``place``; raises ``UsageError`` when there is none."""
    module_name, _, name = place.partition(":")
    if not module_name or module_name.startswith(".") or not name:
        raise UsageError(f"{place!r} names no consumer; write module:name, such as shop.orders:app.")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - sys.path holds text
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there and lacks something itself
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


def forward(
    *,
    intake: Annotated[str, Parameter(name="--from", metavar="QUEUE", help="Name of the intake queue.")],
    rules: Annotated[Path | None, option("TOML file with forwarding rules.", "FILE")] = None,
    table: Annotated[
        Path | None, option("Instead of rules: a routing table, as written by route-table.", "FILE")
    ] = None,
    create: Annotated[bool, option("Create missing target queues.")] = False,
    plain: Annotated[bool, option("Send and delete, even if the server can forward.")] = False,
    until_empty: Annotated[bool, option("Exit when no message is left.")] = False,
    workers: Annotated[
        int, whole_number(forwarding.WORKERS, "Number of concurrent batches.")
    ] = forwarding.WORKERS.default,
    timeout: Annotated[
        int,
        whole_number(
            forwarding.TIMEOUT_S, "Seconds after which a message that was not forwarded returns to the intake."
        ),
    ] = forwarding.TIMEOUT_S.default,
    wait: Annotated[
        int,
        whole_number(forwarding.WAIT_S, "Seconds for which a receive waits for a message; a stop can take as long."),
    ] = forwarding.WAIT_S.default,
    every: Annotated[
        int, whole_number(forwarding.REPORT_S, "Seconds between lines of progress.")
    ] = forwarding.REPORT_S.default,
    metrics_port: MetricsPort = None,
    log: LogLevel = "warning",
    log_format: LogFormat = "text",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Forward each message of a queue to the queue that the rules select, until stopped.

    No message is lost if the command is killed. Restarting it, or running it
    several times concurrently, is safe.
    """
    _log_as(log, log_format)
    if (rules is None) == (table is None):
        raise UsageError("Give either --rules FILE or --table FILE.")
    router = _read("--rules", rules, read_rules) or _read("--table", table, lambda text: TableRouter(read_table(text)))
    assert router is not None
    _refused(lambda: forwarding.check_targets(intake, router.targets))
    with ExitStack() as stack:
        client = stack.enter_context(connect(HttpQueueClient, endpoint))
        client.show(intake)
        for made in _refused(lambda: forwarding.ready_queues(client, router.targets, create=create)):
            print(f"{made}: created", file=sys.stderr)
        forwards = stack.enter_context(connect(Forwards, endpoint, intake))
        relay: forwarding.Relay = forwarding.SendRelay(client, intake, fifo=is_fifo(intake))
        how = "by sending and deleting"
        if not plain and forwarding.can_forward(forwards):
            relay, how = forwarding.ForwardRelay(forwards, fifo=is_fifo(intake)), "each message in one transaction"
        stop = stack.enter_context(stop_on_signals())
        print(f"{intake}: forwarding to {', '.join(router.targets)}, {how}", file=sys.stderr, flush=True)
        forwarder = forwarding.Forwarder(
            client,
            router,
            relay,
            intake=intake,
            workers=workers,
            timeout_s=timeout,
            wait_s=wait,
            until_empty=until_empty,
            stop=stop,
        )
        stack.enter_context(exported(forwarding.forwarder_metrics(intake, forwarder.totals)))
        stack.enter_context(_metrics_served(metrics_port, command="forward"))
        totals = forwarder.run(report=_progress(intake, every), every_s=every)
    document = {"intake": intake, "messages": totals.messages, "forwarded": totals.forwarded, "stayed": totals.stayed}
    print_result(document, _summary(intake, totals), json=json)


def _read(option: str, path: Path | None, read: Callable[[str], Router]) -> Router | None:
    try:
        return None if path is None else read(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RoutesError, TableError) as error:
        raise UsageError(f"{option} {os.fspath(path or '')}: {error}") from error


def _refused(check: Callable[[], T]) -> T:
    """Return what ``check`` returns; raises ``UsageError`` where the routes are refused."""
    try:
        return check()
    except RoutesError as error:
        raise UsageError(str(error)) from error


def _progress(intake: str, every_s: int) -> Callable[[forwarding.Totals], None]:
    """Return a callback that prints a line of progress if the totals have changed."""
    before = forwarding.Totals()

    def print_progress(totals: forwarding.Totals) -> None:
        nonlocal before
        if totals != before:
            rate = (totals.messages - before.messages) / every_s
            stayed = f", {totals.stayed.total()} stayed" if totals.stayed else ""
            print(f"{intake}: {totals.messages} messages forwarded ({rate:.0f}/s){stayed}", file=sys.stderr, flush=True)
            before = totals

    return print_progress


def _summary(intake: str, totals: forwarding.Totals) -> str:
    each = ", ".join(f"{queue} {count}" for queue, count in sorted(totals.forwarded.items()))
    lines = [f"{intake}: {totals.messages} messages forwarded{f' ({each})' if each else ''}"]
    if totals.stayed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(totals.stayed.items()))
        lines.append(f"{intake}: {totals.stayed.total()} attempts failed, and the messages stayed ({reasons})")
    return "\n".join(lines)
