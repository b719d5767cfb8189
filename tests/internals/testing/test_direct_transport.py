"""The way to a server in the same process: the answers that sockets bring, and the same patience, in virtual time."""

import threading
from collections.abc import Iterator

import pytest

from veilmq.client.messages import ClientError, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.core.commands import VisibilityChange
from veilmq.testing import RunningServer, SteppedClock, faults
from veilmq.testing.consumer_bench import Call, DirectTransport

CHANGE = [VisibilityChange(receipt="none", timeout_s=1)]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """Run a server with a queue."""
    with RunningServer() as running:
        running.queue("orders")
        yield running


@pytest.fixture
def clock() -> SteppedClock:
    """Give the clients' clock."""
    return SteppedClock()


@pytest.fixture
def client(server: RunningServer, clock: SteppedClock) -> QueueClient:
    """Give a client."""
    return QueueClient(DirectTransport(server, clock))


def while_time_passes(server: RunningServer, clock: SteppedClock) -> threading.Event:
    """Move ``clock`` to whatever somebody waits for that no answer will bring, until the event is set."""
    stop = threading.Event()

    def pass_time() -> None:
        while not stop.wait(0.001):
            sleeps, next_s = clock.sleeps, clock.next_s()
            server.settle()
            if next_s is not None and clock.sleepers and clock.sleeps == sleeps:
                clock.set(max(next_s, clock.now_s()))

    threading.Thread(target=pass_time).start()
    return stop


def test_messages_go_to_and_fro(server: RunningServer, client: QueueClient) -> None:
    """No connection is made."""
    client.send("orders", "tea")
    (message,) = client.receive("orders", wait_s=0)
    client.delete("orders", message.receipt)
    assert server.queue("orders").bodies == []
    client.close()


def test_a_refusal_is_the_servers(client: QueueClient) -> None:
    with pytest.raises(ClientError, match="does not exist"):
        client.show("nowhere")


def test_what_fails_is_tried_three_times(server: RunningServer, clock: SteppedClock, client: QueueClient) -> None:
    """After pauses, in virtual time; the last answer is given."""
    client.show("orders")
    stop = while_time_passes(server, clock)
    server.faults.script("SendMessage", faults.UNAVAILABLE, times=2)
    client.send("orders", "tea")
    server.faults.script("SendMessage", faults.UNAVAILABLE, times=3)
    with pytest.raises(ClientError, match="not available"):
        client.send("orders", "tea")
    server.faults.script("SendMessage", faults.REQUEST_DROPPED, times=3)
    with pytest.raises(Unreachable, match="reset by peer"):
        client.send("orders", "tea")
    stop.set()
    assert server.faults.left == []
    assert clock.now_s() > 0


def test_patience_is_virtual(server: RunningServer, clock: SteppedClock, client: QueueClient) -> None:
    """A call that nobody answers is given up then, and tried once."""
    client.show("orders")
    stop = while_time_passes(server, clock)
    server.faults.script("ChangeMessageVisibilityBatch", faults.REQUEST_LOST)
    with pytest.raises(Unreachable, match="no answer in time"):
        client.change_visibility_batch("orders", CHANGE, patience_s=7)
    stop.set()
    assert clock.now_s() == 7
    assert isinstance(client.change_visibility_batch("orders", CHANGE, patience_s=7)[0], ClientError)


def test_a_call_is_a_line_of_its_own(clock: SteppedClock) -> None:
    """Whose turn is at once, from no address, and without a date."""
    call = Call("GET", "/", {}, b"", clock.alarm())
    begun = []
    call.request.in_turn(lambda: begun.append(call))
    assert begun == [call]
    assert call.request.source_ip() is None
    assert call.date.renew() == call.date.line


def test_who_gave_up_after_the_answer_takes_nothing_back(server: RunningServer, clock: SteppedClock) -> None:
    call = Call("POST", "/", {}, b"", clock.alarm())
    server.hand(call.request)
    server.withdraw(call.request)
    server.settle()
    assert call.reply is not None
    assert call.reply.status == 404


def test_a_poll_that_was_given_up_gets_nothing(server: RunningServer, clock: SteppedClock, client: QueueClient) -> None:
    """It is taken back from the server's line."""
    client.show("orders")
    stop = while_time_passes(server, clock)
    with pytest.raises(Unreachable):
        client.receive("orders", wait_s=20)
    stop.set()
    server.wait_until(lambda: server.parked == 0)
