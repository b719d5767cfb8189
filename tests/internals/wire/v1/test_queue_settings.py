"""The routes of queues' settings: the commands that they make, what they refuse, and what they answer."""

import json
from typing import Any

import pytest

from tests.internals.wire.v1.asking import QUEUE, refusal, send
from veilmq.core.commands import CreateQueue, SetQueue, ShowQueue
from veilmq.core.errors import QueueExists, SettingsConflict
from veilmq.core.results import QueueCounts, QueueView
from veilmq.core.settings import QueueSettings
from veilmq.wire.v1.queues import RANGES, SettingFields
from veilmq.wire.v1.request import ApiCall

PATH = f"/v1/queues/{QUEUE}"


def post(verb: str, fields: Any, path: str = PATH) -> ApiCall:
    """Return what the codec makes of a request."""
    return send("POST", f"{path}/{verb}", json.dumps(fields).encode())


def refused(verb: str, fields: Any, path: str = PATH) -> str:
    """Return the text with which a request is refused as invalid."""
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


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"VisibilityTimeout": 1}, "VisibilityTimeout"),
        ({"tags": {}}, "tags"),
        ({"delay_s": "1"}, "delay_s"),
        ({"delay_s": None}, "delay_s"),
        ({"deduplication_scope": "all"}, "deduplication_scope"),
        ({"event_log": "on"}, "event_log"),
        ({"dead_letter_queue": "222222222222/d"}, "dead_letter_queue"),
        ({"redrive_sources": ["a b"]}, "redrive_sources"),
        ({"redrive_sources": ["a"] * 11}, "redrive_sources"),
        ({"kms_key": "\n"}, "kms_key"),
        ({"visibility_rules": "x" * 200_000}, "visibility_rules"),
        ([], "The request"),
    ],
    ids=str,
)
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


def test_a_queue_is_made_in_the_callers_own_account() -> None:
    error = refusal("POST", "/v1/queues/222222222222/jobs/create", b"{}")
    assert (error.code.query, error.code.status) == ("AccessDenied", 403)
    assert post("create", {}, "/v1/queues/-/jobs").command.queue == QUEUE  # type: ignore[attr-defined]


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
    assert [shown[name] for name in ("visible", "in_flight", "delayed", "created_at_ms", "modified_at_ms")] == [
        1,
        2,
        3,
        4,
        5,
    ]


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (QueueExists(QUEUE, "delay_s"), 409, {"queue": QUEUE, "setting": "delay_s"}),
        (SettingsConflict("fifo", "For good."), 400, {"setting": "fifo"}),
    ],
)
def test_errors_name_the_setting(error: Any, status: int, told: dict[str, str]) -> None:
    reply = post("create", {}).encode(error)
    assert reply.status == status
    assert json.loads(reply.body).items() >= ({"code": type(error).__name__} | told).items()
