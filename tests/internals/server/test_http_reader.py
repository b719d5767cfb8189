"""Reading requests, compared with itself under every way to cut the bytes, and fed with nonsense."""

from hypothesis import given
from hypothesis import strategies as st

from veilmq.server.admission import ByteBudget, Hold, HttpLimits, Share
from veilmq.server.http_parser import Date, Refusal, Request, RequestReader

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


class Reading:
    """A reader and what came of it, on the line of no connection."""

    date: Date
    proven = False

    def __init__(self) -> None:
        """Use small limits."""
        self.read: list[Request] = []
        self.refused: list[Refusal] = []
        self.heard: dict[bytes, bytes] = {}
        self.reader = RequestReader(
            line=self,
            limits=HttpLimits(head_bytes_max=300, headers_max=5, target_bytes_max=90, body_bytes_max=100),
            complete=self.read.append,
            refuse=self.refuse,
            hold_read=lambda: Hold(ByteBudget(1_000_000), Share(""), print),
        )

    def refuse(self, flaw: Refusal, heard: dict[bytes, bytes]) -> None:
        """Take note."""
        self.refused.append(flaw)
        self.heard = heard

    def peer(self) -> str | None:
        """Return no address."""
        return None

    def answered(self) -> None:
        """Take note."""

    def turn(self) -> None:
        """Take note."""

    def feed(self, piece: bytes) -> None:
        """Feed one segment as a connection does."""
        self.reader.feed(piece)
        if not self.reader.resting and self.reader.plain is None and not self.refused:
            self.reader.check_unfinished(len(piece))


@given(cuts=st.lists(st.integers(0, len(PIPELINE)), max_size=12))
def test_where_the_bytes_are_cut_makes_no_difference(cuts: list[int]) -> None:
    """A pipeline of all kinds of requests reads the same in any segments."""
    reading = Reading()
    ends = [*sorted(cuts), len(PIPELINE)]
    for start, end in zip([0, *ends], ends, strict=False):
        reading.feed(PIPELINE[start:end])
    assert [(each.method, each.target, each.headers, each.body) for each in reading.read] == READ
    assert reading.refused == []


def test_a_refusal_tells_the_headers_that_were_heard_of_its_request() -> None:
    """Of a whole head and of a part of one, and none of the request before it."""
    first = b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\n\r\n"
    for rest, heard in (
        (b"POST / HTTP/1.1\r\nHost: h\r\nX: 2\r\nContent-Length: 101\r\n\r\n", [b"host", b"x", b"content-length"]),
        (b"GET / HTTP/1.1\r\nX: 2\r\nB: b", [b"x"]),
    ):
        reading = Reading()
        reading.feed(first)
        reading.feed(rest)
        reading.feed(b"b" * 400)
        assert len(reading.refused) == 1
        assert list(reading.heard) == heard


@given(pieces=st.lists(st.one_of(st.binary(max_size=40), WORDS), max_size=40))
def test_nonsense_is_refused_at_most_once_and_breaks_nothing(pieces: list[bytes]) -> None:
    """Whatever comes, nothing is raised, the reader ends with one refusal, and reads nothing after it."""
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
