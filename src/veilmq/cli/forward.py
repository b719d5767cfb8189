"""``veilmq forward``."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect, connect_forwards
from veilmq.cli.failures import UsageError
from veilmq.cli.logs import LogFormat, LogLevel, log_as
from veilmq.cli.metrics_port import MetricsPort, metrics_served
from veilmq.cli.options import Endpoint, whole_number
from veilmq.cli.stopping import stop_on_signals
from veilmq.client import HttpQueueClient
from veilmq.client.transport import DEFAULT_ENDPOINT
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
from veilmq.core.settings import TableError, read_table
from veilmq.wire.sqs.names import is_fifo

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
    _print(intake, totals)


def _router(rules: Path | None, table: Path | None) -> Router:
    if (rules is None) == (table is None):
        raise UsageError("Give either --rules FILE or --table FILE.")
    if rules is not None:
        return _read("--rules", rules, read_rules)
    assert table is not None
    return _read("--table", table, lambda text: TableRouter(read_table(text)))


def _read(option: str, path: Path, read: Callable[[str], Router]) -> Router:
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


def _print(intake: str, totals: Totals) -> None:
    each = ", ".join(f"{queue} {count}" for queue, count in sorted(totals.forwarded.items()))
    print(f"{intake}: {totals.messages} messages forwarded{f' ({each})' if each else ''}")
    if totals.stayed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(totals.stayed.items()))
        print(f"{intake}: {totals.stayed.total()} attempts failed, and the messages stayed ({reasons})")
