"""Golden pairs: for each action the bytes of a request in both protocols, the command, a result, and the replies."""

import json
import re
import runpy
from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import msgspec
import pytest
from botocore.model import Shape as ModelShape
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.sqs_client import (
    form_of_request,
    header_fields,
    old_model,
    service_model,
    understood,
    understood_xml,
)
from tests.internals.wire.sqs.requests import CONTEXT, ID, ID_TEXT, QUEUE, SENT, UNHURRIED, URL, VIEW, message, received
from tests.internals.wire.sqs.test_members import is_accepted
from tests.tidy.tree import ROOT
from veilmq.core import commands as core
from veilmq.core.commands import LeaseChange, MoveStatus, MoveTask, QueuePage
from veilmq.core.errors import ReceiptInvalid, ReceiptState
from veilmq.core.messages import NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import CODES, SqsError
from veilmq.wire.sqs.json import decode as decode_json
from veilmq.wire.sqs.json import encode as encode_json
from veilmq.wire.sqs.members import AttributeValue, Shape
from veilmq.wire.sqs.query import (
    VALUE,
    QueryCall,
    action_of,
    decode,
    element_name,
    error_xml,
    form_of,
    key_name,
    response_xml,
)
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
    call = decode_json(pair.action, json.dumps(pair.request).encode(), CONTEXT)
    assert call.command == pair.command
    reply = encode_json(call, pair.result)
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


def result(**members: Any) -> str:
    text = response_xml("Do", Told(**members), "r-1").decode()
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


def test_an_action_that_answers_nothing_has_no_result() -> None:
    document = ET.fromstring(response_xml("Do", None, "r-1"))
    assert document.tag == f"{NAMESPACE}DoResponse"
    assert [child.tag for child in document] == [f"{NAMESPACE}ResponseMetadata"]
    assert document.findtext(f"{NAMESPACE}ResponseMetadata/{NAMESPACE}RequestId") == "r-1"


def test_an_error() -> None:
    assert error_xml(SqsError(errors.QUEUE_DOES_NOT_EXIST, "a < b"), "r-1").decode() == (
        '<?xml version="1.0"?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        "<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code><Message>a &lt; b</Message><Detail/>"
        "</Error><RequestId>r-1</RequestId></ErrorResponse>"
    )
    assert b"<Type>Receiver</Type><Code>InternalFailure</Code>" in error_xml(SqsError(errors.INTERNAL_FAILURE, ""), "")


@UNHURRIED
@given(text=st.text())
def test_a_text_comes_through(text: str) -> None:
    expected = "".join(character if is_accepted(character) else "\ufffd" for character in text)
    for document, place in [
        (response_xml("Do", Told(text=text), "r"), f"{NAMESPACE}DoResult/{NAMESPACE}Text"),
        (error_xml(SqsError(errors.INVALID_ADDRESS, text), "r"), f"{NAMESPACE}Error/{NAMESPACE}Message"),
    ]:
        assert ET.fromstring(document).findtext(place) == expected


# Golden bytes of the Query protocol: for each action a form and the XML that answers it.
#
# The same requests, commands and results as in ``PAIRS``; here they are bytes.

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
    Form("GetQueueUrl", "QueueName=orders", f"<GetQueueUrlResult><QueueUrl>{URL}</QueueUrl></GetQueueUrlResult>"),
    Form("ListQueues", "QueueNamePrefix=o&MaxResults=1",
        f"<ListQueuesResult><QueueUrl>{URL}</QueueUrl><NextToken>TFgCOcDh8KgaDvlBekrqkm9yZGVycw==</NextToken>"
        "</ListQueuesResult>"),
    Form("DeleteQueue", f"QueueUrl={QUOTED}", ""),
    Form("PurgeQueue", f"QueueUrl={QUOTED}", ""),
    Form("GetQueueAttributes", f"QueueUrl={QUOTED}&AttributeName.1=All",
        "<GetQueueAttributesResult><Attribute><Name>VisibilityTimeout</Name><Value>30</Value></Attribute>"
        "<Attribute><Name>MaximumMessageSize</Name><Value>1048576</Value></Attribute><Attribute>"
        "<Name>MessageRetentionPeriod</Name><Value>345600</Value></Attribute><Attribute>"
        "<Name>DelaySeconds</Name><Value>0</Value></Attribute><Attribute>"
        "<Name>ReceiveMessageWaitTimeSeconds</Name><Value>0</Value></Attribute><Attribute>"
        "<Name>SqsManagedSseEnabled</Name><Value>true</Value></Attribute><Attribute><Name>QueueArn</Name>"
        "<Value>arn:aws:sqs:us-east-1:000000000000:orders</Value></Attribute><Attribute>"
        "<Name>ApproximateNumberOfMessages</Name><Value>3</Value></Attribute><Attribute>"
        "<Name>ApproximateNumberOfMessagesNotVisible</Name><Value>2</Value></Attribute><Attribute>"
        "<Name>ApproximateNumberOfMessagesDelayed</Name><Value>1</Value></Attribute><Attribute>"
        "<Name>CreatedTimestamp</Name><Value>1700000000</Value></Attribute><Attribute>"
        "<Name>LastModifiedTimestamp</Name><Value>1700000060</Value></Attribute></GetQueueAttributesResult>"),
    Form("SetQueueAttributes", f"QueueUrl={QUOTED}&Attribute.1.Name=ReceiveMessageWaitTimeSeconds&Attribute.1.Value=20",
        ""),
    Form("TagQueue", f"QueueUrl={QUOTED}&Tag.1.Key=team&Tag.1.Value=a", ""),
    Form("UntagQueue", f"QueueUrl={QUOTED}&TagKey.1=team&TagKey.2=stage", ""),
    Form("ListQueueTags", f"QueueUrl={QUOTED}",
        "<ListQueueTagsResult><Tag><Key>team</Key><Value>a</Value></Tag></ListQueueTagsResult>"),
    Form("ListDeadLetterSourceQueues", f"QueueUrl={QUOTED}&MaxResults=1",
        "<ListDeadLetterSourceQueuesResult><QueueUrl>http://127.0.0.1:9324/000000000000/jobs</QueueUrl>"
        "<NextToken>zH8ky-MYYg4nkoyLPZN_ITAwMDAwMDAwMDAwMC9qb2Jz</NextToken>" "</ListDeadLetterSourceQueuesResult>"),
    Form("StartMessageMoveTask", "SourceArn=arn%3Aaws%3Asqs%3Aus-east-1%3A000000000000%3Aorders&"
        "DestinationArn=arn%3Aaws%3Asqs%3Aus-east-1%3A000000000000%3Ajobs&MaxNumberOfMessagesPerSecond=500",
        f"<StartMessageMoveTaskResult><TaskHandle>{HANDLE}</TaskHandle></StartMessageMoveTaskResult>"),
    Form("CancelMessageMoveTask", f"TaskHandle={HANDLE}",
        "<CancelMessageMoveTaskResult><ApproximateNumberOfMessagesMoved>2</ApproximateNumberOfMessagesMoved>"
        "</CancelMessageMoveTaskResult>"),
    Form("ListMessageMoveTasks", "SourceArn=arn%3Aaws%3Asqs%3Aus-east-1%3A000000000000%3Aorders&MaxResults=10",
        "<ListMessageMoveTasksResult><ListMessageMoveTasksResultEntry>" f"<TaskHandle>{HANDLE}</TaskHandle>"
        "<Status>RUNNING</Status><SourceArn>arn:aws:sqs:us-east-1:000000000000:orders</SourceArn>"
        "<DestinationArn>arn:aws:sqs:us-east-1:000000000000:jobs</DestinationArn>"
        "<MaxNumberOfMessagesPerSecond>500</MaxNumberOfMessagesPerSecond>"
        "<ApproximateNumberOfMessagesMoved>2</ApproximateNumberOfMessagesMoved>"
        "<ApproximateNumberOfMessagesToMove>7</ApproximateNumberOfMessagesToMove>"
        "<StartedTimestamp>1700000000123</StartedTimestamp></ListMessageMoveTasksResultEntry>"
        "</ListMessageMoveTasksResult>"),
    Form("AddPermission", f"QueueUrl={QUOTED}&Label=send&AWSAccountId.1=111111111111&ActionName.1=SendMessage", ""),
    Form("RemovePermission", f"QueueUrl={QUOTED}&Label=send", ""),
    Form("SendMessage", f"QueueUrl={QUOTED}&MessageBody=hello&DelaySeconds=5",
        "<SendMessageResult><MD5OfMessageBody>5d41402abc4b2a76b9719d911017c592</MD5OfMessageBody>"
        "<MessageId>00010203-0405-0607-0809-0a0b0c0d0e0f</MessageId></SendMessageResult>"),
    Form("SendMessageBatch",
        f"QueueUrl={QUOTED}&SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.MessageBody=hello&"
        "SendMessageBatchRequestEntry.2.Id=b&SendMessageBatchRequestEntry.2.MessageBody=",
        "<SendMessageBatchResult><SendMessageBatchResultEntry>"
        "<MD5OfMessageBody>5d41402abc4b2a76b9719d911017c592</MD5OfMessageBody>"
        "<MessageId>00010203-0405-0607-0809-0a0b0c0d0e0f</MessageId><Id>a</Id></SendMessageBatchResultEntry>"
        "<BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault><Code>MissingParameter</Code>"
        "<Message>The request must contain the parameter MessageBody.</Message>"
        "</BatchResultErrorEntry></SendMessageBatchResult>"),
    Form("ReceiveMessage",
        f"QueueUrl={QUOTED}&MaxNumberOfMessages=10&VisibilityTimeout=60&AttributeName.1=ApproximateReceiveCount",
        "<ReceiveMessageResult><Message><MessageId>00010203-0405-0607-0809-0a0b0c0d0e0f</MessageId>"
        "<ReceiptHandle>receipt-1</ReceiptHandle><MD5OfBody>5d41402abc4b2a76b9719d911017c592</MD5OfBody>"
        "<Body>hello</Body><Attribute><Name>ApproximateReceiveCount</Name>"
        "<Value>2</Value></Attribute></Message></ReceiveMessageResult>"),
    Form("DeleteMessage", f"QueueUrl={QUOTED}&ReceiptHandle=r", ""),
    Form("DeleteMessageBatch",
        f"QueueUrl={QUOTED}&DeleteMessageBatchRequestEntry.1.Id=a&DeleteMessageBatchRequestEntry.1.ReceiptHandle=r&"
        "DeleteMessageBatchRequestEntry.2.Id=b&DeleteMessageBatchRequestEntry.2.ReceiptHandle=s",
        "<DeleteMessageBatchResult><DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>"
        "<DeleteMessageBatchResultEntry><Id>b</Id></DeleteMessageBatchResultEntry></DeleteMessageBatchResult>"),
    Form("ChangeMessageVisibility", f"QueueUrl={QUOTED}&ReceiptHandle=r&VisibilityTimeout=0", ""),
    Form("ChangeMessageVisibilityBatch", f"QueueUrl={QUOTED}&ChangeMessageVisibilityBatchRequestEntry.1.Id=a&"
        "ChangeMessageVisibilityBatchRequestEntry.1.ReceiptHandle=r&"
        "ChangeMessageVisibilityBatchRequestEntry.1.VisibilityTimeout=43200&"
        "ChangeMessageVisibilityBatchRequestEntry.2.Id=b&" "ChangeMessageVisibilityBatchRequestEntry.2.ReceiptHandle=s&"
        "ChangeMessageVisibilityBatchRequestEntry.2.VisibilityTimeout=1",
        "<ChangeMessageVisibilityBatchResult><ChangeMessageVisibilityBatchResultEntry>"
        "<Id>a</Id></ChangeMessageVisibilityBatchResultEntry><BatchResultErrorEntry><Id>b</Id>"
        "<SenderFault>true</SenderFault><Code>ReceiptHandleIsInvalid</Code>"
        '<Message>The input receipt handle "s" is not a valid receipt handle.</Message>'
        "</BatchResultErrorEntry></ChangeMessageVisibilityBatchResult>"),
]  # fmt: skip

ASKED = {pair.action: pair for pair in PAIRS}


def decoded(action: str, form: str) -> QueryCall:
    """Return what the codec makes of ``form``, sent to the root of the server."""
    read = form_of(b"/", form.encode())
    assert action_of(read) == action.encode()
    return decode(action, read, CONTEXT)


@pytest.mark.parametrize("pair", [pytest.param(pair, id=pair.action) for pair in FORMS])
def test_golden_pair_in_query(pair: Form) -> None:
    """The form becomes the command of the golden pair in JSON, and its result those bytes."""
    asked = ASKED[pair.action]
    call = decoded(pair.action, f"Action={pair.action}&Version=2012-11-05&{pair.form}")
    assert call.command == asked.command
    reply = call.encode(asked.result)
    headers = header_fields(reply)
    assert (reply.status, headers["Content-Type"]) == (200, "text/xml")
    request_id = headers["x-amzn-RequestId"]
    assert reply.body.decode() == ENVELOPE.format(action=pair.action, result=pair.result, request_id=request_id)


@pytest.mark.parametrize("asked", [pytest.param(pair, id=pair.action) for pair in PAIRS])
def test_an_old_client_speaks_of_the_same(asked: Pair) -> None:
    """What it sends becomes the golden command, and it understands the golden reply, as a client of JSON does."""
    call = decoded(asked.action, form_of_request(asked.action, asked.request))
    assert call.command == asked.command
    assert understood_xml(asked.action, call.encode(asked.result)) == asked.reply


def test_every_action_has_a_golden_pair_in_query_too() -> None:
    """No action is without one: what ``PAIRS`` has in JSON is here in bytes of this protocol."""
    assert [pair.action for pair in FORMS] == list(ACTIONS)


# The reference page is what the tables say.

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "sqs_page.py"))
render, NEVER_RAISED = SCRIPT["render"], SCRIPT["NEVER_RAISED"]
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


def test_every_error_of_the_model_is_raised_or_told_never_to_be() -> None:
    """What an AWS client may be prepared for, and never meets here, is a known difference."""
    operations = [service_model().operation_model(action) for action in ACTIONS]
    documented = {shape.name for operation in operations for shape in operation.error_shapes}
    assert documented - {code.name for code in CODES} == set(NEVER_RAISED)
    for name, reason in NEVER_RAISED.items():
        assert f"| `{name}` | {reason} |\n" in render().partition("## Differences from Amazon SQS")[2]
