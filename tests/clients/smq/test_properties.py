"""Properties of messages, with the official Python SDK."""

import pytest
from mns.account import Account
from mns.message_property import (
    MessagePropertyValue,
    MessageSystemPropertyValue,
    PropertyType,
    SystemPropertyName,
    SystemPropertyType,
)
from mns.queue import Message, Queue, QueueMeta

from tests.clients.smq.raw import ask, element
from tests.clients.smq.test_queues import refused
from veilmq.testing import RunningServer

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def text(value: str) -> MessageSystemPropertyValue:
    """Return a system property."""
    return MessageSystemPropertyValue(SystemPropertyType.STRING, value)


def prop(name: object, value: object, kind: str) -> str:
    """Return a property as a request has it."""
    told = element("Name", name) + element("Value", value) + element("Type", kind)
    return f"<PropertyValue>{told}</PropertyValue>"


def with_properties(inner: str, container: str = "UserProperties") -> str:
    """Return the body of a send."""
    return f"<Message><MessageBody>m</MessageBody><{container}>{inner}</{container}></Message>"


def test_properties_of_all_types_come_as_they_were_sent(queue: Queue) -> None:
    """In their order, in a single receive, a batch, and a peek."""
    message = Message("m")
    values = {
        "z": MessagePropertyValue.create_string("Grüße & <Küsse>"),
        "n": MessagePropertyValue.create_number("3.140"),
        "t": MessagePropertyValue.create_boolean(True),
        "b": MessagePropertyValue(PropertyType.BINARY, b"\x00\xff"),
        "a.b-c_d": MessagePropertyValue.create_string(" "),
    }
    message.set_user_properties(values)
    message.add_system_property(SystemPropertyName.TRACEPARENT, text(TRACE))
    queue.batch_send_message([message])
    for got in (queue.peek_message(), queue.batch_peek_message(1)[0], queue.receive_message()):
        told = got.get_user_properties()
        assert {name: (value.get_data_type(), value.get_raw_value()) for name, value in told.items()} == {
            name: (value.get_data_type(), value.get_raw_value()) for name, value in values.items()
        }
        assert list(told) == list(values)
        (system,) = got.get_system_properties().items()
        assert (str(system[0]), system[1].string_value) == ("traceparent", TRACE)


def test_a_message_without_properties_has_no_element_for_them(server: RunningServer, queue: Queue) -> None:
    """Also where it was sent with empty ones."""
    sent = ask(server, "POST", "/queues/jobs/messages", with_properties(""))
    assert sent.status == 201
    assert "Properties" not in ask(server, "GET", "/queues/jobs/messages").body


def test_properties_count_towards_the_size(queue: Queue) -> None:
    """Names, types and values."""
    queue.set_encoding(False)
    queue.set_attributes(QueueMeta(max_msg_size=1_024))
    message = Message("x" * 1_000)
    message.add_user_property("name", MessagePropertyValue.create_string("x" * 14))
    queue.send_message(message)  # 4 + 6 + 14: the type is a String, as on SQS
    message.add_user_property("name", MessagePropertyValue.create_string("x" * 15))
    with refused("InvalidArgument"):
        queue.send_message(message)


@pytest.mark.parametrize(
    ("inner", "container"),
    [
        (prop("", "v", "STRING"), "UserProperties"),
        (prop(".a", "v", "STRING"), "UserProperties"),
        (prop("a..b", "v", "STRING"), "UserProperties"),
        (prop("a b", "v", "STRING"), "UserProperties"),
        (prop("a" * 257, "v", "STRING"), "UserProperties"),
        (prop("a", "", "STRING"), "UserProperties"),
        (prop("a", "v" * 4_097, "STRING"), "UserProperties"),
        (prop("a", "v", "LIST"), "UserProperties"),
        (prop("a", "one", "NUMBER"), "UserProperties"),
        (prop("a", "yes", "BOOLEAN"), "UserProperties"),
        (prop("a", "?", "BINARY"), "UserProperties"),
        (prop("a", "v", "STRING") * 2, "UserProperties"),
        ("".join(prop(f"a{number}", "v", "STRING") for number in range(51)), "UserProperties"),
        (prop("a", "v", "STRING").replace("PropertyValue", "SystemPropertyValue"), "SystemProperties"),
        (prop("baggage", "1", "NUMBER").replace("PropertyValue", "SystemPropertyValue"), "SystemProperties"),
    ],
    ids=[
        "no name",
        "dot at the beginning",
        "two dots",
        "space",
        "long name",
        "no value",
        "long value",
        "type",
        "number",
        "truth",
        "binary",
        "twice",
        "too many",
        "system name",
        "system type",
    ],
)
def test_properties_that_cannot_be_are_refused(server: RunningServer, queue: Queue, inner: str, container: str) -> None:
    """And the message is not stored."""
    reply = ask(server, "POST", "/queues/jobs/messages", with_properties(inner, container))
    assert (reply.status, reply.code) == (400, "InvalidArgument")
    with refused("MessageNotExist"):
        queue.receive_message()


def test_as_many_and_as_long_as_they_may_be(server: RunningServer, queue: Queue) -> None:
    """Fifty, with the longest name and value among them."""
    inner = "".join(prop(f"a{number}", "v", "STRING") for number in range(49))
    queue.set_encoding(False)
    longest = prop("a" * 256, "v" * 4_096, "STRING")
    assert ask(server, "POST", "/queues/jobs/messages", with_properties(inner + longest)).status == 201
    assert len(queue.receive_message().get_user_properties()) == 50


def test_a_dead_letter_tells_where_it_comes_from(account: Account, server: RunningServer) -> None:
    """In the three system properties that SDKs know of it, beside its own; it keeps its id and its time."""
    dead = account.get_queue("dead")
    dead.create(QueueMeta())
    policy = element("DeadLetterTargetQueue", "dead") + element("MaxReceiveCount", 2)
    assert ask(server, "PUT", "/queues/jobs", f"<Queue>{policy}</Queue>").status == 201
    queue = account.get_queue("jobs")
    message = Message("m")
    message.add_system_property(SystemPropertyName.BAGGAGE, text("k=v"))
    sent = queue.send_message(message)
    sent_at_ms = server.clock.now_ms()
    for _ in range(2):
        queue.receive_message()
        server.advance(seconds=30)
    with refused("MessageNotExist"):
        queue.receive_message()
    got = dead.receive_message()
    assert (got.message_id, got.enqueue_time) == (sent.message_id, sent_at_ms)
    told = {str(name): value.string_value for name, value in got.get_system_properties().items()}
    assert told == {
        "baggage": "k=v",
        "DLQMessageType": "MaxReceiveCountExceeded",
        "DLQSourceArn": "acs:mns:us-east-1:000000000000:/queues/jobs",
        "DLQOriginMessageId": sent.message_id,
    }
