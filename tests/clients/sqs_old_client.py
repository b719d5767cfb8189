"""What an AWS SDK of the time of the Query protocol sends and understands: botocore's serializer and parser for it.

Their code is still in today's botocore, but its model of SQS speaks JSON. ``NAMES`` has what that model no longer says:
the names of list elements, of maps and of their keys, as they were in botocore up to 1.29 (``service-2.json`` of
2012-11-05, ``locationName``). A test with a real old boto3 is under ``tests/clients``.
"""

import copy
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import botocore
from botocore.exceptions import ClientError
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from tests.clients.sqs_client import header_fields

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
    """Return the service model of SQS as it was while its protocol was Query."""
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


def form_of_request(action: str, members: dict[str, Any]) -> str:
    """Return the form that the client sends."""
    serialized = create_serializer("query", include_validation=False).serialize_to_request(
        copy.deepcopy(members), old_model().operation_model(action)
    )
    return urlencode(serialized["body"])


def understood_xml(action: str, reply: Any) -> dict[str, Any]:
    """Return what the client gets from ``reply``; raises the exception that it would raise."""
    operation = old_model().operation_model(action)
    raw = {"status_code": reply.status, "headers": header_fields(reply), "body": reply.body}
    parsed: dict[str, Any] = create_parser("query").parse(raw, operation.output_shape)
    assert parsed.pop("ResponseMetadata")["RequestId"] == header_fields(reply)["x-amzn-RequestId"]
    if reply.status >= 300:
        raise ClientError(parsed, action)
    return parsed
