"""ReceiveMessage beyond its errors."""

import pytest
from botocore.exceptions import ClientError

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.asking import QUEUE, answer, ask, message, received, refusal
from veilmq.core import properties
from veilmq.core.commands import Receive
from veilmq.core.properties import Attribute, Properties
from veilmq.core.results import Received, ReceivedMessage
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.messages import SYSTEM_ATTRIBUTES

TRACED = properties.encode(Properties(system={"AWSTraceHeader": Attribute(type="String", text="Root=1-5")}))
ALL = {
    "SenderId": "000000000000",
    "SentTimestamp": "1700000000000",
    "ApproximateReceiveCount": "1",
    "ApproximateFirstReceiveTimestamp": "1700000001000",
}


def test_a_receive_that_says_nothing() -> None:
    """One message, hidden for as long as its queue says; zero is a number."""
    assert ask("ReceiveMessage").command == Receive(queue=QUEUE, count=1, timeout_s=None)
    assert ask("ReceiveMessage", VisibilityTimeout=0).command == Receive(queue=QUEUE, count=1, timeout_s=0)


def test_an_empty_receive_has_no_member_at_all() -> None:
    """As on AWS."""
    assert answer("ReceiveMessage", received()) == {}


def test_the_system_attributes_are_those_of_the_service_model() -> None:
    """Each is known, whether a message here can have it or not."""
    assert {"All", *SYSTEM_ATTRIBUTES} == set(service_model().shape_for("MessageSystemAttributeName").enum)


@pytest.mark.parametrize("member", ["AttributeNames", "MessageSystemAttributeNames"])
def test_system_attributes_by_either_name_of_the_member(member: str) -> None:
    """The deprecated one and the new one."""
    result = received(message(), message(properties=TRACED))
    plain, traced = answer("ReceiveMessage", result, **{member: ["All"]})["Messages"]
    assert plain["Attributes"] == ALL
    assert traced["Attributes"] == ALL | {"AWSTraceHeader": "Root=1-5"}
    (told,) = answer("ReceiveMessage", received(message()), **{member: ["SenderId", "SequenceNumber"]})["Messages"]
    assert told["Attributes"] == {"SenderId": "000000000000"}


def test_both_members_add_up() -> None:
    """Each name is told once."""
    names = {"AttributeNames": ["SenderId", "SentTimestamp"], "MessageSystemAttributeNames": ["SenderId"]}
    (told,) = answer("ReceiveMessage", received(message()), **names)["Messages"]
    assert set(told["Attributes"]) == {"SenderId", "SentTimestamp"}


def test_names_of_queue_attributes_in_the_deprecated_member_tell_nothing() -> None:
    """The service model lists them there."""
    (told,) = answer("ReceiveMessage", received(message()), AttributeNames=["QueueArn", "Policy"])["Messages"]
    assert "Attributes" not in told


def test_attributes_nobody_asked_for_are_not_told() -> None:
    """Nor their digest."""
    carried = properties.encode(Properties(attributes={"a": Attribute(type="String", text="b")}))
    (told,) = answer("ReceiveMessage", received(message(properties=carried)))["Messages"]
    assert set(told) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


def test_a_binary_attribute_arrives_as_bytes() -> None:
    """Through base64 on the wire."""
    carried = properties.encode(Properties(attributes={"a": Attribute(type="Binary.x", data=b"\x00\xff")}))
    (told,) = answer("ReceiveMessage", received(message(properties=carried)), MessageAttributeNames=["All"])["Messages"]
    assert told["MessageAttributes"] == {"a": {"BinaryValue": b"\x00\xff", "DataType": "Binary.x"}}


FIFO = QUEUE + ".fifo"
GROUPED = properties.encode(Properties(group="g", dedup_id="d"))


def test_a_message_of_a_fifo_queue_tells_what_it_is() -> None:
    """Its number, its group and its deduplication id."""
    told = told_of(message(properties=GROUPED, sequence=7))
    assert told == ALL | {
        "SequenceNumber": "10000000000000000007",
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
    }


def test_a_message_that_was_deduplicated_by_its_content() -> None:
    """Has the SHA-256 of its body for an id."""
    told = told_of(message(properties=properties.encode(Properties(group="g")), sequence=0))
    assert told["MessageDeduplicationId"] == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def test_a_message_of_a_group_in_a_standard_queue() -> None:
    """Has its group and nothing else of FIFO queues."""
    assert told_of(message(properties=properties.encode(Properties(group="g")))) == ALL | {"MessageGroupId": "g"}


def test_a_dead_letter_tells_where_it_came_from() -> None:
    """By the queue's ARN."""
    told = told_of(message(source="000000000000/jobs"))
    assert told == ALL | {"DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:000000000000:jobs"}


def told_of(each: ReceivedMessage) -> dict[str, str]:
    """Return all system attributes of a message."""
    (told,) = answer("ReceiveMessage", received(each), MessageSystemAttributeNames=["All"])["Messages"]
    found: dict[str, str] = told["Attributes"]
    return found


def test_an_attempt_id_goes_to_a_fifo_queue() -> None:
    """If it keeps the rule."""
    call = ask("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="x")
    assert call.command == Receive(queue=FIFO, attempt_id="x")
    error = refusal("ReceiveMessage", QueueUrl=FIFO, ReceiveRequestAttemptId="a b")
    assert error.code is errors.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(
    ("queue_wait_s", "wait_s", "refused"), [(0, None, True), (20, 0, True), (0, 1, False), (1, None, False)]
)
def test_a_queue_with_too_many_messages_in_flight(queue_wait_s: int, wait_s: int | None, refused: bool) -> None:
    """A short poll is refused, one that waited gets nothing; the queue's own wait counts where none was named."""
    result = Received(messages=[], next_due_ms=None, receive_wait_s=queue_wait_s, over_limit=True)
    members = {} if wait_s is None else {"WaitTimeSeconds": wait_s}
    if not refused:
        assert answer("ReceiveMessage", result, **members) == {}
        return
    with pytest.raises(ClientError) as caught:
        answer("ReceiveMessage", result, **members)
    assert caught.value.response["Error"]["Code"] == "OverLimit"


def test_an_attempt_id_means_nothing_on_a_standard_queue() -> None:
    """As on AWS."""
    assert ask("ReceiveMessage", ReceiveRequestAttemptId="x").command == ask("ReceiveMessage").command


def test_a_body_comes_back_whatever_it_holds() -> None:
    """Quotes, backslashes, line ends and every plane of Unicode."""
    body = '"\\\n\r\t\u2028é😀</script>'
    (told,) = answer("ReceiveMessage", received(message(body=body)))["Messages"]
    assert told["Body"] == body
