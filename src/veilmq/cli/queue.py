"""``veilmq queue``: create, list, show, set, tag, redrive, purge and delete queues."""

from collections.abc import Callable
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from veilmq.cli.command import (
    CommandFailed,
    Json,
    Queue,
    Rows,
    UsageError,
    Yes,
    confirm,
    instant,
    option,
    print_result,
    read_by,
    read_pair,
    whole_number,
)
from veilmq.cli.connection import Endpoint, connect
from veilmq.client import ClientError, HttpQueueClient, Move, QueueStatus
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

_SMQ_NAME = "Take a name of SMQ: longer, and of a FIFO queue also without .fifo, which SQS clients do not expect."
_FIFO_FIELDS = {"content_deduplication", "deduplication_scope", "throughput_limit"}
_SCOPE = Literal["queue", "group"]
_QUOTA = Parameter(
    converter=read_by(lambda text: text and IN_FLIGHT.read(text), allowed=f"{IN_FLIGHT}, or ''"),
    help=f"Messages that may be in flight at once: {IN_FLIGHT}; '' for the server's setting.",
    metavar="N",
)
OPTIONS: tuple[tuple[str, Any, Parameter], ...] = (
    ("visibility_timeout_s", int, whole_number(VISIBILITY_TIMEOUT_S, "Seconds that a received message stays hidden.")),
    (
        "visibility_rules",
        str,
        option("Routing table (JSON) with the timeouts of each kind of work; '' for none.", "FILE"),
    ),
    ("delay_s", int, whole_number(SQS_DELAY_S, "Seconds until a sent message becomes visible.")),
    ("retention_s", int, whole_number(RETENTION_S, "Seconds after which a message is deleted unreceived.")),
    ("receive_wait_s", int, whole_number(SQS_RECEIVE_WAIT_S, "Seconds that a receive waits for a message.")),
    ("message_bytes_max", int, whole_number(MESSAGE_BYTES, "Bytes of body and attributes that a message may have.")),
    ("receives_per_s_max", int, whole_number(RECEIVES_PER_S, "Receives per second, of all clients; 0 for no limit.")),
    ("in_flight_max", int | str, _QUOTA),
    ("event_log", Literal["off", "closed", ""], option("What the event log records; '' for the server's setting.")),
    ("content_deduplication", bool, Parameter(help="Treat messages with equal bodies as duplicates (FIFO queues).")),
    ("deduplication_scope", _SCOPE, option("Where a deduplication id is unique: in the queue or in its group.")),
    ("throughput_limit", _SCOPE, option("What a throughput limit would apply to (FIFO queues).")),
    ("dead_letter_queue", str, option("Queue for messages that were received too often; '' for none.", "QUEUE")),
    ("receives_max", int, whole_number(SQS_RECEIVES_MAX, f"Receives before that; default {SQS_RECEIVES_MAX.default}.")),
    ("redrive_permission", Literal["all", "none", "listed"], option("Queues that may send their dead letters here.")),
    ("redrive_sources", tuple[str, ...], option("A listed queue; may be repeated.", "QUEUE", name="--redrive-source")),
    ("smq_base64", bool, Parameter(help="Base64-encode bodies over SMQ, and store them decoded for SQS.")),
    ("operations_logged", bool, Parameter(help="Log the operations on messages (SMQ's LoggingEnabled).")),
    ("policy", str, option("Access policy of the queue; '' for none.", "JSON")),
    ("managed_encryption", bool, Parameter(help="Report encryption as enabled (stored only; nothing is encrypted).")),
    ("kms_key", str, option("Key to report (stored only); '' for none.", "ID")),
    ("kms_data_key_reuse_s", int, whole_number(SQS_KMS_DATA_KEY_REUSE_S, "Seconds for which a data key is reused.")),
)
"""Fields of ``QueueSettings``, the types of their options, and the options, named without the unit ``_s``."""

if TYPE_CHECKING:
    QueueOptions = Any
else:
    QueueOptions = Parameter(name="*")(
        make_dataclass(
            "QueueOptions",
            [
                (
                    name,
                    Annotated[kind | None, Parameter(name=f"--{name.removesuffix('_s').replace('_', '-')}"), parameter],
                    None,
                )
                for name, kind, parameter in OPTIONS
            ],
            frozen=True,
            kw_only=True,
            namespace={"__module__": __name__},
        )
    )
_NOT_GIVEN = QueueOptions()


def _settings(options: Any) -> dict[str, SettingValue]:
    """Return the given settings by their names in ``QueueSettings``; raises ``UsageError`` where one misses another."""
    found = {name: value for name, value in asdict(options).items() if value not in (None, ())}
    if "receives_max" in found and not found.get("dead_letter_queue"):
        raise UsageError("--receives-max needs --dead-letter-queue.")
    if "redrive_sources" in found and found.get("redrive_permission") != "listed":
        raise UsageError("--redrive-source needs --redrive-permission listed.")
    if found.get("visibility_rules"):
        found["visibility_rules"] = _read_rules(found["visibility_rules"])
    for name in {"in_flight_max", "event_log"} & found.keys():
        found[name] = found[name] or None  # '' for the server's setting
    if "dead_letter_queue" in found:
        found.setdefault("receives_max", SQS_RECEIVES_MAX.default if found["dead_letter_queue"] else 0)
    if "redrive_permission" in found:
        found.setdefault("redrive_sources", ())
    return found


def _read_rules(file: str) -> str:
    """Return the routing table in ``file``, as compact text; raises ``UsageError``."""
    try:
        return msgspec.json.encode(read_table(Path(file).read_bytes())).decode()
    except OSError as error:
        raise UsageError(f"--visibility-rules {file}: {error.strerror}.") from None
    except TableError as error:
        raise UsageError(f"--visibility-rules {file}: {error}") from None


def _read_tag(text: str) -> tuple[str, str]:
    return read_pair(text, f"A tag must look like KEY=VALUE, not {text!r}.")


def create(
    queue: Queue,
    /,
    *,
    options: QueueOptions = _NOT_GIVEN,
    fifo: Annotated[bool, option("Keep order in each group; the name ends in .fifo.")] = False,
    smq_name: Annotated[bool, option(_SMQ_NAME)] = False,
    tag: Annotated[tuple[str, ...], option("A tag; may be repeated.", "KEY=VALUE")] = (),
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Create a queue, and print its URL.

    A queue that exists already with the same settings is found; with other settings it is an error.
    """
    settings = _settings(options) | ({"fifo": True} if fifo else {})
    tags = dict(map(_read_tag, tag))
    if smq_name:
        from veilmq.client.api import Settings

        with connect(Settings, endpoint, queue) as door:
            url = door.create(settings, tags=tags)
    else:
        with connect(HttpQueueClient, endpoint) as client:
            try:
                url = client.create_queue(queue, settings, tags=tags)
            except ClientError as error:
                if error.code != "InvalidParameterValueException" or str(error).startswith("Value "):
                    raise
                # The sentence of SQS about a name has no subject.
                text = f"The queue name {queue!r} is invalid: {error.message}."
                raise ClientError(error.code, text, error.status) from error
    print_result({"queue": queue, "url": url}, url, json=json)


def list_queues(
    *,
    prefix: Annotated[str, Parameter(show_default=False, help="Only names that begin with this.")] = "",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Print the names of all queues, one on each line."""
    with connect(HttpQueueClient, endpoint) as client:
        names = client.list_queues(prefix)
    if names or json:
        print_result(names, "\n".join(names), json=json)


def show(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the settings of a queue, and how many messages it has in which state."""
    with connect(HttpQueueClient, endpoint) as client:
        status = client.show(queue)
    print_result(status, [_status_rows(status)], json=json)


_CHOSEN: tuple[tuple[str, Callable[[QueueSettings], object]], ...] = (
    ("in flight max", lambda its: its.in_flight_max),
    ("receives per second", lambda its: its.receives_per_s_max and f"{its.receives_per_s_max} at most"),
    ("bodies over smq", lambda its: its.smq_base64 and "in base64"),
    ("operations", lambda its: its.operations_logged and "logged"),
    ("visibility rules", lambda its: its.visibility_rules and _summary(read_table(its.visibility_rules))),
    ("event log", lambda its: its.event_log),
    ("fifo", lambda its: its.fifo and "yes"),
    ("deduplication", lambda its: its.fifo and ("by content" if its.content_deduplication else "by id")),
    ("deduplication scope", lambda its: its.fifo and its.deduplication_scope),
    ("throughput limit", lambda its: its.fifo and its.throughput_limit),
    (
        "dead-letter queue",
        lambda its: its.dead_letter_queue and f"{_name_of(its.dead_letter_queue)} after {its.receives_max} receives",
    ),
    (
        "takes dead letters of",
        lambda its: (
            its.redrive_permission and (", ".join(map(_name_of, its.redrive_sources)) or its.redrive_permission)
        ),
    ),
    ("kms key", lambda its: its.kms_key),
)
"""What only some queues have."""


def _name_of(full_name: str) -> str:
    return full_name.rpartition("/")[2]


def _summary(table: RoutingTable) -> str:
    timeouts = ", ".join(f"{each.name} {each.visibility_timeout_s} s" for each in table.classes)
    return f"{len(table.keys)} keys of {table.attribute}; {timeouts}"


def _status_rows(status: QueueStatus) -> Rows:
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
        *((name, value) for name, read in _CHOSEN if (value := read(settings))),
        ("created", instant(status.created_at_ms)),
        ("modified", instant(status.modified_at_ms)),
    ]


def set_queue(
    queue: Queue,
    /,
    *,
    options: QueueOptions = _NOT_GIVEN,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Change settings of a queue; messages in flight keep their deadlines."""
    settings = _settings(options)
    if not settings:
        raise UsageError("Name at least one setting, for example --visibility-timeout 60.")
    if not is_fifo(queue) and _FIFO_FIELDS & settings.keys():
        from veilmq.client.api import Settings

        with connect(Settings, endpoint, queue) as door:  # SQS knows FIFO queues by their names alone
            door.set(settings)
    else:
        with connect(HttpQueueClient, endpoint) as client:
            client.set(queue, settings)
    print_result({"queue": queue, "changed": settings}, f"Changed {queue}.", json=json)


def tag_queue(
    queue: Queue,
    /,
    *tags: Annotated[str, Parameter(help="Tags to put on the queue, as KEY=VALUE.")],
    remove: Annotated[tuple[str, ...], option("A tag to remove; may be repeated.", "KEY")] = (),
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Put tags on a queue or remove some, and print those that it has."""
    wanted = dict(map(_read_tag, tags))
    with connect(HttpQueueClient, endpoint) as client:
        if remove:
            client.untag(queue, remove)
        if wanted:
            client.tag(queue, wanted)
        found = client.tags(queue)
    if found or json:
        print_result(found, "\n".join(f"{key}={value}" for key, value in sorted(found.items())), json=json)


def redrive(
    queue: Queue,
    /,
    *,
    to: Annotated[
        str | None, Parameter(metavar="QUEUE", help="Destination; by default each message's source queue.")
    ] = None,
    rate: Annotated[int | None, whole_number(SQS_MOVES_PER_S, "Messages per second, instead of all at once.")] = None,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Move the messages of a dead-letter queue back; `veilmq queue redrives` shows the progress."""
    with connect(HttpQueueClient, endpoint) as client:
        handle = client.start_move(queue, destination=to, moves_per_s_max=rate)
    text = f"Moving the messages of {queue} to {to or 'where they came from'}."
    print_result({"queue": queue, "to": to, "handle": handle}, text, json=json)


def redrives(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the latest moves out of a dead-letter queue, newest first."""
    with connect(HttpQueueClient, endpoint) as client:
        moves = client.moves(queue)
    print_result(moves, map(_move_rows, moves), json=json)


def _move_rows(move: Move) -> Rows:
    yield "status", move.status
    yield "moved", f"{move.messages_moved} of {move.messages_to_move}"
    yield "to", move.destination or "where they came from"
    yield "rate", f"{move.moves_per_s_max} a second" if move.moves_per_s_max else "all at once"
    yield "started", instant(move.started_at_ms)
    if move.failure:
        yield "failure", move.failure


def cancel_redrive(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Stop the move out of a dead-letter queue; what is moved stays moved."""
    with connect(HttpQueueClient, endpoint) as client:
        handle = next((move.handle for move in client.moves(queue) if move.handle is not None), None)
        if handle is None:
            raise CommandFailed(f"No move out of {queue} is running; `veilmq queue redrives` shows the latest ones.")
        moved = client.cancel_move(handle)
    print_result({"queue": queue, "moved": moved}, f"Cancelled; {moved} messages have been moved.", json=json)


def purge(queue: Queue, /, *, yes: Yes = False, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete all messages of a queue, and keep the queue."""
    with connect(HttpQueueClient, endpoint) as client:
        confirm(f"Delete all messages of {queue} at {endpoint}?", yes=yes)
        client.purge(queue)
    print_result({"queue": queue, "purged": True}, f"Purged {queue}.", json=json)


def delete(queue: Queue, /, *, yes: Yes = False, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete a queue and all its messages."""
    with connect(HttpQueueClient, endpoint) as client:
        confirm(f"Delete {queue} and all its messages at {endpoint}?", yes=yes)
        client.delete_queue(queue)
    print_result({"queue": queue, "deleted": True}, f"Deleted {queue}.", json=json)


app = App(name="queue")
for function, name in (
    *((create, "create"), (list_queues, "list"), (show, "show"), (set_queue, "set"), (tag_queue, "tag")),
    *((redrive, "redrive"), (redrives, "redrives"), (cancel_redrive, "cancel-redrive")),
    *((purge, "purge"), (delete, "delete")),
):
    app.command(function, name=name)
