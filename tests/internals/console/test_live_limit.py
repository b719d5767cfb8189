"""How many open pages a server has at a time."""

from socket import create_connection
from urllib.parse import urlsplit

import pytest

from tests.console.test_live_page import PATIENCE_S, Watching
from veilmq.client import HttpQueueClient
from veilmq.console import live
from veilmq.testing import RunningServer


def test_who_asks_for_the_head_alone_is_no_open_page(
    server: RunningServer, client: HttpQueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    client.create_queue("a")
    address = urlsplit(server.admin_endpoint)
    with create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"HEAD /console/live?counts=a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4_096).startswith(b"HTTP/1.1 200 ")
        with Watching(server, counts="a") as page:
            assert page.reply.status == 200
