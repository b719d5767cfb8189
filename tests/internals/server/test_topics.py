"""What a queue does not get of a topic: counted each time, said in the log now and then.

Then: subscribing a URL whose name is being looked up: nobody waits for ever, and who has gone is forgotten.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import urllib3

from tests.clients.smq.raw import ask, element
from tests.internals.server.scripted_engine import ScriptedEngine, played
from veilmq.core.commands import NewMessage
from veilmq.core.topic_errors import EndpointRefused
from veilmq.core.topics import PublishToTopic, Subscribe, Subscription
from veilmq.server.http_parser import Pending
from veilmq.server.pushes import NAME_S_MAX, Guard, SubscriptionRequest, TopicService
from veilmq.server.settings import AllowList, ServerSettings
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
    command = PublishToTopic(topic="1/t", size_bytes=1, make=lambda _: NewMessage(body="a", size_bytes=1))
    one = service(engine).handlers[PublishToTopic](command, 0, heard.append)
    one.hurry()
    assert len(engine.asked) == 1
    one.withdraw()
    assert (engine.asked, heard) == ([], [])


def service(engine: ScriptedEngine) -> TopicService:
    """Return the topics of a server that pushes nowhere."""
    return TopicService(
        ServerSettings(), engine=engine, clock=VirtualClock(), wall_s=lambda: 0.0, base_url="", identity=None
    )


URL = "http://hook.example/"
PUSHED = Subscribe(subscription=Subscription(topic="1/t", name="s", endpoint=URL, push_url=URL))
QUEUED = Subscribe(subscription=Subscription(topic="1/t", name="s", endpoint="q", queue="1/q"))


class Bench:
    """Subscribing on a scripted engine; a name is found when the test says it."""

    def __init__(self) -> None:
        """Nobody subscribes."""
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.heard: list[Any] = []
        self._guard = Guard(AllowList("hook.example"), resolve=self._resolve)

    async def _resolve(self, name: str, port: int) -> list[str]:
        return await self.found

    async def ask(self) -> Pending:
        """Begin."""
        one = SubscriptionRequest(PUSHED, self.heard.append, engine=self.engine, clock=self.clock, guard=self._guard)
        await turn()
        return one


@played
@asynccontextmanager
async def on_bench() -> AsyncIterator[Bench]:
    yield Bench()


async def turn() -> None:
    """Let what is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


@on_bench
async def test_the_engine_is_asked_when_the_guard_has_nothing_against_it(bench: Bench) -> None:
    await bench.ask()
    assert bench.engine.asked == []
    bench.found.set_result(["8.8.8.8"])
    await turn()
    assert bench.engine.answer("subscribed") == PUSHED
    await turn()
    assert bench.heard == ["subscribed"]


def test_a_queue_is_nothing_to_the_guard() -> None:
    engine, heard = ScriptedEngine(), list[object]()
    one = service(engine).handlers[Subscribe](QUEUED, 0, heard.append)
    one.hurry()
    assert engine.answer("subscribed") == QUEUED
    one.withdraw()
    assert heard == ["subscribed"]


@on_bench
async def test_what_the_guard_says_is_the_answer(bench: Bench) -> None:
    await bench.ask()
    bench.found.set_result(["10.0.0.1"])
    await turn()
    (refused,) = bench.heard
    assert isinstance(refused, EndpointRefused)
    assert bench.engine.asked == []


@on_bench
async def test_a_name_has_five_seconds(bench: Bench) -> None:
    one = await bench.ask()
    bench.clock.advance(NAME_S_MAX * 1_000 - 1)
    assert bench.heard == []
    bench.clock.advance(1)
    await turn()
    (refused,) = bench.heard
    assert "not found in time" in str(refused)
    one.hurry()
    assert len(bench.heard) == 1


@on_bench
async def test_a_server_that_closes_does_not_wait(bench: Bench) -> None:
    one = await bench.ask()
    one.hurry()
    await turn()
    assert "not found in time" in str(bench.heard[0])


@on_bench
async def test_nothing_happens_for_who_has_gone(bench: Bench) -> None:
    one = await bench.ask()
    one.withdraw()
    await turn()
    assert (bench.heard, bench.engine.asked) == ([], [])
    bench.clock.advance(NAME_S_MAX * 1_000)
    assert bench.heard == []


@on_bench
async def test_nothing_happens_for_who_goes_before_the_engine_has_begun(bench: Bench) -> None:
    one = await bench.ask()
    bench.found.set_result(["8.8.8.8"])
    await turn()
    one.withdraw()
    await turn()
    assert (bench.heard, bench.engine.asked) == ([], [])
