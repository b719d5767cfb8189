"""Run a story over SQS (with boto3) or SMQ (with its official SDK); polls use plain connections."""

import contextlib
import json
import re
import select
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from itertools import count
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID
from xml.etree import ElementTree as ET

from botocore.exceptions import ClientError
from mns.account import Account
from mns.mns_exception import MNSServerException
from mns.queue import Message, Queue

from tests.clients import boto
from tests.clients.smq.raw import element, smq_request
from tests.stories.story import Action, Counts, ReceivedItem, Runner, Settings, Story, StoryState
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
COUNTERS = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]
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


class ServerRunner(Runner):
    """The common part of all protocols: the virtual clock and polls."""

    def __init__(self, server: RunningServer, state: StoryState) -> None:
        self._server = server
        self._start_ms = server.clock.now_ms()
        self._state = state
        self._polls: dict[str, tuple[str, HTTPConnection]] = {}

    def finish(self) -> None:
        """Close all connections; assert that each poll was answered."""
        for _, connection in self._polls.values():
            connection.close()
        assert list(self._polls) == []

    def run_wait(self, action: Action) -> None:
        self._server.advance(action.time_ms)

    def run_hang(self, action: Action) -> None:
        _, connection = self._polls.pop(action.poll)
        parked = self._server.parked
        connection.close()
        while self._server.parked == parked:
            pass  # until the server notices

    def _request(self, method: str, target: str, body: str = "", **headers: str) -> HTTPConnection:
        connection = HTTPConnection(self._server.endpoint.removeprefix("http://"), timeout=PATIENCE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, body or None, sent)
        return connection

    def _park(self, action: Action, send: Callable[[], HTTPConnection]) -> None:
        """Send a poll; return when it is parked or answered."""
        parked = self._server.parked
        connection = send()
        self._polls[action.poll] = (action.queue, connection)
        while self._server.parked == parked and not has_reply(connection, 0):
            pass  # `parked` runs in the server's loop, and times out if the server hangs

    def _reply(self, action: Action) -> tuple[str, int, bytes] | None:
        """Return queue, status and body of the reply to a poll; `None` if there must be none yet."""
        queue, connection = self._polls[action.poll]
        self._server.settle()
        if action.without == "not yet":
            assert not has_reply(connection, 0)
            return None
        assert has_reply(connection, PATIENCE_S), "no answer yet"
        del self._polls[action.poll]
        with contextlib.closing(connection):
            reply = connection.getresponse()
            return queue, reply.status, reply.read()


class SqsRunner(ServerRunner):
    def __init__(self, server: RunningServer, state: StoryState | None = None) -> None:
        """`state` is shared with the runner of another protocol. The queues of each story have their own prefix."""
        super().__init__(server, state or StoryState())
        self._sqs = boto.client(server.endpoint)
        self._prefix = f"s{next(_NUMBERS)}-"
        self._urls: dict[str, str] = {}
        self._fifo: set[str] = set()

    def name(self, queue: str, *, fifo: bool) -> str:
        if fifo:
            self._fifo.add(queue)
        return f"{self._prefix}{queue}{'.fifo' if fifo else ''}"

    def story_name(self, name: str | None) -> str | None:
        return name and name.removesuffix(".fifo").removeprefix(self._prefix)

    def add_queue(self, queue: str, name: str) -> None:
        self._urls[queue] = self._sqs.get_queue_url(QueueName=name)["QueueUrl"]

    def url(self, queue: str) -> str:
        return self._urls[queue]

    def reconnect(self, server: RunningServer) -> None:
        self._sqs.close()
        self._server, self._sqs = server, boto.client(server.endpoint)
        self._urls = {name: server.endpoint + urlsplit(url).path for name, url in self._urls.items()}

    def counts(self, queue: str) -> Counts:
        self._server.settle()
        fields = {"QueueUrl": self._urls[queue], "AttributeNames": COUNTERS}
        attributes = self._sqs.get_queue_attributes(**fields)["Attributes"]
        visible, in_flight, delayed = (int(attributes[name]) for name in COUNTERS)
        return visible, in_flight, delayed

    def finish(self) -> None:
        for url in self._urls.values():
            with contextlib.suppress(self._sqs.exceptions.QueueDoesNotExist):
                self._sqs.delete_queue(QueueUrl=url)
        self._sqs.close()
        super().finish()

    def run_queue(self, action: Action) -> None:
        name = self.name(action.queue, fifo=bool(action.settings.get("fifo")))
        if action.too_soon:
            with expecting(DELETED_LATELY):
                self._sqs.create_queue(QueueName=name)
            return
        created = self._sqs.create_queue(QueueName=name, Attributes=self._attributes(action.settings))
        self._urls[action.queue] = created["QueueUrl"]

    def run_set(self, action: Action) -> None:
        self._sqs.set_queue_attributes(QueueUrl=self._urls[action.queue], Attributes=self._attributes(action.settings))

    def run_send(self, action: Action) -> None:
        members = {
            "DelaySeconds": action.delay_s,
            "MessageGroupId": action.group,
            "MessageDeduplicationId": action.dedup_id,
        }
        given = {name: value for name, value in members.items() if value is not None}
        for body in action.bodies:
            sent = self._sqs.send_message(QueueUrl=self._urls[action.queue], MessageBody=body, **given)
            self._state.sent(body, sent["MessageId"], action.duplicate_of)

    def run_receive(self, action: Action) -> None:
        more: dict[str, Any] = {} if action.timeout_s is None else {"VisibilityTimeout": action.timeout_s}
        if action.attempt is not None:
            more["ReceiveRequestAttemptId"] = action.attempt
        request = {
            "QueueUrl": self._urls[action.queue],
            "MaxNumberOfMessages": action.count or 1,
            "MessageSystemAttributeNames": ["All"],
            **more,
        }
        if action.items is None:
            connection = self._receive(request)
            assert has_reply(connection, PATIENCE_S)  # the reply is lost
            connection.close()
        else:
            self._state.check(action.queue, action.items, self._got(self._sqs.receive_message(**request)))

    def run_delete(self, action: Action) -> None:
        queue, text = self._state.find(action)
        with expecting(self._codes(queue, DELETE_CODES).get(action.state)):
            self._sqs.delete_message(QueueUrl=self._urls[queue], ReceiptHandle=text)

    def run_change(self, action: Action) -> None:
        queue, text = self._state.find(action)
        with expecting(self._codes(queue, CHANGE_CODES).get(action.state)):
            self._sqs.change_message_visibility(
                QueueUrl=self._urls[queue], ReceiptHandle=text, VisibilityTimeout=action.timeout_s
            )

    def run_purge(self, action: Action) -> None:
        with expecting(PURGED_LATELY if action.too_soon else None):
            self._sqs.purge_queue(QueueUrl=self._urls[action.queue])

    def run_drop(self, action: Action) -> None:
        self._sqs.delete_queue(QueueUrl=self._urls[action.queue])

    def run_poll(self, action: Action) -> None:
        fields = {"WaitTimeSeconds": action.wait_s, "VisibilityTimeout": action.timeout_s}
        more = {name: value for name, value in fields.items() if value is not None}
        request = {"QueueUrl": self._urls[action.queue], "MessageSystemAttributeNames": ["All"], **more}
        self._park(action, lambda: self._receive(request))

    def run_answer(self, action: Action) -> None:
        if (reply := self._reply(action)) is not None:
            queue, status, body = reply
            answer = json.loads(body)
            if action.without == "no queue":
                assert (status, answer["__type"].rpartition("#")[2]) == (400, NO_QUEUE)
            else:
                assert status == 200, answer
                self._state.check(queue, action.items, self._got(answer))

    def _receive(self, request: dict[str, Any]) -> HTTPConnection:
        kind, target = "application/x-amz-json-1.0", "AmazonSQS.ReceiveMessage"
        return self._request("POST", "/", json.dumps(request), Content_Type=kind, X_Amz_Target=target)

    def _codes(self, queue: str, codes: dict[str, str]) -> dict[str, str]:
        return codes | FIFO_CODES if queue in self._fifo else codes

    def _attributes(self, settings: Settings) -> dict[str, str]:
        given = dict(settings)
        target, receives_max = given.pop("dead_letter_queue", None), given.pop("receives_max", None)
        written = {SETTINGS[name]: VALUES.get((name, str(value)), _text(value)) for name, value in given.items()}
        if target is not None:
            policy = {"deadLetterTargetArn": self._arn(str(target)), "maxReceiveCount": receives_max}
            written["RedrivePolicy"] = json.dumps(policy)
        return written

    def _arn(self, queue: str) -> str:
        answer = self._sqs.get_queue_attributes(QueueUrl=self._urls[queue], AttributeNames=["QueueArn"])
        arn: str = answer["Attributes"]["QueueArn"]
        return arn

    def _got(self, answer: Any) -> list[ReceivedItem]:
        return [
            ReceivedItem(
                body=each["Body"],
                receipt=each["ReceiptHandle"],
                count=int(each["Attributes"]["ApproximateReceiveCount"]),
                first_ms=int(each["Attributes"]["ApproximateFirstReceiveTimestamp"]) - self._start_ms,
                source=self.story_name(
                    each["Attributes"].get("DeadLetterQueueSourceArn", "").rpartition(":")[2] or None
                ),
            )
            for each in answer.get("Messages", [])
        ]


def _text(value: int | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def has_reply(connection: HTTPConnection, patience_s: float) -> bool:
    assert connection.sock is not None
    return bool(select.select([connection.sock], [], [], patience_s)[0])


@contextlib.contextmanager
def expecting(code: str | None) -> Iterator[None]:
    """Assert that the request fails with `code`, or succeeds if it is `None`."""
    found = None
    try:
        yield
    except ClientError as error:
        found = error.response["Error"]["Code"].rpartition(".")[2]
    except MNSServerException as error:
        found = error.type
    assert found == code


SMQ_SETTINGS = {
    "visibility_timeout_s": "VisibilityTimeout",
    "delay_s": "DelaySeconds",
    "retention_s": "MessageRetentionPeriod",
    "receive_wait_s": "PollingWaitSeconds",
    "fifo": "QueueType",
    "dead_letter_queue": "DeadLetterTargetQueue",
    "receives_max": "MaxReceiveCount",
}

SQS_ONLY: dict[str, Callable[[Action], bool]] = {
    "timeout of a receive": lambda action: getattr(action, "timeout_s", None) is not None,
    "release": lambda action: action.verb == "change" and action.timeout_s == 0,
    "expired receipt": lambda action: getattr(action, "state", "") == "expired",
    "stale receipt": lambda action: getattr(action, "state", "") == "earlier",
    "twelve hours": lambda action: getattr(action, "state", "") == "too long",
    "attempt": lambda action: getattr(action, "attempt", None) is not None,
    "deduplication": lambda action: action.verb == "send" and action.dedup_id is not None,
    "purge": lambda action: action.verb == "purge",
    "pause": lambda action: action.verb == "queue" and bool(action.too_soon),
    "setting": lambda action: any(name not in SMQ_SETTINGS for name in action.settings),
}
"""Why SMQ lacks a step → whether that is true of an action."""

_CODES = {"invalid": "ReceiptHandleError", "live": None}
_NOTHING = "MessageNotExist"
_NO_QUEUE = "QueueNotExist"


class SmqRunner(ServerRunner):
    """Run a story over SMQ, and the steps that it lacks over SQS: receipts pass from one protocol to the other.

    Deduplication ids of unmarked steps are left out; only FIFO queues of SQS need them.
    """

    def __init__(self, server: RunningServer, story: Story) -> None:
        super().__init__(server, StoryState())
        self._sqs = SqsRunner(server, self._state)
        self._sqs_only = {id(step.action): step.sqs_only for step in story.steps}
        self._account = Account(server.endpoint, "story", "runner")
        self._queues: dict[str, Queue] = {}

    def counts(self, queue: str) -> Counts:
        self._server.settle()
        shown = smq_request(self._server, "GET", self._target(queue))
        visible, in_flight, delayed = (
            int(shown.text(name)) for name in ("ActiveMessages", "InactiveMessages", "DelayMessages")
        )
        return visible, in_flight, delayed

    def finish(self) -> None:
        self._account.mns_client.close_connection()
        self._sqs.finish()
        super().finish()

    def run(self, action: Action) -> None:
        """Execute one step, over SQS if it is marked so or concerns a poll of SQS."""
        of_sqs = action.verb in {"answer", "hang"} and action.poll not in self._polls
        if action.verb != "queue" and (self._sqs_only.get(id(action)) or of_sqs):
            self._sqs.run(action)
        else:
            super().run(action)

    def run_queue(self, action: Action) -> None:
        name = self._sqs.name(action.queue, fifo=bool(action.settings.get("fifo")))
        if self._sqs_only[id(action)]:
            self._sqs.run(action)
        else:
            assert smq_request(self._server, "PUT", f"/queues/{name}", self._attributes(action.settings)).status == 201
            self._sqs.add_queue(action.queue, name)
        queue = self._queues[action.queue] = self._account.get_queue(name)
        queue.set_encoding(False)

    def run_set(self, action: Action) -> None:
        target = f"{self._target(action.queue)}?metaoverride=true"
        assert smq_request(self._server, "PUT", target, self._attributes(action.settings)).status == 204

    def run_send(self, action: Action) -> None:
        for body in action.bodies:
            message = Message(body, action.delay_s, message_group_id=action.group or "")
            sent = self._queues[action.queue].send_message(message)
            self._state.sent(body, str(UUID(sent.message_id)), action.duplicate_of)

    def run_receive(self, action: Action) -> None:
        if action.items is None:
            connection = self._begin(action.queue, "waitseconds=0")
            assert has_reply(connection, PATIENCE_S)  # the reply is lost
            connection.close()
            return
        got: list[Message] = []
        with expecting(None if action.items else _NOTHING):
            got = self._taken(self._queues[action.queue], action.count or 1)
        self._state.check(action.queue, action.items, [self._got(each) for each in got])

    def run_delete(self, action: Action) -> None:
        queue, text = self._state.find(action)
        with expecting(_CODES.get(action.state, _NOTHING)):
            self._queues[queue].delete_message(text)

    def run_change(self, action: Action) -> None:
        queue, text = self._state.find(action)
        with expecting(_CODES.get(action.state, _NOTHING)):
            changed = self._queues[queue].change_message_visibility(text, action.timeout_s)
            self._state.renew(action.receipt, changed.receipt_handle)

    def run_drop(self, action: Action) -> None:
        self._queues.pop(action.queue).delete()

    def run_poll(self, action: Action) -> None:
        query = "" if action.wait_s is None else f"waitseconds={action.wait_s}"
        self._park(action, lambda: self._begin(action.queue, query))

    def run_answer(self, action: Action) -> None:
        if (reply := self._reply(action)) is not None:
            queue, status, body = reply
            answer = ET.fromstring(re.sub(rb' xmlns="[^"]*"', b"", body))
            if action.items:
                assert status == 200
                self._state.check(queue, action.items, [self._read(answer)])
            else:
                assert (status, answer.findtext("Code")) == (404, _NO_QUEUE if action.without else _NOTHING)

    def _target(self, queue: str) -> str:
        return f"/queues/{self._queues[queue].queue_name}"

    def _attributes(self, settings: Settings) -> str:
        given = "".join(element(SMQ_SETTINGS[name], self._text(name, value)) for name, value in settings.items())
        return f"<Queue>{given}</Queue>"

    def _text(self, name: str, value: int | bool | str) -> str:
        if name == "dead_letter_queue":
            return str(self._queues[str(value)].queue_name)
        return "fifo" if name == "fifo" else str(value)

    def _begin(self, queue: str, query: str) -> HTTPConnection:
        return self._request("GET", f"{self._target(queue)}/messages?{query}", x_mns_version="2015-06-06")

    def _taken(self, queue: Queue, count: int) -> list[Message]:
        if count == 1:
            return [queue.receive_message()]
        found: list[Message] = queue.batch_receive_message(count)
        return found

    def _got(self, message: Message) -> ReceivedItem:
        system = {str(name): value.string_value for name, value in message.get_system_properties().items()}
        return ReceivedItem(
            body=message.message_body,
            receipt=message.receipt_handle,
            count=message.dequeue_count,
            first_ms=message.first_dequeue_time - self._start_ms,
            source=self._source(system.get("DLQSourceArn")),
        )

    def _source(self, arn: str | None) -> str | None:
        return self._sqs.story_name(arn and arn.rpartition("/")[2])

    def _read(self, message: ET.Element) -> ReceivedItem:
        system = {each.findtext("Name"): each.findtext("Value") for each in message.iter("SystemPropertyValue")}
        return ReceivedItem(
            body=message.findtext("MessageBody", ""),
            receipt=message.findtext("ReceiptHandle", ""),
            count=int(message.findtext("DequeueCount", "")),
            first_ms=int(message.findtext("FirstDequeueTime", "")) - self._start_ms,
            source=self._source(system.get("DLQSourceArn")),
        )
