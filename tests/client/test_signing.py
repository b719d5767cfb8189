"""Signed requests of our own client: genuine to the verifier, and to a real server."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.server.keys import FRIEND, REGION, SECRETS, TOKEN, written
from veilmq.client import ClientError, HttpQueueClient, SigningKey
from veilmq.client.signing import key_of
from veilmq.testing import RunningServer
from veilmq.wire.sqs.callers import AccessKey, caller
from veilmq.wire.sqs.sigv4 import Verifier

NOW = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("path", ["/", "/queues/a b", "/ü%20"])
@pytest.mark.parametrize("token", [None, "a+token="])
def test_what_is_signed_is_genuine(path: str, token: str | None) -> None:
    """Whatever the path, with a token and without."""
    key = SigningKey(id="AKID", secret="hush", session_token=token, region="eu-west-1")
    headers = key.sign(path, {"Host": "h:1", "Content-Type": "x", "X-Amz-Target": "a.b"}, b"{}", now=NOW)
    known = AccessKey(id="AKID", secret="hush", session_token=token, caller=caller(FRIEND))
    sent = {name.lower().encode(): value.encode() for name, value in headers.items()}
    verifier = Verifier({"AKID": known}, region="eu-west-1")
    assert verifier.verify(b"POST", path.encode(), sent, b"{}", NOW.timestamp()).account == FRIEND


def test_a_client_with_a_key_is_let_in(tmp_path: Path) -> None:
    """And one without is not."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        key = SigningKey(id="ASIDBOB", secret=SECRETS["ASIDBOB"], session_token=TOKEN, region=REGION)
        with HttpQueueClient(server.endpoint, key=key) as client:
            assert client.create_queue("jobs") == f"{server.endpoint}/{FRIEND}/jobs"
            client.send("jobs", "hello")
            assert [message.body for message in client.receive("jobs")] == ["hello"]
        with HttpQueueClient(server.endpoint) as client, pytest.raises(ClientError, match="missing Authentication"):
            client.create_queue("jobs")


def test_the_key_is_where_the_tools_of_aws_have_it() -> None:
    """Half a key is none."""
    both = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hush"}
    assert key_of(both) == SigningKey(id="AKID", secret="hush", region="us-east-1")
    more = {"AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert key_of(both | more) == SigningKey(id="AKID", secret="hush", session_token="t", region="eu-west-1")
    assert key_of(both | more | {"AWS_REGION": "r"}) == SigningKey(
        id="AKID", secret="hush", session_token="t", region="r"
    )
    assert all(key_of({name: value}) is None for name, value in both.items())


def test_a_key_shows_no_secret() -> None:
    assert "hush" not in repr(SigningKey(id="AKID", secret="hush", session_token="hushed"))
