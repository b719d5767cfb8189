"""What Alibaba's SDK for PHP needs: how it reads replies, its way with handles, the endpoints that it makes.

That SDK is not run here. It reads XML node by node (XMLReader), and `Reader` walks a reply as it does.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from xml.dom import pulldom

import pytest

from tests.clients.smq.raw import ask, element, message
from veilmq.testing import RunningServer

SYSTEM, USER = "SystemProperties", "UserProperties"
PROPERTIES = {"baggage": "k=v", "traceparent": "00-1-2-3"}


@pytest.fixture(params=["memory", "postgres"])
def veilmq_settings(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What the server keeps its messages in."""
    return place(request.param)


class Reader:
    """A reply as the SDK walks it: behind a property's name it takes the next node, whatever that is, for its text."""

    def __init__(self, body: str) -> None:
        """Begin at its first node."""
        self._events: Iterator[Any] = iter(pulldom.parseString(body))
        self.kind, self.name, self.text = "", "", ""

    def read(self) -> bool:
        """Go on to the next node, as XMLReader does; tell whether there is one."""
        for kind, node in self._events:
            blank = kind == pulldom.CHARACTERS and not node.data.strip()
            self.kind = "white space" if blank else kind
            self.name, self.text = node.nodeName, node.nodeValue or ""
            return True
        return False

    def _at(self, kind: str, name: str) -> bool:
        return (self.kind, self.name) == (kind, name)

    def message(self) -> dict[str, Any]:
        """Return what the SDK finds in a message."""
        found: dict[str, Any] = {}
        while self.read() and not self._at(pulldom.END_ELEMENT, "Message"):
            if self.kind != pulldom.START_ELEMENT:
                continue
            if self.name == SYSTEM:
                found[SYSTEM] = self._properties(SYSTEM, "SystemPropertyValue", at_ends=True)
            elif self.name == USER:
                found[USER] = self._properties("", "PropertyValue", at_ends=False)
            elif self.name != "Message":
                name = self.name
                self.read()
                found[name] = self.text if self.kind == pulldom.CHARACTERS else None
        return found

    def _properties(self, ends_at: str, entry: str, *, at_ends: bool) -> dict[str, str | None]:
        """Read on up to the end of `ends_at`: those of users to the end of the reply."""
        found: dict[str, str | None] = {}
        while self.read() and not self._at(pulldom.END_ELEMENT, ends_at):
            if self._at(pulldom.START_ELEMENT, entry):
                values: dict[str, str] = {}
                while self.read() and not self._at(pulldom.END_ELEMENT, entry):
                    if self.name in ("Name", "Value", "Type") and (at_ends or self.kind == pulldom.START_ELEMENT):
                        name = self.name
                        self.read()
                        if self.kind == pulldom.CHARACTERS:
                            values[name] = self.text
                if values.get("Type") == "STRING":
                    found[values.get("Name", "")] = values.get("Value")
        return found


def properties(container: str, entry: str, given: dict[str, str]) -> str:
    """Return properties as a request has them."""
    inner = "".join(
        element(entry, element("Name", name) + element("Value", value) + element("Type", "STRING"))
        for name, value in given.items()
    )
    return element(container, inner)


@pytest.mark.parametrize("way", ["", "?peekonly=true"])
def test_it_finds_the_properties_of_both_kinds(server: RunningServer, way: str) -> None:
    """Those of the system first: it reads those of users up to the end of the reply."""
    ask(server, "PUT", "/queues/jobs")
    sent = message("a").replace(
        "</Message>",
        properties(USER, "PropertyValue", {"k": "v", "l": "w"})
        + properties(SYSTEM, "SystemPropertyValue", PROPERTIES)
        + "</Message>",
    )
    assert ask(server, "POST", "/queues/jobs/messages", sent).status == 201
    reply = ask(server, "GET", f"/queues/jobs/messages{way}")
    found = Reader(reply.body).message()
    assert (found[SYSTEM], found[USER]) == (PROPERTIES, {"k": "v", "l": "w"})
    assert (found["MessageBody"], found["Priority"]) == ("a", "8")


def test_it_finds_the_system_properties_of_each_message_of_a_batch(server: RunningServer) -> None:
    ask(server, "PUT", "/queues/jobs")
    for body in "ab":
        sent = message(body).replace("</Message>", properties(SYSTEM, "SystemPropertyValue", PROPERTIES) + "</Message>")
        ask(server, "POST", "/queues/jobs/messages", sent)
    reader = Reader(ask(server, "GET", "/queues/jobs/messages?numOfMessages=2").body)
    found = [reader.message() for _ in range(2)]
    assert [(each["MessageBody"], each[SYSTEM]) for each in found] == [("a", PROPERTIES), ("b", PROPERTIES)]


@pytest.mark.parametrize(("handles", "statuses"), [("strict", (404, 404)), ("lenient", (200, 204))])
def test_its_own_sequence_around_an_old_handle(
    veilmq_settings: dict[str, Any], handles: str, statuses: tuple[int, int]
) -> None:
    """It changes the visibility, and goes on with the handle of the receive: that acts where handles are lenient."""
    with RunningServer(**veilmq_settings, smq_handles=handles) as server:
        ask(server, "PUT", "/queues/jobs")
        ask(server, "POST", "/queues/jobs/messages", message("a"))
        handle = ask(server, "GET", "/queues/jobs/messages").text("ReceiptHandle")
        target = f"/queues/jobs/messages?ReceiptHandle={handle}"
        assert ask(server, "PUT", f"{target}&VisibilityTimeout=18").status == 200
        again, deleted = ask(server, "PUT", f"{target}&VisibilityTimeout=18"), ask(server, "DELETE", target)
        assert (again.status, deleted.status) == statuses
        if handles == "strict":
            assert (again.code, deleted.code) == ("MessageNotExist", "MessageNotExist")
        left = ask(server, "GET", "/queues/jobs")
        assert left.text("InactiveMessages") == ("1" if handles == "strict" else "0")


def endpoint_made_of(address: str) -> str:
    """Return a queue's endpoint as that SDK makes it: it takes the address for `<account>.mns.<region>.…`."""
    labels = address.split(".")
    region = labels[2].split("-internal")[0] if len(labels) > 2 else ""
    return f"acs:mns:{region}:{labels[0]}:queues/jobs"


@pytest.mark.parametrize(
    "host",
    [
        None,
        "127.0.0.1",
        "10.20.30.40:9324",
        "localhost:9324",
        "mq.example.com:9324",
        "team.mns.cn-hangzhou-internal.example.com",
    ],
)
def test_the_endpoint_that_it_makes_of_this_servers_address_is_this_servers_queue(
    server: RunningServer, host: str | None
) -> None:
    host = host or urlsplit(server.endpoint).netloc
    for target in ("/queues/jobs", "/topics/news"):
        ask(server, "PUT", target)
    subscription = element("Subscription", element("Endpoint", endpoint_made_of(host)))
    assert ask(server, "PUT", "/topics/news/subscriptions/s", subscription, host=host).status == 201
    assert ask(server, "PUT", "/topics/news/subscriptions/s", subscription, host=host).status == 204
    shown = ask(server, "GET", "/topics/news/subscriptions/s", host=host)
    assert shown.text("Endpoint") == endpoint_made_of(host)
    assert ask(server, "POST", "/topics/news/messages", message("hello")).status == 201
    received = ask(server, "GET", "/queues/jobs/messages?waitseconds=30")
    assert "&lt;Message&gt;hello&lt;/Message&gt;" in received.body


@pytest.mark.parametrize(
    "endpoint",
    ["acs:mns:0:128:queues/jobs", "acs:mns:1:127:queues/jobs", "acs:mns:mns:111122223333:queues/jobs"],
)
def test_a_queue_of_another_account_is_refused_whatever_the_address_is(server: RunningServer, endpoint: str) -> None:
    ask(server, "PUT", "/queues/jobs")
    ask(server, "PUT", "/topics/news")
    subscription = element("Subscription", element("Endpoint", endpoint))
    for host in (urlsplit(server.endpoint).netloc, "111122223333.x.mns.example.com"):
        refused = ask(server, "PUT", "/topics/news/subscriptions/s", subscription, host=host)
        assert (refused.status, refused.code) == (403, "AccessDenied")


@pytest.mark.parametrize("endpoint", ["mail:directmail:a@b.example", "mailto:a@b.example", "sms:directsms:anonymous"])
def test_subscriptions_by_mail_and_sms_get_a_clear_error(server: RunningServer, endpoint: str) -> None:
    ask(server, "PUT", "/topics/news")
    subscription = element("Subscription", element("Endpoint", endpoint))
    refused = ask(server, "PUT", "/topics/news/subscriptions/s", subscription)
    assert (refused.status, refused.code) == (400, "EndpointInvalid")
    assert "Subscriptions by mail and SMS are not supported. Subscribe a queue" in refused.text("Message")
