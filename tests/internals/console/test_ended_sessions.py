"""Signing out ends a session for good: for a copy of its cookie, for its streams, and over a restart."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.console.test_live_page import Watching
from tests.console.visitor import Visitor
from tests.server.keys import OWNER, REGION, SECRETS, client, written
from veilmq.console.ended_sessions import OF_A_KEY_MAX, EndedSessions
from veilmq.console.live import TICK_MS
from veilmq.console.sessions import SESSION_S_MAX, Session, Sessions
from veilmq.testing import RunningServer

KEY = ("AKIDOWNER", SECRETS["AKIDOWNER"])
NOW_S = 1_700_000_000
BEGAN_AT = datetime.fromtimestamp(NOW_S, UTC)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "c.toml"), account=OWNER, region=REGION) as running:
        client(running).create_queue(QueueName="orders")
        yield running


def copy_of(visitor: Visitor, server: RunningServer) -> Visitor:
    """Return somebody with the same cookie, under the name that it has at ``server``."""
    other = Visitor(server)
    other.get("/console/login")
    other.cookies = dict.fromkeys(other.cookies, next(iter(visitor.cookies.values())))
    return other


def is_signed_in(visitor: Visitor) -> bool:
    return visitor.get("/console/queues").path == "/console/queues"


def test_a_copied_cookie_is_refused_after_signing_out(server: RunningServer) -> None:
    with Visitor(server, key=KEY) as visitor, copy_of(visitor, server) as thief, Visitor(server, key=KEY) as other:
        assert is_signed_in(thief)
        assert thief.get("/api/queues").status == 200
        visitor.post("/console/logout", at="/console/queues")
        copied = dict(thief.cookies)
        assert not is_signed_in(thief)
        thief.cookies = copied
        assert thief.get("/api/queues").status == 401
        assert is_signed_in(other), "another session of the same key"


def test_signing_out_ends_the_streams_of_the_session(server: RunningServer) -> None:
    with (
        Visitor(server, key=KEY) as visitor,
        Visitor(server, key=KEY) as other,
        Watching(server, cookies=dict(visitor.cookies), counts="orders") as page,
        Watching(server, cookies=dict(other.cookies), counts="orders") as stays,
    ):
        page.next("counts")
        stays.next("counts")
        visitor.post("/console/logout", at="/console/queues")
        server.advance(TICK_MS)
        assert page.is_over
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


def test_every_node_of_a_database_takes_a_session(tmp_path: Path, place: Callable[[str], dict[str, Any]]) -> None:
    settings = place("postgres") | {"credentials": written(tmp_path / "c.toml")}
    with (
        RunningServer(**settings) as one,
        RunningServer(**settings) as other,
        Visitor(one, key=KEY) as visitor,
        copy_of(visitor, other) as elsewhere,
    ):
        assert is_signed_in(elsewhere)


def test_a_session_of_nobody_is_not_remembered() -> None:
    """Or whoever asks for the form of signing in could fill the memory."""
    sessions = Sessions(secret=b"s", wall_s=lambda: NOW_S)
    session = sessions.begin()
    sessions.end(session)
    assert sessions.read(sessions.cookie(session)) == session


def test_it_is_remembered_as_long_as_its_cookie_would_hold() -> None:
    now_s = [NOW_S]
    sessions = Sessions(secret=b"s", wall_s=lambda: now_s[0])
    session = sessions.begin("AKIDOWNER")
    cookie = sessions.cookie(session)
    sessions.end(session)
    for passed_s in (0, SESSION_S_MAX, SESSION_S_MAX + 1):
        now_s[0] = NOW_S + passed_s
        sessions.end(Session(key_id="AKIDCAROL", token=f"{passed_s}"))
        assert sessions.read(cookie) is None


def test_what_is_too_old_anyway_is_forgotten() -> None:
    ended = EndedSessions(session_s_max=10)
    for now_s in range(100):
        ended.add(f"AKID{now_s}", "token", NOW_S + now_s)
    assert len(ended) == 11


def test_too_many_of_a_key_end_all_of_that_key_and_no_others() -> None:
    ended = EndedSessions(session_s_max=10)
    for number in range(OF_A_KEY_MAX):
        ended.add("AKIDOWNER", f"{number}", NOW_S)
    assert not ended.has("AKIDOWNER", "other", BEGAN_AT)
    ended.add("AKIDOWNER", "last", NOW_S)
    assert len(ended) == 0
    assert ended.has("AKIDOWNER", "0", BEGAN_AT)
    assert ended.has("AKIDOWNER", "other", BEGAN_AT)
    assert not ended.has("AKIDCAROL", "other", BEGAN_AT)
    assert not ended.has("AKIDOWNER", "new", datetime.fromtimestamp(NOW_S + 1, UTC))
    ended.add("AKIDCAROL", "0", NOW_S + 11)
    assert not ended.has("AKIDOWNER", "0", BEGAN_AT), "nobody takes a cookie of then"
