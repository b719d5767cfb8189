"""Settings of queues, and what is in them."""

import json
from typing import Any

import pytest

from tests.internals.wire.v1.test_request import ID, ID_TEXT, MIXED, QUEUE, refusal, send
from veilmq.core import limits
from veilmq.core.commands import (
    CreateQueue,
    InspectLeases,
    InspectQueue,
    MessageState,
    Peek,
    Peeked,
    PeekedMessage,
    QueueCounts,
    QueueView,
    SeenLease,
    SeenMessage,
    SetQueue,
    ShowQueue,
)
from veilmq.core.errors import QueueExists, SettingsConflict
from veilmq.core.messages import Attribute, Properties, encode_properties
from veilmq.core.settings import QueueSettings
from veilmq.wire.v1.queues import RANGES, SettingFields
from veilmq.wire.v1.request import ApiCall

PATH = f"/v1/queues/{QUEUE}"


def post(verb: str, fields: Any, path: str = PATH) -> ApiCall:
    return send("POST", f"{path}/{verb}", json.dumps(fields).encode())


def refused(verb: str, fields: Any, path: str = PATH) -> str:
    error = refusal("POST", f"{path}/{verb}", json.dumps(fields).encode())
    assert (error.code.query, error.code.status) == ("InvalidRequest", 400)
    return error.message


def test_every_setting_of_queues_can_be_set() -> None:
    """A new one is a field here, too; tags are no setting, and a purge counts itself."""
    assert set(SettingFields.__struct_fields__) == set(QueueSettings.__struct_fields__) - {"tags", "purges"}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_may_be_what_its_range_says(name: str) -> None:
    allowed = RANGES[name]
    for value in (allowed.minimum, allowed.maximum):
        assert post("set", {name: value}).command == SetQueue(queue=QUEUE, settings={name: value})
    for value in (allowed.minimum - 1, allowed.maximum + 1):
        assert refused("set", {name: value}) == f"{name}: must be {allowed.minimum} to {allowed.maximum}."


def test_other_values_are_those_of_the_settings() -> None:
    given = {
        "in_flight_max": None,
        "event_log": None,
        "fifo": True,
        "content_deduplication": True,
        "deduplication_scope": "group",
        "throughput_limit": "group",
        "redrive_permission": "listed",
        "smq_base64": True,
        "operations_logged": True,
        "managed_encryption": False,
        "kms_key": "a key",
    }
    command = post("set", given | {"redrive_sources": ["a", "000000000000/b.fifo"], "dead_letter_queue": "d"}).command
    assert command == SetQueue(
        queue=QUEUE,
        settings=given
        | {"redrive_sources": ("000000000000/a", "000000000000/b.fifo"), "dead_letter_queue": "000000000000/d"},
    )
    assert post("set", {"dead_letter_queue": "", "policy": ""}).command.settings == {  # type: ignore[attr-defined]
        "dead_letter_queue": "",
        "policy": "",
    }


@pytest.mark.parametrize(("fields", "place"), [
    ({"VisibilityTimeout": 1}, "VisibilityTimeout"), ({"tags": {}}, "tags"), ({"delay_s": "1"}, "delay_s"),
    ({"delay_s": None}, "delay_s"), ({"deduplication_scope": "all"}, "deduplication_scope"),
    ({"event_log": "on"}, "event_log"),
    ({"dead_letter_queue": "222222222222/d"}, "dead_letter_queue"),
    ({"redrive_sources": ["a b"]}, "redrive_sources"), ({"redrive_sources": ["a"] * 11}, "redrive_sources"),
    ({"kms_key": "\n"}, "kms_key"), ({"visibility_rules": "x" * 200_000}, "visibility_rules"), ([], "The request"),
], ids=str)  # fmt: skip
def test_what_does_not_fit_is_refused(fields: Any, place: str) -> None:
    assert place in refused("set", fields)


def test_a_policy_is_read_before_it_is_kept() -> None:
    error = refusal("POST", f"{PATH}/set", b'{"policy": "{}"}')
    assert error.code.query == "InvalidAttributeValue"


@pytest.mark.parametrize(
    ("name", "fifo"),
    [("a_b-C9", False), ("x" * 80, False), ("x" * 256, True), ("jobs", True), ("jobs.fifo", True), ("9" * 256, False)],
)
def test_a_queue_is_made_under_any_name_of_either_protocol(name: str, fifo: bool) -> None:
    fields = {"settings": {"fifo": True}} if fifo else {}
    command = post("create", fields, f"/v1/queues/000000000000/{name}").command
    assert command == CreateQueue(queue=f"000000000000/{name}", settings={"fifo": True} if fifo else {}, tags={})


@pytest.mark.parametrize(
    ("name", "fifo"), [("x_" * 41, True), ("-" + "x" * 80, False), ("jobs.fifo", False), ("x" * 76 + ".fifo", True)]
)
def test_a_name_that_no_protocol_has_is_refused(name: str, fifo: bool) -> None:
    assert "name" in refused("create", {"settings": {"fifo": fifo}}, f"/v1/queues/000000000000/{name}")


def test_tags_are_those_of_sqs() -> None:
    assert post("create", {"tags": {"a": "b"}}).command.tags == {"a": "b"}  # type: ignore[attr-defined]
    error = refusal("POST", f"{PATH}/create", b'{"tags": {"aws:x": ""}}')
    assert error.code.query == "InvalidParameterValue"


def test_the_answer_tells_the_url() -> None:
    view = QueueView(queue=QUEUE, settings=QueueSettings(), created_at_ms=1, modified_at_ms=2, is_new=True)
    reply = post("create", {}).encode(view)
    assert json.loads(reply.body) == {"queue": QUEUE, "url": f"http://h:1/{QUEUE}", "is_new": True}
    assert json.loads(post("set", {}).encode(None).body) == {}


def test_a_queue_is_shown_whole() -> None:
    call = send("GET", f"{PATH}/show")
    assert call.command == ShowQueue(queue=QUEUE, counts=True)
    counts = QueueCounts(visible=1, in_flight=2, delayed=3, oldest_sent_at_ms=None)
    settings = QueueSettings(fifo=True, redrive_permission="listed", redrive_sources=("a/b",))
    view = QueueView(queue=QUEUE, settings=settings, created_at_ms=4, modified_at_ms=5, counts=counts)
    shown = json.loads(call.encode(view).body)
    assert set(shown["settings"]) == set(QueueSettings.__struct_fields__)
    assert (shown["settings"]["fifo"], shown["settings"]["redrive_sources"]) == (True, ["a/b"])
    counted = [shown[name] for name in ("visible", "in_flight", "delayed", "created_at_ms", "modified_at_ms")]
    assert counted == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("error", "status", "told"), [
    (QueueExists(QUEUE, "delay_s"), 409, {"queue": QUEUE, "setting": "delay_s"}),
    (SettingsConflict("fifo", "For good."), 400, {"setting": "fifo"}),
])  # fmt: skip
def test_errors_name_the_setting(error: Any, status: int, told: dict[str, str]) -> None:
    reply = post("create", {}).encode(error)
    assert reply.status == status
    assert json.loads(reply.body).items() >= ({"code": type(error).__name__} | told).items()


# The routes that look at a queue: the commands that they make, what they refuse, and what they answer.

MESSAGES = f"/v1/messages/{QUEUE}"
LEASES = f"/v1/leases/{QUEUE}"
READ = limits.INSPECT_READ_BYTES


def seen(body: str = "hello", message_id: bytes = ID, **other: Any) -> SeenMessage:
    """Return a message in flight."""
    carried = Properties(attributes=MIXED, system={"SenderId": Attribute("String", "me")}, group="g", dedup_id="d")
    fields: dict[str, Any] = {
        "id": message_id,
        "body": body,
        "properties": encode_properties(carried),
        "sent_at_ms": 1,
        "receive_count": 2,
        "state": MessageState.IN_FLIGHT,
        "visible_at_ms": 5,
        "received_at_ms": 4,
        "first_received_at_ms": 3,
        "group": "g",
        "priority": 8,
        "receipt": "r",
    }
    return SeenMessage(**fields | other)


def told(target: str, result: Any) -> Any:
    reply = send("GET", target).encode(result)
    assert reply.status == 200
    return json.loads(reply.body)


@pytest.mark.parametrize(("query", "command"), [
    ("", InspectQueue(queue=QUEUE, bytes_max=READ, count=10)),
    ("?state=visible&count=100", InspectQueue(queue=QUEUE, bytes_max=READ, count=100, state=MessageState.VISIBLE)),
    ("?state=in_flight&receipts=true", InspectQueue(queue=QUEUE, bytes_max=READ, count=10, state=MessageState.IN_FLIGHT,
        receipts=True)),
    ("?state=delayed&receipts=false", InspectQueue(queue=QUEUE, bytes_max=READ, count=10, state=MessageState.DELAYED)),
    (f"?id={ID_TEXT}&body_characters_max=0", InspectQueue(queue=QUEUE, bytes_max=READ, count=10, id=ID)),
])  # fmt: skip
def test_messages_are_looked_at(query: str, command: InspectQueue) -> None:
    assert send("GET", MESSAGES + query).command == command


def test_peeks_and_leases_are_counted() -> None:
    assert send("GET", f"{MESSAGES}/peek").command == Peek(queue=QUEUE, bytes_max=READ, count=10)
    assert send("GET", f"{MESSAGES}/peek?count=100").command == Peek(queue=QUEUE, bytes_max=READ, count=100)
    assert send("GET", LEASES).command == InspectLeases(queue=QUEUE, count=100)
    assert send("GET", f"{LEASES}?count=1000").command == InspectLeases(queue=QUEUE, count=1_000)


@pytest.mark.parametrize(("target", "place"), [
    (f"{MESSAGES}?count=0", "count"), (f"{MESSAGES}?count=101", "count"), (f"{MESSAGES}?state=in%20flight", "state"),
    (f"{MESSAGES}?receipts=perhaps", "receipts"), (f"{MESSAGES}?id=1", "id"),
    (f"{MESSAGES}?body_characters_max=-1", "body_characters_max"),
    (f"{MESSAGES}?fields=all", "fields"), (f"{MESSAGES}/peek?count=101", "count"),
    (f"{MESSAGES}/peek?receipts=true", "receipts"), (f"{LEASES}?count=1001", "count"),
    (f"{LEASES}?receipts=true", "receipts"),
])  # fmt: skip
def test_parameters_that_do_not_fit_are_refused(target: str, place: str) -> None:
    error = refusal("GET", target)
    assert (error.code.query, error.code.status) == ("InvalidRequest", 400)
    assert place in error.message


def test_a_message_is_shown_whole() -> None:
    assert told(f"{MESSAGES}?receipts=true", [seen("grüße")]) == {
        "messages": [
            {
                "id": ID_TEXT,
                "body": "grüße",
                "body_bytes": 7,
                "attributes": {"type": "order", "price": "17", "raw": "AP8="},
                "attribute_types": {"price": "Number.int", "raw": "Binary"},
                "system_attributes": {"SenderId": "me"},
                "group": "g",
                "dedup_id": "d",
                "priority": 8,
                "sent_at_ms": 1,
                "first_received_at_ms": 3,
                "receive_count": 2,
                "state": "in_flight",
                "visible_at_ms": 5,
                "received_at_ms": 4,
                "receipt": "r",
            }
        ],
        "is_cut": False,
    }


def test_a_message_that_carries_nothing_has_no_types() -> None:
    (message,) = told(MESSAGES, [seen(properties=b"", group=None)])["messages"]
    nothing: dict[str, Any] = {
        "attributes": {},
        "attribute_types": None,
        "system_attributes": {},
        "group": None,
        "dedup_id": None,
    }
    assert message.items() >= nothing.items()


def test_an_answer_ends_by_its_bytes() -> None:
    """With the message that brings it there; what carries the bytes does not matter, and cut bodies do not count."""
    long = "x" * (limits.INSPECT_BYTES // 2)
    answer = told(MESSAGES, [seen(long), seen(long), seen("left out")])
    assert (len(answer["messages"]), answer["is_cut"]) == (2, True)
    carried = encode_properties(Properties(attributes={"a": Attribute("String", "ü" * limits.INSPECT_BYTES)}))
    answer = told(MESSAGES, [seen(properties=carried), seen()])
    assert (len(answer["messages"]), answer["is_cut"]) == (1, True)
    answer = told(f"{MESSAGES}?body_characters_max=10", [seen(long), seen(long), seen(long)])
    assert (len(answer["messages"]), answer["is_cut"]) == (3, False)


def test_an_answer_says_that_the_look_has_ended_early() -> None:
    """Which it does when it has read so many bytes, however much of them is shown."""
    half = "x" * (READ // 2)
    for messages, is_cut in ([seen(half)], False), ([seen(half), seen(half)], True):
        assert told(f"{MESSAGES}?body_characters_max=10", messages)["is_cut"] is is_cut
    assert told(f"{MESSAGES}/peek?body_characters_max=10", Peeked(messages=[peeked(half * 2)]))["is_cut"]


def peeked(body: str, source: str | None = None) -> PeekedMessage:
    """Return a visible message."""
    return PeekedMessage(
        id=ID,
        body=body,
        properties=encode_properties(Properties(group="g")),
        sent_at_ms=1,
        first_received_at_ms=None,
        receive_count=0,
        priority=3,
        source=source,
    )


def test_a_peek_shows_where_a_dead_letter_came_from() -> None:
    answer = told(f"{MESSAGES}/peek", Peeked(messages=[peeked("hello"), peeked("dead", QUEUE)]))
    assert [(each["body"], each["group"], each["source"]) for each in answer["messages"]] == [
        ("hello", "g", None),
        ("dead", "g", QUEUE),
    ]
    assert answer["messages"][0].items() >= {"id": ID_TEXT, "first_received_at_ms": None, "priority": 3}.items()
    long = "x" * limits.INSPECT_BYTES
    assert told(f"{MESSAGES}/peek", Peeked(messages=[peeked(long), peeked("left out")]))["is_cut"]
    assert not told(f"{MESSAGES}/peek?body_characters_max=1", Peeked(messages=[peeked(long), peeked("b")]))["is_cut"]


def test_a_lease_tells_its_message_and_its_instants() -> None:
    lease = SeenLease(
        message_id=ID,
        position=2**63 - 1,
        generation=2**32 - 1,
        received_at_ms=4,
        visible_at_ms=5,
        receive_count=2,
        extensions=1,
        group="g",
    )
    assert told(LEASES, [lease]) == {
        "leases": [
            {
                "message_id": ID_TEXT,
                "position": "9223372036854775807",
                "generation": 4_294_967_295,
                "received_at_ms": 4,
                "visible_at_ms": 5,
                "receive_count": 2,
                "extensions": 1,
                "group": "g",
            }
        ]
    }


@pytest.mark.parametrize(
    ("text", "also"), [("", ()), ("0", (0,)), ("8999999999999999999,12,12", (9 * 10**18 - 1, 12, 12))]
)
def test_positions_are_asked_for_as_they_were_told(text: str, also: tuple[int, ...]) -> None:
    assert send("GET", f"{LEASES}?also={text}").command == InspectLeases(queue=QUEUE, count=100, also=also)


@pytest.mark.parametrize("text", ["-1", "1,", "x", "9223372036854775808", "1.5", "1%202", ",".join("1" * 201)])
def test_what_is_no_list_of_positions_is_refused(text: str) -> None:
    error = refusal("GET", f"{LEASES}?also={text}")
    assert (error.code.query, error.message.split(":")[0]) == ("InvalidRequest", "also")
