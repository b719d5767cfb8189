"""The options of the source. ``OPTIONS`` is the table by which they are parsed, checked and documented."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.spark.options import CONNECTION_OPTIONS, TEXT, YES_NO, Connection, Option, choice, name_of, read, whole

CLAIMS = "claims"
SQS = "sqs"
FAIL = "fail"
SKIP = "skip"
EMPTY = "empty"

SNAPSHOT_HOLD_S = 600
SNAPSHOT_CHARACTERS_MAX = 128
SQS_MESSAGES_MAX = 5_000
PATIENCE_S = Range(minimum=0, maximum=3_600, default=60)

OPTIONS = (
    *CONNECTION_OPTIONS,
    Option(
        name="mode",
        field="mode",
        kind=choice(CLAIMS, SQS),
        default=CLAIMS,
        doc="`claims`: exactly once, from a veilmq server. `sqs`: at least once, from any endpoint that speaks SQS.",
    ),
    Option(
        name="maxMessagesPerBatch",
        field="messages_max",
        kind=whole(limits.CLAIM_MESSAGES),
        shown=f"`{limits.CLAIM_MESSAGES.default}`; `{SQS_MESSAGES_MAX}` with `mode=sqs`",
        doc="Maximum number of messages in a micro-batch or snapshot. Alias: `maxOffsetsPerTrigger`.",
        aliases=("maxOffsetsPerTrigger",),
    ),
    Option(
        name="maxBytesPerBatch",
        field="bytes_max",
        kind=whole(limits.CLAIM_BYTES),
        shown="unlimited",
        doc="Maximum size of a micro-batch or snapshot: bodies and attributes as the server stores them. Alias: "
        "`maxBytesPerTrigger`.",
        aliases=("maxBytesPerTrigger",),
    ),
    Option(
        name="shardSize",
        field="shard_messages",
        kind=whole(Range(minimum=1, maximum=limits.CLAIM_MESSAGES.maximum, default=limits.CLAIM_SHARD_MESSAGES)),
        default=limits.CLAIM_SHARD_MESSAGES,
        doc="Number of messages per task. All messages of a group are in one task.",
    ),
    Option(
        name="wait",
        field="wait_s",
        kind=whole(limits.SQS_RECEIVE_WAIT_S),
        default=limits.SQS_RECEIVE_WAIT_S.maximum,
        doc="Seconds for which an idle stream waits for a message; use 0 or 1 if the query has several sources.",
    ),
    Option(
        name="consumer",
        field="consumer",
        kind=TEXT,
        default="",
        shown="none",
        doc="Name of the consumer. A consumer has one stream; a second one is refused.",
    ),
    Option(
        name="takeover",
        field="takeover",
        kind=YES_NO,
        default=False,
        doc="Replace the other stream of `consumer`: its claimed messages are released and delivered again.",
    ),
    Option(
        name="lease",
        field="lease_s",
        kind=whole(limits.CLAIM_LEASE_S),
        default=limits.CLAIM_LEASE_S.default,
        doc="Seconds after the last heartbeat for which the stream is reported as alive. With `mode=sqs`: the "
        "visibility timeout, which is renewed.",
    ),
    Option(
        name="hold",
        field="hold_s",
        kind=whole(limits.CLAIM_HOLD_S),
        shown=f"`{limits.CLAIM_HOLD_S.default}`; `{SNAPSHOT_HOLD_S}` for snapshots",
        doc="Seconds after the last heartbeat after which unfinished messages return to the queue. It must be **longer "
        "than any downtime**: exactly once depends on it.",
    ),
    Option(
        name="patience",
        field="patience_s",
        kind=whole(PATIENCE_S),
        default=PATIENCE_S.default,
        doc="Seconds for which requests are retried, if the server does not answer, before the query fails.",
    ),
    Option(
        name="onLostClaim",
        field="on_lost_claim",
        kind=choice(FAIL, SKIP),
        default=FAIL,
        doc="Action if the hold has ended and claimed messages have returned to the queue: stop with an error, or skip "
        "the claims (their messages are delivered again).",
    ),
    Option(
        name="onAckedReplay",
        field="on_acked_replay",
        kind=choice(FAIL, EMPTY),
        default=FAIL,
        doc="Action if a restored checkpoint repeats a batch whose messages are deleted: stop with an error, or read "
        "an empty batch.",
    ),
    Option(
        name="snapshot",
        field="snapshot",
        kind=name_of(SNAPSHOT_CHARACTERS_MAX),
        shown="unique for each `load`",
        doc="Batch reads only: name of the snapshot, by which it can be read again and acknowledged.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options; durations in seconds. ``None`` selects the default of the reader."""

    connection: Connection
    mode: str
    messages_max: int | None
    bytes_max: int | None
    shard_messages: int
    wait_s: int
    consumer: str
    takeover: bool
    lease_s: int
    hold_s: int | None
    patience_s: int
    on_lost_claim: str
    on_acked_replay: str
    snapshot: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse the options from Spark; raises ``OptionWrong``."""
        values = read(OPTIONS, options)
        return cls(connection=Connection.of(values), **values)
