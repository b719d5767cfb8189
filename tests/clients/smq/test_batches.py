"""Batches of SMQ, through its official Python SDK."""

import pytest
from mns.mns_exception import MNSServerException
from mns.queue import Message, Queue

from tests.clients.smq.test_queues import counts, refused
from veilmq.testing import RunningServer


def messages(count: int) -> list[Message]:
    """Return messages to send."""
    return [Message(f"m{number}") for number in range(count)]


def test_a_batch_goes_and_comes_in_order(queue: Queue) -> None:
    """Sixteen at once, each with its id."""
    sent = queue.batch_send_message(messages(16))
    got = queue.batch_receive_message_with_str_body(16)
    assert [each.message_body for each in got] == [f"m{number}" for number in range(16)]
    assert [(each.message_id, each.message_body_md5) for each in got] == [
        (each.message_id, each.message_body_md5) for each in sent
    ]
    assert len({each.receipt_handle for each in got}) == 16
    queue.batch_delete_message([each.receipt_handle for each in got])
    assert counts(queue) == (0, 0, 0)


def test_a_batch_gives_what_there_is(queue: Queue) -> None:
    """Fewer than were asked for, and an error where there is nothing."""
    queue.batch_send_message(messages(2))
    assert len(queue.batch_receive_message(16)) == 2
    with refused("MessageNotExist"):
        queue.batch_receive_message(16)
    with refused("MessageNotExist"):
        queue.batch_peek_message(16)


@pytest.mark.parametrize("count", [0, 17])
def test_a_batch_has_one_to_sixteen_messages(queue: Queue, count: int) -> None:
    """Of each kind; nothing of a batch that is refused is stored."""
    with refused("InvalidArgument"):
        queue.batch_send_message(messages(count))
    with refused("InvalidArgument"):
        queue.batch_delete_message(["r"] * count)
    if count:
        with refused("InvalidArgument"):
            queue.batch_receive_message(count)
        with refused("InvalidArgument"):
            queue.batch_peek_message(count)
    assert counts(queue) == (0, 0, 0)


def test_one_message_that_cannot_be_sent_is_the_error_of_its_batch(queue: Queue) -> None:
    """And nothing of the batch is stored."""
    for wrong in (Message("m", priority=17), Message("m", 604_801), Message("x" * 49_153)):
        with refused("InvalidArgument"):
            queue.batch_send_message([*messages(2), wrong])
    assert counts(queue) == (0, 0, 0)


def test_a_batch_has_64_kib_together(queue: Queue) -> None:
    """Of bodies as they are on the wire."""
    queue.set_encoding(False)
    with refused("InvalidArgument"):
        queue.batch_send_message([Message("x" * 32_768), Message("x" * 32_769)])
    assert counts(queue) == (0, 0, 0)
    queue.batch_send_message([Message("x" * 32_768)] * 2)
    assert counts(queue) == (2, 0, 0)


def test_messages_of_a_batch_have_delays_and_priorities_of_their_own(queue: Queue, server: RunningServer) -> None:
    """Sent together, each comes in its time and turn; no handle tells of a delay."""
    sent = queue.batch_send_message([Message("late", 10), Message("b", priority=9), Message("a", priority=2)])
    assert [each.receipt_handle for each in sent] == ["", "", ""]
    assert [each.message_body for each in queue.batch_receive_message_with_str_body(16)] == ["a", "b"]
    server.advance(seconds=10)
    assert queue.receive_message_with_str_body().message_body == "late"


def test_what_of_a_batch_could_not_be_deleted_is_told_and_the_rest_is_deleted(queue: Queue) -> None:
    """The SDK has an entry for each handle that did not act, with the handle byte for byte."""
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
    assert counts(queue) == (0, 0, 0)


def test_a_handle_that_stands_twice_in_a_batch_acts_once(queue: Queue) -> None:
    """The second one is of a message that is gone."""
    queue.send_message(Message("m"))
    handle = queue.receive_message().receipt_handle
    with refused("MessageNotExist"):
        queue.batch_delete_message([handle, handle])
    assert counts(queue) == (0, 0, 0)
