"""The pages of messages over real sockets: inspection, receives, changes with receipts, and sends."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.clients import boto
from tests.console.visitor import Seen, Visitor
from tests.server.keys import FRIEND, OWNER, REGION, client, written
from veilmq.testing import MessageState, RunningQueue, RunningServer

ACCOUNT = "000000000000"
SCRIPT = "<script>alert(1)</script>"
_ACTION = re.compile(r'<form method="post" action="([^"]*)" id="held">')
_CHOICE = re.compile(r'name="chosen\.([^"]+)"')
_RECEIPT = re.compile(r'name="receipt\.([^"]+)" value="([^"]+)"')


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def sqs(server: RunningServer) -> Any:
    return boto.client(server.endpoint)


def at(queue: str, query: str = "", account: str = ACCOUNT) -> str:
    return f"/console/queues/{account}/{queue}/messages" + (f"?{query}" if query else "")


def filled(server: RunningServer, name: str, *bodies: str, **settings: Any) -> RunningQueue:
    queue = server.queue(name, **settings)
    for body in bodies:
        boto.client(server.endpoint).send_message(
            QueueUrl=queue.url, MessageBody=body, **({"MessageGroupId": "g"} if name.endswith(".fifo") else {})
        )
    return queue


def act(
    visitor: Visitor,
    page: Seen,
    do: str,
    fields: dict[str, str] | None = None,
    *,
    confirmed: bool = False,
    leases: list[str] | None = None,
) -> Seen:
    """Select the messages of ``leases`` (by default all), and submit the action ``do``."""
    receipts = {unescape(lease): unescape(receipt) for lease, receipt in _RECEIPT.findall(page.html)}
    ticked = _CHOICE.findall(page.html) if leases is None else leases
    form = {f"receipt.{lease}": receipt for lease, receipt in receipts.items()}
    form |= {f"chosen.{lease}": "yes" for lease in ticked} | ({"confirmed": "yes"} if confirmed else {})
    action = _ACTION.search(page.html)
    assert action is not None, page.text
    return visitor.post(unescape(action[1]), do=do, **form, **(fields or {}))


def receive(visitor: Visitor, queue: str, **fields: str) -> Seen:
    return visitor.post(at(queue), **{"do": "receive", "count": "10", **fields})


def test_the_page_receives_no_messages(server: RunningServer, visitor: Visitor) -> None:
    queue = filled(server, "looked-at", "one", "two")
    for query in ("", "state=next", "state=visible", "state=in-flight", "state=delayed", "body=hex"):
        assert visitor.get(at("looked-at", query)).status == 200
    assert [(each.receive_count, each.state) for each in queue.messages()] == [(0, MessageState.VISIBLE)] * 2


@pytest.mark.parametrize(
    "query", ["body=xml&state=nowhere&count=7&whole=x&mine=a.b..c&results=<i>-1.gone-x", "count=-1"]
)
def test_unknown_query_parameters_are_ignored(server: RunningServer, visitor: Visitor, query: str) -> None:
    filled(server, "strange", "here")
    seen = visitor.get(at("strange", query))
    assert seen.status == 200
    assert "<i>" not in seen.html


def test_messages_are_listed_by_state(server: RunningServer, visitor: Visitor, sqs: Any) -> None:
    queue = filled(server, "states", "held")
    sqs.receive_message(QueueUrl=queue.url, VisibilityTimeout=77)
    sqs.send_message(QueueUrl=queue.url, MessageBody="waiting", DelaySeconds=100)
    sqs.send_message(QueueUrl=queue.url, MessageBody="ready")
    shown = {state: visitor.get(at("states", f"state={state}")).text for state in ("visible", "in-flight", "delayed")}
    assert [
        (state, body) for state, text in shown.items() for body in ("ready", "held", "waiting") if body in text
    ] == [("visible", "ready"), ("in-flight", "held"), ("delayed", "waiting")]
    assert "1 min 17 s left" in shown["in-flight"]
    assert "1 min 40 s left" in shown["delayed"]
    assert "held" in visitor.get(at("states", "state=in_flight")).text  # the name in the API
    everything = visitor.get(at("states")).text
    assert all(body in everything for body in ("ready", "held", "waiting"))


def test_markup_in_a_message_is_escaped(server: RunningServer, visitor: Visitor, sqs: Any) -> None:
    queue = server.queue("hostile.fifo")
    tight = "<svg/onload=alert(1)>"
    sqs.send_message(
        QueueUrl=queue.url,
        MessageBody=SCRIPT,
        MessageGroupId=tight,
        MessageDeduplicationId=tight + "'\"",
        MessageAttributes={
            "text": {"DataType": f"String.{SCRIPT}", "StringValue": SCRIPT},
            "bytes": {"DataType": "Binary", "BinaryValue": SCRIPT.encode() + b"\0\xff"},
        },
    )
    for body in ("text", "json", "hex"):
        seen = visitor.get(at("hostile.fifo", f"body={body}"))
        assert "<script>alert" not in seen.html
        assert "<svg" not in seen.html
        assert seen.text.count(tight) == 2
        assert SCRIPT in seen.text
        assert "70 74 3e 00 ff" in seen.text  # the end of the binary one


def test_bodies_are_shown_as_text_json_or_hex(server: RunningServer, visitor: Visitor) -> None:
    filled(server, "ways", '{"a":[1,"🐘"]}')
    assert '{"a":[1,"🐘"]}' in visitor.get(at("ways")).text
    assert '\n{\n  "a": [\n    1,\n    "🐘"\n  ]\n}' in unescape(visitor.get(at("ways", "body=json")).html)
    assert "f0 9f 90 98" in visitor.get(at("ways", "body=hex")).text


def test_a_long_body_is_truncated_and_has_its_own_page(server: RunningServer, visitor: Visitor) -> None:
    filled(server, "long", "x" * 300_000 + "the end", "short")
    seen = visitor.get(at("long"))
    assert "300,007 bytes" in seen.text
    assert "the end" not in seen.text
    link = re.search(r'href="([^"]+whole=[^"]+)"', seen.html)
    assert link is not None
    whole = visitor.get(unescape(link[1]))
    assert "the end" in whole.text
    assert "short" not in whole.text
    assert visitor.get(unescape(link[1]) + "0").status == 200


def test_json_that_is_too_deep_or_too_long_is_shown_as_text(server: RunningServer, visitor: Visitor) -> None:
    deepest = "[" * 400_000 + "]" * 400_000
    queue = filled(server, "deep", deepest, "[" * 30_000 + "]" * 30_000, "9" * 5_000)
    seen = visitor.get(at("deep", "body=json"))
    assert "too long" in seen.text
    assert "too deeply" in seen.text
    (identity,) = [message.id for message in queue.messages() if message.body == deepest]
    whole = visitor.get(at("deep", f"body=json&whole={identity.hex()}"))
    assert deepest in whole.html


def test_a_page_with_some_of_the_messages_says_so(server: RunningServer, visitor: Visitor) -> None:
    filled(server, "many", *map(str, range(21)))
    assert "The first 20 of 21 messages" in visitor.get(at("many")).text
    assert "There may be more" in visitor.get(at("many", "state=next")).text
    for whole in ("count=100", "count=100&state=next", "state=in-flight"):
        text = visitor.get(at("many", whole)).text
        assert "The first" not in text
        assert "There may be" not in text
    filled(server, "heavy", *["[1]" + " " * 65_000] * 70)
    assert re.search(r"The first 6\d of 70", visitor.get(at("heavy", "body=json&count=100")).text)


def test_a_reload_after_a_receive_receives_no_more_messages(server: RunningServer, visitor: Visitor) -> None:
    queue = filled(server, "received", "one", "two", "three")
    seen = receive(visitor, "received", count="2", timeout="45")
    assert "Received: 2." in seen.text
    assert seen.text.count("received by you") == 2
    assert "45 s left" in seen.text
    (receipt, _) = [message.receipt for message in queue.messages(MessageState.IN_FLIGHT)] or (None, None)
    assert receipt is None  # inspection returns no receipts by default
    assert all(value not in seen.path for _, value in _RECEIPT.findall(seen.html))
    visitor.get(seen.path)
    assert queue.counts.in_flight == 2


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"count": "11"}, "This must be 1 to 10 messages."),
        ({"count": ""}, "This must be a whole number, 1 to 10 messages."),
        ({"timeout": "43201"}, "This must be 0 to 43,200 seconds."),
        ({"timeout": SCRIPT}, "This must be a whole number, 0 to 43,200 seconds."),
    ],
)
def test_an_invalid_number_receives_no_messages(
    server: RunningServer, visitor: Visitor, fields: dict[str, str], error: str
) -> None:
    queue = filled(server, "wrong", "x")
    seen = receive(visitor, "wrong", **fields)
    assert (seen.status, error in seen.text, queue.counts.in_flight) == (422, True, 0)
    assert SCRIPT not in seen.html


def test_received_messages_are_shown_among_many_in_flight(server: RunningServer, visitor: Visitor, sqs: Any) -> None:
    """The leases of other consumers end earlier, and would fill the list."""
    queue = filled(server, "busy", *map(str, range(23)))
    for _ in range(2):
        sqs.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=10, VisibilityTimeout=10)
    seen = receive(visitor, "busy", count="3", timeout="600")
    assert seen.text.count("received by you") == 3
    left = act(visitor, seen, "delete")
    assert "Deleted: 3." in left.text
    assert "not shown" not in left.text
    assert queue.counts.in_flight == 20


def test_messages_are_deleted_released_moved_and_extended_with_their_receipts(
    server: RunningServer, visitor: Visitor
) -> None:
    queue = filled(server, "allowed", *"abcd")
    target = server.queue("elsewhere")
    page = receive(visitor, "allowed", timeout="30")
    leases = _CHOICE.findall(page.html)
    assert "Deleted: 1." in act(visitor, page, "delete", leases=leases[:1]).text
    assert "Released: 1." in act(visitor, page, "release", leases=leases[1:2]).text
    assert "Moved: 1." in act(visitor, page, "move", {"target": "elsewhere"}, leases=leases[2:3]).text
    last = act(visitor, page, "extend", {"seconds": "3600"}, leases=leases[3:])
    assert "Extended: 1." in last.text
    assert "1 h left" in last.text
    assert (queue.counts.visible, queue.counts.in_flight, target.counts.visible) == (1, 1, 1)


def test_an_action_may_have_many_messages(server: RunningServer, visitor: Visitor) -> None:
    queue = filled(server, "at-once", *map(str, range(20)))
    for _ in range(2):
        receive(visitor, "at-once")
    page = visitor.get(at("at-once", "state=in-flight&count=100"))
    assert "Deleted: 20." in act(visitor, page, "delete", confirmed=True).text
    assert queue.counts.in_flight == 0


def assert_described(seen: Seen) -> None:
    """Assert that each problem is in the description of an element."""
    described = " ".join(re.findall('aria-describedby="([^"]*)"', seen.html)).split()
    problems = re.findall('<p class="problem"([^>]*)>', seen.html)
    assert problems
    assert {name.removeprefix(' id="').removesuffix('"') for name in problems} <= set(described)


def test_an_action_on_leases_of_others_requires_confirmation(server: RunningServer, visitor: Visitor, sqs: Any) -> None:
    queue = filled(server, "theirs", "x")
    sqs.receive_message(QueueUrl=queue.url)
    page = visitor.get(at("theirs"))
    assert "being processed by others" in page.text
    refused = act(visitor, page, "release")
    assert (refused.status, "Some of these are held by others" in refused.text) == (422, True)
    assert_described(refused)
    assert queue.counts.in_flight == 1
    assert "Released: 1." in act(visitor, page, "release", confirmed=True).text
    assert queue.counts.visible == 1


@pytest.mark.parametrize(
    ("do", "fields", "error"),
    [
        ("extend", {"seconds": "0"}, "This must be 1 to 43,200 seconds."),
        ("extend", {"seconds": ""}, "This must be a whole number"),
        ("move", {"target": ""}, "This field is required."),
        ("move", {"target": "no such/queue"}, "Queue names may contain only letters"),
        ("move", {"target": "missing"}, "does not exist"),
        ("move", {"target": "refusing-move-16"}, "cannot be forwarded to itself"),
        ("move", {"target": "other.fifo"}, "has another type"),
        ("explode", {}, "Choose an action."),
    ],
)
def test_an_invalid_action_changes_no_messages(
    server: RunningServer, visitor: Visitor, do: str, fields: dict[str, str], error: str
) -> None:
    server.queue("other.fifo")
    name = f"refusing-{do}-{'-'.join(map(str, map(len, fields.values())))}"
    queue = filled(server, name, "x")
    page = receive(visitor, name, timeout="60")
    before = queue.messages()
    seen = act(visitor, page, do, fields)
    assert (seen.status, error in seen.text) == (422, True), seen.text
    assert queue.messages() == before
    assert seen.html.count(" checked") >= 1  # the selection is kept
    assert_described(seen)


def test_the_page_reports_an_empty_receive_and_an_empty_selection(server: RunningServer, visitor: Visitor) -> None:
    server.queue("empty", receive_wait_s=20)
    assert "No message was received" in receive(visitor, "empty").text
    filled(server, "unticked", "x")
    seen = act(visitor, receive(visitor, "unticked"), "delete", leases=[])
    assert (seen.status, "Select messages first." in seen.text) == (422, True)


def test_an_action_reports_the_fate_of_ended_receipts(server: RunningServer, visitor: Visitor, sqs: Any) -> None:
    queue = filled(server, "ended", "x", "y")
    page = receive(visitor, "ended", timeout="5")
    server.advance(seconds=6)
    (mine, *_) = sqs.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=1)["Messages"]
    leases = sorted(_CHOICE.findall(page.html), key=lambda lease: not lease.startswith(mine["MessageId"]))
    expected = "Not changed: received again meanwhile: 1."
    for do, fields in (("delete", {}), ("release", {}), ("extend", {"seconds": "5"}), ("move", {"target": "ended-b"})):
        server.queue("ended-b")
        assert expected in act(visitor, page, do, fields, leases=leases[:1]).text, do
    assert queue.counts.in_flight == 1
    expired = act(visitor, page, "move", {"target": "ended-b"}, leases=leases[1:])
    assert "Not changed: the timeout has ended: 1." in expired.text
    sqs.delete_message(QueueUrl=queue.url, ReceiptHandle=mine["ReceiptHandle"])
    for do in ("delete", "release"):
        assert "Not changed: no longer in the queue: 1." in act(visitor, page, do, leases=leases[:1]).text, do


def test_an_action_on_a_fifo_queue_reports_ended_receipts(server: RunningServer, visitor: Visitor) -> None:
    queue = filled(server, "ended.fifo", "x", content_deduplication=True)
    page = receive(visitor, "ended.fifo", timeout="5")
    server.advance(seconds=6)
    for do in ("delete", "release"):
        assert "has ended, or received again" in act(visitor, page, do).text, do
    assert queue.counts.visible == 1


def test_the_page_of_next_messages_omits_blocked_groups(server: RunningServer, visitor: Visitor) -> None:
    queue = filled(server, "order.fifo", "earlier", "later", content_deduplication=True)
    assert "later" in visitor.get(at("order.fifo", "state=next")).text
    page = receive(visitor, "order.fifo", count="1")
    assert "earlier" in page.text
    assert "later" not in visitor.get(at("order.fifo", "state=next")).text
    act(visitor, page, "delete")
    assert "later" in visitor.get(at("order.fifo", "state=next")).text
    assert queue.counts.visible == 1


def test_no_lease_is_extended_beyond_twelve_hours(server: RunningServer, visitor: Visitor) -> None:
    filled(server, "wall", "x")
    page = receive(visitor, "wall", timeout="43200")
    server.advance(seconds=1)
    seen = act(visitor, page, "extend", {"seconds": "43200"})
    assert "Not extended: the lease would last more than 43,200 seconds since the receive: 1." in seen.text


def test_a_forged_receipt_is_reported(server: RunningServer, visitor: Visitor) -> None:
    filled(server, "forged", "x")
    for do in ("delete", "release"):
        form = {"chosen.a_1": "yes", "receipt.a_1": SCRIPT, "confirmed": "yes"}
        seen = visitor.post(at("forged", "state=in-flight"), do=do, **form)
        assert "the receipt is not of this queue: 1." in seen.text, do


def policy(*actions: str) -> str:
    allowed = {"Principal": {"AWS": FRIEND}, "Action": [f"sqs:{action}" for action in actions]}
    statement = {"Effect": "Allow", **allowed, "Resource": f"arn:aws:sqs:{REGION}:{OWNER}:shared"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[RunningServer, Any, str]]:
    keys = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=keys, account=OWNER, region=REGION) as running:
        owner = client(running)
        url = owner.create_queue(QueueName="shared")["QueueUrl"]
        for number in range(3):
            owner.send_message(QueueUrl=url, MessageBody=f"body {number}")
        yield running, owner, url


def test_a_user_with_permission_to_receive_sees_only_own_receipts(shared: tuple[RunningServer, Any, str]) -> None:
    running, owner, url = shared
    owner.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy("ReceiveMessage", "DeleteMessage")})
    owner.receive_message(QueueUrl=url)
    with Visitor(running, key="AKIDFRIEND") as friend:
        listed = friend.get(at("shared", account=OWNER))
        assert (listed.status, "needs PurgeQueue" in listed.text, _RECEIPT.findall(listed.html)) == (200, True, [])
        page = friend.post(at("shared", account=OWNER), do="receive", count="2")
        leases = _CHOICE.findall(page.html)
        assert len(leases) == 2
        rest = act(friend, page, "delete", leases=leases[:1])
        assert "Deleted: 1." in rest.text
        assert _CHOICE.findall(rest.html) == leases[1:]
        denied = act(friend, rest, "release", leases=leases[1:])
        assert denied.status == 403
        assert "Deleted: 1." in act(friend, denied, "delete", leases=leases[1:]).text
    found = owner.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (found["ApproximateNumberOfMessages"], found["ApproximateNumberOfMessagesNotVisible"]) == ("0", "1")


# Sends.


def send(visitor: Visitor, queue: str, fields: dict[str, str], account: str = ACCOUNT) -> Seen:
    return visitor.post(f"/console/queues/{account}/{queue}/messages/send", **fields)


def received(server: RunningServer, url: str) -> dict[str, Any]:
    names: dict[str, Any] = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    (message,) = boto.client(server.endpoint).receive_message(QueueUrl=url, **names)["Messages"]
    return dict(message)


def test_a_message_is_sent_as_it_was_entered(server: RunningServer, visitor: Visitor) -> None:
    queue = server.queue("plain")
    fields = {
        "body": "\r\nhello <b>\r\n🐘 &amp; ",
        "attribute.0.name": "size",
        "attribute.0.type": "Number.float",
        "attribute.0.value": "1.50",
        "attribute.7.name": "raw",
        "attribute.7.type": "Binary",
        "attribute.7.value": b64encode(b"\0\xff").decode(),
    }
    seen = send(visitor, "plain", fields)
    assert seen.path == f"/console/queues/{ACCOUNT}/plain/messages?done=sent"
    assert "The message was sent." in seen.text
    message = received(server, queue.url)
    assert message["Body"] == "\nhello <b>\n🐘 &amp; "
    assert message["MessageAttributes"] == {
        "size": {"DataType": "Number.float", "StringValue": "1.50"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    }


def test_a_message_is_sent_with_its_delay_group_and_deduplication_id(server: RunningServer, visitor: Visitor) -> None:
    fifo, fair, later = (server.queue(name) for name in ("groups.fifo", "fair", "later"))
    for _ in range(2):
        send(visitor, "groups.fifo", {"body": "x", "group": "g", "deduplication_id": "d"})
    send(visitor, "fair", {"body": "x", "group": "tenant", "deduplication_id": ""})
    send(visitor, "later", {"body": "x", "delay": "900"})
    found = received(server, fifo.url)["Attributes"]
    assert (found["MessageGroupId"], found["MessageDeduplicationId"]) == ("g", "d")
    assert received(server, fair.url)["Attributes"]["MessageGroupId"] == "tenant"
    assert later.counts.delayed == 1


def attribute(number: int = 1, **parts: str) -> dict[str, str]:
    """Return the fields of a message with an attribute in row ``number``."""
    return {"body": "x"} | {f"attribute.{number}.{part}": text for part, text in parts.items()}


@pytest.mark.parametrize(
    ("queue", "fields", "error"),
    [
        ("refusing", {"body": ""}, "The body must not be empty"),
        ("refusing", {"body": "x\x0by"}, "Invalid binary character &#39;#xB&#39;"),
        ("refusing", {"body": "é" * 600}, "Message must be shorter than 1024 bytes"),
        ("refusing", {"body": "x", "delay": "901"}, "This must be 0 to 900 seconds."),
        ("refusing", {"body": "x", "delay": "soon"}, "This must be a whole number, 0 to 900 seconds."),
        ("refusing", {"body": "x", "group": "a group"}, "MessageGroupId can only include"),
        ("refusing.fifo", {"body": "x"}, "MessageGroupId"),
        ("refusing.fifo", {"body": "x", "group": "g"}, "ContentBasedDeduplication"),
        ("refusing", attribute(value="v"), "Enter a name or delete the value."),
        ("refusing", attribute(name="AWS.x", value="v"), "reserved for internal use"),
        ("refusing", attribute(name="n"), "must contain a non-empty value"),
        ("refusing", attribute(name="n", type="Number", value="one"), "to a number"),
        ("refusing", attribute(9, name="n", type="Binary", value="é"), "not valid base64"),
        ("refusing", attribute(0, name="n", value="1") | attribute(name="n"), "Another row has this name"),
    ],
)
def test_an_invalid_message_stays_in_the_form(
    server: RunningServer, visitor: Visitor, queue: str, fields: dict[str, str], error: str
) -> None:
    there = server.queue(queue, **({} if queue.endswith(".fifo") else {"message_bytes_max": 1024}))
    seen = send(visitor, queue, fields)
    assert seen.status in {400, 422}
    assert error in seen.html
    assert seen.html.count('class="problem"') >= 1
    for value in fields.values():
        assert value in unescape(seen.html)
    assert there.messages() == []


def test_a_message_stays_in_the_form_if_the_user_may_not_send(shared: tuple[RunningServer, Any, str]) -> None:
    with Visitor(shared[0], key="AKIDFRIEND") as friend:
        seen = send(friend, "shared", {"body": "long thought"}, account=OWNER)
    assert (seen.status, "long thought" in seen.text) == (403, True)
    assert "not authorized to perform: sqs:sendmessage" in seen.text.lower()


def test_a_message_stays_in_the_form_if_its_queue_was_deleted(visitor: Visitor) -> None:
    path = f"/console/queues/{ACCOUNT}/deleted/messages/send"
    seen = visitor.post(path, at="/console/queues/new", body="long thought")
    assert (seen.status, "long thought" in seen.text) == (400, True)
    assert "queue does not exist" in seen.text
