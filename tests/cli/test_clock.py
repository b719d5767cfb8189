"""``veilmq clock``."""

from pathlib import Path

import pytest

from tests.cli.conftest import Veilmq
from tests.client.scripted_server import ScriptedServer, reply
from tests.server.keys import OWNER, REGION, SECRETS, written
from veilmq.testing import RunningServer


def test_trust_of_a_clock_that_is_not_doubted(veilmq: Veilmq) -> None:
    """Changes nothing."""
    with RunningServer() as server:
        answer = veilmq("clock", "trust", "--admin-endpoint", server.admin_endpoint)
    assert (answer.code, answer.out) == (0, "The clock is trusted: nothing is held back.\n")


def test_trust_without_a_server_of_ours(veilmq: Veilmq) -> None:
    """Says so, for another server, for none and for what is no URL."""
    with ScriptedServer(reply(404, b"not here")) as server:
        answer = veilmq("clock", "trust", "--admin-endpoint", server.endpoint)
    assert (answer.code, "is not the admin port of a veilmq server: it answered 404." in answer.err) == (1, True)
    assert veilmq("clock", "trust", "--admin-endpoint", "http://127.0.0.1:1").code == 1
    assert veilmq("clock", "trust", "--admin-endpoint", "nowhere").code == 2


def test_trust_is_the_operators(veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With accounts it needs the key of the root user of the server's own one."""
    credentials = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=credentials, account=OWNER, region=REGION) as server:
        trust = ("clock", "trust", "--admin-endpoint", server.admin_endpoint)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        assert "HTTP Basic" in veilmq(*trust).err
        for key_id, code in (("AKIDCAROL", 1), ("AKIDOWNER", 0)):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[key_id])
            assert veilmq(*trust).code == code
