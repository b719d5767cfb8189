"""XML replies, the reference page, all errors of SQS, and the actions on messages."""

import inspect
import json
import re
import runpy
from itertools import chain
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.sqs_client import MEMBERS, exceptions, header_fields, parse_reply, service_model
from tests.internals.wire.sqs.requests import (
    CONTEXT,
    NO_DEADLINE,
    QUEUE,
    URL,
    decode_request,
    entries,
    error_of,
    parsed_reply,
    received,
)
from tests.internals.wire.sqs.test_members import is_accepted
from tests.tidy.tree import ROOT
from veilmq.core import errors as failures
from veilmq.core.commands import LeaseChange, QueuePage, Receive, Send
from veilmq.core.errors import ReceiptState
from veilmq.wire.exchange import Reply
from veilmq.wire.smq import errors as smq
from veilmq.wire.sqs import errors, query
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import CODES, CORE_ERRORS, Code, SqsError, from_core
from veilmq.wire.sqs.json import decode as decode_json
from veilmq.wire.sqs.json import encode, encode_error
from veilmq.wire.sqs.members import AttributeValue, Shape
from veilmq.wire.sqs.messages import SYSTEM_ATTRIBUTES
from veilmq.wire.sqs.policies import GRANTABLE
from veilmq.wire.v1 import request as v1

ARN = "arn:aws:sqs:us-east-1:000000000000:orders"
HANDLE = (
    "eyJ0YXNrSWQiOiIwMDAxMDIwMy0wNDA1LTA2MDctMDgwOS0wYTBiMGMwZDBlMGYiLCJzb3VyY2VBcm4iOiJhcm46YXdzOnNxczp1"
    "cy1lYXN0LTE6MDAwMDAwMDAwMDAwOm9yZGVycyJ9"
)
STATEMENT = {
    "Sid": "send",
    "Effect": "Allow",
    "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
    "Action": "SQS:SendMessage",
    "Resource": ARN,
}


# XML replies.

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


class SampleResult(Shape, frozen=True, kw_only=True):
    """A result with one member of each type."""

    text: str | None = None
    number: int | None = None
    flag: bool | None = None
    names: list[str] | None = None
    tags: dict[str, str] | None = None
    settings: dict[str, AttributeValue] | None = None
    successful: list[AttributeValue] | None = None


def response_xml(**members: Any) -> bytes:
    return query._reply(lambda result: result, "Do", query.XML, SampleResult(**members)).body


def result(**members: Any) -> str:
    text = response_xml(**members).decode()
    found = re.fullmatch(r".*<DoResult(?:/|>(.*)</DoResult)>.*", text, re.DOTALL)
    assert found is not None
    return found[1] or ""


@pytest.mark.parametrize(("members", "inside"), [
    ({}, ""),
    ({"text": "", "number": 0, "flag": False}, "<Text/><Number>0</Number><Flag>false</Flag>"),
    ({"flag": True}, "<Flag>true</Flag>"), ({"names": ["a", "b"]}, "<Name>a</Name><Name>b</Name>"),
    ({"tags": {"a": "b"}}, "<Tag><Key>a</Key><Value>b</Value></Tag>"),
    ({"settings": {"a": AttributeValue(binary_value=b"hi", data_type="Binary")}},
        "<Setting><Name>a</Name><Value><BinaryValue>aGk=</BinaryValue><DataType>Binary</DataType></Value></Setting>"),
    ({"successful": [AttributeValue()]}, "<DoResultEntry/>"),
    ({"names": [], "tags": {}}, ""), ({"text": "a<b>&\"'"}, "<Text>a&lt;b&gt;&amp;\"'</Text>"),
    ({"text": "\r\n\t"}, "<Text>&#xD;\n\t</Text>"), ({"text": "é中🎉"}, "<Text>é中🎉</Text>"),
    ({"tags": {"<": "\x00"}}, "<Tag><Key>&lt;</Key><Value>�</Value></Tag>"),
], ids=repr)  # fmt: skip
def test_reply_members_as_xml(members: dict[str, Any], inside: str) -> None:
    assert result(**members) == inside


@NO_DEADLINE
@given(text=st.text())
def test_any_text_is_well_formed_xml(text: str) -> None:
    expected = "".join(character if is_accepted(character) else "\ufffd" for character in text)
    for document, place in [
        (response_xml(text=text), f"{NAMESPACE}DoResult/{NAMESPACE}Text"),
        (query.encode_error(SqsError(errors.INVALID_ADDRESS, text)).body, f"{NAMESPACE}Error/{NAMESPACE}Message"),
    ]:
        assert ET.fromstring(document).findtext(place) == expected


# The reference page.

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "sqs_page.py"))
render = SCRIPT["render"]
PAGE = ROOT / "docs" / "protocols" / "sqs.md"


def test_the_reference_page_is_up_to_date() -> None:
    """If not: python scripts/sqs_page.py > docs/protocols/sqs.md."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_the_reference_page_has_a_row_for_each_action_and_error() -> None:
    rows = {line.split(" | ")[0]: line.split(" | ") for line in render().splitlines() if line.startswith("| `")}
    for action in ACTIONS:
        assert rows[f"| `{action}`"][1].endswith("."), action
    for code in CODES:
        assert f"| `{code.name}`" in rows


# All errors of SQS.


class Case(NamedTuple):
    """A request with ``members`` that is refused, or whose command has an error as ``result``."""

    action: str
    code: Code
    members: dict[str, Any]
    text: str
    result: Any = None


NO_SUCH_QUEUE = failures.QueueNotFound(QUEUE)

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
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN}, "for the SourceArn", NO_SUCH_QUEUE),
    Case("StartMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN, "DestinationArn": f"{ARN}-2"},
        "The resource that you specified for the DestinationArn parameter doesn't exist.",
        failures.QueueNotFound(f"{QUEUE}-2")),
    Case("CancelMessageMoveTask", errors.RESOURCE_NOT_FOUND, {"TaskHandle": HANDLE}, "Task does not exist.",
        failures.MoveTaskNotFound()),
    Case("ListMessageMoveTasks", errors.INVALID_PARAMETER_VALUE, {"SourceArn": ARN, "MaxResults": 11},
        "Value 11 for parameter MaxResults is invalid. Reason: Must be between 1 and 10, if provided."),
    Case("ListMessageMoveTasks", errors.RESOURCE_NOT_FOUND, {"SourceArn": ARN}, "for the SourceArn", NO_SUCH_QUEUE),
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
        return encode_error(error_of(case.action, **case.members))
    return encode(decode_request(case.action, **case.members), case.result)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{i}-{case.action}-{case.code.name}") for i, case in enumerate(CASES)]
)
def test_a_client_understands_each_error(case: Case) -> None:
    """botocore raises the exception of that error, with its text."""
    reply = reply_to(case)
    assert reply.status == case.code.status
    assert header_fields(reply)["x-amzn-query-error"] == f"{case.code.query};{case.code.fault}"
    with pytest.raises(ClientError) as caught:
        parse_reply(case.action, reply)
    error = caught.value.response["Error"]
    assert error["Code"] == case.code.query
    assert error["QueryErrorCode"] == case.code.name
    assert error["Type"] == "Sender"
    assert case.text in error["Message"]
    typed = getattr(exceptions(), case.code.name, ClientError)
    assert type(caught.value) is typed
    assert (typed is ClientError) == case.code.shape.startswith("com.amazon.coral.service#")


def test_every_code_is_documented_for_some_action() -> None:
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
def test_server_errors_have_a_5xx_status_and_the_fault_receiver(
    action: str, error: failures.VeilmqError, code: Code
) -> None:
    """Clients retry them."""
    reply = encode(decode_request(action, **MEMBERS[action]), error)
    assert reply.status == code.status >= 500
    assert header_fields(reply)["x-amzn-query-error"] == f"{code.query};Receiver"
    with pytest.raises(ClientError, match=str(error)[:20]):
        parse_reply(action, reply)
    if action.endswith("Batch"):
        (failed,) = parsed_reply(action, [error], **MEMBERS[action])["Failed"]
        assert (failed["Code"], failed["SenderFault"]) == (code.query, False)


def test_an_empty_receive_is_no_error_if_its_queue_waits_or_if_it_names_attributes_of_queues() -> None:
    assert parsed_reply("ReceiveMessage", received(over_limit=True, receive_wait_s=1)) == {}
    assert parsed_reply("ReceiveMessage", received(), AttributeNames=["QueueArn"]) == {}


@pytest.mark.parametrize("action", ["ListQueues", "ListDeadLetterSourceQueues"])
def test_a_list_has_a_next_token_only_if_the_request_limits_its_results(action: str) -> None:
    page = QueuePage(names=[QUEUE], more=True)
    assert "NextToken" not in parsed_reply(action, page)
    assert "NextToken" in parsed_reply(action, page, MaxResults=1)


def test_every_error_of_core_has_a_row() -> None:
    """In one of the protocols."""
    kinds = {
        kind for _, kind in inspect.getmembers(failures, inspect.isclass) if issubclass(kind, failures.VeilmqError)
    }
    assert set(CORE_ERRORS) | set(v1.CORE_ERRORS) | set(smq.CORE_ERRORS) >= kinds - {
        failures.VeilmqError,
        failures.CommandError,
    }


def test_an_error_without_a_row_is_an_internal_failure_without_details() -> None:
    mapped = from_core(failures.VeilmqError("secret"))
    assert mapped.code is errors.INTERNAL_FAILURE
    assert "secret" not in mapped.message


def test_errors_truncate_text_of_the_request() -> None:
    with pytest.raises(SqsError) as caught:
        decode_json(b"DeleteQueue", b'{"QueueUrl": "' + b"/" * 1_000_000 + b'"}', CONTEXT)
    assert caught.value.code is errors.INVALID_ADDRESS
    assert len(caught.value.message) < 400


# The actions on messages.

MAX = 1_048_576
FIFO = QUEUE + ".fifo"


def messages(action: str, **members: object) -> Send:
    command = decode_request(action, **members).command
    assert isinstance(command, Send)
    return command


def test_a_batch_has_at_most_one_mebibyte() -> None:
    half = {"Id": "a", "MessageBody": "x" * (MAX // 2)}
    rest = {"Id": "b", "MessageBody": "x" * (MAX // 2 - 8)}
    attribute = {"MessageAttributes": {"a": {"DataType": "String", "StringValue": "x"}}}
    command = messages("SendMessageBatch", Entries=[half, rest | attribute])
    assert sum(message.size_bytes for message in command.messages) == MAX
    longer = rest | attribute | {"MessageBody": "x" * (MAX // 2 - 7)}
    error = error_of("SendMessageBatch", Entries=[half, longer])
    assert error.code is errors.BATCH_TOO_LONG
    assert "You have sent 1048577 bytes." in error.message


@pytest.mark.parametrize("member", ["MessageGroupId", "MessageDeduplicationId"])
@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 129])
def test_invalid_group_and_deduplication_ids(member: str, value: str) -> None:
    error = error_of("SendMessage", QueueUrl=FIFO, MessageBody="x", **{member: value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert f"{member} can only include alphanumeric and punctuation characters. 1 to 128 in length." in error.message


# ReceiveMessage.


def test_system_attributes_match_the_service_model() -> None:
    assert {"All", *SYSTEM_ATTRIBUTES} == set(service_model().shape_for("MessageSystemAttributeName").enum)


def test_an_attempt_id_is_passed_for_a_fifo_queue() -> None:
    call = decode_request("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="x")
    assert call.command == Receive(queue=FIFO, attempt_id="x")
    error = error_of("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="a b")
    assert error.code is errors.INVALID_PARAMETER_VALUE


def test_an_attempt_id_is_ignored_for_a_standard_queue() -> None:
    """As on AWS."""
    assert (
        decode_request("ReceiveMessage", ReceiveRequestAttemptId="x").command
        == decode_request("ReceiveMessage").command
    )


# Receipts by state: the receipt table of docs/lifecycle.md, its columns for SQS.

SUCCEEDED = {"Successful": [{"Id": "e0"}]}
CHANGE = {"ReceiptHandle": "r", "VisibilityTimeout": 0}
INVALID = "Value r for parameter ReceiptHandle is invalid. Reason: "
EXPIRED = INVALID + "The receipt handle has expired."
GONE = INVALID + "Message does not exist or is not available for visibility timeout change."
IN_BATCH = {GONE: ("ReceiptHandleIsInvalid", GONE.removeprefix(INVALID).rstrip("."))}
"""Error message → code and message of an entry with that error, if not the same."""
LIVE, EARLIER = ReceiptState.LIVE, ReceiptState.EARLIER
OVER, SUPERSEDED, DELETED = ReceiptState.EXPIRED, ReceiptState.SUPERSEDED, ReceiptState.GONE

DELETES: dict[tuple[str, ReceiptState], str] = {
    (URL, LIVE): "", (URL, OVER): "", (URL, EARLIER): "", (URL, SUPERSEDED): "", (URL, DELETED): "",
    (FIFO, LIVE): "", (FIFO, DELETED): "", (FIFO, OVER): EXPIRED, (FIFO, SUPERSEDED): EXPIRED,
}  # fmt: skip
CHANGES: dict[tuple[str, ReceiptState], str] = {
    (URL, LIVE): "", (URL, OVER): "", (URL, SUPERSEDED): "", (URL, DELETED): GONE,
    (FIFO, LIVE): "", (FIFO, OVER): EXPIRED, (FIFO, SUPERSEDED): EXPIRED, (FIFO, DELETED): GONE,
}  # fmt: skip
"""(queue, state of a receipt) → the error message, empty for success."""


def change(state: ReceiptState) -> LeaseChange:
    """Return the result of a change by a receipt in ``state``."""
    acts = state in {LIVE, OVER}
    return LeaseChange(state=state, visible_at_ms=1, hidden_for_ms=7_000) if acts else LeaseChange(state=state)


def check(action: str, result: Any, url: str, why: str, **members: object) -> None:
    """Assert that an action and its batch succeed, or fail with the message ``why``."""
    batch: dict[str, Any] = {"QueueUrl": url, "Entries": entries(1, **members)}
    if not why:
        assert parsed_reply(action, [result], QueueUrl=url, **members) == {}
        assert parsed_reply(f"{action}Batch", [result], **batch) == SUCCEEDED
        return
    with pytest.raises(ClientError) as caught:
        parsed_reply(action, [result], QueueUrl=url, **members)
    error = caught.value.response["Error"]
    assert (error["Code"], error["Message"]) == ("InvalidParameterValue", why)
    (failed,) = parsed_reply(f"{action}Batch", [result], **batch)["Failed"]
    code, text = IN_BATCH.get(why, ("InvalidParameterValue", why))
    assert failed == {"Id": "e0", "Code": code, "SenderFault": True, "Message": text}


@pytest.mark.parametrize(("url", "state"), DELETES)
def test_delete_by_receipt_state(url: str, state: ReceiptState) -> None:
    check("DeleteMessage", state, url, DELETES[url, state], ReceiptHandle="r")


@pytest.mark.parametrize(("url", "state"), CHANGES)
def test_change_by_receipt_state(url: str, state: ReceiptState) -> None:
    check("ChangeMessageVisibility", change(state), url, CHANGES[url, state], **CHANGE)


def succeeded(action: str, result: Any, **members: object) -> Any:
    return json.loads(encode(decode_request(action, **members), [result]).body)["Successful"][0]


def test_batch_entries_report_their_effect_in_veilmq_members() -> None:
    """Clients of SQS ignore them; there are no others."""
    expected: dict[ReceiptState, dict[str, Any]] = {
        LIVE: {"VeilmqHiddenForMs": 7_000},
        OVER: {"VeilmqHiddenForMs": 7_000},
        EARLIER: {"VeilmqReceipt": "earlier"},
        SUPERSEDED: {"VeilmqReceipt": "superseded"},
    }
    for state, more in expected.items():
        entry = succeeded("ChangeMessageVisibilityBatch", change(state), Entries=entries(1, **CHANGE))
        assert entry == {"Id": "e0"} | more
    receipts = entries(1, ReceiptHandle="r")
    for state in ReceiptState:
        more = {"VeilmqReceipt": state.value} if state in {SUPERSEDED, DELETED} else {}
        assert succeeded("DeleteMessageBatch", state, Entries=receipts) == {"Id": "e0"} | more
    gone = succeeded("DeleteMessageBatch", DELETED, QueueUrl=FIFO, Entries=receipts)
    assert gone == {"Id": "e0", "VeilmqReceipt": "gone"}
