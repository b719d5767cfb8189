"""A port for whoever watches a worker or a forwarder: ``/metrics`` for Prometheus, ``/status`` for ``veilmq top``."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Annotated, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.cli.options import whole_number
from veilmq.consumer.app import statuses
from veilmq.core.limits import Range

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
