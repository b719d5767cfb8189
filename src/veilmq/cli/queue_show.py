"""``veilmq queue show``."""

from veilmq.cli.connection import connect
from veilmq.cli.options import DEFAULT_ENDPOINT, Endpoint, Json, Queue
from veilmq.cli.printing import instant, print_aligned, print_json
from veilmq.client import QueueStatus


def show(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the settings of a queue, and how many messages it has in which state."""
    with connect(endpoint) as client:
        status = client.show(queue)
    if json:
        print_json(status)
    else:
        print_aligned(_rows(status))


def _rows(status: QueueStatus) -> list[tuple[str, object]]:
    settings = status.settings
    return [
        ("queue", status.queue),
        ("url", status.url),
        ("visible", status.visible),
        ("in flight", status.in_flight),
        ("delayed", status.delayed),
        ("visibility timeout", f"{settings.visibility_timeout_s} s"),
        ("delay", f"{settings.delay_s} s"),
        ("retention", f"{settings.retention_s} s"),
        ("receive wait", f"{settings.receive_wait_s} s"),
        ("message bytes max", settings.message_bytes_max),
        ("created", instant(status.created_at_ms)),
        ("modified", instant(status.modified_at_ms)),
    ]
