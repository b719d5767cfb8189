"""Clients of veilmq's own API (``/v1/…``): claims, publications, forwards, settings and inspection of one queue.

Every call is idempotent and is retried if its reply is lost. Errors are ``ClientError``; ``code`` is the name of an
error in ``core.errors``, for example ``EpochFenced``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import astuple

from veilmq.client.messages import ClientError, QueueStatus
from veilmq.client.transport import (
    UNEXPECTED_REPLY,
    Client,
    HttpReply,
    Reply,
    SigningKey,
    Transport,
    client_error,
    decode,
    unexpected_reply,
    without_none,
)
from veilmq.core import limits
from veilmq.core.claims import Acknowledged, Bound, Published, SourceView, Staged, WriterView
from veilmq.core.settings import SettingValue
from veilmq.wire.sqs.members import QueueUrlResult
from veilmq.wire.sqs.names import full_name
from veilmq.wire.v1.claims import CURSOR, Sources
from veilmq.wire.v1.publications import ARROW_TYPE, ForwardedEntry, MessagesFields, OutgoingRow, Writers
from veilmq.wire.v1.request import Nothing

if TYPE_CHECKING:  # Spark workers do not need them
    from veilmq.wire.v1.queues import ListedMessages, PeekedMessages

_JSON = "application/json"


class QueueApi(Client):
    """Base class of clients of one ``noun`` of a queue.

    The queue is given by its URL, or by its name if it is in the caller's account. The account of a name is requested
    from the server once.
    """

    noun: ClassVar[str]

    def __init__(self, endpoint: str | Transport, queue: str, *, key: SigningKey | None = None) -> None:
        """``endpoint`` is a URL or a transport; raises ``ValueError`` for an invalid URL."""
        super().__init__(Transport(endpoint, key=key) if isinstance(endpoint, str) else endpoint)
        self._queue = queue
        self._path = ""

    def post(self, verb: str, fields: Mapping[str, Any], reply_type: type[Reply], *, wait_s: int = 0) -> Reply:
        """Send a POST with ``fields`` as JSON; raises ``ClientError`` and ``Unreachable``."""
        body = msgspec.json.encode(fields)
        return decode(self.request("POST", verb, body=body, content_type=_JSON, wait_s=wait_s), reply_type)

    def get(self, verb: str, parameters: Mapping[str, Any], reply_type: type[Reply]) -> Reply:
        """Send a GET with ``parameters``; raises ``ClientError`` and ``Unreachable``."""
        return decode(self.request("GET", verb, parameters=parameters), reply_type)

    def request(
        self,
        method: str,
        verb: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: bytes = b"",
        content_type: str = "",
        wait_s: int = 0,
    ) -> HttpReply:
        """Send a request and return the undecoded reply; raises ``ClientError`` and ``Unreachable``.

        ``parameters`` that are ``None`` are omitted.
        """
        if not self._path:
            self._path = f"/v1/{self.noun}/{self._full_name()}"
        target = self._path + (f"/{verb}" if verb else "")
        if parameters:
            target += "?" + urlencode(without_none(**parameters))
        headers = {"Content-Type": content_type} if content_type else {}
        reply = self._transport.request(method, target, headers=headers, body=body, wait_s=wait_s)
        if reply.status != 200:
            raise client_error(reply)
        return reply

    def _full_name(self) -> str:
        """Return the account and the name of the queue for a path."""
        url = self._queue
        if "/" not in url:
            url = self._transport.call("GetQueueUrl", {"QueueName": url}, QueueUrlResult).queue_url
        return full_name(url)


BINDING_S_MAX = 30
"""Timeout for binding a large claim, in seconds."""
PUBLISHING_S_MAX = 10
"""Timeout for one reply to ``publish``, in seconds."""


class _Entries(msgspec.Struct, frozen=True):
    entries: list[dict[str, Any]]


class _EntryError(msgspec.Struct, frozen=True):
    code: str
    message: str
    status: int


class Claims(QueueApi):
    """The claims of one queue: numbered sets of messages, read any number of times until acknowledged.

    See ``docs/protocols/claims.md``. Repeating an ``open`` whose reply was lost begins another epoch.
    """

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
        """Begin a new epoch of ``source``, which is created if it does not exist; see ``core.claims.OpenSource``."""
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
        empty: bool | None = None,
    ) -> Bound:
        """Bind claim ``number``, or return it if bound; wait up to ``wait_s`` (0 to 20), or bind it ``empty``."""
        fields = {"source": source, "epoch": epoch, "number": number, "messages_max": messages_max}
        # ``None`` is left out for older servers.
        fields |= without_none(shard_messages=shard_messages, wait_s=wait_s, bytes_max=bytes_max, empty=empty)
        return self.post("claim", fields, Bound, wait_s=wait_s + BINDING_S_MAX)

    def read(self, source: str, *, number: int, shard: int = 0) -> Iterator[Any]:
        """Yield the messages of a shard as ``pyarrow.RecordBatch``; requires pyarrow (the extra ``arrow``).

        Each page is requested after the previous one is consumed.
        """
        from pyarrow import ArrowException, ipc  # noqa: PLC0415 (an extra)

        parameters = {"source": source, "number": number, "shard": shard, "format": "arrow"}
        while True:
            reply = self.request("GET", "read", parameters=parameters)
            try:
                with ipc.open_stream(reply.data) as stream:
                    batches = list(stream)
            except (ArrowException, OSError) as error:
                raise unexpected_reply(reply) from error
            yield from batches
            parameters["cursor"] = reply.headers.get(CURSOR, "")
            if not parameters["cursor"]:
                return

    def heartbeat(
        self, source: str, *, epoch: int, lease_s: int | None = None, hold_s: int | None = None
    ) -> SourceView:
        """Renew the lease and the hold of ``source``; ``lease_s`` and ``hold_s`` change their durations."""
        fields = {"source": source, "epoch": epoch, "lease_s": lease_s, "hold_s": hold_s}
        return self.post("heartbeat", fields, SourceView)

    def acknowledge(self, source: str, *, epoch: int, number: int) -> Acknowledged:
        """Delete the messages of all open claims of ``source`` up to ``number``."""
        return self.post("acknowledge", {"source": source, "epoch": epoch, "number": number}, Acknowledged)

    def release(self, source: str, *, number: int) -> SourceView:
        """Return the messages of a claim to the queue; for operators."""
        return self.post("release", {"source": source, "number": number}, SourceView)

    def evict(self, source: str, *, number: int, message: str) -> SourceView:
        """Move one message of a claim (by its id, a UUID) to the dead-letter queue."""
        return self.post("evict", {"source": source, "number": number, "message": message}, SourceView)

    def close_source(self, source: str) -> None:
        """Release all claims of ``source`` and delete it; for operators."""
        self.post("close", {"source": source}, Nothing)

    def sources(self) -> list[SourceView]:
        """Return the sources of the queue, those with open claims first."""
        return self.get("", {}, Sources).sources


class Publications(QueueApi):
    """The publications of one queue: messages staged in parts, and sent together, once.

    See ``docs/protocols/publications.md``. The field ``index`` of ``StageRefused`` is that of the invalid message.
    """

    noun = "publications"

    def stage(self, writer: str, *, batch: int, attempt: str, part: int, messages: Sequence[OutgoingRow]) -> Staged:
        """Stage ``messages`` as part ``part`` (0, 1, 2, …) of an attempt; see ``core.claims.Stage``."""
        body = msgspec.json.encode(MessagesFields(messages=list(messages)))
        return self._stage(writer, batch, attempt, part, body, _JSON)

    def stage_arrow(self, writer: str, *, batch: int, attempt: str, part: int, messages: Any) -> Staged:
        """Stage a ``pyarrow.RecordBatch`` with the columns of ``OutgoingRow``, like ``stage``; requires pyarrow."""
        import pyarrow as pa  # noqa: PLC0415 (an extra)

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, messages.schema) as stream:
            stream.write_batch(messages)
        return self._stage(writer, batch, attempt, part, sink.getvalue().to_pybytes(), ARROW_TYPE.decode())

    def _stage(self, writer: str, batch: int, attempt: str, part: int, body: bytes, content_type: str) -> Staged:
        parameters = {"writer": writer, "batch": batch, "attempt": attempt, "part": part}
        reply = self.request("POST", "stage", parameters=parameters, body=body, content_type=content_type)
        return decode(reply, Staged)

    def publish(
        self, writer: str, *, batch: int, attempts: Sequence[tuple[str, int]], messages_per_s_max: int | None = None
    ) -> Published:
        """Send the messages staged under ``attempts`` (names and numbers of messages), in this order, once.

        Returns when all messages are in the queue, at most ``messages_per_s_max`` a second. ``again``: the batch was
        published before.
        """
        fields = {"writer": writer, "batch": batch, "attempts": attempts, "messages_per_s_max": messages_per_s_max}
        first = last = self.post("publish", fields, Published, wait_s=PUBLISHING_S_MAX)
        while last.more:
            last = self.post("publish", fields, Published, wait_s=PUBLISHING_S_MAX)
        return msgspec.structs.replace(last, again=first.again)

    def abandon(self, writer: str, *, batch: int) -> None:
        """Delete the staged messages of ``batch`` that are not published."""
        self.post("abandon", {"writer": writer, "batch": batch}, Nothing)

    def writers(self) -> list[WriterView]:
        """Return the writers of the queue, most recently active first."""
        return self.get("", {}, Writers).writers


class Forwards(QueueApi):
    """Forwards from one intake queue: received messages move to other queues, each once.

    See ``docs/forwarding.md``. A call whose reply was lost is repeated; messages that the first one moved are then
    ``ReceiptEnded`` with the field ``state`` = ``gone``.
    """

    noun = "queues"

    def forward(self, entries: Sequence[tuple[str, str]]) -> list[ForwardedEntry | ClientError]:
        """Move the message of each (receipt, target: name or URL of a queue); return a result for each, in order.

        At most ten entries; a call without entries tests whether the server supports forwards. Raises ``ClientError``
        and ``Unreachable``.
        """
        return self._forward([{"receipt": receipt, "target": _name_of(target)} for receipt, target in entries])

    def dead_letter(self, receipt: str, target: str, reasons: Mapping[str, str]) -> ForwardedEntry | ClientError:
        """Move a message to ``target`` as a dead letter, with ``reasons`` as attributes; raises like ``forward``."""
        (item,) = self._forward([{"receipt": receipt, "target": _name_of(target), "reasons": dict(reasons)}])
        return item

    def _forward(self, wanted: Sequence[Mapping[str, Any]]) -> list[ForwardedEntry | ClientError]:
        entries = self.post("forward", {"entries": wanted}, _Entries).entries
        try:
            return [
                ClientError(*astuple(msgspec.convert(entry, _EntryError)), fields=entry)
                if "code" in entry
                else msgspec.convert(entry, ForwardedEntry)
                for entry, _ in zip(entries, wanted, strict=True)
            ]
        except ValueError as error:
            raise ClientError(UNEXPECTED_REPLY, f"The reply is not that of a queue server: {error}.", 200) from error


def _name_of(target: str) -> str:
    """Return ``target``, a name or URL, as a name for a forward."""
    return full_name(target) if "://" in target else target


class Settings(QueueApi):
    """The settings of one queue, which need not exist yet, without the restrictions of SQS in ``QueueClient``.

    As in SMQ, names of FIFO queues need not end in ``.fifo``, names may have 256 characters, and delays seven days.
    """

    noun = "queues"

    def create(
        self, settings: Mapping[str, SettingValue] | None = None, *, tags: Mapping[str, str] | None = None
    ) -> str:
        """Create the queue, or return it if it has the given settings (fields of ``QueueSettings``); returns its URL.

        Settings name other queues by their names. ``tags`` are for a new queue. Raises ``ClientError`` and
        ``Unreachable``.
        """
        from veilmq.wire.v1.queues import CreatedQueue  # noqa: PLC0415 - Spark workers do not need it

        return self.post("create", {"settings": settings or {}, "tags": tags or {}}, CreatedQueue).url

    def show(self) -> QueueStatus:
        """Return the settings and the counts of the queue; raises ``ClientError`` and ``Unreachable``."""
        status = self.get("show", {}, QueueStatus)
        return replace(status, queue=status.queue.rpartition("/")[2])

    def set(self, settings: Mapping[str, SettingValue]) -> None:
        """Change the given settings; current leases keep their deadlines.

        Raises ``ClientError`` and ``Unreachable``.
        """
        self.post("set", settings, Nothing)

    def _full_name(self) -> str:
        """Like that of the base class, but without a request: the queue may not exist yet."""
        return super()._full_name() if "/" in self._queue else f"-/{quote(self._queue)}"


class Inspection(QueueApi):
    """Read-only access to the messages of one queue: it begins no lease and counts no receive.

    ``docs/protocols/inspection.md`` describes the replies. Calls raise ``ClientError`` and ``Unreachable``.
    """

    noun = "messages"

    def peek(self, *, count: int = limits.INSPECT_MESSAGES.default) -> "PeekedMessages":
        """Return up to ``count`` (1 to 100) messages that a receive would return now, in that order."""
        from veilmq.wire.v1.queues import PeekedMessages  # noqa: PLC0415 - as above

        return self.get("peek", {"count": count}, PeekedMessages)

    def messages(
        self,
        *,
        state: Literal["visible", "in_flight", "delayed"] | None = None,
        id: str | None = None,  # noqa: A002 - the name of the parameter
        count: int = limits.INSPECT_MESSAGES.default,
    ) -> "ListedMessages":
        """Return up to ``count`` (1 to 100) messages, of a ``state`` or with an ``id``, if given."""
        from veilmq.wire.v1.queues import ListedMessages  # noqa: PLC0415 - as above

        return self.get("", {"state": state, "id": id, "count": count}, ListedMessages)
