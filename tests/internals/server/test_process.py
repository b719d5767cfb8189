"""Where the server listens: every address of a name, one port, errors that say what to do."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from veilmq.server import process
from veilmq.server.process import BindError, bind
from veilmq.testing import RunningServer


@contextmanager
def bound(host: str, port: int = 0) -> Iterator[list[socket.socket]]:
    """Listen for a while."""
    listeners = bind(host, port, setting="port")
    try:
        yield listeners
    finally:
        process.close(listeners)


ADDRESSES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name with two addresses of this machine and one that is not its own, which no resolver here knows."""
    resolve = socket.getaddrinfo

    def resolved(host: str, *args: Any, **kwargs: Any) -> list[Any]:
        names = (*ADDRESSES, "192.0.2.1") if host == "two.test" else (host,)
        return [place for name in names for place in resolve(name, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return "two.test"


def test_a_name_is_listened_on_at_all_its_addresses(two: str) -> None:
    """At one port, which was free at all of them; what is not of this machine is passed over."""
    with bound(two) as listeners:
        places = [each.getsockname() for each in listeners]
        assert tuple(host for host, _ in places) == ADDRESSES
        assert len({port for _, port in places}) == 1


def test_a_server_answers_at_all_addresses_of_its_name(two: str) -> None:
    """Queues and health alike."""
    with RunningServer(host=two, admin_host=two, insecure=True) as server:
        for endpoint in (server.endpoint, server.admin_endpoint):
            port = int(endpoint.rpartition(":")[2])
            for address in ADDRESSES:
                with socket.create_connection((address, port), timeout=60) as client:
                    client.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
                    assert client.makefile("rb").readline().startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_name_is_not_listened_on_by_half(two: str, address: str) -> None:
    """Where the port is taken at one of the addresses, it is refused at all, and none stays open."""
    with socket.create_server((address, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BindError, match=rf"two.test:{port}: the port is in use"):
            bind(two, port, setting="port")
    with bound(two, port) as listeners:
        assert {each.getsockname()[1] for each in listeners} == {port}


def test_an_address_in_a_url() -> None:
    """One of IPv6 stands in brackets."""
    with bound("127.0.0.1") as (four,):
        assert process.authority(four) == f"127.0.0.1:{four.getsockname()[1]}"
        assert process.is_loopback([four])
    with bound("0.0.0.0") as (everywhere,):
        assert not process.is_loopback([everywhere])


def test_an_unknown_host_is_refused() -> None:
    """A name that means nothing here."""
    with pytest.raises(BindError, match="not known here"):
        bind("no.such.host.invalid", 0, setting="port")


def test_an_address_of_another_machine_is_refused() -> None:
    """TEST-NET-1 (RFC 5737) is nobody's."""
    with pytest.raises(BindError, match="not one of this machine"):
        bind("192.0.2.1", 0, setting="port")
