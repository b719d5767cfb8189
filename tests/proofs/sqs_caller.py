"""The SQS JSON protocol over one plain connection, without retries: an answer is a fact, no answer is none."""

import json
import random
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any

CALL_S_MAX = 10.0


class Unanswered(Exception):
    """The connection broke before the answer was there: nobody knows what happened."""


class Unreached(Unanswered):
    """There was no connection, or the server says so: nothing happened, for certain."""


class Refused(Exception):
    """The server answered with an error; `args[0]` is its text."""


class SqsCaller:
    """Calls one queue of one server; belongs to one thread."""

    def __init__(self, port: int, queue: str) -> None:
        """`queue` is a name; its URL is made up, as the server makes it."""
        self._port = port
        self._url = f"http://127.0.0.1:{port}/000000000000/{queue}"
        self._connection: HTTPConnection | None = None

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        """Return the answer; raises `Unanswered` and `Refused`."""
        connection = self._connection or self._connect()
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        body = json.dumps(members if action == "CreateQueue" else {"QueueUrl": self._url, **members})
        try:
            connection.request("POST", "/", body, headers)
            reply = connection.getresponse()
            status, text = reply.status, reply.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise Unanswered from error
        if status >= 500:
            raise (Unreached if b"nothing was done" in text else Unanswered)(text)
        if status != 200:
            raise Refused(text.decode())
        answer: dict[str, Any] = json.loads(text or b"{}")
        return answer

    def _connect(self) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=CALL_S_MAX)
        try:
            connection.connect()
        except OSError as error:
            raise Unreached from error
        self._connection = connection
        return connection

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class NodesCaller(SqsCaller):
    """Calls one queue that several servers have, each time through any of them; belongs to one thread."""

    def __init__(self, ports: Sequence[int], queue: str, chance: random.Random) -> None:
        """`chance` chooses."""
        super().__init__(ports[0], queue)
        self._nodes = [SqsCaller(port, queue) for port in ports]
        self._chance = chance

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        """Return the answer of whichever was asked; raises `Unanswered` and `Refused`."""
        return self._chance.choice(self._nodes).call(action, **members)

    def close(self) -> None:
        """Let go of all connections."""
        for node in self._nodes:
            node.close()
