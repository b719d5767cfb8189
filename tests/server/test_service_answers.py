"""Replies that were recorded from Amazon SQS: codes, statuses and texts, through both protocols and on both stores."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.server.service_client import JSON, PROTOCOLS, QUERY, ServiceClient, SqsReply, fresh_name
from tests.store.postgres_host import emptied
from veilmq.testing import RunningServer

ACCOUNT = "000000000000"


@pytest.fixture(scope="module", params=["memory", "postgres"])
def served(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server on each store, without a pause between purges."""
    settings = emptied(request.getfixturevalue("postgres_url")) if request.param == "postgres" else {}
    with RunningServer(purge_pause_s=0, **settings) as running:
        yield running


@pytest.fixture(params=PROTOCOLS)
def sqs(request: pytest.FixtureRequest, served: RunningServer) -> Iterator[ServiceClient]:
    with ServiceClient(served.endpoint, request.param) as client:
        yield client


@pytest.fixture
def web(served: RunningServer) -> Iterator[ServiceClient]:
    """A client of the Query protocol."""
    with ServiceClient(served.endpoint, QUERY) as client:
        yield client


class Row(NamedTuple):
    """A request and its error; veilmq may append to the text."""

    request: Callable[[ServiceClient], SqsReply]
    code: str
    text: str
    status: int = 400


INVALID, MISSING = "InvalidParameterValue", "MissingParameter"
KINDS = {INVALID: "InvalidParameterValueException", MISSING: "MissingRequiredParameterException"}
"""Code → the name of the error in JSON, if that is not the code."""
NAME, VALUE = "InvalidAttributeName", "InvalidAttributeValue"


def _batch(**entry: Any) -> Callable[[ServiceClient], SqsReply]:
    def request(sqs: ServiceClient) -> SqsReply:
        entries = [
            {"Id": "good", "MessageBody": "g", "MessageGroupId": "g", "MessageDeduplicationId": "d"},
            {"Id": "bad", "MessageBody": "b", **entry},
        ]
        url = sqs.fifo()
        reply = sqs.request("SendMessageBatch", QueueUrl=url, Entries=entries)
        assert sqs.receive(url) == [], "no message of the batch is stored"
        return reply

    return request


def _on(action: str, *, fifo: bool = False, **members: Any) -> Callable[[ServiceClient], SqsReply]:
    return lambda sqs: sqs.request(action, QueueUrl=sqs.fifo() if fifo else sqs.queue(), **members)


def _create(**members: Any) -> Callable[[ServiceClient], SqsReply]:
    return lambda sqs: sqs.request("CreateQueue", **{"QueueName": fresh_name()} | members)


def _foreign(action: str, **members: Any) -> Callable[[ServiceClient], SqsReply]:
    def request(sqs: ServiceClient) -> SqsReply:
        url = sqs.queue()
        sqs.call("SendMessage", QueueUrl=url, MessageBody="m")
        (message,) = sqs.receive(url)
        return sqs.request(action, QueueUrl=sqs.queue(), ReceiptHandle=message["ReceiptHandle"], **members)

    return request


def _same_label(sqs: ServiceClient) -> SqsReply:
    members = {"QueueUrl": sqs.queue(), "Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    sqs.call("AddPermission", **members)
    return sqs.request("AddPermission", **members)


def _no_label(sqs: ServiceClient) -> SqsReply:
    url = sqs.queue()
    sqs.call("AddPermission", QueueUrl=url, Label="l", AWSAccountIds=["111111111111"], Actions=["SendMessage"])
    return sqs.request("RemovePermission", QueueUrl=url, Label="other")


def _too_many_tags(sqs: ServiceClient) -> SqsReply:
    return sqs.request("TagQueue", QueueUrl=sqs.queue(), Tags={f"t{n}": "v" for n in range(51)})


def _too_many_tags_in_turn(sqs: ServiceClient) -> SqsReply:
    url = sqs.queue()
    sqs.call("TagQueue", QueueUrl=url, Tags={f"t{n}": "v" for n in range(50)})
    return sqs.request("TagQueue", QueueUrl=url, Tags={"more": "v"})


def _set(name: str, text: str) -> Callable[[ServiceClient], SqsReply]:
    return _on("SetQueueAttributes", Attributes={name: text})


def _attribute(name: str, **value: Any) -> Callable[[ServiceClient], SqsReply]:
    return _on("SendMessage", MessageBody="m", MessageAttributes={name: value})


_BY_RECEIPT: list[tuple[str, str, dict[str, Any]]] = [
    ("delete", "DeleteMessage", {}),
    ("change", "ChangeMessageVisibility", {"VisibilityTimeout": 1}),
]
_LACKING: dict[str, dict[str, Any]] = {"no receipt": {}, "an empty receipt": {"ReceiptHandle": ""}}
GROUP = "The request must contain the parameter MessageGroupId."
DEDUPLICATION = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)
REDRIVE = {
    "{}": "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
    '{"maxReceiveCount":5}': "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
    '{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}': "Invalid value for deadLetterTargetArn.",
    '{"deadLetterTargetArn":"arn:aws:sns:us-east-1:000000000000:t","maxReceiveCount":4}':
        "Only SQS queues are valid resources for deadLetterTargetArn.",
    **{f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:no","maxReceiveCount":{count}}}':
        f"Invalid value for maxReceiveCount: {shown}, valid values are from 1 to 1000 both inclusive."
        for count, shown in {"0": "0", "1001": "1001", "1.5": "1.5", "true": "true", '"x"': "x"}.items()},
    f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:no","maxReceiveCount":4,"more":1}}':
        "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].",
    f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:nowhere","maxReceiveCount":4}}':
        "Dead letter target does not exist.",
    '{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:999999999999:theirs","maxReceiveCount":4}':
        "Dead-letter target owner should be same as the source.",
}  # fmt: skip
"""RedrivePolicy → the reason of its error."""
REDRIVE_ALLOW = {
    '{"redrivePermission": "byQueue"}': "When you specify the byQueue permission type, you must also specify one or "
        "more sourceQueueArns values.",
    '{"redrivePermission": "allowAll", "sourceQueueArns": []}': "To specify one or more source queue ARNs, you must "
        "set redrivePermission to byQueue.",
}  # fmt: skip
UNSUPPORTED = [
    '{"redrivePermission":"some"}', "{}", '{"redrivePermission":"allowAll","more":1}',
    '{"redrivePermission":"byQueue","sourceQueueArns":"arn:aws:sqs"}', "[]", "nonsense",
]  # fmt: skip
ROWS: dict[str, Row] = {
    "2 batch without a group": Row(_batch(MessageDeduplicationId="e"), INVALID, GROUP),
    "2 message without a group": Row(_on("SendMessage", fifo=True, MessageBody="m", MessageDeduplicationId="d"),
        MISSING, GROUP),
    "3 batch without a deduplication id": Row(_batch(MessageGroupId="g"), INVALID, DEDUPLICATION),
    "3 message without a deduplication id": Row(_on("SendMessage", fifo=True, MessageBody="m", MessageGroupId="g"),
        INVALID, DEDUPLICATION),
    **{f"10 {what} by garbage": Row(_on(action, ReceiptHandle="garbage", **members), "ReceiptHandleIsInvalid",
        'The input receipt handle "garbage" is not a valid receipt handle.', 404) for what, action,
        members in _BY_RECEIPT},
    **{f"10 {what} by a receipt of another queue": Row(_foreign(action, **members), "ReceiptHandleIsInvalid",
        "The input receipt handle is invalid.", 404) for what, action, members in _BY_RECEIPT},
    **{f"delete by {what}": Row(_on("DeleteMessage", **members), MISSING,
        "The request must contain the parameter MessageHandle.") for what, members in _LACKING.items()},
    "15 a FIFO queue stays one": Row(_on("SetQueueAttributes", fifo=True, Attributes={"FifoQueue": "false"}), VALUE,
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."),
    "15 a standard queue stays one": Row(_on("SetQueueAttributes", Attributes={"FifoQueue": "true"}), NAME,
        "Unknown Attribute FifoQueue."),
    "17 a label that is not there": Row(_no_label, INVALID,
        "Value other for parameter Label is invalid. Reason: can't find label on existing policy."),
    "17 a label where there is no policy": Row(_on("RemovePermission", Label="l"), INVALID,
        "Value l for parameter Label is invalid. Reason: can't find label."),
    "18 a permission without actions": Row(_on("AddPermission", Label="l", AWSAccountIds=["111111111111"], Actions=[]),
        MISSING, "The request must contain the parameter Actions."),
    "18 a label that is there": Row(_same_label, INVALID,
        "Value l for parameter Label is invalid. Reason: Already exists."),
    "18 a permission without accounts": Row(_on("AddPermission", Label="l", AWSAccountIds=[], Actions=["SendMessage"]),
        INVALID, "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify."),
    "19 an empty name": Row(_create(QueueName=""), INVALID,
        "Value for parameter QueueName is invalid. Reason: Must specify a queue name."),
    "19 the URL of an empty name": Row(lambda sqs: sqs.request("GetQueueUrl", QueueName=""), INVALID,
        "Value for parameter QueueName is invalid. Reason: Must specify a queue name."),
    "22 an attribute of an unknown type": Row(_attribute("a", DataType="Decimal", StringValue="1"), INVALID,
        "The type of message (user) attribute 'a' is invalid. You must use only the following supported type "
        "prefixes: Binary, Number, String."),
    "23 untagging nothing": Row(_on("UntagQueue", TagKeys=[]), INVALID,
        "Tag keys must be between 1 and 128 characters in length."),
    "23 too many tags": Row(_too_many_tags, INVALID, "Too many tags added for queue q"),
    "23 too many tags in two requests": Row(_too_many_tags_in_turn, INVALID, "Too many tags added for queue q"),
    "24 deduplication scope": Row(_create(Attributes={"DeduplicationScope": "queue"}), NAME,
        "You can specify the DeduplicationScope only when FifoQueue is set to true."),
    "24 throughput limit": Row(_create(Attributes={"FifoThroughputLimit": "perQueue"}), NAME,
        "You can specify the FifoThroughputLimit only when FifoQueue is set to true."),
    "24 content-based deduplication": Row(_create(Attributes={"ContentBasedDeduplication": "true"}), NAME,
        "Unknown Attribute ContentBasedDeduplication."),
    "24 FifoQueue false": Row(_create(Attributes={"FifoQueue": "false"}), NAME, "Unknown Attribute FifoQueue."),
    "set no attributes": Row(_on("SetQueueAttributes", Attributes={}), MISSING,
        "The request must contain the parameter Attribute.Name."),
    "two kinds of encryption": Row(_on("SetQueueAttributes", Attributes={"SqsManagedSseEnabled": "true",
        "KmsMasterKeyId": "k"}), NAME,
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."),
    "throughput by group alone": Row(_on("SetQueueAttributes", fifo=True,
        Attributes={"FifoThroughputLimit": "perMessageGroupId"}), VALUE,
        "Invalid value for the parameter FifoThroughputLimit. Reason: The perMessageGroupId value is allowed only "
        "when the value for DeduplicationScope is messageGroup"),
    "redrive policy that is no JSON": Row(_set("RedrivePolicy", "nonsense"), VALUE,
        "Invalid value for the parameter RedrivePolicy. Reason: Redrive policy is not a valid JSON map."),
    **{f"redrive policy {text}": Row(_set("RedrivePolicy", text), INVALID,
        f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}") for text, reason in REDRIVE.items()},
    **{f"redrive allow policy {text}": Row(_set("RedriveAllowPolicy", text), INVALID,
        f"Value {text} for parameter RedriveAllowPolicy is invalid. Reason: Amazon SQS can't create the redrive allow "
        f"policy. {reason}") for text, reason in REDRIVE_ALLOW.items()},
    **{f"redrive allow policy {text}": Row(_set("RedriveAllowPolicy", text), VALUE,
        "Invalid value for the parameter RedriveAllowPolicy. Reason: Amazon SQS can't create the redrive allow "
        "policy, as it’s in an unsupported format.") for text in UNSUPPORTED},
    "attribute without a name": Row(_attribute("", DataType="String", StringValue="x"), INVALID,
        "The request must contain non-empty message (user) attribute names."),
    "attribute without a value": Row(_attribute("a", DataType="String", StringValue=""), INVALID,
        "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
    "attribute that is no number": Row(_attribute("a", DataType="Number", StringValue="x"), INVALID,
        "Can't cast the value of message (user) attribute 'a' to a number."),
    "attribute with a reserved name": Row(_attribute("AWS.a", DataType="String", StringValue="x"), INVALID,
        "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for "
        "internal use."),
    "attribute with a long name": Row(_attribute("a" * 257, DataType="String", StringValue="x"), INVALID,
        "Message (user) attribute name must be shorter than 256 bytes."),
    "attribute with a long type": Row(_attribute("a", DataType="String." + "a" * 250, StringValue="x"), INVALID,
        "Message (user) attribute type must be shorter than 256 bytes."),
    "attribute with a list": Row(_attribute("a", DataType="String", StringListValues=["x"]),
        "AWS.SimpleQueueService.UnsupportedOperation",
        "Message attribute list values in SendMessage operation are not supported."),
    "system attribute of no kind": Row(_on("SendMessage", MessageBody="m",
        MessageSystemAttributes={"Hello": {"DataType": "String", "StringValue": "x"}}), INVALID,
        "Message system attribute name 'Hello' is invalid."),
    "message without a body": Row(_on("SendMessage", MessageBody=""), MISSING,
        "The request must contain the parameter MessageBody."),
    "delay of a message of a FIFO queue": Row(_on("SendMessage", fifo=True, MessageBody="m", MessageGroupId="g",
        MessageDeduplicationId="d", DelaySeconds=2), INVALID,
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for "
        "this queue type."),
    "receive of too many": Row(_on("ReceiveMessage", MaxNumberOfMessages=11), INVALID,
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
    "receive that waits too long": Row(_on("ReceiveMessage", WaitTimeSeconds=21), INVALID,
        "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
    "attribute of a queue that is unknown": Row(_on("GetQueueAttributes", AttributeNames=["Foobar"]), NAME,
        "Unknown Attribute Foobar."),
    "task of no queue": Row(lambda sqs: sqs.request("CancelMessageMoveTask", TaskHandle="nonsense"), INVALID,
        "Value for parameter TaskHandle is invalid."),
    "task of a queue that is no dead-letter queue": Row(lambda sqs: sqs.request("StartMessageMoveTask",
        SourceArn=sqs.attributes(sqs.queue())["QueueArn"]), INVALID,
        "Source queue must be configured as a Dead Letter Queue."),
    "empty batch": Row(_on("SendMessageBatch", Entries=[]), "AWS.SimpleQueueService.EmptyBatchRequest",
        "There should be at least one SendMessageBatchRequestEntry in the request."),
    "batch of too many": Row(_on("DeleteMessageBatch", Entries=[{"Id": str(n),
        "ReceiptHandle": "r"} for n in range(20)]), "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        "Maximum number of entries per request are 10. You have sent 20."),
    "batch with an id twice": Row(_on("SendMessageBatch", Entries=[{"Id": "same", "MessageBody": "m"}] * 2),
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Id same repeated."),
    **{f"batch with {what} id": Row(_on("DeleteMessageBatch", Entries=[{"Id": text, "ReceiptHandle": "r"}]),
        "AWS.SimpleQueueService.InvalidBatchEntryId",
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
        "letters long.") for what, text in {"a bad": "invalid:id", "an empty": ""}.items()},
    "batch with too many bytes": Row(_on("SendMessageBatch", Entries=[{"Id": each,
        "MessageBody": "x" * 524_289} for each in "ab"]), "AWS.SimpleQueueService.BatchRequestTooLong",
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048578 bytes."),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_an_error_has_the_code_the_status_and_the_text_of_the_service(name: str, sqs: ServiceClient) -> None:
    row = ROWS[name]
    reply = row.request(sqs)
    assert (reply.status, reply.code) == (row.status, row.code), reply
    assert reply.text.startswith(row.text), reply.text
    assert sqs.protocol == QUERY or reply.kind == KINDS.get(row.code, row.code.rpartition(".")[2])


def test_a_dead_letter_queue_must_have_the_type_of_its_source(sqs: ServiceClient) -> None:
    arn = sqs.attributes(sqs.fifo())["QueueArn"]
    reply = _set("RedrivePolicy", json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2}))(sqs)
    assert (reply.status, reply.code) == (400, INVALID)
    assert "Reason: Dead-letter queue must be same type of queue as the source." in reply.text


@pytest.mark.parametrize("fifo", [False, True])
def test_a_change_for_a_deleted_message_has_another_code_in_a_batch(fifo: bool, sqs: ServiceClient) -> None:
    """Clients drop the entries with this code, and match on the text."""
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if fifo else {}
    url = sqs.fifo() if fifo else sqs.queue()
    sqs.call("SendMessage", QueueUrl=url, MessageBody="m", **ids)
    handle = sqs.receive(url)[0]["ReceiptHandle"]
    sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    change = {"ReceiptHandle": handle, "VisibilityTimeout": 1}
    reason = "Message does not exist or is not available for visibility timeout change"
    single = sqs.request("ChangeMessageVisibility", QueueUrl=url, **change)
    assert (single.code, single.text) == (
        INVALID, f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {reason}."
    )  # fmt: skip
    (failed,) = sqs.call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=[{"Id": "a"} | change])["Failed"]
    assert failed == {"Id": "a", "Code": "ReceiptHandleIsInvalid", "Message": reason, "SenderFault": True}


@pytest.mark.parametrize("text", ["True", "TRUE", "true"])
def test_row_1_booleans_may_be_in_any_case(text: str, sqs: ServiceClient) -> None:
    name = fresh_name(fifo=True)
    given = {"FifoQueue": text, "ContentBasedDeduplication": text, "SqsManagedSseEnabled": text}
    url = sqs.call("CreateQueue", QueueName=name, Attributes=given)["QueueUrl"]
    found = sqs.attributes(url)
    assert {each: found[each] for each in given} == dict.fromkeys(given, "true")
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"ContentBasedDeduplication": "False"})
    assert sqs.attributes(url)["ContentBasedDeduplication"] == "false"
    assert sqs.call("CreateQueue", QueueName=name, Attributes={"FifoQueue": text})["QueueUrl"] == url


def test_row_4_a_purge_deletes_deduplication_ids(sqs: ServiceClient) -> None:
    url = sqs.fifo()
    members = {"QueueUrl": url, "MessageGroupId": "g", "MessageDeduplicationId": "same", "MessageBody": "m"}
    for _ in range(3):
        first = sqs.call("SendMessage", **members)["MessageId"]
        assert sqs.call("SendMessage", **members)["MessageId"] == first
        assert [each["MessageId"] for each in sqs.receive(url)] == [first]
        sqs.call("PurgeQueue", QueueUrl=url)


def test_rows_5_and_6_a_queue_may_be_its_own_dead_letter_queue(sqs: ServiceClient) -> None:
    """It keeps its messages, whatever their receive count; an empty policy ends it."""
    url = sqs.queue(VisibilityTimeout="0")
    policy = {"deadLetterTargetArn": sqs.attributes(url)["QueueArn"], "maxReceiveCount": 1}
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    assert json.loads(sqs.attributes(url)["RedrivePolicy"]) == policy
    sqs.call("SendMessage", QueueUrl=url, MessageBody="m")
    for count in ("1", "2", "3"):
        (message,) = sqs.receive(url, AttributeNames=["ApproximateReceiveCount"])
        assert message["Attributes"] == {"ApproximateReceiveCount": count}
    assert sqs.call("ListDeadLetterSourceQueues", QueueUrl=url)["queueUrls"] == [url]
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in sqs.attributes(url)


@pytest.mark.parametrize(("name", "text"), [
    ("KmsMasterKeyId", "alias/k"), ("RedriveAllowPolicy", '{"redrivePermission":"denyAll"}'),
    ("Policy", '{"Version":"2012-10-17","Statement":[]}'),
])  # fmt: skip
def test_an_empty_text_removes_an_attribute(name: str, text: str, sqs: ServiceClient) -> None:
    url = sqs.queue()
    if name == "Policy":
        arn = sqs.attributes(url)["QueueArn"]
        statement = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn}
        text = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={name: text})
    assert sqs.attributes(url)[name] == text
    sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={name: ""})
    assert name not in sqs.attributes(url)


TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


def test_row_7_messages_without_a_trace_header_get_that_of_the_request(sqs: ServiceClient) -> None:
    """The digest of system attributes does not cover it."""
    url = sqs.queue()
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}}
    sqs.headers["X-Amzn-Trace-Id"] = TRACE
    sent = sqs.call("SendMessage", QueueUrl=url, MessageBody="a")
    assert "MD5OfMessageSystemAttributes" not in sent
    sqs.call("SendMessage", QueueUrl=url, MessageBody="b", MessageSystemAttributes=own)
    entries = [{"Id": "c", "MessageBody": "c"}, {"Id": "d", "MessageBody": "d", "MessageSystemAttributes": own}]
    sqs.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    del sqs.headers["X-Amzn-Trace-Id"]
    sqs.call("SendMessage", QueueUrl=url, MessageBody="e")
    received = sqs.receive(url, AttributeNames=["AWSTraceHeader"])
    found = {each["Body"]: each.get("Attributes", {}).get("AWSTraceHeader") for each in received}
    assert found == {"a": TRACE, "b": "Root=own", "c": TRACE, "d": "Root=own", "e": None}


def test_row_8_names_of_attributes_may_have_letters_of_any_script(sqs: ServiceClient) -> None:
    url = sqs.queue()
    given = {name: {"DataType": "String", "StringValue": "x"} for name in ("attr.1øßä", "атрибут-٣", "名前_1")}
    sqs.call("SendMessage", QueueUrl=url, MessageBody="m", MessageAttributes=given)
    (message,) = sqs.receive(url, MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == given
    reply = sqs.request("SendMessage", QueueUrl=url, MessageBody="m", MessageAttributes={"a b": given["名前_1"]})
    assert (reply.code, reply.text[:45]) == (INVALID, "The message attribute name 'a b' is invalid. ")


def test_row_9_an_invalid_character_of_an_attribute_is_an_invalid_value(served: RunningServer) -> None:
    with ServiceClient(served.endpoint, JSON) as sqs:
        attributes = {"a": {"DataType": "String", "StringValue": "x\x08"}}
        members = {"QueueUrl": sqs.queue(), "MessageBody": "m", "MessageAttributes": attributes}
        reply = sqs.request("SendMessage", **members)
        assert (reply.status, reply.code) == (400, INVALID)
        body = sqs.request("SendMessage", QueueUrl=sqs.queue(), MessageBody="x\x08")
        assert (body.status, body.code) == (400, "InvalidMessageContents")
    with ServiceClient(served.endpoint, QUERY) as web:
        form = (
            f"QueueUrl={members['QueueUrl']}&MessageBody=m&MessageAttribute.1.Name=a"
            "&MessageAttribute.1.Value.DataType=String&MessageAttribute.1.Value.StringValue=x%08"
        )
        assert web.request_form("SendMessage", form).code == INVALID


def test_rows_11_and_20_a_missing_queue_is_an_error_400(sqs: ServiceClient) -> None:
    """Whatever host its URL has; JSON has the older code in a header."""
    urls = [f"http://{sqs.address}/{ACCOUNT}/none", f"http://elsewhere/{ACCOUNT}/none"]
    urls += ["http://whatever", "http://h/"] if sqs.protocol == JSON else []
    replies = [sqs.request("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]) for url in urls]
    text = "The specified queue does not exist" + ("." if sqs.protocol == JSON else " for this wsdl version.")
    for reply in (sqs.request("GetQueueUrl", QueueName="none"), *replies):
        assert (reply.status, reply.code) == (400, "AWS.SimpleQueueService.NonExistentQueue")
        assert reply.text.startswith(text)
        assert sqs.protocol == QUERY or reply.kind == "QueueDoesNotExist"
    assert replies[0].text == text


def test_a_queue_has_the_urls_that_elasticmq_accepts(sqs: ServiceClient) -> None:
    name = sqs.queue().rpartition("/")[2]
    urls = [name, f"/queue/{name}", f"http://{sqs.address}/queue/{name}", f"http://elsewhere:1/queue/{name}/"]
    for url in urls:
        sqs.call("SendMessage", QueueUrl=url, MessageBody=url)
    assert {each["Body"] for each in sqs.receive(urls[-1])} == set(urls)
    with ServiceClient(f"http://{sqs.address}", QUERY) as web:
        assert web.get(f"/queue/{name}", Action="PurgeQueue")[0] == 200
    assert sqs.request("PurgeQueue", QueueUrl="/queue/a b").status in (400, 404)


@pytest.mark.parametrize("headers", [{}, {"Accept": "application/json"}])
def test_row_12_a_get_without_an_action_is_an_unknown_operation(headers: dict[str, str], web: ServiceClient) -> None:
    for path in ("/", "/" + web.queue().partition("://")[2].partition("/")[2]):
        assert web.get(path, headers) == (404, "text/xml", "<UnknownOperationException/>")


def _json_of(web: ServiceClient, path: str, **parameters: str) -> tuple[int, dict[str, Any]]:
    status, kind, body = web.get(path, {"Accept": "application/json"}, **parameters)
    assert kind == "application/json"
    found: dict[str, Any] = json.loads(body)
    return status, found


def test_row_13_a_get_that_accepts_json_gets_json(web: ServiceClient) -> None:
    """Members without a value are null, and a map is a list of entries."""
    url = web.queue()
    path = url.removeprefix(f"http://{web.address}")
    status, sent = _json_of(web, path, Action="SendMessage", MessageBody="m")
    result = sent["SendMessageResponse"]["SendMessageResult"]
    assert (status, result["MD5OfMessageAttributes"]) == (200, None)
    status, received = _json_of(web, path, Action="ReceiveMessage", **{"AttributeName.1": "SenderId"})
    response = received["ReceiveMessageResponse"]
    (message,) = response["ReceiveMessageResult"]["messages"]
    assert (status, message["Body"], message["MessageId"]) == (200, "m", result["MessageId"])
    assert message["Attributes"] == [{"Name": "SenderId", "Value": ACCOUNT}]
    assert set(response["ResponseMetadata"]) == {"RequestId"}
    _, listed = _json_of(web, "/", Action="ListQueues", QueueNamePrefix=path.rpartition("/")[2])
    assert url in listed["ListQueuesResponse"]["ListQueuesResult"]["queueUrls"]
    _, empty = _json_of(web, path, Action="ReceiveMessage")
    assert empty["ReceiveMessageResponse"]["ReceiveMessageResult"] == {"messages": None}


def test_row_13_errors_are_json_too(web: ServiceClient) -> None:
    path = web.queue().removeprefix(f"http://{web.address}")
    status, found = _json_of(web, path, Action="ListQueues")
    message = "The action ListQueues is not valid for this endpoint."
    expected = {"Code": "InvalidAction", "Detail": None, "Message": message, "Type": "Sender"}
    assert (status, found["Error"]) == (400, expected)


@pytest.mark.parametrize("accept", ["application/json, text/plain, */*", "*/*", "text/xml"])
def test_row_13_a_get_that_accepts_several_types_gets_xml(accept: str, web: ServiceClient) -> None:
    status, kind, body = web.get("/", {"Accept": accept}, Action="ListQueues")
    assert (status, kind, "<ListQueuesResponse" in body) == (200, "text/xml", True)


def test_empty_elements_are_one_tag_in_xml(web: ServiceClient) -> None:
    path = web.queue().removeprefix(f"http://{web.address}")
    assert "<ReceiveMessageResult/>" in web.get(path, Action="ReceiveMessage")[2]
    assert "</Message><Detail/></Error>" in web.get(path, Action="ListQueues")[2]


def test_row_14_the_path_of_a_queue_also_takes_get_queue_url(web: ServiceClient) -> None:
    one, other = web.queue(), web.queue()
    path = one.removeprefix(f"http://{web.address}")
    for url in (one, other):
        status, _, body = web.get(path, Action="GetQueueUrl", QueueName=url.rpartition("/")[2])
        assert (status, f"<QueueUrl>{url}</QueueUrl>" in body) == (200, True)


def test_row_16_the_policy_of_a_first_permission(sqs: ServiceClient) -> None:
    url = sqs.queue()
    sqs.call("AddPermission", QueueUrl=url, Label="l", AWSAccountIds=["111111111111"], Actions=["ReceiveMessage"])
    found = sqs.attributes(url)
    principal = {"AWS": "arn:aws:iam::111111111111:root"}
    permission = {"Principal": principal, "Action": "SQS:ReceiveMessage", "Resource": found["QueueArn"]}
    assert json.loads(found["Policy"]) == {
        "Version": "2008-10-17",
        "Id": f"{found['QueueArn']}/SQSDefaultPolicy",
        "Statement": [{"Sid": "l", "Effect": "Allow", **permission}],
    }
    sqs.call("RemovePermission", QueueUrl=url, Label="l")
    assert "Policy" not in sqs.attributes(url)


def test_row_a_tags_may_have_the_name_of_older_sdks(web: ServiceClient) -> None:
    url = web.queue()
    web.request_form("TagQueue", f"QueueUrl={url}&Tags.1.Key=b&Tags.1.Value=2&Tags.2.Key=c&Tags.2.Value=3")
    web.request_form("TagQueue", f"QueueUrl={url}&Tag.1.Key=d&Tag.1.Value=4")
    assert web.call("ListQueueTags", QueueUrl=url)["Tags"] == {"b": "2", "c": "3", "d": "4"}


def test_row_b_empty_lists_of_older_sdks_are_ignored(web: ServiceClient) -> None:
    url = web.queue()
    form = (
        f"QueueUrl={url}&MessageBody=m&MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=String"
        "&MessageAttribute.1.Value.StringValue=x&MessageAttribute.1.Value.StringListValue="
        "&MessageAttribute.1.Value.BinaryListValue="
    )
    assert web.request_form("SendMessage", form).status == 200
    received = web.request_form("ReceiveMessage", f"QueueUrl={url}&AttributeName=&MessageAttributeName=")
    (message,) = received.body["Messages"]
    assert message.keys() == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    assert web.request_form("GetQueueAttributes", f"QueueUrl={url}&AttributeName=").body == {}


@pytest.mark.parametrize(("action", "form", "code"), [
    ("SendMessageBatch", "SendMessageBatchRequestEntry=", "AWS.SimpleQueueService.EmptyBatchRequest"),
    ("DeleteMessageBatch", "DeleteMessageBatchRequestEntry=", "AWS.SimpleQueueService.EmptyBatchRequest"),
    ("UntagQueue", "TagKey=", INVALID), ("SetQueueAttributes", "Attribute=", MISSING),
    ("AddPermission", "Label=l&AWSAccountId=&ActionName=", MISSING),
])  # fmt: skip
def test_row_b_an_empty_list_is_the_same_as_none(action: str, form: str, code: str, web: ServiceClient) -> None:
    url = web.queue()
    reply = web.request_form(action, f"QueueUrl={url}&{form}")
    assert (reply.status, reply.code) == (400, code)
    without = web.request_form(action, f"QueueUrl={url}&{'&'.join(e for e in form.split('&') if not e.endswith('='))}")
    assert without[:3] == reply[:3]
