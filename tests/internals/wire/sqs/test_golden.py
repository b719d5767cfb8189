"""Golden pairs: for each action the bytes of a request, the command, a result, and the bytes of the reply."""

import json
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.clients.sqs_client import understood
from tests.internals.wire.sqs.asking import CONTEXT, ID, ID_TEXT, QUEUE, SENT, URL, VIEW, message, received
from veilmq.core import commands as core
from veilmq.core.commands import LeaseChange, MoveStatus, MoveTask, QueuePage
from veilmq.core.errors import ReceiptInvalid, ReceiptState
from veilmq.core.messages import NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.json import decode
from veilmq.wire.sqs.queues import Grant, Revoke

MD5_OF_HELLO = "5d41402abc4b2a76b9719d911017c592"
ARN = "arn:aws:sqs:us-east-1:000000000000:orders"
JOBS_ARN = "arn:aws:sqs:us-east-1:000000000000:jobs"
HANDLE = (
    "eyJ0YXNrSWQiOiIwMDAxMDIwMy0wNDA1LTA2MDctMDgwOS0wYTBiMGMwZDBlMGYiLCJzb3VyY2VBcm4iOiJhcm46YXdzOnNxczp1"
    "cy1lYXN0LTE6MDAwMDAwMDAwMDAwOm9yZGVycyJ9"
)
TASK = MoveTask(
    id=ID,
    source=QUEUE,
    destination="000000000000/jobs",
    moves_per_s_max=500,
    status=MoveStatus.RUNNING,
    messages_moved=2,
    messages_to_move=7,
    started_at_ms=1_700_000_000_123,
)
STATEMENT = {
    "Sid": "send",
    "Effect": "Allow",
    "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
    "Action": "SQS:SendMessage",
    "Resource": ARN,
}
LIVE = LeaseChange(state=ReceiptState.LIVE, visible_at_ms=1)


class Pair(NamedTuple):
    """What is sent, what it becomes, what the engine answers, what goes back."""

    action: str
    request: dict[str, Any]
    command: core.Command
    result: Any
    reply: dict[str, Any]


PAIRS = [
    Pair(
        "CreateQueue",
        {"QueueName": "orders", "Attributes": {"VisibilityTimeout": "60", "DelaySeconds": "0"}},
        core.CreateQueue(queue=QUEUE, settings={"visibility_timeout_s": 60, "delay_s": 0}),
        VIEW,
        {"QueueUrl": URL},
    ),
    Pair("GetQueueUrl", {"QueueName": "orders"}, core.ShowQueue(queue=QUEUE), VIEW, {"QueueUrl": URL}),
    Pair(
        "ListQueues",
        {"QueueNamePrefix": "o", "MaxResults": 1},
        core.ListQueues(account="000000000000", prefix="o", count=1),
        QueuePage(names=["orders"], more=True),
        {"QueueUrls": [URL], "NextToken": "TFgCOcDh8KgaDvlBekrqkm9yZGVycw=="},
    ),
    Pair("DeleteQueue", {"QueueUrl": URL}, core.DeleteQueue(queue=QUEUE), None, {}),
    Pair("PurgeQueue", {"QueueUrl": URL}, core.PurgeQueue(queue=QUEUE), None, {}),
    Pair(
        "GetQueueAttributes",
        {"QueueUrl": URL, "AttributeNames": ["All"]},
        core.ShowQueue(queue=QUEUE, counts=True),
        VIEW,
        {
            "Attributes": {
                "VisibilityTimeout": "30",
                "MaximumMessageSize": "1048576",
                "MessageRetentionPeriod": "345600",
                "DelaySeconds": "0",
                "ReceiveMessageWaitTimeSeconds": "0",
                "SqsManagedSseEnabled": "true",
                "QueueArn": "arn:aws:sqs:us-east-1:000000000000:orders",
                "ApproximateNumberOfMessages": "3",
                "ApproximateNumberOfMessagesNotVisible": "2",
                "ApproximateNumberOfMessagesDelayed": "1",
                "CreatedTimestamp": "1700000000",
                "LastModifiedTimestamp": "1700000060",
            }
        },
    ),
    Pair(
        "SetQueueAttributes",
        {"QueueUrl": URL, "Attributes": {"ReceiveMessageWaitTimeSeconds": "20"}},
        core.SetQueue(queue=QUEUE, settings={"receive_wait_s": 20}),
        None,
        {},
    ),
    Pair(
        "TagQueue", {"QueueUrl": URL, "Tags": {"team": "a"}}, core.TagQueue(queue=QUEUE, tags={"team": "a"}), None, {}
    ),
    Pair(
        "UntagQueue",
        {"QueueUrl": URL, "TagKeys": ["team", "stage"]},
        core.TagQueue(queue=QUEUE, removed=("team", "stage")),
        None,
        {},
    ),
    Pair(
        "ListQueueTags",
        {"QueueUrl": URL},
        core.ShowQueue(queue=QUEUE),
        msgspec.structs.replace(VIEW, settings=QueueSettings(tags={"team": "a"})),
        {"Tags": {"team": "a"}},
    ),
    Pair(
        "ListDeadLetterSourceQueues",
        {"QueueUrl": URL, "MaxResults": 1},
        core.ListDeadLetterSources(queue=QUEUE, count=1),
        QueuePage(names=["000000000000/jobs"], more=True),
        {
            "queueUrls": ["http://127.0.0.1:9324/000000000000/jobs"],
            "NextToken": "zH8ky-MYYg4nkoyLPZN_ITAwMDAwMDAwMDAwMC9qb2Jz",
        },
    ),
    Pair(
        "StartMessageMoveTask",
        {"SourceArn": ARN, "DestinationArn": JOBS_ARN, "MaxNumberOfMessagesPerSecond": 500},
        core.StartMove(source=QUEUE, destination="000000000000/jobs", moves_per_s_max=500),
        TASK,
        {"TaskHandle": HANDLE},
    ),
    Pair(
        "CancelMessageMoveTask",
        {"TaskHandle": HANDLE},
        core.CancelMove(source=QUEUE, task=ID),
        TASK,
        {"ApproximateNumberOfMessagesMoved": 2},
    ),
    Pair(
        "ListMessageMoveTasks",
        {"SourceArn": ARN, "MaxResults": 10},
        core.ListMoves(source=QUEUE, count=10),
        [TASK],
        {
            "Results": [
                {
                    "TaskHandle": HANDLE,
                    "Status": "RUNNING",
                    "SourceArn": ARN,
                    "DestinationArn": JOBS_ARN,
                    "MaxNumberOfMessagesPerSecond": 500,
                    "ApproximateNumberOfMessagesMoved": 2,
                    "ApproximateNumberOfMessagesToMove": 7,
                    "StartedTimestamp": 1_700_000_000_123,
                }
            ]
        },
    ),
    Pair(
        "AddPermission",
        {"QueueUrl": URL, "Label": "send", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
        core.EditQueue(queue=QUEUE, setting="policy", edit=Grant(STATEMENT)),
        None,
        {},
    ),
    Pair(
        "RemovePermission",
        {"QueueUrl": URL, "Label": "send"},
        core.EditQueue(queue=QUEUE, setting="policy", edit=Revoke("send")),
        None,
        {},
    ),
    Pair(
        "SendMessage",
        {"QueueUrl": URL, "MessageBody": "hello", "DelaySeconds": 5},
        core.Send(queue=QUEUE, messages=(NewMessage(body="hello", size_bytes=5, delay_s=5),)),
        [SENT],
        {"MD5OfMessageBody": MD5_OF_HELLO, "MessageId": ID_TEXT},
    ),
    Pair(
        "SendMessageBatch",
        {"QueueUrl": URL, "Entries": [{"Id": "a", "MessageBody": "hello"}, {"Id": "b", "MessageBody": ""}]},
        core.Send(queue=QUEUE, messages=(NewMessage(body="hello", size_bytes=5),)),
        [SENT],
        {
            "Successful": [{"Id": "a", "MD5OfMessageBody": MD5_OF_HELLO, "MessageId": ID_TEXT}],
            "Failed": [
                {
                    "Id": "b",
                    "SenderFault": True,
                    "Code": "MissingParameter",
                    "Message": "The request must contain the parameter MessageBody.",
                }
            ],
        },
    ),
    Pair(
        "ReceiveMessage",
        {
            "QueueUrl": URL,
            "MaxNumberOfMessages": 10,
            "VisibilityTimeout": 60,
            "AttributeNames": ["ApproximateReceiveCount"],
        },
        core.Receive(queue=QUEUE, count=10, timeout_s=60),
        received(message(receive_count=2)),
        {
            "Messages": [
                {
                    "MessageId": ID_TEXT,
                    "ReceiptHandle": "receipt-1",
                    "MD5OfBody": MD5_OF_HELLO,
                    "Body": "hello",
                    "Attributes": {"ApproximateReceiveCount": "2"},
                }
            ]
        },
    ),
    Pair(
        "DeleteMessage",
        {"QueueUrl": URL, "ReceiptHandle": "r"},
        core.Delete(queue=QUEUE, receipts=("r",)),
        [ReceiptState.LIVE],
        {},
    ),
    Pair(
        "DeleteMessageBatch",
        {"QueueUrl": URL, "Entries": [{"Id": "a", "ReceiptHandle": "r"}, {"Id": "b", "ReceiptHandle": "s"}]},
        core.Delete(queue=QUEUE, receipts=("r", "s")),
        [ReceiptState.EXPIRED, ReceiptState.LIVE],
        {"Successful": [{"Id": "a"}, {"Id": "b"}]},
    ),
    Pair(
        "ChangeMessageVisibility",
        {"QueueUrl": URL, "ReceiptHandle": "r", "VisibilityTimeout": 0},
        core.ChangeVisibility(queue=QUEUE, changes=(core.VisibilityChange(receipt="r", timeout_s=0),)),
        [LIVE],
        {},
    ),
    Pair(
        "ChangeMessageVisibilityBatch",
        {
            "QueueUrl": URL,
            "Entries": [
                {"Id": "a", "ReceiptHandle": "r", "VisibilityTimeout": 43_200},
                {"Id": "b", "ReceiptHandle": "s", "VisibilityTimeout": 1},
            ],
        },
        core.ChangeVisibility(
            queue=QUEUE,
            changes=(
                core.VisibilityChange(receipt="r", timeout_s=43_200),
                core.VisibilityChange(receipt="s", timeout_s=1),
            ),
        ),
        [LIVE, ReceiptInvalid()],
        {
            "Successful": [{"Id": "a"}],
            "Failed": [
                {
                    "Id": "b",
                    "SenderFault": True,
                    "Code": "ReceiptHandleIsInvalid",
                    "Message": 'The input receipt handle "s" is not a valid receipt handle.',
                }
            ],
        },
    ),
]


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair.action) for pair in PAIRS])
def test_golden_pair(pair: Pair) -> None:
    """The request becomes that command, and its result that reply, for us and for a client."""
    call = decode(pair.action, json.dumps(pair.request).encode(), CONTEXT)
    assert call.command == pair.command
    reply = call.encode(pair.result)
    assert reply.status == 200
    assert msgspec.json.decode(reply.body) == pair.reply
    assert understood(pair.action, reply) == pair.reply


def test_every_action_has_a_golden_pair() -> None:
    """No action is without one."""
    assert [pair.action for pair in PAIRS] == list(ACTIONS)
