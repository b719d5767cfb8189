"""Claims from a client's side: numbered sets of messages that may be read as often as one likes, until acknowledged.

``docs/protocols/claims.md`` has the whole story. Every call has the same effect twice, so all of them are tried again
when an answer is lost; only that ``open`` then begins one epoch more. Failures are ``ClientError`` whose ``code`` is
the name of an error of ``core.errors``, for example ``EpochFenced``.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from veilmq.client.api import QueueApi
from veilmq.client.transport import unexpected
from veilmq.core import limits
from veilmq.core.claims import Acknowledged, Bound, SourceView
from veilmq.wire.v1.claims import CURSOR

BINDING_S_MAX = 30
"""How long the server may take to bind a large claim, in seconds."""


class _Sources(msgspec.Struct, frozen=True):
    sources: list[SourceView]


class _Nothing(msgspec.Struct, frozen=True):
    pass


class Claims(QueueApi):
    """The claims of one queue."""

    noun = "claims"

    def open(
        self,
        source: str,
        *,
        consumer: str = "",
        takeover: bool = False,
        hold_s: int = limits.CLAIM_HOLD_S.default,
        lease_s: int = limits.CLAIM_LEASE_S.default,
    ) -> SourceView:
        """Begin a new epoch of ``source``, which is made if there is none; see ``core.claims.OpenSource``."""
        fields = {"source": source, "consumer": consumer, "takeover": takeover, "hold_s": hold_s, "lease_s": lease_s}
        return self.post("open", fields, SourceView)

    def claim(
        self,
        source: str,
        *,
        epoch: int,
        number: int,
        messages_max: int,
        shard_messages: int = limits.CLAIM_SHARD_MESSAGES,
        bytes_max: int | None = None,
        wait_s: int = 0,
    ) -> Bound:
        """Bind claim ``number``, or hear what it has, waiting up to ``wait_s`` (0 to 20) for a first message."""
        fields = {
            "source": source,
            "epoch": epoch,
            "number": number,
            "messages_max": messages_max,
            "shard_messages": shard_messages,
            "wait_s": wait_s,
        } | ({} if bytes_max is None else {"bytes_max": bytes_max})  # earlier servers know no such field
        return self.post("claim", fields, Bound, wait_s=wait_s + BINDING_S_MAX)

    def read(self, source: str, *, number: int, shard: int = 0) -> Iterator[Any]:
        """Yield the messages of a shard as ``pyarrow.RecordBatch``; needs pyarrow (the extra ``arrow``).

        An answer is asked for when the one before it is used up, and again if it is lost.
        """
        batches, cursor = self.page(source, number=number, shard=shard)
        yield from batches
        while cursor:
            batches, cursor = self.page(source, number=number, shard=shard, cursor=cursor)
            yield from batches

    def page(self, source: str, *, number: int, shard: int = 0, cursor: str = "") -> tuple[list[Any], str]:
        """Return one answer's part of ``read`` from ``cursor`` on, and where the next begins, empty after the last."""
        from pyarrow import ArrowException, ipc  # noqa: PLC0415 (an extra)

        parameters = {"source": source, "number": number, "shard": shard, "format": "arrow"}
        answer = self.ask("GET", "read", parameters={**parameters, "cursor": cursor} if cursor else parameters)
        try:
            with ipc.open_stream(answer.data) as batches:
                return list(batches), answer.headers.get(CURSOR, "")
        except (ArrowException, OSError) as error:
            raise unexpected(answer) from error

    def heartbeat(
        self, source: str, *, epoch: int, lease_s: int | None = None, hold_s: int | None = None
    ) -> SourceView:
        """Renew lease and hold of ``source``, and change them where they are given."""
        fields = {"source": source, "epoch": epoch, "lease_s": lease_s, "hold_s": hold_s}
        return self.post("heartbeat", fields, SourceView)

    def acknowledge(self, source: str, *, epoch: int, number: int) -> Acknowledged:
        """Delete the messages of all open claims of ``source`` up to ``number``."""
        return self.post("acknowledge", {"source": source, "epoch": epoch, "number": number}, Acknowledged)

    def release(self, source: str, *, number: int) -> SourceView:
        """Give the messages of a claim back, by an operator's decision."""
        return self.post("release", {"source": source, "number": number}, SourceView)

    def evict(self, source: str, *, number: int, message: str) -> SourceView:
        """Move one message of a claim (by its id, a UUID) to the queue's dead-letter queue."""
        return self.post("evict", {"source": source, "number": number, "message": message}, SourceView)

    def close_source(self, source: str) -> None:
        """Release all claims of ``source`` and forget it, by an operator's decision."""
        self.post("close", {"source": source}, _Nothing)

    def sources(self) -> list[SourceView]:
        """Return the sources of the queue, those with open claims first."""
        return self.get("", {}, _Sources).sources
