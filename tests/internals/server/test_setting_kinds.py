"""Which addresses an allow-list lets pass."""

from ipaddress import ip_address

import pytest

from veilmq.server.settings import AllowList, is_special, unmapped

PUBLIC = ["8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.0", "100.63.255.255", "2606:4700::1111", "2a00:1450::1"]
SPECIAL = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "192.0.0.192",
    "198.18.0.1",
    "203.0.113.7",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "::7f00:1",
    "fe80::1",
    "fec0::1",
    "fd00:ec2::254",
    "ff02::1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001::1",
    "2001:db8::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_special(address: str) -> None:
    assert not is_special(ip_address(address))


@pytest.mark.parametrize("address", SPECIAL)
def test_no_special_address_is_allowed_but_by_its_network(address: str) -> None:
    """Neither by a name that leads there, nor by all addresses of the world, but by itself."""
    found = ip_address(address)
    wide = AllowList("hook.example, 0.0.0.0/0, ::/0, 0.0.0.0/1, 128.0.0.0/1")
    assert is_special(found)
    assert not wide.holds(found, 80, named=True)
    assert not wide.holds(found, 80, named=False)
    assert AllowList(address).holds(found, 80, named=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
def test_an_address_in_the_clothes_of_another_is_itself(address: str) -> None:
    """IPv6 that only writes IPv4 otherwise."""
    mapped = ip_address(f"::ffff:{address}")
    assert unmapped(mapped) == ip_address(address)
    assert not AllowList("::ffff:0:0/96, ::/0, hook.example").holds(mapped, 80, named=True)
    assert AllowList(f"{address}/32").holds(mapped, 80, named=False)


def test_a_public_address_is_allowed_by_name_or_by_network() -> None:
    address = ip_address("8.8.8.8")
    assert AllowList("hook.example").holds(address, 80, named=True)
    assert not AllowList("hook.example").holds(address, 80, named=False)
    assert AllowList("8.8.0.0/16").holds(address, 80, named=False)
    assert AllowList("0.0.0.0/0").holds(address, 80, named=False)
    assert not AllowList("8.9.0.0/16").holds(address, 80, named=False)


def test_names_are_compared_as_wholes_and_with_their_ports() -> None:
    allowed = AllowList("Hook.Example, other.example:8080,[fd00::1]:443,10.0.0.0/8:81")
    assert allowed.names("hook.example", 80)
    assert allowed.names("hook.example", 8080)
    assert not allowed.names("evil-hook.example", 80)
    assert not allowed.names("hook.example.evil", 80)
    assert allowed.names("other.example", 8080)
    assert not allowed.names("other.example", 80)
    assert allowed.holds(ip_address("fd00::1"), 443, named=False)
    assert not allowed.holds(ip_address("fd00::1"), 80, named=False)
    assert allowed.holds(ip_address("10.9.9.9"), 81, named=False)
    assert not allowed.holds(ip_address("10.9.9.9"), 80, named=False)


def test_nothing_is_allowed_by_nothing() -> None:
    assert not AllowList("")
    assert not AllowList(" , ")
    assert AllowList("a")
    assert AllowList("a, 10.0.0.1").has_networks
    assert not AllowList("a, b:1").has_networks


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "*.example",
        "hook.example/",
        "http://hook.example",
        "a b",
        "10.0.0.1/8",
        "a:0",
        "a:65536",
        "a:b",
        "1.2.3",
        "[::1",
        "::1:x",
    ],
)
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        AllowList(f"fine.example, {text}")
