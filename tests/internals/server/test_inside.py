"""Requests from inside the process: answered as those by sockets are, taken back, hurried, and by nobody unknown."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.internals.server.scripted_engine import ScriptedEngine
from tests.server.keys import FRIEND, OWNER, REGION, written
from veilmq.console.asking import Answer, Asked
from veilmq.core.commands import CreateQueue, NewMessage, Send, SetQueue, ShowQueue
from veilmq.core.ports import Engine
from veilmq.core.results import QueueView
from veilmq.core.settings import QueueSettings
from veilmq.server.authentication import Authentication
from veilmq.server.dispatch import Dispatcher
from veilmq.server.inside import Inside
from veilmq.server.longpoll import LongPolls
from veilmq.server.metrics import Metrics
from veilmq.server.permissions import Permissions
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import VirtualClock
from veilmq.wire.exchange import caller_named

QUEUE = f"{OWNER}/jobs"
URL = f"http://h/{QUEUE}"
ME = caller_named(OWNER)


class House:
    """A dispatcher on an engine, and the way in; with ``keys`` one that knows accounts."""

    def __init__(self, engine: Engine, *, keys: Path | None = None) -> None:
        """Made in the event loop."""
        self.polls = LongPolls(engine=engine, clock=VirtualClock())
        self.metrics = Metrics()
        guards: dict[str, Any] = {}
        if keys is not None:
            guards["authentication"] = Authentication(keys, region=REGION, secure=False, wall_s=lambda: 0.0)
            guards["permissions"] = Permissions(engine, region=REGION, secure=False, wall_s=lambda: 0.0)
        self.inside = Inside(
            Dispatcher(polls=self.polls, metrics=self.metrics, host="h", account=OWNER, region=REGION, **guards)
        )

    async def sqs(self, action: str, who: Any = None, peer: str | None = None, **fields: Any) -> Answer:
        """Ask by an action of SQS."""
        headers = {b"x-amz-target": b"AmazonSQS." + action.encode(), b"host": b"h"}
        return await self.inside.ask(Asked(b"POST", b"/", headers, json.dumps(fields).encode(), who, peer))

    async def api(self, target: str, who: Any = None) -> Answer:
        """Ask for a route of our API."""
        return await self.inside.ask(Asked(b"GET", target.encode(), {b"host": b"h"}, b"", who, None))


@asynccontextmanager
async def housed(keys: Path | None = None) -> AsyncIterator[tuple[House, SqliteStore]]:
    """Give a house with a queue."""
    engine = SqliteStore(None, clock=VirtualClock())
    try:
        await execute(engine, CreateQueue(queue=QUEUE))
        yield House(engine, keys=keys), engine
    finally:
        await engine.close()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A credentials file."""
    return written(tmp_path / "keys.toml")


async def parked(house: House, engine: SqliteStore) -> "asyncio.Task[Answer]":
    """Return a receive that waits for a message."""
    receiving = asyncio.ensure_future(house.sqs("ReceiveMessage", QueueUrl=URL, WaitTimeSeconds=20))
    while not house.polls.parked:
        await asyncio.sleep(0)
        await engine.answered()
    return receiving


def test_an_answer_is_what_a_socket_would_have_got() -> None:
    """Status, headers and body, of every protocol, errors too; and it is counted."""

    async def play() -> None:
        async with housed() as (house, _):
            sent = await house.sqs("SendMessage", QueueUrl=URL, MessageBody="hello")
            assert (sent.status, b"application/x-amz-json-1.0" in sent.headers) == (200, True)
            received = json.loads((await house.sqs("ReceiveMessage", QueueUrl=URL)).body)
            assert received["Messages"][0]["Body"] == "hello"
            assert json.loads((await house.api("/v1/queues/-/jobs/show")).body)["in_flight"] == 1
            missing = await house.api("/v1/queues/-/none/show")
            assert (missing.status, json.loads(missing.body)["code"]) == (404, "QueueNotFound")
            assert (await house.sqs("Fly")).status == 400
            assert (await house.inside.ask(Asked(b"GET", b"/", {}, b"", None, None))).status == 404
            counted = {(action, code): series.count for action, code, series in house.metrics.series()}
            assert counted[("SendMessage", "OK")] == counted[("queues.show", "QueueNotFound")] == 1
            assert len(house.inside) == 0

    asyncio.run(play())


def test_who_asks_is_given_and_policies_decide(keys: Path) -> None:
    """Also by the address that the request came from by another port."""

    async def play() -> None:
        async with housed(keys) as (house, _):
            assert (await house.sqs("SendMessage", ME, QueueUrl=URL, MessageBody="m")).status == 200
            friend = caller_named(FRIEND)
            denied = await house.sqs("SendMessage", friend, QueueUrl=URL, MessageBody="m")
            assert (denied.status, b"AccessDenied" in denied.body) == (403, True)
            statement = {
                "Effect": "Allow",
                "Principal": {"AWS": FRIEND},
                "Action": "sqs:SendMessage",
                "Resource": "*",
                "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}},
            }
            policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
            allowed = await house.sqs("SetQueueAttributes", ME, QueueUrl=URL, Attributes={"Policy": policy})
            assert allowed.status == 200, allowed.body
            for peer, status in (("10.1.2.3", 200), ("11.1.2.3", 403), (None, 403)):
                answer = await house.sqs("SendMessage", friend, peer, QueueUrl=URL, MessageBody="m")
                assert answer.status == status
            assert (await house.api("/v1/queues/-/jobs/show", friend)).status == 404  # his own

    asyncio.run(play())


def test_nobody_is_let_in_where_there_are_accounts(keys: Path) -> None:
    async def play() -> None:
        async with housed(keys) as (house, _):
            with pytest.raises(PermissionError):
                await house.sqs("ListQueues")
            assert len(house.inside) == 0

    asyncio.run(play())


def test_a_wait_that_is_cancelled_takes_nothing() -> None:
    """A message that comes afterwards is for the next one, who asks."""

    async def play() -> None:
        async with housed() as (house, engine):
            receiving = await parked(house, engine)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            assert (house.polls.parked, len(house.inside)) == (0, 0)
            await execute(engine, Send(queue=QUEUE, messages=(NewMessage(body="m", size_bytes=1),)))
            received = json.loads((await house.sqs("ReceiveMessage", QueueUrl=URL)).body)
            assert received["Messages"][0]["Body"] == "m"

    asyncio.run(play())


def test_a_server_that_closes_hurries_who_waits() -> None:
    async def play() -> None:
        async with housed() as (house, engine):
            receiving = await parked(house, engine)
            house.polls.close()
            house.inside.hurry()
            assert json.loads((await receiving).body).get("Messages", []) == []
            assert (await house.sqs("ReceiveMessage", QueueUrl=URL, WaitTimeSeconds=20)).status == 200

    asyncio.run(play())


def test_a_request_that_waits_for_a_policy_can_be_taken_back_and_hurried(keys: Path) -> None:
    """An answer that comes too late for it is heard by nobody."""

    async def play() -> None:
        engine = ScriptedEngine()
        house = House(engine, keys=keys)
        asking = [asyncio.ensure_future(house.sqs("PurgeQueue", ME, QueueUrl=URL)) for _ in range(2)]
        await asyncio.sleep(0)
        house.inside.hurry()
        asking[0].cancel()
        await asyncio.sleep(0)
        view = QueueView(queue=QUEUE, settings=QueueSettings(), created_at_ms=1, modified_at_ms=1)
        assert isinstance(engine.answer(view), ShowQueue)
        ((command, done),) = engine.asked
        asking[1].cancel()
        await asyncio.sleep(0)
        done(None)
        assert type(command).__name__ == "PurgeQueue"
        assert asking[1].cancelled()

    asyncio.run(play())


def test_what_is_not_asked_of_the_engine_never_happens(keys: Path) -> None:
    """A change of settings that its caller may not make reaches no engine."""

    async def play() -> None:
        async with housed(keys) as (house, engine):
            denied = await house.sqs(
                "SetQueueAttributes", caller_named(FRIEND), QueueUrl=URL, Attributes={"VisibilityTimeout": "1"}
            )
            assert denied.status == 403
            await execute(engine, SetQueue(queue=QUEUE, settings={"delay_s": 1}))
            shown = await execute(engine, ShowQueue(queue=QUEUE))
            assert shown.settings.visibility_timeout_s == 30

    asyncio.run(play())
