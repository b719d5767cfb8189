"""Requests to the API for tests of its codec, without a server."""

import json
from typing import Any

import pytest

from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.request import ApiCall, read_request
from veilmq.wire.v1.routes import decode, route_key

QUEUE = "000000000000/jobs"
CONTEXT = RequestContext(base_url="http://h:1")


def send(method: str, target: str, body: bytes = b"") -> ApiCall:
    """Return what the codec makes of a request; raises its ``SqsError``."""
    request = read_request(method.encode(), target.encode("utf-8", "surrogatepass"), {}, body)
    return decode(route_key(request), request, CONTEXT)


def post(verb: str, **fields: Any) -> ApiCall:
    """Return what the codec makes of a POST about claims."""
    return send("POST", f"/v1/claims/{QUEUE}/{verb}", json.dumps(fields).encode())


def get(verb: str = "", query: str = "") -> ApiCall:
    """Return what the codec makes of a GET about claims."""
    return send("GET", f"/v1/claims/{QUEUE}" + (f"/{verb}" if verb else "") + (f"?{query}" if query else ""))


def refusal(method: str, target: str, body: bytes = b"") -> SqsError:
    """Return the error with which the codec refuses a request."""
    with pytest.raises(SqsError) as caught:
        send(method, target, body)
    return caught.value


def refused(verb: str, **fields: Any) -> str:
    """Return the text with which a POST about claims is refused as invalid."""
    error = refusal("POST", f"/v1/claims/{QUEUE}/{verb}", json.dumps(fields).encode())
    assert (error.code.query, error.code.status) == ("InvalidRequest", 400)
    return error.message
