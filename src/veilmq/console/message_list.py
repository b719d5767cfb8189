"""Messages as a page shows them, from an inspection or a receive, and the parameters of the page's URL.

``mine`` are names of leases, each a message id with a receive count, so that a page can tell the messages received here
from those that others hold. Receipts never appear in URLs.

A body is shown as text, as indented JSON, or as hex, cut if it is long. It may be up to a mebibyte of anything, nested
to any depth: rendering is bounded in time and size, and its output is text, which the template escapes.
"""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from veilmq.console.api_client import ApiError, api_path
from veilmq.console.page_context import PageContext
from veilmq.console.queue_queries import show_queue
from veilmq.core.limits import INSPECT_MESSAGES, LEASE_S_MAX, SECOND_MS, SQS_RECEIVE_COUNT
from veilmq.wire.v1.queues import ListedMessage, ListedMessages, PeekedMessages, PeekedRow, ShownQueue

CUT_CHARACTERS = 2_000
"""How much of a body is shown in a list of messages."""

WHOLE_CHARACTERS = 1_200_000
"""How much is shown of a single body: as text, every body that a queue accepts."""

JSON_CHARACTERS_MAX = 131_072
"""Longest body that is indented as JSON: about a tenth of a second, which blocks the event loop."""

HEX_BYTES_MAX = 65_536
"""How many bytes of a single body are shown as hex, which is four times as long."""

_HEX_CUT_BYTES = 512
_ROW_BYTES = 16
_STEP = "  "
_STEPS_MAX = 40  # deeper values are not indented further, so that depth does not multiply the size
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[][{}:,]|[^][{}:,"\s]+')
_PRINTABLE = range(0x20, 0x7F)


class ShownBody(NamedTuple):
    """``text`` is the body in the requested ``view``, or as text if ``problem`` says why not.

    ``is_cut`` if something is missing; ``size_bytes`` is the size of the body in UTF-8.
    """

    text: str
    view: str
    size_bytes: int
    is_cut: bool
    problem: str = ""


def shown(body: str, view: str, *, size_bytes: int | None = None, whole: bool = False) -> ShownBody:
    """Return ``body`` as ``text``, ``json`` or ``hex``; cut, unless ``whole``.

    ``size_bytes`` is the size of the complete body, if ``body`` may be only its beginning.
    """
    data = body.encode("utf-8", "surrogatepass")
    size_bytes = len(data) if size_bytes is None else size_bytes
    if view == "hex":
        limit = HEX_BYTES_MAX if whole else _HEX_CUT_BYTES
        return ShownBody(hex_rows(data[:limit]), "hex", size_bytes, size_bytes > limit)
    limit = WHOLE_CHARACTERS if whole else CUT_CHARACTERS
    problem = not_json(body, data, size_bytes) if view == "json" else ""
    if view == "json" and not problem:
        text, is_cut = json_lines(body, limit)
        return ShownBody(text, "json", size_bytes, is_cut)
    return ShownBody(body[:limit], "text", size_bytes, len(body) > limit or len(data) < size_bytes, problem)


def not_json(body: str, data: bytes, size_bytes: int) -> str:
    """Return why ``body``, in UTF-8 ``data``, cannot be shown as JSON, as a sentence; empty if it can."""
    if len(data) < size_bytes or len(body) > JSON_CHARACTERS_MAX:
        return "This is too long to be laid out as JSON here."
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError:
        return "This is JSON nested too deeply to be laid out."
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "This is no JSON."
    return ""


def json_lines(body: str, characters_max: int) -> tuple[str, bool]:
    """Return valid JSON with one value per line, and whether it was cut.

    Tokens are unchanged, since differences that a parser ignores may matter for debugging: ``1.0`` and ``1``, duplicate
    names.
    """
    parts: list[str] = []
    room = characters_max
    for part in _laid_out(body):
        if len(part) > room:
            parts.append(part[:room])
            return "".join(parts), True
        parts.append(part)
        room -= len(part)
    return "".join(parts), False


def _laid_out(body: str) -> Iterator[str]:
    depth, before = 0, ""
    for match in _TOKEN.finditer(body):
        token = match[0]
        if token in "]}":
            depth -= 1
            yield token if before in ("[", "{") else _line(depth) + token
        elif token == ",":
            yield token + _line(depth)
        elif token == ":":
            yield ": "
        else:
            yield _line(depth) + token if before in ("[", "{") else token
            depth += token in "[{"
        before = token


def _line(depth: int) -> str:
    return "\n" + _STEP * min(depth, _STEPS_MAX)


def hex_rows(data: bytes) -> str:
    """Return rows of sixteen bytes: offset, hex digits, and ASCII characters."""
    return "\n".join(_row(at, data[at : at + _ROW_BYTES]) for at in range(0, len(data), _ROW_BYTES))


def _row(at: int, data: bytes) -> str:
    characters = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in data)
    return f"{at:06x}  {data.hex(' '):<{_ROW_BYTES * 3 - 1}}  {characters}"


BODIES: dict[str, str] = {"text": "Text", "json": "JSON", "hex": "Hex"}

COUNTS = (20, 100)

NEXT = "next"
"""The messages that a receive would return now."""

IN_FLIGHT = "in-flight"

STATES: dict[str, str] = {
    "all": "All",
    NEXT: "Next to be received",
    "visible": "Visible",
    IN_FLIGHT: "In flight",
    "delayed": "Delayed",
}


@dataclass(frozen=True, slots=True)
class MessageView:
    """What a page shows; ``whole`` is the id of the one message whose complete body is shown."""

    state: str = "all"
    body: str = "text"
    count: int = COUNTS[0]
    whole: str = ""
    mine: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """The query string, without defaults."""
        defaults = asdict(MessageView())
        parameters = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        return urlencode({name: ".".join(value) if name == "mine" else value for name, value in parameters.items()})

    def with_body(self, body: str) -> str:
        """Return the query string with bodies shown as ``body``."""
        return replace(self, body=body).query

    def one(self, message: str, state: str) -> str:
        """Return the query string for the complete body of one message, which is in ``state``."""
        return replace(self, whole=message, state=state if self.state == NEXT else self.state).query

    def changed(self, **other: object) -> str:
        """Return the query string with other parameters, without ``whole``."""
        return replace(self, **{"whole": "", **other}).query  # type: ignore[arg-type]


def read_view(query: Mapping[str, str]) -> MessageView:
    """Read the parameters of a URL; invalid ones are ignored."""
    state = query.get("state", "").replace("_", "-")  # the API uses an underscore
    body, count = query.get("body", ""), query.get("count", "")
    mine = [each for each in query.get("mine", "").split(".") if each]
    return MessageView(
        state=state if state in STATES else "all",
        body=body if body in BODIES else "text",
        count=int(count) if count in map(str, COUNTS) else COUNTS[0],
        whole=_id(query.get("whole", "")),
        mine=tuple(mine[: SQS_RECEIVE_COUNT.maximum]),
    )


def _id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        return ""


def lease_name(message: str, receive_count: object) -> str:
    return f"{message}_{receive_count}"


_JSON_CHARACTERS = 65_536
"""Longest body that is indented as JSON in a list of messages."""

_VALUE_CHARACTERS = 512
_VALUE_BYTES = 256
_NO_RECEIPTS: Mapping[str, str] = {}


class Attribute(NamedTuple):
    """A message attribute; a binary ``value`` is in hex. ``cut_from`` is the full size if it was cut."""

    name: str
    type: str
    value: str
    cut_from: int = 0


class Row(NamedTuple):
    """A message for display.

    ``source`` is the queue that a dead letter came from, if known. ``lease`` names its lease; ``is_mine`` if that began
    on this page. ``max_deadline_ms`` is the latest time to which it can be extended.
    """

    message: ListedMessage | PeekedRow
    state: str
    body: ShownBody
    attributes: list[Attribute]
    lease: str
    source: str | None = None
    is_mine: bool = False
    receipt: str | None = None
    visible_at_ms: int | None = None
    max_deadline_ms: int | None = None


class MessageList(NamedTuple):
    """The messages to show; ``is_cut`` if there may be more.

    ``hides_receipts`` if the caller may not see the receipts of others; ``missing`` counts leases that began here and
    are not among ``rows``.
    """

    rows: Sequence[Row]
    is_cut: bool
    hides_receipts: bool = False
    missing: int = 0

    @property
    def has_receipts(self) -> bool:
        return any(row.receipt for row in self.rows)

    @property
    def has_others_receipts(self) -> bool:
        """Whether there is a receipt of another receiver."""
        return any(row.receipt and not row.is_mine for row in self.rows)


async def show_queue_if_allowed(page: PageContext, *, is_needed: bool = True) -> ShownQueue | None:
    """Return the queue; ``None`` if the caller may see only its messages; raises ``ApiError`` if ``is_needed``."""
    try:
        return await show_queue(page)
    except ApiError as error:
        if is_needed and not error.is_denied:
            raise
        return None


async def list_messages(
    page: PageContext, view: MessageView, *, known: Mapping[str, str] = _NO_RECEIPTS
) -> MessageList:
    """Return the messages of ``view``; raises ``ApiError``.

    ``known`` are receipts by lease from the form, for a caller who may not see those of others.
    """
    if view.state == NEXT:
        peeked = msgspec.convert(await _get(page, "peek", _query(view)), PeekedMessages)
        rows = [row_of(each, view) for each in peeked.messages]
        return MessageList(rows, peeked.is_cut or len(rows) >= view.count)
    query = _query(view) | _filter(view)
    hides_receipts = False
    try:
        reply = await _get(page, "", query | {"receipts": "true"})
    except ApiError as error:
        if not error.is_denied:
            raise
        reply, hides_receipts = await _get(page, "", query), True
    listed = msgspec.convert(reply, ListedMessages)
    rows = [row_of(each, view) for each in listed.messages]
    if hides_receipts:
        rows = [row._replace(receipt=known.get(row.lease)) for row in rows]
    rows.sort(key=lambda row: not row.is_mine)
    missing = len({*view.mine} - {row.lease for row in rows}) if not view.whole else 0
    return MessageList(rows, listed.is_cut or len(rows) >= view.count, hides_receipts, missing)


async def _get(page: PageContext, verb: str, query: Mapping[str, Any]) -> Any:
    return await page.api("GET", api_path("messages", page.queue, verb), query=query)


def _query(view: MessageView) -> dict[str, Any]:
    if view.whole:
        return {"count": INSPECT_MESSAGES.maximum}
    return {"count": view.count, "body_characters_max": _JSON_CHARACTERS if view.body == "json" else CUT_CHARACTERS}


def _filter(view: MessageView) -> dict[str, Any]:
    state = {} if view.state == "all" else {"state": view.state.replace("-", "_")}
    return state | ({"id": view.whole} if view.whole else {})


def row_of(message: ListedMessage | PeekedRow, view: MessageView) -> Row:
    """Return a message for display in ``view``."""
    lease = lease_name(message.id, message.receive_count)
    row = Row(
        message=message,
        state="visible",
        body=shown(message.body, view.body, size_bytes=message.body_bytes, whole=bool(view.whole)),
        attributes=_attributes(message),
        lease=lease,
    )
    if isinstance(message, PeekedRow):
        return row._replace(source=message.source)
    state = message.state.replace("_", "-")
    return row._replace(
        state=state,
        is_mine=state == IN_FLIGHT and lease in view.mine,
        receipt=message.receipt,
        visible_at_ms=message.visible_at_ms,
        max_deadline_ms=None if message.received_at_ms is None else message.received_at_ms + LEASE_S_MAX * SECOND_MS,
    )


def _attributes(message: ListedMessage | PeekedRow) -> list[Attribute]:
    types = message.attribute_types or {}
    own = [_attribute(name, types.get(name, "String"), value) for name, value in message.attributes.items()]
    return own + [_attribute(name, "system", value) for name, value in message.system_attributes.items()]


def _attribute(name: str, kind: str, value: str) -> Attribute:
    if kind.partition(".")[0] == "Binary":
        data = b64decode(value)
        return Attribute(name, kind, hex_rows(data[:_VALUE_BYTES]), len(data) if len(data) > _VALUE_BYTES else 0)
    size = len(value.encode())
    return Attribute(name, kind, value[:_VALUE_CHARACTERS], size if len(value) > _VALUE_CHARACTERS else 0)


RECEIVE_FIELDS: Mapping[str, Any] = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
"""Parameters of a receive whose messages are shown."""

_RECEIVED = "ApproximateReceiveCount"
_FIRST = "ApproximateFirstReceiveTimestamp"
_TRACE = "AWSTraceHeader"


def leases_of(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(lease_name(each["MessageId"], each["Attributes"][_RECEIVED]) for each in messages)


def rows_of(messages: Sequence[Mapping[str, Any]], view: MessageView) -> list[Row]:
    """Return the messages of a ReceiveMessage result for display."""
    return [row_of(_listed(each), view)._replace(is_mine=True) for each in messages]


def _listed(message: Mapping[str, Any]) -> ListedMessage:
    """Return a received message as an inspection returns it; deadline and priority are unknown."""
    system: Mapping[str, str] = message["Attributes"]
    attributes: Mapping[str, Mapping[str, str]] = message.get("MessageAttributes") or {}
    return ListedMessage(
        id=message["MessageId"],
        body=message["Body"],
        body_bytes=len(message["Body"].encode()),
        attributes={name: each.get("StringValue") or each["BinaryValue"] for name, each in attributes.items()},
        attribute_types={name: each["DataType"] for name, each in attributes.items()},
        system_attributes={_TRACE: system[_TRACE]} if _TRACE in system else {},
        group=system.get("MessageGroupId"),
        dedup_id=system.get("MessageDeduplicationId"),
        priority=0,
        sent_at_ms=int(system["SentTimestamp"]),
        first_received_at_ms=int(system[_FIRST]),
        receive_count=int(system[_RECEIVED]),
        state="in_flight",
        visible_at_ms=None,
        received_at_ms=None,
        receipt=message["ReceiptHandle"],
    )
