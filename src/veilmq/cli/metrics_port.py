"""The option for a port with the metrics of a worker or a forwarder."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.cli.options import whole_number
from veilmq.consumer.metrics import served
from veilmq.consumer.running import statuses
from veilmq.core.limits import Range

PORT = Range(minimum=0, maximum=65_535, default=9_326)

MetricsPort = Annotated[
    int | None, whole_number(PORT, "Port of the machine for Prometheus's metrics; without it there are none.")
]


@contextmanager
def metrics_served(port: int | None, *, command: str) -> Iterator[None]:
    """Serve on ``port`` while the context lasts; ``None`` for not at all. Raises ``CommandFailed``."""
    with ExitStack() as stack:
        try:
            with needs_extra("server", command=f"{command} --metrics-port"):
                stack.enter_context(served(port, statuses))
        except OSError as error:
            raise CommandFailed(f"--metrics-port: cannot listen at {port}: {error.strerror}.") from error
        yield
