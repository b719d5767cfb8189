"""``veilmq worker``."""

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import UsageError
from veilmq.cli.logs import LogFormat, LogLevel, log_as
from veilmq.cli.metrics_port import MetricsPort, metrics_served
from veilmq.cli.options import whole_number
from veilmq.consumer import Consumer
from veilmq.consumer.processes import Supervisor, process_number
from veilmq.core.limits import Range

PROCESSES = Range(minimum=1, maximum=64, default=1)

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
    opentelemetry: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Export spans and metrics by OTLP, as OTEL_* variables say."),
    ] = False,
    processes: Annotated[
        int, whole_number(PROCESSES, "Number of processes; one that crashes is started again.")
    ] = PROCESSES.default,
    reload: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Start again when a Python file in this folder changes.")
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
    if process_number() is None and (processes > 1 or reload):
        if reload:
            with needs_extra("reload", command="worker --reload"):
                importlib.import_module("watchfiles")
        command = [sys.executable, "-m", "veilmq", "worker", place, "--log", log, "--log-format", log_format]
        command += ["--metrics-port", str(metrics_port)] if metrics_port is not None else []
        flags = {"--hidden": hidden, "--create": create, "--opentelemetry": opentelemetry}
        command += [flag for flag, is_given in flags.items() if is_given]
        return Supervisor(command, count=processes, reload=Path.cwd() if reload else None).run()
    consumer = load(place)
    consumer.seen = consumer.seen and not hidden
    consumer.create = consumer.create or create
    consumer.opentelemetry = consumer.opentelemetry or opentelemetry
    port, consumer.metrics_port = consumer.metrics_port if metrics_port is None else metrics_port, None
    with metrics_served(port, command="worker"):
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
    try:
        consumer.check()
    except TypeError as error:
        raise UsageError(f"The consumer {place} cannot start: {error}.") from error
    return consumer
