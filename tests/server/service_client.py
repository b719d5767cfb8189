"""A client of SQS on one connection, in either protocol; botocore serializes the Query protocol and parses replies."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from itertools import count
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from botocore.parsers import create_parser

from tests.clients.sqs_client import old_model, query_form

JSON, QUERY = "json", "query"
PROTOCOLS = (JSON, QUERY)
_numbers = count()


class SqsReply(NamedTuple):
    """A reply; ``code``, ``text`` and ``kind`` (the name of the error in JSON) are empty without an error."""

    status: int
    code: str
    text: str
    body: dict[str, Any]
    headers: dict[str, str]
    kind: str = ""


class ServiceClient:
    """A connection; each request has the ``headers``."""

    def __init__(self, endpoint: str, protocol: str, *, timeout_s: float = 120) -> None:
        self.protocol = protocol
        self.headers: dict[str, str] = {}
        self.address = endpoint.removeprefix("http://")
        self._connection = HTTPConnection(self.address, timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(self, action: str, **members: Any) -> SqsReply:
        if self.protocol == JSON:
            sent = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
            status, headers, body = self.send("POST", "/", json.dumps(members), sent)
            return _json_reply(status, headers, json.loads(body))
        return self.request_form(action, query_form(action, members))

    def request_form(self, action: str, form: str) -> SqsReply:
        """Send a request of the Query protocol with these parameters."""
        sent = {"Content-Type": "application/x-www-form-urlencoded"}
        status, headers, body = self.send("POST", "/", f"Action={action}&{form}", sent)
        output = old_model().operation_model(action).output_shape
        parsed = create_parser("query").parse({"status_code": status, "headers": headers, "body": body}, output)
        parsed.pop("ResponseMetadata")
        error = parsed.pop("Error", {})
        return SqsReply(status, error.get("Code", ""), error.get("Message", ""), parsed, headers)

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        reply = self.request(action, **members)
        assert reply.status == 200, reply
        return reply.body

    def get(self, path: str, headers: Mapping[str, str] | None = None, **parameters: str) -> tuple[int, str, str]:
        query = f"?{urlencode(parameters)}" if parameters else ""
        status, received, body = self.send("GET", path + query, None, headers or {})
        return status, received["content-type"], body.decode()

    def send(
        self, method: str, target: str, body: str | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        self._connection.request(method, target, body, {**headers, **self.headers})
        response = self._connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()

    def queue(self, **attributes: str) -> str:
        """Create a queue; return its URL."""
        name = fresh_name(fifo="FifoQueue" in attributes)
        url: str = self.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def fifo(self, **attributes: str) -> str:
        return self.queue(**{"FifoQueue": "true"} | attributes)

    def attributes(self, url: str, *names: str) -> dict[str, str]:
        """Return these attributes of a queue, by default all."""
        reply = self.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names or ["All"])
        found: dict[str, str] = reply.get("Attributes", {})
        return found

    def receive(self, url: str, **members: Any) -> list[dict[str, Any]]:
        reply = self.call("ReceiveMessage", QueueUrl=url, **{"MaxNumberOfMessages": 10} | members)
        messages: list[dict[str, Any]] = reply.get("Messages", [])
        return messages


def fresh_name(*, fifo: bool = False) -> str:
    return f"q{next(_numbers)}{'.fifo' if fifo else ''}"


def _json_reply(status: int, headers: dict[str, str], body: dict[str, Any]) -> SqsReply:
    if status == 200:
        return SqsReply(status, "", "", body, headers)
    code, _, fault = headers["x-amzn-query-error"].partition(";")
    assert fault in {"Sender", "Receiver"}
    return SqsReply(status, code, body.get("message", ""), body, headers, body["__type"].partition("#")[2])
