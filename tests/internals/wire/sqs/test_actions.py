"""For each action a request, its command, a result and its reply, in both protocols; and each error of SQS."""

import inspect
import json
import re
import runpy
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import msgspec
import pytest
from botocore.exceptions import ClientError
from botocore.model import Shape as ModelShape
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.sqs_client import (
    MEMBERS,
    exceptions,
    form_of_request,
    header_fields,
    old_model,
    understood,
    understood_xml,
)
from tests.internals.wire.sqs.requests import (
    CONTEXT,
    ID,
    ID_TEXT,
    QUEUE,
    SENT,
    UNHURRIED,
    URL,
    VIEW,
    ask,
    message,
    received,
    refusal,
)
from tests.internals.wire.sqs.test_members import is_accepted
from tests.tidy.tree import ROOT
from veilmq.core import commands as core
from veilmq.core import errors as failures
from veilmq.core.commands import LeaseChange, MoveStatus, MoveTask, QueuePage
from veilmq.core.errors import ReceiptInvalid, ReceiptState
from veilmq.core.messages import NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.wire.exchange import Plan, Reply
from veilmq.wire.smq import errors as smq
from veilmq.wire.sqs import errors, query
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import ANSWERS, CODES, Code, SqsError, from_core
from veilmq.wire.sqs.json import decode as decode_json
from veilmq.wire.sqs.json import encode, encode_error
from veilmq.wire.sqs.members import AttributeValue, Shape
from veilmq.wire.sqs.policies import GRANTABLE
from veilmq.wire.sqs.query import (
    VALUE,
    action_of,
    decode,
    element_name,
    form_of,
    key_name,
)
from veilmq.wire.sqs.queues import Grant, Revoke
from veilmq.wire.v1 import request as v1

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
    Pair("CreateQueue", {"QueueName": "orders", "Attributes": {"VisibilityTimeout": "60", "DelaySeconds": "0"}},
        core.CreateQueue(queue=QUEUE, settings={"visibility_timeout_s": 60, "delay_s": 0}), VIEW, {"QueueUrl": URL}),
    Pair("GetQueueUrl", {"QueueName": "orders"}, core.ShowQueue(queue=QUEUE), VIEW, {"QueueUrl": URL}),
    Pair("ListQueues", {"QueueNamePrefix": "o", "MaxResults": 1}, core.ListQueues(account="000000000000", prefix="o",
        count=1), QueuePage(names=["orders"], more=True), {"QueueUrls": [URL],
        "NextToken": "TFgCOcDh8KgaDvlBekrqkm9yZGVycw=="}),
    Pair("DeleteQueue", {"QueueUrl": URL}, core.DeleteQueue(queue=QUEUE), None, {}),
    Pair("PurgeQueue", {"QueueUrl": URL}, core.PurgeQueue(queue=QUEUE), None, {}),
    Pair("GetQueueAttributes", {"QueueUrl": URL, "AttributeNames": ["All"]}, core.ShowQueue(queue=QUEUE, counts=True),
        VIEW, {"Attributes": {"VisibilityTimeout": "30", "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true", "QueueArn": "arn:aws:sqs:us-east-1:000000000000:orders",
        "ApproximateNumberOfMessages": "3", "ApproximateNumberOfMessagesNotVisible": "2",
        "ApproximateNumberOfMessagesDelayed": "1", "CreatedTimestamp": "1700000000",
        "LastModifiedTimestamp": "1700000060"}}),
    Pair("SetQueueAttributes", {"QueueUrl": URL, "Attributes": {"ReceiveMessageWaitTimeSeconds": "20"}},
        core.SetQueue(queue=QUEUE, settings={"receive_wait_s": 20}), None, {}),
    Pair("TagQueue", {"QueueUrl": URL, "Tags": {"team": "a"}}, core.TagQueue(queue=QUEUE, tags={"team": "a"}), None,
        {}),
    Pair("UntagQueue", {"QueueUrl": URL, "TagKeys": ["team", "stage"]}, core.TagQueue(queue=QUEUE, removed=("team",
        "stage")), None, {}),
    Pair("ListQueueTags", {"QueueUrl": URL}, core.ShowQueue(queue=QUEUE), msgspec.structs.replace(VIEW,
        settings=QueueSettings(tags={"team": "a"})), {"Tags": {"team": "a"}}),
    Pair("ListDeadLetterSourceQueues", {"QueueUrl": URL, "MaxResults": 1}, core.ListDeadLetterSources(queue=QUEUE,
        count=1), QueuePage(names=["000000000000/jobs"], more=True),
        {"queueUrls": ["http://127.0.0.1:9324/000000000000/jobs"],
        "NextToken": "zH8ky-MYYg4nkoyLPZN_ITAwMDAwMDAwMDAwMC9qb2Jz"}),
    Pair("StartMessageMoveTask", {"SourceArn": ARN, "DestinationArn": JOBS_ARN, "MaxNumberOfMessagesPerSecond": 500},
        core.StartMove(source=QUEUE, destination="000000000000/jobs", moves_per_s_max=500), TASK,
        {"TaskHandle": HANDLE}),
    Pair("CancelMessageMoveTask", {"TaskHandle": HANDLE}, core.CancelMove(source=QUEUE, task=ID), TASK,
        {"ApproximateNumberOfMessagesMoved": 2}),
    Pair("ListMessageMoveTasks", {"SourceArn": ARN, "MaxResults": 10}, core.ListMoves(source=QUEUE, count=10), [TASK],
        {"Results": [{"TaskHandle": HANDLE, "Status": "RUNNING", "SourceArn": ARN, "DestinationArn": JOBS_ARN,
        "MaxNumberOfMessagesPerSecond": 500, "ApproximateNumberOfMessagesMoved": 2,
        "ApproximateNumberOfMessagesToMove": 7, "StartedTimestamp": 1_700_000_000_123}]}),
    Pair("AddPermission", {"QueueUrl": URL, "Label": "send", "AWSAccountIds": ["111111111111"],
        "Actions": ["SendMessage"]}, core.EditQueue(queue=QUEUE, setting="policy", edit=Grant(STATEMENT)), None, {}),
    Pair("RemovePermission", {"QueueUrl": URL, "Label": "send"}, core.EditQueue(queue=QUEUE, setting="policy",
        edit=Revoke("send")), None, {}),
    Pair("SendMessage", {"QueueUrl": URL, "MessageBody": "hello", "DelaySeconds": 5}, core.Send(queue=QUEUE,
        messages=(NewMessage(body="hello", size_bytes=5, delay_s=5),)), [SENT], {"MD5OfMessageBody": MD5_OF_HELLO,
        "MessageId": ID_TEXT}),
    Pair("SendMessageBatch", {"QueueUrl": URL, "Entries": [{"Id": "a", "MessageBody": "hello"}, {"Id": "b",
        "MessageBody": ""}]}, core.Send(queue=QUEUE, messages=(NewMessage(body="hello", size_bytes=5),)), [SENT],
        {"Successful": [{"Id": "a", "MD5OfMessageBody": MD5_OF_HELLO, "MessageId": ID_TEXT}], "Failed": [{"Id": "b",
        "SenderFault": True, "Code": "MissingParameter",
        "Message": "The request must contain the parameter MessageBody."}]}),
    Pair("ReceiveMessage", {"QueueUrl": URL, "MaxNumberOfMessages": 10, "VisibilityTimeout": 60,
        "AttributeNames": ["ApproximateReceiveCount"]}, core.Receive(queue=QUEUE, count=10, timeout_s=60),
        received(message(receive_count=2)), {"Messages": [{"MessageId": ID_TEXT, "ReceiptHandle": "receipt-1",
        "MD5OfBody": MD5_OF_HELLO, "Body": "hello", "Attributes": {"ApproximateReceiveCount": "2"}}]}),
    Pair("DeleteMessage", {"QueueUrl": URL, "ReceiptHandle": "r"}, core.Delete(queue=QUEUE, receipts=("r",)),
        [ReceiptState.LIVE], {}),
    Pair("DeleteMessageBatch", {"QueueUrl": URL, "Entries": [{"Id": "a", "ReceiptHandle": "r"}, {"Id": "b",
        "ReceiptHandle": "s"}]}, core.Delete(queue=QUEUE, receipts=("r", "s")), [ReceiptState.EXPIRED,
        ReceiptState.LIVE], {"Successful": [{"Id": "a"}, {"Id": "b"}]}),
    Pair("ChangeMessageVisibility", {"QueueUrl": URL, "ReceiptHandle": "r", "VisibilityTimeout": 0},
        core.ChangeVisibility(queue=QUEUE, changes=(core.VisibilityChange(receipt="r", timeout_s=0),)), [LIVE], {}),
    Pair("ChangeMessageVisibilityBatch", {"QueueUrl": URL, "Entries": [{"Id": "a", "ReceiptHandle": "r",
        "VisibilityTimeout": 43_200}, {"Id": "b", "ReceiptHandle": "s", "VisibilityTimeout": 1}]},
        core.ChangeVisibility(queue=QUEUE, changes=(core.VisibilityChange(receipt="r", timeout_s=43_200),
        core.VisibilityChange(receipt="s", timeout_s=1))), [LIVE, ReceiptInvalid()], {"Successful": [{"Id": "a"}],
        "Failed": [{"Id": "b", "SenderFault": True, "Code": "ReceiptHandleIsInvalid",
        "Message": 'The input receipt handle "s" is not a valid receipt handle.'}]}),
]  # fmt: skip


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair.action) for pair in PAIRS])
def test_golden_pair(pair: Pair) -> None:
    """The request becomes that command, and its result that reply, for us and for a client."""
    call = decode_json(pair.action.encode(), json.dumps(pair.request).encode(), CONTEXT)
    assert call.command == pair.command
    reply = encode(call, pair.result)
    assert reply.status == 200
    assert msgspec.json.decode(reply.body) == pair.reply
    assert understood(pair.action, reply) == pair.reply


def test_every_action_has_a_golden_pair() -> None:
    assert [pair.action for pair in PAIRS] == list(ACTIONS)


# The same in the Query protocol.


def members_named(shape: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and shape of each member of ``shape``, and of the structures in it."""
    for name, member in getattr(shape, "members", {}).items():
        yield name, member
        for inner in (member, getattr(member, "member", None), getattr(member, "value", None)):
            yield from members_named(inner)


def named(shape: ModelShape, member: str) -> str:
    """Return the name in ``shape``'s place, which is ``member`` where the model has no other."""
    name: str = shape.serialization.get("name", member)
    return name


@pytest.mark.parametrize("action", sorted(old_model().operation_names))
def test_names_are_those_of_the_model(action: str) -> None:
    """Of every list and every map in every request and reply, also of actions that are not here; all are flattened."""
    operation = old_model().operation_model(action)
    for shape in (operation.input_shape, operation.output_shape):
        for name, member in members_named(shape):
            if member.type_name == "list":
                assert element_name(name, action) == named(member.member, name)
                assert member.serialization["flattened"]
            elif member.type_name == "map":
                element = element_name(name, action)
                assert element == named(member, name)
                assert (key_name(element), VALUE) == (named(member.key, "key"), named(member.value, "value"))
                assert member.serialization["flattened"]
            else:
                assert named(member, name) == name


# Replies in XML are well-formed whatever they hold, and say what they were given.

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


class Told(Shape, frozen=True, kw_only=True):
    """A reply with one member of each kind."""

    text: str | None = None
    number: int | None = None
    flag: bool | None = None
    names: list[str] | None = None
    tags: dict[str, str] | None = None
    settings: dict[str, AttributeValue] | None = None
    successful: list[AttributeValue] | None = None


def response_xml(**members: Any) -> bytes:
    return query._reply(lambda result: result, "Do", query.XML, Told(**members)).body


def result(**members: Any) -> str:
    text = response_xml(**members).decode()
    found = re.fullmatch(r".*<DoResult>(.*)</DoResult>.*", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("members", "inside"), [
    ({}, ""),
    ({"text": "", "number": 0, "flag": False}, "<Text></Text><Number>0</Number><Flag>false</Flag>"),
    ({"flag": True}, "<Flag>true</Flag>"), ({"names": ["a", "b"]}, "<Name>a</Name><Name>b</Name>"),
    ({"tags": {"a": "b"}}, "<Tag><Key>a</Key><Value>b</Value></Tag>"),
    ({"settings": {"a": AttributeValue(binary_value=b"hi", data_type="Binary")}},
        "<Setting><Name>a</Name><Value><BinaryValue>aGk=</BinaryValue><DataType>Binary</DataType></Value></Setting>"),
    ({"successful": [AttributeValue()]}, "<DoResultEntry></DoResultEntry>"),
    ({"names": [], "tags": {}}, ""), ({"text": "a<b>&\"'"}, "<Text>a&lt;b&gt;&amp;\"'</Text>"),
    ({"text": "\r\n\t"}, "<Text>&#xD;\n\t</Text>"), ({"text": "é中🎉"}, "<Text>é中🎉</Text>"),
    ({"tags": {"<": "\x00"}}, "<Tag><Key>&lt;</Key><Value>�</Value></Tag>"),
], ids=repr)  # fmt: skip
def test_what_is_written(members: dict[str, Any], inside: str) -> None:
    assert result(**members) == inside


@UNHURRIED
@given(text=st.text())
def test_a_text_comes_through(text: str) -> None:
    expected = "".join(character if is_accepted(character) else "\ufffd" for character in text)
    for document, place in [
        (response_xml(text=text), f"{NAMESPACE}DoResult/{NAMESPACE}Text"),
        (query.encode_error(SqsError(errors.INVALID_ADDRESS, text)).body, f"{NAMESPACE}Error/{NAMESPACE}Message"),
    ]:
        assert ET.fromstring(document).findtext(place) == expected


# Bytes of the Query protocol, of a form and of each kind of reply; all other actions are read as botocore writes them.

QUOTED = "http%3A%2F%2F127.0.0.1%3A9324%2F000000000000%2Forders"
ENVELOPE = (
    '<?xml version="1.0"?><{action}Response xmlns="http://queue.amazonaws.com/doc/2012-11-05/">{result}'
    "<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
)


class Form(NamedTuple):
    """What is sent beside ``Action`` and ``Version``, and what is between the beginning and the end of the reply."""

    action: str
    form: str
    result: str


FORMS = [
    Form("CreateQueue", "QueueName=orders&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=60&"
        "Attribute.2.Name=DelaySeconds&Attribute.2.Value=0",
        f"<CreateQueueResult><QueueUrl>{URL}</QueueUrl></CreateQueueResult>"),
    Form("DeleteQueue", f"QueueUrl={QUOTED}", ""),
    Form("ListQueueTags", f"QueueUrl={QUOTED}",
        "<ListQueueTagsResult><Tag><Key>team</Key><Value>a</Value></Tag></ListQueueTagsResult>"),
    Form("SendMessageBatch",
        f"QueueUrl={QUOTED}&SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.MessageBody=hello&"
        "SendMessageBatchRequestEntry.2.Id=b&SendMessageBatchRequestEntry.2.MessageBody=",
        "<SendMessageBatchResult><SendMessageBatchResultEntry>"
        "<MD5OfMessageBody>5d41402abc4b2a76b9719d911017c592</MD5OfMessageBody>"
        "<MessageId>00010203-0405-0607-0809-0a0b0c0d0e0f</MessageId><Id>a</Id></SendMessageBatchResultEntry>"
        "<BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault><Code>MissingParameter</Code>"
        "<Message>The request must contain the parameter MessageBody.</Message>"
        "</BatchResultErrorEntry></SendMessageBatchResult>"),
]  # fmt: skip

ASKED = {pair.action: pair for pair in PAIRS}


def decoded(action: str, form: str) -> Plan:
    """Return what the codec makes of ``form``, sent to the root of the server."""
    read = form_of(b"/", form.encode())
    assert action_of(read) == action.encode()
    return decode(action.encode(), read, CONTEXT)


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair.action) for pair in FORMS])
def test_golden_pair_in_query(pair: Form) -> None:
    """The form becomes the command of the golden pair in JSON, and its result those bytes."""
    asked = ASKED[pair.action]
    call = decoded(pair.action, f"Action={pair.action}&Version=2012-11-05&{pair.form}")
    assert call.command == asked.command
    reply = call.respond(asked.result)
    headers = header_fields(reply)
    assert (reply.status, headers["Content-Type"]) == (200, "text/xml")
    request_id = headers["x-amzn-RequestId"]
    assert reply.body.decode() == ENVELOPE.format(action=pair.action, result=pair.result, request_id=request_id)


@pytest.mark.parametrize("asked", [pytest.param(pair, id=pair.action) for pair in PAIRS])
def test_an_old_client_speaks_of_the_same(asked: Pair) -> None:
    """What it sends becomes the golden command, and it understands the golden reply, as a client of JSON does."""
    call = decoded(asked.action, form_of_request(asked.action, asked.request))
    assert call.command == asked.command
    assert understood_xml(asked.action, call.respond(asked.result)) == asked.reply


# The reference page is what the tables say.

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "sqs_page.py"))
render = SCRIPT["render"]
PAGE = ROOT / "docs" / "protocols" / "sqs.md"


def test_the_page_is_up_to_date() -> None:
    """If not: python scripts/sqs_page.py > docs/protocols/sqs.md."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_the_page_has_a_row_for_each_action_and_each_error() -> None:
    rows = {line.split(" | ")[0]: line.split(" | ") for line in render().splitlines() if line.startswith("| `")}
    for action in ACTIONS:
        assert rows[f"| `{action}`"][1].endswith("."), action
    for code in CODES:
        assert f"| `{code.name}`" in rows


# Each error of SQS: its code, its text, and where it is raised.


class Case(NamedTuple):
    """A request with ``members`` that is refused, or whose command has the ``result`` that is an error."""

    action: str
    code: Code
    members: dict[str, Any]
    text: str
    result: Any = None


NO_QUEUE = failures.QueueNotFound(QUEUE)
GONE = LeaseChange(state=ReceiptState.GONE)

GRANT = MEMBERS["AddPermission"]
CASES = [
    Case("CreateQueue", errors.INVALID_PARAMETER_VALUE, {"QueueName": "a.b"},
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"),
    Case("CreateQueue", errors.QUEUE_DELETED_RECENTLY, {"QueueName": "a"},
        "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
        failures.QueueDeletedRecently(QUEUE, 60)),
    Case("PurgeQueue", errors.PURGE_IN_PROGRESS, {},
        "Only one PurgeQueue operation on orders is allowed every 60 seconds.", failures.PurgeInProgress(QUEUE, 60)),
    Case("TagQueue", errors.INVALID_PARAMETER_VALUE, {"Tags": {"aws:a": "b"}}, "does not begin with aws:."),
    Case("UntagQueue", errors.INVALID_PARAMETER_VALUE, {"TagKeys": ["a*"]}, "A tag's key has 1 to 128 characters"),
    Case("ListDeadLetterSourceQueues", errors.INVALID_PARAMETER_VALUE, {"NextToken": "!"},
        "Invalid or expired next token"),
    Case("StartMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN,
        "MaxNumberOfMessagesPerSecond": 501},
        "Value 501 for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: Must be between 1 and 500"),
    Case("StartMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN},
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
        failures.MoveTaskRunning(QUEUE)),
    Case("StartMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN, "DestinationArn": ARN},
        f"Value {ARN} for parameter DestinationArn is invalid. Reason: Not that one.",
        failures.DestinationRefused(QUEUE, "Not that one.")),
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": "x"},
        "The resource that you specified for the SourceArn parameter doesn't exist."),
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN}, "for the SourceArn", NO_QUEUE),
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN, "DestinationArn": f"{ARN}-2"},
        "The resource that you specified for the DestinationArn parameter doesn't exist.",
        failures.QueueNotFound(f"{QUEUE}-2")),
    Case("CancelMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"TaskHandle": HANDLE}, "Task does not exist.",
        failures.MoveTaskNotFound()),
    Case("ListMessageMoveTasks", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN, "MaxResults": 11},
        "Value 11 for parameter MaxResults is invalid. Reason: Must be between 1 and 10, if provided."),
    Case("ListMessageMoveTasks", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN}, "for the SourceArn", NO_QUEUE),
    Case("CreateQueue", errors.QUEUE_NAME_EXISTS, {"QueueName": "a"},
        "A queue already exists with the same name and a different value for attribute DelaySeconds",
        failures.QueueExists(QUEUE, "delay_s")),
    Case("ListQueues", errors.INVALID_PARAMETER_VALUE, {"MaxResults": 0},
        "Value 0 for parameter MaxResults is invalid. Reason: Must be between 1 and 1000, if provided."),
    Case("ListQueues", errors.INVALID_PARAMETER_VALUE, {"NextToken": "!"}, "Invalid or expired next token"),
    Case("AddPermission", errors.INVALID_PARAMETER_VALUE, GRANT | {"Label": "a b"}, "Label can only include alpha"),
    Case("AddPermission", errors.INVALID_PARAMETER_VALUE, GRANT | {"AWSAccountIds": ["*"]},
        "Value [*] for parameter PrincipalId is invalid. Reason: Unable to verify."),
    Case("AddPermission", errors.INVALID_PARAMETER_VALUE, GRANT | {"Actions": ["SendMessage", "DeleteQueue"]},
        "Value SQS:DeleteQueue for parameter ActionName is invalid. "
        "Reason: Only the queue owner is allowed to invoke this action."),
    Case("AddPermission", errors.OVER_LIMIT, GRANT | {"Actions": list(GRANTABLE)},
        "8 Actions were found, maximum allowed is 7."),
    Case("RemovePermission", errors.INVALID_PARAMETER_VALUE, {"Label": "a"},
        "Value a for parameter Label is invalid. Reason: can't find label.",
        failures.EditRefused(errors.invalid_parameter("Label", "a", "can't find label."))),
    Case("SendMessage", errors.INVALID_MESSAGE_CONTENTS, {"MessageBody": "\x07"},
        "Invalid binary character '#x7' was found in the message body, the set of allowed characters is "
        "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]."),
    Case("SendMessage", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x", "DelaySeconds": 901},
        "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."),
    Case("SendMessage", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x"},
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
        [failures.MessageTooLong(1024)]),
    Case("SendMessage", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x", "MessageDeduplicationId": "d"},
        "Value d for parameter MessageDeduplicationId is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."),
    Case("ReceiveMessage", errors.INVALID_PARAMETER_VALUE, {"VisibilityTimeout": 43_201},
        "Value 43201 for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200, if provided."),
    Case("ReceiveMessage", errors.OVER_LIMIT, {}, "The maximum number of messages of this queue is in flight",
        received(over_limit=True)),
    Case("ReceiveMessage", errors.REQUEST_THROTTLED, {}, "The queue allows 3 receives a second",
        failures.ReceivesThrottled(3)),
    Case("ReceiveMessage", errors.INVALID_ATTRIBUTE_NAME, {"AttributeNames": ["Foo"]}, "Unknown Attribute Foo."),
    Case("GetQueueAttributes", errors.INVALID_ATTRIBUTE_NAME, {"AttributeNames": ["All", "Foo", "Bar"]},
        "Unknown Attribute Foo."),
    Case("ChangeMessageVisibility", errors.MISSING_PARAMETER, {"ReceiptHandle": "", "VisibilityTimeout": 1},
        "The request must contain the parameter ReceiptHandle."),
    Case("ReceiveMessage", errors.INVALID_ATTRIBUTE_NAME, {"MessageSystemAttributeNames": ["QueueArn"]},
        "Unknown Attribute QueueArn."),
    Case("ChangeMessageVisibility", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r", "VisibilityTimeout": -1},
        "Value -1 for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200, if provided."),
    Case("ChangeMessageVisibility", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r", "VisibilityTimeout": 43_200},
        "Value 43200 for parameter VisibilityTimeout is invalid. "
        "Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
        [failures.LeaseTooLong(43_200)]),
]  # fmt: skip


def reply_to(case: Case) -> Reply:
    if case.result is None:
        return encode_error(refusal(case.action, **case.members))
    return encode(ask(case.action, **case.members), case.result)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{i}-{case.action}-{case.code.name}") for i, case in enumerate(CASES)]
)
def test_a_client_understands_each_error(case: Case) -> None:
    """Status, header and body have the client raise the exception of that error, with that text."""
    reply = reply_to(case)
    assert reply.status == case.code.status
    assert header_fields(reply)["x-amzn-query-error"] == f"{case.code.query};{case.code.fault}"
    with pytest.raises(ClientError) as caught:
        understood(case.action, reply)
    error = caught.value.response["Error"]
    assert error["Code"] == case.code.query
    assert error["QueryErrorCode"] == case.code.name
    assert error["Type"] == "Sender"
    assert case.text in error["Message"]
    typed = getattr(exceptions(), case.code.name, ClientError)
    assert type(caught.value) is typed
    assert (typed is ClientError) == case.code.shape.startswith("com.amazon.coral.service#")


def test_every_code_is_promised_by_some_action() -> None:
    """And the page has the errors of each action."""
    tables = (SCRIPT[name].values() for name in ("ERRORS", "ENTRY_ERRORS", "BY_PROTOCOL"))
    promised = [*SCRIPT["EVERYWHERE"], *SCRIPT["WITH_CREDENTIALS"], *chain(*chain(*tables))]
    assert {code.name for code in promised} == {code.name for code in CODES}
    assert SCRIPT["ERRORS"].keys() == ACTIONS.keys()


@pytest.mark.parametrize("action", sorted(MEMBERS))
@pytest.mark.parametrize(("error", "code"), [
    pytest.param(failures.StoreFull(), errors.SERVICE_UNAVAILABLE, id="full"),
    pytest.param(failures.StoreUnavailable(), errors.SERVICE_UNAVAILABLE, id="unavailable"),
    pytest.param(failures.OutcomeUnknown(), errors.SERVICE_UNAVAILABLE, id="unknown"),
    pytest.param(failures.ShuttingDown(), errors.SERVICE_UNAVAILABLE, id="draining"),
    pytest.param(failures.InternalError(), errors.INTERNAL_FAILURE, id="defect"),
])  # fmt: skip
def test_our_own_failures_are_the_servers_fault(action: str, error: failures.VeilmqError, code: Code) -> None:
    """They have a status that clients retry, the fault Receiver, and the text of core."""
    reply = encode(ask(action, **MEMBERS[action]), error)
    assert reply.status == code.status >= 500
    assert header_fields(reply)["x-amzn-query-error"] == f"{code.query};Receiver"
    with pytest.raises(ClientError, match=str(error)[:20]):
        understood(action, reply)


def test_our_failure_in_a_batch_entry_is_not_the_senders_fault() -> None:
    """An entry that failed on our side says so."""
    call = ask("DeleteMessageBatch", **MEMBERS["DeleteMessageBatch"])
    (failed,) = understood("DeleteMessageBatch", encode(call, [failures.InternalError()]))["Failed"]
    assert (failed["Code"], failed["SenderFault"]) == ("InternalFailure", False)


def test_every_error_of_core_has_an_answer() -> None:
    """None of them is an unforeseen one, on whichever action or route it comes; those of claims are no action's."""
    kinds = {
        kind for _, kind in inspect.getmembers(failures, inspect.isclass) if issubclass(kind, failures.VeilmqError)
    }
    assert set(ANSWERS) | set(v1.ANSWERS) | set(smq.ANSWERS) >= kinds - {failures.VeilmqError, failures.CommandError}


def test_an_error_that_no_row_knows_says_nothing_of_itself() -> None:
    answer = from_core(failures.VeilmqError("secret"))
    assert answer.code is errors.INTERNAL_FAILURE
    assert "secret" not in answer.message


def test_an_error_repeats_little_of_what_was_sent() -> None:
    """A megabyte in a member does not come back in the error."""
    with pytest.raises(SqsError) as caught:
        decode_json(b"DeleteQueue", b'{"QueueUrl": "' + b"/" * 1_000_000 + b'"}', CONTEXT)
    assert caught.value.code is errors.INVALID_ADDRESS
    assert len(caught.value.message) < 400
