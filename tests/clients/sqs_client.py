"""What an AWS SDK makes of our replies: botocore's own model, parser and exception classes, without a socket.

A reply has ``status``, ``headers`` as lines, and ``body``.
"""

from functools import cache
from typing import Any

from botocore.awsrequest import HeadersDict
from botocore.errorfactory import ClientExceptionsFactory
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.session import Session


@cache
def service_model() -> ServiceModel:
    """Return the service model of SQS that botocore brings."""
    return Session().get_service_model("sqs")


@cache
def exceptions() -> Any:
    """Return the exception classes that a boto3 client would have."""
    return ClientExceptionsFactory().create_client_exceptions(service_model())


def header_fields(reply: Any) -> dict[str, str]:
    """Return the headers of ``reply`` by name."""
    return dict(line.split(": ", 1) for line in reply.headers.decode().split("\r\n") if line)


def understood(action: str, reply: Any) -> dict[str, Any]:
    """Return what a client gets from ``reply``; raises the exception that it would raise."""
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
