"""What a queue does not get of a topic: counted each time, said in the log now and then."""

import pytest
import urllib3

from tests.clients.smq.raw import ask, element
from tests.internals.server.scripted_engine import ScriptedEngine
from veilmq.core.commands import NewMessage
from veilmq.core.topics import PublishToTopic
from veilmq.server.metrics import TopicCounts
from veilmq.server.topics import TopicPublishing
from veilmq.testing import RunningServer, VirtualClock


def publish(server: RunningServer, body: str = "hello") -> None:
    """Publish to the topic."""
    reply = ask(server, "POST", "/topics/news/messages", f"<Message>{element('MessageBody', body)}</Message>")
    assert reply.status == 201


def undeliverable(server: RunningServer) -> int:
    """Return what the metrics say."""
    (line,) = [
        line
        for line in urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode().splitlines()
        if line.startswith("veilmq_topic_messages_undeliverable_total ")
    ]
    return int(float(line.partition(" ")[2]))


def test_a_queue_that_is_gone_is_told_of_once_a_minute(
    veilmq_server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = veilmq_server
    ask(server, "PUT", "/topics/news")
    for name in ("gone", "stays"):
        ask(server, "PUT", f"/queues/{name}")
        endpoint = element("Endpoint", f"acs:mns:r:000000000000:queues/{name}")
        assert (
            ask(server, "PUT", f"/topics/news/subscriptions/{name}", f"<Subscription>{endpoint}</Subscription>").status
            == 201
        )
    publish(server)
    assert undeliverable(server) == 0
    ask(server, "DELETE", "/queues/gone")
    for _ in range(3):
        publish(server)
    assert undeliverable(server) == 3
    told = "of 000000000000/news did not come to subscription gone: The queue 000000000000/gone does not exist"
    assert caplog.text.count(told) == 1
    server.advance(seconds=60)
    publish(server)
    assert caplog.text.count(told) == 2
    assert "subscription stays" not in caplog.text
    page = ask(server, "GET", "/queues/stays/messages?numOfMessages=16")
    assert len(page.texts("MessageId")) == 5


def test_a_publication_is_withdrawn_while_it_is_not_begun() -> None:
    engine, heard = ScriptedEngine(), list[object]()
    publishing = TopicPublishing(engine=engine, clock=VirtualClock(), counts=TopicCounts())
    command = PublishToTopic(topic="1/t", size_bytes=1, make=lambda _: NewMessage(body="a", size_bytes=1))
    one = publishing.ask(command, 0, heard.append)
    one.hurry()
    assert len(engine.asked) == 1
    one.withdraw()
    assert (engine.asked, heard) == ([], [])
