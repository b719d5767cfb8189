"""The options that are settings of a queue: what ``queue create`` and ``queue set`` can change."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from veilmq.cli.failures import UsageError
from veilmq.cli.options import own_number, whole_number
from veilmq.core.limits import (
    IN_FLIGHT,
    MESSAGE_BYTES,
    RECEIVES_PER_S,
    RETENTION_S,
    SQS_DELAY_S,
    SQS_KMS_DATA_KEY_REUSE_S,
    SQS_RECEIVE_WAIT_S,
    SQS_RECEIVES_MAX,
    VISIBILITY_TIMEOUT_S,
)
from veilmq.core.settings import SettingValue, TableError, read_table

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
