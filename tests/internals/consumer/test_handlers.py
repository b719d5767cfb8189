"""From a message to what a handler is annotated with, and what the end of a handler means."""

import asyncio
import inspect
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from tests.consumer.simulation import message
from veilmq.client import ReceivedMessage
from veilmq.consumer import Backoff, Cancelled, Drop, LeaseLost, LeaseState, Reject, RetryLater
from veilmq.consumer.context import TRACE_CHARACTERS_MAX, Cause, EndingKind, Undecodable, ending_of
from veilmq.consumer.handlers import decoder
from veilmq.core.limits import LEASE_S_MAX


@dataclass
class Order:
    """A payload."""

    number: int
    lines: list[str]


class Struct(msgspec.Struct):
    """A payload."""

    number: int


class Model(pydantic.BaseModel):
    """A payload."""

    number: int


@pytest.mark.parametrize(
    ("annotation", "body", "payload"),
    [
        (str, "é", "é"),
        (bytes, "é", b"\xc3\xa9"),
        (inspect.Parameter.empty, "x", "x"),
        (Any, "x", "x"),
        (int, "7", 7),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Order, '{"number": 1, "lines": ["a"]}', Order(1, ["a"])),
        (Struct, '{"number": 1}', Struct(1)),
        (Model, '{"number": 1}', Model(number=1)),
    ],
    ids=["text", "bytes", "nothing", "any", "number", "dict", "dataclass", "msgspec", "pydantic"],
)
def test_a_body_becomes_what_is_annotated(annotation: object, body: str, payload: object) -> None:
    assert decoder(annotation)(message(body=body)) == payload


def test_the_whole_message_can_be_had() -> None:
    given = message(body="x")
    assert decoder(ReceivedMessage)(given) is given


@pytest.mark.parametrize("annotation", [int, Order, Struct, Model], ids=lambda annotation: annotation.__name__)
@pytest.mark.parametrize("body", ["", "no", '{"number": "one"}'], ids=["empty", "no-json", "another"])
def test_what_does_not_fit_is_undecodable(annotation: object, body: str) -> None:
    with pytest.raises(Undecodable, match="not match the handler's type"):
        decoder(annotation)(message(body=body))


def test_a_type_that_json_cannot_be_is_refused_when_the_handler_is_declared() -> None:
    with pytest.raises(TypeError):
        decoder(dict[bytes, list[object]] | dict[str, int])


# What the end of a handler means.


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (None, EndingKind.DONE),
        ("anything", EndingKind.DONE),
        (Drop(), EndingKind.DROPPED),
        (Reject("no"), EndingKind.REJECT),
        (Undecodable("no"), EndingKind.REJECT),
        (RetryLater("2m"), EndingKind.RETRY),
        (ValueError("no"), EndingKind.RETRY),
        (LeaseLost(LeaseState.LOST), EndingKind.RETRY),
    ],
    ids=["nothing", "value", "drop", "reject", "undecodable", "retry", "exception", "lost"],
)
def test_what_a_result_means(result: object, kind: EndingKind) -> None:
    assert ending_of(result).kind is kind


def test_a_retry_comes_no_later_than_a_message_may_be_hidden() -> None:
    assert Backoff().decide(ending_of(RetryLater(math.inf)), 1).after_s == LEASE_S_MAX


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.SHUTDOWN, EndingKind.RELEASE),
        (Cause.LOST, EndingKind.LEFT),
        (Cause.ENDED, EndingKind.LEFT),
        (Cause.TIMEOUT, EndingKind.RETRY),
    ],
    ids=lambda value: value.value,
)
def test_a_cancelled_handler_is_judged_by_the_cause(cause: Cause, kind: EndingKind) -> None:
    assert ending_of(Cancelled("stop"), cause).kind is kind
    assert ending_of(asyncio.CancelledError(), cause).kind is kind
    assert ending_of(None, cause).kind is EndingKind.DONE
    assert ending_of(Drop(), cause).kind is EndingKind.DROPPED


def test_a_trace_is_cut_to_its_end() -> None:
    ending = ending_of(ValueError("x" * 2 * TRACE_CHARACTERS_MAX))
    assert len(ending.trace) == TRACE_CHARACTERS_MAX
    assert ending.trace.rstrip().endswith("x")
