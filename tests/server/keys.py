"""A credentials file for tests with two accounts, users and an expiring key; clients that sign with its keys."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from veilmq.testing import RunningServer
from veilmq.wire.exchange import caller_named

OWNER, FRIEND = "111111111111", "222222222222"
REGION = "eu-west-1"
ARN = f"arn:aws:sqs:{REGION}:{OWNER}:jobs"
SECRETS = {"AKIDOWNER": "secret/of+owner", "AKIDCAROL": "secret of carol", "AKIDFRIEND": "friend's", "ASIDBOB": "bob's"}
TOKEN = "the/token+of=bob"

TEXT = f"""
[[accounts]]
id = "{OWNER}"
name = "the owner"

[[accounts.keys]]
id = "AKIDOWNER"
secret = "{SECRETS["AKIDOWNER"]}"

[[accounts.keys]]
id = "AKIDCAROL"
secret = "{SECRETS["AKIDCAROL"]}"
user = "carol"

[[accounts]]
id = "{FRIEND}"
name = "a friend"

[[accounts.keys]]
id = "AKIDFRIEND"
secret = "{SECRETS["AKIDFRIEND"]}"

[[accounts.keys]]
id = "ASIDBOB"
secret = "{SECRETS["ASIDBOB"]}"
user = "bob"
session_token = "{TOKEN}"
expires = 2100-01-01T00:00:00Z
"""


def written(path: Path, text: str = TEXT) -> Path:
    """Write a credentials file; return its path."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


def client(server: RunningServer | str, key: str = "AKIDOWNER", **other: Any) -> Any:
    """Return a boto3 client of a server (or its endpoint) that signs with ``key``; ``other`` arguments override."""
    arguments: dict[str, Any] = {
        "endpoint_url": server if isinstance(server, str) else server.endpoint,
        "region_name": REGION,
        "aws_access_key_id": key,
        "aws_secret_access_key": SECRETS.get(key, "none"),
        "aws_session_token": TOKEN if key.startswith("ASID") else None,
        "config": Config(retries={"total_max_attempts": 1}, read_timeout=60),
    }
    return boto3.client("sqs", **arguments | other)


def signed(
    url: str,
    key: str = "AKIDOWNER",
    *,
    method: str = "GET",
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    region: str = REGION,
    presigned_s: int | None = None,
) -> AWSRequest:
    """Return a request signed by botocore: in a header, or in the query, valid for ``presigned_s``."""
    request = AWSRequest(method, url, headers=headers, data=body)
    credentials = Credentials(key, SECRETS.get(key, "none"), TOKEN if key.startswith("ASID") else None)
    if presigned_s is None:
        SigV4Auth(credentials, "sqs", region).add_auth(request)
    else:
        SigV4QueryAuth(credentials, "sqs", region, expires=presigned_s).add_auth(request)
    return request


def signed_action(
    server: RunningServer | str, action: str, key: str = "AKIDOWNER", *, region: str = REGION, **members: Any
) -> bytes:
    """Return the bytes of a signed SQS request to a server (or its endpoint)."""
    endpoint = server if isinstance(server, str) else server.endpoint
    body = json.dumps(members).encode()
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    request = signed(f"{endpoint}/", key, method="POST", body=body, headers=headers, region=region)
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    head = ["POST / HTTP/1.1", f"Host: {urlsplit(endpoint).netloc}", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def sender_id(account: str, user: str) -> str:
    """Return the `SenderId` of a user's messages."""
    return caller_named(account, user).sender_id


def statement(**elements: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": {"AWS": FRIEND}, "Action": "sqs:SendMessage", "Resource": ARN} | elements


def set_policy(sqs: Any, url: str, *statements: dict[str, Any]) -> None:
    document = json.dumps({"Version": "2012-10-17", "Statement": list(statements)}) if statements else ""
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": document})


def denied(call: Any, **members: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**members)
    error = caught.value.response["Error"]
    assert error["Code"] == "AccessDenied"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    return str(error["Message"])
