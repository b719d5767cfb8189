"""Requests with large replies: a connection holds one of them, however many its client asks for and does not take."""

import struct
from socket import SO_LINGER, SO_RCVBUF, SOL_SOCKET
from typing import cast

import pytest

from tests.server.http_host import LARGE, Client, HttpHost, Large, wait_until
from veilmq.server.background import OrderedReply
from veilmq.server.http_parser import Date, Request
from veilmq.server.process import loop_factory

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HOLD = b"GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"
ASK = b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n"


def pass_turns(client: Client) -> None:
    """Let the server's loop turn many times."""
    for _ in range(50):
        client.send(GET)
        client.read()


@pytest.mark.parametrize("loops", [None, loop_factory()], ids=["asyncio", "the product's"])
def test_what_a_client_does_not_take_is_not_begun(loops: object) -> None:
    """Whatever it asks for: sixty reads without a look at their replies would be a quarter of a gigabyte."""
    with HttpHost(loop_factory=loops) as host, host.client() as client, host.client() as other:  # type: ignore[arg-type]
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(ASK * 5)
        pass_turns(other)
        assert 1 <= len(host.begun) <= 2
        assert {len(client.read().body) for _ in range(5)} == {len(LARGE)}
        assert len(host.begun) == 5


@pytest.mark.parametrize("loops", [None, loop_factory()], ids=["asyncio", "the product's"])
def test_an_answer_counts_as_a_whole_until_all_of_it_is_taken(loops: object) -> None:
    """That much it takes of the memory, however little is left of it, and none other is made meanwhile."""
    with HttpHost(loop_factory=loops) as host, host.client() as client:  # type: ignore[arg-type]
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(ASK * 3)
        wait_until(lambda: host.call(lambda: host.budget.answers) > len(LARGE))
        assert len(host.begun) == 1
        assert {len(client.read().body) for _ in range(3)} == {len(LARGE)}
        wait_until(lambda: host.call(lambda: host.budget.answers) == 0)


def test_it_is_begun_when_all_before_it_are_answered() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.send(HOLD + GET + ASK + GET)
        held = host.await_held()
        pass_turns(other)
        assert host.begun == []
        host.release(held, b"first")
        assert client.read().body == b"first"
        assert client.read().body.startswith(b"GET /")
        assert client.read().body == LARGE
        assert client.read().body.startswith(b"GET /")


def test_it_is_not_begun_for_a_client_that_has_gone() -> None:
    with HttpHost() as host:
        client = host.client()
        client.send(HOLD + ASK)
        held = host.await_held()
        client.socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        host.await_nobody()
        host.release(held, b"late")
        assert host.begun == []


def test_it_hears_of_a_half_close_before_and_after_it_has_begun() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(HOLD + ASK)
        host.await_held()
        client.half_close()
        assert client.read().body == b"hurried"
        assert client.read().body == LARGE
        assert client.at_end()
        assert host.begun[0].told == ["hurry"]
        pass_turns(other)


def test_one_that_is_begun_while_the_server_drains_hears_of_it() -> None:
    with HttpHost() as host, host.client() as client, host.client() as other:
        client.socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 262_144)
        client.send(ASK * 3)
        pass_turns(other)
        host.drain()
        begun = len(host.begun)
        assert begun < 3
        assert [client.read().body == LARGE for _ in range(3)] == [True] * 3
        assert [each.told for each in host.begun[begun:]] == [["hurry"]] * (3 - begun)


def test_one_that_has_begun_is_withdrawn() -> None:
    """As any other is whose client goes."""
    begun: list[Large] = []
    request = Request(OneRequest(), b"GET", b"/large", {}, b"", True)

    def begin() -> Large:
        begun.append(Large(request))
        return begun[-1]

    pending = OrderedReply(request, begin)
    pending.withdraw()
    assert begun == []
    assert request.begin is not None
    request.begin()
    pending.withdraw()
    assert begun[0].told == ["withdraw"]


class OneRequest:
    """A connection whose only request waits for its turn."""

    def __init__(self) -> None:
        """It has no date."""
        self.date: Date = cast(Date, None)
        self.proven = False

    def answered(self) -> None:
        """Take note."""

    def peer(self) -> str | None:
        """Return no address."""
        return None

    def turn(self) -> None:
        """Let it wait."""
