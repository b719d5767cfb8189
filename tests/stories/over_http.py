"""Tells a story to a server, over HTTP with boto3; polls and lost replies go over plain connections."""

import contextlib
import json
import select
from collections.abc import Iterator
from functools import singledispatchmethod
from http.client import HTTPConnection
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from tests.clients import boto
from tests.stories import story
from tests.stories.book import Book, Got
from veilmq.testing import RunningServer

SETTINGS = {
    "visibility_timeout_s": "VisibilityTimeout",
    "delay_s": "DelaySeconds",
    "retention_s": "MessageRetentionPeriod",
    "receive_wait_s": "ReceiveMessageWaitTimeSeconds",
    "fifo": "FifoQueue",
    "content_deduplication": "ContentBasedDeduplication",
    "deduplication_scope": "DeduplicationScope",
    "throughput_limit": "FifoThroughputLimit",
}
VALUES = {
    ("deduplication_scope", "group"): "messageGroup",
    ("throughput_limit", "group"): "perMessageGroupId",
    ("throughput_limit", "queue"): "perQueue",
}
COUNTERS = {
    "ApproximateNumberOfMessages": 0,
    "ApproximateNumberOfMessagesNotVisible": 1,
    "ApproximateNumberOfMessagesDelayed": 2,
}
DELETE_CODES = {"invalid": "ReceiptHandleIsInvalid"}
CHANGE_CODES = {
    "gone": "InvalidParameterValue",
    "too long": "InvalidParameterValue",
    "invalid": "ReceiptHandleIsInvalid",
}
FIFO_CODES = {"expired": "InvalidParameterValue", "superseded": "InvalidParameterValue"}
NO_QUEUE = "QueueDoesNotExist"
DELETED_LATELY = "QueueDeletedRecently"
PURGED_LATELY = "PurgeQueueInProgress"
PATIENCE_S = 60.0
_NUMBERS = count()


class HttpTeller:
    """Executes the steps of one story."""

    def __init__(self, server: RunningServer, book: Book | None = None) -> None:
        """`server` runs on the virtual clock; `book` is shared with what tells some of the steps.

        The server may be that of other stories: the queues of each have a prefix of their own.
        """
        self._server = server
        self._start_ms = server.clock.now_ms()
        self._sqs = boto.client(server.endpoint)
        self._prefix = f"s{next(_NUMBERS)}-"
        self._book = book or Book()
        self._urls: dict[str, str] = {}
        self._fifo: set[str] = set()
        self._polls: dict[str, tuple[str, HTTPConnection]] = {}

    def name(self, queue: str, *, fifo: bool) -> str:
        """Return the name on the server of a queue of this story."""
        if fifo:
            self._fifo.add(queue)
        return f"{self._prefix}{queue}{'.fifo' if fifo else ''}"

    def told_name(self, name: str | None) -> str | None:
        """Return the name in the story of a queue on the server."""
        return name and name.removesuffix(".fifo").removeprefix(self._prefix)

    def meet(self, queue: str, name: str) -> None:
        """Take note of a queue that was created elsewhere, under `name`."""
        self._urls[queue] = self._sqs.get_queue_url(QueueName=name)["QueueUrl"]

    def url(self, queue: str) -> str:
        """Return the URL of a queue."""
        return self._urls[queue]

    def go_on_with(self, server: RunningServer) -> None:
        """Tell the rest to `server`, which has the same queues."""
        self._sqs.close()
        self._server, self._sqs = server, boto.client(server.endpoint)
        self._urls = {name: server.endpoint + urlsplit(url).path for name, url in self._urls.items()}

    def counts(self, queue: str) -> story.Counts:
        """Return the counters of a queue."""
        self._server.settle()
        attributes = self._sqs.get_queue_attributes(QueueUrl=self._urls[queue], AttributeNames=list(COUNTERS))[
            "Attributes"
        ]
        visible, in_flight, delayed = (int(attributes[name]) for name in COUNTERS)
        return visible, in_flight, delayed

    def finish(self) -> None:
        """Delete the queues, close what is open; assert that no poll was left without its answer being told."""
        for url in self._urls.values():
            with contextlib.suppress(self._sqs.exceptions.QueueDoesNotExist):
                self._sqs.delete_queue(QueueUrl=url)
        self._sqs.close()
        for _, connection in self._polls.values():
            connection.close()
        assert list(self._polls) == []

    @singledispatchmethod
    def tell(self, action: Any) -> None:
        """Execute one step."""
        raise NotImplementedError(action)

    @tell.register
    def _(self, action: story.Queue) -> None:
        name = self.name(action.queue, fifo=bool(action.settings.get("fifo")))
        if action.too_soon:
            with expecting(DELETED_LATELY):
                self._sqs.create_queue(QueueName=name)
            return
        created = self._sqs.create_queue(QueueName=name, Attributes=self._attributes(action.settings))
        self._urls[action.queue] = created["QueueUrl"]

    @tell.register
    def _(self, action: story.Set) -> None:
        self._sqs.set_queue_attributes(QueueUrl=self._urls[action.queue], Attributes=self._attributes(action.settings))

    @tell.register
    def _(self, action: story.Send) -> None:
        members = {
            "DelaySeconds": action.delay_s,
            "MessageGroupId": action.group,
            "MessageDeduplicationId": action.dedup_id,
        }
        given = {name: value for name, value in members.items() if value is not None}
        sent = self._sqs.send_message(QueueUrl=self._urls[action.queue], MessageBody=action.body, **given)
        self._book.sent(action.body, sent["MessageId"], action.duplicate_of)

    @tell.register
    def _(self, action: story.SendMany) -> None:
        for each in action.sends:
            self.tell(each)

    @tell.register
    def _(self, action: story.Receive) -> None:
        more: dict[str, Any] = {} if action.timeout_s is None else {"VisibilityTimeout": action.timeout_s}
        if action.attempt is not None:
            more["ReceiveRequestAttemptId"] = action.attempt
        request = {
            "QueueUrl": self._urls[action.queue],
            "MaxNumberOfMessages": action.count,
            "MessageSystemAttributeNames": ["All"],
            **more,
        }
        if action.items is None:
            connection = self._ask(request)
            assert is_answered(connection, PATIENCE_S)  # the reply is on its way: nobody reads it
            connection.close()
        else:
            self._book.check(action.queue, action.items, self._got(self._sqs.receive_message(**request)))

    @tell.register
    def _(self, action: story.Delete) -> None:
        queue, text = self._book.find(action.handle)
        with expecting(self._codes(queue, DELETE_CODES).get(action.state)):
            self._sqs.delete_message(QueueUrl=self._urls[queue], ReceiptHandle=text)

    @tell.register
    def _(self, action: story.Change) -> None:
        queue, text = self._book.find(action.handle)
        with expecting(self._codes(queue, CHANGE_CODES).get(action.state)):
            self._sqs.change_message_visibility(
                QueueUrl=self._urls[queue], ReceiptHandle=text, VisibilityTimeout=action.timeout_s
            )

    @tell.register
    def _(self, action: story.Wait) -> None:
        self._server.advance(action.time_ms)

    @tell.register
    def _(self, action: story.Purge) -> None:
        with expecting(PURGED_LATELY if action.too_soon else None):
            self._sqs.purge_queue(QueueUrl=self._urls[action.queue])

    @tell.register
    def _(self, action: story.Drop) -> None:
        self._sqs.delete_queue(QueueUrl=self._urls[action.queue])

    @tell.register
    def _(self, action: story.Poll) -> None:
        more = {} if action.wait_s is None else {"WaitTimeSeconds": action.wait_s}
        if action.timeout_s is not None:
            more["VisibilityTimeout"] = action.timeout_s
        request = {"QueueUrl": self._urls[action.queue], "MessageSystemAttributeNames": ["All"], **more}
        parked = self._server.parked
        connection = self._ask(request)
        self._polls[action.poll] = (action.queue, connection)
        while self._server.parked == parked and not is_answered(connection, 0):
            pass  # each look passes through the server's loop once; a server that hangs ends in a timeout there

    @tell.register
    def _(self, action: story.Answer) -> None:
        queue, connection = self._polls[action.poll]
        self._server.settle()
        if action.outcome == "not yet":
            assert not is_answered(connection, 0)
            return
        assert is_answered(connection, PATIENCE_S), "no answer yet"
        del self._polls[action.poll]
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        if action.outcome == "no queue":
            assert (reply.status, answer["__type"].rpartition("#")[2]) == (400, NO_QUEUE)
        else:
            assert isinstance(action.outcome, tuple)
            assert reply.status == 200, answer
            self._book.check(queue, action.outcome, self._got(answer))

    @tell.register
    def _(self, action: story.HangUp) -> None:
        _, connection = self._polls.pop(action.poll)
        parked = self._server.parked
        connection.close()
        while self._server.parked == parked:
            pass  # until the server has seen it; see above

    def _ask(self, request: dict[str, Any]) -> HTTPConnection:
        where = urlsplit(self._server.endpoint)
        assert where.hostname is not None
        connection = HTTPConnection(where.hostname, where.port, timeout=PATIENCE_S)
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}
        connection.request("POST", "/", json.dumps(request), headers)
        return connection

    def _codes(self, queue: str, codes: dict[str, str]) -> dict[str, str]:
        return codes | FIFO_CODES if queue in self._fifo else codes

    def _attributes(self, settings: story.Settings) -> dict[str, str]:
        """Return settings as SQS names and writes them."""
        told = dict(settings)
        target, receives_max = told.pop("dead_letter_queue", None), told.pop("receives_max", None)
        written = {SETTINGS[name]: VALUES.get((name, str(value)), _text(value)) for name, value in told.items()}
        if target is not None:
            policy = {"deadLetterTargetArn": self._arn(str(target)), "maxReceiveCount": receives_max}
            written["RedrivePolicy"] = json.dumps(policy)
        return written

    def _arn(self, queue: str) -> str:
        answer = self._sqs.get_queue_attributes(QueueUrl=self._urls[queue], AttributeNames=["QueueArn"])
        arn: str = answer["Attributes"]["QueueArn"]
        return arn

    def _got(self, answer: Any) -> list[Got]:
        return [
            Got(
                body=each["Body"],
                receipt=each["ReceiptHandle"],
                count=int(each["Attributes"]["ApproximateReceiveCount"]),
                first_ms=int(each["Attributes"]["ApproximateFirstReceiveTimestamp"]) - self._start_ms,
                source=self.told_name(
                    each["Attributes"].get("DeadLetterQueueSourceArn", "").rpartition(":")[2] or None
                ),
            )
            for each in answer.get("Messages", [])
        ]


def _text(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_answered(connection: HTTPConnection, patience_s: float) -> bool:
    """Return whether bytes of an answer have come."""
    assert connection.sock is not None
    return bool(select.select([connection.sock], [], [], patience_s)[0])


@contextlib.contextmanager
def expecting(code: str | None) -> Iterator[None]:
    """Assert that the request within fails with `code`, or succeeds where it is `None`."""
    found = None
    try:
        yield
    except ClientError as error:
        found = error.response["Error"]["Code"].rpartition(".")[2]
    assert found == code
