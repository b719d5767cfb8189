"""Parsing of requests, cut at any byte and with invalid input.

Plain requests are parsed in one step exactly as byte by byte.
"""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.internals.server.scripted_engine import NullConnection
from veilmq.server.admission import ByteBudget, Hold, HttpLimits, Share
from veilmq.server.http_parser import (
    LENGTHS_MAX,
    SAME_LENGTH_MAX,
    SAMPLES_MAX,
    SEEN_BEFORE_LAYOUT,
    Layout,
    Layouts,
    Refusal,
    Request,
    RequestReader,
)

PIPELINE = (
    b"POST /one HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nfirst"
    b"POST /two HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nsec\r\n3;e=1\r\nond\r\n0\r\nT: t\r\n\r\n"
    b"GET /three HTTP/1.1\r\nHost: h\r\nX-List: a\r\nx-list: b\r\n\r\n"
    b"POST /four HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nend"
)
READ = [
    (b"POST", b"/one", {b"host": b"h", b"content-length": b"5"}, b"first"),
    (b"POST", b"/two", {b"host": b"h", b"transfer-encoding": b"chunked"}, b"second"),
    (b"GET", b"/three", {b"host": b"h", b"x-list": b"a,b"}, b""),
    (b"POST", b"/four", {b"host": b"h", b"connection": b"Upgrade", b"content-length": b"3"}, b"end"),
]
WORDS = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.0\r\n", b"Host: h\r\n", b"\r\n", b"\r", b"\n", b"x", b"0\r\n", b"5\r\n",
        b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"CONNECT h:1 HTTP/1.1\r\n", b"hello", b"\x00", b": ", b"HTTP/1.1",
    ]
)  # fmt: skip


_VALUE = re.compile(rb"(?<=/)\S+(?= HTTP)|\n(?!host|content-type|x-amz-target|connection)[^:]++:.*", re.I)


def sibling(request: bytes) -> bytes:
    """Return a request with the same head, but for other characters in its target and in most values."""

    def other(match: re.Match[bytes]) -> bytes:
        name, colon, value = match[0].rpartition(b":")
        return name + colon + value.translate(bytes.maketrans(b"abfirst5023", b"bcgjstu6134"))

    head, end, body = request.partition(b"\r\n\r\n")
    return _VALUE.sub(other, head) + end + body


def learn(layouts: Layouts, *heads: bytes) -> Layout | None:
    """Find each head so often that they are frequent; return the layout of the last one."""
    for head in heads * SEEN_BEFORE_LAYOUT:
        layouts.find(head, layouts.first)
    return layouts.find(heads[-1], layouts.first)


class Reading(NullConnection):
    """A reader with its results; the heads of ``known`` requests are frequent, so they have layouts."""

    def __init__(self, *, head_bytes_max: int = 300, known: Iterable[bytes] = ()) -> None:
        super().__init__()
        self.read: list[Request] = []
        self.refused: list[Refusal] = []
        self.refused_headers: dict[bytes, bytes] = {}
        limits = HttpLimits(head_bytes_max=head_bytes_max, headers_max=5, target_bytes_max=90, body_bytes_max=100)
        layouts = Layouts(limits)
        for request in known:
            learn(layouts, request, sibling(request))
        self.reader = RequestReader(
            connection=self,
            limits=limits,
            layouts=layouts,
            complete=self.read.append,
            refuse=self.refuse,
            hold_read=lambda: Hold(ByteBudget(1_000_000), Share(""), print),
        )

    def refuse(self, refusal: Refusal, headers: dict[bytes, bytes]) -> None:
        self.refused.append(refusal)
        self.refused_headers = headers

    def feed(self, piece: bytes) -> None:
        self.reader.feed(piece)
        if not self.reader.between_requests and self.reader.plain is None and not self.refused:
            self.reader.check_unfinished(len(piece))


@given(cuts=st.lists(st.integers(0, len(PIPELINE)), max_size=12))
def test_segment_boundaries_make_no_difference(cuts: list[int]) -> None:
    reading = Reading()
    ends = [*sorted(cuts), len(PIPELINE)]
    for start, end in zip([0, *ends], ends, strict=False):
        reading.feed(PIPELINE[start:end])
    assert [(each.method, each.target, each.headers, each.body) for each in reading.read] == READ
    assert reading.refused == []


def test_a_refusal_has_the_headers_of_its_request_only() -> None:
    """Of a complete head and of a partial one."""
    first = b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\n\r\n"
    for rest, headers in (
        (b"POST / HTTP/1.1\r\nHost: h\r\nX: 2\r\nContent-Length: 101\r\n\r\n", [b"host", b"x", b"content-length"]),
        (b"GET / HTTP/1.1\r\nX: 2\r\nB: b", [b"x"]),
    ):
        reading = Reading()
        reading.feed(first)
        reading.feed(rest)
        reading.feed(b"b" * 400)
        assert len(reading.refused) == 1
        assert list(reading.refused_headers) == headers


@given(pieces=st.lists(st.one_of(st.binary(max_size=40), WORDS), max_size=40))
def test_invalid_input_is_refused_at_most_once(pieces: list[bytes]) -> None:
    reading = Reading()
    for piece in pieces:
        read_before = len(reading.read)
        reading.feed(piece)
        assert len(reading.refused) <= 1
        if reading.refused:
            break
        assert all(len(request.body) <= 100 for request in reading.read[read_before:])
    if reading.refused:
        read_before = len(reading.read)
        reading.feed(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert len(reading.read) == read_before
        assert len(reading.refused) == 1


HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: a\r\nContent-Length: 5\r\n\r\n"
REQUESTS = [
    HEAD + b"first", HEAD.replace(b": h", b":  h") + b"first", HEAD.replace(b"X-Amz", b"HOST: g\r\nX-Amz") + b"first",
    HEAD.replace(b"X-Amz", b"A: 1\r\nA: 2\r\nX-Amz") + b"first",
    HEAD.replace(b"X-Amz", b"A: 1\r\na: 2\r\nX-Amz") + b"first",
    HEAD.replace(b"X-Amz", b"A: 1\r\nB: 2\r\nC: 3\r\nX-Amz") + b"first",
    HEAD.replace(b"X-Amz", b"A: 1\r\n b\r\nX-Amz") + b"first",
    HEAD.replace(b"X-Amz-Target: a\r\n", b"X: %b\r\n" % (b"a" * 300)) + b"first",
    HEAD.replace(b"5\r\n\r\n", b"5\r\nConnection: close\r\n\r\n") + b"first",
    HEAD.replace(b"5\r\n\r\n", b"5\r\nConnection: keep-alive\r\n\r\n") + b"first",
    HEAD.replace(b"5\r\n\r\n", b"5\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n") + b"first",
    HEAD.replace(b"5\r\n\r\n", b"5\r\nProxy-Connection: close\r\n\r\n") + b"first",
    HEAD.replace(b": 5", b": 000005") + b"first", HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"first",
    HEAD.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n") + b"first",
    HEAD.replace(b"Host: h\r\n", b"") + b"first", HEAD.replace(b": 5", b": +5") + b"first",
    HEAD.replace(b": 5", b": 5, 5") + b"first", HEAD.replace(b": 5", b": ") + b"first",
    HEAD.replace(b"POST /", b"POST /" + b"t" * 91) + b"first", b"\r\n" + HEAD + b"first",
    b"GET /a?b HTTP/1.1\r\nHost: h\r\n\r\n", b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n",
    b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\nHost: t\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\nHost: h\nContent-Length: 5\n\nfirst",
    b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 37\r\n\r\nGET /not-a-request HTTP/1.1\r\nHost: h\r\n\r\n"[:99],
    b"\r\n\r\n",
]  # fmt: skip

PLAIN = [0, 5, 7, 9, 12, 19, 21, 28]
"""The indexes of requests that a layout matches."""

Read = tuple[bytes, bytes, dict[bytes, bytes], bytes, bool, bytes]


def read(segments: list[bytes], known: Iterable[bytes] = ()) -> tuple[list[Read], list[tuple[int, str]]]:
    """Return the requests that a connection reads from `segments`, until it refuses one or ends, and the refusals."""
    reading = Reading(known=known)
    for segment in segments:
        reading.feed(segment)
        if reading.refused or not all(each.keep_alive for each in reading.read):
            break
    found = [
        (each.method, each.target, each.headers, each.body, each.keep_alive, each.persistence) for each in reading.read
    ]
    last = next((number for number, each in enumerate(found, 1) if not each[4]), None)
    if last is not None:  # a connection reads nothing after it
        return found[:last], []
    return found, [(each.status, each.text) for each in reading.refused]


@pytest.mark.parametrize("request_", REQUESTS, ids=range(len(REQUESTS)))
def test_a_request_in_one_segment_reads_as_in_many(request_: bytes) -> None:
    found, refused = read([request_])
    assert len(found) + len(refused) == (request_.strip() != b"")
    assert (found, refused) == read([request_[at : at + 1] for at in range(len(request_))])
    assert (found, refused) == read([request_], known=[request_])
    for at in range(1, len(request_)):
        assert (found, refused) == read([request_[:at], request_[at:]])
        assert (found, refused) == read([request_[:at], request_[at:]], known=[request_])


def test_only_plain_requests_get_a_layout() -> None:
    """However often the others come."""
    layouts = Layouts(HttpLimits())
    for request in REQUESTS:
        learn(layouts, request, sibling(request))
    assert [at for at, request in enumerate(REQUESTS) if layouts.find(request, layouts.first) is not None] == PLAIN
    assert [at for at in PLAIN if layouts.find(sibling(REQUESTS[at]), layouts.first) is None] == []


def known(layouts: Layouts) -> list[Layout]:
    return [layout for same_length in layouts._by_length.values() for layout in same_length]


@pytest.mark.parametrize(("lengths", "same_length"), [(2 * LENGTHS_MAX, 1), (1, 2 * SAME_LENGTH_MAX)])
def test_new_layouts_displace_old_ones(lengths: int, same_length: int) -> None:
    """Of other lengths or of the same one; a layout that more heads match displaces only that of fewer."""
    layouts = Layouts(HttpLimits())
    head = b"GET / HTTP/1.1\r\nHost: h%02d\r\nX: %b\r\nY: %b\r\n\r\n"
    heads = [(number, b"x" * length) for length in range(1, lengths + 1) for number in range(same_length)]
    for number, x in [*heads, heads[0]]:
        assert layouts.find(head % (number, x, b"1"), layouts.first) is None
        assert learn(layouts, head % (number, x, b"1")) is not None
        count = len(known(layouts))
        assert learn(layouts, head % (number, x, b"1"), head % (number, x, b"2")) is not None
        assert len(known(layouts)) == count <= LENGTHS_MAX * SAME_LENGTH_MAX
    assert len(known(layouts)) == max(LENGTHS_MAX if lengths > 1 else 0, SAME_LENGTH_MAX if same_length > 1 else 0)


@pytest.mark.parametrize(("other", "sampled"), [
    pytest.param(b"GET / HTTP/1.1\r\nHost: h\r\nX%06d: x\r\nConnection: close\r\n\r\n", True, id="not-plain"),
    pytest.param(HEAD.replace(b": a", b": " + b"a" * 5_000 + b"%d"), False, id="long"),
    pytest.param(HEAD.replace(b": a", b": %d" + b" a" * 60), False, id="many-tokens"),
    pytest.param(b"GET / HTTP/1.1\r\nHost: h\r\nA: %d\r\n" + b"X: x\r\n" * 40 + b"\r\n", False, id="many-headers"),
])  # fmt: skip
def test_heads_without_a_layout_displace_none_and_use_little_memory(other: bytes, sampled: bool) -> None:
    """Such as those of a health check that closes its connection, and long ones of strangers."""
    layouts = Layouts(HttpLimits())
    learn(layouts, HEAD)
    for number in range(SAMPLES_MAX + 1):
        assert learn(layouts, other % number) is None
    assert len(known(layouts)) == 1
    assert len(layouts._samples) == (SAMPLES_MAX if sampled else 1)
    assert layouts.find(HEAD, layouts.first) is not None


def test_a_layout_has_few_tokens_that_vary() -> None:
    """As a stranger's layouts are compared with the heads of others that are as long."""
    for count, is_found in ((16, True), (17, False)):
        heads = [HEAD.replace(b": a", b": a\r\nX: " + b" ".join([value] * count)) for value in (b"1", b"2")]
        assert (learn(Layouts(HttpLimits()), *heads) is not None) is is_found


@given(
    st.sampled_from(PLAIN),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 2), st.binary(max_size=2)), max_size=3),
)
def test_a_layout_accepts_nothing_that_llhttp_refuses(at: int, edits: list[tuple[int, int, bytes]]) -> None:
    request = REQUESTS[at]
    for start, length, other in edits:
        request = request[:start] + other + request[start + length :]
    assert read([request], known=REQUESTS) == read([request])


@pytest.mark.parametrize("after", [b"POST ", b"/", b"X: a", b"Length: "])
def test_a_layout_checks_the_bytes_that_vary(after: bytes) -> None:
    request = b"POST /t HTTP/1.1\r\nHost: h\r\nX: ab c\r\nContent-Length: 5\r\n\r\nfirst"
    before, _, rest = request.partition(after)
    for byte in range(256):
        changed = before + after + bytes([byte]) + rest[1:]
        assert read([changed], known=[request]) == read([changed])


def test_a_name_does_not_vary() -> None:
    """Even if a word of a value is at its place in other heads of the same length."""
    head = b"POST / HTTP/1.1\r\nHost: h\r\nX: a bb\r\nY: cc\r\n\r\n"
    other = b"POST / HTTP/1.1\r\nHost: h\r\nX: a\r\nY: bb cc\r\n\r\n"
    layouts = Layouts(HttpLimits())
    learn(layouts, *[other, head] * 2)
    assert layouts.find(head.replace(b"bb", b"dd"), layouts.first) is None
    assert layouts.find(head.replace(b"Y:", b"Z:"), layouts.first) is None
    found = layouts.find(head, layouts.first)
    assert found is not None
    assert found.names == [b"host", b"x", b"y"]


@pytest.mark.parametrize("begun", [1, 5, 17])
def test_a_body_longer_than_the_first_segment_is_awaited(begun: int) -> None:
    """Of a length that would point to the end of the head, if counted from the end of the segment."""
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    body = b"b" * (len(head % 10) + 2 * begun)
    found, refused = read([head % len(body) + body[:begun], body[begun:]])
    assert (found, refused) == read([head % len(body) + body])
    assert [each[3] for each in found] == [body]


@given(st.lists(st.tuples(st.sampled_from(REQUESTS), st.integers(0, 200)), max_size=6), st.booleans())
def test_segment_boundaries_of_plain_requests_make_no_difference(
    requests: list[tuple[bytes, int]], joined: bool
) -> None:
    """A head may be separate from its body, and requests of all kinds together."""
    pieces = [piece for whole, at in requests for piece in (whole[:at], whole[at:]) if piece]
    whole = b"".join(pieces)
    assert read([whole] if joined else pieces, REQUESTS) == read([whole[at : at + 1] for at in range(len(whole))])


def test_a_head_after_the_rest_of_a_body_starts_a_request() -> None:
    rest, other = b"GET /one HTTP/1.1\r\nX: ", b"GET /other HTTP/1.1\r\nHost: h\r\n\r\n"
    before = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(rest)
    assert [each[1] for each in read([before, rest + other])[0]] == [b"/", b"/other"]
    assert [each[1] for each in read([before + rest + other])[0]] == [b"/", b"/other"]
    assert [each[1] for each in read([rest + other])[0]] == [b"/one"]


def test_a_body_that_ends_like_a_head_does_not_hide_the_next_request() -> None:
    """Even if the length of the first body points at such an end."""
    second = b"POST /b HTTP/1.1\r\nHost: h\r\nX: 1\r\nY: 2\r\n\r\n"
    body = b"b" * (len(second) - 4) + b"\r\n\r\n" + b"b" * 20
    first = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
    found, _ = read([first + body + second])
    assert [(each[1], each[3]) for each in found] == [(b"/a", body), (b"/b", b"")]


@pytest.mark.parametrize("step", [1, 17, 2_600, 10_000])
@pytest.mark.parametrize("length", [
    b"0" * 5_000 + b"5", b"5" + b" " * 19, b"5" + b" " * 25, b"5\t \t" + b" " * 40, b"00005" + b" " * 18
], ids=["zeros", "19", "25", "tabs", "both"])  # fmt: skip
def test_padded_lengths_are_read(length: bytes, step: int) -> None:
    """`int` reads at most 4,300 digits, and blanks are allowed. The next request follows the body."""
    reading = Reading(head_bytes_max=20_000)
    request = HEAD.replace(b": 5", b": " + length) + b"first" + b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n"
    for at in range(0, len(request), step):
        reading.feed(request[at : at + step])
    assert [(each.target, each.body) for each in reading.read] == [(b"/", b"first"), (b"/next", b"")]
