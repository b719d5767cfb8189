"""A real server and raw requests to it: what the rows of the reference page are tried out with.

Stock clients will not send most of what is wrong, so requests are JSON over a socket; replies are taken apart as far as
a test needs them.
"""

import json
from http.client import HTTPConnection
from itertools import count
from typing import Any, NamedTuple, Self

from veilmq.testing import RunningServer

Attributes = dict[str, str]


class Reply(NamedTuple):
    """A reply: its status, the name of its error (empty for none), and its JSON."""

    status: int
    error: str
    body: dict[str, Any]


class Stage:
    """One server for many rows; each takes queues of its own."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self._connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, action: str, **members: Any) -> Reply:
        """Return the reply to a request with these members."""
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        self._connection.request("POST", "/", json.dumps(members), headers)
        response = self._connection.getresponse()
        body: dict[str, Any] = json.loads(response.read())
        return Reply(response.status, body.get("__type", "").partition("#")[2], body)

    def do(self, action: str, **members: Any) -> dict[str, Any]:
        """Return what an action answers; it must succeed."""
        reply = self.ask(action, **members)
        assert reply.status == 200, reply
        return reply.body

    def name(self) -> str:
        """Return a name that no queue had."""
        return f"q{next(self._numbers)}"

    def queue(self, **attributes: str) -> str:
        """Return the URL of a new standard queue."""
        url: str = self.do("CreateQueue", QueueName=self.name(), Attributes=attributes)["QueueUrl"]
        return url

    def fifo(self, **attributes: str) -> str:
        """Return the URL of a new FIFO queue."""
        given = {"FifoQueue": "true"} | attributes
        url: str = self.do("CreateQueue", QueueName=self.name() + ".fifo", Attributes=given)["QueueUrl"]
        return url

    def attributes(self, url: str, *names: str) -> Attributes:
        """Return those attributes of a queue that ``names`` name."""
        told: Attributes = self.do("GetQueueAttributes", QueueUrl=url, AttributeNames=names).get("Attributes", {})
        return told

    def arn(self, url: str) -> str:
        """Return the ARN of a queue."""
        return self.attributes(url, "QueueArn")["QueueArn"]

    def redrive(self, url: str, receives: int = 1) -> str:
        """Return a policy that sends dead letters to the queue at ``url``."""
        return f'{{"deadLetterTargetArn":"{self.arn(url)}","maxReceiveCount":{receives}}}'

    def receipt(self, url: str, **message: Any) -> str:
        """Send a message and receive it; return its receipt."""
        self.do("SendMessage", QueueUrl=url, MessageBody="m", **message)
        (received,) = self.do("ReceiveMessage", QueueUrl=url)["Messages"]
        handle: str = received["ReceiptHandle"]
        return handle

    def expired(self, url: str) -> str:
        """Return a receipt of a FIFO queue whose time is over."""
        handle = self.receipt(url, MessageGroupId="g", MessageDeduplicationId="d")
        self.server.advance(30_000)
        return handle

    def dead_letters(self) -> str:
        """Return the URL of a queue that another one names, with ten dead letters in it."""
        dead = self.queue()
        source = self.queue(RedrivePolicy=self.redrive(dead))
        entries = [{"Id": str(number), "MessageBody": "m"} for number in range(10)]
        self.do("SendMessageBatch", QueueUrl=source, Entries=entries)
        for _ in range(2):
            self.do("ReceiveMessage", QueueUrl=source, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return dead
