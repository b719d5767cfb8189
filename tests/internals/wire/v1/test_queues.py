"""Settings of queues, and what is in them."""

import json
from typing import Any

import pytest

from tests.internals.wire.v1.test_request import ID, MIXED, QUEUE, refusal, send
from veilmq.core import limits
from veilmq.core.commands import MessageState, Peeked, PeekedMessage, SeenMessage, SetQueue
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
    ("name", "fifo"), [("x_" * 41, True), ("-" + "x" * 80, False), ("jobs.fifo", False), ("x" * 76 + ".fifo", True)]
)
def test_a_name_that_no_protocol_has_is_refused(name: str, fifo: bool) -> None:
    assert "name" in refused("create", {"settings": {"fifo": fifo}}, f"/v1/queues/000000000000/{name}")


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


@pytest.mark.parametrize("text", ["-1", "1,", "x", "9223372036854775808", "1.5", "1%202", ",".join("1" * 201)])
def test_what_is_no_list_of_positions_is_refused(text: str) -> None:
    error = refusal("GET", f"{LEASES}?also={text}")
    assert (error.code.query, error.message.split(":")[0]) == ("InvalidRequest", "also")
