"""Claims over real sockets: every route in plain JSON, long polls, every error, policies and metrics."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.keys import OWNER, REGION, SECRETS, TOKEN, client, set_policy, signed, statement, written
from veilmq.client import ClientError, HttpQueueClient, SigningKey
from veilmq.client.api import Claims
from veilmq.testing import RunningServer
from veilmq.wire.v1.request import CORE_ERRORS
from veilmq.wire.v1.routes import COMMON_ERRORS, ROUTES

PATH = "/v1/claims/000000000000/jobs"


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    with RunningServer(**store_settings(request.param)) as running, HttpQueueClient(running.endpoint) as queues:
        queues.create_queue("dead")
        queues.create_queue("jobs", {"dead_letter_queue": "dead", "receives_max": 5})
        for body in ("a", "b", "c"):
            queues.send("jobs", body)
        yield running


def request_v1(server: RunningServer, method: str, rest: str, fields: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Return the status and the JSON of a reply; ``rest`` follows the path of the claims of ``jobs``, or is a path."""
    path = rest if rest.startswith("/v1") else PATH + rest
    reply = urllib3.request(method, server.endpoint + path, body=None if fields is None else json.dumps(fields))
    return reply.status, reply.json()


def post(server: RunningServer, verb: str, **fields: Any) -> Any:
    status, reply = request_v1(server, "POST", f"/{verb}", fields)
    assert status == 200, reply
    return reply


def test_every_route_takes_and_returns_plain_json(server: RunningServer) -> None:
    """The names and types are those of docs/protocols/claims.md."""
    now_ms = server.clock.now_ms()
    view = post(server, "open", source="s", consumer="c", hold_s=600, lease_s=30)
    assert view == {
        "source": "s",
        "consumer": "c",
        "epoch": 1,
        "acknowledged": 0,
        "last": 0,
        "alive": True,
        "lease_until_ms": now_ms + 30_000,
        "hold_until_ms": now_ms + 600_000,
        "claims": [],
        "ready": 3,
        "oldest_sent_at_ms": now_ms,
    }
    bound = post(server, "claim", source="s", epoch=1, number=1, messages_max=2)
    assert bound == {"number": 1, "messages": 2, "shards": 1, "more": False, "again": False, "next_due_ms": None}
    status, page = request_v1(server, "GET", "/read?source=s&number=1")
    assert (status, [message["body"] for message in page["messages"]]) == (200, ["a", "b"])
    assert page["messages"][0]["receive_count"] == 1
    evicted = post(server, "evict", source="s", number=1, message=page["messages"][0]["id"])
    assert [(claim["number"], claim["state"], claim["messages"]) for claim in evicted["claims"]] == [(1, "open", 1)]
    assert post(server, "heartbeat", source="s", epoch=1, lease_s=5)["lease_until_ms"] == now_ms + 5_000
    assert post(server, "acknowledge", source="s", epoch=1, number=1) == {"acknowledged": 1, "lost": []}
    assert post(server, "claim", source="s", epoch=1, number=2)["messages"] == 1
    assert post(server, "release", source="s", number=2)["claims"][0]["state"] == "released"
    status, listed = request_v1(server, "GET", "")
    assert (status, [source["source"] for source in listed["sources"]]) == (200, ["s"])
    assert post(server, "close", source="s") == {}
    assert request_v1(server, "GET", "") == (200, {"sources": []})


def test_a_large_shard_is_read_in_several_replies(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as queues:
        for _ in range(9):
            queues.send("jobs", "x" * 1_000_000)
    post(server, "open", source="s")
    post(server, "claim", source="s", epoch=1, number=1)
    sizes: list[int] = []
    cursor = ""
    while cursor or not sizes:
        reply = urllib3.request("GET", f"{server.endpoint}{PATH}/read?source=s&number=1&cursor={cursor}")
        sizes.append(len(reply.json()["messages"]))
        cursor = reply.headers.get("x-veilmq-cursor", "")
        assert cursor or "x-veilmq-cursor" not in reply.headers
    assert sum(sizes) == 12
    assert len(sizes) > 1


@contextmanager
def waiting_claim(server: RunningServer) -> "Iterator[Future[Any]]":
    """A claim that waits because another claim has all messages."""
    post(server, "open", source="s")
    post(server, "claim", source="s", epoch=1, number=1)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(post, server, "claim", source="s", epoch=1, number=2, wait_s=20)
        server.wait_parked()
        yield waiting


def test_a_claim_waits_for_a_message(server: RunningServer) -> None:
    with waiting_claim(server) as waiting, HttpQueueClient(server.endpoint) as queues:
        assert not waiting.done()
        queues.send("jobs", "d")
        assert waiting.result(60)["messages"] == 1


def test_a_bound_claim_does_not_wait_though_all_its_messages_were_evicted(server: RunningServer) -> None:
    post(server, "open", source="s")
    post(server, "claim", source="s", epoch=1, number=1)
    for message in request_v1(server, "GET", "/read?source=s&number=1")[1]["messages"]:
        post(server, "evict", source="s", number=1, message=message["id"])
    again = post(server, "claim", source="s", epoch=1, number=1, wait_s=20)
    assert (again["messages"], again["shards"], again["again"]) == (0, 1, True)
    assert post(server, "claim", source="s", epoch=1, number=2)["shards"] == 0


@pytest.mark.parametrize(
    "end", [lambda server: server.advance(20_000), lambda server: server.stop()], ids=["timeout", "server"]
)
def test_a_waiting_claim_ends_with_its_timeout_or_the_server(
    server: RunningServer, end: Callable[[RunningServer], None]
) -> None:
    with waiting_claim(server) as waiting:
        end(server)
        assert waiting.result(60)["messages"] == 0


def test_a_receive_that_waits_at_the_in_flight_limit_does_not_block_claims() -> None:
    with (
        RunningServer(in_flight_max=1) as server,
        HttpQueueClient(server.endpoint) as queues,
        ThreadPoolExecutor(2) as threads,
    ):
        queues.create_queue("jobs")
        queues.send("jobs", "a")
        (taken,) = queues.receive("jobs")
        post(server, "open", source="s")
        receiving = threads.submit(queues.receive, "jobs", wait_s=20)
        server.wait_parked()
        claiming = threads.submit(post, server, "claim", source="s", epoch=1, number=1, wait_s=20)
        server.wait_parked(2)
        queues.send("jobs", "b")
        assert claiming.result(60)["messages"] == 1
        assert server.parked == 1
        queues.send("jobs", "c")
        queues.delete("jobs", taken.receipt)
        assert [message.body for message in receiving.result(60)] == ["c"]


def test_a_closed_connection_withdraws_its_claim(server: RunningServer) -> None:
    post(server, "open", source="s")
    post(server, "claim", source="s", epoch=1, number=1)
    connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)
    fields = {"source": "s", "epoch": 1, "number": 2, "wait_s": 20}
    connection.request("POST", f"{PATH}/claim", json.dumps(fields))
    server.wait_parked()
    connection.close()
    server.wait_until(lambda: not server.parked)
    with HttpQueueClient(server.endpoint) as queues:
        queues.send("jobs", "d")
        assert queues.show("jobs").visible == 1


# Errors.

ID = "00000000-0000-4000-8000-000000000000"
SOURCE: dict[str, Any] = {"source": "s"}
CURRENT = SOURCE | {"epoch": 2}

PROVOKED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("open", "ConsumerTaken", {"source": "t", "consumer": "c"}, {"consumer": "c", "source": "s"}),
    ("claim", "SourceNotFound", {"source": "x", "epoch": 1, "number": 1}, {"source": "x"}),
    ("claim", "EpochFenced", SOURCE | {"epoch": 1, "number": 4}, {"epoch": 1, "current": 2}),
    ("claim", "ClaimAcknowledged", CURRENT | {"number": 1}, {"number": 1, "acknowledged": 1}),
    ("claim", "ClaimReleased", CURRENT | {"number": 2}, {"number": 2}),
    ("claim", "ClaimLost", {"source": "l", "epoch": 1, "number": 1}, {"number": 1}),
    ("claim", "ClaimGap", CURRENT | {"number": 5}, {"number": 5, "last": 3}),
    ("heartbeat", "SourceNotFound", {"source": "x", "epoch": 1}, {"source": "x"}),
    ("heartbeat", "EpochFenced", SOURCE | {"epoch": 1}, {"epoch": 1, "current": 2}),
    ("acknowledge", "SourceNotFound", {"source": "x", "epoch": 1, "number": 1}, {"source": "x"}),
    ("acknowledge", "EpochFenced", SOURCE | {"epoch": 3, "number": 1}, {"epoch": 3, "current": 2}),
    ("acknowledge", "ClaimGap", CURRENT | {"number": 4}, {"number": 4, "last": 3}),
    ("release", "SourceNotFound", {"source": "x", "number": 1}, {"source": "x"}),
    ("release", "ClaimAcknowledged", SOURCE | {"number": 1}, {"number": 1, "acknowledged": 1}),
    ("release", "ClaimLost", SOURCE | {"number": 9}, {"number": 9}),
    ("evict", "SourceNotFound", {"source": "x", "number": 1, "message": ID}, {"source": "x"}),
    ("evict", "ClaimAcknowledged", SOURCE | {"number": 1, "message": ID}, {"number": 1, "acknowledged": 1}),
    ("evict", "ClaimReleased", SOURCE | {"number": 2, "message": ID}, {"number": 2}),
    ("evict", "ClaimLost", SOURCE | {"number": 9, "message": ID}, {"number": 9}),
    ("evict", "MessageNotClaimed", SOURCE | {"number": 3, "message": ID}, {"number": 3}),
    ("evict", "DeadLetterQueueRefused", SOURCE | {"number": 3, "message": "c"}, {"queue": ""}),
    ("close", "SourceNotFound", {"source": "x"}, {"source": "x"}),
    ("read", "ClaimAcknowledged", SOURCE | {"number": 1}, {"number": 1, "acknowledged": 1}),
    ("read", "ClaimReleased", SOURCE | {"number": 2}, {"number": 2}),
    ("read", "ClaimLost", SOURCE | {"number": 9}, {"number": 9}),
    ("read", "ShardNotFound", SOURCE | {"number": 3, "shard": 1}, {"shard": 1, "shards": 1}),
    ("read", "CursorInvalid", SOURCE | {"number": 3, "cursor": "x"}, {}),
    ("read", "CursorInvalid", SOURCE | {"number": 3, "cursor": "g9999999999999999999"}, {}),
    *((verb, "QueueNotFound", fields, {"queue": "000000000000/none"}) for verb, fields in [("list", {}), ("read",
        SOURCE | {"number": 1}), ("open", SOURCE), ("claim", CURRENT | {"number": 1}), ("heartbeat", CURRENT),
        ("acknowledge", CURRENT | {"number": 1}), ("release", SOURCE | {"number": 1}), ("evict", SOURCE | {"number": 1,
        "message": ID}), ("close", SOURCE)]),
]  # fmt: skip


@pytest.fixture(scope="module")
def with_claims() -> Iterator[RunningServer]:
    """A server for all errors; tests do not change its claims."""
    yield from serve_claims()


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[RunningServer]:
    """A server for random requests."""
    yield from serve_claims()


def serve_claims() -> Iterator[RunningServer]:
    """Yield a server with a source in epoch 2, whose claims are acknowledged, released and open, and a lost source."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as queues:
        queues.create_queue("jobs")
        post(running, "open", source="l", hold_s=60)
        queues.send("jobs", "lost")
        post(running, "claim", source="l", epoch=1, number=1)
        running.advance(60_000)
        queues.purge("jobs")
        for _ in range(2):
            post(running, "open", source="s", consumer="c")
        for number, body in enumerate(("a", "b", "c"), start=1):
            queues.send("jobs", body)
            post(running, "claim", source="s", epoch=2, number=number)
            if body == "a":
                post(running, "acknowledge", source="s", epoch=2, number=1)
        post(running, "release", source="s", number=2)
        yield running


@pytest.mark.parametrize(
    ("verb", "code", "fields", "details"),
    PROVOKED,
    ids=[f"{verb} {code} {n}" for n, (verb, code, *_) in enumerate(PROVOKED)],
)
def test_an_error_has_a_code_a_status_and_details(
    with_claims: RunningServer, verb: str, code: str, fields: dict[str, Any], details: dict[str, Any]
) -> None:
    if code == "DeadLetterQueueRefused":
        _, page = request_v1(with_claims, "GET", "/read?source=s&number=3")
        fields = fields | {"message": page["messages"][0]["id"]}
    base = PATH.replace("jobs", "none") if code == "QueueNotFound" else PATH
    if verb in ("read", "list"):
        query = f"?{urlencode(fields)}" if fields else ""
        status, reply = request_v1(with_claims, "GET", base + ("/read" if verb == "read" else "") + query)
    else:
        status, reply = request_v1(with_claims, "POST", f"{base}/{verb}", fields)
    assert reply.pop("message")
    assert reply == {"code": code} | details
    assert status == next(row[0] for error, row in CORE_ERRORS.items() if error.__name__ == code)


def test_every_error_of_every_route_is_tested() -> None:
    """Errors that every route has are tested elsewhere, except for QueueNotFound."""
    routes = {route.label: route.errors for route in ROUTES.values() if route.noun == b"claims"}
    wanted = {(label, error.__name__) for label, found in routes.items() for error in found}
    wanted |= {(label, "QueueNotFound") for label in routes}
    assert {(f"claims.{verb}", code) for verb, code, *_ in PROVOKED} == wanted
    assert set(COMMON_ERRORS) <= set(CORE_ERRORS)


def test_requests_are_validated_before_the_queue_is_looked_up(server: RunningServer) -> None:
    assert request_v1(server, "POST", "/open", {"source": 1})[0] == 400
    assert request_v1(server, "POST", "/fly", {})[0] == 404
    assert request_v1(server, "GET", "/open")[0] == 404
    assert request_v1(server, "POST", "/v1/claims/000000000000/none/open", {"source": 1})[0] == 400


_WHOLE = st.sampled_from([0, 1, 2, 3, 4, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**64, -1]) | st.integers()
_ANY_FIELDS = st.fixed_dictionaries(
    {"source": st.sampled_from(["s", "l", "new", "", "é", 1, None])},
    optional={
        "epoch": _WHOLE | st.just(2),
        "number": _WHOLE,
        "shard": _WHOLE,
        "messages_max": _WHOLE,
        "shard_messages": _WHOLE,
        "hold_s": _WHOLE | st.just(60),
        "lease_s": _WHOLE | st.just(5),
        "wait_s": st.sampled_from([0, -1, 21, "0"]),
        "cursor": st.from_regex(r"[ug]?[0-9]{0,20}", fullmatch=True) | st.text(max_size=9),
        "message": st.sampled_from([ID, "x", "", 7]),
        "consumer": st.sampled_from(["c", "", "\n", 1]),
        "takeover": st.booleans(),
    },
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(key for key in ROUTES if b" claims/" in key)), _ANY_FIELDS)
def test_no_request_causes_an_internal_error(fuzzed: RunningServer, route: bytes, fields: dict[str, Any]) -> None:
    method, _, verb = route.decode().partition(" claims/")
    path = f"/{verb}" if verb else ""
    if method == "GET":
        status, reply = request_v1(fuzzed, method, f"{path}?{urlencode(fields, errors='replace')}")
    else:
        status, reply = request_v1(fuzzed, method, path, fields)
    assert status < 500, reply


# Signatures and permissions.


def key(key_id: str) -> SigningKey:
    token = TOKEN if key_id.startswith("ASID") else None
    return SigningKey(id=key_id, secret=SECRETS[key_id], session_token=token, region=REGION)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        with closing(client(running)) as owner:
            url = owner.create_queue(QueueName="jobs")["QueueUrl"]
            owner.send_message(QueueUrl=url, MessageBody="a")
        yield running


CALLS: dict[str, Any] = {
    "open": lambda claims: claims.open("s"),
    "claim": lambda claims: claims.claim("s", epoch=2, number=1, messages_max=1),
    "read": lambda claims: list(claims.read("s", number=1)),
    "heartbeat": lambda claims: claims.heartbeat("s", epoch=2),
    "list": lambda claims: claims.sources(),
    "acknowledge": lambda claims: claims.acknowledge("s", epoch=2, number=0),
    "release": lambda claims: claims.release("s", number=1),
    "evict": lambda claims: claims.evict("s", number=1, message=ID),
    "close": lambda claims: claims.close_source("s"),
}


@pytest.mark.parametrize(
    ("action", "allowed"),
    [
        ("ReceiveMessage", {"open", "claim", "read", "heartbeat", "list"}),
        ("DeleteMessage", {"acknowledge", "evict", "close"}),
        ("ChangeMessageVisibility", {"release"}),
        ("SendMessage", set()),
    ],
)
def test_a_policy_allows_routes_by_the_actions_of_sqs(guarded: RunningServer, action: str, allowed: set[str]) -> None:
    url = f"{guarded.endpoint}/{OWNER}/jobs"
    with Claims(guarded.endpoint, url, key=key("AKIDOWNER")) as owner:
        owner.open("s")
        owner.claim("s", epoch=1, number=1, messages_max=1)
    with closing(client(guarded)) as sqs:
        set_policy(sqs, url, statement(Action=f"sqs:{action}"))
    denied = set()
    with Claims(guarded.endpoint, url, key=key("AKIDFRIEND")) as friend:
        for name, call in CALLS.items():
            try:
                call(friend)
            except ClientError as error:
                if error.code == "AccessDenied":
                    denied.add(name)
    assert CALLS.keys() - denied == allowed


def test_a_user_of_the_owner_needs_only_the_name_of_the_queue(guarded: RunningServer) -> None:
    with Claims(guarded.endpoint, "jobs", key=key("AKIDCAROL")) as claims:
        epoch = claims.open("s").epoch
        assert claims.claim("s", epoch=epoch, number=1, messages_max=9).messages == 1
        assert [batch["body"].to_pylist() for batch in claims.read("s", number=1)] == [["a"]]


@pytest.mark.parametrize("presigned_s", [None, 3_600], ids=["header", "presigned"])
def test_requests_signed_by_botocore_are_accepted(guarded: RunningServer, presigned_s: int | None) -> None:
    """The parameters of the query are unsorted, and one is empty."""
    query = "source=s&number=1&cursor=&format=json"
    request = signed(f"{guarded.endpoint}/v1/claims/{OWNER}/jobs/read?{query}", presigned_s=presigned_s)
    reply = urllib3.request("GET", str(request.url), headers=dict(request.headers))
    assert reply.json()["code"] == "ClaimLost"  # the signature is valid, but there is no such source


@pytest.mark.parametrize(("signing", "code"), [
    (None, "MissingAuthenticationToken"),
    (SigningKey(id="AKIDOWNER", secret="wrong", region=REGION), "SignatureDoesNotMatch"),
    (SigningKey(id="AKIDNOBODY", secret="x", region=REGION), "InvalidClientTokenId"),
    (SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"], region="other"), "SignatureDoesNotMatch"),
], ids=["unsigned", "wrong secret", "unknown key", "other region"])  # fmt: skip
def test_invalid_signatures_have_the_error_codes_of_sqs(
    guarded: RunningServer, signing: SigningKey | None, code: str
) -> None:
    with Claims(guarded.endpoint, f"{guarded.endpoint}/{OWNER}/jobs", key=signing) as claims:
        for call in (CALLS["open"], CALLS["list"], CALLS["read"]):
            with pytest.raises(ClientError) as caught:
                call(claims)
            assert (caught.value.code, caught.value.status) == (code, 403)


def test_a_signature_covers_the_query(guarded: RunningServer) -> None:
    target = f"/v1/claims/{OWNER}/jobs/read?source=s&number=1"
    host = guarded.endpoint.removeprefix("http://")
    headers = key("AKIDOWNER").sign(target, {"Host": host}, b"", now=datetime.now(UTC), method="GET")
    for sent, status in ((target, 410), (target.replace("number=1", "number=2"), 403)):
        assert urllib3.request("GET", guarded.endpoint + sent, headers=headers).status == status


# Metrics.


def test_metrics_count_claims_and_their_requests(server: RunningServer) -> None:
    """The attributes of the queue count claimed messages as in flight."""

    def metrics() -> list[str]:
        return urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode().splitlines()

    assert not [line for line in metrics() if line.startswith("veilmq_queue_claims_held{")]
    post(server, "open", source="s")
    post(server, "claim", source="s", epoch=1, number=1, messages_max=2)
    server.advance(5_000)
    post(server, "claim", source="s", epoch=1, number=2)
    request_v1(server, "GET", "/read?source=s&number=7")
    with HttpQueueClient(server.endpoint) as queues:
        status = queues.show("jobs")
        assert (status.visible, status.in_flight) == (0, 3)
    lines = metrics()
    for line in (
        'veilmq_queue_claims_held{queue="000000000000/jobs"} 2.0',
        'veilmq_queue_messages_claimed{queue="000000000000/jobs"} 3.0',
        'veilmq_queue_oldest_claim_age_seconds{queue="000000000000/jobs"} 5.0',
        'veilmq_queue_messages_in_flight{queue="000000000000/jobs"} 3.0',
        'veilmq_requests_total{action="claims.claim",code="OK"} 2.0',
        'veilmq_requests_total{action="claims.read",code="ClaimLost"} 1.0',
    ):
        assert line in lines
    post(server, "acknowledge", source="s", epoch=1, number=2)
    lines = metrics()
    assert 'veilmq_queue_claims_held{queue="000000000000/jobs"} 0.0' in lines
    assert 'veilmq_queue_oldest_claim_age_seconds{queue="000000000000/jobs"} 0.0' in lines
