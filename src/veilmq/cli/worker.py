"""``veilmq worker`` and ``veilmq forward``, with their logs and the port for their metrics."""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Annotated, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import CommandFailed, Endpoint, UsageError, needs_extra, stop_on_signals, whole_number
from veilmq.cli.connection import connect, connect_forwards
from veilmq.client import HttpQueueClient
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.consumer import Consumer
from veilmq.consumer.app import statuses
from veilmq.consumer.forwarding import (
    REPORT_S,
    TIMEOUT_S,
    WAIT_S,
    WORKERS,
    Forwarder,
    ForwardRelay,
    Relay,
    SendRelay,
    Totals,
    can_forward,
    check_targets,
    forwarder_metrics,
    ready_queues,
)
from veilmq.consumer.forwarding_rules import Router, RoutesError, TableRouter, read_rules
from veilmq.consumer.metrics import exported
from veilmq.core.limits import Range
from veilmq.core.settings import TableError, read_table
from veilmq.wire.sqs.names import is_fifo

LogLevel = Annotated[
    str, Parameter(name="--log", metavar="LEVEL", help="How much to log: debug, info, warning, error.")
]
LogFormat = Annotated[
    str, Parameter(name="--log-format", metavar="FORMAT", help="How to log: text, or json for machines.")
]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One object for each record: when, how serious, whose, what, and whatever else the record was given."""

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


def log_as(level: str, form: str) -> None:
    """Log to standard error from ``level`` on, as ``form`` says; raises ``UsageError``."""
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise UsageError(f"--log: {level!r} is no level; use debug, info, warning or error.")
    if form not in _FORMATTERS:
        raise UsageError(f"--log-format: {form!r} is none; use {' or '.join(_FORMATTERS)}.")
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[form])
    logging.basicConfig(level=number, handlers=[handler])


PORT = Range(minimum=0, maximum=65_535, default=9_326)

MetricsPort = Annotated[
    int | None, whole_number(PORT, "Port of the machine for Prometheus's metrics; without it there are none.")
]

log = logging.getLogger(__name__)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing: somebody looks every few seconds."""


@contextmanager
def metrics_served(port: int | None, *, command: str) -> Iterator[None]:
    """Serve on ``port`` while the context lasts; ``None`` for not at all. Raises ``CommandFailed``."""
    if port is None:
        yield
        return
    with needs_extra("server", command=f"{command} --metrics-port"):
        from prometheus_client import make_wsgi_app
    metrics = make_wsgi_app()

    def answer(request: dict[str, Any], begin: Any) -> Iterable[bytes]:
        return _status(begin) if request.get("PATH_INFO") == "/status" else metrics(request, begin)

    try:
        server = make_server("", port, answer, server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        raise CommandFailed(f"--metrics-port: cannot listen at {port}: {error.strerror}.") from error
    log.info("metrics at port %d", server.server_port)
    with server:
        threading.Thread(target=server.serve_forever, name="veilmq-metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def _status(begin: Any) -> Iterable[bytes]:
    begin("200 OK", [("Content-Type", "application/json")])
    return [msgspec.json.encode(statuses())]


Place = Annotated[str, Parameter(help="Module and name of the consumer, such as shop.orders:app.")]


def worker(
    place: Place,
    /,
    *,
    metrics_port: MetricsPort = None,
    hidden: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Keep `veilmq top` from seeing this worker.")
    ] = False,
    create: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Make the queues that its handlers name.")
    ] = False,
    log: LogLevel = "info",
    log_format: LogFormat = "text",
) -> int:
    """Run the consumer of a module until SIGTERM or SIGINT.

    The current folder comes first where modules are looked for. The exit code
    is 0 when everything was settled, 1 when a queue could not be consumed, 3
    when a handler did not stop or a message could not be settled.
    """
    log_as(log, log_format)
    consumer = load(place)
    consumer.seen = consumer.seen and not hidden
    consumer.create = consumer.create or create
    with metrics_served(metrics_port, command="worker"):
        return consumer.run()


def load(place: str) -> Consumer:
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
    return consumer


_ATOMIC = "each message in one transaction"
_PLAIN = "by sending and deleting"


def forward(
    *,
    intake: Annotated[str, Parameter(name="--from", metavar="QUEUE", help="Name of the intake queue.")],
    rules: Annotated[Path | None, Parameter(metavar="FILE", help="TOML file with forwarding rules.")] = None,
    table: Annotated[
        Path | None, Parameter(metavar="FILE", help="Instead of rules: a routing table, as written by route-table.")
    ] = None,
    create: Annotated[bool, Parameter(negative=(), show_default=False, help="Create missing target queues.")] = False,
    plain: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Send and delete, even if the server can forward.")
    ] = False,
    until_empty: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Exit when no message is left.")
    ] = False,
    workers: Annotated[int, whole_number(WORKERS, "Number of concurrent batches.")] = WORKERS.default,
    timeout: Annotated[
        int, whole_number(TIMEOUT_S, "Seconds after which a message that was not forwarded returns to the intake.")
    ] = TIMEOUT_S.default,
    wait: Annotated[
        int, whole_number(WAIT_S, "Seconds for which a receive waits for a message; a stop can take as long.")
    ] = WAIT_S.default,
    every: Annotated[int, whole_number(REPORT_S, "Seconds between lines of progress.")] = REPORT_S.default,
    metrics_port: MetricsPort = None,
    log: LogLevel = "warning",
    log_format: LogFormat = "text",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Forward each message of a queue to the queue that the rules select, until stopped.

    No message is lost if the command is killed. Restarting it, or running it
    several times concurrently, is safe.
    """
    log_as(log, log_format)
    router = _checked(_router(rules, table), intake)
    with ExitStack() as stack:
        client = stack.enter_context(connect(endpoint))
        for made in _ready(client, router, intake, create=create):
            print(f"{made}: created", file=sys.stderr)
        carrier, how = _carrier(stack, client, endpoint, intake, plain=plain)
        stop = stack.enter_context(stop_on_signals())
        print(f"{intake}: forwarding to {', '.join(router.targets)}, {how}", file=sys.stderr, flush=True)
        forwarder = Forwarder(
            client,
            router,
            carrier,
            intake=intake,
            workers=workers,
            timeout_s=timeout,
            wait_s=wait,
            until_empty=until_empty,
            stop=stop,
        )
        stack.enter_context(exported(forwarder_metrics(intake, forwarder.totals)))
        stack.enter_context(metrics_served(metrics_port, command="forward"))
        totals = forwarder.run(report=_progress(intake, every), every_s=every)
    _print_totals(intake, totals)


def _router(rules: Path | None, table: Path | None) -> Router:
    if (rules is None) == (table is None):
        raise UsageError("Give either --rules FILE or --table FILE.")
    if rules is not None:
        return _read_rules("--rules", rules, read_rules)
    assert table is not None
    return _read_rules("--table", table, lambda text: TableRouter(read_table(text)))


def _read_rules(option: str, path: Path, read: Callable[[str], Router]) -> Router:
    try:
        return read(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RoutesError, TableError) as error:
        raise UsageError(f"{option} {os.fspath(path)}: {error}") from error


def _checked(router: Router, intake: str) -> Router:
    try:
        check_targets(intake, router.targets)
    except RoutesError as error:
        raise UsageError(str(error)) from error
    return router


def _ready(client: HttpQueueClient, router: Router, intake: str, *, create: bool) -> list[str]:
    client.show(intake)
    try:
        return ready_queues(client, router.targets, create=create)
    except RoutesError as error:
        raise UsageError(str(error)) from error


def _carrier(
    stack: ExitStack, client: HttpQueueClient, endpoint: str, intake: str, *, plain: bool
) -> tuple[Relay, str]:
    fifo = is_fifo(intake)
    forwards = stack.enter_context(connect_forwards(endpoint, intake))
    if plain or not can_forward(forwards):
        return SendRelay(client, intake, fifo=fifo), _PLAIN
    return ForwardRelay(forwards, fifo=fifo), _ATOMIC


def _progress(intake: str, every_s: int) -> Callable[[Totals], None]:
    """Return a callback that prints a line of progress if the totals have changed."""
    before = Totals()

    def print_progress(totals: Totals) -> None:
        nonlocal before
        if totals != before:
            rate = (totals.messages - before.messages) / every_s
            stayed = f", {totals.stayed.total()} stayed" if totals.stayed else ""
            print(f"{intake}: {totals.messages} messages forwarded ({rate:.0f}/s){stayed}", file=sys.stderr, flush=True)
            before = totals

    return print_progress


def _print_totals(intake: str, totals: Totals) -> None:
    each = ", ".join(f"{queue} {count}" for queue, count in sorted(totals.forwarded.items()))
    print(f"{intake}: {totals.messages} messages forwarded{f' ({each})' if each else ''}")
    if totals.stayed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(totals.stayed.items()))
        print(f"{intake}: {totals.stayed.total()} attempts failed, and the messages stayed ({reasons})")
