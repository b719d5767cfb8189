"""The API of the operator's port over real sockets: the routes, who is let in, what is written down."""

import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3
from urllib3 import BaseHTTPResponse

from tests.console.visitor import Visitor
from tests.server.http_host import dial
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, set_policy, statement, written
from veilmq.core.limits import HTTP_BODY_BYTES_MAX
from veilmq.testing import RunningServer

KEY = ("AKIDOWNER", SECRETS["AKIDOWNER"])
ENDS = ("asked", "done")


class Api:
    """A program at the API of ``server``; ``key`` is the id and the secret that it sends."""

    def __init__(self, server: RunningServer, key: tuple[str, str] | None = None) -> None:
        self._endpoint = server.admin_endpoint
        self._http = urllib3.PoolManager(retries=False)
        self.headers = {} if key is None else {"Authorization": basic(*key)}

    def ask(self, method: str, path: str, fields: Any = None, **headers: str) -> BaseHTTPResponse:
        """Return the answer; names of ``headers`` may have underscores."""
        body = None if fields is None else json.dumps(fields)
        told = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        return self._http.request(method, self._endpoint + path, body=body, headers=told)

    def get(self, path: str) -> Any:
        """Return what a GET answers, which must be success."""
        return self._told(self.ask("GET", path))

    def post(self, path: str, fields: Any) -> Any:
        """Return what a POST answers, which must be success."""
        return self._told(self.ask("POST", path, fields))

    def refused(self, method: str, path: str, fields: Any = None, **headers: str) -> tuple[int, str]:
        answer = self.ask(method, path, fields, **headers)
        return answer.status, answer.json()["code"]

    def _told(self, answer: BaseHTTPResponse) -> Any:
        assert answer.status == 200, answer.data
        return answer.json()


def basic(key_id: str, secret: str) -> str:
    """Return the header of HTTP Basic."""
    return "Basic " + b64encode(f"{key_id}:{secret}".encode()).decode()


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    """A server that asks nobody who he is."""
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server with accounts writes its audit log."""
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, audit_log: Path) -> Iterator[RunningServer]:
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with RunningServer(credentials=path, account=OWNER, region=REGION, audit_log=audit_log) as running:
        yield running


def changes(audit_log: Path, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in audit_log.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["what"] == what]


def test_it_is_our_api_and_the_actions_of_sqs(open_server: RunningServer) -> None:
    """URLs of queues are those of the queues' port."""
    api = Api(open_server)
    made = api.post("/api/queues/-/jobs/create", {"settings": {"visibility_timeout_s": 45}})
    assert made["url"] == f"{open_server.endpoint}/000000000000/jobs"
    assert api.get("/api/queues/000000000000/jobs/show")["settings"]["visibility_timeout_s"] == 45
    for path in ("/api/queues", "/api/queues/-", "/api/queues?search=JO", "/api/queues/-?search=jo"):
        assert [queue["name"] for queue in api.get(path)["queues"]] == ["jobs"]
    assert api.get("/api/queues?search=none")["queues"] == []
    assert "MessageId" in api.post("/api/sqs/SendMessage", {"QueueUrl": made["url"], "MessageBody": "m"})
    assert [message["body"] for message in api.get("/api/messages/-/jobs/peek")["messages"]] == ["m"]
    (received,) = api.post("/api/sqs/ReceiveMessage", {"QueueUrl": made["url"]})["Messages"]
    assert received["Body"] == "m"
    assert len(api.get("/api/leases/-/jobs")["leases"]) == 1


def test_errors_are_those_of_the_api_they_come_from(open_server: RunningServer) -> None:
    api = Api(open_server)
    assert api.refused("GET", "/api/queues/-/none/show") == (404, "QueueNotFound")
    assert api.refused("POST", "/api/queues/-/none/set", {"delay_s": "1"}) == (400, "InvalidRequest")
    for path in (
        "/api/",
        "/api/fly",
        "/api/queues/-/jobs/fly",
        "/api/sqs",
        "/api/queues/%2e%2e/jobs",
        "/api/v1/queues/-",
    ):
        assert api.refused("GET", path) == (404, "UnknownRoute")
    unknown = api.ask("POST", "/api/sqs/Fly", {})
    assert (unknown.status, "UnknownOperation" in unknown.json()["__type"]) == (400, True)
    assert api.ask("GET", "/api/sqs/ListQueues").status == 405
    assert api.ask("DELETE", "/api/queues").status == 405
    assert api.ask("HEAD", "/api/queues").status == 405


def test_nothing_is_kept_by_a_browser_or_shown_as_a_page(open_server: RunningServer) -> None:
    answer = Api(open_server).ask("GET", "/api/queues")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_browser_is_answered(open_server: RunningServer) -> None:
    """Who enters the address, and a page of ours; whose page it is, the port has found out before."""
    agent = "Mozilla/5.0 (X11; Linux x86_64)"
    for site in ("none", "same-origin"):
        headers = {"User_Agent": agent, "Accept_Language": "en", "Sec_Fetch_Site": site, "Sec_Fetch_Mode": "cors"}
        assert Api(open_server).ask("GET", "/api/queues", **headers).status == 200


def test_pages_of_others_are_refused(open_server: RunningServer) -> None:
    api = Api(open_server)
    for headers in ({"Origin": "http://elsewhere.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Host": "x.example"}):
        assert api.ask("POST", "/api/queues/-/theirs/create", {}, **headers).status == 403
    assert api.refused("GET", "/api/queues/-/theirs/show") == (404, "QueueNotFound")


def test_a_body_may_not_be_too_long(open_server: RunningServer) -> None:
    api = Api(open_server)
    assert api.refused("POST", "/api/queues/-/jobs/set", "x" * HTTP_BODY_BYTES_MAX) == (413, "InvalidRequest")


@pytest.mark.parametrize("given", [
    None, "", "Basic", "Basic !", "Basic /w==", "Basic " + b64encode(b"AKIDOWNER").decode(),
    "Bearer " + b64encode(b"AKIDOWNER:" + SECRETS["AKIDOWNER"].encode()).decode(),
    basic("AKIDOWNER", "wrong"), basic("AKIDOWNER", ""), basic("AKIDNOBODY", SECRETS["AKIDOWNER"]), basic("", ""),
    basic("ASIDBOB", SECRETS["ASIDBOB"]),
])  # fmt: skip
def test_who_has_no_key_is_asked_for_one(server: RunningServer, given: str | None) -> None:
    """Before anything of the body is read, and a key that needs a token is none."""
    api = Api(server)
    headers = {} if given is None else {"Authorization": given}
    answer = api.ask("POST", "/api/queues/-/jobs/create", {}, **headers)
    assert (answer.status, answer.json()["code"]) == (401, "AccessDenied")
    assert answer.headers["www-authenticate"] == 'Basic realm="veilmq", charset="UTF-8"'


def test_a_key_acts_for_its_account_and_policies_decide(server: RunningServer, audit_log: Path) -> None:
    owner, friend = Api(server, KEY), Api(server, ("AKIDFRIEND", SECRETS["AKIDFRIEND"]))
    url = owner.post("/api/queues/-/shared/create", {})["url"]
    owner.post("/api/queues/-/shared/set", {"delay_s": 5})
    shared = f"/api/queues/{OWNER}/shared"
    assert friend.refused("GET", f"{shared}/show") == (403, "AccessDenied")
    assert friend.refused("POST", f"{shared}/set", {"delay_s": 9}) == (403, "AccessDenied")
    assert friend.refused("GET", f"/api/queues/{OWNER}") == (403, "AccessDenied")
    assert friend.get("/api/queues")["queues"] == []
    condition = {"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}, "StringLike": {"aws:UserAgent": "program/*"}}
    allowed = statement(Action="sqs:GetQueueAttributes", Resource="*", Condition=condition)
    set_policy(client(server), url, allowed)
    assert friend.ask("GET", f"{shared}/show", User_Agent="program/1").json()["settings"]["delay_s"] == 5
    assert friend.refused("GET", f"{shared}/show", User_Agent="other/1") == (403, "AccessDenied")
    asked, ended, *refused = changes(audit_log, "queues/set")
    assert (asked["outcome"], ended["outcome"]) == ("asked", "done")
    assert (ended["before"], ended["after"], ended["queue"]) == ({"delay_s": 0}, {"delay_s": 5}, f"{OWNER}/shared")
    assert (ended["who"], ended["peer"]) == (f"arn:aws:iam::{OWNER}:root", "127.0.0.1")
    assert [(line["who"], line["outcome"]) for line in refused] == [
        (f"arn:aws:iam::{FRIEND}:root", "asked"),
        (f"arn:aws:iam::{FRIEND}:root", "AccessDenied"),
    ]


def test_a_session_is_let_in_and_needs_its_token_to_change_anything(server: RunningServer) -> None:
    api = Api(server)
    with Visitor(server, key="AKIDOWNER") as visitor:
        cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
        found = re.search(r'name="csrf" value="([^"]+)"', visitor.get("/console/queues").html)
        assert found is not None
    assert api.ask("GET", "/api/queues", Cookie=cookie).status == 200
    for headers in ({}, {"X_CSRF_Token": "x" * 32}):
        assert api.refused("POST", "/api/queues/-/mine/create", {}, Cookie=cookie, **headers) == (403, "AccessDenied")
    assert api.ask("POST", "/api/queues/-/mine/create", {}, Cookie=cookie, X_CSRF_Token=found[1]).status == 200
    assert api.refused("GET", "/api/queues", Cookie=cookie + "x") == (401, "AccessDenied")
    wrong = {"Cookie": cookie, "Authorization": basic("AKIDOWNER", "wrong")}
    assert api.refused("GET", "/api/queues", **wrong) == (401, "AccessDenied")


def test_whoever_tries_wrong_keys_is_told_to_wait(tmp_path: Path) -> None:
    """A right one, too, until then; who has a session goes on."""
    path = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=path) as running, Visitor(running, key="AKIDOWNER") as visitor:
        wrong = Api(running, ("AKIDOWNER", "wrong"))
        for _ in range(20):
            assert wrong.refused("GET", "/api/queues") == (401, "AccessDenied")
        paused = Api(running, KEY).ask("GET", "/api/queues")
        assert (paused.status, paused.json()["code"], paused.headers["retry-after"]) == (429, "AccessDenied", "10")
        assert visitor.get("/api/queues").status == 200
        running.advance(10_000)
        assert Api(running, KEY).get("/api/queues")["queues"] == []


def test_a_key_that_is_gone_is_let_in_no_more(tmp_path: Path) -> None:
    path = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=path) as running:
        api = Api(running, KEY)
        api.get("/api/queues")
        written(path, path.read_text(encoding="utf-8").replace("AKIDOWNER", "AKIDHEIR"))
        running.reload()
        assert api.refused("GET", "/api/queues") == (401, "AccessDenied")


def begun(server: RunningServer, head: str) -> socket.socket:
    """Return a connection on which a request has begun: ``head`` and two bytes."""
    connection = dial(server.admin_endpoint)
    connection.sendall(f"{head}\r\n\r\n{{}}".encode())
    return connection


def waiter(server: RunningServer) -> socket.socket:
    """Return the connection of a program that waits for a message of the queue ``waited``."""
    url = Api(server).post("/api/queues/-/waited/create", {})["url"]
    connection = dial(server.admin_endpoint)
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    head = f"POST /api/sqs/ReceiveMessage HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    server.wait_parked()
    return connection


@pytest.fixture
def waiting(open_server: RunningServer) -> Iterator[socket.socket]:
    """The connection of a program that waits for a message."""
    with waiter(open_server) as connection:
        yield connection


def test_who_goes_takes_the_request_back(open_server: RunningServer, waiting: socket.socket) -> None:
    """So that a message is not received for nobody."""
    waiting.close()
    open_server.wait_until(lambda: open_server.parked == 0)


def test_who_goes_before_the_end_of_a_body_asks_nothing(open_server: RunningServer) -> None:
    host = urlsplit(open_server.admin_endpoint).netloc
    begun(open_server, f"POST /api/queues/-/half/create HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100").close()
    assert Api(open_server).refused("GET", "/api/queues/-/half/show") == (404, "QueueNotFound")


def test_who_names_no_host_is_answered(open_server: RunningServer) -> None:
    """As HTTP/1.0 lets one; the URL of the queue is that of the address that the server listens on."""
    with begun(open_server, "POST /api/queues/-/old/create HTTP/1.0\r\nContent-Length: 2") as connection:
        assert b" 200 " in connection.recv(65_536).partition(b"\r\n")[0]
    assert Api(open_server).get("/api/queues?names=old")["queues"][0]["name"] == "old"


def test_who_waits_is_answered_when_the_time_is_over(open_server: RunningServer, waiting: socket.socket) -> None:
    open_server.advance(seconds=20)
    assert waiting.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_the_end_of_a_server_waits_for_nobody() -> None:
    with RunningServer() as running, waiter(running) as connection:
        running.request_stop()
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_the_operator_alone_says_that_the_clock_is_right(
    server: RunningServer, open_server: RunningServer, audit_log: Path
) -> None:
    """The root user of the server's own account, or anybody where there are no accounts; and it is written down."""
    path = "/api/clock/trust"
    nobody = Api(server).ask("POST", path)
    assert (nobody.status, "WWW-Authenticate" in nobody.headers) == (401, True)
    for key_id in ("AKIDCAROL", "AKIDFRIEND"):
        assert Api(server, (key_id, SECRETS[key_id])).refused("POST", path) == (403, "AccessDenied")
    for operator in (Api(server, KEY), Api(open_server)):
        assert "trusted" in operator.post(path, {})["message"]
    assert Api(open_server).ask("POST", path, Origin="https://elsewhere.example").status == 403
    lines = changes(audit_log, "TrustClock")
    assert [(line["who"], line["outcome"]) for line in lines] == [(f"arn:aws:iam::{OWNER}:root", end) for end in ENDS]
