"""Single messages of SMQ, through its official Python SDK."""

from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5

import pytest
from mns.account import Account
from mns.queue import Message, Queue, QueueMeta

from tests.clients.smq.conftest import account_at
from tests.clients.smq.raw import ask, message
from tests.clients.smq.test_queues import counts, refused
from veilmq.testing import RunningServer

DAY_S = 86_400


@pytest.fixture
def second(server: RunningServer) -> Iterator[Queue]:
    """The same queue for another client: the SDK's connection is not for two threads."""
    with account_at(server) as other:
        yield other.get_queue("jobs")


def digest(text: str) -> str:
    """Return the digest of a body as it is on the wire."""
    return md5(text.encode()).hexdigest().upper()


def test_a_message_comes_as_it_was_sent(queue: Queue, server: RunningServer) -> None:
    """With the SDK's base64, whose digest is told; the instants are in milliseconds."""
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


def test_a_message_comes_as_it_was_sent_without_base64(queue: Queue) -> None:
    """What XML has its own characters for arrives; a raw line end arrives as XML has it."""
    queue.set_encoding(False)
    for text in ("plain", "Grüße & <Küsse> ]]> \"'", "\ttab\nline", "\U0001f680"):
        sent = queue.send_message(Message(text))
        assert sent.message_body_md5 == digest(text)
        got = queue.receive_message()
        assert (got.message_body, got.message_body_md5) == (text, digest(text))
        queue.delete_message(got.receipt_handle)
    queue.send_message(Message("a\r\nb"))
    assert queue.receive_message().message_body == "a\nb"


def test_a_character_that_xml_cannot_carry_is_malformed(queue: Queue) -> None:
    """The SDK writes it all the same."""
    queue.set_encoding(False)
    with refused("MalformedXML"):
        queue.send_message(Message("\x01"))


def test_of_a_body_with_markup_no_part_is_taken(queue: Queue, server: RunningServer) -> None:
    """As SDKs send it that escape nothing: it says what to do, and nothing is stored."""
    for body in ("a<b/>c", "<b>a</b>", " <b/> "):
        for sent in (message(body), f"<Messages>{message('m')}{message(body)}</Messages>"):
            refusal = ask(server, "POST", "/queues/jobs/messages", sent)
            assert (refusal.status, refusal.code) == (400, "InvalidArgument")
            assert "MessageBody, which is a text: write &lt; as &amp;lt; and" in refusal.text("Message")
    assert counts(queue) == (0, 0, 0)


def test_urgent_messages_come_first(queue: Queue) -> None:
    """1 is the most urgent, 8 what nobody names, 16 the least; equals come in the order of sending."""
    for body, priority in (("p16", 16), ("p8a", None), ("p1", 1), ("p9", 9), ("p8b", 8), ("p7", 7)):
        queue.send_message(Message(body, priority=priority))
    got = [queue.receive_message_with_str_body() for _ in range(6)]
    assert [each.message_body for each in got] == ["p1", "p7", "p8a", "p8b", "p9", "p16"]
    assert [each.priority for each in got] == [1, 7, 8, 8, 9, 16]


def test_there_are_sixteen_priorities(queue: Queue) -> None:
    """0 is what an SDK writes that nobody told one."""
    queue.send_message(Message("m", priority=0))
    assert queue.receive_message().priority == 8
    with refused("InvalidArgument"):
        queue.send_message(Message("m", priority=17))


def test_a_delayed_message_comes_to_the_millisecond(queue: Queue, server: RunningServer) -> None:
    """The longest delay is a week; the queue's own is for those that name none."""
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
        got = queue.receive_message_with_str_body()
        assert got.message_body == body
    with refused("InvalidArgument"):
        queue.send_message(Message("m", 604_801))


def _receive_and_delete(queue: Queue, *expected: str) -> None:
    """Receive until there is nothing; what comes must be expected: it came back."""
    while True:
        got = queue.receive_message_with_str_body()
        assert got.message_body in expected
        queue.delete_message(got.receipt_handle)


def test_a_message_that_its_queue_delays_has_a_handle_too(queue: Queue) -> None:
    """One that overrides the delay has none."""
    queue.set_attributes(QueueMeta(delay_sec=60))
    assert queue.send_message(Message("at once", 0)).receipt_handle == ""
    queue.delete_message(queue.send_message(Message("later")).receipt_handle)
    assert counts(queue) == (1, 0, 0)


def test_the_sender_of_a_delayed_message_can_call_it_off(queue: Queue, server: RunningServer) -> None:
    """With the handle of its send, while it is delayed, and once."""
    handle = queue.send_message(Message("m", 60)).receipt_handle
    server.advance(59_999)
    queue.delete_message(handle)
    assert counts(queue) == (0, 0, 0)
    with refused("MessageNotExist"):
        queue.delete_message(handle)


def test_the_sender_of_a_delayed_message_can_change_the_delay(queue: Queue, server: RunningServer) -> None:
    """It stays delayed, and the handle of the send is dead; its receive is the first one."""
    handle = queue.send_message(Message("m", 60)).receipt_handle
    changed = queue.change_message_visibility(handle, 10)
    assert int(changed.next_visible_time) == server.clock.now_ms() + 10_000
    assert counts(queue) == (0, 0, 1)
    with refused("MessageNotExist"):
        queue.delete_message(handle)
    server.advance(9_999)
    with refused("MessageNotExist"):
        queue.receive_message()
    server.advance(1)
    assert queue.receive_message().dequeue_count == 1
    with refused("MessageNotExist"):
        queue.delete_message(changed.receipt_handle)


def test_a_handle_of_a_send_is_dead_once_the_message_is_visible(queue: Queue, server: RunningServer) -> None:
    """Whether or not anybody has received it."""
    handle = queue.send_message(Message("m", 60)).receipt_handle
    server.advance(60_000)
    with refused("MessageNotExist"):
        queue.change_message_visibility(handle, 10)
    with refused("MessageNotExist"):
        queue.delete_message(handle)
    assert counts(queue) == (1, 0, 0)


def test_a_peek_changes_nothing(queue: Queue, server: RunningServer) -> None:
    """It shows what a receive would give, as often as it is asked; what is hidden it does not show."""
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


def test_a_receive_waits_for_a_message(queue: Queue, second: Queue, server: RunningServer) -> None:
    """A message that is sent meanwhile is its answer."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.receive_message_with_str_body, 30)
        server.wait_parked()
        queue.send_message(Message("m"))
        assert waiting.result(60).message_body == "m"


@pytest.mark.parametrize("asked_s", [-1, 30])
def test_a_receive_that_waited_in_vain_is_told_that_there_is_nothing(
    asked_s: int, account: Account, queue: Queue, second: Queue, server: RunningServer
) -> None:
    """After as long as it said, or its queue says; a receive that says 0 does not wait at all."""
    queue.set_attributes(QueueMeta(polling_wait_sec=30))
    with refused("MessageNotExist"):
        queue.receive_message(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.receive_message, asked_s)
        server.wait_parked()
        server.advance(29_999)
        assert not waiting.done()
        server.advance(1)
        with refused("MessageNotExist"):
            waiting.result(60)
    assert server.parked == 0
    with refused("InvalidArgument"):
        queue.receive_message(31)


def test_a_message_is_as_long_as_its_queue_allows(queue: Queue) -> None:
    """Counted on the wire: after base64, in bytes, with its properties."""
    queue.set_encoding(False)
    queue.set_attributes(QueueMeta(max_msg_size=1_024))
    queue.send_message(Message("x" * 1_024))
    for body in ("x" * 1_025, "ü" * 513):
        with refused("InvalidArgument"):
            queue.send_message(Message(body))
    assert counts(queue) == (1, 0, 0)


def test_messages_of_a_group_come_one_after_the_other(account: Account, server: RunningServer) -> None:
    """In a FIFO queue: while one is in flight the rest of its group waits; other groups go on."""
    server.queue("jobs.fifo")
    queue = account.get_queue("jobs.fifo")
    for body, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        sent = queue.send_message(Message(body, message_group_id=group))
        assert len(sent.message_id) == 32
    got = [queue.receive_message_with_str_body() for _ in range(2)]
    assert [(each.message_body, each.message_group_id) for each in got] == [("a1", "a"), ("b1", "b")]
    with refused("MessageNotExist"):
        queue.receive_message()
    queue.delete_message(got[0].receipt_handle)
    assert queue.receive_message_with_str_body().message_body == "a2"
    with refused("InvalidArgument"):
        queue.send_message(Message("of no group"))
