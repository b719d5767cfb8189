"""`veilmq send` against a real server."""

import io
import json
import sys

import pytest

from tests.cli.conftest import Veilmq
from veilmq.client import HttpQueueClient
from veilmq.core.messages import Attribute


@pytest.fixture(autouse=True)
def queue(client: HttpQueueClient) -> None:
    """Have a queue."""
    client.create_queue("orders")


def type_in(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `data` be standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.mark.parametrize("body", ["hello", "--hello", "-1", "wörld €", '{"a": [1]}', "a\nb"])
def test_the_body_is_sent_as_it_is(body: str, client: HttpQueueClient, veilmq: Veilmq) -> None:
    """Also one that looks like an option; what is printed is the message's id."""
    answer = veilmq("send", "orders", body)
    assert (answer.code, answer.err) == (0, "")
    (message,) = client.receive("orders")
    assert message.body == body
    assert answer.out == f"{message.id}\n"


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["nothing", "dash"])
def test_the_body_may_come_from_standard_input(
    arguments: list[str], client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last line's end belongs to the shell, the others to the message."""
    type_in("zwei\nZeilen für\n".encode(), monkeypatch)
    assert veilmq("send", "orders", *arguments).code == 0
    assert client.receive("orders")[0].body == "zwei\nZeilen für"


def test_standard_input_must_be_text(client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where it is not."""
    type_in(b"abc\xff", monkeypatch)
    answer = veilmq("send", "orders")
    assert (answer.code, answer.err) == (2, "veilmq: A message is text: standard input is not UTF-8 at byte 3.\n")
    assert client.show("orders").visible == 0


def test_json_has_the_id(client: HttpQueueClient, veilmq: Veilmq) -> None:
    """An object, for what may be added."""
    sent = json.loads(veilmq("send", "orders", "hello", "--json").out)
    assert sent == {"id": client.receive("orders")[0].id, "sequence": None}


def test_a_delay_hides_the_message(client: HttpQueueClient, veilmq: Veilmq) -> None:
    """Instead of the queue's own delay."""
    veilmq("send", "orders", "later", "--delay", "900")
    status = client.show("orders")
    assert (status.visible, status.delayed) == (0, 1)


def test_attributes_are_text(client: HttpQueueClient, veilmq: Veilmq) -> None:
    """Named before the first equals sign; the option may be repeated."""
    veilmq("send", "orders", "hello", "--attribute", "colour=red", "--attribute", "sum=1+1=2")
    assert client.receive("orders")[0].attributes == {
        "colour": Attribute(type="String", text="red"),
        "sum": Attribute(type="String", text="1+1=2"),
    }


@pytest.mark.parametrize("text", ["colour", "=red"], ids=["no-value", "no-name"])
def test_half_an_attribute_is_a_usage_error(text: str, client: HttpQueueClient, veilmq: Veilmq) -> None:
    """Nothing is sent."""
    answer = veilmq("send", "orders", "hello", "--attribute", text)
    assert (answer.code, answer.err) == (2, f"veilmq: --attribute must look like NAME=TEXT, not '{text}'.\n")
    assert client.show("orders").visible == 0


def test_a_refusal_of_the_server_is_shown(veilmq: Veilmq) -> None:
    """Its sentence and its code: here for a character that no message may have."""
    answer = veilmq("send", "orders", "\x01")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.endswith("(InvalidMessageContents)\n")
