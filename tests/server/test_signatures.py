"""Signatures over real sockets: who is let in, by boto3's own signer, and what everybody else hears."""

import json
import logging
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime, formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from xml.etree import ElementTree as ET

import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.clients.smq.raw import as_received, authorization_v4, hex_md5, signed_v2
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, TEXT, client, signed, written
from veilmq.testing import RunningServer


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return written(tmp_path / "keys.toml")


@pytest.fixture
def server(keys: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=keys, region=REGION) as running:
        yield running


def refusal(sqs: Any) -> str:
    """Return the code with which a request of ``sqs`` is refused."""
    with pytest.raises(ClientError) as caught:
        sqs.list_queues()
    return str(caught.value.response["Error"]["Code"])


@pytest.mark.parametrize(("key", "account"), [("AKIDOWNER", OWNER), ("AKIDCAROL", OWNER), ("ASIDBOB", FRIEND)])
def test_each_key_acts_for_its_account(server: RunningServer, key: str, account: str) -> None:
    sqs = client(server, key)
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    assert url == f"{server.endpoint}/{account}/jobs"
    sqs.send_message(QueueUrl=url, MessageBody="hé")
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "hé"
    assert sqs.list_queues()["QueueUrls"] == [url]
    assert "QueueUrls" not in client(server, "AKIDOWNER" if account == FRIEND else "AKIDFRIEND").list_queues()


def test_who_cannot_sign_is_refused(server: RunningServer) -> None:
    assert refusal(client(server, aws_secret_access_key="wrong")) == "SignatureDoesNotMatch"
    assert refusal(client(server, region_name="us-east-1")) == "SignatureDoesNotMatch"
    assert refusal(client(server, "AKIDNOBODY")) == "InvalidClientTokenId"
    assert refusal(client(server, "ASIDBOB", aws_session_token="another")) == "InvalidClientTokenId"
    assert refusal(client(server, "ASIDBOB", aws_session_token=None)) == "InvalidClientTokenId"
    assert refusal(client(server, config=Config(signature_version=UNSIGNED))) == "MissingAuthenticationToken"


@pytest.mark.parametrize("late_s", [-1_000, 1_000])
def test_a_clock_that_is_wrong_is_told(keys: Path, late_s: int) -> None:
    with RunningServer(credentials=keys, region=REGION, wall_s=lambda: time.time() + late_s) as server:
        assert refusal(client(server)) == "SignatureDoesNotMatch"


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("key", ["AKIDOWNER", "ASIDBOB"])
def test_a_presigned_url_can_be_fetched_by_anyone(server: RunningServer, key: str) -> None:
    created = f"{server.endpoint}/?Action=CreateQueue&Version=2012-11-05&QueueName="
    assert fetched(str(signed(f"{created}hand%20made", key, presigned_s=60).url))[0] == 400  # it is right, the name not
    url = str(signed(f"{created}hand-made", key, presigned_s=60).url)
    for _ in range(2):
        status, body = fetched(url)
        assert status == 200
        assert "/hand-made</QueueUrl>" in body
    status, body = fetched(url.replace("hand-made", "other"))
    assert status == 403
    assert "<Code>SignatureDoesNotMatch</Code>" in body


def test_the_file_is_read_again(server: RunningServer, keys: Path) -> None:
    owner, friend = client(server), client(server, "AKIDFRIEND")
    owner.list_queues()
    friend.list_queues()
    written(keys, TEXT.replace("AKIDFRIEND", "AKIDNEW"))
    server.reload()
    owner.list_queues()
    assert refusal(friend) == "InvalidClientTokenId"
    client(server, "AKIDNEW", aws_secret_access_key=SECRETS["AKIDFRIEND"]).list_queues()


def test_a_broken_file_changes_nothing(server: RunningServer, keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(keys, TEXT.replace('"AKIDOWNER"', "AKIDOWNER"))
    with caplog.at_level(logging.ERROR):
        server.reload()
    assert "the credentials were not reloaded" in caplog.text
    assert "is not TOML (at line 7" in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS.values())
    client(server).list_queues()


def test_without_a_file_any_key_is_the_default_account() -> None:
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
    client(server).create_queue(QueueName="jobs")
    for host in ("127.0.0.1", "localhost", "127.0.0.1"):
        endpoint = server.endpoint.replace("127.0.0.1", host)
        assert client(endpoint).list_queues()["QueueUrls"] == [f"{endpoint}/{OWNER}/jobs"]


# SMQ's signatures over real sockets: the keys of the one credentials file, and every refusal in the words of SMQ.


NAMESPACE = "{http://mns.aliyuncs.com/doc/v1}"
MESSAGE = b"<Message><MessageBody>hello</MessageBody></Message>"


def ask(
    server: RunningServer, method: str, target: str, body: bytes = b"", *, headers: dict[bytes, bytes]
) -> tuple[int, dict[str, str]]:
    connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, target, body, {name.decode(): value.decode() for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    elements = ET.fromstring(text).iter() if text else ()
    return answer.status, {element.tag.removeprefix(NAMESPACE): element.text or "" for element in elements}


def headers_of(
    server: RunningServer,
    method: str,
    target: str,
    body: bytes,
    key: str,
    *,
    date: str = "",
    token: str = "",
    **more: str,
) -> dict[bytes, bytes]:
    """Return the headers that the holder of ``key`` sends, with ``more``."""
    more |= {"Content-MD5": hex_md5(body), "Content-Type": "text/xml"} if body else {}
    if token:
        more["security-token"] = token
    secret = SECRETS.get(key, "none")
    headers = signed_v2(method, target, headers=more, key=key, secret=secret, date=date or formatdate(usegmt=True))
    headers[b"host"] = server.endpoint.removeprefix("http://").encode()
    return headers


def smq(
    server: RunningServer, method: str, target: str, body: bytes = b"", *, key: str = "AKIDOWNER", token: str = ""
) -> tuple[int, dict[str, str]]:
    """Ask as the holder of ``key``."""
    return ask(server, method, target, body, headers=headers_of(server, method, target, body, key, token=token))


def signed_v4(
    server: RunningServer, method: str, target: str, body: bytes = b"", *, private: bool, secret: str = ""
) -> tuple[int, dict[str, str]]:
    """Ask as the owner, with version 4 of either cloud."""
    now = datetime.now(UTC)
    headers = {"Date": format_datetime(now, usegmt=True), "x-mns-version": "2015-06-06"}
    headers |= {"Content-Type": "text/xml;charset=UTF-8"} if body else {}
    headers["Authorization"] = authorization_v4(
        method, target, headers, now=now, key="AKIDOWNER", secret=secret or SECRETS["AKIDOWNER"], private=private
    )
    return ask(server, method, target, body, headers=as_received(headers))


@pytest.mark.parametrize("part", ["Credential", "Signature"])
def test_a_part_of_version_4_that_stands_twice_is_refused(server: RunningServer, part: str) -> None:
    """However it is repeated, here with the very same value."""
    now = datetime.now(UTC)
    headers = {"Date": format_datetime(now, usegmt=True), "x-mns-version": "2015-06-06"}
    header = authorization_v4(
        "GET", "/queues", headers, now=now, key="AKIDOWNER", secret=SECRETS["AKIDOWNER"], private=False
    )
    sent = {**headers, "Authorization": header}
    assert ask(server, "GET", "/queues", headers=as_received(sent))[0] == 200
    (given,) = [item for item in header.partition(" ")[2].split(",") if item.startswith(part + "=")]
    sent["Authorization"] = header.replace(given, f"{given},{given}")
    status, error = ask(server, "GET", "/queues", headers=as_received(sent))
    assert (status, error["Code"]) == (400, "InvalidAuthorizationHeader")


@pytest.mark.parametrize("private", [False, True], ids=["public", "private"])
def test_version_4_is_taken_with_any_region(server: RunningServer, private: bool) -> None:
    """As the Java SDK signs when it is told to: Content-MD5 is not sent, the handle is in the query."""
    assert signed_v4(server, "PUT", "/queues/jobs", private=private)[0] == 201
    assert signed_v4(server, "POST", "/queues/jobs/messages", MESSAGE, private=private)[0] == 201
    _, message = signed_v4(server, "GET", "/queues/jobs/messages?waitseconds=0&numOfMessages=1", private=private)
    target = f"/queues/jobs/messages?ReceiptHandle={message['ReceiptHandle']}"
    assert signed_v4(server, "DELETE", target, private=private, secret="another")[1]["Code"] == "SignatureDoesNotMatch"
    assert signed_v4(server, "DELETE", target, private=private)[0] == 204


@pytest.mark.parametrize("off_s", [-1_000, 1_000])
def test_a_clock_that_is_wrong_is_told_by_smq(server: RunningServer, off_s: int) -> None:
    date = formatdate(time.time() + off_s, usegmt=True)
    status, error = ask(
        server, "GET", "/queues", headers=headers_of(server, "GET", "/queues", b"", "AKIDOWNER", date=date)
    )

    assert (status, error["Code"], error["Message"]) == (408, "TimeExpired", "The http request you sent is expired.")


def test_a_body_that_was_changed_is_refused_by_its_digest(server: RunningServer) -> None:
    smq(server, "PUT", "/queues/jobs")
    headers = headers_of(server, "POST", "/queues/jobs/messages", MESSAGE, "AKIDOWNER")
    status, error = ask(server, "POST", "/queues/jobs/messages", MESSAGE.replace(b"hello", b"jello"), headers=headers)

    assert (status, error["Code"]) == (400, "InvalidDegist")
    assert ask(server, "POST", "/queues/jobs/messages", MESSAGE, headers=headers)[0] == 201


def forbid_carol(server: RunningServer, action: str) -> None:
    smq(server, "PUT", "/queues/jobs")
    statement = {
        "Effect": "Deny",
        "Principal": {"AWS": f"arn:aws:iam::{OWNER}:user/carol"},
        "Action": action,
        "Resource": f"arn:aws:sqs:{REGION}:{OWNER}:jobs",
    }
    client(server).set_queue_attributes(
        QueueUrl=f"{server.endpoint}/{OWNER}/jobs",
        Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})},
    )


def test_a_policy_decides_by_the_actions_of_sqs(server: RunningServer) -> None:
    """Whichever protocol it is asked over; who is denied hears it in the words of that protocol."""
    forbid_carol(server, "sqs:SendMessage")

    status, error = smq(server, "POST", "/queues/jobs/messages", MESSAGE, key="AKIDCAROL")
    assert (status, error["Code"]) == (403, "AccessDenied")
    assert error["Message"].startswith("The OwnerId that your Access Key Id associated to is forbidden")
    batch = b"<Messages>" + MESSAGE + b"</Messages>"
    assert smq(server, "POST", "/queues/jobs/messages", batch, key="AKIDCAROL")[0] == 403
    assert smq(server, "POST", "/queues/jobs/messages", MESSAGE)[0] == 201
    assert smq(server, "GET", "/queues/jobs/messages", key="AKIDCAROL")[0] == 200


@pytest.mark.parametrize("target", ["?peekonly=true", "?peekonly=true&numOfMessages=2", "", "?numOfMessages=1"])
def test_who_may_not_receive_may_not_peek(server: RunningServer, target: str) -> None:
    forbid_carol(server, "sqs:ReceiveMessage")
    smq(server, "POST", "/queues/jobs/messages", MESSAGE)

    status, error = smq(server, "GET", f"/queues/jobs/messages{target}", key="AKIDCAROL")
    assert (status, error["Code"]) == (403, "AccessDenied")


def test_a_listing_tells_of_a_queue_what_its_attributes_tell(server: RunningServer) -> None:
    """To who may ask for them; who may not hears that there is the queue."""
    smq(server, "PUT", "/queues/more", key="AKIDCAROL")
    forbid_carol(server, "sqs:GetQueueAttributes")

    def named(key: str) -> list[str]:
        headers = headers_of(server, "GET", "/queues", b"", key, **{"x-mns-with-meta": "true"})
        connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
        connection.request("GET", "/queues", headers={name.decode(): value.decode() for name, value in headers.items()})
        root = ET.fromstring(connection.getresponse().read())
        connection.close()
        assert len(root.findall(f"{NAMESPACE}Queue/{NAMESPACE}QueueURL")) == 2
        return [name.text or "" for name in root.iter(f"{NAMESPACE}QueueName")]

    assert named("AKIDOWNER") == ["jobs", "more"]
    assert named("AKIDCAROL") == ["more"]


def test_who_may_not_send_to_a_queue_may_not_subscribe_it(server: RunningServer) -> None:
    """Else he could send there by publishing; the queue's policy is read for it if need be."""
    forbid_carol(server, "sqs:SendMessage")
    smq(server, "PUT", "/topics/news", key="AKIDCAROL")

    def subscribed(name: str, key: str) -> tuple[int, str]:
        at = f"acs:mns:{REGION}:{OWNER}:queues/{name}"
        body = f"<Subscription><Endpoint>{at}</Endpoint></Subscription>".encode()
        status, told = smq(server, "PUT", "/topics/news/subscriptions/s", body, key=key)
        return status, told.get("Code", "")

    assert subscribed("jobs", "AKIDCAROL") == (403, "AccessDenied")
    assert subscribed("none", "AKIDCAROL") == (404, "QueueNotExist")
    assert subscribed("jobs", "AKIDOWNER") == (201, "")


def test_keys_that_are_gone_are_not_good_any_more(server: RunningServer, keys: Path) -> None:
    assert smq(server, "GET", "/queues", key="AKIDCAROL")[0] == 200
    written(keys, TEXT.replace("AKIDCAROL", "AKIDOTHER"))
    server.reload()

    assert smq(server, "GET", "/queues", key="AKIDCAROL")[1]["Code"] == "InvalidAccessKeyId"
    assert smq(server, "GET", "/queues")[0] == 200


def test_the_key_of_one_protocol_signs_in_no_other_ones_way(server: RunningServer) -> None:
    """What begins with MNS is no signature of SQS."""
    headers = headers_of(server, "POST", "/", b"{}", "AKIDOWNER") | {b"x-amz-target": b"AmazonSQS.ListQueues"}
    connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
    connection.request("POST", "/", b"{}", {name.decode(): value.decode() for name, value in headers.items()})
    answer = connection.getresponse()

    assert answer.status == 400
    assert "IncompleteSignature" in str(answer.headers["x-amzn-query-error"])
    connection.close()


@pytest.mark.parametrize(("method", "target", "body"), [
    ("GET", "/?Action=ListQueues", b""), ("POST", "/", b"Action=ListQueues"), ("POST", "/v1/queues/-/jobs/set", b"{}")
])  # fmt: skip
def test_a_signature_of_smq_opens_no_door_of_another_protocol(
    server: RunningServer, method: str, target: str, body: bytes
) -> None:
    """What is recognised by it is a request of SMQ, and there it asks for nothing."""
    status, error = smq(server, method, target, body)
    assert (status, error["Code"]) == (400, "InvalidRequestURL")


@pytest.mark.parametrize("version", [{}, {b"x-mns-version": b"2015-06-06"}])
def test_a_signature_of_sqs_opens_no_door_of_smq(server: RunningServer, version: dict[bytes, bytes]) -> None:
    """However genuine: it signs in another way what is asked here."""
    genuine = signed(f"{server.endpoint}/queues").headers
    headers = {name.lower().encode(): value.encode() for name, value in genuine.items()}
    status, error = ask(
        server, "GET", "/queues", headers=headers | version | {b"date": formatdate(usegmt=True).encode()}
    )
    code = "InvalidAuthorizationHeader" if version else "MissingVersionHeader"
    assert (status, error["Code"]) == (400, code)


def test_without_a_file_of_keys_nobody_is_asked() -> None:
    """Any key, or none, is the configured account; a digest is checked all the same."""
    with RunningServer() as server:
        assert smq(server, "PUT", "/queues/jobs", key="ANYBODY")[0] == 201
        version = {b"x-mns-version": b"2015-06-06"}
        assert ask(server, "POST", "/queues/jobs/messages", MESSAGE, headers=version)[0] == 201
        digest = version | {b"content-md5": hex_md5(b"other").encode()}
        assert ask(server, "POST", "/queues/jobs/messages", MESSAGE, headers=digest)[1]["Code"] == "InvalidDegist"
