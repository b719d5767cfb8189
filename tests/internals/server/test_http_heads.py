"""Known heads: what is looked up reads exactly as what is parsed."""

from hypothesis import given
from hypothesis import strategies as st

from tests.internals.server.test_http_reader import Reading
from veilmq.server.http_parser import LESSONS, Head, KnownHeads

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nX-Amz-Target: a\r\nContent-Length: 5\r\n\r\n"
OTHER = HEAD.replace(b"Target: a", b"Target: b")
SEGMENTS = [
    HEAD + b"first",
    HEAD + b"other",
    OTHER + b"first",
    HEAD + b"fir",
    b"st",
    HEAD,
    HEAD + b"first" + HEAD + b"again",
    HEAD + b"firstrest",
    HEAD.replace(b": h", b":  h") + b"first",
    HEAD.replace(b"5\r\n\r\n", b"5\r\nConnection: close\r\n\r\n") + b"first",
    b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\nHost: h\nContent-Length: 5\n\nfirst",
    b"\r\n\r\n",
]


Read = tuple[bytes, bytes, dict[bytes, bytes], bytes, bool]


def read(segments: list[bytes], heads: KnownHeads) -> list[Read]:
    """Return what a connection that knows `heads` makes of `segments`, until it refuses one or ends."""
    reading = Reading(heads)
    for segment in segments:
        reading.feed(segment)
        if reading.refused or not all(each.keep_alive for each in reading.read):
            break
    return [(each.method, each.target, each.headers, each.body, each.keep_alive) for each in reading.read]


def test_a_head_that_came_twice_is_not_taken_apart_again() -> None:
    heads = KnownHeads()
    _, second, third = read([HEAD + b"first", HEAD + b"other", HEAD + b"third"], heads)
    assert third[2] is second[2]
    assert (third[3], len(heads.by_bytes)) == (b"third", 1)
    (fourth,) = read([HEAD + b"again"], heads)
    assert fourth[2] is second[2], "another connection knows it too"


@given(segments=st.lists(st.sampled_from(SEGMENTS), max_size=8))
def test_whoever_knows_heads_reads_the_same_as_who_does_not(segments: list[bytes]) -> None:
    """Nothing that a connection is sent tells a look-up from parsing."""
    heads = KnownHeads()
    for segment in (*SEGMENTS, *SEGMENTS):
        read([segment], heads)
    assert HEAD in heads.by_bytes
    assert read(segments, heads) == read(segments, _Forgetful())


def test_only_a_request_that_fills_its_segment_is_remembered() -> None:
    heads = KnownHeads()
    head = Head(b"POST", b"/", {}, 5)
    for segment in (HEAD + b"firstmore", HEAD + b"fir", HEAD + b"first"):
        heads.learn(segment, head)
        assert heads.by_bytes == {}
    heads.learn(HEAD + b"first", head)
    assert heads.by_bytes == {HEAD: head}


def test_a_head_behind_the_rest_of_a_body_is_not_remembered_with_it() -> None:
    """Else a client could teach the server to take one request for another, on every connection."""
    rest, other = b"GET /one HTTP/1.1\r\nX: ", b"GET /other HTTP/1.1\r\nHost: h\r\n\r\n"
    before = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(rest)
    heads = KnownHeads()
    for _ in range(2):
        assert [each[1] for each in read([before, rest + other], heads)] == [b"/", b"/other"]
    assert heads.by_bytes == {}
    assert [each[1] for each in read([rest + other], heads)] == [b"/one"]


def test_memory_is_bounded() -> None:
    heads = KnownHeads()
    for n in range(10_000):
        for _ in range(1 + n % 2):
            heads.learn(b"%d\r\n\r\n" % n, Head(b"POST", b"/", {}, 0))
    assert 0 < len(heads.by_bytes) <= 256
    assert len(heads._seen) <= 4_096
    before = len(heads.by_bytes)
    for _ in range(2):
        heads.learn(b"x" * 4_096 + b"\r\n\r\n", Head(b"POST", b"/", {}, 0))
    assert len(heads.by_bytes) == before


def test_who_never_repeats_a_head_is_not_looked_up_any_more() -> None:
    heads = KnownHeads()
    reading = Reading(heads)
    for n in range(LESSONS + 10):
        reading.feed(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n)
    assert len(reading.read) == LESSONS + 10
    assert (len(heads._seen), heads.by_bytes) == (LESSONS, {})


class _Forgetful(KnownHeads):
    """Heads that are never remembered."""

    def learn(self, segment: bytes, head: Head) -> None:
        """Forget it."""
