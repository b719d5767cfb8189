"""Signatures of SQS and SMQ over real sockets: valid keys, invalid signatures, permissions."""

import logging
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime, formatdate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import urllib3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from urllib3 import BaseHTTPResponse

from tests.clients.smq.raw import as_received, authorization_v4, hex_md5, signed_v2
from tests.conftest import need
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, TEXT, client, set_policy, signed, statement, written
from veilmq.testing import RunningServer


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return written(tmp_path / "keys.toml")


@pytest.fixture
def server(keys: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=keys, region=REGION) as running:
        yield running


def refusal(sqs: Any) -> str:
    """Return the error code of a request of ``sqs``."""
    with pytest.raises(ClientError) as caught:
        sqs.list_queues()
    return str(caught.value.response["Error"]["Code"])


@pytest.mark.parametrize(("key", "account"), [("AKIDOWNER", OWNER), ("AKIDCAROL", OWNER), ("ASIDBOB", FRIEND)])
def test_a_key_selects_its_account(server: RunningServer, key: str, account: str) -> None:
    sqs = client(server, key)
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    assert url == f"{server.endpoint}/{account}/jobs"
    sqs.send_message(QueueUrl=url, MessageBody="hé")
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "hé"
    assert sqs.list_queues()["QueueUrls"] == [url]
    assert "QueueUrls" not in client(server, "AKIDOWNER" if account == FRIEND else "AKIDFRIEND").list_queues()


def test_an_invalid_signature_is_refused(server: RunningServer) -> None:
    assert refusal(client(server, aws_secret_access_key="wrong")) == "SignatureDoesNotMatch"
    assert refusal(client(server, region_name="us-east-1")) == "SignatureDoesNotMatch"
    assert refusal(client(server, "AKIDNOBODY")) == "InvalidClientTokenId"
    assert refusal(client(server, "ASIDBOB", aws_session_token="another")) == "InvalidClientTokenId"
    assert refusal(client(server, "ASIDBOB", aws_session_token=None)) == "InvalidClientTokenId"
    assert refusal(client(server, config=Config(signature_version=UNSIGNED))) == "MissingAuthenticationToken"


@pytest.mark.parametrize("late_s", [-1_000, 1_000])
def test_a_signature_with_a_wrong_time_is_refused(keys: Path, late_s: int) -> None:
    with RunningServer(credentials=keys, region=REGION, wall_s=lambda: time.time() + late_s) as server:
        assert refusal(client(server)) == "SignatureDoesNotMatch"


def fetched(url: str) -> tuple[int, str]:
    reply = urllib3.request("GET", url)
    return reply.status, reply.data.decode()


@pytest.mark.parametrize("key", ["AKIDOWNER", "ASIDBOB"])
def test_a_presigned_url_needs_no_key(server: RunningServer, key: str) -> None:
    create = f"{server.endpoint}/?Action=CreateQueue&Version=2012-11-05&QueueName="
    assert fetched(str(signed(f"{create}hand%20made", key, presigned_s=60).url))[0] == 400  # only the name is invalid
    url = str(signed(f"{create}hand-made", key, presigned_s=60).url)
    for _ in range(2):
        status, body = fetched(url)
        assert (status, "/hand-made</QueueUrl>" in body) == (200, True)
    status, body = fetched(url.replace("hand-made", "other"))
    assert (status, "<Code>SignatureDoesNotMatch</Code>" in body) == (403, True)


def test_node_fetches_a_presigned_url(server: RunningServer) -> None:
    """Its fetch sends headers of a browser; with accounts, a page cannot forge a GET, as it has no key."""
    need(shutil.which("node"), "node")
    create = f"{server.endpoint}/?Action=CreateQueue&QueueName=jobs"
    script = "for (const url of process.argv.slice(1)) console.log((await fetch(url)).status)"
    words = ["node", "--input-type=module", "--eval", script, create, str(signed(create, presigned_s=60).url)]
    assert subprocess.run(words, capture_output=True, check=True, timeout=60).stdout.split() == [b"403", b"200"]


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
def test_an_unsigned_get_of_a_browser_changes_nothing(server: RunningServer, host: str) -> None:
    """Of a page that embeds the URL, or at a name that its owner has pointed at the server."""
    headers = {"Host": host, "Accept-Language": "en", "User-Agent": "Mozilla/5.0", "X-Amz-Date": "20261128T000000Z"}
    reply = urllib3.request("GET", f"{server.endpoint}/?Action=CreateQueue&QueueName=jobs", headers=headers)
    assert (reply.status, b"<Code>MissingAuthenticationToken</Code>" in reply.data) == (403, True)
    assert "QueueUrls" not in client(server).list_queues()


def test_a_reload_replaces_the_keys(server: RunningServer, keys: Path) -> None:
    owner, friend = client(server), client(server, "AKIDFRIEND")
    owner.list_queues()
    friend.list_queues()
    written(keys, TEXT.replace("AKIDFRIEND", "AKIDNEW"))
    server.reload()
    owner.list_queues()
    assert refusal(friend) == "InvalidClientTokenId"
    assert smq(server, "GET", "/queues", key="AKIDFRIEND")[1]["Code"] == "InvalidAccessKeyId"
    assert smq(server, "GET", "/queues")[0] == 200
    client(server, "AKIDNEW", aws_secret_access_key=SECRETS["AKIDFRIEND"]).list_queues()


def test_a_reload_of_an_invalid_file_keeps_the_keys(
    server: RunningServer, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(keys, TEXT.replace('"AKIDOWNER"', "AKIDOWNER"))
    with caplog.at_level(logging.ERROR):
        server.reload()
    assert "the credentials were not reloaded" in caplog.text
    assert "is not TOML (at line 7" in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS.values())
    client(server).list_queues()


def test_without_a_credentials_file_every_key_belongs_to_the_default_account() -> None:
    with RunningServer() as server:
        url = client(server, "AKIDNOBODY").create_queue(QueueName="jobs")["QueueUrl"]
        assert url.endswith("/000000000000/jobs")
        assert client(server, config=Config(signature_version=UNSIGNED)).list_queues()["QueueUrls"] == [url]


def test_with_a_credentials_file_the_server_may_listen_on_every_address(keys: Path) -> None:
    """The setting insecure does not disable signatures."""
    for insecure in (False, True):
        with RunningServer(credentials=keys, region=REGION, host="0.0.0.0", insecure=insecure) as server:
            endpoint = server.endpoint.replace("0.0.0.0", "127.0.0.1")
            client(server, endpoint_url=endpoint).list_queues()
            assert refusal(client(server, "AKIDNOBODY", endpoint_url=endpoint)) == "InvalidClientTokenId"


def test_queue_urls_have_the_host_of_the_request(server: RunningServer) -> None:
    client(server).create_queue(QueueName="jobs")
    for host in ("127.0.0.1", "localhost", "127.0.0.1"):
        endpoint = server.endpoint.replace("127.0.0.1", host)
        assert client(endpoint).list_queues()["QueueUrls"] == [f"{endpoint}/{OWNER}/jobs"]


# Signatures of SMQ, with keys of the same credentials file.


NAMESPACE = "{http://mns.aliyuncs.com/doc/v1}"
MESSAGE = b"<Message><MessageBody>hello</MessageBody></Message>"


def sent(
    server: RunningServer, method: str, target: str, body: bytes = b"", *, headers: dict[bytes, bytes]
) -> BaseHTTPResponse:
    """Return the reply to a request with exactly these headers, without any of a client library."""
    lines = {name.decode(): value.decode() for name, value in headers.items()}
    return urllib3.request(method, server.endpoint + target, body=body, headers=lines)


def request(
    server: RunningServer, method: str, target: str, body: bytes = b"", *, headers: dict[bytes, bytes]
) -> tuple[int, dict[str, str]]:
    """Return the status of the reply and the texts of its elements."""
    reply = sent(server, method, target, body, headers=headers)
    elements = ET.fromstring(reply.data).iter() if reply.data else ()
    return reply.status, {element.tag.removeprefix(NAMESPACE): element.text or "" for element in elements}


def headers_of(
    server: RunningServer, method: str, target: str, body: bytes, key: str, *, date: str = "", **more: str
) -> dict[bytes, bytes]:
    """Return the headers of a request signed with ``key``; ``more`` are further headers."""
    more |= {"Content-MD5": hex_md5(body), "Content-Type": "text/xml"} if body else {}
    secret = SECRETS.get(key, "none")
    headers = signed_v2(method, target, headers=more, key=key, secret=secret, date=date or formatdate(usegmt=True))
    headers[b"host"] = server.endpoint.removeprefix("http://").encode()
    return headers


def smq(
    server: RunningServer, method: str, target: str, body: bytes = b"", *, key: str = "AKIDOWNER"
) -> tuple[int, dict[str, str]]:
    """Send a request signed with ``key``."""
    return request(server, method, target, body, headers=headers_of(server, method, target, body, key))


def signed_v4(
    server: RunningServer, method: str, target: str, body: bytes = b"", *, private: bool, secret: str = ""
) -> tuple[int, dict[str, str]]:
    """Send a request of the owner with a signature of version 4, of either cloud."""
    headers = headers_v4(method, target, body, private=private, secret=secret)
    return request(server, method, target, body, headers=as_received(headers))


def headers_v4(method: str, target: str, body: bytes = b"", *, private: bool, secret: str = "") -> dict[str, str]:
    now = datetime.now(UTC)
    headers = {"Date": format_datetime(now, usegmt=True), "x-mns-version": "2015-06-06"}
    headers |= {"Content-Type": "text/xml;charset=UTF-8"} if body else {}
    headers["Authorization"] = authorization_v4(
        method, target, headers, now=now, key="AKIDOWNER", secret=secret or SECRETS["AKIDOWNER"], private=private
    )
    return headers


@pytest.mark.parametrize("part", ["Credential", "Signature"])
def test_a_repeated_part_of_a_version_4_signature_is_refused(server: RunningServer, part: str) -> None:
    """Even if both values are equal."""
    headers = headers_v4("GET", "/queues", private=False)
    assert request(server, "GET", "/queues", headers=as_received(headers))[0] == 200
    header = headers["Authorization"]
    (given,) = [item for item in header.partition(" ")[2].split(",") if item.startswith(part + "=")]
    headers["Authorization"] = header.replace(given, f"{given},{given}")
    status, error = request(server, "GET", "/queues", headers=as_received(headers))
    assert (status, error["Code"]) == (400, "InvalidAuthorizationHeader")


@pytest.mark.parametrize("private", [False, True], ids=["public", "private"])
def test_a_version_4_signature_may_have_any_region(server: RunningServer, private: bool) -> None:
    """As the Java SDK signs: without Content-MD5, and with the receipt handle in the query."""
    assert signed_v4(server, "PUT", "/queues/jobs", private=private)[0] == 201
    assert signed_v4(server, "POST", "/queues/jobs/messages", MESSAGE, private=private)[0] == 201
    _, message = signed_v4(server, "GET", "/queues/jobs/messages?waitseconds=0&numOfMessages=1", private=private)
    target = f"/queues/jobs/messages?ReceiptHandle={message['ReceiptHandle']}"
    assert signed_v4(server, "DELETE", target, private=private, secret="another")[1]["Code"] == "SignatureDoesNotMatch"
    assert signed_v4(server, "DELETE", target, private=private)[0] == 204


@pytest.mark.parametrize("off_s", [-1_000, 1_000])
def test_an_smq_request_with_a_wrong_time_is_refused(server: RunningServer, off_s: int) -> None:
    date = formatdate(time.time() + off_s, usegmt=True)
    headers = headers_of(server, "GET", "/queues", b"", "AKIDOWNER", date=date)
    status, error = request(server, "GET", "/queues", headers=headers)
    assert (status, error["Code"], error["Message"]) == (408, "TimeExpired", "The http request you sent is expired.")


def test_a_body_must_match_its_digest(server: RunningServer) -> None:
    smq(server, "PUT", "/queues/jobs")
    headers = headers_of(server, "POST", "/queues/jobs/messages", MESSAGE, "AKIDOWNER")
    changed = MESSAGE.replace(b"hello", b"jello")
    status, error = request(server, "POST", "/queues/jobs/messages", changed, headers=headers)
    assert (status, error["Code"]) == (400, "InvalidDegist")
    assert request(server, "POST", "/queues/jobs/messages", MESSAGE, headers=headers)[0] == 201


def forbid_carol(server: RunningServer, action: str) -> None:
    smq(server, "PUT", "/queues/jobs")
    carol = {"AWS": f"arn:aws:iam::{OWNER}:user/carol"}
    denial = statement(Effect="Deny", Principal=carol, Action=action)
    set_policy(client(server), f"{server.endpoint}/{OWNER}/jobs", denial)


def test_a_policy_denies_smq_requests_by_the_actions_of_sqs(server: RunningServer) -> None:
    """The error has the code and text of SMQ."""
    forbid_carol(server, "sqs:SendMessage")
    status, error = smq(server, "POST", "/queues/jobs/messages", MESSAGE, key="AKIDCAROL")
    assert (status, error["Code"]) == (403, "AccessDenied")
    assert error["Message"].startswith("The OwnerId that your Access Key Id associated to is forbidden")
    batch = b"<Messages>" + MESSAGE + b"</Messages>"
    assert smq(server, "POST", "/queues/jobs/messages", batch, key="AKIDCAROL")[0] == 403
    assert smq(server, "POST", "/queues/jobs/messages", MESSAGE)[0] == 201
    assert smq(server, "GET", "/queues/jobs/messages", key="AKIDCAROL")[0] == 200


@pytest.mark.parametrize(
    ("action", "method", "target", "body"),
    [
        *[
            ("ReceiveMessage", "GET", f"/messages{query}", b"")
            for query in ("?peekonly=true", "?peekonly=true&numOfMessages=2", "", "?numOfMessages=1")
        ],
        ("DeleteMessage", "DELETE", "/messages?ReceiptHandle=x", b""),
        ("DeleteMessage", "DELETE", "/messages", b"<ReceiptHandles><ReceiptHandle>x</ReceiptHandle></ReceiptHandles>"),
        ("ChangeMessageVisibility", "PUT", "/messages?receiptHandle=x&visibilityTimeout=1", b""),
        ("GetQueueAttributes", "GET", "", b""),
        ("SetQueueAttributes", "PUT", "?metaoverride=true", b"<Queue/>"),
        ("DeleteQueue", "DELETE", "", b""),
    ],
)
def test_each_request_of_smq_needs_its_permission(
    server: RunningServer, action: str, method: str, target: str, body: bytes
) -> None:
    forbid_carol(server, f"sqs:{action}")
    smq(server, "POST", "/queues/jobs/messages", MESSAGE)
    status, error = smq(server, method, f"/queues/jobs{target}", body, key="AKIDCAROL")
    assert (status, error["Code"]) == (403, "AccessDenied")


def test_a_listing_hides_the_attributes_that_a_policy_denies(server: RunningServer) -> None:
    """It still has the URL of the queue."""
    smq(server, "PUT", "/queues/more", key="AKIDCAROL")
    forbid_carol(server, "sqs:GetQueueAttributes")

    def named(key: str) -> list[str]:
        headers = headers_of(server, "GET", "/queues", b"", key, **{"x-mns-with-meta": "true"})
        root = ET.fromstring(sent(server, "GET", "/queues", headers=headers).data)
        assert len(root.findall(f"{NAMESPACE}Queue/{NAMESPACE}QueueURL")) == 2
        return [name.text or "" for name in root.iter(f"{NAMESPACE}QueueName")]

    assert named("AKIDOWNER") == ["jobs", "more"]
    assert named("AKIDCAROL") == ["more"]


def test_subscribing_a_queue_needs_the_permission_to_send_to_it(server: RunningServer) -> None:
    forbid_carol(server, "sqs:SendMessage")
    smq(server, "PUT", "/topics/news", key="AKIDCAROL")

    def subscribed(name: str, key: str) -> tuple[int, str]:
        at = f"acs:mns:{REGION}:{OWNER}:queues/{name}"
        body = f"<Subscription><Endpoint>{at}</Endpoint></Subscription>".encode()
        status, reply = smq(server, "PUT", "/topics/news/subscriptions/s", body, key=key)
        return status, reply.get("Code", "")

    assert subscribed("jobs", "AKIDCAROL") == (403, "AccessDenied")
    assert subscribed("none", "AKIDCAROL") == (404, "QueueNotExist")
    assert subscribed("jobs", "AKIDOWNER") == (201, "")


def test_a_signature_of_smq_is_none_of_sqs(server: RunningServer) -> None:
    headers = headers_of(server, "POST", "/", b"{}", "AKIDOWNER") | {b"x-amz-target": b"AmazonSQS.ListQueues"}
    reply = sent(server, "POST", "/", b"{}", headers=headers)
    assert reply.status == 400
    assert "IncompleteSignature" in reply.headers["x-amzn-query-error"]


@pytest.mark.parametrize(("method", "target", "body"), [
    ("GET", "/?Action=ListQueues", b""), ("POST", "/", b"Action=ListQueues"), ("POST", "/v1/queues/-/jobs/set", b"{}")
])  # fmt: skip
def test_a_request_with_a_signature_of_smq_is_dispatched_to_smq(
    server: RunningServer, method: str, target: str, body: bytes
) -> None:
    status, error = smq(server, method, target, body)
    assert (status, error["Code"]) == (400, "InvalidRequestURL")


@pytest.mark.parametrize("version", [{}, {b"x-mns-version": b"2015-06-06"}])
def test_a_signature_of_sqs_is_none_of_smq(server: RunningServer, version: dict[bytes, bytes]) -> None:
    genuine = signed(f"{server.endpoint}/queues").headers
    headers = as_received(dict(genuine)) | version | {b"date": formatdate(usegmt=True).encode()}
    status, error = request(server, "GET", "/queues", headers=headers)
    code = "InvalidAuthorizationHeader" if version else "MissingVersionHeader"
    assert (status, error["Code"]) == (400, code)


def test_without_a_credentials_file_smq_checks_only_digests() -> None:
    with RunningServer() as server:
        assert smq(server, "PUT", "/queues/jobs", key="ANYBODY")[0] == 201
        version = {b"x-mns-version": b"2015-06-06"}
        assert request(server, "POST", "/queues/jobs/messages", MESSAGE, headers=version)[0] == 201
        digest = version | {b"content-md5": hex_md5(b"other").encode()}
        assert request(server, "POST", "/queues/jobs/messages", MESSAGE, headers=digest)[1]["Code"] == "InvalidDegist"
