"""The client against a real server: every call of the port, over a real socket."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from veilmq.client import ClientError, HttpQueueClient, NewMessage, QueueClient, SentMessage
from veilmq.client.messages import RECEIPT_SUPERSEDED, Hidden
from veilmq.core.commands import VisibilityChange
from veilmq.core.messages import Attribute
from veilmq.core.settings import QueueSettings
from veilmq.testing import RunningServer


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """Run a server whose clock the test moves."""
    with RunningServer(**place(request.param)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[QueueClient]:
    """Connect a client, as the port and no more, to a queue "orders" with a timeout of 60 s."""
    with HttpQueueClient(server.endpoint) as connected:
        connected.create_queue("orders", {"visibility_timeout_s": 60})
        yield connected


def test_a_created_queue_is_found_and_listed(server: RunningServer, client: QueueClient) -> None:
    """By its URL, its name and the beginning of its name."""
    url = f"{server.endpoint}/000000000000/orders"
    assert client.create_queue("orders", {"visibility_timeout_s": 60}) == url
    assert client.queue_url("orders") == url
    client.create_queue("other")
    assert client.list_queues() == ["orders", "other"]
    assert client.list_queues("ot") == ["other"]
    assert client.list_queues("x") == []


def test_show_tells_settings_and_counters(server: RunningServer, client: QueueClient) -> None:
    """One message in each state."""
    client.send("orders", "in flight")
    client.receive("orders")
    client.send("orders", "visible")
    client.send("orders", "delayed", delay_s=9)
    status = client.show("orders")
    assert (status.queue, status.url) == ("orders", f"{server.endpoint}/000000000000/orders")
    assert status.settings == QueueSettings(visibility_timeout_s=60)
    assert (status.visible, status.in_flight, status.delayed) == (1, 1, 1)
    assert status.created_at_ms == status.modified_at_ms == server.clock.now_ms()


def test_set_changes_the_named_settings(client: QueueClient) -> None:
    """The others stay."""
    client.set("orders", {"delay_s": 3, "receive_wait_s": 1})
    assert client.show("orders").settings == QueueSettings(visibility_timeout_s=60, delay_s=3, receive_wait_s=1)


def test_a_message_keeps_its_body_and_attributes(server: RunningServer, client: QueueClient) -> None:
    """Text and bytes go through unchanged, and times and counts are told."""
    attributes = {"colour": Attribute(type="String", text="röt"), "raw": Attribute(type="Binary", data=b"\x00\xff")}
    sent = client.send("orders", 'a "body"\n€', attributes=attributes)
    sent_at_ms = server.clock.now_ms()
    server.advance(250)
    (message,) = client.receive("orders", count=10)
    assert (message.id, message.body, message.attributes) == (sent.id, 'a "body"\n€', attributes)
    assert (message.sent_at_ms, message.first_received_at_ms) == (sent_at_ms, sent_at_ms + 250)
    assert message.receive_count == 1


def test_a_delay_and_a_timeout_hide_the_message(server: RunningServer, client: QueueClient) -> None:
    """Each until its own instant, and the queue's timeout after that."""
    client.send("orders", "later", delay_s=2)
    assert client.receive("orders") == []
    server.advance(2_000)
    assert len(client.receive("orders", timeout_s=1)) == 1
    assert client.receive("orders") == []
    server.advance(1_000)
    (again,) = client.receive("orders")
    assert again.receive_count == 2
    server.advance(59_999)
    assert client.receive("orders") == []
    server.advance(1)
    assert len(client.receive("orders")) == 1


def test_a_change_moves_the_deadline(server: RunningServer, client: QueueClient) -> None:
    """To n seconds from the call, and to 0 for at once."""
    client.send("orders", "one")
    (message,) = client.receive("orders")
    client.change_visibility("orders", message.receipt, 5)
    server.advance(5_000)
    (message,) = client.receive("orders")
    client.change_visibility("orders", message.receipt, 0)
    assert len(client.receive("orders")) == 1


def test_a_deleted_message_does_not_come_back(server: RunningServer, client: QueueClient) -> None:
    """Not after its timeout either."""
    client.send("orders", "one")
    (message,) = client.receive("orders")
    client.delete("orders", message.receipt)
    server.advance(60_000)
    assert client.receive("orders") == []


def test_a_batch_succeeds_and_fails_entry_by_entry(client: QueueClient) -> None:
    """Each kind of batch, with one entry that is wrong in the middle."""
    messages = [NewMessage(body="a"), NewMessage(body="b", delay_s=901), NewMessage(body="c")]
    first, wrong, last = client.send_batch("orders", messages)
    assert isinstance(first, SentMessage)
    assert isinstance(last, SentMessage)
    assert isinstance(wrong, ClientError)
    assert (wrong.code, wrong.status) == ("InvalidParameterValue", 400)

    received = {message.id: message.receipt for message in client.receive("orders", count=10)}
    assert received.keys() == {first.id, last.id}
    changes = [(received[first.id], 7), ("nonsense", 7), (received[last.id], 7)]
    moved = client.change_visibility_batch(
        "orders", [VisibilityChange(receipt=receipt, timeout_s=timeout_s) for receipt, timeout_s in changes]
    )
    assert [answer.code if isinstance(answer, ClientError) else answer for answer in moved] == [
        Hidden(7.0),
        "ReceiptHandleIsInvalid",
        Hidden(7.0),
    ]
    deleted = client.delete_batch("orders", [received[first.id], "nonsense", received[last.id]])
    assert [error and error.code for error in deleted] == [None, "ReceiptHandleIsInvalid", None]
    status = client.show("orders")
    assert (status.visible, status.in_flight, status.delayed) == (0, 0, 0)


def test_a_change_by_a_receipt_that_others_have_outdated_is_an_error(
    server: RunningServer, client: QueueClient
) -> None:
    """SQS calls it a success; our server tells us that nothing was changed."""
    client.send("orders", "hello")
    (early,) = client.receive("orders", timeout_s=1)
    server.advance(1_000)
    (late,) = client.receive("orders")
    changes = [VisibilityChange(receipt=receipt, timeout_s=7) for receipt in (early.receipt, late.receipt)]
    outdated, moved = client.change_visibility_batch("orders", changes)
    assert isinstance(outdated, ClientError)
    assert (outdated.code, moved) == (RECEIPT_SUPERSEDED, Hidden(7.0))


def test_purge_empties_and_delete_queue_removes(client: QueueClient) -> None:
    """A purged queue is there, a deleted one is not, though its URL is still remembered."""
    client.send("orders", "one")
    client.purge("orders")
    assert client.show("orders").visible == 0
    client.delete_queue("orders")
    assert client.list_queues() == []
    with pytest.raises(ClientError) as caught:
        client.send("orders", "two")
    assert (caught.value.code, caught.value.status) == ("QueueDoesNotExist", 400)


def test_the_servers_refusals_have_its_codes(client: QueueClient) -> None:
    """For example: another setting, a queue that is not there."""
    with pytest.raises(ClientError, match="exist") as caught:
        client.create_queue("orders", {"visibility_timeout_s": 61})
    assert caught.value.code == "QueueNameExists"
    with pytest.raises(ClientError) as caught:
        client.receive("nowhere")
    assert caught.value.code == "QueueDoesNotExist"


def test_tags_are_put_and_removed(client: QueueClient) -> None:
    """Beside those that are there."""
    client.create_queue("tagged", tags={"a": "1"})
    client.tag("tagged", {"b": "2", "c": ""})
    client.untag("tagged", ["a", "nowhere"])
    assert client.tags("tagged") == {"b": "2", "c": ""}
    assert client.tags("orders") == {}


def test_a_fifo_queue_keeps_order_and_drops_duplicates(client: QueueClient) -> None:
    """Groups, ids and numbers go through, alone and in batches; a lost receive is repeated by its attempt id."""
    client.create_queue("a.fifo", {"fifo": True})
    first = client.send("a.fifo", "1", group="g", dedup_id="d1")
    assert client.send("a.fifo", "again", group="g", dedup_id="d1") == first
    (second,) = client.send_batch("a.fifo", [NewMessage(body="2", group="g", dedup_id="d2")])
    assert isinstance(second, SentMessage)
    assert second.sequence is not None
    assert first.sequence is not None
    assert first.sequence < second.sequence
    messages = client.receive("a.fifo", count=10, attempt_id="x")
    assert [(message.body, message.group, message.dedup_id) for message in messages] == [
        ("1", "g", "d1"),
        ("2", "g", "d2"),
    ]
    assert [message.sequence for message in messages] == [first.sequence, second.sequence]
    assert client.receive("a.fifo", count=10, attempt_id="x") == messages
    assert client.receive("a.fifo", count=10) == []


def test_dead_letters_go_where_they_are_sent_and_come_back(server: RunningServer, client: QueueClient) -> None:
    """Other queues are named plainly; a dead letter tells its source."""
    client.create_queue("dead")
    client.set("orders", {"dead_letter_queue": "dead", "receives_max": 1})
    settings = client.show("orders").settings
    assert (settings.dead_letter_queue, settings.receives_max) == ("000000000000/dead", 1)
    client.set("dead", {"redrive_permission": "listed", "redrive_sources": ("orders",)})
    assert client.show("dead").settings.redrive_sources == ("000000000000/orders",)
    assert client.dead_letter_sources("dead") == ["orders"]
    client.send("orders", "m")
    for _ in range(2):
        client.receive("orders", timeout_s=0)
    (letter,) = client.receive("dead", timeout_s=0)
    assert letter.source == "orders"
    handle = client.start_move("dead", destination="orders", moves_per_s_max=500)
    server.advance(1_000)
    (move,) = client.moves("dead")
    assert (move.status, move.handle, move.destination, move.moves_per_s_max) == ("completed", None, "orders", 500)
    assert (move.messages_moved, move.messages_to_move, move.failure) == (1, 1, None)
    with pytest.raises(ClientError) as caught:
        client.cancel_move(handle)
    assert caught.value.code == "ResourceNotFoundException"
    assert client.show("orders").visible == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"receives_max": 3}, "receives_max can only be changed together with dead_letter_queue"),
        ({"tags": "x"}, "'tags' is no setting of a queue"),
    ],
)
def test_settings_that_cannot_be_written(settings: dict[str, int | str], text: str, client: QueueClient) -> None:
    """Are refused before anything is sent."""
    with pytest.raises(ValueError, match=text):
        client.set("orders", settings)
