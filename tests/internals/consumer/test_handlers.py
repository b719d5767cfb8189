"""From a message to what a handler is annotated with."""

import inspect
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from tests.consumer.simulation import message
from veilmq.client import ReceivedMessage
from veilmq.consumer.context import Undecodable
from veilmq.consumer.handlers import decoder


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
