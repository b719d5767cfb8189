"""The table of routes: each is found by what tells it apart, and decided about by an action that policies know."""

import pytest

from tests.internals.wire.smq.asking import request
from veilmq.wire.smq import ROUTES, route_of
from veilmq.wire.sqs.actions import ACTIONS

FOUND = [
    ("GET", "/?accountmeta=true", "", "GetAccountAttributes"),
    ("PUT", "/?AccountMeta=True", "", "SetAccountAttributes"),
    ("POST", "/commonbuy/openservice", "", "OpenService"),
    ("GET", "/queues", "", "ListQueue"),
    ("GET", "/queues/", "", "ListQueue"),
    ("PUT", "/queues/q", "", "CreateQueue"),
    ("PUT", "/queues/q?metaoverride=false", "", "CreateQueue"),
    ("PUT", "/queues/q?metaOverride=true", "", "SetQueueAttributes"),
    ("GET", "/queues/q", "", "GetQueueAttributes"),
    ("DELETE", "/queues/q", "", "DeleteQueue"),
    ("POST", "/queues/q/messages", "<Message/>", "SendMessage"),
    ("POST", "/queues/q/messages", "", "SendMessage"),
    ("POST", "/queues/q/messages", "<a:Messages/>", "BatchSendMessage"),
    ("GET", "/queues/q/messages", "", "ReceiveMessage"),
    ("GET", "/queues/q/messages?peekonly=false&waitseconds=1", "", "ReceiveMessage"),
    ("GET", "/queues/q/messages?numofmessages=1", "", "BatchReceiveMessage"),
    ("GET", "/queues/q/messages?peekonly=true", "", "PeekMessage"),
    ("GET", "/queues/q/messages?numOfMessages=2&peekOnly=true", "", "BatchPeekMessage"),
    ("PUT", "/queues/q/messages?ReceiptHandle=r&VisibilityTimeout=1", "", "ChangeMessageVisibility"),
    ("DELETE", "/queues/q/messages?ReceiptHandle=r", "", "DeleteMessage"),
    ("DELETE", "/queues/q/messages", "<ReceiptHandles/>", "BatchDeleteMessage"),
]


@pytest.mark.parametrize(("method", "target", "body", "name"), FOUND)
def test_a_request_finds_its_route(method: str, target: str, body: str, name: str) -> None:
    """By method, path, parameters and root."""
    assert ROUTES[route_of(request(method, target, body))].name == name


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/queues/q"),
        ("GET", "/"),
        ("GET", "/?accountmeta=false"),
        ("POST", "/commonbuy/other"),
        ("GET", "/commonbuy/openservice"),
        ("GET", "/queues/q/r/s"),
    ],
)
def test_what_no_row_is_about_has_no_route(method: str, target: str) -> None:
    """And is counted as unknown."""
    assert route_of(request(method, target)) not in ROUTES


def test_every_route_of_queues_is_found_above() -> None:
    """Those of topics have tests of their own."""
    named = {route.name for route in ROUTES.values() if not route.path.startswith("topics")}
    assert {name for *_, name in FOUND} == named


def test_each_route_has_a_label_of_its_own_and_a_permission_that_policies_know() -> None:
    """Where a queue's policy decides at all."""
    assert all(key.decode() == route.label == f"smq.{route.name}" for key, route in ROUTES.items())
    assert {route.permission for route in ROUTES.values()} - set(ACTIONS) <= {""}
