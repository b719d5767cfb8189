"""One HTTP request: how it is parsed, refused before a protocol sees it, and answered.

A client sends nearly the same head with each request: dates, ids, signatures and lengths differ, at the same places. So
a frequent head has a ``Layout``, which compares what is constant and checks what varies, as strictly as llhttp. A
request is *plain* if its head matches a layout, arrives whole at the beginning of a segment, and is followed only by
its body, which is small. Every other request is parsed by ``httptools`` (llhttp, in strict mode), which calls
``RequestReader`` for each part. It is checked when it is complete, and before that whenever a segment ends inside it
(``check_unfinished``). What llhttp accepts and this server does not is refused; at most one segment beyond a limit is
kept.

A connection sends replies in the order of its requests (RFC 9112, section 9.3.2): a reply that is ready too early waits
in its request. Commands are submitted in that order too, without waiting for each other.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import httptools
import msgspec

from veilmq.server.admission import Hold, HttpLimits, Share

_TEXT = b"text/plain; charset=utf-8"


class Refusal(NamedTuple):
    """Why a request is refused before a protocol handles it.

    ``status`` is an HTTP status, ``text`` a sentence for a person, ``allow`` the allowed methods, for 405. ``kind`` is
    the content type if the text is not a sentence.
    """

    status: int
    text: str
    allow: bytes = b"GET, POST"
    kind: bytes = _TEXT

    def of(self, value: object) -> "Refusal":
        return self._replace(text=self.text.format(value))

    @property
    def headers(self) -> bytes:
        return b"Content-Type: %b\r\n" % self.kind + self.extra_headers

    @property
    def extra_headers(self) -> bytes:
        """``Allow`` for 405, ``Retry-After`` for 503."""
        if self.status == 503:
            return b"Retry-After: 1\r\n"
        return b"Allow: %b\r\n" % self.allow if self.status == 405 else b""

    @property
    def body(self) -> bytes:
        return self.text.encode() + b"\n" if self.kind is _TEXT else self.text.encode()


class RenderedReply(NamedTuple):
    """The reply of a refusal or a page: complete header lines, and the body."""

    headers: bytes
    body: bytes


def render_text(refusal: Refusal, _headers: Mapping[bytes, bytes]) -> RenderedReply:
    return RenderedReply(refusal.headers, refusal.body)


NO_HOST = Refusal(400, "An HTTP/1.1 request needs one Host header, which names the server.")
TUNNEL = Refusal(405, "This server is not a proxy; send requests to it, not through it.")
CODING = Refusal(501, "The only supported transfer coding is chunked; send the body without another one.")
OLD_CODING = Refusal(400, "HTTP/1.0 has no transfer codings; send the body without one, or use HTTP/1.1.")
EXPECTATION = Refusal(417, "The only supported expectation is 100-continue.")
TRUNCATED = Refusal(400, "The connection ended inside the request; send the whole of it.")
NO_ROOM = Refusal(503, "The server's memory for requests and replies is full (http_bytes_max); send the request again.")
MALFORMED = Refusal(400, "This is not a well-formed HTTP/1.1 request: {}.")
REPEATED = Refusal(400, "The header {} was sent more than once; send it once.")
VERSION = Refusal(505, "HTTP/{} is not supported; use HTTP/1.1.")
MANY_HEADERS = Refusal(431, "The request has more than {} headers; send fewer.")
LONG_HEAD = Refusal(431, "Request line and headers have more than {} bytes together; send less.")
LONG_FRAMING = Refusal(431, "Chunk extensions and trailers have more than {} bytes; send none.")
LONG_TARGET = Refusal(414, "The request target has more than {} bytes; put parameters in the body.")
LONG_BODY = Refusal(413, "The body has more than {} bytes; send less in one request.")
STOPPING = Refusal(503, "The server is stopping, and the rest of the request did not arrive; send it again.")
SLOW = Refusal(408, "The request did not arrive within {:g} seconds; send it again at once.")

_NO_CONTENT = HTTPStatus.NO_CONTENT.value
"""A reply with this status has neither a body nor a Content-Length (RFC 9110, section 8.6)."""

CLOSE = b"Connection: close\r\n"
KEEP = b"Connection: keep-alive\r\n"

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

_LENGTH_LINES = [b"Content-Length: %d\r\n\r\n" % length for length in range(1_024)]
"""The end of a head by the length of the body, for the most frequent lengths."""


class Pending(Protocol):
    """A request in progress, which can be withdrawn or hurried."""

    def withdraw(self) -> object:
        """Drop the request, as its client disconnected; its command does not run if it has not begun."""

    def hurry(self) -> object:
        """Reply as soon as possible: the server is closing, or the client sends nothing more."""


class Connection(Protocol):
    """The connection, as a request sees it."""

    date: "Date"
    authenticated: bool  # one of its requests had a genuine signature

    def reply_ready(self) -> None:
        """Note that a request has its reply."""

    def peer(self) -> str | None:
        """Return the address of the client, if it has one."""

    def run_next_in_turn(self) -> None:
        """Run the first request in progress if it waits for its turn (``Request.run_in_turn``)."""


class Date(Protocol):
    """Source of the ``Date`` header line."""

    line: bytes

    def renew(self) -> bytes:
        """Return the current line; call it when ``line`` is empty."""


class Layout:
    """A frequent head. Its tokens, separated by blanks and line ends, are constant, or vary but have a constant length.

    It matches ``_PLAIN``, so it has none of ``_SPECIAL``, and has each header once; llhttp accepts all such heads.
    """

    __slots__ = (
        "constants", "constants_of", "credential", "end", "is_traced", "length", "length_at", "method", "names",
        "target", "target_varies", "values_of", "varying_of",
    )  # fmt: skip

    def __init__(self, head: bytes, varying: set[int]) -> None:
        """``varying`` are the numbers of the tokens of ``head`` that vary."""
        tokens = [slice(*token.span()) for token in _TOKEN.finditer(head)]
        variable = [tokens[number] for number in sorted(varying)]
        starts, stops = [0, *[each.stop for each in variable]], [*[each.start for each in variable], len(head)]
        self.constants_of = _slicer(list(map(slice, starts, stops)))
        self.constants = self.constants_of(head)
        self.varying_of = _slicer(variable)
        values = {each[1].lower(): slice(*each.span(2)) for each in _FIELD.finditer(head)}
        self.names, self.values_of = list(values), _slicer(list(values.values()))
        self.method, self.target, self.end = head[tokens[0]], tokens[1], len(head)
        self.target_varies = 1 in varying
        # The credential is what follows the first "Credential=", up to a comma.
        value = values.get(b"authorization", _NOWHERE)
        start, _, _ = head[value].partition(b",")
        stop = value.start + len(start) + 1 if b"Credential=" in start else value.stop
        varies = any(value.start <= each.start < stop for each in variable)
        self.credential = slice(value.start, stop) if varies else _NOWHERE
        self.length_at = values.get(b"content-length", _NOWHERE)
        self.length = None if self.length_at in variable else int(head[self.length_at] or 0)
        self.is_traced = TRACE in values


def _slicer(slices: list[slice]) -> Callable[[bytes], tuple[bytes, ...]]:
    return itemgetter(*slices, *[_NOWHERE] * (2 - len(slices)))  # for a single slice, it would return no tuple


TRACE = b"x-amzn-trace-id"
_CONSTANT = (b"host", b"content-type", b"x-amz-target", b"connection")
_SPECIAL = rb"expect|transfer-encoding|proxy-connection|upgrade|origin|sec-fetch-site"
_TARGET = rb"/[!$-~]*+"
_PLAIN = re.compile(
    rb"(?:DELETE|GET|POST|PUT) " + _TARGET + rb" HTTP/1\.1\r\n"
    rb"(?i:(?:content-length: [0-9]{1,18}\r\n|connection: keep-alive\r\n"
    rb"|(?!(?:content-length|connection|" + _SPECIAL + rb"):)[!#$%&'*+.^_`|~0-9A-Z-]++: [!-~][ -~]*+(?<! )\r\n)+)\r\n"
)
_FIELD = re.compile(rb"\r\n([^:]++): ([^\r]++)")
_TOKEN = re.compile(rb"[!-~]++")
_MASK = bytes([0x78 if 0x21 <= byte < 0x7F else byte for byte in range(256)])
_VISIBLE = bytes([byte if 0x21 <= byte < 0x7F else byte ^ 0x80 for byte in range(256)])  # others are changed
_NOWHERE = slice(0, 0)
_is_target = re.compile(_TARGET).fullmatch
LENGTHS_MAX, SAME_LENGTH_MAX, SAMPLES_MAX = 128, 8, 512
_FREQUENT_BYTES_MAX, _NAMES_MAX, _TOKENS_MAX, _VARYING_MAX = 4_096, 32, 64, 16
"""A longer head, or one with more headers, tokens or tokens that vary, gets no layout, as it would take too long."""
_SIMILAR_BYTES = 64
"""How much shorter the next head of a connection may be to be found quickly."""
_SAMPLED_FIRST, _SAMPLED_OF, _SAMPLES = 256, 13, 4
"""So many unmatched heads are sampled, then one of so many, as that takes longer than llhttp; four make a layout."""
SEEN_BEFORE_LAYOUT = _SAMPLED_OF * _SAMPLES


@dataclass(slots=True)
class Sample:
    """The hashes of a head's tokens, which may be secret, and which of the tokens were not the same later."""

    hashes: list[int]
    seen: int = 0
    varying: set[int] = field(default_factory=set)
    layout: Layout | None = None


class Layouts:
    """The known layouts, shared by the connections of an event loop."""

    def __init__(self, limits: HttpLimits) -> None:
        self._headers_max = min(limits.headers_max, _NAMES_MAX)
        self._head_bytes_max = min(limits.target_bytes_max, limits.head_bytes_max, _FREQUENT_BYTES_MAX)
        self.body_bytes_max = min(limits.large_body_bytes, limits.body_bytes_max)
        self.first = Layout(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", set())  # of a new connection
        self.following: dict[Layout, Layout] = {}  # what a connection sent after it, the last time
        self._unmatched = 0
        self._by_length: dict[int, list[Layout]] = {}
        self._samples: dict[tuple[Any, ...], Sample] = {}

    def find(self, segment: bytes, last: Layout) -> Layout | None:
        """Return the layout whose constants ``segment`` begins with; ``last`` is one of the same connection."""
        length = tried = 0
        for start in (max(0, last.end - _SIMILAR_BYTES), 0):
            length, tried = segment.find(_HEAD_END, start, self._head_bytes_max) + len(_HEAD_END), length
            for layout in self._by_length.get(length, ()) if length != tried else ():
                if segment.startswith(layout.constants[0]) and layout.constants_of(segment) == layout.constants:
                    return layout
        self._unmatched += 1
        if (self._unmatched <= _SAMPLED_FIRST or self._unmatched % _SAMPLED_OF == 0) and length >= len(_HEAD_END):
            self._sample(segment[:length])
        return None

    def _sample(self, head: bytes) -> None:
        """Compare ``head`` with those like it, and add its layout if it is frequent and plain."""
        lines, tokens = head[: -len(_HEAD_END)].split(b"\r\n")[1:], head.split()
        names = [line.partition(b":")[0] for line in lines]
        fields = dict(zip([name.lower() for name in names], lines, strict=True))
        if len(names) > min(len(fields), self._headers_max) or len(tokens) > _TOKENS_MAX or b"host" not in fields:
            return
        # Equal in all of them: method, version, names, the places of tokens, and some headers.
        key = (*tokens[:3:2], *names, head.translate(_MASK), *map(fields.get, _CONSTANT))
        if key not in self._samples and len(self._samples) >= SAMPLES_MAX:
            del self._samples[next(iter(self._samples))]
        hashes = list(map(hash, tokens))
        sample = self._samples.setdefault(key, Sample(hashes))
        sample.seen += 1
        sample.varying.update([number for number, each in enumerate(hashes) if each != sample.hashes[number]])
        if sample.seen % _SAMPLES or len(sample.varying) > _VARYING_MAX or not _PLAIN.fullmatch(head):
            return
        self.following.clear()  # it keeps no layout that is displaced
        # The new layout matches what the former one of the sample does, and more.
        others = [each for each in self._by_length.pop(len(head), []) if each is not sample.layout]
        if len(self._by_length) >= LENGTHS_MAX:
            del self._by_length[next(iter(self._by_length))]
        sample.layout = Layout(head, sample.varying)
        self._by_length[len(head)] = [sample.layout, *others[: SAME_LENGTH_MAX - 1]]


class Request(msgspec.Struct, eq=False):
    """A request: ``method`` and ``target`` in origin form, headers (``fields``) by lower-case name, ``body``.

    Also a head without its body, for admission, and an empty request that carries the refusal of malformed bytes.

    Headers that were sent several times are joined with commas; those of ``ONCE`` are refused. A plain request has
    ``head`` instead of ``fields`` until these are needed: its layout, and the segment that begins with its head.
    ``hold`` counts the bytes of a large body until the reply or the client's disconnect. ``is_pipelined`` if the
    connection had other requests in progress when it arrived. ``persistence`` is the ``Connection`` header line of the
    reply, empty if the HTTP version implies it. (A ``msgspec.Struct`` is constructed four times as fast as a class with
    ``__init__``.)
    """

    connection: Connection
    method: bytes
    target: bytes
    fields: dict[bytes, bytes] | None
    body: bytes
    keep_alive: bool
    persistence: bytes = b""
    head: tuple[Layout, bytes] | None = None
    pending: Pending | None = None
    reply: bytes | None = None
    in_turn: Callable[[], None] | None = None
    hold: Hold | None = None
    is_pipelined: bool = False

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers by lower-case name."""
        if self.fields is None:
            self.fields = {}
            if self.head is not None:
                layout, segment = self.head
                self.fields.update(zip(layout.names, layout.values_of(segment), strict=False))
        return self.fields

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Reply, now or later, exactly once; ``headers`` are complete lines with line ends."""
        assert self.reply is None, "a request has one reply"
        connection = self.connection
        self.pending = None
        if self.hold is not None:
            self.hold.release()
        length = len(body)
        end = _LENGTH_LINES[length] if length < len(_LENGTH_LINES) else b"Content-Length: %d\r\n\r\n" % length
        if status == _NO_CONTENT:
            end, body = b"\r\n", b""
        elif self.method == b"HEAD":
            body = b""
        date = connection.date.line or connection.date.renew()
        self.reply = b"".join((STATUS_LINES[status], date, headers, self.persistence, end, body))
        connection.reply_ready()

    def run_in_turn(self, run: Callable[[], None]) -> None:
        """Call ``run``, now or later, when this is the connection's first request and the client reads replies."""
        self.in_turn = run
        self.connection.run_next_in_turn()

    def end_connection(self) -> None:
        """Close the connection after this reply, and announce it if the reply is not written yet."""
        self.persistence = CLOSE
        self.keep_alive = False

    def source_ip(self) -> str | None:
        return self.connection.peer()

    def client(self) -> tuple[str | None, str | None]:
        """Return the address of the client and its ``User-Agent``, if any."""
        agent = self.headers.get(b"user-agent")
        return self.source_ip(), None if agent is None else agent.decode("latin-1")


def share_by_address(head: Request) -> Share:
    return Share(head.source_ip() or "")


Handler = Callable[[Request], Pending | None]
"""Replies with ``respond``, now or later; returns a ``Pending`` until then, if the request can be withdrawn."""

ONCE = frozenset({b"host", b"authorization", b"content-type", b"expect", b"origin", b"sec-fetch-site", b"x-amz-target"})
"""Headers that decide something: two of them would contradict each other."""

_AUTHORITY = re.compile(rb"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*+/?")
_HEAD_END = b"\r\n\r\n"
_CHUNK_FRAME_BYTES_MAX = 20
"""The length of a chunk in hexadecimal digits, and two line ends."""

_DIGITS_MAX = 20
"""Of a length: llhttp refuses larger numbers, but accepts any number of leading zeros, which ``int`` may refuse."""


class RequestReader:
    """Turns bytes into calls of ``complete``, or one call of ``refuse``, after which input is dropped."""

    __slots__ = (
        "_admitted", "_body_left", "_chunks", "_complete", "_connection", "_fields", "_framing_bytes", "_head_began",
        "_head_bytes", "_headers", "_hold_read", "_layout", "_layouts", "_length", "_limits", "_parser", "_pieces",
        "_refuse", "_repeated", "_spooled", "_stopped", "_target", "between_requests", "continue_due", "feed", "hold",
        "on_body", "on_message_begin", "on_url", "plain",
    )  # fmt: skip

    def __init__(
        self,
        *,
        connection: Connection,
        limits: HttpLimits,
        layouts: Layouts,
        complete: Callable[[Request], object],
        refuse: Callable[[Refusal, dict[bytes, bytes]], object],
        hold_read: Callable[[], Hold],
    ) -> None:
        """Make requests for ``connection``. ``complete`` and ``refuse`` may call ``stop``.

        ``hold_read`` makes the hold of a large body that came in one segment; its signature is checked at once.
        """
        self._connection = connection
        self._limits = limits
        self._complete = complete
        self._refuse = refuse
        self._hold_read = hold_read
        self._stopped = False
        self.hold: Hold | None = None  # of the body that is being read, if it is large
        # A flag, false inside a request; a list, so that llhttp can call its ``clear`` without a Python frame.
        self.between_requests: list[bool] = [True]
        self._layouts = layouts
        self._layout = layouts.first  # of the last plain request
        self.plain: Request | None = None  # a plain request whose body is being read
        self._body_left = 0  # of the plain request
        self._parser: Any = None  # until a request is not plain
        self._target: list[bytes] = []  # in pieces
        self._pieces: list[bytes] = []  # of the body, from the last segment
        self._spooled = bytearray()  # the body so far, if it takes several segments
        self._head_began = False
        self._fields: dict[bytes, bytes] = {}
        self._repeated: bytes | None = None
        self._headers: dict[bytes, bytes] | None = None  # set when the head is complete; _fields are then trailers
        self.on_message_begin = self.between_requests.clear
        self.on_url = self._target.append
        self.on_body = self._pieces.append
        self.feed: Callable[[bytes], None] = self._parse_head
        """Parses the next segment, depending on which part of a request comes next."""
        self._reset()

    def _parse_head(self, segment: bytes) -> None:
        layouts, last = self._layouts, self._layout
        layout = layouts.following.get(last, last)
        if layout.constants_of(segment) != layout.constants:
            found = layouts.find(segment, layout)
            if found is None:
                self._parse_with_llhttp(segment)
                return
            layout = layouts.following[last] = found
        self._layout = layout
        length, end, target = layout.length, layout.end, segment[layout.target]
        if length is None:
            digits = segment[layout.length_at]
            length = int(digits) if digits.isdigit() else -1
        left = end + length - len(segment)
        varying = b"".join(layout.varying_of(segment))
        if (
            varying.translate(_VISIBLE) != varying
            or left < 0
            or not 0 <= length <= layouts.body_bytes_max
            or (layout.target_varies and not _is_target(target))
        ):
            self._parse_with_llhttp(segment)
            return
        request = Request(self._connection, layout.method, target, None, segment[end:], True, b"", (layout, segment))
        if not left:
            self._complete(request)
            return
        self._body_left = left
        self.plain = request
        self.between_requests.clear()
        self.feed = self._parse_body

    def _parse_body(self, segment: bytes) -> None:
        left = self._body_left = self._body_left - len(segment)
        request = self.plain
        assert request is not None, "it is being read"
        piece = segment[:left] if left < 0 else segment
        if left > 0:
            self._spooled += piece
            return
        request.body += bytes(self._spooled) + piece
        self._spooled.clear()
        self.plain = None
        self.between_requests.append(True)
        self.feed = self._parse_head
        self._complete(request)
        if left:
            self.feed(segment[left:])

    def _parse_with_llhttp(self, segment: bytes) -> None:
        self.feed = self._parse_with_llhttp
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            try:
                self._parser.feed_data(segment)
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_upgrades(memoryview(segment)[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            raise  # a defect of ours
        except httptools.HttpParserError as error:
            is_http2 = self._parser.get_method() == b"PRI"
            self._refuse_once(VERSION.of(2) if is_http2 else MALFORMED.of(error))
        if self.between_requests and not self._stopped:
            self.feed = self._parse_head

    def stop(self) -> dict[bytes, bytes]:
        """Stop parsing and drop the partial request; return its headers received so far."""
        headers = self._fields if self._headers is None else self._headers
        if self.plain is not None:
            headers, self.plain = self.plain.headers, None
        self._stopped, self.feed = True, _drop
        self._release_hold()
        self._reset()
        self.between_requests.append(True)
        return headers

    def release(self) -> None:
        """Drop references to this object, and release the bytes of an incomplete body."""
        self._stopped = True
        self._release_hold()
        self._parser, self.feed = None, _drop
        del self._connection, self._complete, self._refuse, self._hold_read  # break cycles, to spare the collector

    def check_unfinished(self, segment_bytes: int) -> bool:
        """Apply the limits to an incomplete request; ``refuse`` it if it exceeds one, and return False."""
        if self._headers is None:
            self._head_bytes += segment_bytes if self._head_began else 0  # its first segment may hold other requests
            self._head_began = True
            refusal = self._size_refusal(self._fields, self._head_bytes)
        else:
            refusal = self._body_refusal(self._headers, segment_bytes)
        if refusal is not None:
            self._refuse_once(refusal)
        return refusal is None

    def bytes_to_reserve(self) -> int:
        """Return how many more bytes an incomplete body should reserve before reading on; 0 for a small one."""
        if self._headers is None:
            return 0
        limits, held = self._limits, 0 if self.hold is None else self.hold.bytes
        if self._length > limits.large_body_bytes:
            return self._length - held
        is_growing = len(self._spooled) > max(limits.large_body_bytes, held - limits.large_body_bytes)
        return limits.body_step_bytes if is_growing else 0

    def head(self) -> Request:
        """Return the partial request without its body; its reply ends the connection."""
        assert self._headers is not None, "the head is whole"
        connection, method, target = self._connection, self._parser.get_method(), self._origin_form()
        return Request(connection, method, target, self._headers, b"", False, CLOSE)

    def _origin_form(self) -> bytes:
        """Return the target without the scheme and host that clients of proxies send (RFC 9112, section 3.2.2)."""
        return _AUTHORITY.sub(b"/", b"".join(self._target))

    def admit(self, hold: Hold) -> None:
        """Count the incomplete body in ``hold`` from now on."""
        hold.feed(self._spooled)
        self.hold = hold

    def body_left(self) -> int:
        """Return how many announced bytes of an incomplete body are missing."""
        if self.plain is not None:
            return self._body_left
        return 0 if self._headers is None else self._length - len(self._spooled)

    # Callbacks of the parser, besides on_message_begin, on_url and on_body.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header, or a trailer, which is ignored."""
        name, value = name.lower(), value.rstrip(b" \t")  # llhttp leaves blanks there (RFC 9112, section 5.1)
        if name in self._fields:
            if name in ONCE:
                self._repeated = name
            if len(self._fields[name]) <= self._limits.head_bytes_max:  # a longer head is refused when it is complete
                self._fields[name] += b"," + value  # without a space, as signatures are calculated
        else:
            self._fields[name] = value

    def on_headers_complete(self) -> None:
        """Separate the head from the trailers."""
        self._headers = self._fields
        self._length = int(self._headers.get(b"content-length", b"0")[-_DIGITS_MAX:])
        self._fields = {}

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_message_complete(self) -> None:
        """Complete the request."""
        headers, parser = self._headers, self._parser
        if self._stopped or headers is None or parser.should_upgrade():
            return
        refusal = None if self._admitted and self._repeated is None else self._head_refusal(headers)
        self._spool()
        if refusal is None and len(self._spooled) > self._limits.body_bytes_max:
            refusal = LONG_BODY.of(self._limits.body_bytes_max)
        if refusal is not None:
            self._refuse_once(refusal)
            return
        keep_alive, target = parser.should_keep_alive(), self._origin_form()
        request = Request(self._connection, parser.get_method(), target, headers, bytes(self._spooled), keep_alive)
        if keep_alive and parser.get_http_version() == "1.0":
            request.persistence = KEEP
        if self.hold is not None or len(request.body) > self._limits.large_body_bytes:
            hold, self.hold = self.hold or self._hold_read(), None
            hold.take(len(request.body) - hold.bytes)
            request.hold = hold
        self._reset()
        self.between_requests.append(True)
        self._complete(request)

    def _release_hold(self) -> None:
        if self.hold is not None:
            self.hold.release()
            self.hold = None

    def _spool(self) -> None:
        piece = b"".join(self._pieces)
        self._spooled += piece
        self._pieces.clear()
        if self.hold is not None:
            self.hold.feed(piece)

    def _reset(self) -> None:
        self._target.clear()
        self._pieces.clear()
        self._spooled.clear()
        self._fields = {}
        self._headers = None
        self._length = 0
        self._repeated = None
        self._head_bytes = 0
        self._head_began = False
        self._chunks = 0
        self._framing_bytes = 0
        self._admitted = False
        self.continue_due = False

    def _refuse_once(self, refusal: Refusal) -> None:
        if not self._stopped:
            self._refuse(refusal, self.stop())

    def _ignore_upgrades(self, rest: memoryview) -> None:
        """Parse requests as if they did not offer another protocol, as RFC 9110 (7.8) allows; ``rest`` follows one.

        llhttp treats what follows such a head as the other protocol, so the head is parsed again without the offer. One
        segment may contain thousands of them.
        """
        while (head := self._restart_without_upgrade()) is not None:
            self._parser.feed_data(head)
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            else:
                return

    def _restart_without_upgrade(self) -> bytes | None:
        """Begin the last request again with a new parser; return its head without the offer, ``None`` to stop."""
        parser, headers, repeated = self._parser, self._headers, self._repeated
        target = b"".join(self._target)
        if self._stopped or headers is None:
            return None
        if parser.get_method() == b"CONNECT":
            self._refuse_once(TUNNEL)
            return None
        version = parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n" % (parser.get_method(), target, version)
        head += b"".join(b"%b: %b\r\n" % field for field in headers.items() if field[0] != b"upgrade")
        self._reset()
        self._parser = httptools.HttpRequestParser(self)
        self._repeated = repeated
        return head + b"\r\n"

    def _head_refusal(self, headers: dict[bytes, bytes]) -> Refusal | None:
        """Return what is wrong with a head that llhttp accepts."""
        version = self._parser.get_http_version()
        if not headers.get(b"host", version != "1.1"):
            return NO_HOST
        if self._repeated is not None:
            return REPEATED.of(self._repeated.decode("latin-1"))
        refusal = self._size_refusal(headers, 0)
        if refusal is not None:
            return refusal
        if b"transfer-encoding" in headers and version == "1.0":
            return OLD_CODING
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            return CODING
        if b"expect" in headers and headers[b"expect"].lower() != b"100-continue":
            return EXPECTATION
        if not self._parser.should_keep_alive() and version not in {"1.0", "1.1"}:
            return VERSION.of(version)
        return None

    def _size_refusal(self, fields: dict[bytes, bytes], head_bytes: int) -> Refusal | None:
        """Apply the limits to a head of which at least ``head_bytes`` have arrived."""
        limits, target_bytes = self._limits, sum(map(len, self._target))
        if len(fields) > limits.headers_max:
            return MANY_HEADERS.of(limits.headers_max)
        if target_bytes > limits.target_bytes_max:
            return LONG_TARGET.of(limits.target_bytes_max)
        fields_bytes = sum(map(len, (*fields, *fields.values()))) + 4 * len(fields)
        if max(head_bytes, target_bytes + fields_bytes) > limits.head_bytes_max:
            return LONG_HEAD.of(limits.head_bytes_max)
        return None

    def _body_refusal(self, headers: dict[bytes, bytes], segment_bytes: int) -> Refusal | None:
        limits = self._limits
        if self._admitted:  # otherwise the segment may contain other requests and the head
            # All but head, body and plain chunk frames: chunk extensions and trailers.
            frames_bytes = sum(map(len, self._pieces)) + self._chunks * _CHUNK_FRAME_BYTES_MAX
            self._framing_bytes += segment_bytes - frames_bytes
        self._chunks = 0
        self._spool()
        if max(len(self._spooled), self._length) > limits.body_bytes_max:
            return LONG_BODY.of(limits.body_bytes_max)
        if len(self._fields) > limits.headers_max:
            return MANY_HEADERS.of(limits.headers_max)
        if self._framing_bytes > limits.head_bytes_max:
            return LONG_FRAMING.of(limits.head_bytes_max)
        if self._admitted:
            return None
        refusal = self._head_refusal(headers)
        self._admitted = True
        self.continue_due = b"expect" in headers and not self._spooled and self._parser.get_http_version() != "1.0"
        return refusal


def _drop(segment: bytes) -> None:
    """Ignore input after the last request."""
