"""The options of the source. ``OPTIONS`` is the one table: of what is read, checked and documented."""

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
        doc="`claims`: exactly once, of a veilmq server. `sqs`: at least once, of any endpoint that speaks SQS.",
    ),
    Option(
        name="maxMessagesPerBatch",
        field="messages_max",
        kind=whole(limits.CLAIM_MESSAGES),
        shown=f"`{limits.CLAIM_MESSAGES.default}`; `{SQS_MESSAGES_MAX}` with `mode=sqs`",
        doc="Most messages of a micro-batch, or of a snapshot. Also `maxOffsetsPerTrigger`.",
        aliases=("maxOffsetsPerTrigger",),
    ),
    Option(
        name="maxBytesPerBatch",
        field="bytes_max",
        kind=whole(limits.CLAIM_BYTES),
        shown="no bound",
        doc="Most bytes of a micro-batch, or of a snapshot: bodies and attributes as the server keeps them. Also "
        "`maxBytesPerTrigger`.",
        aliases=("maxBytesPerTrigger",),
    ),
    Option(
        name="shardSize",
        field="shard_messages",
        kind=whole(Range(minimum=1, maximum=limits.CLAIM_MESSAGES.maximum, default=limits.CLAIM_SHARD_MESSAGES)),
        default=limits.CLAIM_SHARD_MESSAGES,
        doc="Messages that one task reads; a batch has so many tasks. All messages of a group are in one.",
    ),
    Option(
        name="wait",
        field="wait_s",
        kind=whole(limits.SQS_RECEIVE_WAIT_S),
        default=limits.SQS_RECEIVE_WAIT_S.maximum,
        doc="Seconds that an idle stream waits at the server for a message; 0 or 1 beside other sources in one query.",
    ),
    Option(
        name="consumer",
        field="consumer",
        kind=TEXT,
        default="",
        shown="none",
        doc="Name of what the stream works for. Of one consumer there is one stream; another one is refused.",
    ),
    Option(
        name="takeover",
        field="takeover",
        kind=YES_NO,
        default=False,
        doc="Take the place of the other stream of `consumer`: its claims are released and delivered again.",
    ),
    Option(
        name="lease",
        field="lease_s",
        kind=whole(limits.CLAIM_LEASE_S),
        default=limits.CLAIM_LEASE_S.default,
        doc="Seconds after the last heartbeat for which the stream is shown as alive. With `mode=sqs` the visibility "
        "timeout, which is renewed.",
    ),
    Option(
        name="hold",
        field="hold_s",
        kind=whole(limits.CLAIM_HOLD_S),
        shown=f"`{limits.CLAIM_HOLD_S.default}`; `{SNAPSHOT_HOLD_S}` of a snapshot",
        doc="Seconds after the last heartbeat after which unfinished messages return to the queue. **Longer than any "
        "downtime**: exactly once depends on it.",
    ),
    Option(
        name="patience",
        field="patience_s",
        kind=whole(PATIENCE_S),
        default=PATIENCE_S.default,
        doc="Seconds for which a server that does not answer is tried again before the query fails.",
    ),
    Option(
        name="onLostClaim",
        field="on_lost_claim",
        kind=choice(FAIL, SKIP),
        default=FAIL,
        doc="When the hold ended and messages went back to the queue: stop, or go on without them (they come again).",
    ),
    Option(
        name="onAckedReplay",
        field="on_acked_replay",
        kind=choice(FAIL, EMPTY),
        default=FAIL,
        doc="When a checkpoint that was put back asks for messages that are deleted: stop, or take them as none.",
    ),
    Option(
        name="snapshot",
        field="snapshot",
        kind=name_of(SNAPSHOT_CHARACTERS_MAX),
        shown="a new one for each `load`",
        doc="Batch reads only: name of the set of messages, by which it can be read again and acknowledged.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options as values; durations in seconds. ``None``: the reader has its own default."""

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
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read what Spark hands over; raises ``OptionWrong``."""
        values = read(OPTIONS, given)
        return cls(connection=Connection.of(values), **values)
