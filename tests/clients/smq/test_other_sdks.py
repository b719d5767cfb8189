"""The SDKs that are not run here, for Go, Java, PHP and C#: what they send, byte for byte where it matters, signed.

Each has its own way to write headers, bodies and the text that it signs (reference, sections 3.3 and 8). One round
through a queue's life shows that the server takes them all, and answers with the statuses and names that they look for.
"""

import re
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_plus

import pytest

from tests.clients.smq.signing import hex_md5, signature_v2
from tests.server.keys import REGION, SECRETS, written
from veilmq.testing import RunningServer

KEY = "AKIDOWNER"
_DECLARED = '<?xml version="1.0" encoding="UTF-8"?>'

Parameters = dict[str, str]


def as_it_is(parameters: Parameters) -> str:
    """Return a query of raw values; a name without a value stands alone."""
    return "&".join(f"{name}={value}" if value else name for name, value in parameters.items())


def escaped(parameters: Parameters) -> str:
    """Return a query as ``url.QueryEscape`` and ``http_build_query`` write it."""
    return "&".join(f"{name}={quote_plus(value)}" for name, value in parameters.items())


def in_order(parameters: Parameters) -> str:
    """Return a query that is sorted and not escaped, with a sign behind each name."""
    return "&".join(f"{name}={parameters[name]}" for name in sorted(parameters))


class Sdk(NamedTuple):
    """How one SDK writes: the type of its bodies, whether requests without one have it, and a digest; its XML."""

    content_type: str
    always_typed: bool
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
        ' xmlns="http://mns.aliyuncs.com/doc/v1"', as_it_is, as_it_is, (("Expect", "100-continue"),),
    ),
    "php": Sdk(
        "text/xml", True, False, "x-mns-version", _DECLARED + "\n",
        ' xmlns="http://mns.aliyuncs.com/doc/v1/"', escaped, escaped,
    ),
    "c#": Sdk(
        "text/xml", False, False, "x-mns-version", "\ufeff" + _DECLARED,
        ' xmlns="http://mns.aliyuncs.com/doc/v1"', as_it_is, in_order,
    ),
}  # fmt: skip


class Answer(NamedTuple):
    """What an SDK reads: the status, headers by the names that the server wrote, and the body."""

    status: int
    headers: dict[str, str]
    body: str

    def text(self, name: str) -> str:
        """Return the text of the first element of that name."""
        found = re.search(f"<{name}>([^<]*)</{name}>", self.body)
        assert found is not None, self.body
        return found[1]


Do = Callable[..., Answer]


@pytest.fixture(params=SDKS)
def do(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Do]:
    """Ask as one SDK does: method, path, parameters, and the inner XML of a root."""
    sdk = SDKS[request.param]
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        connection = HTTPConnection(server.endpoint.removeprefix("http://"), timeout=60)

        def ask(
            method: str, path: str, parameters: Parameters | None = None, root: str = "", inner: str = ""
        ) -> Answer:
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
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())

        yield ask
        connection.close()


JOBS = "/queues/jobs"
MESSAGES = "/queues/jobs/messages"


def test_a_queue_is_made_changed_listed_and_deleted(do: Do) -> None:
    """201, 204 and 204 for what is done, the URL in a header with a capital letter; no word of what is left out."""
    made = do("PUT", JOBS, root="Queue", inner="<VisibilityTimeout>100</VisibilityTimeout>")
    assert made.status == 201
    assert made.headers["Location"].endswith(JOBS)
    assert made.headers["Location"].count("/") == 4
    assert do("PUT", JOBS, root="Queue").status == 204
    unset = (
        "<DelaySeconds>0</DelaySeconds><PollingWaitSeconds>0</PollingWaitSeconds><LoggingEnabled>true</LoggingEnabled>"
    )
    assert do("PUT", JOBS, {"metaoverride": "true"}, "Queue", unset).status == 204
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
    """0 is no priority and no delay for one of them; the handle is in the query, whoever escapes it."""
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
