"""``veilmq top``."""

import sys
from contextlib import ExitStack
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.failures import UsageError
from veilmq.cli.options import Endpoint, Json, whole_number
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import Range

EVERY_S = Range(minimum=1, maximum=3_600, default=1)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def top(
    *,
    prefix: Annotated[str, Parameter(show_default=False, help="Only queues whose names begin with this.")] = "",
    workers: Annotated[
        list[str] | None,
        Parameter(
            name="--workers",
            metavar="URL",
            negative=(),
            consume_multiple=False,
            help="A worker on another machine, at its --metrics-port; may be repeated.",
        ),
    ] = None,
    admin: Annotated[
        str | None,
        Parameter(metavar="URL", help="The server's metrics. On this machine: the port behind the endpoint's."),
    ] = None,
    every: Annotated[int, whole_number(EVERY_S, "Seconds from one look to the next.")] = EVERY_S.default,
    once: Annotated[bool, Parameter(negative=(), show_default=False, help="Look once, print it, and end.")] = False,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Watch queues, workers, and the leases of their messages; q or Ctrl-C ends it.

    Workers of this user on this machine are found by themselves. With --json
    each look is one line.
    """
    live = not once and not json
    if live and not sys.stdout.isatty():
        raise UsageError("The output is no terminal; use --once, or --json.")
    from veilmq.cli.top_look import Observer
    from veilmq.cli.top_screen import print_looks, show_live

    with ExitStack() as stack:
        client = stack.enter_context(connect(endpoint))
        observer = Observer(client, prefix=prefix, admin=admin or _beside(endpoint), workers=workers or ())
        stack.callback(observer.close)
        if live:
            show_live(observer, endpoint, every)
        else:
            print_looks(observer, endpoint, every, once=once, json=json)


def _beside(endpoint: str) -> str | None:
    """Return where a server on this machine has its metrics, unless it was told otherwise; elsewhere nobody knows."""
    parts = urlsplit(endpoint)
    if parts.hostname not in _LOOPBACK or parts.port is None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port + 1}"
