"""The OpenAPI document (valid, complete, true to real replies) and requests within the process."""

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
"""For each route that reads, a path whose reply is not empty."""


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
    """Return a validator for the schema of ``content``."""
    return OAS31Validator({**content["application/json"]["schema"], "components": document["components"]})


@pytest.mark.slow
def test_the_document_is_valid_openapi(document: Any) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1.")


def test_the_document_has_every_route_and_every_action(document: Any) -> None:
    documented = {
        f"{method.upper()} {path}"
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }
    routes = {f"{route.method.decode()} {admin_path(route)}" for route in ROUTES.values()}
    assert documented == routes | {f"POST /api/sqs/{name}" for name in ACTIONS}
    assert set(READS) == {name for name in routes if name.startswith("GET ")}


def test_operations_have_summaries_security_errors_and_contents(document: Any) -> None:
    empty, arrow = set(), set()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                assert operation["summary"], path
                assert operation["security"][-1] == {}
                assert {"200", "401", "413", "429", "503"} <= set(operation["responses"])
                assert ({"session": [], "token": []} in operation["security"]) is (method == "post")
                assert ("requestBody" in operation) is (method == "post")
                contents = [operation["responses"]["200"]["content"]]
                contents += [operation["requestBody"]["content"]] if method == "post" else []
                if contents[0].get("application/json") == {"schema": {"$ref": "#/components/schemas/Nothing"}}:
                    empty.add(operation["operationId"])
                if any("application/vnd.apache.arrow.stream" in each for each in contents):
                    arrow.add(operation["operationId"])
    assert empty == {"claims.close", "queues.set", "publications.abandon"}
    assert arrow == {"claims.read", "publications.stage"}


@pytest.mark.parametrize("name", READS)
def test_real_replies_match_their_schema(server: RunningServer, document: Any, name: str) -> None:
    """Including all required members; no list is empty, so the items are checked too."""
    method, path = name.split(" ")
    reply = Api(server).get(READS[name])
    operation = document["paths"][path][method.lower()]
    schema(document, operation["responses"]["200"]["content"]).validate(reply)
    assert all(value for value in reply.values() if isinstance(value, list)), reply
    assert not schema(document, operation["responses"]["200"]["content"]).is_valid({"other": 1})


@pytest.mark.parametrize("label", [route.label for route in ROUTES.values() if route.body is not None])
def test_a_body_that_the_schema_forbids_is_refused(server: RunningServer, document: Any, label: str) -> None:
    (route,) = [route for route in ROUTES.values() if route.label == label]
    operation = document["paths"][admin_path(route)]["post"]
    body = {"certainly": "unknown"}
    assert not schema(document, operation["requestBody"]["content"]).is_valid(body)
    path = admin_path(route).format(account="-", queue="jobs")
    query = "?writer=w&batch=1&attempt=a&part=1" if label == "publications.stage" else ""
    reply = Api(server).request("POST", path + query, body)
    assert reply.status == 400
    schema(document, operation["responses"]["400"]["content"]).validate(reply.json())


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        *(
            ("create", {"settings": {"policy": "{}"}}),
            ("create", {"tags": {"": "v"}}),
            ("create", {"tags": {"k": "\0"}}),
        ),
        ("create", {"tags": {f"k{number}": "v" for number in range(51)}}),
        *(("set", {"policy": "{}"}), ("set", {"visibility_rules": "{"}), ("set", {"delay_s": -1})),
        *(("set", {"content_deduplication": True}), ("set", {"dead_letter_queue": "none", "receives_max": 1})),
    ],
    ids=lambda each: str(each)[:40],
)
def test_errors_of_invalid_settings_are_in_the_document(
    server: RunningServer, document: Any, verb: str, body: Any
) -> None:
    reply = Api(server).request("POST", f"/api/queues/-/jobs/{verb}", body)
    errors = document["paths"][f"/api/queues/{{account}}/{{queue}}/{verb}"]["post"]["responses"][str(reply.status)]
    assert reply.json()["code"] in errors["description"]


def test_a_body_that_the_schema_allows_is_accepted(server: RunningServer, document: Any) -> None:
    operation = document["paths"]["/api/queues/{account}/{queue}/set"]["post"]
    bodies = schema(document, operation["requestBody"]["content"])
    for name, allowed in RANGES.items():
        assert bodies.is_valid({name: allowed.maximum})
        assert not bodies.is_valid({name: allowed.maximum + 1})
        assert not bodies.is_valid({name: allowed.minimum - 1})
    body = {"visibility_timeout_s": 45, "in_flight_max": None}
    assert bodies.is_valid(body)
    Api(server).post("/api/queues/-/jobs/set", body)


def test_query_parameters_are_documented(document: Any) -> None:
    found = {each["name"]: each for each in document["paths"]["/api/messages/{account}/{queue}"]["get"]["parameters"]}
    assert found["count"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}
    assert not found["count"]["required"]
    claimed = document["paths"]["/api/claims/{account}/{queue}/read"]["get"]["parameters"]
    assert [each["name"] for each in claimed if each["required"]] == ["source", "number"]


def test_bodies_and_replies_of_an_action_match_their_schemas(server: RunningServer, document: Any) -> None:
    operation = document["paths"]["/api/sqs/SendMessage"]["post"]
    body = {"QueueUrl": f"{server.endpoint}/000000000000/jobs", "MessageBody": b64encode(b"m").decode()}
    assert schema(document, operation["requestBody"]["content"]).is_valid(body)
    reply = Api(server).post("/api/sqs/SendMessage", body)
    content = operation["responses"]["200"]["content"]["application/x-amz-json-1.0"]
    schema(document, {"application/json": content}).validate(reply)
    refused = Api(server).request("POST", "/api/sqs/SendMessage", {}).json()
    wrong = operation["responses"]["default"]["content"]["application/x-amz-json-1.0"]
    schema(document, {"application/json": wrong}).validate(refused)
    assert json.dumps(document).count("\\\\Z") == 0


QUEUE = f"{OWNER}/jobs"
URL = f"http://h/{QUEUE}"
ME = caller_named(OWNER)


class Host:
    """A dispatcher on an engine with its in-process client; with ``keys``, requests are authenticated."""

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
        self.in_process = InProcessClient(dispatcher)

    async def sqs(self, action: str, caller: Any = None, peer: str | None = None, **fields: Any) -> ApiReply:
        headers = {b"x-amz-target": b"AmazonSQS." + action.encode(), b"host": b"h"}
        request = ApiRequest(b"POST", b"/", headers, json.dumps(fields).encode(), caller, peer)
        return await self.in_process.send(request)


@pytest.fixture
@asynccontextmanager
async def host() -> AsyncIterator[Host]:
    engine = SqliteStore(None, clock=VirtualClock())
    try:
        await execute(engine, CreateQueue(queue=QUEUE))
        yield Host(engine)
    finally:
        await engine.close()


async def parked(host: Host) -> "asyncio.Task[ApiReply]":
    receiving = asyncio.ensure_future(host.sqs("ReceiveMessage", QueueUrl=URL, WaitTimeSeconds=20))
    while not host.polls.parked:
        await asyncio.sleep(0)
        await host.engine.drain()
    return receiving


async def test_a_cancelled_long_poll_takes_no_message(host: Host) -> None:
    receiving = await parked(host)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert (host.polls.parked, host.in_process._in_progress) == (0, set())
    await execute(host.engine, Send(queue=QUEUE, messages=(NewMessage(body="m", size_bytes=1),)))
    received = json.loads((await host.sqs("ReceiveMessage", QueueUrl=URL)).body)
    assert received["Messages"][0]["Body"] == "m"


async def test_a_request_that_waits_for_a_policy_can_be_cancelled(tmp_path: Path) -> None:
    """Also after the policy has arrived: the result of the command is then ignored."""
    engine = ScriptedEngine()
    host = Host(engine, keys=written(tmp_path / "keys.toml"))
    with pytest.raises(PermissionError):
        await host.sqs("PurgeQueue", None, QueueUrl=URL)
    requests = [asyncio.ensure_future(host.sqs("PurgeQueue", ME, QueueUrl=URL)) for _ in range(2)]
    await asyncio.sleep(0)
    host.in_process.hurry()
    requests[0].cancel()
    await asyncio.sleep(0)
    view = QueueView(queue=QUEUE, settings=QueueSettings(), created_at_ms=1, modified_at_ms=1)
    assert isinstance(engine.complete(view), ShowQueue)
    ((command, done),) = engine.pending
    requests[1].cancel()
    await asyncio.sleep(0)
    done(None)
    assert type(command).__name__ == "PurgeQueue"
    assert requests[1].cancelled()
