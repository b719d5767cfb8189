"""Key and certificate: made once, kept, or given; and what is wrong with those that are given."""

import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from veilmq.server import push_identity
from veilmq.server.pushes import PushError
from veilmq.server.settings import ServerSettings, SettingError
from veilmq.store.port import StoreError
from veilmq.testing import RunningServer

NOW_S = 1_700_000_000.0


@pytest.mark.parametrize("store", ["folder", "postgres"])
def test_it_is_made_once_for_all_servers(store: str, place: Callable[[str], dict[str, Any]]) -> None:
    """The next server on the store shows the same certificate; a data folder has it for its owner alone."""
    settings = place(store)
    first, again = [certificate(settings) for _ in range(2)]
    assert first == again
    if store == "folder":
        (file,) = settings["data"].glob("push*")
        assert (file.name, file.stat().st_mode & 0o777) == ("push.pem", 0o600)


def test_a_store_in_memory_has_another_one_each_time() -> None:
    assert certificate({}) != certificate({})


def certificate(settings: dict[str, Any]) -> bytes:
    """Return the certificate that a server with `settings` shows."""
    with (
        RunningServer(push_allow="hook.example", **settings) as server,
        urllib.request.urlopen(server.endpoint + "/push-certificate.pem", timeout=60) as reply,
    ):
        shown: bytes = reply.read()
        return shown


def test_a_certificate_is_good_from_the_day_before_for_ten_years() -> None:
    certificate = x509.load_pem_x509_certificate(push_identity.made(now_s=NOW_S).certificate_pem)
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    assert (NOW_S - begin, end - NOW_S) == (86_400, 3_650 * 86_400)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "push.new").mkdir()
    with pytest.raises(StoreError, match=r"push\.pem cannot be read or written"):
        RunningServer(data=tmp_path, push_allow="hook.example").__enter__()


def given(folder: Path) -> tuple[Path, Path]:
    """Write a key and its certificate; return their files."""
    made = push_identity.made(now_s=NOW_S).pem()
    begin = made.index(b"-----BEGIN CERTIFICATE")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    key.write_bytes(made[:begin])
    certificate.write_bytes(made[begin:])
    return key, certificate


def test_one_that_is_given_is_used(tmp_path: Path) -> None:
    key, certificate = given(tmp_path)
    assert push_identity.read(key, certificate).certificate_pem == certificate.read_bytes()


def test_what_is_wrong_with_one_that_is_given_is_said(tmp_path: Path) -> None:
    key, certificate = given(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(PushError, match="is not the certificate of"):
        push_identity.read(key, given(other)[1])
    with pytest.raises(PushError, match="cannot be read: No such file"):
        push_identity.read(tmp_path / "none.pem", certificate)
    with pytest.raises(PushError, match="must be a key and a certificate in PEM"):
        push_identity.read(certificate, certificate)
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key.write_bytes(curve)
    with pytest.raises(PushError, match="must be an RSA key"):
        push_identity.read(key, certificate)


def test_a_server_says_why_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PushError, match="cannot be read"):
        RunningServer(push_allow="a", push_key=tmp_path / "k", push_certificate=tmp_path / "c").__enter__()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "veilmq.server.push_identity", raising=False)
    with pytest.raises(PushError, match=r"needs the module cryptography.*pip install 'veilmq\[push\]'"):
        RunningServer(push_allow="a").__enter__()


def test_a_server_that_pushes_nowhere_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "veilmq.server.push_identity", raising=False)
    with RunningServer(data=tmp_path):
        assert not (tmp_path / "push.pem").exists()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"push_allow": "http://hook.example/"}, "must be host names, addresses and networks"),
        ({"push_allow": ""}, "must be host names, addresses and networks"),
        ({"push_certificate_url": "hook.example"}, "must be a URL that begins with http:// or https://"),
        ({"push_parallel_max": 0}, "must be a whole number from 1 to 1000"),
        ({"push_key": Path("k")}, "must be given with push_key"),
        ({"push_certificate": Path("c")}, "must be given with push_certificate"),
    ],
    ids=["url", "empty", "certificate-url", "parallel", "key", "certificate"],
)
def test_settings_that_cannot_be(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        ServerSettings(**wrong)  # type: ignore[arg-type]
