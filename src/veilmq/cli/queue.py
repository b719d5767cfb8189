"""``veilmq queue``: create, list, show, set, tag, redrive, purge and delete queues."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import (
    CommandFailed,
    Endpoint,
    Json,
    Queue,
    UsageError,
    Yes,
    confirm,
    instant,
    own_number,
    print_aligned,
    print_json,
    whole_number,
)
from veilmq.cli.connection import connect, connect_settings
from veilmq.client import ClientError, Move, QueueClient, QueueStatus
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import (
    IN_FLIGHT,
    MESSAGE_BYTES,
    RECEIVES_PER_S,
    RETENTION_S,
    SQS_DELAY_S,
    SQS_KMS_DATA_KEY_REUSE_S,
    SQS_MOVES_PER_S,
    SQS_RECEIVE_WAIT_S,
    SQS_RECEIVES_MAX,
    VISIBILITY_TIMEOUT_S,
)
from veilmq.core.settings import QueueSettings, RoutingTable, SettingValue, TableError, read_table
from veilmq.wire.sqs.names import is_fifo

_SOURCE = "A queue that may, with --redrive-permission listed; may be repeated."


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Each option is ``None`` when it was not given."""

    visibility_timeout: Annotated[
        int | None, whole_number(VISIBILITY_TIMEOUT_S, "Seconds that a received message stays hidden.")
    ] = None
    visibility_rules: Annotated[
        str | None,
        Parameter(metavar="FILE", help="Routing table (JSON) with the timeouts of each kind of work; '' for none."),
    ] = None
    delay: Annotated[int | None, whole_number(SQS_DELAY_S, "Seconds until a sent message becomes visible.")] = None
    retention: Annotated[
        int | None, whole_number(RETENTION_S, "Seconds after which a message is deleted unreceived.")
    ] = None
    receive_wait: Annotated[
        int | None, whole_number(SQS_RECEIVE_WAIT_S, "Seconds that a receive waits for a message.")
    ] = None

    message_bytes_max: Annotated[
        int | None, whole_number(MESSAGE_BYTES, "Bytes of body and attributes that a message may have.")
    ] = None
    receives_per_s_max: Annotated[
        int | None,
        whole_number(RECEIVES_PER_S, "Receives that may be asked in a second, of all clients; 0 for no limit."),
    ] = None
    in_flight_max: Annotated[str | None, own_number(IN_FLIGHT, "Messages that may be in flight at once.")] = None
    event_log: Annotated[
        Literal["off", "closed", ""] | None,
        Parameter(help="What the event log has of the queue; '' for the server's setting."),
    ] = None
    content_deduplication: Annotated[
        bool | None, Parameter(help="Take equal bodies for the same message (FIFO queues).")
    ] = None
    deduplication_scope: Annotated[
        Literal["queue", "group"] | None, Parameter(help="Where an id is looked for: in the queue, or in its group.")
    ] = None
    throughput_limit: Annotated[
        Literal["queue", "group"] | None, Parameter(help="What a limit of throughput would count by (FIFO queues).")
    ] = None
    dead_letter_queue: Annotated[
        str | None, Parameter(metavar="QUEUE", help="Queue that takes what was received too often; '' for none.")
    ] = None
    receives_max: Annotated[
        int | None,
        whole_number(SQS_RECEIVES_MAX, f"Receives before that, {SQS_RECEIVES_MAX.default} if left out."),
    ] = None
    redrive_permission: Annotated[
        Literal["all", "none", "listed"] | None, Parameter(help="Which queues may send their dead letters here.")
    ] = None
    redrive_source: Annotated[
        tuple[str, ...],
        Parameter(name="--redrive-source", negative=(), show_default=False, metavar="QUEUE", help=_SOURCE),
    ] = ()
    smq_base64: Annotated[
        bool | None, Parameter(help="Take and give bodies in base64 over SMQ, and keep them decoded for SQS.")
    ] = None
    operations_logged: Annotated[
        bool | None, Parameter(help="Log the operations on messages, which SMQ calls LoggingEnabled.")
    ] = None
    policy: Annotated[
        str | None, Parameter(metavar="JSON", help="Who else may do what with the queue; '' for nobody.")
    ] = None
    managed_encryption: Annotated[bool | None, Parameter(help="Whether the queue is told to be encrypted.")] = None
    kms_key: Annotated[str | None, Parameter(metavar="ID", help="Key that the queue is told to have; '' for none.")] = (
        None
    )
    kms_data_key_reuse: Annotated[
        int | None, whole_number(SQS_KMS_DATA_KEY_REUSE_S, "Seconds that a data key of it is used.")
    ] = None

    def settings(self) -> dict[str, SettingValue]:
        """Return the given ones by their names in ``QueueSettings``; raises ``UsageError`` where one misses another."""
        if self.receives_max is not None and not self.dead_letter_queue:
            raise UsageError("--receives-max needs --dead-letter-queue.")
        if self.redrive_source and self.redrive_permission != "listed":
            raise UsageError("--redrive-source needs --redrive-permission listed.")
        fields: dict[str, SettingValue] = {
            field: getattr(self, option) for option, field in FIELDS.items() if getattr(self, option) is not None
        }
        if self.in_flight_max is not None:
            fields["in_flight_max"] = int(self.in_flight_max) if self.in_flight_max else None
        if self.visibility_rules is not None:
            fields["visibility_rules"] = _rules(self.visibility_rules)
        if self.event_log is not None:
            fields["event_log"] = self.event_log or None
        if self.dead_letter_queue is not None:
            fields["receives_max"] = self.receives_max or SQS_RECEIVES_MAX.default if self.dead_letter_queue else 0
        if self.redrive_permission is not None:
            fields["redrive_sources"] = self.redrive_source
        return fields


FIFO_FIELDS = frozenset({"content_deduplication", "deduplication_scope", "throughput_limit"})
"""The fields that only FIFO queues have."""

FIELDS = {
    "visibility_timeout": "visibility_timeout_s",
    "delay": "delay_s",
    "retention": "retention_s",
    "receive_wait": "receive_wait_s",
    "message_bytes_max": "message_bytes_max",
    "content_deduplication": "content_deduplication",
    "deduplication_scope": "deduplication_scope",
    "throughput_limit": "throughput_limit",
    "dead_letter_queue": "dead_letter_queue",
    "redrive_permission": "redrive_permission",
    "receives_per_s_max": "receives_per_s_max",
    "smq_base64": "smq_base64",
    "operations_logged": "operations_logged",
    "policy": "policy",
    "managed_encryption": "managed_encryption",
    "kms_key": "kms_key",
    "kms_data_key_reuse": "kms_data_key_reuse_s",
}
"""Option → the field of ``QueueSettings``; ``receives_max`` and ``redrive_source`` belong to one of them,
``in_flight_max`` and ``event_log`` are read from their texts, ``visibility_rules`` from a file."""


def _rules(file: str) -> str:
    """Return the routing table in ``file``, as compact text; raises ``UsageError``."""
    if not file:
        return ""
    try:
        return msgspec.json.encode(read_table(Path(file).read_bytes())).decode()
    except OSError as error:
        raise UsageError(f"--visibility-rules {file}: {error.strerror}.") from None
    except TableError as error:
        raise UsageError(f"--visibility-rules {file}: {error}") from None


def read_tag(text: str) -> tuple[str, str]:
    """Return the key and the value of a tag; raises ``UsageError`` for what is none."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"A tag must look like KEY=VALUE, not {text!r}.")
    return key, value


_SMQ_NAME = "Take a name of SMQ: longer, and of a FIFO queue too without .fifo, which SQS clients then do not expect."


def create(
    queue: Queue,
    /,
    *,
    options: QueueOptions = QueueOptions(),
    fifo: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Keep order in each group; the name ends in .fifo.")
    ] = False,
    smq_name: Annotated[bool, Parameter(negative=(), show_default=False, help=_SMQ_NAME)] = False,
    tag: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, metavar="KEY=VALUE", help="A tag; may be repeated."),
    ] = (),
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Create a queue, and print its URL.

    A queue that exists already with the same settings is found; with other settings it is an error.
    """
    settings = options.settings() | ({"fifo": True} if fifo else {})
    tags = dict(read_tag(text) for text in tag)
    if smq_name:
        with connect_settings(endpoint, queue) as door:
            url = door.create(settings, tags=tags)
    else:
        with connect(endpoint) as client:
            url = _create(client, queue, settings, tags)
    if json:
        print_json({"queue": queue, "url": url})
    else:
        print(url)


def _create(client: QueueClient, queue: str, settings: dict[str, SettingValue], tags: dict[str, str]) -> str:
    try:
        return client.create_queue(queue, settings, tags=tags)
    except ClientError as error:
        if error.code != "InvalidParameterValueException" or str(error).startswith("Value "):
            raise
        # The sentence of SQS about a name has no subject.
        raise ClientError(error.code, f"The queue name {queue!r} is invalid: {error.message}.", error.status) from error


def list_queues(
    *,
    prefix: Annotated[str, Parameter(show_default=False, help="Only names that begin with this.")] = "",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Print the names of all queues, one on each line."""
    with connect(endpoint) as client:
        names = client.list_queues(prefix)
    if json:
        print_json(names)
    else:
        for name in names:
            print(name)


def show(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the settings of a queue, and how many messages it has in which state."""
    with connect(endpoint) as client:
        status = client.show(queue)
    if json:
        print_json(status)
    else:
        print_aligned(_status_rows(status))


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
        rows.append(("visibility rules", _told_rules(read_table(settings.visibility_rules))))
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


def _told_rules(table: RoutingTable) -> str:
    timeouts = ", ".join(f"{each.name} {each.visibility_timeout_s} s" for each in table.classes)
    return f"{len(table.keys)} keys of {table.attribute}; {timeouts}"


def _status_rows(status: QueueStatus) -> list[tuple[str, object]]:
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


def set_queue(
    queue: Queue,
    /,
    *,
    options: QueueOptions = QueueOptions(),
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Change settings of a queue; messages in flight keep their deadlines."""
    settings = options.settings()
    if not settings:
        raise UsageError("Name at least one setting, for example --visibility-timeout 60.")
    if settings.keys() & FIFO_FIELDS and not is_fifo(queue):  # SQS knows FIFO queues by their names
        with connect_settings(endpoint, queue) as door:
            door.set(settings)
    else:
        with connect(endpoint) as client:
            client.set(queue, settings)
    print(f"Changed {queue}.")


def tag_queue(
    queue: Queue,
    /,
    *tags: Annotated[str, Parameter(help="Tags to put on the queue, as KEY=VALUE.")],
    remove: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, metavar="KEY", help="A tag to remove; may be repeated."),
    ] = (),
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Put tags on a queue or remove some, and print those that it has."""
    wanted = dict(read_tag(text) for text in tags)
    with connect(endpoint) as client:
        if remove:
            client.untag(queue, remove)
        if wanted:
            client.tag(queue, wanted)
        found = client.tags(queue)
    if json:
        print_json(found)
    else:
        for key, value in sorted(found.items()):
            print(f"{key}={value}")


def redrive(
    queue: Queue,
    /,
    *,
    to: Annotated[
        str | None, Parameter(metavar="QUEUE", help="Where they go, instead of where each one came from.")
    ] = None,
    rate: Annotated[int | None, whole_number(SQS_MOVES_PER_S, "Messages a second, instead of all at once.")] = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Move the messages of a dead-letter queue back; `veilmq queue redrives` tells how far it is."""
    with connect(endpoint) as client:
        client.start_move(queue, destination=to, moves_per_s_max=rate)
    print(f"Moving the messages of {queue} to {to or 'where they came from'}.")


def redrives(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the latest moves out of a dead-letter queue, newest first."""
    with connect(endpoint) as client:
        moves = client.moves(queue)
    if json:
        print_json(moves)
        return
    for place, move in enumerate(moves):
        if place:
            print()
        print_aligned(_move_rows(move))


def _move_rows(move: Move) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("status", move.status),
        ("moved", f"{move.messages_moved} of {move.messages_to_move}"),
        ("to", move.destination or "where they came from"),
        ("rate", f"{move.moves_per_s_max} a second" if move.moves_per_s_max else "all at once"),
        ("started", instant(move.started_at_ms)),
    ]
    return [*rows, ("failure", move.failure)] if move.failure else rows


def cancel_redrive(queue: Queue, /, *, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Stop the move out of a dead-letter queue; what is moved stays moved."""
    with connect(endpoint) as client:
        handle = next((move.handle for move in client.moves(queue) if move.handle is not None), None)
        if handle is None:
            raise CommandFailed(f"No move out of {queue} is running; `veilmq queue redrives` tells of the latest ones.")
        moved = client.cancel_move(handle)
    print(f"Cancelled; {moved} messages have been moved.")


def purge(queue: Queue, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete all messages of a queue, and keep the queue."""
    with connect(endpoint) as client:
        confirm(f"Delete all messages of {queue} at {endpoint}?", yes=yes)
        client.purge(queue)
    print(f"Purged {queue}.")


def delete(queue: Queue, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete a queue and all its messages."""
    with connect(endpoint) as client:
        confirm(f"Delete {queue} and all its messages at {endpoint}?", yes=yes)
        client.delete_queue(queue)
    print(f"Deleted {queue}.")
