"""Requests and results for tests of the SQS codecs."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.clients.sqs_client import parse_reply
from veilmq.core.commands import QueueCounts, QueueView, Received, ReceivedMessage
from veilmq.core.settings import QueueSettings
from veilmq.wire.exchange import Plan, RequestContext
from veilmq.wire.smq.errors import Code as SmqCode
from veilmq.wire.smq.errors import SmqError
from veilmq.wire.sqs.errors import Code, SqsError
from veilmq.wire.sqs.json import decode, encode

CONTEXT = RequestContext(base_url="http://127.0.0.1:9324", token_key=bytes(range(32)))
URL = "http://127.0.0.1:9324/000000000000/orders"
QUEUE = "000000000000/orders"
ID = bytes(range(16))
ID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For property tests on a busy machine."""
VIEW = QueueView(
    queue=QUEUE,
    settings=QueueSettings(),
    created_at_ms=1_700_000_000_999,
    modified_at_ms=1_700_000_060_000,
    counts=QueueCounts(visible=3, in_flight=2, delayed=1, oldest_sent_at_ms=None),
)


def decode_request(action: str, **members: Any) -> Plan:
    """Decode a request with ``members``, by default for the queue ``URL``."""
    return decode(action.encode(), json.dumps({"QueueUrl": URL} | members).encode(), CONTEXT)


def parsed_reply(action: str, result: Any, **members: Any) -> dict[str, Any]:
    """Encode the reply of ``result`` to a request, and parse it."""
    return parse_reply(action, encode(decode_request(action, **members), result))


def error_of(action: str, **members: Any) -> SqsError:
    """Return the error of decoding a request."""
    with pytest.raises(SqsError) as caught:
        decode_request(action, **members)
    return caught.value


def raises(code: Code | SmqCode, match: str | None = None) -> "pytest.RaisesExc[SqsError | SmqError]":
    """Expect an error with this code, of either protocol."""
    return pytest.RaisesExc((SqsError, SmqError), match=match, check=lambda error: error.code is code)


def message(
    *,
    body: str = "hello",
    properties: bytes = b"",
    receive_count: int = 1,
    sequence: int | None = None,
    source: str | None = None,
) -> ReceivedMessage:
    return ReceivedMessage(
        id=ID,
        receipt="receipt-1",
        body=body,
        properties=properties,
        sent_at_ms=1_700_000_000_000,
        first_received_at_ms=1_700_000_001_000,
        receive_count=receive_count,
        visible_at_ms=1_700_000_031_000,
        priority=8,
        sequence=sequence,
        source=source,
    )


def received(*messages: ReceivedMessage, **more: Any) -> Received:
    return Received(messages=list(messages), **{"next_due_ms": None, "receive_wait_s": 0} | more)


def entries(count: int, **members: Any) -> list[dict[str, Any]]:
    """Return ``count`` batch entries with distinct ids."""
    return [{"Id": f"e{number}"} | members for number in range(count)]
