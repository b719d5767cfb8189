"""Compare veilmq with botocore's model of SQS: every member of every action, in both protocols.

``docs/protocols/sqs.md`` lists the differences with their reasons. A difference that is not listed fails, and so does a
listed one that does not exist.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.model import ListShape, MapShape, Shape, StructureShape

from tests.clients.sqs_client import MEMBERS, old_model, service_model
from tests.server.service_client import JSON, PROTOCOLS, ServiceClient
from veilmq.testing import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "protocols" / "sqs.md"
ACTIONS = sorted(service_model().operation_names)
OTHERS: dict[str, dict[str, Any]] = {
    "CreateQueue": {"QueueName": "made"},
    "GetQueueUrl": {"QueueName": "made"},
    "ListQueues": {},
    "StartMessageMoveTask": {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:made"},
    "CancelMessageMoveTask": {"TaskHandle": "h"},
    "ListMessageMoveTasks": {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:made"},
}


def listed(what: str) -> set[str]:
    """Return the differences that the page lists in rows ``| what | where | why |``."""
    return set(re.findall(rf"^\| {what} \| `([^|]*)` \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with RunningServer(purge_pause_s=0) as running:
        yield running


@pytest.fixture(scope="module", params=PROTOCOLS)
def sqs(request: pytest.FixtureRequest, served: RunningServer) -> Iterator[ServiceClient]:
    with ServiceClient(served.endpoint, request.param) as client:
        yield client


def _input(action: str) -> StructureShape:
    shape = service_model().operation_model(action).input_shape
    assert isinstance(shape, StructureShape)
    return shape


def _request(sqs: ServiceClient, action: str) -> dict[str, Any]:
    """Return the members of a complete request."""
    if action in OTHERS:
        return dict(OTHERS[action])
    return {"QueueUrl": sqs.queue(), **MEMBERS[action]}


def test_a_missing_required_member_is_an_error(sqs: ServiceClient) -> None:
    different = set()
    for action in ACTIONS:
        for member in _input(action).required_members:
            members = _request(sqs, action)
            del members[member]
            reply = sqs.request(action, **members)
            assert reply.status == 400, (action, member, reply)
            if (reply.code, reply.text) != ("MissingParameter", f"The request must contain the parameter {member}."):
                different.add(f"{action}.{member}")
    assert different == listed(f"required, {sqs.protocol}")


@pytest.mark.parametrize("member", ["Id", "MessageBody", "ReceiptHandle", "VisibilityTimeout"])
def test_a_missing_required_member_of_an_entry_is_an_error(member: str, sqs: ServiceClient) -> None:
    """Without an id the request fails, without another member only the entry."""
    for action in ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"):
        entries = _input(action).members["Entries"]
        assert isinstance(entries, ListShape)
        shape = entries.member
        assert isinstance(shape, StructureShape)
        entry = dict(MEMBERS[action]["Entries"][0])
        if member not in entry:
            assert member not in shape.required_members
            continue
        del entry[member]
        reply = sqs.request(action, QueueUrl=sqs.queue(), Entries=[{"Id": "b"} | entry if member != "Id" else entry])
        if member == "Id":
            name = f"{action}RequestEntry.1.Id"
            assert (reply.code, reply.text) == ("MissingParameter", f"The request must contain the parameter {name}.")
        else:
            (failed,) = reply.body["Failed"]
            text = f"The request must contain the parameter {member}."
            assert (failed["Code"], failed["Message"]) == ("MissingParameter", text)


def _wrong_json(shape: Shape, seen: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the path of each member below ``shape``, with members in which it has an invalid value."""
    assert isinstance(shape, StructureShape)
    for name, member in shape.members.items():
        inner: Any = member
        yield ".".join((*seen, name)), {name: 5 if isinstance(inner, (ListShape, MapShape)) else {}}
        below = inner.member if isinstance(inner, ListShape) else inner.value if isinstance(inner, MapShape) else None
        if isinstance(below, StructureShape) and len(seen) < 2:
            for path, wrong in _wrong_json(below, (*seen, name)):
                yield path, {name: [wrong] if isinstance(inner, ListShape) else {"k": wrong}}


def test_every_member_is_decoded_from_json(served: RunningServer) -> None:
    unknown = set()
    with ServiceClient(served.endpoint, JSON) as sqs:
        for action in ACTIONS:
            for path, wrong in _wrong_json(_input(action)):
                if sqs.request(action, **wrong).code != "SerializationException":
                    unknown.add(f"{action}.{path}")
    assert unknown == listed("member, json")


def _wrong_forms(shape: Shape, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the parameter of each member below ``shape``, with a form in which it has a wrong type."""
    assert isinstance(shape, StructureShape)
    for name, member in shape.members.items():
        inner: Any = member
        if isinstance(inner, ListShape):
            parameter = above + (inner.member.serialization.get("name") or name)
            yield parameter, f"{parameter}.0=x"
            if isinstance(inner.member, StructureShape):
                yield from _wrong_forms(inner.member, f"{parameter}.1.")
        elif isinstance(inner, MapShape):
            parameter = above + (member.serialization.get("name") or name)
            yield parameter, f"{parameter}.0.{inner.key.serialization['name']}=x"
            if isinstance(inner.value, StructureShape):
                entry = f"{parameter}.1.{inner.key.serialization['name']}=k&"
                for deeper, wrong in _wrong_forms(inner.value, f"{parameter}.1.{inner.value.serialization['name']}."):
                    yield deeper, entry + wrong
        else:
            yield above + name, f"{above}{name}.1=x"


def test_every_member_is_decoded_from_query(served: RunningServer) -> None:
    """Lists and maps have the names of the model of the Query protocol."""
    unknown = set()
    with ServiceClient(served.endpoint, "query") as sqs:
        for action in ACTIONS:
            shape = old_model().operation_model(action).input_shape
            assert shape is not None
            for parameter, form in _wrong_forms(shape):
                if sqs.request_form(action, form).code != "MalformedInput":
                    unknown.add(f"{action}: {parameter}")
    assert unknown == listed("member, query")


def _keys(shape: Shape | None, seen: tuple[str, ...] = ()) -> set[str]:
    found = set()
    if isinstance(shape, StructureShape):
        for name, member in shape.members.items():
            found |= {".".join((*seen, name))} | _keys(member, (*seen, name))
    if isinstance(shape, ListShape):
        found |= _keys(shape.member, seen)
    if isinstance(shape, MapShape):
        found |= _keys(shape.value, seen)
    return found


def _paths(value: Any, shape: Shape | None, seen: tuple[str, ...] = ()) -> set[str]:
    """Return the paths of all members in a reply, without the keys of maps."""
    found: set[str] = set()
    if isinstance(value, list) and isinstance(shape, ListShape):
        for item in value:
            found |= _paths(item, shape.member, seen)
    elif isinstance(value, dict) and isinstance(shape, MapShape):
        for item in value.values():
            found |= _paths(item, shape.value, seen)
    elif isinstance(value, dict):
        members = shape.members if isinstance(shape, StructureShape) else {}
        for name, item in value.items():
            found |= {".".join((*seen, name))} | _paths(item, members.get(name), (*seen, name))
    return found


def _tour(sqs: ServiceClient, served: RunningServer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield replies that together have every member that a reply can have."""

    def do(action: str, **members: Any) -> dict[str, Any]:
        replies.append((action, sqs.call(action, **members)))
        return replies[-1][1]

    replies: list[tuple[str, dict[str, Any]]] = []
    attributes = {
        "MessageAttributes": {
            "a": {"DataType": "String", "StringValue": "x"},
            "b": {"DataType": "Binary", "BinaryValue": "eA=="},
        },
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    }
    names = ["tour-a.fifo", "tour-b.fifo"]
    url, dead = (do("CreateQueue", QueueName=n, Attributes={"FifoQueue": "true"})["QueueUrl"] for n in names)
    do("TagQueue", QueueUrl=url, Tags={"a": "b"})
    do("ListQueueTags", QueueUrl=url)
    do("GetQueueUrl", QueueName=names[0])
    do("ListQueues", QueueNamePrefix="tour-", MaxResults=1)
    arn = do("GetQueueAttributes", QueueUrl=dead, AttributeNames=["All"])["Attributes"]["QueueArn"]
    for source in (url, sqs.fifo()):
        policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":9}}'
        sqs.call("SetQueueAttributes", QueueUrl=source, Attributes={"RedrivePolicy": policy})
    do("ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=1)
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "1"}
    do("SendMessage", QueueUrl=url, MessageBody="m", **ids, **attributes)
    entries = [{"Id": "a", "MessageBody": "m", **ids, "MessageDeduplicationId": "2", **attributes}, {"Id": "b"}]
    do("SendMessageBatch", QueueUrl=url, Entries=entries)
    received = do("ReceiveMessage", QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"])["Messages"]
    handle = received[0]["ReceiptHandle"]
    changes = [{"Id": "a", "ReceiptHandle": handle, "VisibilityTimeout": 9}, {"Id": "b"}]
    do("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=changes)
    do("DeleteMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": handle}, {"Id": "b"}])
    do("DeleteMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "ReceiptHandle": handle}])
    standard = sqs.queue()
    sqs.call("SendMessage", QueueUrl=standard, MessageBody="m")
    first, _ = (sqs.call("ReceiveMessage", QueueUrl=standard, VisibilityTimeout=timeout) for timeout in (0, 30))
    superseded = {"Id": "a", "ReceiptHandle": first["Messages"][0]["ReceiptHandle"], "VisibilityTimeout": 9}
    do("ChangeMessageVisibilityBatch", QueueUrl=standard, Entries=[superseded])
    for number in "345":  # enough for a task at one message per second to be still running
        sqs.call("SendMessage", QueueUrl=dead, MessageBody="m", **ids | {"MessageDeduplicationId": number})
    move = {"SourceArn": arn, "DestinationArn": sqs.attributes(url)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1}
    sqs.call("StartMessageMoveTask", SourceArn=arn)  # fails, as that message has no source
    while do("ListMessageMoveTasks", SourceArn=arn)["Results"][0]["Status"] == "RUNNING":
        served.advance(10)
    task = do("StartMessageMoveTask", **move)["TaskHandle"]
    do("ListMessageMoveTasks", SourceArn=arn)
    do("CancelMessageMoveTask", TaskHandle=task)
    yield from replies


def test_replies_have_the_members_of_the_model(served: RunningServer) -> None:
    found: dict[str, set[str]] = {}
    with ServiceClient(served.endpoint, JSON) as sqs:
        for action, reply in _tour(sqs, served):
            shape = service_model().operation_model(action).output_shape
            found.setdefault(action, set()).update(_paths(reply, shape))
    different = set()
    for action in ACTIONS:
        shape = service_model().operation_model(action).output_shape
        different |= {f"{action}.{path}" for path in _keys(shape) ^ found.get(action, set())}
    assert different == listed("reply")


def test_the_page_lists_every_error_of_the_model() -> None:
    """For its action, or as an error that is never raised."""
    page = PAGE.read_text()
    actions = page.partition("## Actions")[2].partition("\n## ")[0]
    rows = {row[0]: row[1] for row in re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", actions, re.MULTILINE)}
    never = set(re.findall(r"^\| `(\w+)` \| [^|`]", page.partition("| error of AWS |")[2], re.MULTILINE))
    different = set()
    for action in ACTIONS:
        for error in service_model().operation_model(action).error_shapes:
            if f"`{error.name}`" not in rows[action] and error.name not in never:
                different.add(error.name)
    assert different == listed("error")


def test_every_attribute_name_of_the_model_is_accepted(sqs: ServiceClient) -> None:
    url = sqs.queue()
    for name in service_model().shape_for("QueueAttributeName").enum:
        assert sqs.request("GetQueueAttributes", QueueUrl=url, AttributeNames=[name]).status == 200, name
    for name in service_model().shape_for("MessageSystemAttributeName").enum:
        assert sqs.request("ReceiveMessage", QueueUrl=url, MessageSystemAttributeNames=[name]).status == 200, name
