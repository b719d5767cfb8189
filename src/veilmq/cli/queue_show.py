"""``veilmq queue show``."""

from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Json, Queue
from veilmq.cli.printing import instant, print_aligned, print_json
from veilmq.client import QueueStatus
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.settings import QueueSettings, RoutingTable, read_table


def show(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the settings of a queue, and how many messages it has in which state."""
    with connect(endpoint) as client:
        status = client.show(queue)
    if json:
        print_json(status)
    else:
        print_aligned(_rows(status))


def _chosen(settings: QueueSettings) -> list[tuple[str, object]]:
    """Return what only some queues have."""
    rows: list[tuple[str, object]] = []
    if settings.in_flight_max is not None:
        rows.append(("in flight max", settings.in_flight_max))
    if settings.receives_per_s_max:
        rows.append(("receives per second", f"{settings.receives_per_s_max} at most"))
    if settings.smq_base64:
        rows.append(("bodies over smq", "in base64"))
    if settings.operations_logged:
        rows.append(("operations", "logged"))
    if settings.visibility_rules:
        rows.append(("visibility rules", _told(read_table(settings.visibility_rules))))
    if settings.event_log is not None:
        rows.append(("event log", settings.event_log))
    if settings.fifo:
        rows += [
            ("fifo", "yes"),
            ("deduplication", "by content" if settings.content_deduplication else "by id"),
            ("deduplication scope", settings.deduplication_scope),
            ("throughput limit", settings.throughput_limit),
        ]
    if settings.dead_letter_queue:
        name = settings.dead_letter_queue.rpartition("/")[2]
        rows.append(("dead-letter queue", f"{name} after {settings.receives_max} receives"))
    if settings.redrive_permission:
        names = (source.rpartition("/")[2] for source in settings.redrive_sources)
        rows.append(("takes dead letters of", ", ".join(names) or settings.redrive_permission))
    if settings.kms_key:
        rows.append(("kms key", settings.kms_key))
    return rows


def _told(table: RoutingTable) -> str:
    timeouts = ", ".join(f"{each.name} {each.visibility_timeout_s} s" for each in table.classes)
    return f"{len(table.keys)} keys of {table.attribute}; {timeouts}"


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
        *_chosen(settings),
        ("created", instant(status.created_at_ms)),
        ("modified", instant(status.modified_at_ms)),
    ]
