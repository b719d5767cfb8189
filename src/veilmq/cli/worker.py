"""``veilmq worker``."""

import importlib
import logging
import os
import sys
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed, UsageError
from veilmq.cli.options import whole_number
from veilmq.consumer import Consumer
from veilmq.core.limits import Range

_PORT = Range(minimum=1, maximum=65_535, default=9_326)

Place = Annotated[str, Parameter(help="Module and name of the consumer, such as shop.orders:app.")]


def worker(
    place: Place,
    /,
    *,
    metrics_port: Annotated[
        int | None, whole_number(_PORT, "Port of the machine for Prometheus's metrics; without it there are none.")
    ] = None,
    log: Annotated[str, Parameter(metavar="LEVEL", help="How much to log: debug, info, warning, error.")] = "info",
) -> int:
    """Run the consumer of a module until SIGTERM or SIGINT.

    The current folder comes first where modules are looked for. The exit code
    is 0 when everything was settled, 1 when a queue could not be consumed, 3
    when a handler did not stop or a message could not be settled.
    """
    level = logging.getLevelName(log.upper())
    if not isinstance(level, int):
        raise UsageError(f"--log: {log!r} is no level; use debug, info, warning or error.")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    consumer = load(place)
    if metrics_port is not None:
        with needs_extra("server", command="worker --metrics-port"):
            from prometheus_client import start_http_server
        try:
            start_http_server(metrics_port)
        except OSError as error:
            raise CommandFailed(f"--metrics-port: cannot listen at {metrics_port}: {error.strerror}.") from error
    return consumer.run()


def load(place: str) -> Consumer:
    """Return the consumer at ``place``; raises ``UsageError`` when there is none."""
    module_name, _, name = place.partition(":")
    if not module_name or not name:
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
