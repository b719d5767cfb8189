"""``veilmq queue``, ``claims`` and ``apply``: queues, their claims, and declared queues."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import CommandFailed, Result, Rows, aligned, command, confirm, group, instant
from veilmq.cli.connection import Server, environment
from veilmq.cli.options import JSON, YES, Queue, UsageError, content, number, option, pairs, read_by
from veilmq.client import ClientError, Move, QueueClient, QueueStatus
from veilmq.client.api import Claims, Settings
from veilmq.client.transport import Transport, key_from
from veilmq.core import limits
from veilmq.core.claims import SourceView
from veilmq.core.settings import SettingValue, read_table
from veilmq.wire.sqs.names import is_fifo

_FIFO_FIELDS = {"content_deduplication", "deduplication_scope", "throughput_limit"}
_SCOPE = Literal["queue", "group"] | None
_EVENT_LOGS = {"off": "off", "closed": "closed", "": ""}


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options for the fields of ``QueueSettings``; '' is the server's default."""

    visibility_timeout_s: int | None = number(
        limits.VISIBILITY_TIMEOUT_S, "Seconds that a received message stays hidden."
    )
    visibility_rules: str | None = content(
        lambda table: msgspec.json.encode(read_table(table)).decode(),
        "Routing table (JSON) with the timeouts of each kind of work; '' for none.",
    )
    delay_s: int | None = number(limits.SQS_DELAY_S, "Seconds until a sent message becomes visible.")
    retention_s: int | None = number(
        limits.RETENTION_S, "Seconds after which a message that was not deleted is removed."
    )
    receive_wait_s: int | None = number(limits.SQS_RECEIVE_WAIT_S, "Seconds that a receive waits for a message.")
    message_bytes_max: int | None = number(
        limits.MESSAGE_BYTES, "Bytes of body and attributes that a message may have."
    )
    receives_per_s_max: int | None = number(
        limits.RECEIVES_PER_S, "Receives per second, of all clients; 0 for no limit."
    )
    in_flight_max: int | str | None = option(
        f"Messages that may be in flight at once: {limits.IN_FLIGHT}; '' for the server's setting.",
        "N",
        converter=read_by(lambda text: text and limits.IN_FLIGHT.read(text), f"{limits.IN_FLIGHT}, or ''"),
    )
    event_log: Literal["off", "closed"] | str | None = option(  # not "": shells would complete it
        "What the event log records; '' for the server's setting.",
        converter=read_by(_EVENT_LOGS.__getitem__, "off, closed, or ''"),
    )
    content_deduplication: bool | None = option(
        "Treat messages with equal bodies as duplicates (FIFO queues).", negative=None
    )
    deduplication_scope: _SCOPE = option("Where a deduplication id is unique: in the queue or in its group.")
    throughput_limit: _SCOPE = option("What a throughput limit would apply to (FIFO queues).")
    dead_letter_queue: str | None = option("Queue for messages that were received too often; '' for none.", "QUEUE")
    receives_max: int | None = number(
        limits.SQS_RECEIVES_MAX, f"Receives before that; default {limits.SQS_RECEIVES_MAX.default}."
    )
    redrive_permission: Literal["all", "none", "listed"] | None = option(
        "Queues that may send their dead letters here."
    )
    redrive_sources: tuple[str, ...] = option("A listed queue; may be repeated.", "QUEUE", name="--redrive-source")
    smq_base64: bool | None = option("Base64-encode bodies over SMQ, and store them decoded for SQS.", negative=None)
    operations_logged: bool | None = option("Log the operations on messages (SMQ's LoggingEnabled).", negative=None)
    policy: str | None = option("Access policy of the queue; '' for none.", "JSON")
    managed_encryption: bool | None = option(
        "Report encryption as enabled (stored only; nothing is encrypted).", negative=None
    )
    kms_key: str | None = option("Key to report (stored only); '' for none.", "ID")
    kms_data_key_reuse_s: int | None = number(
        limits.SQS_KMS_DATA_KEY_REUSE_S, "Seconds for which a data key is reused."
    )


def _settings(options: QueueOptions) -> dict[str, SettingValue]:
    """Return the given settings by name. Raises ``UsageError`` if one requires another that is missing."""
    found = {name: value for name, value in asdict(options).items() if value not in (None, ())}
    if "receives_max" in found and not found.get("dead_letter_queue"):
        raise UsageError("--receives-max needs --dead-letter-queue.")
    if "redrive_sources" in found and found.get("redrive_permission") != "listed":
        raise UsageError("--redrive-source needs --redrive-permission listed.")
    for name in {"in_flight_max", "event_log"} & found.keys():
        found[name] = found[name] or None  # '' for the server's setting
    if "dead_letter_queue" in found:
        found.setdefault("receives_max", limits.SQS_RECEIVES_MAX.default if found["dead_letter_queue"] else 0)
    if "redrive_permission" in found:
        found.setdefault("redrive_sources", ())
    return found


def create(
    queue: Queue,
    /,
    *,
    options: QueueOptions,
    fifo: bool = option("Keep order in each group; the name ends in .fifo."),
    smq_name: bool = option(
        "Accept a name by the rules of SMQ: longer, and a FIFO queue's without .fifo, unlike SQS clients expect."
    ),
    tag: tuple[str, ...] = option("A tag; may be repeated.", "KEY=VALUE"),
    server: Server,
) -> Result:
    """Create a queue, and print its URL.

    It is an error if the queue exists with other settings.
    """
    settings = _settings(options) | ({"fifo": True} if fifo else {})
    tags = pairs(tag, "A tag", "KEY=VALUE")
    if smq_name:
        url = Settings(server, queue).create(settings, tags=tags)
    else:
        try:
            url = QueueClient(server).create_queue(queue, settings, tags=tags)
        except ClientError as error:
            if error.code != "InvalidParameterValueException" or str(error).startswith("Value "):
                raise
            # SQS's sentence about a name has no subject.
            remedy = " A FIFO queue needs --fifo." if queue.endswith(".fifo") and not fifo else ""
            text = f"The queue name {queue!r} is invalid: {error.message.removesuffix('.')}.{remedy}"
            raise ClientError(error.code, text, error.status) from error
    return Result({"queue": queue, "url": url}, url)


def list_(*, prefix: str = option("Only names that begin with this."), server: Server) -> Result:
    """Print the names of all queues, one on each line."""
    names = QueueClient(server).list_queues(prefix)
    return Result(names, "\n".join(names))


def show(queue: Queue, /, *, server: Server) -> Result:
    """Print the settings of a queue and its number of messages in each state."""
    status = QueueClient(server).show(queue)
    document = msgspec.to_builtins(status)
    del document["settings"]["tags"], document["settings"]["purges"]  # no attributes of SQS
    return Result(document, aligned(_status_rows(status)))


def _status_rows(status: QueueStatus) -> Rows:
    settings = status.settings
    for name in ("queue", "url", "visible", "in_flight", "delayed"):
        yield name.replace("_", " "), getattr(status, name)
    for name in ("visibility_timeout_s", "delay_s", "retention_s", "receive_wait_s"):
        yield name.removesuffix("_s").replace("_", " "), f"{getattr(settings, name)} s"
    for name in ("message_bytes_max", "in_flight_max", "event_log", "policy", "kms_key"):
        yield name.replace("_", " "), getattr(settings, name) or None
    yield "receives per second", f"{settings.receives_per_s_max} at most" if settings.receives_per_s_max else None
    yield "bodies over smq", "in base64" if settings.smq_base64 else None
    yield "operations", "logged" if settings.operations_logged else None
    if settings.visibility_rules:
        table = read_table(settings.visibility_rules)
        timeouts = ", ".join(f"{each.name} {each.visibility_timeout_s} s" for each in table.classes)
        yield "visibility rules", f"{len(table.keys)} keys of {table.attribute}; {timeouts}"
    if settings.fifo:
        yield "fifo", "yes"
        yield "deduplication", "by content" if settings.content_deduplication else "by id"
        yield "deduplication scope", settings.deduplication_scope
        yield "throughput limit", settings.throughput_limit
    if settings.dead_letter_queue:
        yield "dead-letter queue", f"{_name_of(settings.dead_letter_queue)} after {settings.receives_max} receives"
    sources = ", ".join(map(_name_of, settings.redrive_sources)) or settings.redrive_permission
    yield "takes dead letters of", sources or None
    yield "created", instant(status.created_at_ms)
    yield "modified", instant(status.modified_at_ms)


def _name_of(full_name: str) -> str:
    return full_name.rpartition("/")[2]


def set_(queue: Queue, /, *, options: QueueOptions, server: Server) -> Result:
    """Change settings of a queue; messages in flight keep their deadlines."""
    settings = _settings(options)
    if not settings:
        raise UsageError("Name at least one setting, for example --visibility-timeout 60.")
    if not is_fifo(queue) and _FIFO_FIELDS & settings.keys():
        Settings(server, queue).set(settings)  # over SQS only names that end with .fifo are FIFO queues
    else:
        QueueClient(server).set(queue, settings)
    return Result({"queue": queue, "changed": settings}, f"Changed {queue}.")


def tag(
    queue: Queue,
    /,
    *tags: Annotated[str, Parameter(help="Tags to put on the queue, as KEY=VALUE.")],
    remove: tuple[str, ...] = option("A tag to remove; may be repeated.", "KEY"),
    server: Server,
) -> Result:
    """Add or remove tags of a queue, and print all its tags."""
    client, added = QueueClient(server), pairs(tags, "A tag", "KEY=VALUE")
    if remove:
        client.untag(queue, remove)
    if added:
        client.tag(queue, added)
    found = client.tags(queue)
    return Result(found, "\n".join(f"{key}={value}" for key, value in sorted(found.items())))


def redrive(
    queue: Queue,
    /,
    *,
    to: str | None = option("Destination; by default each message's source queue.", "QUEUE"),
    rate: int | None = number(limits.SQS_MOVES_PER_S, "Messages per second, instead of all at once."),
    server: Server,
) -> Result:
    """Move the messages of a dead-letter queue back; `veilmq queue redrives` shows the progress."""
    handle = QueueClient(server).start_move(queue, destination=to, moves_per_s_max=rate)
    text = f"Moving the messages of {queue} to {to or 'where they came from'}."
    return Result({"queue": queue, "to": to, "handle": handle}, text)


def redrives(queue: Queue, /, *, server: Server) -> Result:
    """Print the latest moves out of a dead-letter queue, newest first."""
    moves = QueueClient(server).moves(queue)
    return Result(moves, aligned(*map(_move_rows, moves)))


def _move_rows(move: Move) -> Rows:
    yield "status", move.status
    yield "moved", f"{move.messages_moved} of {move.messages_to_move}"
    yield "to", move.destination or "where they came from"
    yield "rate", f"{move.moves_per_s_max} a second" if move.moves_per_s_max else "all at once"
    yield "started", instant(move.started_at_ms)
    yield "failure", move.failure or None


def cancel_redrive(queue: Queue, /, *, server: Server) -> Result:
    """Cancel the redrive of a dead-letter queue; moved messages stay moved."""
    client = QueueClient(server)
    handle = next((move.handle for move in client.moves(queue) if move.handle is not None), None)
    if handle is None:
        raise CommandFailed(f"No move out of {queue} is running; `veilmq queue redrives` shows the latest ones.")
    moved = client.cancel_move(handle)
    return Result({"queue": queue, "moved": moved}, f"Cancelled; {moved} messages have been moved.")


def purge(queue: Queue, /, *, yes: bool = YES, server: Server) -> Result:
    """Delete all messages of a queue, and keep the queue."""
    confirm(f"Delete all messages of {queue} at {server.endpoint}?", yes=yes)
    QueueClient(server).purge(queue)
    return Result({"queue": queue, "purged": True}, f"Purged {queue}.")


def delete(queue: Queue, /, *, yes: bool = YES, server: Server) -> Result:
    """Delete a queue and all its messages."""
    confirm(f"Delete {queue} and all its messages at {server.endpoint}?", yes=yes)
    QueueClient(server).delete_queue(queue)
    return Result({"queue": queue, "deleted": True}, f"Deleted {queue}.")


app = group("queue", create, list_, show, set_, tag, redrive, redrives, cancel_redrive, purge, delete)


# Claims

_NUMBER = limits.Range(minimum=0, maximum=2**53 - 1, default=0)
Source = Annotated[str, Parameter(help="Name of the source, as `veilmq claims list` prints it.")]
Number = Annotated[int, Parameter(converter=read_by(_NUMBER.read, _NUMBER), help="Number of the claim.")]
Message = Annotated[str, Parameter(help="Id of the message.")]


def list_claims(queue: Queue, /, *, server: Server) -> Result:
    """Print the sources that read a queue by claims, and the claims of each."""
    sources = Claims(server, queue).sources()
    return Result(sources, aligned(*map(_source_rows, sources)))


def _source_rows(source: SourceView) -> Rows:
    yield "source", source.source
    yield "consumer", source.consumer or "none"
    yield "alive", "yes" if source.alive else "no"
    yield "epoch", source.epoch
    yield "acknowledged", f"{source.acknowledged} of {source.last}"
    yield "held until", instant(source.hold_until_ms)
    for each in source.claims:
        state = f"{each.state.value}, {each.messages} messages since {instant(each.bound_at_ms)}"
        yield f"claim {each.number}", state


def release(queue: Queue, source: Source, number: Number, /, *, yes: bool = YES, server: Server) -> Result:
    """Return the messages of a claim to the queue; its reader fails when it reaches the claim."""
    confirm(f"Have the messages of claim {number} of {source} delivered again?", yes=yes)
    view = Claims(server, queue).release(source, number=number)
    return Result(view, f"Released claim {number} of {source}.")


def evict(queue: Queue, source: Source, number: Number, message: Message, /, *, server: Server) -> Result:
    """Move a message that its reader cannot process from a claim to the queue's dead-letter queue."""
    view = Claims(server, queue).evict(source, number=number, message=message)
    return Result(view, f"Evicted {message} from claim {number} of {source}.")


def close(queue: Queue, source: Source, /, *, yes: bool = YES, server: Server) -> Result:
    """Release all claims of a source and delete it; a reader that still uses it fails."""
    confirm(f"Have all messages that {source} holds delivered again, and delete the source?", yes=yes)
    Claims(server, queue).close_source(source)
    return Result({"source": source, "closed": True}, f"Closed {source}.")


claims_app = group("claims", release, evict, close, list=list_claims)


# Declared queues and topics

DIFFERS = 3
"""The exit code of ``--dry-run`` if the server differs from the file."""

_SIGNS = {"create": "+", "change": "~", "delete": "-"}


@command
def apply(
    file: Annotated[Path, Parameter(help="File of queues and topics: TOML, or ElasticMQ's (.conf).")],
    /,
    *,
    dry_run: bool = option(f"Change nothing; exit code {DIFFERS} if something would be changed."),
    prune: bool = option("Delete the queues and topics that are not in the file."),
    yes: bool = YES,
    json: bool = JSON,
    server: Server,
) -> Result:
    """Create or update the queues and topics that a file declares, and print what changes."""
    from veilmq.client.declared import as_text, make_plan, read_declared
    from veilmq.client.topics import Topics
    from veilmq.server.settings import SETTINGS

    declared = read_declared(file, others=[row.name for row in SETTINGS])
    topics = Topics(Transport(server.endpoint), key=key_from(environment()))
    plan = make_plan(declared, transport=server, topics=topics, prune=prune)
    for note in declared.notes:
        print(f"veilmq: {note}", file=sys.stderr)
    for step in () if json else plan.steps:
        print(f"{_SIGNS[step.action]} {step.kind} {step.name}", flush=True)
        for each in step.differences:
            old, new = ("none" if value in (None, "", []) else as_text(value) for value in (each.old, each.new))
            print(f"    {each.attribute}: {new if step.action == 'create' else f'{old} -> {new}'}", flush=True)
    doomed = [step.name for step in plan.steps if step.action == "delete"]
    if doomed and not dry_run:
        confirm(f"Delete {', '.join(doomed)} and all messages in them at {server.endpoint}?", yes=yes)
    if not dry_run:
        plan.apply()
    parts = ("action", "kind", "name", "differences")
    steps = [{part: getattr(step, part) for part in parts} for step in plan.steps]
    document = {"steps": steps, **plan.counts(), "applied": not dry_run}
    return Result(document, f"Would be: {plan}" if dry_run else str(plan), code=DIFFERS if dry_run and steps else 0)
