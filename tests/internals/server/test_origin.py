"""From where the console can be used: this machine, TLS, a named proxy; and what is refused, with what to do."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trustme
import urllib3

from tests.console.visitor import Visitor
from tests.server.keys import OWNER, SECRETS, written
from veilmq.server.origin import IN_THE_CLEAR, LOCAL_ONLY, UNFORWARDED, UNNAMED, WRONG_NAME, AdminGuard, Unreachable
from veilmq.server.settings import Addresses
from veilmq.testing import RunningServer

NAME = "mq.example.org"
PROXY = "127.0.0.2"
HTTPS = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.7"}


def scope(peer: str, *headers: tuple[str, str], path: str = "/console/queues") -> dict[str, Any]:
    """Return what Uvicorn makes of a request from ``peer``."""
    lines = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"type": "http", "method": "GET", "path": path, "scheme": "http", "client": (peer, 5), "headers": lines}


def reach(*, signed: bool = True, tls: bool = False, proxies: str = "") -> AdminGuard:
    listed = Addresses(proxies or None)
    return AdminGuard(_inner, own_name="0.0.0.0", any_name=True, signed=signed, tls=tls, proxies=listed)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may(peer: str) -> None:
    """Whatever the server has; the name by which it is called is checked where there is no certificate to do that."""
    assert [rule.way(scope(peer))[1] for rule in (reach(signed=False), reach(), reach(tls=True))] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("peer", ["192.0.2.1", "10.1.2.3", "fd00::1", "::ffff:192.0.2.1", "::", "0.0.0.0", "x", ""])
def test_others_need_accounts_and_tls(peer: str) -> None:
    with pytest.raises(Unreachable, match="authentication is off") as unasked:
        reach(signed=False, tls=True).way(scope(peer))
    assert str(unasked.value) == LOCAL_ONLY
    with pytest.raises(Unreachable, match="over TLS alone") as clear:
        reach().way(scope(peer))
    assert str(clear.value) == IN_THE_CLEAR
    assert reach(tls=True).way(scope(peer))[1] is True


def test_who_has_no_address_is_not_of_this_machine() -> None:
    with pytest.raises(Unreachable):
        reach().way({**scope("127.0.0.1"), "client": None})


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded"])
def test_a_proxy_that_is_not_named_is_not_believed(header: str) -> None:
    for peer in ("127.0.0.1", "192.0.2.1"):
        with pytest.raises(Unreachable) as unnamed:
            reach(proxies="192.0.2.2").way(scope(peer, (header, "https")))
        assert str(unnamed.value) == UNNAMED


def test_a_named_proxy_tells_who_came_and_how() -> None:
    seen, certified = reach(proxies="192.0.2.2").way(scope("192.0.2.2", *HTTPS.items()))
    assert (seen["scheme"], seen["client"][0], certified) == ("https", "198.51.100.7", True)


@pytest.mark.parametrize(
    ("told", "client"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("127.0.0.1, 198.51.100.7", "198.51.100.7"),  # the client wrote the first itself
        ("203.0.113.9, 198.51.100.7, 192.0.2.3", "198.51.100.7"),  # through two proxies that are named
        ("192.0.2.3", "192.0.2.3"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("198.51.100.7:4711", "198.51.100.7"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("127.0.0.1:1, 198.51.100.7:4711, 192.0.2.3:1", "198.51.100.7"),
    ],
)
def test_the_last_address_that_is_no_named_proxys_is_the_clients(told: str, client: str) -> None:
    asked = scope("192.0.2.2", ("X-Forwarded-Proto", "https"), ("X-Forwarded-For", told))
    assert reach(proxies="192.0.2.0/28").way(asked)[0]["client"][0] == client


def test_lines_of_a_header_are_one_list() -> None:
    lines = (("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-For", "198.51.100.7"), ("X-Forwarded-Proto", "https"))
    assert reach(proxies="192.0.2.2").way(scope("192.0.2.2", *lines))[0]["client"][0] == "198.51.100.7"


@pytest.mark.parametrize("headers", [
    [], [("X-Forwarded-For", "198.51.100.7")], [("X-Forwarded-Proto", "https")],
    [("X-Forwarded-Proto", "http"), ("X-Forwarded-For", "198.51.100.7")],
    [("X-Forwarded-Proto", "https, http"), ("X-Forwarded-For", "198.51.100.7")],
    [("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "http"), ("X-Forwarded-For", "198.51.100.7")],
    [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "unknown")],
    [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "198.51.100.7, ")],
    [("Forwarded", "for=198.51.100.7;proto=https")],
])  # fmt: skip
def test_a_named_proxy_must_tell_that_it_speaks_tls_and_to_whom(headers: list[tuple[str, str]]) -> None:
    for proxies, peer in (("192.0.2.2", "192.0.2.2"), ("127.0.0.1", "127.0.0.1")):
        with pytest.raises(Unreachable) as unforwarded:
            reach(proxies=proxies).way(scope(peer, *headers))
        assert str(unforwarded.value) == UNFORWARDED


async def _asked(guard: AdminGuard, asked: dict[str, Any]) -> tuple[int, str]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await guard(asked, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize("path", ["/", "/console/queues", "/console/login", "/api/queues", "/api/openapi.json", "/x"])
def test_what_cannot_be_used_from_there_says_what_to_do(path: str) -> None:
    status, text = asyncio.run(_asked(reach(), scope("192.0.2.1", path=path)))
    assert (status, IN_THE_CLEAR in text) == (403, True)


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/events/flush"])
def test_health_and_metrics_stay_as_they_are(path: str) -> None:
    assert asyncio.run(_asked(reach(signed=False), scope("192.0.2.1", path=path))) == (200, "inner")


@pytest.mark.parametrize("path", ["/health/live/../../console/queues", "/metrics/", "/metrics/console", "//metrics"])
def test_what_only_looks_like_them_is_the_consoles(path: str) -> None:
    assert asyncio.run(_asked(reach(), scope("192.0.2.1", path=path)))[0] == 403


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inner"})


def test_on_every_address_the_console_has_no_foreign_names() -> None:
    """A page whose name was pointed at this machine reads nothing here either; metrics have whatever name they have."""
    with RunningServer(admin_host="0.0.0.0", insecure=True) as running:
        endpoint = running.admin_endpoint.replace("0.0.0.0", "127.0.0.1")
        with Visitor(endpoint) as visitor:
            assert visitor.get("/console/queues").status == 200
            for path in ("/", "/console/queues", "/api/queues"):
                seen = visitor.get(path, Host="evil.example")
                assert (seen.status, WRONG_NAME in seen.html) == (403, True)
                assert seen.headers["x-content-type-options"] == "nosniff"
            assert visitor.get("/metrics", Host="veilmq.internal:9325").status == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with accounts behind a proxy on this machine."""
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with RunningServer(credentials=path, account=OWNER, console_proxy=PROXY) as running:
        yield running


def through_proxy(
    server: RunningServer, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> Any:
    """Ask as the proxy does for a browser that knows the server as ``NAME``."""
    told = {"Host": NAME, **HTTPS, **headers}
    with urllib3.PoolManager(source_address=(PROXY, 0)) as http:
        return http.request(method, server.admin_endpoint + path, body=body, headers=told, redirect=False)


def test_behind_a_proxy_one_signs_in_under_its_name(server: RunningServer) -> None:
    """Its cookie is for TLS alone; and the page of the form is the console's own."""
    form = through_proxy(server, "/console/login")
    assert form.status == 200
    cookie = form.headers["set-cookie"]
    assert cookie.startswith("__Host-")
    assert "; Secure" in cookie
    token = _token(form.data)
    body = urlencode({"csrf": token, "key_id": "AKIDOWNER", "secret": SECRETS["AKIDOWNER"], "next": "/console/audit"})
    told = {"Cookie": cookie.partition(";")[0], "Origin": f"https://{NAME}"}
    told["Content-Type"] = "application/x-www-form-urlencoded"
    signed_in = through_proxy(server, "/console/login", "POST", body, **told)
    assert (signed_in.status, signed_in.headers["location"]) == (303, "/console/audit")
    told["Cookie"] = signed_in.headers["set-cookie"].partition(";")[0]
    assert through_proxy(server, "/console/audit", **told).status == 200


def test_behind_a_proxy_pages_of_others_are_refused(server: RunningServer) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert through_proxy(server, "/console/login", **headers).status == 403


def test_a_proxy_that_does_not_speak_tls_is_refused(server: RunningServer) -> None:
    refused = through_proxy(server, "/console/login", **{"X-Forwarded-Proto": "http"})
    assert (refused.status, refused.data.decode()) == (403, UNFORWARDED + "\n")


def test_through_a_proxy_health_and_metrics_have_no_foreign_names(server: RunningServer) -> None:
    refused = through_proxy(server, "/metrics")
    assert (refused.status, refused.data.decode()) == (403, WRONG_NAME + "\n")


def test_beside_a_proxy_foreign_names_are_refused(server: RunningServer) -> None:
    """A page whose name was pointed at this machine is not behind the proxy, whatever it says."""
    with Visitor(server) as visitor:
        assert visitor.get("/console/login").status == 200
        assert visitor.get("/console/login", Host=NAME).text == WRONG_NAME
        assert visitor.get("/console/login", Host=NAME, **HTTPS).text == UNNAMED


def test_over_tls_others_sign_in_under_a_name(tmp_path: Path) -> None:
    """The operator's port is open to them without ``insecure``."""
    authority, keys = trustme.CA(), written(tmp_path / "credentials.toml")
    issued = authority.issue_cert("127.0.0.1", NAME)
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    settings: dict[str, Any] = {"credentials": keys, "tls_certificate": certificate, "tls_key": key}
    with RunningServer(admin_host="0.0.0.0", **settings) as running:
        endpoint = running.admin_endpoint.replace("0.0.0.0", "127.0.0.1")
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        with urllib3.PoolManager(ssl_context=trusting) as http:
            told = {"Host": f"{NAME}:9325", "Connection": "close"}
            form = http.request("GET", f"{endpoint}/console/login", headers=told)
            assert "; Secure" in form.headers["set-cookie"]
            told |= {"Origin": f"https://{NAME}:9325", "Cookie": form.headers["set-cookie"].partition(";")[0]}
            told["Content-Type"] = "application/x-www-form-urlencoded"
            fields = {"csrf": _token(form.data), "key_id": "AKIDOWNER", "secret": SECRETS["AKIDOWNER"]}
            sent = http.request(
                "POST", f"{endpoint}/console/login", body=urlencode(fields), headers=told, redirect=False
            )
            assert (sent.status, sent.headers["location"]) == (303, "/console/queues")


def _token(page: bytes) -> str:
    return page.decode().partition('name="csrf" value="')[2].partition('"')[0]
