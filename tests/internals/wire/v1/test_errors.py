"""Errors on the wire: every error of core that a route can meet has a status, a code, and the fields of its row."""

import json

import pytest

from tests.internals.wire.v1.asking import refusal
from veilmq.core import errors
from veilmq.core.claims import ListSources
from veilmq.core.errors import VeilmqError
from veilmq.core.results import ReceiptState
from veilmq.wire.v1.request import ANSWERS, ApiCall, encode_error, encode_failure
from veilmq.wire.v1.routes import EVERYWHERE, ROUTES

TOLD: list[tuple[VeilmqError, int, dict[str, object]]] = [
    (errors.QueueNotFound("a/q"), 404, {"queue": "a/q"}),
    (errors.SourceNotFound("s"), 404, {"source": "s"}),
    (errors.ShardNotFound(3, 2), 404, {"shard": 3, "shards": 2}),
    (errors.MessageNotClaimed(4), 404, {"number": 4}),
    (errors.EpochFenced(1, 2), 409, {"epoch": 1, "current": 2}),
    (errors.ClaimGap(9, 4), 409, {"number": 9, "last": 4}),
    (errors.ConsumerTaken("c", "s"), 409, {"consumer": "c", "source": "s"}),
    (errors.ClaimAcknowledged(3, 4), 410, {"number": 3, "acknowledged": 4}),
    (errors.ClaimLost(3), 410, {"number": 3}),
    (errors.ClaimReleased(3), 410, {"number": 3}),
    (errors.CursorInvalid(), 400, {}),
    (errors.StageMissing("a", 1, 2), 409, {"attempt": "a", "messages": 1, "wanted": 2}),
    (errors.StageRefused(3, errors.GroupMissing()), 400, {"index": 3, "why": "GroupMissing", "bytes_max": None}),
    (errors.DeadLetterQueueRefused("a/dlq", "It is missing."), 400, {"queue": "a/dlq"}),
    (errors.GroupHeld(), 409, {}),
    (errors.ReceiptEnded(ReceiptState.EXPIRED), 410, {"state": "expired"}),
    (errors.ReceiptInvalid(), 400, {}),
    (errors.DestinationRefused("a/q", "It is another."), 400, {"queue": "a/q"}),
    (errors.MessageTooLong(1_024), 400, {"bytes_max": 1_024}),
    (errors.StoreFull(), 503, {}),
    (errors.StoreUnavailable(), 503, {}),
    (errors.OutcomeUnknown(), 503, {}),
    (errors.ShuttingDown(), 503, {}),
    (errors.InternalError(), 500, {}),
]


@pytest.mark.parametrize(("error", "status", "fields"), TOLD, ids=[type(row[0]).__name__ for row in TOLD])
def test_an_error_is_told_by_its_row(error: VeilmqError, status: int, fields: dict[str, object]) -> None:
    code = type(error).__name__
    reply = ApiCall(ListSources(queue="a/q")).encode(error)
    assert (reply.status, reply.code) == (status, code)
    assert json.loads(reply.body) == {"code": code, "message": str(error)} | fields
    assert reply.headers == b"Content-Type: application/json\r\n"


def test_rows_tell_what_errors_have() -> None:
    """A row names attributes that its error always has."""
    assert {type(error): (status, tuple(fields)) for error, status, fields in TOLD}.items() <= ANSWERS.items()


def test_every_error_of_a_route_has_a_row_and_every_row_a_route() -> None:
    """Those of each, and those of all."""
    of_routes = {error for route in ROUTES.values() for error in route.errors}
    assert of_routes | set(EVERYWHERE) == set(ANSWERS)


def test_an_error_without_a_row_is_a_defect() -> None:
    """And says no more than that."""
    reply = encode_failure(errors.TooManyTags(50))
    assert (reply.status, json.loads(reply.body)["code"]) == (500, "InternalError")


def test_a_refusal_is_told_by_its_code() -> None:
    reply = encode_error(refusal("GET", "/v1/x"))
    assert (reply.status, reply.code, json.loads(reply.body)["code"]) == (404, "UnknownRoute", "UnknownRoute")
