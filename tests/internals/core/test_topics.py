"""Push URLs are parsed without ambiguity, or refused."""

import pytest

from veilmq.core.errors import EndpointRefused
from veilmq.core.topics import PushUrl, read_push_url


@pytest.mark.parametrize(("text", "host", "port", "path", "authority"), [
    ("http://hook.example/in", "hook.example", 80, "/in", "hook.example"),
    ("HTTPS://Hook.Example", "hook.example", 443, "/notifications", "hook.example"),
    ("http://hook.example:8080?a=b", "hook.example", 8080, "/?a=b", "hook.example:8080"),
    ("https://hook.example:80/", "hook.example", 80, "/", "hook.example:80"),
    ("http://hook.example./x", "hook.example", 80, "/x", "hook.example"),
    ("http://10.1.2.3:81/a%20b", "10.1.2.3", 81, "/a%20b", "10.1.2.3:81"),
    ("http://[2606:4700:0::1111]/", "2606:4700::1111", 80, "/", "[2606:4700::1111]"),
    ("http://in_side-1.cluster.local/x/~y;z@!", "in_side-1.cluster.local", 80, "/x/~y;z@!", "in_side-1.cluster.local"),
])  # fmt: skip
def test_a_push_url_is_parsed(text: str, host: str, port: int, path: str, authority: str) -> None:
    url = read_push_url(text)
    secure = text.lower().startswith("https")
    assert url == PushUrl(secure=secure, host=host, port=port, path=path)
    assert url.authority == authority


@pytest.mark.parametrize("text", [
    "http://user@hook.example/", "http://user:secret@127.0.0.1/", "http://hook.example@127.0.0.1/",
    "http://127.0.0.1\\@hook.example/", "http://hook.example\\.evil/", "http:///in", "http://", "ftp://hook.example/",
    "file:///etc/passwd", "gopher://127.0.0.1:6379/_x", "http://hook.example/#fragment", "http://hook.example/a b",
    "http://hook.example/\r\nHost: evil", "http://hook.example/\n", "http://hook.example/ü", "http://hööк.example/",
    "http://hook.example%2f/", "http://hook.example:/", "http://hook.example:80:81/", "http://hook.example:+80/",
    "http://[fe80::1%25eth0]/", "http://hook.example/" + "x" * 2_048,
])  # fmt: skip
def test_an_ambiguous_url_is_refused(text: str) -> None:
    with pytest.raises(EndpointRefused, match=r"it must be http:// or https://.* at most 2048 ASCII characters"):
        read_push_url(text)


@pytest.mark.parametrize("text", [
    "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://017700000001/", "http://0177.0.0.1/",
    "http://127.1/", "http://127.0.0.01/", "http://127.0.0.1./", "http://127.0.0.256/", "http://1.2.3.4.5/",
    "http://hook.0x7f/", "http://hook.1/",
])  # fmt: skip
def test_only_the_usual_form_of_an_ipv4_address_is_accepted(text: str) -> None:
    """Octal, hexadecimal, one number, fewer parts, a final dot: each is an address to some parser."""
    with pytest.raises(EndpointRefused, match="four decimal numbers"):
        read_push_url(text)


@pytest.mark.parametrize(("text", "why"), [
    ("http://hook.example:0/", "port must be from 1 to 65535"),
    ("http://hook.example:65536/", "port must be from 1 to 65535"), ("http://[::1::]/", "not an IPv6 address"),
    ("http://[1.2.3.4]/", "not an IPv6 address"), ("http://-hook.example/", "not a valid host name"),
    ("http://hook..example/", "not a valid host name"), (f"http://{'x' * 64}.example/", "not a valid host name"),
])  # fmt: skip
def test_invalid_ports_and_hosts_are_refused(text: str, why: str) -> None:
    with pytest.raises(EndpointRefused, match=why):
        read_push_url(text)
