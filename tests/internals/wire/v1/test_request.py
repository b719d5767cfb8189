"""Requests and errors of the v1 API, settings of queues, and inspection."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.core import errors, limits
from veilmq.core.claims import ClaimedMessage, ListSources
from veilmq.core.commands import (
    BrowsedQueues,
    BrowseQueues,
    Command,
    CreateQueue,
    InspectLeases,
    InspectQueue,
    ListQueues,
    MessageState,
    Peek,
    Peeked,
    PeekedMessage,
    QueueCounts,
    QueueOrder,
    QueueView,
    SeenLease,
    SeenMessage,
    SetQueue,
    ShowQueue,
)
from veilmq.core.errors import ReceiptState, VeilmqError
from veilmq.core.messages import Attribute, Properties, encode_properties
from veilmq.core.settings import QueueSettings
from veilmq.wire.exchange import RequestContext, caller_named, id_text
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.policies import GRANTABLE, OWNER_ONLY
from veilmq.wire.v1.queues import RANGES, SettingFields
from veilmq.wire.v1.request import CORE_ERRORS, ApiCall, Route, read_request
from veilmq.wire.v1.routes import COMMON_ERRORS, ROUTES, decode, route_key

QUEUE = "000000000000/jobs"
CONTEXT = RequestContext(base_url="http://h:1", by_region=True, caller=caller_named("000000000000"))


def send(method: str, target: str, body: bytes = b"", kind: bytes = b"") -> ApiCall:
    headers = {b"content-type": kind} if kind else {}
    request = read_request(method.encode(), target.encode("utf-8", "surrogatepass"), headers, body)
    return decode(route_key(request), request, CONTEXT)


def post(verb: str, **fields: Any) -> ApiCall:
    return send("POST", f"/v1/claims/{QUEUE}/{verb}", json.dumps(fields).encode())


def get(verb: str = "", query: str = "") -> ApiCall:
    return send("GET", f"/v1/claims/{QUEUE}" + (f"/{verb}" if verb else "") + (f"?{query}" if query else ""))


def decode_error(method: str, target: str, body: bytes = b"") -> SqsError:
    with pytest.raises(SqsError) as caught:
        send(method, target, body)
    return caught.value


def invalid_request(path: str, fields: Any) -> str:
    """Return the message of the InvalidRequest of a POST."""
    error = decode_error("POST", path, json.dumps(fields).encode())
    assert (error.code.query, error.code.status) == ("InvalidRequest", 400)
    return error.message


def invalid_claim_request(verb: str, **fields: Any) -> str:
    """Return the message of the InvalidRequest of a POST about claims."""
    return invalid_request(f"/v1/claims/{QUEUE}/{verb}", fields)


ID = bytes.fromhex("0190a1b2c3d44e5f8a9b0123456789ab")


def message(body: str = "hello", *, sequence: int | None = None, **properties: Any) -> ClaimedMessage:
    """Return a message with `body` and `Properties(**properties)`."""
    return ClaimedMessage(
        id=ID,
        body=body,
        properties=encode_properties(Properties(**properties)),
        sent_at_ms=1_700_000_000_001,
        received_at_ms=1_700_000_000_999,
        receive_count=2,
        sequence=sequence,
    )


MIXED = {
    "type": Attribute("String", "order"),
    "price": Attribute("Number.int", "17"),
    "raw": Attribute("Binary", data=b"\x00\xff"),
}


# Errors.

CORE_ROWS: list[tuple[VeilmqError, int, dict[str, object]]] = [
    (errors.QueueNotFound("a/q"), 404, {"queue": "a/q"}), (errors.SourceNotFound("s"), 404, {"source": "s"}),
    (errors.ShardNotFound(3, 2), 404, {"shard": 3, "shards": 2}),
    (errors.MessageNotClaimed(4), 404, {"number": 4}), (errors.EpochFenced(1, 2), 409, {"epoch": 1, "current": 2}),
    (errors.ClaimGap(9, 4), 409, {"number": 9, "last": 4}),
    (errors.ConsumerTaken("c", "s"), 409, {"consumer": "c", "source": "s"}),
    (errors.ClaimAcknowledged(3, 4), 410, {"number": 3, "acknowledged": 4}),
    (errors.ClaimLost(3), 410, {"number": 3}), (errors.ClaimReleased(3), 410, {"number": 3}),
    (errors.CursorInvalid(), 400, {}),
    (errors.StageMissing("a", 1, 2), 409, {"attempt": "a", "messages": 1, "wanted": 2}),
    (errors.StageRefused(3, errors.MessageTooLong(9)), 400, {"index": 3, "why": "MessageTooLong", "bytes_max": 9}),
    (errors.DeadLetterQueueRefused("a/dlq", "It is missing."), 400, {"queue": "a/dlq"}),
    (errors.GroupHeld(), 409, {}),
    (errors.ReceiptEnded(ReceiptState.EXPIRED), 410, {"state": "expired"}),
    (errors.ReceiptInvalid(), 400, {}),
    (errors.DestinationRefused("a/q", "It is another."), 400, {"queue": "a/q"}),
    (errors.MessageTooLong(1_024), 400, {"bytes_max": 1_024}), (errors.StoreFull(), 503, {}),
    (errors.StoreUnavailable(), 503, {}), (errors.OutcomeUnknown(), 503, {}), (errors.ShuttingDown(), 503, {}),
    (errors.InternalError(), 500, {}),
    (errors.SettingsConflict("delay_s", "It is."), 400, {"setting": "delay_s"}),
    (errors.QueueExists("a/q", "fifo"), 409, {"queue": "a/q", "setting": "fifo"}),
    (errors.QueueDeletedRecently("a/q", 60), 409, {"queue": "a/q", "pause_s": 60}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "fields"), CORE_ROWS, ids=[type(row[0]).__name__ for row in CORE_ROWS])
def test_errors_of_core_as_replies(error: VeilmqError, status: int, fields: dict[str, object]) -> None:
    code = type(error).__name__
    reply = ApiCall(ListSources(queue="a/q")).encode(error)
    assert (reply.status, reply.code) == (status, code)
    assert json.loads(reply.body) == {"code": code, "message": str(error)} | fields
    assert reply.headers == b"Content-Type: application/json\r\n"


def test_every_error_of_a_route_has_a_row() -> None:
    of_routes = {error for route in ROUTES.values() for error in route.errors}
    assert of_routes | set(COMMON_ERRORS) == set(CORE_ERRORS) == {type(row[0]) for row in CORE_ROWS}


# Paths and bodies.

NO_ROUTES = [
    "/v1/", "/v1/claims", "/v1/claims/", f"/v1/claims/{QUEUE}/", f"/v1/claims/{QUEUE}/fly", f"/v1/claims/{QUEUE}/open/",
    f"/v1/claims/{QUEUE}/OPEN", f"/v1/claims//{QUEUE}/open", f"/v1/other/{QUEUE}/open", "/v1/claims/1234/jobs/open",
    "/v1/claims/--/jobs/open", "/v1/claims/000000000000/jo.bs/open", "/v1/claims/000000000000/../open",
    "/v1/claims/000000000000/%6aobs/open", f"/v1/claims/000000000000/{'x' * 257}/open", f"/v1/claims/{QUEUE}/open#x",
]  # fmt: skip


@pytest.mark.parametrize("target", NO_ROUTES, ids=str)
def test_unknown_paths(target: str) -> None:
    error = decode_error("POST", target, b'{"source": "s"}')
    assert (error.code.query, error.code.status) == ("UnknownRoute", 404)
    assert "/v1/{noun}/{account}/{queue}/{verb}" in error.message


ALL = Route(
    b"GET", b"all", b"", "", "", lambda request, *_: ApiCall(ListQueues(account=request.account)), of_account=True
)


@pytest.mark.parametrize("account", ["-", "000000000000"])
def test_a_path_without_a_queue_lists_the_account(account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTES, ALL.key, ALL)
    assert send("GET", f"/v1/all/{account}?x=1").command == ListQueues(account="000000000000")
    assert ALL.path == "/v1/all/{account}"
    for target in (f"/v1/all/{account}/", f"/v1/all/{account}/jobs", f"/v1/all/{account}/jobs/list", "/v1/all", "/v1/"):
        assert decode_error("GET", target).code.query == "UnknownRoute"
    assert decode_error("POST", f"/v1/all/{account}").code.query == "UnknownRoute"


@pytest.mark.parametrize("key", list(ROUTES), ids=[key.decode() for key in ROUTES])
def test_a_route_has_one_method(key: bytes) -> None:
    route = ROUTES[key]
    other = "POST" if route.method == b"GET" else "GET"
    target = route.path.format(account="000000000000", queue="jobs")
    assert decode_error(other, target).code.query == "UnknownRoute"


def test_permissions_of_routes_are_grantable_or_owner_only() -> None:
    """Policies can grant the others; creating queues and changing their settings is for owners, as over SQS."""
    owners = {route.label: route.permission for route in ROUTES.values() if route.permission not in GRANTABLE}
    assert owners == {"queues.create": "CreateQueue", "queues.list": "ListQueues", "queues.set": "SetQueueAttributes"}
    assert set(owners.values()) <= set(OWNER_ONLY)


BODIES = [b"", b"{", b"[]", b"null", b"1", b"\xff", b'{"source": "\\ud800"}', b"[" * 100_000, b'{"source": ' * 50_000]


@pytest.mark.parametrize("body", BODIES, ids=[repr(body[:20]) for body in BODIES])
def test_a_body_must_be_a_json_object(body: bytes) -> None:
    error = decode_error("POST", f"/v1/claims/{QUEUE}/open", body)
    assert error.code.query == "InvalidRequest"


_KNOWN = {"InvalidRequest", "UnknownRoute", "StageRefused", "ArrowMissing"}


def error_of(method: str, target: str, body: bytes) -> SqsError | None:
    """Return the error of decoding a request, if any."""
    try:
        send(method, target, body)
    except SqsError as error:
        return error
    return None


def check(method: str, target: str, body: bytes) -> None:
    """Assert that a request decodes or raises an error of the client."""
    error = error_of(method, target, body)
    if error is not None:
        assert error.code.query in _KNOWN
        assert 400 <= error.code.status < 500


@given(st.sampled_from(["GET", "POST"]), st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_decode_or_raise_a_client_error(method: str, target: bytes, body: bytes) -> None:
    check(method, "/v1/" + target.decode("latin-1"), body)
    check(method, f"/v1/claims/{QUEUE}/open", body)
    check("GET", f"/v1/claims/{QUEUE}/read?" + target.decode("latin-1"), body)


# Settings of queues.

SET = f"/v1/queues/{QUEUE}/set"


def test_every_setting_of_queues_can_be_set() -> None:
    """Except tags, which are no setting, and the counter of purges."""
    assert set(SettingFields.__struct_fields__) == set(QueueSettings.__struct_fields__) - {"tags", "purges"}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_of_number_settings(name: str) -> None:
    allowed = RANGES[name]
    for value in (allowed.minimum, allowed.maximum):
        changes = {name: value}
        assert send("POST", SET, json.dumps(changes).encode()).command == SetQueue(queue=QUEUE, settings=changes)
    for value in (allowed.minimum - 1, allowed.maximum + 1):
        assert invalid_request(SET, {name: value}) == f"{name}: must be {allowed.minimum} to {allowed.maximum}."


@pytest.mark.parametrize(("fields", "place"), [
    ({"VisibilityTimeout": 1}, "VisibilityTimeout"), ({"tags": {}}, "tags"), ({"delay_s": "1"}, "delay_s"),
    ({"delay_s": None}, "delay_s"), ({"deduplication_scope": "all"}, "deduplication_scope"),
    ({"event_log": "on"}, "event_log"),
    ({"dead_letter_queue": "222222222222/d"}, "dead_letter_queue"),
    ({"redrive_sources": ["a b"]}, "redrive_sources"), ({"redrive_sources": ["a"] * 11}, "redrive_sources"),
    ({"kms_key": "\n"}, "kms_key"), ([], "The request"),
    ({"visibility_rules": "é" * (limits.VISIBILITY_RULES_BYTES_MAX // 2 + 1)}, "visibility_rules"),
], ids=lambda each: str(each)[:30])  # fmt: skip
def test_invalid_settings_are_refused(fields: Any, place: str) -> None:
    assert place in invalid_request(SET, fields)


def test_an_invalid_policy_is_refused() -> None:
    error = decode_error("POST", SET, b'{"policy": "{}"}')
    assert error.code.query == "InvalidAttributeValue"


@pytest.mark.parametrize(
    ("name", "fifo"), [("x_" * 41, True), ("-" + "x" * 80, False), ("jobs.fifo", False), ("x" * 76 + ".fifo", True)]
)
def test_names_that_are_invalid_in_both_protocols_are_refused(name: str, fifo: bool) -> None:
    assert "name" in invalid_request(f"/v1/queues/000000000000/{name}/create", {"settings": {"fifo": fifo}})


# Inspection.

MESSAGES = f"/v1/messages/{QUEUE}"
LEASES = f"/v1/leases/{QUEUE}"
READ = limits.INSPECT_READ_BYTES
PROPERTIES = encode_properties(
    Properties(attributes=MIXED, system={"SenderId": Attribute("String", "me")}, group="g", dedup_id="d")
)


def inspected(body: str = "hello", message_id: bytes = ID, **other: Any) -> SeenMessage:
    """Return a message in flight."""
    fields: dict[str, Any] = {
        "id": message_id,
        "body": body,
        "properties": PROPERTIES,
        "sent_at_ms": 1,
        "receive_count": 2,
        "state": MessageState.IN_FLIGHT,
        "visible_at_ms": 5,
        "received_at_ms": 4,
        "first_received_at_ms": 3,
        "group": "g",
        "priority": 9,
        "receipt": "r",
    }
    return SeenMessage(**fields | other)


def decoded_reply(target: str, result: Any) -> Any:
    reply = send("GET", target).encode(result)
    assert reply.status == 200
    return json.loads(reply.body)


def peeked(body: str, source: str | None = None) -> PeekedMessage:
    """Return a visible message."""
    return PeekedMessage(
        id=ID,
        body=body,
        properties=PROPERTIES,
        sent_at_ms=1,
        first_received_at_ms=3,
        receive_count=2,
        priority=9,
        source=source,
    )


SHOWN = {
    "id": id_text(ID), "body": "éé", "body_bytes": 6, "attributes": {"type": "order", "price": "17", "raw": "AP8="},
    "attribute_types": {"price": "Number.int", "raw": "Binary"}, "system_attributes": {"SenderId": "me"}, "group": "g",
    "dedup_id": "d", "priority": 9, "sent_at_ms": 1, "first_received_at_ms": 3, "receive_count": 2,
}  # fmt: skip
LISTED = SHOWN | {"state": "in_flight", "visible_at_ms": 5, "received_at_ms": 4, "receipt": "r"}
TIMES: dict[str, Any] = {"received_at_ms": 2, "visible_at_ms": 3}
LEASE = TIMES | {"position": 2**62, "generation": 1, "receive_count": 4, "extensions": 5, "group": "g"}
THERE = "000000000000@eu-west-1"
NAMED = {"queue": f"{THERE}/jobs", "url": "http://h:1/eu-west-1/000000000000/jobs"}
VIEW = QueueView(
    queue=f"{THERE}/jobs",
    settings=QueueSettings(fifo=True, tags={"a": "b"}),
    created_at_ms=1,
    modified_at_ms=2,
    counts=QueueCounts(visible=3, in_flight=4, delayed=5, oldest_sent_at_ms=6),
    is_new=True,
)
COUNTS = {"visible": 3, "in_flight": 4, "delayed": 5, "created_at_ms": 1, "modified_at_ms": 2}
BROWSED = BrowsedQueues(queues=[], in_all=3, counted=2)
PAGE = {"queues": [], "in_all": 3, "counted": 2}
CREATED = b'{"settings": {"dead_letter_queue": "dead", "receives_max": 3}, "tags": {"a": "b"}}'
CHANGED = (
    b'{"redrive_sources": ["a", "000000000000/b"], "in_flight_max": null, "receives_max": 0, "dead_letter_queue": ""}'
)

CALLS: list[tuple[str, bytes, Command, Any, Any]] = [
    (f"GET {MESSAGES}?count=7&state=in_flight&receipts=true&id={id_text(ID)}&body_characters_max=2", b"",
     InspectQueue(queue=QUEUE, count=7, state=MessageState.IN_FLIGHT, receipts=True, id=ID, bytes_max=READ),
     [inspected("ééé")], {"messages": [LISTED], "is_cut": False}),
    (f"GET {MESSAGES}", b"", InspectQueue(queue=QUEUE, count=10, bytes_max=READ), [],
     {"messages": [], "is_cut": False}),
    (f"GET {MESSAGES}/peek?count=7&body_characters_max=2", b"", Peek(queue=QUEUE, count=7, bytes_max=READ),
     Peeked(messages=[peeked("ééé", "a/b")]), {"messages": [SHOWN | {"source": "a/b"}], "is_cut": False}),
    (f"GET {LEASES}?count=7&also=3,0", b"", InspectLeases(queue=QUEUE, count=7, also=(3, 0)),
     [SeenLease(message_id=ID, **LEASE)], {"leases": [LEASE | {"message_id": id_text(ID), "position": str(2**62)}]}),
    (f"GET /v1/queues/{THERE}?search=J&sort=oldest&descending=true&first=3&count=7&history=false", b"", BrowseQueues(
         account=THERE, search="J", order=QueueOrder.OLDEST, descending=True, first=3, count=7, history=False
     ), BROWSED, PAGE),
    ("GET /v1/queues/-?names=b,a,b,a/b", b"", BrowseQueues(account="000000000000", names=("b", "a")), BROWSED, PAGE),
    (f"GET /v1/queues/{THERE}/jobs/show", b"", ShowQueue(queue=f"{THERE}/jobs", counts=True), VIEW,
     NAMED | COUNTS | {"settings": json.loads(msgspec.json.encode(VIEW.settings))}),
    (f"POST /v1/queues/{THERE}/jobs/create", CREATED, CreateQueue(
        queue=f"{THERE}/jobs", settings={"dead_letter_queue": f"{THERE}/dead", "receives_max": 3}, tags={"a": "b"}
     ), VIEW, NAMED | {"is_new": True}),
    ("POST /v1/queues/-/jobs/set", b"", SetQueue(queue=QUEUE, settings={}), None, {}),
    (f"POST {SET}", CHANGED, SetQueue(queue=QUEUE, settings={
        "redrive_sources": ("000000000000/a", "000000000000/b"), "in_flight_max": None, "receives_max": 0,
        "dead_letter_queue": "",
     }), None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "body", "command", "result", "wanted"), CALLS, ids=[call[0] for call in CALLS])
def test_every_field_of_a_call_is_decoded_and_encoded(
    line: str, body: bytes, command: Command, result: Any, wanted: Any
) -> None:
    method, target = line.split()
    call = send(method, target, body)
    assert call.command == command
    reply = call.encode(result)
    assert (reply.status, json.loads(reply.body)) == (200, wanted)


@pytest.mark.parametrize(("target", "place"), [
    (f"{MESSAGES}?count=0", "count"), (f"{MESSAGES}?count=101", "count"), (f"{MESSAGES}?state=in%20flight", "state"),
    (f"{MESSAGES}?receipts=perhaps", "receipts"), (f"{MESSAGES}?id=1", "id"),
    (f"{MESSAGES}?body_characters_max=-1", "body_characters_max"),
    (f"{MESSAGES}?fields=all", "fields"), (f"{MESSAGES}/peek?count=101", "count"),
    (f"{MESSAGES}/peek?receipts=true", "receipts"), (f"{LEASES}?count=1001", "count"),
    (f"{LEASES}?receipts=true", "receipts"),
])  # fmt: skip
def test_invalid_parameters_are_refused(target: str, place: str) -> None:
    error = decode_error("GET", target)
    assert (error.code.query, error.code.status) == ("InvalidRequest", 400)
    assert place in error.message


def test_a_list_of_messages_is_limited_by_size() -> None:
    """It ends with the message that reaches the limit; properties count, truncated parts of bodies do not."""
    long = "x" * (limits.INSPECT_BYTES // 2)
    reply = decoded_reply(MESSAGES, [inspected(long), inspected(long), inspected("left out")])
    assert (len(reply["messages"]), reply["is_cut"]) == (2, True)
    properties = encode_properties(Properties(attributes={"a": Attribute("String", "ü" * limits.INSPECT_BYTES)}))
    reply = decoded_reply(MESSAGES, [inspected(properties=properties), inspected()])
    assert (len(reply["messages"]), reply["is_cut"]) == (1, True)
    reply = decoded_reply(f"{MESSAGES}?body_characters_max=10", [inspected(long), inspected(long), inspected(long)])
    assert (len(reply["messages"]), reply["is_cut"]) == (3, False)


def test_a_list_limited_by_the_engine_is_cut() -> None:
    """Because it has read too many bytes, regardless of how many are shown."""
    half = "x" * (READ // 2)
    for messages, is_cut in ([inspected(half)], False), ([inspected(half), inspected(half)], True):
        assert decoded_reply(f"{MESSAGES}?body_characters_max=10", messages)["is_cut"] is is_cut
    assert decoded_reply(f"{MESSAGES}/peek?body_characters_max=10", Peeked(messages=[peeked(half * 2)]))["is_cut"]


@pytest.mark.parametrize("text", ["-1", "1,", "x", "9223372036854775808", "1.5", "1%202", ",".join("1" * 201)])
def test_invalid_positions_are_refused(text: str) -> None:
    error = decode_error("GET", f"{LEASES}?also={text}")
    assert (error.code.query, error.message.split(":")[0]) == ("InvalidRequest", "also")
