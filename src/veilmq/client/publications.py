"""Publications from a client's side: messages staged part by part, and sent together once.

``docs/protocols/publications.md`` has the whole story. Every call has the same effect twice, so all of them are tried
again when an answer is lost. Failures are ``ClientError`` whose ``code`` is the name of an error of ``core.errors``;
of ``StageRefused``, the field ``index`` tells which message it was.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from veilmq.client.api import QueueApi
from veilmq.client.transport import decode
from veilmq.core.publications import Published, Staged, WriterView
from veilmq.wire.v1.publications import ARROW_TYPE, MessagesFields, OutgoingRow

PUBLISHING_S_MAX = 10
"""How long the server may take for one answer to ``publish``, in seconds."""


class _Writers(msgspec.Struct, frozen=True):
    writers: list[WriterView]


class _Nothing(msgspec.Struct, frozen=True):
    pass


class Publications(QueueApi):
    """The publications of one queue."""

    noun = "publications"

    def stage(self, writer: str, *, batch: int, attempt: str, part: int, messages: Sequence[OutgoingRow]) -> Staged:
        """Keep ``messages`` as part ``part`` (0, 1, 2, …) of an attempt; see ``core.publications.Stage``."""
        body = msgspec.json.encode(MessagesFields(messages=list(messages)))
        return self._stage(writer, batch, attempt, part, body, "application/json")

    def stage_arrow(self, writer: str, *, batch: int, attempt: str, part: int, messages: Any) -> Staged:
        """Do the same with a ``pyarrow.RecordBatch`` that has the columns of ``OutgoingRow``; needs pyarrow."""
        import pyarrow as pa  # noqa: PLC0415 (an extra)

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, messages.schema) as stream:
            stream.write_batch(messages)
        return self._stage(writer, batch, attempt, part, sink.getvalue().to_pybytes(), ARROW_TYPE.decode())

    def _stage(self, writer: str, batch: int, attempt: str, part: int, body: bytes, content_type: str) -> Staged:
        parameters = {"writer": writer, "batch": batch, "attempt": attempt, "part": part}
        answer = self.ask("POST", "stage", parameters=parameters, body=body, content_type=content_type)
        return decode(answer, Staged)

    def publish(
        self, writer: str, *, batch: int, attempts: Sequence[tuple[str, int]], messages_per_s_max: int | None = None
    ) -> Published:
        """Send what was staged under ``attempts`` (names with their numbers of messages), in this order, once.

        With ``messages_per_s_max`` they come into the queue no faster than that.
        Returns when all is in the queue; ``again`` tells that the batch had been published before.
        """
        ask = partial(self.publish_on, writer, batch=batch, attempts=attempts, messages_per_s_max=messages_per_s_max)
        first = last = ask()
        while last.more:
            last = ask()
        return msgspec.structs.replace(last, again=first.again)

    def publish_on(
        self, writer: str, *, batch: int, attempts: Sequence[tuple[str, int]], messages_per_s_max: int | None = None
    ) -> Published:
        """Do the same for some seconds at the most; with ``more`` in the answer not all is in the queue: ask again."""
        fields = {"writer": writer, "batch": batch, "attempts": attempts, "messages_per_s_max": messages_per_s_max}
        return self.post("publish", fields, Published, wait_s=PUBLISHING_S_MAX)

    def abandon(self, writer: str, *, batch: int) -> None:
        """Drop what is staged for ``batch`` and is not published."""
        self.post("abandon", {"writer": writer, "batch": batch}, _Nothing)

    def writers(self) -> list[WriterView]:
        """Return the writers of the queue, those that were heard of last first."""
        return self.get("", {}, _Writers).writers
