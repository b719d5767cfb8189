"""Decoding of payloads, and the endings of handlers."""

import asyncio
import inspect
import math
import pickle
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NewType

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from tests.consumer.simulation import message
from veilmq.client import ClientError, ReceivedMessage, Unreachable
from veilmq.consumer import Backoff, Cancelled, Context, Drop, LeaseLost, LeaseState, Reject, RetryLater
from veilmq.consumer.context import TRACE_CHARACTERS_MAX, Cause, Ending, EndingKind, Failed, Undecodable, ending_of
from veilmq.consumer.handlers import body_of, decoder, make_handler
from veilmq.core.limits import LEASE_S_MAX


@dataclass
class Order:
    number: int
    lines: list[str]


class Struct(msgspec.Struct):
    number: int


class Model(pydantic.BaseModel):
    number: int


@pydantic.dataclasses.dataclass
class ModelDataclass:
    number: Annotated[int, pydantic.Field(lt=5)]


class Colour(StrEnum):
    RED = "red"


class Name(str):
    __slots__ = ()


OrderId = NewType("OrderId", str)
Few = Annotated[int, msgspec.Meta(lt=5)]
Short = Annotated[str, msgspec.Meta(max_length=3)]


def few(lines: list[Few]) -> None: ...


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
        (ModelDataclass, '{"number": 1}', ModelDataclass(1)),
        (Colour, "red", Colour.RED),
        (Name, "é", Name("é")),
        (OrderId, "é", "é"),
        (Short, "abc", "abc"),
        (Few, "4", 4),
        (Sequence[object], "[1]", [1]),
    ],
    ids=str,
)
def test_a_body_is_decoded_by_the_annotation(annotation: object, body: str, payload: object) -> None:
    assert decoder(annotation)(message(body=body)) == payload


def test_a_received_message_is_passed_unchanged() -> None:
    given = message(body="x")
    assert decoder(ReceivedMessage)(given) is given


@pytest.mark.parametrize("annotation", [int, Order, Struct, Model, ModelDataclass, Colour, Few], ids=str)
@pytest.mark.parametrize(
    "body", ["", "not this", '{"number": "one"}', '{"a":' * 9_999], ids=["empty", "no-json", "another", "deep"]
)
def test_a_body_of_another_type_is_undecodable(annotation: object, body: str) -> None:
    with pytest.raises(Undecodable, match="not match the handler's type"):
        decoder(annotation)(message(body=body))


@pytest.mark.parametrize(("annotation", "body"), [(Short, "abcd"), (Few, "5"), (ModelDataclass, '{"number": 5}')])
def test_a_body_that_breaks_a_constraint_is_undecodable(annotation: object, body: str) -> None:
    with pytest.raises(Undecodable):
        decoder(annotation)(message(body=body))


def test_constraints_inside_the_annotation_of_a_payload_hold() -> None:
    handler = make_handler(few, queue="orders")
    assert handler.decode(message(body="[4]")) == [4]
    with pytest.raises(Undecodable):
        handler.decode(message(body="[5]"))


@pytest.mark.parametrize(
    "annotation", [dict[bytes, list[object]] | dict[str, int], Path, list[Model], Model | None], ids=str
)
def test_a_type_that_json_cannot_represent_is_refused(annotation: object) -> None:
    with pytest.raises(TypeError):
        decoder(annotation)


@pytest.mark.parametrize("payload", [Colour.RED, Name("red"), b"red"], ids=repr)
def test_text_of_any_type_is_sent_as_it_is(payload: object) -> None:
    assert type(body_of(payload)) is str
    assert body_of(payload) == "red"


@pytest.mark.parametrize(
    "error",
    [
        ClientError("EpochFenced", "Another epoch is current.", 409, fields={"current": 2}),
        Unreachable("http://127.0.0.1:1", "connection refused"),
        LeaseLost(LeaseState.LOST),
        Failed(Ending(kind=EndingKind.RETRY, reason="It failed.")),
        RetryLater("2m"),
        RetryLater("2m", "Later."),
        Reject("no"),
    ],
    ids=repr,
)
def test_an_error_can_be_sent_to_another_process(error: Exception) -> None:
    """Otherwise it breaks the pool of processes in which it is raised."""
    received = pickle.loads(pickle.dumps(error))
    assert (type(received), str(received), vars(received)) == (type(error), str(error), vars(error))


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
def test_a_result_determines_the_ending(result: object, kind: EndingKind) -> None:
    assert ending_of(result).kind is kind


def test_a_retry_is_delayed_by_at_most_twelve_hours() -> None:
    assert Backoff().decide(ending_of(RetryLater(math.inf)), 1).after_s == LEASE_S_MAX


def test_a_delay_is_rounded_up_to_whole_seconds() -> None:
    """The service knows no others, and 0 would be visible at once."""
    assert Backoff().decide(ending_of(RetryLater("1500ms")), 1).after_s == 2
    assert Backoff("1s", draw=lambda: 0.1).after_s(1) == 1


def test_the_last_attempt_of_a_backoff_is_rejected() -> None:
    error = ending_of(ValueError("no"))
    kinds = [Backoff(attempts=3).decide(error, attempt).kind for attempt in (1, 2, 3, 4)]
    assert kinds == [EndingKind.RETRY, EndingKind.RETRY, EndingKind.REJECT, EndingKind.REJECT]
    assert Backoff().decide(error, 10_000).kind is EndingKind.RETRY


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
def test_the_cause_determines_the_ending_of_a_cancelled_handler(cause: Cause, kind: EndingKind) -> None:
    assert ending_of(Cancelled("stop"), cause).kind is kind
    assert ending_of(asyncio.CancelledError(), cause).kind is kind
    assert ending_of(None, cause).kind is EndingKind.DONE
    assert ending_of(Drop(), cause).kind is EndingKind.DROPPED


@pytest.mark.parametrize(
    ("cause", "state", "error"),
    [
        (None, LeaseState.SUSPECT, None),
        (None, LeaseState.LOST, LeaseLost),
        (None, LeaseState.ENDED, LeaseLost),
        (Cause.LOST, LeaseState.HELD, LeaseLost),
        (Cause.ENDED, LeaseState.HELD, LeaseLost),
        (Cause.SHUTDOWN, LeaseState.LOST, Cancelled),
        (Cause.TIMEOUT, LeaseState.HELD, Cancelled),
    ],
)
def test_a_check_raises_by_the_cause_or_else_by_the_lease(
    cause: Cause | None, state: LeaseState, error: type[Exception] | None
) -> None:
    lease: Any = SimpleNamespace(state=state)
    context = Context(message(), lease)
    if cause is not None:
        context.stop(cause)
    with nullcontext() if error is None else pytest.raises(error):
        context.check()


async def test_a_fence_checks_the_cause_and_then_renews_the_lease() -> None:
    calls: list[str] = []

    async def confirmed() -> None:
        calls.append("async")

    lease: Any = SimpleNamespace(state=LeaseState.HELD, confirm=lambda: calls.append("sync"), confirmed=confirmed)
    context = Context(message(), lease)
    with context.fence():
        calls.append("in")
    async with context.fence():
        calls.append("in")
    context.stop(Cause.TIMEOUT)
    with pytest.raises(Cancelled), context.fence():
        calls.append("cancelled")
    with pytest.raises(Cancelled):
        async with context.fence():
            calls.append("cancelled")
    assert calls == ["sync", "in", "async", "in"]


def test_only_the_end_of_a_long_trace_is_kept() -> None:
    ending = ending_of(ValueError("x" * 2 * TRACE_CHARACTERS_MAX))
    assert len(ending.trace) == TRACE_CHARACTERS_MAX
    assert ending.trace.rstrip().endswith("x")
