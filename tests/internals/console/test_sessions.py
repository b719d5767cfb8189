"""Cookies of sessions: whose they are, how long they hold, and that nobody else makes one."""

import pytest

from veilmq.console.sessions import SESSION_S_MAX, Sessions

NOW_S = 1_700_000_000.0


def sessions(secret: bytes = b"of this store", now_s: float = NOW_S, key_secret: bytes = b"carol's") -> Sessions:
    """Return the sessions of a node at ``now_s``; each key has the secret ``key_secret``."""
    return Sessions(secret=secret, wall_s=lambda: now_s, secret_of=lambda _: key_secret)


def test_every_node_of_a_store_takes_a_session() -> None:
    session = sessions().begin("AKIDOWNER")
    assert sessions().read(sessions().cookie(session)) == session


def test_a_session_ends_with_the_working_day() -> None:
    cookie = sessions().cookie(sessions().begin("AKIDOWNER"))
    assert sessions(now_s=NOW_S + SESSION_S_MAX).read(cookie) is not None
    assert sessions(now_s=NOW_S + SESSION_S_MAX + 1).read(cookie) is None


@pytest.mark.parametrize(
    "cookie", ["", "x", "a.b.c", "~", "AKIDCAROL~", "AKIDCAROL~IngI.aaaa.bbbb", "é~é", "~.eJx.a.b", "." * 4_000]
)
def test_what_nobody_signed_is_no_session(cookie: str) -> None:
    assert sessions().read(cookie) is None


def test_another_store_signs_with_another_secret() -> None:
    cookie = sessions(secret=b"of another store").cookie(sessions().begin("AKIDOWNER"))
    assert sessions().read(cookie) is None


def test_a_key_that_has_another_secret_ends_its_sessions() -> None:
    cookie = sessions().cookie(sessions().begin("AKIDCAROL"))
    assert sessions(key_secret=b"new").read(cookie) is None


def test_the_cookie_of_one_key_is_none_of_another() -> None:
    cookie = sessions().cookie(sessions().begin("AKIDCAROL"))
    assert sessions().read(cookie.replace("AKIDCAROL", "AKIDOWNER")) is None
    assert sessions().read(cookie.replace("AKIDCAROL", "")) is None
    assert sessions().read(cookie) is not None


def test_forms_of_two_sessions_differ() -> None:
    one, other = sessions().begin("AKIDOWNER"), sessions().begin("AKIDOWNER")
    assert one.has(one.token)
    assert not one.has(other.token)
    assert not one.has("")
