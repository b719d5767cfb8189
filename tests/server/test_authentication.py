"""Signatures over real sockets: who is let in, by boto3's own signer, and what everybody else hears."""

import logging
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, TEXT, TOKEN, client, written
from veilmq.testing import RunningServer


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A credentials file."""
    return written(tmp_path / "keys.toml")


@pytest.fixture
def server(keys: Path) -> Iterator[RunningServer]:
    """A server that knows the keys of the file."""
    with RunningServer(credentials=keys, region=REGION) as running:
        yield running


def refusal(sqs: Any) -> str:
    """Return the code with which a request of ``sqs`` is refused."""
    with pytest.raises(ClientError) as caught:
        sqs.list_queues()
    return str(caught.value.response["Error"]["Code"])


@pytest.mark.parametrize(("key", "account"), [("AKIDOWNER", OWNER), ("AKIDCAROL", OWNER), ("ASIDBOB", FRIEND)])
def test_each_key_acts_for_its_account(server: RunningServer, key: str, account: str) -> None:
    """Queues are made in the account of who makes them, and listed there."""
    sqs = client(server, key)
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    assert url == f"{server.endpoint}/{account}/jobs"
    sqs.send_message(QueueUrl=url, MessageBody="hé")
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "hé"
    assert sqs.list_queues()["QueueUrls"] == [url]
    assert "QueueUrls" not in client(server, "AKIDOWNER" if account == FRIEND else "AKIDFRIEND").list_queues()


def test_who_cannot_sign_is_refused(server: RunningServer) -> None:
    """By the codes that AWS SDKs and their users know."""
    assert refusal(client(server, aws_secret_access_key="wrong")) == "SignatureDoesNotMatch"
    assert refusal(client(server, region_name="us-east-1")) == "SignatureDoesNotMatch"
    assert refusal(client(server, "AKIDNOBODY")) == "InvalidClientTokenId"
    assert refusal(client(server, "ASIDBOB", aws_session_token="another")) == "InvalidClientTokenId"
    assert refusal(client(server, "ASIDBOB", aws_session_token=None)) == "InvalidClientTokenId"
    assert refusal(client(server, config=Config(signature_version=UNSIGNED))) == "MissingAuthenticationToken"


@pytest.mark.parametrize("late_s", [-1_000, 1_000])
def test_a_clock_that_is_wrong_is_told(keys: Path, late_s: int) -> None:
    """More than fifteen minutes either way."""
    with RunningServer(credentials=keys, region=REGION, wall_s=lambda: time.time() + late_s) as server:
        assert refusal(client(server)) == "SignatureDoesNotMatch"


def test_a_session_runs_out(keys: Path) -> None:
    """At the instant that the file says; long-lived keys go on."""
    ended_s = time.time() - 1
    text = TEXT.replace("2100-01-01T00:00:00Z", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ended_s)))
    written(keys, text)
    with RunningServer(credentials=keys, region=REGION) as server:
        assert refusal(client(server, "ASIDBOB")) == "ExpiredToken"
        client(server, "AKIDFRIEND").list_queues()


def presigned(server: RunningServer, key: str = "AKIDOWNER", *, expires_s: int = 60, query: str) -> str:
    """Return a URL that whoever has it can use once it is signed with ``key``."""
    request = AWSRequest("GET", f"{server.endpoint}/?{query}")
    token = TOKEN if key.startswith("ASID") else None
    SigV4QueryAuth(Credentials(key, SECRETS[key], token), "sqs", REGION, expires=expires_s).add_auth(request)
    return str(request.url)


def fetched(url: str) -> tuple[int, str]:
    """Return status and body of the answer to a GET."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("key", ["AKIDOWNER", "ASIDBOB"])
def test_a_presigned_url_can_be_fetched_by_anyone(server: RunningServer, key: str) -> None:
    """As often as they like, as it was signed, and not otherwise."""
    url = presigned(server, key, query="Action=CreateQueue&QueueName=hand%20made&Version=2012-11-05")
    assert fetched(url)[0] == 400  # a space: the signature was right, the name is not
    url = presigned(server, key, query="Action=CreateQueue&QueueName=hand-made&Version=2012-11-05")
    for _ in range(2):
        status, body = fetched(url)
        assert status == 200
        assert "/hand-made</QueueUrl>" in body
    status, body = fetched(url.replace("hand-made", "other"))
    assert status == 403
    assert "<Code>SignatureDoesNotMatch</Code>" in body


def test_a_presigned_url_runs_out(keys: Path) -> None:
    with RunningServer(credentials=keys, region=REGION, wall_s=lambda: time.time() + 3_601) as server:
        status, body = fetched(presigned(server, expires_s=3_600, query="Action=ListQueues"))
        assert status == 400
        assert "<Code>RequestExpired</Code>" in body
        assert fetched(presigned(server, expires_s=3_700, query="Action=ListQueues"))[0] == 200


def test_the_file_is_read_again(server: RunningServer, keys: Path) -> None:
    """New keys come, old ones go, for connections that are open too."""
    owner, friend = client(server), client(server, "AKIDFRIEND")
    owner.list_queues()
    friend.list_queues()
    written(keys, TEXT.replace("AKIDFRIEND", "AKIDNEW"))
    server.reload()
    owner.list_queues()
    assert refusal(friend) == "InvalidClientTokenId"
    client(server, "AKIDNEW", aws_secret_access_key=SECRETS["AKIDFRIEND"]).list_queues()


def test_a_broken_file_changes_nothing(server: RunningServer, keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log says why, and tells no secret."""
    written(keys, TEXT.replace('"AKIDOWNER"', "AKIDOWNER"))
    with caplog.at_level(logging.ERROR):
        server.reload()
    assert "the credentials stay as they were" in caplog.text
    assert "is no TOML (at line 7" in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS.values())
    client(server).list_queues()


def test_without_a_file_any_key_is_the_default_account() -> None:
    """Or none at all, on loopback."""
    with RunningServer() as server:
        url = client(server, "AKIDNOBODY").create_queue(QueueName="jobs")["QueueUrl"]
        assert url.endswith("/000000000000/jobs")
        unsigned = client(server, config=Config(signature_version=UNSIGNED))
        assert unsigned.list_queues()["QueueUrls"] == [url]


def test_with_a_file_the_server_listens_anywhere(keys: Path) -> None:
    """And insecure does not switch the verification off."""
    for insecure in (False, True):
        with RunningServer(credentials=keys, region=REGION, host="0.0.0.0", insecure=insecure) as server:
            endpoint = server.endpoint.replace("0.0.0.0", "127.0.0.1")
            client(server, endpoint_url=endpoint).list_queues()
            assert refusal(client(server, "AKIDNOBODY", endpoint_url=endpoint)) == "InvalidClientTokenId"


def test_a_caller_under_several_names_of_the_server_gets_urls_of_each(server: RunningServer) -> None:
    """In turn."""
    client(server).create_queue(QueueName="jobs")
    for host in ("127.0.0.1", "localhost", "127.0.0.1"):
        endpoint = server.endpoint.replace("127.0.0.1", host)
        assert client(endpoint).list_queues()["QueueUrls"] == [f"{endpoint}/{OWNER}/jobs"]
