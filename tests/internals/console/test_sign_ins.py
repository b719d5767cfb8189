"""Wrong keys slow down whoever tries them, and nobody else for long."""

import logging

import pytest

from veilmq.console import sign_ins
from veilmq.console.sign_ins import ADDRESS_FAILURES, ADDRESS_REST_MS, KEY_FAILURES, SignIns, SignInsPaused
from veilmq.wire.exchange import Caller, caller_named

CAROL = caller_named("111111111111", "carol")
HERE = "192.0.2.1"


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        """Begin somewhere."""
        self.at_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.at_ms


@pytest.fixture
def clock() -> Clock:
    """The time."""
    return Clock()


@pytest.fixture
def sign_in(clock: Clock) -> SignIns:
    """The way in, with one key."""

    def holder(key_id: str, secret: str) -> Caller | None:
        return CAROL if (key_id, secret) == ("AKIDCAROL", "right") else None

    return SignIns(holder, now_ms=clock.now_ms)


def fail(sign_in: SignIns, count: int, *, peer: str = HERE, key: str = "AKIDX{}") -> None:
    """Try ``count`` wrong keys."""
    for number in range(count):
        assert sign_in(key.format(number), "wrong", peer) is None


def test_an_address_rests_after_so_many_failures(sign_in: SignIns, clock: Clock) -> None:
    fail(sign_in, ADDRESS_FAILURES)
    with pytest.raises(SignInsPaused) as paused:
        sign_in("AKIDCAROL", "right", HERE)
    assert paused.value.retry_after_s == ADDRESS_REST_MS // 1_000
    clock.at_ms += ADDRESS_REST_MS - 1
    with pytest.raises(SignInsPaused):
        sign_in("AKIDCAROL", "right", HERE)
    clock.at_ms += 1
    assert sign_in("AKIDCAROL", "right", HERE) is CAROL


def test_others_are_not_concerned(sign_in: SignIns) -> None:
    fail(sign_in, ADDRESS_FAILURES, key="AKIDCAROL")
    assert sign_in("AKIDCAROL", "right", "192.0.2.2") is CAROL


def test_a_key_rests_however_many_guess_at_it(sign_in: SignIns, clock: Clock) -> None:
    for number in range(KEY_FAILURES):
        assert sign_in("AKIDCAROL", "wrong", f"198.51.100.{number}") is None
    with pytest.raises(SignInsPaused):
        sign_in("AKIDCAROL", "right", HERE)
    clock.at_ms += 1_000
    assert sign_in("AKIDCAROL", "right", HERE) is CAROL


def test_signing_in_takes_nothing(sign_in: SignIns) -> None:
    for _ in range(ADDRESS_FAILURES * 2):
        assert sign_in("AKIDCAROL", "right", HERE) is CAROL


def test_time_gives_tokens_back_and_no_more_than_there_were(sign_in: SignIns, clock: Clock) -> None:
    fail(sign_in, ADDRESS_FAILURES)
    clock.at_ms += ADDRESS_REST_MS * 1_000
    fail(sign_in, ADDRESS_FAILURES)
    with pytest.raises(SignInsPaused):
        sign_in("AKIDCAROL", "right", HERE)


def test_one_machine_has_one_bucket_of_its_network(sign_in: SignIns) -> None:
    for number in range(ADDRESS_FAILURES):
        assert sign_in("x", "wrong", f"2001:db8::{number:x}") is None
    with pytest.raises(SignInsPaused):
        sign_in("AKIDCAROL", "right", "2001:db8::ffff:1")
    assert sign_in("AKIDCAROL", "right", "2001:db8:0:1::1") is CAROL


def test_an_address_of_ipv4_is_one_however_it_is_written(sign_in: SignIns) -> None:
    fail(sign_in, ADDRESS_FAILURES, peer=f"::ffff:{HERE}")
    with pytest.raises(SignInsPaused):
        sign_in("AKIDCAROL", "right", HERE)


def test_memory_is_bounded(sign_in: SignIns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_ins, "_REMEMBERED_MAX", 3)
    for number in range(10):
        fail(sign_in, 1, peer=f"198.51.100.{number}")
    assert len(sign_in._addresses._full_at_ms) == 3


def test_each_failure_is_logged_on_one_line_without_the_secret(
    sign_in: SignIns, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="veilmq.console"):
        sign_in("AKID\nforged line" + "x" * 500, "top secret", HERE)
    (line,) = caplog.messages
    assert "192.0.2.1" in line
    assert r"AKID\nforged line" in line
    assert "secret" not in line
    assert len(line) < 300
