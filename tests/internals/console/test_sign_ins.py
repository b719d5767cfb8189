"""Sessions: rate-limited sign-in, signed cookies, and sign-out."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.console.test_live_page import EventStream
from tests.console.visitor import Visitor
from tests.server.keys import OWNER, REGION, client, written
from veilmq.console import sign_ins
from veilmq.console.live import TICK_MS
from veilmq.console.sessions import ENDED_PER_KEY_MAX, SESSION_S_MAX, EndedSessions, Session, Sessions
from veilmq.console.sign_ins import ADDRESS_FAILURES, ADDRESS_REFILL_MS, KEY_FAILURES, SignIns, SignInsPaused
from veilmq.testing import RunningServer, VirtualClock
from veilmq.wire.exchange import Caller, caller_named

CAROL = caller_named("111111111111", "carol")
HERE = "192.0.2.1"
KEY = "AKIDOWNER"
NOW_S = 1_700_000_000
BEGAN_AT = datetime.fromtimestamp(NOW_S, UTC)


class SignInBench:
    """Sign-in with one key, on a virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.sign_in = SignIns(self._holder, now_ms=self.clock.now_ms)

    def _holder(self, key_id: str, secret: str) -> Caller | None:
        return CAROL if (key_id, secret) == ("AKIDCAROL", "right") else None

    def fail(self, count: int, *, peer: str = HERE, key: str = "AKIDX{}") -> None:
        """Try wrong keys; `{}` is replaced by a number."""
        for number in range(count):
            assert self.sign_in(key.format(number), "wrong", peer.format(number)) is None

    def admits(self, peer: str = HERE) -> bool:
        """Return whether the right key is accepted."""
        try:
            return self.sign_in("AKIDCAROL", "right", peer) is CAROL
        except SignInsPaused:
            return False


@pytest.fixture
def bench() -> SignInBench:
    return SignInBench()


def test_failures_from_many_addresses_block_a_key(bench: SignInBench) -> None:
    bench.fail(KEY_FAILURES, key="AKIDCAROL", peer="198.51.100.{}")
    assert not bench.admits()
    bench.clock.advance(1_000)
    assert bench.admits()


def test_successful_sign_ins_are_not_limited(bench: SignInBench) -> None:
    assert all(bench.admits() for _ in range(ADDRESS_FAILURES * 2))


def test_tokens_return_up_to_the_bucket_size(bench: SignInBench) -> None:
    bench.fail(ADDRESS_FAILURES)
    bench.clock.advance(ADDRESS_REFILL_MS * 1_000)
    bench.fail(ADDRESS_FAILURES)
    assert not bench.admits()


def test_forms_of_an_address_share_a_bucket(bench: SignInBench) -> None:
    """All addresses of an IPv6 /64 network, and IPv4-mapped ones."""
    bench.fail(ADDRESS_FAILURES, peer="2001:db8::{}")
    assert (bench.admits("2001:db8::ffff:1"), bench.admits("2001:db8:0:1::1")) == (False, True)
    bench.fail(ADDRESS_FAILURES, peer=f"::ffff:{HERE}")
    assert not bench.admits()


def test_the_number_of_buckets_is_bounded(bench: SignInBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_ins, "_BUCKETS_MAX", 3)
    bench.fail(10, peer="198.51.100.{}")
    assert len(bench.sign_in._addresses._full_at_ms) == 3


def test_a_failure_logs_one_line_without_the_secret(bench: SignInBench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="veilmq.console"):
        bench.sign_in("AKID\nforged line" + "x" * 500, "top secret", HERE)
    (line,) = caplog.messages
    assert "192.0.2.1" in line
    assert r"AKID\nforged line" in line
    assert "secret" not in line
    assert len(line) < 300


# Session cookies.


def sessions(secret: bytes = b"of this store", now_s: float = NOW_S, key_secret: bytes = b"carol's") -> Sessions:
    """Return the sessions of a node at ``now_s``, where each key has the secret ``key_secret``."""
    return Sessions(secret=secret, wall_s=lambda: now_s, secret_digest=lambda _: key_secret)


def cookie(key: str = "AKIDCAROL") -> str:
    return sessions().cookie(sessions().begin(key))


@pytest.mark.parametrize(
    ("reader", "is_valid"),
    [
        pytest.param(sessions(now_s=NOW_S + SESSION_S_MAX), True, id="at the end of the working day"),
        pytest.param(sessions(now_s=NOW_S + SESSION_S_MAX + 1), False, id="after it"),
        pytest.param(sessions(secret=b"of another store"), False, id="another store"),
        pytest.param(sessions(key_secret=b"new"), False, id="another secret of the key"),
    ],
)
def test_when_a_cookie_is_valid(reader: Sessions, *, is_valid: bool) -> None:
    assert (reader.read(cookie()) is not None) is is_valid


@pytest.mark.parametrize(
    "forged",
    [
        *("", "x", "a.b.c", "~", "AKIDCAROL~", "AKIDCAROL~IngI.aaaa.bbbb", "é~é", "~.eJx.a.b", "." * 4_000),
        *(cookie().replace("AKIDCAROL", other) for other in ("AKIDOWNER", "")),
    ],
    ids=range(11),
)
def test_a_forged_cookie_is_invalid(forged: str) -> None:
    assert sessions().read(forged) is None


def test_sessions_have_different_tokens() -> None:
    one, other = sessions().begin("AKIDOWNER"), sessions().begin("AKIDOWNER")
    assert [one.has(token) for token in (one.token, other.token, "")] == [True, False, False]


# Sign-out ends a session: for copies of its cookie, for its streams, and after a restart.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with accounts and a queue."""
    with RunningServer(credentials=written(tmp_path / "c.toml"), account=OWNER, region=REGION) as running:
        client(running).create_queue(QueueName="orders")
        yield running


def copy_of(visitor: Visitor, server: RunningServer) -> Visitor:
    """Return a visitor of ``server`` with the same cookie value."""
    other = Visitor(server)
    other.get("/console/login")
    other.cookies = dict.fromkeys(other.cookies, next(iter(visitor.cookies.values())))
    return other


def is_signed_in(visitor: Visitor) -> bool:
    return visitor.get("/console/queues").path == "/console/queues"


def test_sign_out_invalidates_copies_of_the_cookie(server: RunningServer) -> None:
    with Visitor(server, key=KEY) as visitor, copy_of(visitor, server) as thief, Visitor(server, key=KEY) as other:
        assert is_signed_in(thief)
        assert thief.get("/api/queues").status == 200
        visitor.post("/console/logout", at="/console/queues")
        copied = dict(thief.cookies)
        assert not is_signed_in(thief)
        thief.cookies = copied
        assert thief.get("/api/queues").status == 401
        assert is_signed_in(other), "another session of the same key"


def test_sign_out_ends_the_streams_of_the_session(server: RunningServer) -> None:
    with (
        Visitor(server, key=KEY) as visitor,
        Visitor(server, key=KEY) as other,
        EventStream(server, cookies=dict(visitor.cookies), counts="orders") as page,
        EventStream(server, cookies=dict(other.cookies), counts="orders") as stays,
    ):
        page.next("counts")
        stays.next("counts")
        visitor.post("/console/logout", at="/console/queues")
        server.advance(TICK_MS)
        assert "sign in" in page.next("end")["reason"]
        assert page.is_ended
        client(server).send_message(QueueUrl=f"{server.endpoint}/{OWNER}/orders", MessageBody="m")
        server.advance(TICK_MS)
        while stays.next("counts")["set"]["orders"]["visible"] != "1":
            pass


def test_a_restart_does_not_revive_a_session(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": tmp_path / "store", "credentials": written(tmp_path / "c.toml")}
    with RunningServer(**settings) as running, Visitor(running, key=KEY) as visitor:
        cookies = dict(visitor.cookies)
        visitor.post("/console/logout", at="/console/queues")
        visitor.cookies = cookies
    with RunningServer(**settings) as running, copy_of(visitor, running) as thief:
        assert not is_signed_in(thief)
        with Visitor(running, key=KEY) as again:
            assert is_signed_in(again)


def test_every_node_of_a_store_accepts_a_session(
    tmp_path: Path, store_settings: Callable[[str], dict[str, Any]]
) -> None:
    settings = store_settings("postgres") | {"credentials": written(tmp_path / "c.toml")}
    with (
        RunningServer(**settings) as one,
        RunningServer(**settings) as other,
        Visitor(one, key=KEY) as visitor,
        copy_of(visitor, other) as elsewhere,
    ):
        assert is_signed_in(elsewhere)


def test_ending_a_session_without_a_key_stores_nothing() -> None:
    """Otherwise requests for the sign-in form could fill the memory."""
    unsigned = Sessions(secret=b"s", wall_s=lambda: NOW_S)
    session = unsigned.begin()
    unsigned.end(session)
    assert unsigned.read(unsigned.cookie(session)) == session


def test_an_ended_session_is_stored_until_its_cookie_expires() -> None:
    now_s = [NOW_S]
    kept = Sessions(secret=b"s", wall_s=lambda: now_s[0])
    session = kept.begin("AKIDOWNER")
    copied = kept.cookie(session)
    kept.end(session)
    for passed_s in (0, SESSION_S_MAX, SESSION_S_MAX + 1):
        now_s[0] = NOW_S + passed_s
        kept.end(Session(key_id="AKIDCAROL", token=f"{passed_s}"))
        assert kept.read(copied) is None


def test_expired_records_are_dropped() -> None:
    ended = EndedSessions(session_s_max=10)
    for now_s in range(100):
        ended.add(f"AKID{now_s}", "token", NOW_S + now_s)
    assert sum(ended.has(f"AKID{now_s}", "token", BEGAN_AT) for now_s in range(100)) == 11


def test_too_many_ended_sessions_of_a_key_end_all_of_that_key() -> None:
    ended = EndedSessions(session_s_max=10)
    for number in range(ENDED_PER_KEY_MAX):
        ended.add("AKIDOWNER", f"{number}", NOW_S)
    assert not ended.has("AKIDOWNER", "other", BEGAN_AT)
    ended.add("AKIDOWNER", "last", NOW_S)
    assert ended.has("AKIDOWNER", "0", BEGAN_AT)
    assert ended.has("AKIDOWNER", "other", BEGAN_AT)
    assert not ended.has("AKIDCAROL", "other", BEGAN_AT)
    assert not ended.has("AKIDOWNER", "new", datetime.fromtimestamp(NOW_S + 1, UTC))
    ended.add("AKIDCAROL", "0", NOW_S + 11)
    assert not ended.has("AKIDOWNER", "0", BEGAN_AT), "cookies of then have expired"
