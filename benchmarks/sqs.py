"""A small blocking client of the AWS JSON 1.0 protocol for set-up, not part of any measured rate.

It signs nothing; the peers read region and service from an `Authorization` header, and get a made-up one.
"""

import http.client
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0"
TIMEOUT_S = 60.0


class SqsError(Exception):
    """The server replied with a status other than 200."""


class Sqs:
    """One keep-alive connection to the server at `port` on loopback."""

    def __init__(self, *, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def call(self, action: str, **members: object) -> dict[str, Any]:
        """Call an SQS action and return the decoded reply. Raises `SqsError`."""
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{action}",
            "Authorization": AUTHORIZATION,
        }
        self._connection.request("POST", "/", body=json.dumps(members), headers=headers)
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise SqsError(f"{action}: {reply.status} {text[:300].decode(errors='replace')}")
        return dict(json.loads(text)) if text else {}

    def create_queue(
        self, name: str, *, visibility_timeout_s: int = 3600, attributes: Mapping[str, str] | None = None
    ) -> str:
        """Create a queue whose received messages stay hidden for the whole benchmark; return its URL."""
        every = {"VisibilityTimeout": str(visibility_timeout_s), **(attributes or {})}
        return str(self.call("CreateQueue", QueueName=name, Attributes=every)["QueueUrl"])

    def messages(self, queue_url: str) -> int:
        """Return the number of messages in the queue, in any state."""
        attributes = self.call("GetQueueAttributes", QueueUrl=queue_url, AttributeNames=["All"])["Attributes"]
        return sum(int(value) for name, value in attributes.items() if name.startswith("ApproximateNumberOfMessages"))
