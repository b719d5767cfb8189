"""Each error of SQS: its code, its text, and where it is raised."""

import inspect
import json
from base64 import b64encode
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import pytest
from botocore.exceptions import ClientError

from tests.clients.sqs_client import LISTED, MEMBERS, exceptions, header_fields, understood
from tests.internals.wire.sqs.requests import CONTEXT, ID_TEXT, QUEUE, SENT, ask, entries, refusal
from veilmq.core import errors as core
from veilmq.core.commands import LeaseChange, Received
from veilmq.core.errors import ReceiptState
from veilmq.wire.exchange import Reply
from veilmq.wire.smq import errors as smq
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS, BY_PROTOCOL, EVERYWHERE, WITH_CREDENTIALS
from veilmq.wire.sqs.errors import ANSWERS, CODES, Code, SqsError, explain, from_core
from veilmq.wire.sqs.json import decode, encode, encode_error
from veilmq.wire.sqs.members import Integer, Shape
from veilmq.wire.sqs.policies import GRANTABLE
from veilmq.wire.v1 import request as v1


class Case(NamedTuple):
    """A request with ``members`` that is refused, or whose command has the ``result`` that is an error."""

    action: str
    code: Code
    members: dict[str, Any]
    text: str
    result: Any = None


NO_QUEUE = core.QueueNotFound(QUEUE)
NO_RECEIPT = core.ReceiptInvalid()
ARN = "arn:aws:sqs:us-east-1:000000000000:orders"
HANDLE = b64encode(json.dumps({"taskId": ID_TEXT, "sourceArn": ARN}).encode()).decode()
GONE = LeaseChange(state=ReceiptState.GONE)
LIVE = LeaseChange(state=ReceiptState.LIVE)

GRANT = MEMBERS["AddPermission"]
ENTRY_KINDS = {name: f"{name}RequestEntry" for name in MEMBERS if name.endswith("Batch")}

ON_QUEUE = [
    case
    for action, members in MEMBERS.items()
    for case in (
        Case(action, errors.MISSING_PARAMETER, members | {"QueueUrl": None}, "parameter QueueUrl."),
        Case(action, errors.MISSING_PARAMETER, members | {"QueueUrl": ""}, "parameter QueueUrl."),
        Case(action, errors.QUEUE_DOES_NOT_EXIST, members, "The specified queue does not exist.", NO_QUEUE),
    )
]
BATCHES = [
    case
    for action, kind in ENTRY_KINDS.items()
    for case in (
        Case(action, errors.MISSING_PARAMETER, {}, "parameter Entries."),
        Case(action, errors.MISSING_PARAMETER, {"Entries": [{}]}, f"parameter {kind}.1.Id."),
        Case(action, errors.EMPTY_BATCH_REQUEST, {"Entries": []}, f"There should be at least one {kind} in"),
        Case(action, errors.TOO_MANY_ENTRIES, {"Entries": entries(11)}, "are 10. You have sent 11."),
        Case(action, errors.INVALID_ENTRY_ID, {"Entries": [{"Id": "a:b"}]}, "A batch entry id can only"),
        Case(action, errors.ENTRY_IDS_NOT_DISTINCT, {"Entries": [{"Id": "a"}, {"Id": "a"}]}, "Id a repeated."),
    )
]
DELAYED = {"Attributes": {"DelaySeconds": "1"}}
SETTINGS = [
    case
    for action, name in (("CreateQueue", {"QueueName": "q"}), ("SetQueueAttributes", {}))
    for case in (
        Case(action, errors.INVALID_ATTRIBUTE_NAME, name | {"Attributes": {"Foo": "1"}}, "Unknown Attribute Foo."),
        Case(action, errors.INVALID_ATTRIBUTE_VALUE, name | {"Attributes": {"DelaySeconds": "901"}},
            "Invalid value for the parameter DelaySeconds. Reason: Must be a whole number between 0 and 900."),
        Case(action, errors.INVALID_ATTRIBUTE_VALUE, name | {"Attributes": {"Policy": "{}"}},
            "Invalid value for the parameter Policy. Reason: Statement must be an object or a list of objects."),
        Case(action, errors.INVALID_PARAMETER_VALUE, name | {"Attributes": {"RedrivePolicy": "{}"}},
            "Value {} for parameter RedrivePolicy is invalid. Reason: Redrive policy does not contain mandatory"),
        Case(action, errors.INVALID_PARAMETER_VALUE, name | DELAYED,
            "for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist.",
            core.DeadLetterQueueRefused("000000000000/dead", "Dead letter target does not exist.")),
        Case(action, errors.INVALID_ATTRIBUTE_VALUE, name | DELAYED,
            "Invalid value for the parameter SqsManagedSseEnabled. Reason: One kind of encryption at a time.",
            core.SettingsConflict("managed_encryption", "One kind of encryption at a time.")),
    )
]  # fmt: skip
WIDE = [
    Case(action, errors.INVALID_PARAMETER_VALUE, {member: value}, f"The parameter {member} holds more values than")
    for action, member, value in (
        ("GetQueueAttributes", "AttributeNames", ["All"] * 10_000),
        ("SetQueueAttributes", "Attributes", {f"attribute-{number}": "" for number in range(5_000)}),
        *((action, "Entries", [{"Id": "a", "Foo": ["a"] * 20_000}]) for action in ENTRY_KINDS),
    )
]
OTHERS = [
    Case("CreateQueue", errors.MISSING_PARAMETER, {}, "parameter QueueName."),
    Case("CreateQueue", errors.INVALID_PARAMETER_VALUE, {"QueueName": "a.b"},
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"),
    Case("CreateQueue", errors.QUEUE_DELETED_RECENTLY, {"QueueName": "a"},
        "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
        core.QueueDeletedRecently(QUEUE, 60)),
    Case("PurgeQueue", errors.PURGE_IN_PROGRESS, {},
        "Only one PurgeQueue operation on orders is allowed every 60 seconds.", core.PurgeInProgress(QUEUE, 60)),
    Case("TagQueue", errors.MISSING_PARAMETER, {"Tags": {}}, "parameter Tags."),
    Case("TagQueue", errors.INVALID_PARAMETER_VALUE, {"Tags": {"aws:a": "b"}}, "does not begin with aws:."),
    Case("TagQueue", errors.INVALID_PARAMETER_VALUE, {"Tags": {"a": "b"}},
        "Too many tags added for queue orders. A queue may have 50.", core.TooManyTags(50)),
    Case("UntagQueue", errors.INVALID_PARAMETER_VALUE, {"TagKeys": []},
        "Tag keys must be between 1 and 128 characters"),
    Case("UntagQueue", errors.INVALID_PARAMETER_VALUE, {"TagKeys": ["a*"]}, "A tag's key has 1 to 128 characters"),
    Case("ListDeadLetterSourceQueues", errors.INVALID_PARAMETER_VALUE, {"NextToken": "!"},
        "Invalid or expired next token"),
    Case("StartMessageMoveTask", errors.MISSING_PARAMETER, {}, "parameter SourceArn."),
    Case("StartMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN,
        "MaxNumberOfMessagesPerSecond": 501},
        "Value 501 for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: Must be between 1 and 500"),
    Case("StartMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN},
        "Source queue must be configured as a Dead Letter Queue.", core.NotADeadLetterQueue(QUEUE)),
    Case("StartMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN},
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
        core.MoveTaskRunning(QUEUE)),
    Case("StartMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN, "DestinationArn": ARN},
        f"Value {ARN} for parameter DestinationArn is invalid. Reason: Not that one.", core.DestinationRefused(QUEUE,
        "Not that one.")),
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": "x"},
        "The resource that you specified for the SourceArn parameter doesn't exist."),
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN}, "for the SourceArn", NO_QUEUE),
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN, "DestinationArn": f"{ARN}-2"},
        "The resource that you specified for the DestinationArn parameter doesn't exist.",
        core.QueueNotFound(f"{QUEUE}-2")),
    Case("CancelMessageMoveTask", errors.MISSING_PARAMETER, {}, "parameter TaskHandle."),
    Case("CancelMessageMoveTask", errors.INVALID_PARAMETER_VALUE, {"TaskHandle": "x"},
        "Value for parameter TaskHandle is invalid."),
    Case("CancelMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"TaskHandle": HANDLE}, "Task does not exist.",
        core.MoveTaskNotFound()),
    Case("ListMessageMoveTasks", errors.MISSING_PARAMETER, {}, "parameter SourceArn."),
    Case("ListMessageMoveTasks", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN, "MaxResults": 11},
        "Value 11 for parameter MaxResults is invalid. Reason: Must be between 1 and 10, if provided."),
    Case("ListMessageMoveTasks", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN}, "for the SourceArn", NO_QUEUE),
    Case("CreateQueue", errors.QUEUE_NAME_EXISTS, {"QueueName": "a"},
        "A queue already exists with the same name and a different value for attribute DelaySeconds",
        core.QueueExists(QUEUE, "delay_s")),
    Case("GetQueueUrl", errors.MISSING_PARAMETER, {}, "parameter QueueName."),
    Case("GetQueueUrl", errors.INVALID_PARAMETER_VALUE, {"QueueName": ""}, "Must specify a queue name."),
    Case("GetQueueUrl", errors.QUEUE_DOES_NOT_EXIST, {"QueueName": "a"}, "queue does not exist.", NO_QUEUE),
    Case("ListQueues", errors.INVALID_PARAMETER_VALUE, {"MaxResults": 0},
        "Value 0 for parameter MaxResults is invalid. Reason: Must be between 1 and 1000, if provided."),
    Case("ListQueues", errors.INVALID_PARAMETER_VALUE, {"NextToken": "!"}, "Invalid or expired next token"),
    Case("GetQueueAttributes", errors.INVALID_ATTRIBUTE_NAME, {"AttributeNames": ["Foo"]}, "Unknown Attribute Foo."),
    Case("SetQueueAttributes", errors.MISSING_PARAMETER, {"Attributes": {}}, "parameter Attribute.Name."),
    Case("AddPermission", errors.MISSING_PARAMETER, GRANT | {"Label": ""}, "parameter Label."),
    Case("AddPermission", errors.INVALID_PARAMETER_VALUE, GRANT | {"AWSAccountIds": []}, "Value [] for parameter Pr"),
    Case("AddPermission", errors.MISSING_PARAMETER, GRANT | {"Actions": None}, "parameter Actions."),
    Case("AddPermission", errors.INVALID_PARAMETER_VALUE, GRANT | {"Label": "a b"}, "Label can only include alpha"),
    Case("AddPermission", errors.INVALID_PARAMETER_VALUE, GRANT | {"AWSAccountIds": ["*"]},
        "Value [*] for parameter PrincipalId is invalid. Reason: Unable to verify."),
    Case("AddPermission", errors.INVALID_PARAMETER_VALUE, GRANT | {"Actions": ["SendMessage", "DeleteQueue"]},
        "Value SQS:DeleteQueue for parameter ActionName is invalid. "
        "Reason: Only the queue owner is allowed to invoke this action."),
    Case("AddPermission", errors.OVER_LIMIT, GRANT | {"Actions": list(GRANTABLE)},
        "8 Actions were found, maximum allowed is 7."),
    Case("RemovePermission", errors.MISSING_PARAMETER, {}, "parameter Label."),
    Case("RemovePermission", errors.INVALID_PARAMETER_VALUE, {"Label": "a"},
        "Value a for parameter Label is invalid. Reason: can't find label.",
        core.EditRefused(errors.invalid_parameter("Label", "a", "can't find label."))),
    Case("SendMessage", errors.MISSING_PARAMETER, {"MessageBody": ""}, "parameter MessageBody."),
    Case("SendMessage", errors.INVALID_MESSAGE_CONTENTS, {"MessageBody": "\x07"},
        "Invalid binary character '#x7' was found in the message body, the set of allowed characters is "
        "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]."),
    Case("SendMessage", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x", "DelaySeconds": 901},
        "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."),
    Case("SendMessage", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x"},
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
        [core.MessageTooLong(1024)]),
    Case("SendMessage", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x", "MessageDeduplicationId": "d"},
        "Value d for parameter MessageDeduplicationId is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."),
    Case("SendMessage", errors.UNSUPPORTED_OPERATION, {"MessageBody": "x", "MessageAttributes": LISTED},
        "Message attribute list values in SendMessage operation are not supported."),
    Case("SendMessage", errors.MISSING_PARAMETER, {"MessageBody": "x"},
        "The request must contain the parameter MessageGroupId.", [core.GroupMissing()]),
    Case("SendMessage", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x"},
        "either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
        [core.DeduplicationIdMissing()]),
    Case("SendMessageBatch", errors.INVALID_PARAMETER_VALUE, {"Entries": entries(1, MessageBody="x")},
        "The request must contain the parameter MessageGroupId.", core.GroupMissing()),
    Case("SendMessageBatch", errors.INVALID_PARAMETER_VALUE, {"Entries": entries(1, MessageBody="x")},
        "either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
        core.DeduplicationIdMissing()),
    Case("SendMessageBatch", errors.BATCH_TOO_LONG, {"Entries": entries(2, MessageBody="x" * 524_289)},
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048578 bytes."),
    Case("ReceiveMessage", errors.INVALID_PARAMETER_VALUE, {"MaxNumberOfMessages": 11},
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
    Case("ReceiveMessage", errors.INVALID_PARAMETER_VALUE, {"WaitTimeSeconds": 21},
        "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
    Case("ReceiveMessage", errors.INVALID_PARAMETER_VALUE, {"VisibilityTimeout": 43_201},
        "Value 43201 for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200, if provided."),
    Case("ReceiveMessage", errors.OVER_LIMIT, {}, "The maximum number of messages of this queue is in flight",
        Received(messages=[], next_due_ms=None, receive_wait_s=0, over_limit=True)),
    Case("ReceiveMessage", errors.REQUEST_THROTTLED, {}, "The queue allows 3 receives a second",
        core.ReceivesThrottled(3)),
    Case("ReceiveMessage", errors.INVALID_ATTRIBUTE_NAME, {"AttributeNames": ["Foo"]}, "Unknown Attribute Foo."),
    Case("ReceiveMessage", errors.INVALID_ATTRIBUTE_NAME, {"MessageSystemAttributeNames": ["QueueArn"]},
        "Unknown Attribute QueueArn."),
    Case("DeleteMessage", errors.MISSING_PARAMETER, {}, "parameter MessageHandle."),
    Case("DeleteMessage", errors.RECEIPT_HANDLE_IS_INVALID, {"ReceiptHandle": "r"},
        'The input receipt handle "r" is not a valid receipt handle.', [NO_RECEIPT]),
    Case("DeleteMessage", errors.INVALID_PARAMETER_VALUE, {"QueueUrl": f"{QUEUE}.fifo", "ReceiptHandle": "r"},
        "Value r for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
        [ReceiptState.EXPIRED]),
    Case("ChangeMessageVisibility", errors.MISSING_PARAMETER, {"ReceiptHandle": "r"}, "parameter VisibilityTimeout."),
    Case("ChangeMessageVisibility", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r", "VisibilityTimeout": -1},
        "Value -1 for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200, if provided."),
    Case("ChangeMessageVisibility", errors.RECEIPT_HANDLE_IS_INVALID, {"ReceiptHandle": "r", "VisibilityTimeout": 1},
        'The input receipt handle "r" is not a valid receipt handle.', [NO_RECEIPT]),
    Case("ChangeMessageVisibility", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r", "VisibilityTimeout": 1},
        "Value r for parameter ReceiptHandle is invalid. "
        "Reason: Message does not exist or is not available for visibility timeout change.", [GONE]),
    Case("ChangeMessageVisibility", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r", "VisibilityTimeout": 43_200},
        "Value 43200 for parameter VisibilityTimeout is invalid. "
        "Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
        [core.LeaseTooLong(43_200)]),
]  # fmt: skip
CASES = [*ON_QUEUE, *BATCHES, *SETTINGS, *WIDE, *OTHERS]

ENTRY_CASES = [
    Case("SendMessageBatch", errors.MISSING_PARAMETER, {}, "parameter MessageBody."),
    Case("SendMessageBatch", errors.INVALID_MESSAGE_CONTENTS, {"MessageBody": "\x07"}, "binary character '#x7'"),
    Case("SendMessageBatch", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x", "DelaySeconds": -1}, "Value -1"),
    Case("SendMessageBatch", errors.INVALID_PARAMETER_VALUE, {"MessageBody": "x"},
        "Message must be shorter than 1024 bytes.", core.MessageTooLong(1024)),
    Case("SendMessageBatch", errors.UNSUPPORTED_OPERATION, {"MessageBody": "x", "MessageAttributes": LISTED},
        "Message attribute list values in SendMessage operation are not supported."),
    Case("DeleteMessageBatch", errors.MISSING_PARAMETER, {}, "parameter ReceiptHandle."),
    Case("DeleteMessageBatch", errors.RECEIPT_HANDLE_IS_INVALID, {"ReceiptHandle": "r"},
        'The input receipt handle "r" is not a valid receipt handle.', NO_RECEIPT),
    Case("DeleteMessageBatch", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r"},
        "Reason: The receipt handle has expired.", ReceiptState.SUPERSEDED),
    Case("ChangeMessageVisibilityBatch", errors.MISSING_PARAMETER, {"ReceiptHandle": "r"}, "VisibilityTimeout."),
    Case("ChangeMessageVisibilityBatch", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r",
        "VisibilityTimeout": 43_201}, "Must be between 0 and 43200"),
    Case("ChangeMessageVisibilityBatch", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r", "VisibilityTimeout": 9},
        "Total VisibilityTimeout for the message is beyond the limit", core.LeaseTooLong(43_200)),
    Case("ChangeMessageVisibilityBatch", errors.INVALID_PARAMETER_VALUE, {"ReceiptHandle": "r", "VisibilityTimeout": 9},
        "Message does not exist or is not available for visibility timeout change.", GONE),
    Case("ChangeMessageVisibilityBatch", errors.RECEIPT_HANDLE_IS_INVALID, {"ReceiptHandle": "r",
        "VisibilityTimeout": 9}, 'The input receipt handle "r" is not a valid receipt handle.', NO_RECEIPT),
]  # fmt: skip


def name(case: object) -> str:
    assert isinstance(case, Case)
    return f"{case.action}-{case.code.name}"


def reply_to(case: Case) -> Reply:
    if case.result is None:
        return encode_error(refusal(case.action, **case.members))
    return encode(ask(case.action, **case.members), case.result)


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{i}-{name(case)}") for i, case in enumerate(CASES)])
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


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{i}-{name(case)}") for i, case in enumerate(ENTRY_CASES)])
def test_an_entry_fails_alone(case: Case) -> None:
    action = case.action
    good = MEMBERS[action]["Entries"][0] | {"Id": "good"}
    queue = f"{QUEUE}.fifo" if isinstance(case.result, ReceiptState) else QUEUE
    call = ask(action, QueueUrl=queue, Entries=[case.members | {"Id": "bad"}, good])
    fine: Any = {"SendMessageBatch": SENT, "DeleteMessageBatch": ReceiptState.LIVE}.get(action, LIVE)
    results = [fine] if case.result is None else [case.result, fine]
    told = understood(action, encode(call, results))
    (failed,) = told["Failed"]
    (succeeded,) = told["Successful"]
    assert succeeded["Id"] == "good"
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", case.code.query, True)
    assert case.text in failed["Message"]


def test_every_row_of_the_table_has_a_case_and_every_case_a_row() -> None:
    """No error is promised that nothing leads to, and none occurs that is not promised."""
    promised = {(row.name, code.name) for row in ACTIONS.values() for code in row.errors}
    assert {(case.action, case.code.name) for case in CASES} == promised
    promised = {(row.name, code.name) for row in ACTIONS.values() for code in row.entry_errors}
    assert {(case.action, case.code.name) for case in ENTRY_CASES} == promised


def test_every_code_is_promised_by_some_action() -> None:
    used = {code.name for row in ACTIONS.values() for code in (*row.errors, *row.entry_errors)}
    anywhere = {code.name for code in (*EVERYWHERE, *WITH_CREDENTIALS, *chain(*BY_PROTOCOL.values()))}
    assert used | anywhere == {code.name for code in CODES}


@pytest.mark.parametrize("action", sorted(MEMBERS))
@pytest.mark.parametrize(("error", "code"), [
    pytest.param(core.StoreFull(), errors.SERVICE_UNAVAILABLE, id="full"),
    pytest.param(core.StoreUnavailable(), errors.SERVICE_UNAVAILABLE, id="unavailable"),
    pytest.param(core.OutcomeUnknown(), errors.SERVICE_UNAVAILABLE, id="unknown"),
    pytest.param(core.ShuttingDown(), errors.SERVICE_UNAVAILABLE, id="draining"),
    pytest.param(core.InternalError(), errors.INTERNAL_FAILURE, id="defect"),
])  # fmt: skip
def test_our_own_failures_are_the_servers_fault(action: str, error: core.VeilmqError, code: Code) -> None:
    """They have a status that clients retry, the fault Receiver, and the text of core."""
    reply = encode(ask(action, **MEMBERS[action]), error)
    assert reply.status == code.status >= 500
    assert header_fields(reply)["x-amzn-query-error"] == f"{code.query};Receiver"
    with pytest.raises(ClientError, match=str(error)[:20]):
        understood(action, reply)


def test_our_failure_in_a_batch_entry_is_not_the_senders_fault() -> None:
    """An entry that failed on our side says so."""
    call = ask("DeleteMessageBatch", **MEMBERS["DeleteMessageBatch"])
    (failed,) = understood("DeleteMessageBatch", encode(call, [core.InternalError()]))["Failed"]
    assert (failed["Code"], failed["SenderFault"]) == ("InternalFailure", False)


def test_every_error_of_core_has_an_answer() -> None:
    """None of them is an unforeseen one, on whichever action or route it comes; those of claims are no action's."""
    kinds = {kind for _, kind in inspect.getmembers(core, inspect.isclass) if issubclass(kind, core.VeilmqError)}
    assert set(ANSWERS) | set(v1.ANSWERS) | set(smq.ANSWERS) >= kinds - {core.VeilmqError, core.CommandError}


def test_an_error_that_no_row_knows_says_nothing_of_itself() -> None:
    answer = from_core(core.VeilmqError("secret"))
    assert answer.code is errors.INTERNAL_FAILURE
    assert "secret" not in answer.message


def test_an_error_repeats_little_of_what_was_sent() -> None:
    """A megabyte in a member does not come back in the error."""
    with pytest.raises(SqsError) as caught:
        decode("DeleteQueue", b'{"QueueUrl": "' + b"/" * 1_000_000 + b'"}', CONTEXT)
    assert caught.value.code is errors.INVALID_ADDRESS
    assert len(caught.value.message) < 400


# Why a value cannot be converted, in AWS's words, for whatever msgspec says.


class Asked(Shape, frozen=True, kw_only=True):
    """A request with one member of each kind."""

    text: str | None = None
    number: Integer | None = None
    flag: bool | None = None
    blob: bytes | None = None
    names: list[str] | None = None
    tags: dict[str, str] | None = None


@pytest.mark.parametrize(("members", "reason"), [
    ({"Text": 1}, "NUMBER_VALUE can not be converted to a String (at Text)"),
    ({"Number": "1"}, "STRING_VALUE can not be converted to an Integer (at Number)"),
    ({"Number": 1.5}, "DECIMAL_VALUE can not be converted to an Integer (at Number)"),
    ({"Number": 2**31}, "NUMBER_VALUE can not be converted to an Integer, it is out of range (at Number)"),
    ({"Number": 2**65}, "NUMBER_VALUE can not be converted to an Integer, it is out of range (at Number)"),
    ({"Flag": "yes"}, "STRING_VALUE can not be converted to a Boolean (at Flag)"),
    ({"Blob": True}, "BOOLEAN_VALUE can not be converted to a Blob (at Blob)"),
    ({"Names": "a"}, "STRING_VALUE can not be converted to a List (at Names)"),
    ({"Names": [None]}, "NULL_VALUE can not be converted to a String (at Names[0])"),
    ({"Names": {}}, "Start of structure or map found where not expected (at Names)"),
    ({"tags": []}, "Start of list found where not expected (at tags)"),
    ({"tags": "a"}, "STRING_VALUE can not be converted to a Structure (at tags)"),
    ("a", "STRING_VALUE can not be converted to a Structure"), ({"Blob": "%"}, None),
], ids=repr)  # fmt: skip
def test_the_reason(members: Any, reason: str | None) -> None:
    with pytest.raises(msgspec.ValidationError) as converting:
        msgspec.convert(members, type=Asked)
    with pytest.raises(msgspec.ValidationError) as decoding:
        msgspec.json.decode(msgspec.json.encode(members), type=Asked)
    assert explain(converting.value) == explain(decoding.value) == reason
