"""The options that are settings of a queue: what ``queue create`` and ``queue set`` can change."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.options import whole_number
from veilmq.core.limits import (
    MESSAGE_BYTES,
    RETENTION_S,
    SQS_DELAY_S,
    SQS_RECEIVE_WAIT_S,
    VISIBILITY_TIMEOUT_S,
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Each option is ``None`` when it was not given."""

    visibility_timeout: Annotated[
        int | None, whole_number(VISIBILITY_TIMEOUT_S, "Seconds that a received message stays hidden.")
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

    def settings(self) -> dict[str, int]:
        """Return the given ones by their names in ``QueueSettings``."""
        fields = {
            "visibility_timeout_s": self.visibility_timeout,
            "delay_s": self.delay,
            "retention_s": self.retention,
            "receive_wait_s": self.receive_wait,
            "message_bytes_max": self.message_bytes_max,
        }
        return {name: value for name, value in fields.items() if value is not None}
