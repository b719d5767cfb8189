"""Messages of SMQ with its official Python SDK: single ones, batches, properties and faults."""

from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5

import pytest
from mns.account import Account
from mns.message_property import (
    MessagePropertyValue,
    MessageSystemPropertyValue,
    PropertyType,
    SystemPropertyName,
    SystemPropertyType,
)
from mns.mns_exception import MNSClientNetworkException, MNSServerException
from mns.queue import Message, Queue, QueueMeta

from tests.clients.smq.conftest import account_at
from tests.clients.smq.raw import element, message, smq_request
from tests.clients.smq.test_queues import check_invalid, counts, refused
from veilmq.testing import RunningServer, faults
from veilmq.testing.faults import Fault

DAY_S = 86_400


@pytest.fixture
def second(server: RunningServer) -> Iterator[Queue]:
    """The queue of another client, as a connection of the SDK cannot be shared by threads."""
    with account_at(server) as other:
        yield other.get_queue("jobs")


def digest(text: str) -> str:
    return md5(text.encode()).hexdigest().upper()


def test_a_message_is_received_unchanged(queue: Queue, server: RunningServer) -> None:
    sent = queue.send_message(Message("Grüße & <Küsse>\r\n"))
    assert len(sent.message_id) == 32
    assert sent.message_id == sent.message_id.upper()
    assert sent.receipt_handle == ""
    server.advance(1_500)
    got = queue.receive_message_with_str_body()
    assert got.message_body == "Grüße & <Küsse>\r\n"
    assert (got.message_id, got.message_body_md5) == (sent.message_id, sent.message_body_md5)
    assert got.message_body_md5 == digest(b64encode("Grüße & <Küsse>\r\n".encode()).decode())
    now_ms = server.clock.now_ms()
    assert (got.enqueue_time, got.first_dequeue_time) == (now_ms - 1_500, now_ms)
    assert (got.next_visible_time, got.dequeue_count, got.priority) == (now_ms + 30_000, 1, 8)
    queue.delete_message(got.receipt_handle)
    assert counts(queue) == (0, 0, 0)


def test_a_message_without_base64_is_received_unchanged(queue: Queue) -> None:
    """Except for raw line ends, which XML normalises."""
    queue.set_encoding(False)
    for text in ("plain", "Grüße & <Küsse> ]]> \"'", "\ttab\nline", "\U0001f680"):
        assert queue.send_message(Message(text)).message_body_md5 == digest(text)
        got = queue.receive_message()
        assert (got.message_body, got.message_body_md5) == (text, digest(text))
        queue.delete_message(got.receipt_handle)
    queue.send_message(Message("a\r\nb"))
    assert queue.receive_message().message_body == "a\nb"
    with refused("MalformedXML"):
        queue.send_message(Message("\x01"))


def test_a_body_with_unescaped_markup_is_refused(queue: Queue, server: RunningServer) -> None:
    """Some SDKs do not escape; the error explains how."""
    for body in ("a<b/>c", "<b>a</b>", " <b/> "):
        for sent in (message(body), f"<Messages>{message('m')}{message(body)}</Messages>"):
            refusal = smq_request(server, "POST", "/queues/jobs/messages", sent)
            assert (refusal.status, refusal.code) == (400, "InvalidArgument")
            assert "MessageBody, which is a text: write &lt; as &amp;lt; and" in refusal.text("Message")
    assert counts(queue) == (0, 0, 0)


def test_messages_are_received_by_priority(queue: Queue) -> None:
    """From 1 to 16, with 8 as the default; messages of equal priority in the order of sending."""
    for body, priority in (("p16", 16), ("p8a", None), ("p1", 1), ("p9", 9), ("p8b", 8), ("p7", 7)):
        queue.send_message(Message(body, priority=priority))
    got = [queue.receive_message_with_str_body() for _ in range(6)]
    assert [each.message_body for each in got] == ["p1", "p7", "p8a", "p8b", "p9", "p16"]
    assert [each.priority for each in got] == [1, 7, 8, 8, 9, 16]


def test_a_delayed_message_becomes_visible_exactly_on_time(queue: Queue, server: RunningServer) -> None:
    queue.set_attributes(QueueMeta(delay_sec=60, msg_ttl=604_800))
    queue.send_message(Message("now", 0))
    queue.send_message(Message("in a minute"))
    queue.send_message(Message("in six days", 6 * DAY_S))
    assert queue.receive_message_with_str_body().message_body == "now"
    for wait_ms, body in ((60_000, "in a minute"), (6 * DAY_S * 1_000 - 60_000, "in six days")):
        server.advance(wait_ms - 1)
        with refused("MessageNotExist"):
            _receive_and_delete(queue, "now", "in a minute")
        server.advance(1)
        assert queue.receive_message_with_str_body().message_body == body
    with refused("InvalidArgument"):
        queue.send_message(Message("m", 604_801))


def _receive_and_delete(queue: Queue, *expected: str) -> None:
    """Receive and delete messages until the queue is empty; they must have these bodies."""
    while True:
        got = queue.receive_message_with_str_body()
        assert got.message_body in expected
        queue.delete_message(got.receipt_handle)


@pytest.mark.parametrize("delay_s", [None, 60], ids=["of the queue", "of the message"])
def test_the_sender_can_delete_a_delayed_message(queue: Queue, server: RunningServer, delay_s: int | None) -> None:
    queue.set_attributes(QueueMeta(delay_sec=60))
    assert queue.send_message(Message("at once", 0)).receipt_handle == ""
    handle = queue.send_message(Message("m", delay_s)).receipt_handle
    server.advance(59_999)
    queue.delete_message(handle)
    assert counts(queue) == (1, 0, 0)
    check_invalid(queue, handle)


def test_the_sender_can_change_the_delay_of_a_message(queue: Queue, server: RunningServer) -> None:
    handle = queue.send_message(Message("m", 60)).receipt_handle
    changed = queue.change_message_visibility(handle, 10)
    assert int(changed.next_visible_time) == server.clock.now_ms() + 10_000
    assert counts(queue) == (0, 0, 1)
    check_invalid(queue, handle)
    server.advance(9_999)
    with refused("MessageNotExist"):
        queue.receive_message()
    server.advance(1)
    check_invalid(queue, changed.receipt_handle)
    assert queue.receive_message().dequeue_count == 1


def test_a_peek_changes_no_message(queue: Queue, server: RunningServer) -> None:
    with refused("MessageNotExist"):
        queue.peek_message()
    for body, priority in (("b", 8), ("a", 1)):
        queue.send_message(Message(body, priority=priority))
    queue.send_message(Message("later", 60))
    for _ in range(2):
        seen = queue.peek_message_with_str_body()
        assert (seen.message_body, seen.priority, seen.dequeue_count) == ("a", 1, 0)
        assert seen.first_dequeue_time == seen.enqueue_time == server.clock.now_ms()
        assert (seen.receipt_handle, seen.message_body_md5) == ("", digest("YQ=="))
    assert [each.message_body for each in queue.batch_peek_message_with_str_body(16)] == ["a", "b"]
    assert counts(queue) == (2, 0, 1)
    server.advance(1_000)
    got = queue.receive_message_with_str_body()
    assert (got.message_body, got.dequeue_count) == ("a", 1)
    server.advance(30_000)
    seen = queue.peek_message_with_str_body()
    assert (seen.message_body, seen.dequeue_count, seen.first_dequeue_time) == ("a", 1, got.first_dequeue_time)


@pytest.mark.parametrize("wait_s", [-1, 30])
def test_a_long_poll_that_times_out_is_an_error(
    wait_s: int, account: Account, queue: Queue, second: Queue, server: RunningServer
) -> None:
    queue.set_attributes(QueueMeta(polling_wait_sec=30))
    with refused("MessageNotExist"):
        queue.receive_message(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.receive_message, wait_s)
        server.wait_parked()
        server.advance(29_999)
        assert not waiting.done()
        server.advance(1)
        with refused("MessageNotExist"):
            waiting.result(60)
    assert server.parked == 0
    with refused("InvalidArgument"):
        queue.receive_message(31)


def test_a_queue_limits_the_size_of_messages(queue: Queue) -> None:
    queue.set_encoding(False)
    queue.set_attributes(QueueMeta(max_msg_size=1_024))
    queue.send_message(Message("x" * 1_024))
    for body in ("x" * 1_025, "ü" * 513):
        with refused("InvalidArgument"):
            queue.send_message(Message(body))
    assert counts(queue) == (1, 0, 0)


# Batches.


def messages(count: int) -> list[Message]:
    return [Message(f"m{number}") for number in range(count)]


def test_a_batch_keeps_its_order(queue: Queue) -> None:
    sent = queue.batch_send_message(messages(16))
    got = queue.batch_receive_message_with_str_body(16)
    assert [each.message_body for each in got] == [f"m{number}" for number in range(16)]
    assert [(each.message_id, each.message_body_md5) for each in got] == [
        (each.message_id, each.message_body_md5) for each in sent
    ]
    assert len({each.receipt_handle for each in got}) == 16
    queue.batch_delete_message([each.receipt_handle for each in got])
    assert counts(queue) == (0, 0, 0)


def test_a_batch_receive_returns_the_available_messages(queue: Queue) -> None:
    queue.batch_send_message(messages(2))
    assert len(queue.batch_receive_message(16)) == 2
    with refused("MessageNotExist"):
        queue.batch_receive_message(16)
    with refused("MessageNotExist"):
        queue.batch_peek_message(16)


def test_a_batch_has_one_to_sixteen_messages(queue: Queue) -> None:
    for action, argument in (
        *((queue.batch_send_message, messages(count)) for count in (0, 17)),
        *((queue.batch_delete_message, ["r"] * count) for count in (0, 17)),
        *((action, 17) for action in (queue.batch_receive_message, queue.batch_peek_message)),
    ):
        with refused("InvalidArgument"):
            action(argument)
    assert counts(queue) == (0, 0, 0)


def test_an_invalid_message_fails_its_batch(queue: Queue) -> None:
    """A batch is limited to 64 KiB."""
    queue.set_encoding(False)
    half = Message("x" * 32_768)
    for wrong in (Message("m", priority=17), Message("m", 604_801), Message("x" * 65_537), Message("x" * 32_769)):
        with refused("InvalidArgument"):
            queue.batch_send_message([half, wrong])
    assert counts(queue) == (0, 0, 0)
    queue.batch_send_message([half, half])
    assert counts(queue) == (2, 0, 0)


def test_each_message_of_a_batch_has_its_delay_and_priority(queue: Queue, server: RunningServer) -> None:
    sent = queue.batch_send_message([Message("late", 10), Message("b", priority=9), Message("a", priority=2)])
    assert [each.receipt_handle for each in sent] == ["", "", ""]
    assert [each.message_body for each in queue.batch_receive_message_with_str_body(16)] == ["a", "b"]
    server.advance(seconds=10)
    assert queue.receive_message_with_str_body().message_body == "late"


def test_a_batch_delete_reports_invalid_handles_and_deletes_the_other_messages(queue: Queue) -> None:
    queue.batch_send_message(messages(3))
    first, second, third = (each.receipt_handle for each in queue.batch_receive_message(3))
    queue.delete_message(second)
    foreign = "1-ODU4OTkzNDU5My0xNDM1MTk3NjAwLTItNg=="
    with pytest.raises(MNSServerException) as caught:
        queue.batch_delete_message([first, second, third, foreign])
    assert caught.value.type == "MessageNotExist"
    assert len(caught.value.request_id) == 24
    assert caught.value.sub_errors == [
        {"ErrorCode": "MessageNotExist", "ErrorMessage": "Message not exist.", "ReceiptHandle": second},
        {
            "ErrorCode": "ReceiptHandleError",
            "ErrorMessage": "The receipt handle you provide is not valid.",
            "ReceiptHandle": foreign,
        },
    ]
    queue.send_message(Message("m"))
    handle = queue.receive_message().receipt_handle
    with refused("MessageNotExist"):
        queue.batch_delete_message([handle, handle])
    assert counts(queue) == (0, 0, 0)


# Properties.


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def text(value: str) -> MessageSystemPropertyValue:
    return MessageSystemPropertyValue(SystemPropertyType.STRING, value)


def prop(name: object, value: object, kind: str) -> str:
    return element("PropertyValue", element("Name", name) + element("Value", value) + element("Type", kind))


def with_properties(inner: str, container: str = "UserProperties") -> str:
    return f"<Message><MessageBody>m</MessageBody><{container}>{inner}</{container}></Message>"


def test_properties_of_all_types_are_received_unchanged(queue: Queue) -> None:
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
        found = got.get_user_properties()
        assert [(name, each.get_data_type(), each.get_raw_value()) for name, each in found.items()] == [
            (name, each.get_data_type(), each.get_raw_value()) for name, each in values.items()
        ]
        (system,) = got.get_system_properties().items()
        assert (str(system[0]), system[1].string_value) == ("traceparent", TRACE)


def test_a_message_without_properties_has_no_properties_element(server: RunningServer, queue: Queue) -> None:
    assert smq_request(server, "POST", "/queues/jobs/messages", with_properties("")).status == 201
    assert "Properties" not in smq_request(server, "GET", "/queues/jobs/messages").body


def test_properties_count_towards_the_size(queue: Queue) -> None:
    queue.set_encoding(False)
    queue.set_attributes(QueueMeta(max_msg_size=1_024))
    message = Message("x" * 1_000)
    message.add_user_property("name", MessagePropertyValue.create_string("x" * 14))
    queue.send_message(message)  # 4 + 6 + 14: the type is a String, as on SQS
    message.add_user_property("name", MessagePropertyValue.create_string("x" * 15))
    with refused("InvalidArgument"):
        queue.send_message(message)


WRONG_PROPERTIES = {
    "no name": prop("", "v", "STRING"),
    "dot at the beginning": prop(".a", "v", "STRING"),
    "two dots": prop("a..b", "v", "STRING"),
    "space": prop("a b", "v", "STRING"),
    "long name": prop("a" * 257, "v", "STRING"),
    "no value": prop("a", "", "STRING"),
    "long value": prop("a", "v" * 4_097, "STRING"),
    "type": prop("a", "v", "LIST"),
    "number": prop("a", "one", "NUMBER"),
    "truth": prop("a", "yes", "BOOLEAN"),
    "binary": prop("a", "?", "BINARY"),
    "twice": prop("a", "v", "STRING") * 2,
    "too many": "".join(prop(f"a{number}", "v", "STRING") for number in range(51)),
    "system name": prop("a", "v", "STRING"),
    "system type": prop("baggage", "1", "NUMBER"),
}


@pytest.mark.parametrize("wrong", WRONG_PROPERTIES)
def test_invalid_properties_are_refused(server: RunningServer, queue: Queue, wrong: str) -> None:
    inner = WRONG_PROPERTIES[wrong]
    if wrong.startswith("system"):
        sent = with_properties(inner.replace("PropertyValue", "SystemPropertyValue"), "SystemProperties")
    else:
        sent = with_properties(inner)
    reply = smq_request(server, "POST", "/queues/jobs/messages", sent)
    assert (reply.status, reply.code) == (400, "InvalidArgument")
    with refused("MessageNotExist"):
        queue.receive_message()


def test_properties_of_the_maximum_number_and_size_are_accepted(server: RunningServer, queue: Queue) -> None:
    inner = "".join(prop(f"a{number}", "v", "STRING") for number in range(49))
    queue.set_encoding(False)
    longest = prop("a" * 256, "v" * 4_096, "STRING")
    assert smq_request(server, "POST", "/queues/jobs/messages", with_properties(inner + longest)).status == 201
    assert len(queue.receive_message().get_user_properties()) == 50


def test_a_dead_letter_has_properties_about_its_source(account: Account, server: RunningServer) -> None:
    dead = account.get_queue("dead")
    dead.create(QueueMeta())
    policy = element("DeadLetterTargetQueue", "dead") + element("MaxReceiveCount", 2)
    assert smq_request(server, "PUT", "/queues/jobs", f"<Queue>{policy}</Queue>").status == 201
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
    assert {str(name): value.string_value for name, value in got.get_system_properties().items()} == {
        "baggage": "k=v",
        "DLQMessageType": "MaxReceiveCountExceeded",
        "DLQSourceArn": "acs:mns:us-east-1:000000000000:/queues/jobs",
        "DLQOriginMessageId": sent.message_id,
    }


# Injected faults.


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (faults.UNAVAILABLE, "InternalServerError"),
        (faults.FAILED, "InternalError"),
        (faults.THROTTLED_403, "RequestThrottled"),
    ],
    ids=repr,
)
def test_an_injected_error_has_the_code_of_smq(server: RunningServer, queue: Queue, fault: Fault, code: str) -> None:
    server.faults.script("smq.SendMessage", fault)
    with pytest.raises(MNSServerException) as caught:
        queue.send_message(Message("m"))
    assert (caught.value.type, caught.value.host_id) == (code, server.endpoint)
    assert counts(queue) == (0, 0, 0)
    queue.send_message(Message("m"))
    assert counts(queue) == (1, 0, 0)
    assert server.faults.left == []


def test_a_lost_reply_keeps_the_message(server: RunningServer, queue: Queue) -> None:
    """There are two, as the SDK retries once."""
    server.faults.script("smq.SendMessage", faults.ANSWER_DROPPED, times=2)
    with pytest.raises(MNSClientNetworkException):
        queue.send_message(Message("m"))
    assert counts(queue) == (2, 0, 0)
