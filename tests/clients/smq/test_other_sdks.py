"""Signed requests as the SDKs for Go, Java, PHP and C# write them; these SDKs are not installed.

Each has its own headers, bodies and string to sign (reference, sections 3.3 and 8). The tests check the statuses and
names that the SDKs expect.
"""

import re
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlsplit
from xml.dom import pulldom

import pytest

from tests.clients.smq.raw import element, hex_md5, message, signature_v2, smq_request
from tests.server.keys import REGION, SECRETS, written
from veilmq.testing import RunningServer

KEY = "AKIDOWNER"
_DECLARED = '<?xml version="1.0" encoding="UTF-8"?>'

Parameters = dict[str, str]


def unescaped(parameters: Parameters) -> str:
    return "&".join(f"{name}={value}" if value else name for name, value in parameters.items())


def escaped(parameters: Parameters) -> str:
    return "&".join(f"{name}={quote_plus(value)}" for name, value in parameters.items())


def sorted_unescaped(parameters: Parameters) -> str:
    return "&".join(f"{name}={parameters[name]}" for name in sorted(parameters))


class Sdk(NamedTuple):
    content_type: str
    always_typed: bool  # also without a body
    digests: bool
    version: str
    opening: str
    namespace: str
    sent: Callable[[Parameters], str]
    signed: Callable[[Parameters], str]
    more: tuple[tuple[str, str], ...] = ()


SDKS = {
    "go": Sdk("application/xml", True, True, "X-Mns-Version", "", "", escaped, escaped),
    "java": Sdk(
        "text/xml;charset=UTF-8", True, False, "x-mns-version", _DECLARED,
        ' xmlns="http://mns.aliyuncs.com/doc/v1"', unescaped, unescaped, (("Expect", "100-continue"),),
    ),
    "php": Sdk(
        "text/xml", True, False, "x-mns-version", _DECLARED + "\n",
        ' xmlns="http://mns.aliyuncs.com/doc/v1/"', escaped, escaped,
    ),
    "c#": Sdk(
        "text/xml", False, False, "x-mns-version", "\ufeff" + _DECLARED,
        ' xmlns="http://mns.aliyuncs.com/doc/v1"', unescaped, sorted_unescaped,
    ),
}  # fmt: skip


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]  # in the server's spelling
    body: str

    def text(self, name: str) -> str:
        found = re.search(f"<{name}>([^<]*)</{name}>", self.body)
        assert found is not None, self.body
        return found[1]


Do = Callable[..., Reply]


@pytest.fixture(params=SDKS)
def do(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Do]:
    sdk = SDKS[request.param]
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)

        def call(
            method: str, path: str, parameters: Parameters | None = None, root: str = "", inner: str = ""
        ) -> Reply:
            body = f"{sdk.opening}<{root}{sdk.namespace}>{inner}</{root}>".encode() if root else b""
            headers = {"Date": formatdate(usegmt=True), sdk.version: "2015-06-06"}
            if body or sdk.always_typed:
                headers["Content-Type"] = sdk.content_type
            if sdk.digests:
                headers["Content-MD5"] = hex_md5(body)
            sent, signed = (f"{path}?{way(parameters)}" if parameters else path for way in (sdk.sent, sdk.signed))
            signature = signature_v2(method, signed, headers, date=headers["Date"], secret=SECRETS[KEY])
            headers |= {"Authorization": f"MNS {KEY}:{signature}"} | (dict(sdk.more) if body else {})
            connection.request(method, sent, body or None, headers)
            reply = connection.getresponse()
            return Reply(reply.status, dict(reply.getheaders()), reply.read().decode())

        yield call
        connection.close()


JOBS = "/queues/jobs"
MESSAGES = "/queues/jobs/messages"


def test_a_queue_is_created_changed_listed_and_deleted(do: Do) -> None:
    made = do("PUT", JOBS, root="Queue", inner="<VisibilityTimeout>100</VisibilityTimeout>")
    assert made.status == 201
    assert made.headers["Location"].endswith(JOBS)
    assert made.headers["Location"].count("/") == 4
    assert do("PUT", JOBS, root="Queue").status == 204
    values = {"DelaySeconds": 0, "PollingWaitSeconds": 0, "LoggingEnabled": "true"}
    inner = "".join(element(*pair) for pair in values.items())
    assert do("PUT", JOBS, {"metaoverride": "true"}, "Queue", inner).status == 204
    shown = do("GET", JOBS)
    assert (shown.status, shown.text("LoggingEnabled"), shown.text("VisibilityTimeout")) == (200, "True", "100")
    listed = do("GET", "/queues")
    assert listed.text("QueueURL") == made.headers["Location"]
    assert "NextMarker" not in listed.body
    assert do("GET", "/", {"accountmeta": "true"}).text("LoggingBucket") == ""
    assert do("DELETE", JOBS).status == 204
    gone = do("GET", JOBS)
    assert (gone.status, gone.text("Code")) == (404, "QueueNotExist")
    assert gone.headers["x-mns-request-id"] == gone.text("RequestId")
    assert '<Error xmlns="http://mns.aliyuncs.com/doc/v1">' in gone.body


def test_messages_are_sent_received_changed_and_deleted(do: Do) -> None:
    do("PUT", JOBS, root="Queue")
    inner = "<MessageBody>a&amp;b</MessageBody><DelaySeconds>0</DelaySeconds><Priority>0</Priority>"
    sent = do("POST", MESSAGES, root="Message", inner=inner)
    assert (sent.status, "ReceiptHandle" in sent.body) == (201, False)
    assert do("POST", MESSAGES, root="Messages", inner=f"<Message>{inner}</Message>" * 2).status == 201
    assert do("GET", MESSAGES, {"numOfMessages": "3", "peekonly": "true"}).body.count("<Message>") == 3
    got = do("GET", MESSAGES, {"waitseconds": "1"})
    assert (got.status, got.text("MessageBody"), got.text("Priority")) == (200, "a&amp;b", "8")
    change = {"ReceiptHandle": got.text("ReceiptHandle"), "VisibilityTimeout": "60"}
    changed = do("PUT", MESSAGES, change)
    assert (changed.status, "<ChangeVisibility " in changed.body) == (200, True)
    assert do("DELETE", MESSAGES, {"ReceiptHandle": changed.text("ReceiptHandle")}).status == 204
    rest = re.findall("<ReceiptHandle>[^<]*</ReceiptHandle>", do("GET", MESSAGES, {"numOfMessages": "16"}).body)
    assert do("DELETE", MESSAGES, root="ReceiptHandles", inner="".join(rest)).status == 204
    empty = do("GET", MESSAGES, {"waitseconds": "0"})
    assert (empty.status, empty.text("Code")) == (404, "MessageNotExist")
    fake = "1-ODU4OTkzNDU5My0xNDM1MTk3NjAwLTItNg=="
    failed = do("DELETE", MESSAGES, root="ReceiptHandles", inner=f"<ReceiptHandle>{fake}</ReceiptHandle>")
    assert (failed.status, failed.text("ReceiptHandle"), failed.text("ErrorCode")) == (404, fake, "ReceiptHandleError")
    assert do("DELETE", MESSAGES, {"ReceiptHandle": fake}).text("Code") == "ReceiptHandleError"


# Alibaba's SDK for PHP: how it reads replies, uses receipt handles and derives endpoints.
#
# It is not installed; `Reader` reads XML node by node as it does with XMLReader.


SYSTEM, USER = "SystemProperties", "UserProperties"
PROPERTIES = {"baggage": "k=v", "traceparent": "00-1-2-3"}


class Reader:
    """Read a reply as the SDK does: it takes the node after the start of an element for its text."""

    def __init__(self, body: str) -> None:
        self._events: Iterator[Any] = iter(pulldom.parseString(body))
        self.kind, self.name, self.text = "", "", ""

    def read(self) -> bool:
        """Advance to the next node; return whether there is one."""
        for kind, node in self._events:
            blank = kind == pulldom.CHARACTERS and not node.data.strip()
            self.kind = "white space" if blank else kind
            self.name, self.text = node.nodeName, node.nodeValue or ""
            return True
        return False

    def _at(self, kind: str, name: str) -> bool:
        return (self.kind, self.name) == (kind, name)

    def message(self) -> dict[str, Any]:
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
        """Read to the end of `ends_at`, or to the end of the reply if it is empty."""
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
    inner = "".join(
        element(entry, element("Name", name) + element("Value", value) + element("Type", "STRING"))
        for name, value in given.items()
    )
    return element(container, inner)


@pytest.mark.parametrize("way", ["", "?peekonly=true"])
def test_the_php_sdk_finds_user_and_system_properties(server: RunningServer, way: str) -> None:
    """System properties are first, as the SDK reads user properties up to the end of the reply."""
    smq_request(server, "PUT", "/queues/jobs")
    given = properties(USER, "PropertyValue", {"k": "v", "l": "w"})
    given += properties(SYSTEM, "SystemPropertyValue", PROPERTIES)
    sent = message("a").replace("</Message>", f"{given}</Message>")
    assert smq_request(server, "POST", "/queues/jobs/messages", sent).status == 201
    reply = smq_request(server, "GET", f"/queues/jobs/messages{way}")
    found = Reader(reply.body).message()
    assert (found[SYSTEM], found[USER]) == (PROPERTIES, {"k": "v", "l": "w"})
    assert (found["MessageBody"], found["Priority"]) == ("a", "8")


def test_the_php_sdk_finds_the_properties_of_each_message_of_a_batch(server: RunningServer) -> None:
    smq_request(server, "PUT", "/queues/jobs")
    for body in "ab":
        sent = message(body).replace("</Message>", properties(SYSTEM, "SystemPropertyValue", PROPERTIES) + "</Message>")
        smq_request(server, "POST", "/queues/jobs/messages", sent)
    reader = Reader(smq_request(server, "GET", "/queues/jobs/messages?numOfMessages=2").body)
    found = [reader.message() for _ in range(2)]
    assert [(each["MessageBody"], each[SYSTEM]) for each in found] == [("a", PROPERTIES), ("b", PROPERTIES)]


@pytest.mark.parametrize(("handles", "statuses"), [("strict", (404, 404)), ("lenient", (200, 204))])
def test_the_php_sdk_needs_lenient_handles_after_a_change(
    veilmq_settings: dict[str, Any], handles: str, statuses: tuple[int, int]
) -> None:
    """It continues to use the handle of the receive."""
    with RunningServer(**veilmq_settings, smq_handles=handles) as server:
        smq_request(server, "PUT", "/queues/jobs")
        smq_request(server, "POST", "/queues/jobs/messages", message("a"))
        handle = smq_request(server, "GET", "/queues/jobs/messages").text("ReceiptHandle")
        target = f"/queues/jobs/messages?ReceiptHandle={handle}"
        assert smq_request(server, "PUT", f"{target}&VisibilityTimeout=18").status == 200
        again = smq_request(server, "PUT", f"{target}&VisibilityTimeout=18")
        deleted = smq_request(server, "DELETE", target)
        assert (again.status, deleted.status) == statuses
        if handles == "strict":
            assert again.code == deleted.code == "MessageNotExist"
        left = smq_request(server, "GET", "/queues/jobs")
        assert left.text("InactiveMessages") == ("1" if handles == "strict" else "0")


def endpoint_made_of(address: str) -> str:
    """Return the endpoint that the SDK derives: it parses the address as `<account>.mns.<region>.…`."""
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
def test_the_endpoint_derived_from_the_servers_address_is_its_queue(server: RunningServer, host: str | None) -> None:
    host = host or urlsplit(server.endpoint).netloc
    for target in ("/queues/jobs", "/topics/news"):
        smq_request(server, "PUT", target)
    subscription = element("Subscription", element("Endpoint", endpoint_made_of(host)))
    assert smq_request(server, "PUT", "/topics/news/subscriptions/s", subscription, host=host).status == 201
    assert smq_request(server, "PUT", "/topics/news/subscriptions/s", subscription, host=host).status == 204
    shown = smq_request(server, "GET", "/topics/news/subscriptions/s", host=host)
    assert shown.text("Endpoint") == endpoint_made_of(host)
    assert smq_request(server, "POST", "/topics/news/messages", message("hello")).status == 201
    received = smq_request(server, "GET", "/queues/jobs/messages?waitseconds=30")
    assert "&lt;Message&gt;hello&lt;/Message&gt;" in received.body


@pytest.mark.parametrize(
    "endpoint", ["acs:mns:0:128:queues/jobs", "acs:mns:1:127:queues/jobs", "acs:mns:mns:111122223333:queues/jobs"]
)
def test_an_endpoint_of_another_account_is_refused(server: RunningServer, endpoint: str) -> None:
    smq_request(server, "PUT", "/queues/jobs")
    smq_request(server, "PUT", "/topics/news")
    subscription = element("Subscription", element("Endpoint", endpoint))
    for host in (urlsplit(server.endpoint).netloc, "111122223333.x.mns.example.com"):
        refused = smq_request(server, "PUT", "/topics/news/subscriptions/s", subscription, host=host)
        assert (refused.status, refused.code) == (403, "AccessDenied")


@pytest.mark.parametrize("endpoint", ["mail:directmail:a@b.example", "mailto:a@b.example", "sms:directsms:anonymous"])
def test_subscriptions_by_mail_and_sms_get_a_clear_error(server: RunningServer, endpoint: str) -> None:
    smq_request(server, "PUT", "/topics/news")
    subscription = element("Subscription", element("Endpoint", endpoint))
    refused = smq_request(server, "PUT", "/topics/news/subscriptions/s", subscription)
    assert (refused.status, refused.code) == (400, "EndpointInvalid")
    assert "Subscriptions by mail and SMS are not supported. Subscribe a queue" in refused.text("Message")
