"""Parse replies as an AWS SDK does, with botocore's model, parser and exceptions, but without a socket.

A reply has ``status``, ``headers`` as lines, and ``body``.
"""

import copy
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import botocore
from botocore.awsrequest import HeadersDict
from botocore.errorfactory import ClientExceptionsFactory
from botocore.exceptions import ClientError
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from botocore.session import Session


@cache
def service_model() -> ServiceModel:
    return Session().get_service_model("sqs")


@cache
def exceptions() -> Any:
    return ClientExceptionsFactory().create_client_exceptions(service_model())


def header_fields(reply: Any) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in reply.headers.decode().split("\r\n") if line)


def parse_reply(action: str, reply: Any) -> dict[str, Any]:
    """Return the result of ``reply`` in a client; raise its exceptions."""
    operation = service_model().operation_model(action)
    headers = HeadersDict()
    for name, value in header_fields(reply).items():
        headers[name] = value
    raw = {"status_code": reply.status, "headers": headers, "body": reply.body}
    parsed: dict[str, Any] = create_parser(service_model().protocol).parse(raw, operation.output_shape)
    if reply.status >= 300:
        error = parsed["Error"]
        raise exceptions().from_code(error.get("QueryErrorCode") or error["Code"])(parsed, action)
    del parsed["ResponseMetadata"]
    return parsed


# The Query protocol, with botocore's serializer and parser.
#
# botocore still has them, but its model of SQS is for JSON. ``ENTRIES`` and ``MAPS`` have the names of list elements,
# maps and keys of botocore up to 1.29 (``service-2.json`` of 2012-11-05). ``test_programs`` runs an old boto3.


ENTRIES = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",  # is younger than the last model that spoke Query
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
"""List → the name of its elements."""

MAPS = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name", "Value"),
    "MessageSystemAttributeMap": ("Attribute", "Name", "Value"),
    "QueueAttributeMap": ("Attribute", "Name", "Value"),
    "TagMap": ("Tag", "Key", "Value"),
}
"""Map → the names of its entries, their keys and their values."""


@cache
def old_model() -> ServiceModel:
    file = Path(botocore.__file__).parent / "data" / "sqs" / "2012-11-05" / "service-2.json.gz"
    model = json.loads(gzip.decompress(file.read_bytes()))
    model["metadata"] |= {"protocol": "query", "protocols": ["query"]}
    for operation in model["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = operation["output"]["shape"]
    for name, shape in model["shapes"].items():
        _rename(name, shape)
    return ServiceModel(model, "sqs")


def _rename(name: str, shape: dict[str, Any]) -> None:
    if name in ENTRIES:
        shape["member"]["locationName"] = ENTRIES[name]
    if name in MAPS:
        _, shape["key"]["locationName"], shape["value"]["locationName"] = MAPS[name]
    for member in shape.get("members", {}).values():
        if member["shape"] in MAPS:
            member["locationName"] = MAPS[member["shape"]][0]
        if member["shape"] in {"StringList", "BinaryList"}:
            member["locationName"] = ENTRIES[member["shape"]]


def query_form(action: str, members: dict[str, Any]) -> str:
    serialized = create_serializer("query", include_validation=False).serialize_to_request(
        copy.deepcopy(members), old_model().operation_model(action)
    )
    return urlencode(serialized["body"])


def parse_query_reply(action: str, reply: Any) -> dict[str, Any]:
    """Return the result of ``reply`` in a client; raise its exceptions."""
    operation = old_model().operation_model(action)
    raw = {"status_code": reply.status, "headers": header_fields(reply), "body": reply.body}
    parsed: dict[str, Any] = create_parser("query").parse(raw, operation.output_shape)
    assert parsed.pop("ResponseMetadata")["RequestId"] == header_fields(reply)["x-amzn-RequestId"]
    if reply.status >= 300:
        raise ClientError(parsed, action)
    return parsed


LISTED = {"a": {"DataType": "Binary", "BinaryListValues": ["YQ=="]}}
"""Message attributes of an unsupported kind."""

MEMBERS: dict[str, dict[str, Any]] = {
    "DeleteQueue": {},
    "PurgeQueue": {},
    "GetQueueAttributes": {},
    "SetQueueAttributes": {"Attributes": {"DelaySeconds": "1"}},
    "TagQueue": {"Tags": {"a": "b"}},
    "UntagQueue": {"TagKeys": ["a"]},
    "ListQueueTags": {},
    "ListDeadLetterSourceQueues": {},
    "AddPermission": {"Label": "a", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
    "RemovePermission": {"Label": "a"},
    "SendMessage": {"MessageBody": "x"},
    "SendMessageBatch": {"Entries": [{"Id": "a", "MessageBody": "x"}]},
    "ReceiveMessage": {},
    "DeleteMessage": {"ReceiptHandle": "r"},
    "DeleteMessageBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "r"}]},
    "ChangeMessageVisibility": {"ReceiptHandle": "r", "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "r", "VisibilityTimeout": 1}]},
}
"""Actions on one queue → their required members other than the queue."""
