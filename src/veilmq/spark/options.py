"""Options of ``format("veilmq")``: declarations for parsing, checks and documentation.

Spark passes options as text, with names in any case. An error names the option, its value and the allowed values; an
unknown name is an error too. Errors never show the value of a secret.

Source and sink share the options of the connection. The driver reads credentials from its environment, and the plan
carries them to the executors. Spark redacts secret options by name (``spark.redaction.regex``).
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from veilmq.client.transport import DEFAULT_ENDPOINT, ENDPOINT_VARIABLES, SigningKey, endpoint_from, key_from
from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.spark.retries import PatientTransport
from veilmq.wire.exchange import DEFAULT_REGION


class OptionWrong(ValueError):
    """An option is unknown, missing or out of range; ``str()`` names it and the allowed values."""


@dataclass(frozen=True, slots=True)
class OptionType:
    """The type of an option: ``read`` parses its text or raises ``ValueError``; ``allowed`` are the allowed values."""

    read: Callable[[str], Any]
    allowed: str
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its ``name`` in Spark, its ``field`` in the code, its ``default`` and its documentation.

    ``shown`` replaces the default in the documentation; ``aliases`` are names in other sources of Spark. Errors do not
    show the value of a ``secret`` option.
    """

    name: str
    field: str
    type: OptionType
    doc: str
    default: Any = None
    shown: str = ""
    secret: bool = False
    aliases: tuple[str, ...] = ()


def option(name: str, type: OptionType, doc: str, **parameters: Any) -> Any:  # noqa: A002 - as in Option
    """Declare a field as the option ``name``; without ``shown``, its default is that of the type."""
    if "shown" not in parameters:
        parameters.setdefault("default", type.default)
    return field(metadata={"option": partial(Option, name=name, type=type, doc=doc, **parameters)})


def options_of(parsed: Any) -> tuple[Option, ...]:
    """Return the options declared as fields of the dataclass ``parsed``."""
    return tuple(each.metadata["option"](field=each.name) for each in fields(parsed) if each.metadata)


def read(table: Sequence[Option], options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of all options of ``table`` by field; raises ``OptionWrong``."""
    known = {name.lower(): (option, name) for option in table for name in (option.name, *option.aliases)}
    values = {option.field: option.default for option in table}
    names: dict[str, str] = {}
    for given, text in options.items():
        option, name = known.get(given.lower(), (None, given))
        if option is None:
            raise OptionWrong(_unknown(given, table))
        if option.field in names:
            raise OptionWrong(f"option {name}: is the same as {names[option.field]}; give only one of them")
        names[option.field] = name
        try:
            values[option.field] = option.type.read(text)
        except (ValueError, KeyError):
            what = "" if option.secret else f" = {text!r}"
            raise OptionWrong(f"option {name}{what}: must be {option.type.allowed.replace('`', '')}") from None
    return values


def whole(allowed: Range) -> OptionType:
    """Return the type of integers within ``allowed``."""

    def read(text: str) -> int:
        if not allowed.holds(value := int(text)):
            raise ValueError
        return value

    return OptionType(read, f"{allowed.minimum:,} to {allowed.maximum:,}", allowed.default)


def choice(*names: str) -> OptionType:
    """Return the type of an enumeration, in any case; the first of ``names`` is the default."""
    allowed = " or ".join(f"`{name}`" for name in names)
    return OptionType(lambda text: names[names.index(text.lower())], allowed, names[0])


def _matching(pattern: str, allowed: str) -> OptionType:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ValueError
        return text

    return OptionType(read, allowed)


def name_of(characters_max: int) -> OptionType:
    """Return the type of names of sources and writers."""
    return _matching(f"[A-Za-z0-9_-]{{1,{characters_max}}}", f"1 to {characters_max} letters, digits, - and _")


TEXT = _matching(".+", "text")
YES_NO = OptionType(lambda text: {"true": True, "false": False}[text.lower()], "`true` or `false`", default=False)


def _unknown(name: str, table: Sequence[Option]) -> str:
    if name.lower().startswith(("starting", "ending")):
        return (
            f"option {name}: a queue has no positions to start or end at; a new stream starts with the visible "
            "messages, and a stream with a checkpoint continues where it stopped; remove the option"
        )
    near = difflib.get_close_matches(name.lower(), [option.name.lower() for option in table], n=1)
    meant = [f"did you mean {option.name}?" for option in table if option.name.lower() in near]
    names = ", ".join(option.name for option in table)
    return f"option {name}: does not exist; {''.join(meant) or f'the options are {names}'}"


PATIENCE_S = Range(minimum=0, maximum=3_600, default=60)
_ENDPOINTS = f"{', '.join(f'`${name}`' for name in ENDPOINT_VARIABLES)} of the driver, else `{DEFAULT_ENDPOINT}`"
_KEY_ID, _SECRET, _TOKEN = (
    f"`$AWS_{name}` of the driver" for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ConnectionOptions:
    endpoint: str | None = option("endpoint", TEXT, "URL of the server.", shown=_ENDPOINTS)
    queue: str | None = option("queue", TEXT, "Name or URL of the queue; equivalent to `path`.", shown="required")
    path: str | None = option("path", TEXT, "The argument of `load`, `start` or `save`; equivalent to `queue`.")
    access_key: str | None = option(
        "accessKey",
        TEXT,
        "Id of the access key that signs the requests; requires `secretKey`.",
        shown=_KEY_ID,
        secret=True,
    )
    secret_key: str | None = option("secretKey", TEXT, "Secret of the access key.", shown=_SECRET, secret=True)
    session_token: str | None = option(
        "sessionToken", TEXT, "Session token of a temporary access key.", shown=_TOKEN, secret=True
    )
    region: str | None = option(
        "region", TEXT, "Region in the signature.", shown=f"`$AWS_REGION`, else `{DEFAULT_REGION}`"
    )
    patience_s: int = option(
        "patience",
        whole(PATIENCE_S),
        "Seconds for which requests are retried before the query fails, if the server does not answer or throttles.",
    )


CONNECTION_OPTIONS = options_of(_ConnectionOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An endpoint, a queue (name or URL) and an access key, whose ``repr`` hides the secret.

    Requests are retried for ``patience_s``.
    """

    endpoint: str
    queue: str
    key: SigningKey | None = None
    patience_s: int = PATIENCE_S.default

    def transport(self) -> PatientTransport:
        """Return a new transport to the endpoint."""
        return PatientTransport(self.endpoint, key=self.key, patience_s=self.patience_s)

    @property
    def queue_name(self) -> str:
        """The name of the queue, also if ``queue`` is its URL."""
        return self.queue.rstrip("/").rpartition("/")[2]

    @classmethod
    def of(cls, values: dict[str, Any], environment: Mapping[str, str] = os.environ) -> Self:
        """Remove ``CONNECTION_OPTIONS`` from ``values`` to create a connection; raises ``OptionWrong``."""
        taken = {option.field: values.pop(option.field) for option in CONNECTION_OPTIONS}
        queue = taken["queue"] or taken["path"]
        if not queue:
            raise OptionWrong(
                'option queue: is required; use .option("queue", "NAME"), .load("NAME") or .save("NAME"). A table '
                "in SQL is created without columns, and is read-only"
            )
        if taken["queue"] and taken["path"] and taken["queue"] != taken["path"]:
            raise OptionWrong(f"option queue = {queue!r}: the path is {taken['path']!r}; give only one of them")
        endpoint = taken["endpoint"] or endpoint_from(environment)
        if not endpoint.startswith(("http://", "https://")):
            raise OptionWrong(f"option endpoint = {endpoint!r}: must look like {DEFAULT_ENDPOINT}")
        return cls(endpoint=endpoint, queue=queue, key=_key(taken, environment), patience_s=taken["patience_s"])


def _key(taken: dict[str, Any], environment: Mapping[str, str]) -> SigningKey | None:
    found = key_from(environment)
    region = taken["region"] or (found.region if found else environment.get("AWS_REGION") or DEFAULT_REGION)
    key_id, secret, token = taken["access_key"], taken["secret_key"], taken["session_token"]
    if bool(key_id) != bool(secret):
        raise OptionWrong("option accessKey: requires secretKey; give both, or neither for the key in the environment")
    if key_id:
        return SigningKey(id=key_id, secret=secret, session_token=token, region=region)
    return None if found is None else replace(found, region=region)


CLAIMS = "claims"
SQS = "sqs"
FAIL = "fail"
SKIP = "skip"
EMPTY = "empty"

SNAPSHOT_HOLD_S = 600
NAME_CHARACTERS_MAX = 128
SQS_MESSAGES_MAX = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options; durations in seconds. ``None`` selects the default of the reader."""

    connection: Connection
    mode: str = option(
        "mode",
        choice(CLAIMS, SQS),
        "`claims`: exactly once, from a veilmq server. `sqs`: at least once, from any endpoint that speaks SQS.",
    )
    messages_max: int | None = option(
        "maxMessagesPerBatch",
        whole(limits.CLAIM_MESSAGES),
        "Maximum number of messages in a micro-batch or snapshot. Alias: `maxOffsetsPerTrigger`.",
        shown=f"`{limits.CLAIM_MESSAGES.default}`; `{SQS_MESSAGES_MAX}` with `mode=sqs`",
        aliases=("maxOffsetsPerTrigger",),
    )
    bytes_max: int | None = option(
        "maxBytesPerBatch",
        whole(limits.CLAIM_BYTES),
        "Maximum size of a micro-batch or snapshot: bodies and attributes as the server stores them. Alias: "
        "`maxBytesPerTrigger`.",
        shown="unlimited",
        aliases=("maxBytesPerTrigger",),
    )
    shard_messages: int = option(
        "shardSize",
        whole(Range(minimum=1, maximum=limits.CLAIM_MESSAGES.maximum, default=limits.CLAIM_SHARD_MESSAGES)),
        "Number of messages per task. All messages of a group are in one task.",
    )
    wait_s: int = option(
        "wait",
        whole(limits.SQS_RECEIVE_WAIT_S),
        "Seconds for which an idle stream waits for a message; use 0 or 1 if the query has several sources.",
        default=limits.SQS_RECEIVE_WAIT_S.maximum,
    )
    stream: str | None = option(
        "stream",
        name_of(NAME_CHARACTERS_MAX),
        "Name of the stream of a new checkpoint; a query that was killed before its first offset was stored uses its "
        "claim again. Each checkpoint needs another name.",
        shown="unique for each start",
    )
    consumer: str = option(
        "consumer",
        TEXT,
        "Name of the consumer. A consumer has one stream; a second one is refused.",
        default="",
        shown="none",
    )
    takeover: bool = option(
        "takeover",
        YES_NO,
        "Replace the other stream of `consumer`: its claimed messages are released and delivered again.",
    )
    lease_s: int = option(
        "lease",
        whole(limits.CLAIM_LEASE_S),
        "Seconds after the last heartbeat for which the stream is reported as alive. With `mode=sqs`: the "
        "visibility timeout, which is renewed.",
    )
    hold_s: int | None = option(
        "hold",
        whole(limits.CLAIM_HOLD_S),
        "Seconds after the last heartbeat after which unfinished messages return to the queue. It must be **longer "
        "than any downtime**: exactly once depends on it.",
        shown=f"`{limits.CLAIM_HOLD_S.default}`; `{SNAPSHOT_HOLD_S}` for snapshots",
    )
    on_lost_claim: str = option(
        "onLostClaim",
        choice(FAIL, SKIP),
        "Action if the hold has ended and claimed messages have returned to the queue: stop with an error, or skip "
        "the claims (their messages are delivered again).",
    )
    on_acked_replay: str = option(
        "onAckedReplay",
        choice(FAIL, EMPTY),
        "Action if a restored checkpoint repeats a batch whose messages are deleted: stop with an error, or read "
        "an empty batch.",
    )
    snapshot: str | None = option(
        "snapshot",
        name_of(NAME_CHARACTERS_MAX),
        "Batch reads only: name of the snapshot, by which it can be read again and acknowledged.",
        shown="unique for each `load`",
    )

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse the options from Spark; raises ``OptionWrong``."""
        values = read(SOURCE_OPTIONS, options)
        return cls(connection=Connection.of(values), **values)


SOURCE_OPTIONS = (*CONNECTION_OPTIONS, *options_of(SourceOptions))

TABLE = "table="

BATCH_SIZE = Range(minimum=1, maximum=limits.STAGE_MESSAGES_MAX, default=1_000)
_WRITER_CHARACTERS_MAX = 64
_SPARK = ("checkpointlocation", "asyncprogresstracking", "queryname")  # options of writeStream that Spark also passes


def _bad_rows(text: str) -> str:
    if text.lower() in (FAIL, SKIP):
        return text.lower()
    if text[: len(TABLE)].lower() != TABLE or len(text) == len(TABLE):
        raise ValueError
    return text[len(TABLE) :] if "://" in text else str(Path(text[len(TABLE) :]).absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options; durations in seconds."""

    connection: Connection
    batch_size: int = option(
        "batchSize",
        whole(BATCH_SIZE),
        "Maximum number of messages in a request; a request with long messages has fewer.",
    )
    messages_per_s_max: int | None = option(
        "messagesPerSecond",
        whole(limits.PUBLISH_PER_S),
        "Maximum rate at which published messages become visible, over all tasks. A batch ends with its last one.",
        shown="unlimited",
    )
    bad_rows: str = option(
        "badRows",
        OptionType(_bad_rows, "`fail`, `skip` or `table=PATH`", FAIL),
        "Action for a row that cannot be sent: end the query, leave the row out, or write it with the reason to a "
        "Parquet file in the folder or bucket `PATH`.",
    )
    writer: str | None = option(
        "writer",
        name_of(_WRITER_CHARACTERS_MAX),
        "Batch writes only: its name. Writes with the same name are sent once, in `foreachBatch` once per batch.",
        shown="unique for each write",
    )

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse the options from Spark; raises ``OptionWrong``."""
        own_options = {name: text for name, text in options.items() if not name.lower().startswith(_SPARK)}
        values = read(SINK_OPTIONS, own_options)
        return cls(connection=Connection.of(values), **values)


SINK_OPTIONS = (*CONNECTION_OPTIONS, *options_of(SinkOptions))
