"""Faults on demand, as the official Python SDK of SMQ sees them."""

import pytest
from mns.mns_exception import MNSClientNetworkException, MNSServerException
from mns.queue import Message, Queue

from tests.clients.smq.test_queues import counts
from veilmq.testing import RunningServer, faults
from veilmq.testing.faults import Fault


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (faults.UNAVAILABLE, "InternalServerError"),
        (faults.FAILED, "InternalError"),
        (faults.THROTTLED_403, "RequestThrottled"),
    ],
    ids=repr,
)
def test_a_refusal_is_an_error_of_smq(server: RunningServer, queue: Queue, fault: Fault, code: str) -> None:
    """With the address that was asked; nothing is carried out, and the next request is."""
    server.faults.script("smq.SendMessage", fault)
    with pytest.raises(MNSServerException) as caught:
        queue.send_message(Message("m"))
    assert (caught.value.type, caught.value.host_id) == (code, server.endpoint)
    assert counts(queue) == (0, 0, 0)
    queue.send_message(Message("m"))
    assert counts(queue) == (1, 0, 0)
    assert server.faults.left == []


def test_an_answer_that_is_lost_leaves_the_message_there(server: RunningServer, queue: Queue) -> None:
    """The SDK asks once more by itself, so there are two."""
    server.faults.script("smq.SendMessage", faults.ANSWER_DROPPED, times=2)
    with pytest.raises(MNSClientNetworkException):
        queue.send_message(Message("m"))
    assert counts(queue) == (2, 0, 0)
