"""The description of the API: it is valid, it has every route and action, and real answers are as it says.

Then: requests in the process: replies as over sockets, withdrawal, hurry, and authentication.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from tests.internals.server.scripted_engine import ScriptedEngine
from tests.server.keys import OWNER, REGION, written
from tests.server.test_admin_api import Api
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims, Publications
from veilmq.console.api_client import ApiReply, ApiRequest
from veilmq.core.commands import CreateQueue, Engine, QueueView, Send, ShowQueue
from veilmq.core.messages import Attribute, NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.server.admin_api import InProcessClient
from veilmq.server.authentication import Authentication
from veilmq.server.dispatch import Dispatcher
from veilmq.server.long_polling import LongPolls
from veilmq.server.permissions import Permissions, PolicyDecisions
from veilmq.store.port import execute
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import RunningServer, VirtualClock
from veilmq.wire.exchange import RequestContext, caller_named
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.v1.queues import RANGES
from veilmq.wire.v1.routes import ROUTES, admin_path

READS = {
    "GET /api/claims/{account}/{queue}": "/api/claims/-/jobs",
    "GET /api/claims/{account}/{queue}/read": "/api/claims/-/jobs/read?source=s&number=1",
    "GET /api/leases/{account}/{queue}": "/api/leases/-/jobs",
    "GET /api/messages/{account}/{queue}": "/api/messages/-/jobs?receipts=true",
    "GET /api/messages/{account}/{queue}/peek": "/api/messages/-/jobs/peek",
    "GET /api/publications/{account}/{queue}": "/api/publications/-/jobs",
    "GET /api/queues/{account}": "/api/queues",
    "GET /api/queues/{account}/{queue}/show": "/api/queues/-/jobs/show",
}
"""Every route that reads, and an address whose answer is not empty."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        url = Api(running).post("/api/queues/-/jobs/create", {"settings": {"event_log": "closed"}})["url"]
        for number in range(4):
            client.send("jobs", f"message {number}", attributes={"n": Attribute("Number", str(number))}, group="g")
        with Claims(running.endpoint, url) as claims:
            epoch = claims.open("s").epoch
            claims.claim("s", epoch=epoch, number=1, messages_max=1)
        with Publications(running.endpoint, url) as publications:
            publications.stage("w", batch=0, attempt="a", part=0, messages=[])
        client.receive("jobs")
        client.send("jobs", "later", delay_s=60)
        yield running


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return Api(server).get("/api/openapi.json")


def schema(document: Any, content: Any) -> OAS31Validator:
    """Return what checks values by the schema of ``content``."""
    return OAS31Validator({**content["application/json"]["schema"], "components": document["components"]})


@pytest.mark.slow
def test_it_is_a_valid_description(document: Any) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1.")


def test_every_route_and_every_action_is_in_it(document: Any) -> None:
    told = {
        f"{method.upper()} {path}"
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }
    routes = {f"{route.method.decode()} {admin_path(route)}" for route in ROUTES.values()}
    assert told == routes | {f"POST /api/sqs/{name}" for name in ACTIONS}
    assert set(READS) == {name for name in routes if name.startswith("GET ")}


def test_everything_in_it_says_what_it_is(document: Any) -> None:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                assert operation["summary"], path
                assert operation["security"][-1] == {}
                assert {"200", "401", "413", "429", "503"} <= set(operation["responses"])
                assert ({"session": [], "token": []} in operation["security"]) is (method == "post")


@pytest.mark.parametrize("name", READS)
def test_a_real_answer_is_as_it_says(server: RunningServer, document: Any, name: str) -> None:
    """With everything that it says to be there always, and something in its lists."""
    method, path = name.split(" ")
    answer = Api(server).get(READS[name])
    operation = document["paths"][path][method.lower()]
    schema(document, operation["responses"]["200"]["content"]).validate(answer)
    assert all(value for value in answer.values() if isinstance(value, list)), answer
    assert not schema(document, operation["responses"]["200"]["content"]).is_valid({"other": 1})


@pytest.mark.parametrize("label", [route.label for route in ROUTES.values() if route.body is not None])
def test_a_body_that_it_forbids_is_refused(server: RunningServer, document: Any, label: str) -> None:
    (route,) = [route for route in ROUTES.values() if route.label == label]
    operation = document["paths"][admin_path(route)]["post"]
    body = {"certainly": "unknown"}
    assert not schema(document, operation["requestBody"]["content"]).is_valid(body)
    path = admin_path(route).format(account="-", queue="jobs")
    query = "?writer=w&batch=1&attempt=a&part=1" if label == "publications.stage" else ""
    answer = Api(server).request("POST", path + query, body)
    assert answer.status == 400
    schema(document, operation["responses"]["400"]["content"]).validate(answer.json())


def test_a_body_that_it_allows_is_taken(server: RunningServer, document: Any) -> None:
    operation = document["paths"]["/api/queues/{account}/{queue}/set"]["post"]
    bodies = schema(document, operation["requestBody"]["content"])
    for name, allowed in RANGES.items():
        assert bodies.is_valid({name: allowed.maximum})
        assert not bodies.is_valid({name: allowed.maximum + 1})
        assert not bodies.is_valid({name: allowed.minimum - 1})
    body = {"visibility_timeout_s": 45, "in_flight_max": None}
    assert bodies.is_valid(body)
    Api(server).post("/api/queues/-/jobs/set", body)


def test_parameters_are_those_of_the_route(document: Any) -> None:
    found = {each["name"]: each for each in document["paths"]["/api/messages/{account}/{queue}"]["get"]["parameters"]}
    assert found["count"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}
    assert not found["count"]["required"]
    claimed = document["paths"]["/api/claims/{account}/{queue}/read"]["get"]["parameters"]
    assert [each["name"] for each in claimed if each["required"]] == ["source", "number"]


def test_an_action_takes_and_answers_what_it_says(server: RunningServer, document: Any) -> None:
    operation = document["paths"]["/api/sqs/SendMessage"]["post"]
    body = {"QueueUrl": f"{server.endpoint}/000000000000/jobs", "MessageBody": b64encode(b"m").decode()}
    assert schema(document, operation["requestBody"]["content"]).is_valid(body)
    answer = Api(server).post("/api/sqs/SendMessage", body)
    content = operation["responses"]["200"]["content"]["application/x-amz-json-1.0"]
    schema(document, {"application/json": content}).validate(answer)
    refused = Api(server).request("POST", "/api/sqs/SendMessage", {}).json()
    wrong = operation["responses"]["default"]["content"]["application/x-amz-json-1.0"]
    schema(document, {"application/json": wrong}).validate(refused)
    assert json.dumps(document).count("\\\\Z") == 0


QUEUE = f"{OWNER}/jobs"
URL = f"http://h/{QUEUE}"
ME = caller_named(OWNER)


class House:
    """A dispatcher on an engine, and the way in; with ``keys`` one that knows accounts."""

    def __init__(self, engine: Engine, *, keys: Path | None = None) -> None:
        self.engine: Any = engine
        self.polls = LongPolls(engine=engine, clock=VirtualClock())
        guards: dict[str, Any] = {}
        if keys is not None:
            guards["authentication"] = Authentication(keys, region=REGION, secure=False, wall_s=lambda: 0.0)
            decisions = PolicyDecisions(region=REGION, secure=False, wall_s=lambda: 0.0)
            guards["permissions"] = Permissions(engine, decisions)
        context = RequestContext(base_url="", account=OWNER, region=REGION, token_key=engine.token_key)
        dispatcher = Dispatcher(polls=self.polls, context=context, host="h", **guards)
        self.metrics = dispatcher.metrics
        self.in_process = InProcessClient(dispatcher)

    async def sqs(self, action: str, who: Any = None, peer: str | None = None, **fields: Any) -> ApiReply:
        headers = {b"x-amz-target": b"AmazonSQS." + action.encode(), b"host": b"h"}
        return await self.in_process.send(ApiRequest(b"POST", b"/", headers, json.dumps(fields).encode(), who, peer))

    async def api(self, target: str, who: Any = None) -> ApiReply:
        return await self.in_process.send(ApiRequest(b"GET", target.encode(), {b"host": b"h"}, b"", who, None))


@pytest.fixture
@asynccontextmanager
async def house() -> AsyncIterator[House]:
    engine = SqliteStore(None, clock=VirtualClock())
    try:
        await execute(engine, CreateQueue(queue=QUEUE))
        yield House(engine)
    finally:
        await engine.close()


async def parked(house: House) -> "asyncio.Task[ApiReply]":
    receiving = asyncio.ensure_future(house.sqs("ReceiveMessage", QueueUrl=URL, WaitTimeSeconds=20))
    while not house.polls.parked:
        await asyncio.sleep(0)
        await house.engine.drain()
    return receiving


async def test_an_answer_is_what_a_socket_would_have_got(house: House) -> None:
    """Status, headers and body, of every protocol, errors too; and it is counted."""
    sent = await house.sqs("SendMessage", QueueUrl=URL, MessageBody="hello")
    assert (sent.status, b"application/x-amz-json-1.0" in sent.headers) == (200, True)
    received = json.loads((await house.sqs("ReceiveMessage", QueueUrl=URL)).body)
    assert received["Messages"][0]["Body"] == "hello"
    assert json.loads((await house.api("/v1/queues/-/jobs/show")).body)["in_flight"] == 1
    missing = await house.api("/v1/queues/-/none/show")
    assert (missing.status, json.loads(missing.body)["code"]) == (404, "QueueNotFound")
    assert (await house.sqs("Fly")).status == 400
    assert (await house.in_process.send(ApiRequest(b"GET", b"/", {}, b"", None, None))).status == 404
    counted = {(action, code): series.count for action, code, series in house.metrics.series()}
    assert counted[("SendMessage", "OK")] == counted[("queues.show", "QueueNotFound")] == 1
    assert len(house.in_process) == 0


async def test_a_wait_that_is_cancelled_takes_nothing(house: House) -> None:
    """A message that comes afterwards is for the next one, who asks."""
    receiving = await parked(house)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert (house.polls.parked, len(house.in_process)) == (0, 0)
    await execute(house.engine, Send(queue=QUEUE, messages=(NewMessage(body="m", size_bytes=1),)))
    received = json.loads((await house.sqs("ReceiveMessage", QueueUrl=URL)).body)
    assert received["Messages"][0]["Body"] == "m"


async def test_a_request_that_waits_for_a_policy_can_be_taken_back_and_hurried(tmp_path: Path) -> None:
    """An answer that comes too late for it is heard by nobody."""
    engine = ScriptedEngine()
    house = House(engine, keys=written(tmp_path / "keys.toml"))
    asking = [asyncio.ensure_future(house.sqs("PurgeQueue", ME, QueueUrl=URL)) for _ in range(2)]
    await asyncio.sleep(0)
    house.in_process.hurry()
    asking[0].cancel()
    await asyncio.sleep(0)
    view = QueueView(queue=QUEUE, settings=QueueSettings(), created_at_ms=1, modified_at_ms=1)
    assert isinstance(engine.answer(view), ShowQueue)
    ((command, done),) = engine.pending
    asking[1].cancel()
    await asyncio.sleep(0)
    done(None)
    assert type(command).__name__ == "PurgeQueue"
    assert asking[1].cancelled()
