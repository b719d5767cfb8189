"""The description of the API: it is valid, it has every route and action, and real answers are as it says."""

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from tests.server.test_admin_api import Api
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims, Publications
from veilmq.core.properties import Attribute
from veilmq.testing import RunningServer
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.v1.openapi import place_of
from veilmq.wire.v1.queue_settings import RANGES
from veilmq.wire.v1.routes import ROUTES
from veilmq.wire.v1.shapes import SHAPES

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
    """A server with a queue that has one of everything."""
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
    """The description, as the server tells it."""
    return Api(server).get("/api/openapi.json")


def schema(document: Any, content: Any) -> OAS31Validator:
    """Return what checks values by the schema of ``content``."""
    return OAS31Validator({**content["application/json"]["schema"], "components": document["components"]})


@pytest.mark.slow
def test_it_is_a_valid_description(document: Any) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1.")


def test_every_route_and_every_action_is_in_it(document: Any) -> None:
    assert set(SHAPES) == {route.label for route in ROUTES.values()}
    told = {
        f"{method.upper()} {path}"
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    }
    routes = {f"{route.method.decode()} {place_of(route)}" for route in ROUTES.values()}
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


@pytest.mark.parametrize("label", [label for label, shape in SHAPES.items() if shape.body is not None])
def test_a_body_that_it_forbids_is_refused(server: RunningServer, document: Any, label: str) -> None:
    """And the answer is an error as it says."""
    (route,) = [route for route in ROUTES.values() if route.label == label]
    operation = document["paths"][place_of(route)]["post"]
    body = {"certainly": "unknown"}
    assert not schema(document, operation["requestBody"]["content"]).is_valid(body)
    path = place_of(route).format(account="-", queue="jobs")
    query = "?writer=w&batch=1&attempt=a&part=1" if label == "publications.stage" else ""
    answer = Api(server).ask("POST", path + query, body)
    assert answer.status == 400
    schema(document, operation["responses"]["400"]["content"]).validate(answer.json())


def test_a_body_that_it_allows_is_taken(server: RunningServer, document: Any) -> None:
    """Ranges are told where the types do not have them."""
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
    refused = Api(server).ask("POST", "/api/sqs/SendMessage", {}).json()
    wrong = operation["responses"]["default"]["content"]["application/x-amz-json-1.0"]
    schema(document, {"application/json": wrong}).validate(refused)
    assert json.dumps(document).count("\\\\Z") == 0
