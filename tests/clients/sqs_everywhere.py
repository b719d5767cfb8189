"""What leads to the errors of every action: those of a protocol, and those of signatures.

They are answered before it matters which action was asked for, so one action stands for all.
"""

import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any
from urllib.error import HTTPError

from botocore import UNSIGNED
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.clients.sqs_provocations import Provocation, asking
from tests.clients.sqs_stage import Stage
from tests.server.keys import OWNER, REGION, SECRETS, client

CLOCK_AHEAD_S = 600
"""How far the server's clock is ahead of its callers': within what signatures allow, beyond what a short URL does."""

ENDED = "2001-01-01T00:00:00Z"
"""When the session key of the credentials file ended."""

ANYWHERE: dict[str, Provocation] = {
    "UnknownOperationException": asking("Foo"),
    "SerializationException": asking("ListQueues", MaxResults="1"),
}
"""Name of an error in JSON → what leads to it."""

QUERY: dict[str, str] = {
    "InvalidAddress": "Action=PurgeQueue&QueueUrl=http%3A%2F%2Fh%2F",
    "MalformedInputException": "Action=ListQueues&MaxResults=1&MaxResults=2",
    "MalformedQueryStringException": "Action=ListQueues&QueueNamePrefix=%",
    "NoSuchVersionException": "Action=ListQueues&Version=1",
}
"""Name of an error in Query → the form that leads to it."""


def posted(stage: Stage, form: str) -> tuple[int, str]:
    """Return status and document of the reply to a form."""
    connection = HTTPConnection(stage.server.endpoint.removeprefix("http://"), timeout=60)
    connection.request("POST", "/", form, {"Content-Type": "application/x-www-form-urlencoded"})
    response = connection.getresponse()
    document = response.read().decode()
    connection.close()
    return response.status, document


def _listed(endpoint: str, *who: str, **how: Any) -> tuple[int, str]:
    return _refused(lambda: client(endpoint, *who, **how).list_queues())


def _refused(call: Callable[[], object]) -> tuple[int, str]:
    try:
        call()
    except ClientError as error:
        response: dict[str, Any] = dict(error.response)
        return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]
    raise AssertionError("it was not refused")


def _half_signed(endpoint: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{endpoint}/",
        b"{}",
        {
            "X-Amz-Target": "AmazonSQS.ListQueues",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDOWNER",
        },
    )
    return _opened(request, lambda error: str(error.headers["x-amzn-query-error"]).partition(";")[0])


def _presigned_and_late(endpoint: str) -> tuple[int, str]:
    request = AWSRequest("GET", f"{endpoint}/?Action=ListQueues")
    SigV4QueryAuth(Credentials("AKIDOWNER", SECRETS["AKIDOWNER"]), "sqs", REGION, expires=1).add_auth(request)
    return _opened(
        urllib.request.Request(str(request.url)),
        lambda error: error.read().decode().partition("<Code>")[2].partition("</Code>")[0],
    )


def _opened(request: urllib.request.Request, code: Callable[[HTTPError], str]) -> tuple[int, str]:
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except HTTPError as error:
        with error:
            return error.code, code(error)
    raise AssertionError("it was not refused")


def _of_another(endpoint: str) -> tuple[int, str]:
    client(endpoint).create_queue(QueueName="private")
    url = f"{endpoint}/{OWNER}/private"
    return _refused(lambda: client(endpoint, "AKIDFRIEND").send_message(QueueUrl=url, MessageBody="m"))


SIGNED: dict[str, Callable[[str], tuple[int, str]]] = {
    "MissingAuthenticationTokenException": lambda url: _listed(url, config=Config(signature_version=UNSIGNED)),
    "IncompleteSignatureException": _half_signed,
    "UnrecognizedClientException": lambda url: _listed(url, "AKIDNOBODY"),
    "InvalidSignatureException": lambda url: _listed(url, aws_secret_access_key="wrong"),
    "ExpiredTokenException": lambda url: _listed(url, "ASIDBOB"),
    "RequestExpiredException": _presigned_and_late,
    "AccessDeniedException": _of_another,
}
"""Name of an error of a server with credentials → what leads to it there: endpoint → status and code."""
