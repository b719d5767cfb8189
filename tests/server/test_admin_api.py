"""The API of the admin port over real sockets: routes, authentication, permissions and the audit log."""

import gzip
import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3
from urllib3 import BaseHTTPResponse

from tests.console.visitor import Visitor
from tests.server.http_host import dial
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, TEXT, client, set_policy, statement, written
from veilmq.core.limits import HTTP_BODY_BYTES_MAX
from veilmq.testing import RunningServer

KEY = ("AKIDOWNER", SECRETS["AKIDOWNER"])
ENDS = ("asked", "done")


class Api:
    """A client of the API of ``server``; ``key`` is the id and the secret that it sends."""

    def __init__(self, server: RunningServer, key: tuple[str, str] | None = None) -> None:
        self._endpoint = server.admin_endpoint
        self._http = urllib3.PoolManager(retries=False)
        self.headers = {} if key is None else {"Authorization": basic(*key)}

    def request(self, method: str, path: str, fields: Any = None, **headers: str) -> BaseHTTPResponse:
        """Return the reply; an underscore in a header name stands for a hyphen."""
        body = None if fields is None else json.dumps(fields)
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        return self._http.request(method, self._endpoint + path, body=body, headers=sent)

    def get(self, path: str) -> Any:
        return self._decoded(self.request("GET", path))

    def post(self, path: str, fields: Any) -> Any:
        return self._decoded(self.request("POST", path, fields))

    def refused(self, method: str, path: str, fields: Any = None, **headers: str) -> tuple[int, str]:
        reply = self.request(method, path, fields, **headers)
        return reply.status, reply.json()["code"]

    def _decoded(self, reply: BaseHTTPResponse) -> Any:
        assert reply.status == 200, reply.data
        return reply.json()


def basic(key_id: str, secret: str) -> str:
    return "Basic " + b64encode(f"{key_id}:{secret}".encode()).decode()


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    """A server without credentials."""
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, audit_log: Path) -> Iterator[RunningServer]:
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with RunningServer(credentials=path, account=OWNER, region=REGION, audit_log=audit_log) as running:
        yield running


def changes(audit_log: Path, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in audit_log.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["what"] == what]


def test_the_admin_port_has_the_api_and_the_actions_of_sqs(open_server: RunningServer) -> None:
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
    assert b'veilmq_requests_total{action="SendMessage",code="OK"} 1.0' in api.request("GET", "/metrics").data


def test_errors_have_the_format_of_their_api(open_server: RunningServer) -> None:
    api = Api(open_server)
    assert api.refused("GET", "/api/queues/-/none/show") == (404, "QueueNotFound")
    assert api.refused("POST", "/api/queues/-/none/set", {"delay_s": "1"}) == (400, "InvalidRequest")
    assert api.refused("POST", "/api/queues/-/jobs/set", "x" * HTTP_BODY_BYTES_MAX) == (413, "InvalidRequest")
    for path in ("", "fly", "queues/-/jobs/fly", "sqs", "queues/%2e%2e/jobs", "v1/queues/-"):
        assert api.refused("GET", f"/api/{path}") == (404, "UnknownRoute")
    unknown = api.request("POST", "/api/sqs/Fly", {})
    assert (unknown.status, "UnknownOperation" in unknown.json()["__type"]) == (400, True)
    assert unknown.headers["content-type"] == "application/x-amz-json-1.0"
    for method, path in (("GET", "/api/sqs/ListQueues"), ("DELETE", "/api/queues"), ("HEAD", "/api/queues")):
        assert api.request(method, path).status == 405


def test_replies_are_neither_cached_nor_shown_as_a_page(open_server: RunningServer) -> None:
    headers = Api(open_server).request("GET", "/api/queues").headers
    assert headers["cache-control"] == "no-store"
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_requests_of_the_browser_and_of_the_consoles_pages_are_allowed(open_server: RunningServer) -> None:
    agent = "Mozilla/5.0 (X11; Linux x86_64)"
    for site in ("none", "same-origin"):
        headers = {"User_Agent": agent, "Accept_Language": "en", "Sec_Fetch_Site": site, "Sec_Fetch_Mode": "cors"}
        assert Api(open_server).request("GET", "/api/queues", **headers).status == 200


def test_requests_of_other_sites_are_refused(open_server: RunningServer) -> None:
    api = Api(open_server)
    for headers in ({"Origin": "http://elsewhere.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Host": "x.example"}):
        assert api.request("POST", "/api/queues/-/theirs/create", {}, **headers).status == 403
    assert api.refused("GET", "/api/queues/-/theirs/show") == (404, "QueueNotFound")


@pytest.mark.parametrize("given", [
    None, "", "Basic", "Basic !", "Basic /w==", "Basic " + b64encode(b"AKIDOWNER").decode(),
    "Bearer " + b64encode(b"AKIDOWNER:" + SECRETS["AKIDOWNER"].encode()).decode(),
    basic("AKIDOWNER", "wrong"), basic("AKIDOWNER", ""), basic("AKIDNOBODY", SECRETS["AKIDOWNER"]), basic("", ""),
    basic("ASIDBOB", SECRETS["ASIDBOB"]),
])  # fmt: skip
def test_a_request_without_a_valid_key_is_unauthorized(server: RunningServer, given: str | None) -> None:
    """A key that needs a session token is not valid here."""
    headers = {} if given is None else {"Authorization": given}
    reply = Api(server).request("POST", "/api/queues/-/jobs/create", {}, **headers)
    assert (reply.status, reply.json()["code"]) == (401, "AccessDenied")
    assert reply.headers["www-authenticate"] == 'Basic realm="veilmq", charset="UTF-8"'


def test_the_scheme_of_authentication_may_be_written_in_lower_case(server: RunningServer) -> None:
    authorization = basic(*KEY).replace("Basic", "basic")
    assert Api(server).request("GET", "/api/queues", Authorization=authorization).status == 200


def test_policies_and_the_audit_log_use_the_account_of_the_key(server: RunningServer, audit_log: Path) -> None:
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
    assert friend.request("GET", f"{shared}/show", User_Agent="program/1").json()["settings"]["delay_s"] == 5
    assert friend.refused("GET", f"{shared}/show", User_Agent="other/1") == (403, "AccessDenied")
    begun, ended, *refused = changes(audit_log, "queues/set")
    assert (begun["outcome"], ended["outcome"]) == ENDS
    assert (ended["before"], ended["after"], ended["queue"]) == ({"delay_s": 0}, {"delay_s": 5}, f"{OWNER}/shared")
    assert (ended["who"], ended["peer"]) == (f"arn:aws:iam::{OWNER}:root", "127.0.0.1")
    assert [(line["who"], line["outcome"]) for line in refused] == [
        (f"arn:aws:iam::{FRIEND}:root", "asked"),
        (f"arn:aws:iam::{FRIEND}:root", "AccessDenied"),
    ]


def test_a_reload_ends_long_polls(tmp_path: Path) -> None:
    """Their keys may have been removed."""
    keys = written(tmp_path / "keys.toml")
    with RunningServer(credentials=keys, region=REGION) as server, ThreadPoolExecutor() as threads:
        owner, friend = client(server), Api(server, ("AKIDFRIEND", SECRETS["AKIDFRIEND"]))
        url = str(owner.create_queue(QueueName="jobs")["QueueUrl"])
        set_policy(owner, url, statement(Action="sqs:ReceiveMessage"))
        receive = {"QueueUrl": url, "WaitTimeSeconds": 20}
        waiting = threads.submit(friend.request, "POST", "/api/sqs/ReceiveMessage", receive)
        server.wait_parked()
        written(keys, TEXT.replace("AKIDFRIEND", "AKIDOTHER"))
        server.reload()
        owner.send_message(QueueUrl=url, MessageBody="x")
        assert waiting.result(60).json() == {}
        assert friend.refused("POST", "/api/sqs/ReceiveMessage", receive) == (401, "AccessDenied")


def test_a_form_cannot_name_another_action_than_the_path(server: RunningServer, audit_log: Path) -> None:
    """It would be made without a line in the audit log; curl calls every body a form."""
    url = Api(server, KEY).post("/api/sqs/CreateQueue", {"QueueName": "formed"})["QueueUrl"]
    form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": basic(*KEY)}
    body, listing = f"Action=DeleteQueue&QueueUrl={url}", f"{server.admin_endpoint}/api/sqs/ListQueues"
    assert "__type" in urllib3.request("POST", listing, body=body, headers=form).json()
    assert url in urllib3.request("POST", listing, body="{}", headers=form).json()["QueueUrls"]
    assert changes(audit_log, "DeleteQueue") == []


def test_a_compressed_body_is_refused(server: RunningServer) -> None:
    headers = {"Content-Encoding": "gzip", "Authorization": basic(*KEY)}
    for path in ("sqs/ListQueues", "queues/-/q/set"):
        url = f"{server.admin_endpoint}/api/{path}"
        reply = urllib3.request("POST", url, body=gzip.compress(b"{}"), headers=headers)
        assert (reply.status, b"send the body uncompressed" in reply.data) == (415, True)


def test_a_session_of_the_console_needs_its_csrf_token_for_changes(server: RunningServer) -> None:
    api = Api(server)
    with Visitor(server, key="AKIDOWNER") as visitor:
        cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
        found = re.search(r'name="csrf" value="([^"]+)"', visitor.get("/console/queues").html)
        assert found is not None
    assert api.request("GET", "/api/queues", Cookie=cookie).status == 200
    for headers in ({}, {"X_CSRF_Token": "x" * 32}):
        assert api.refused("POST", "/api/queues/-/mine/create", {}, Cookie=cookie, **headers) == (403, "AccessDenied")
    assert api.request("POST", "/api/queues/-/mine/create", {}, Cookie=cookie, X_CSRF_Token=found[1]).status == 200
    assert api.refused("GET", "/api/queues", Cookie=cookie + "x") == (401, "AccessDenied")
    wrong = {"Cookie": cookie, "Authorization": basic("AKIDOWNER", "wrong")}
    assert api.refused("GET", "/api/queues", **wrong) == (401, "AccessDenied")


def test_wrong_keys_block_all_keys_for_ten_seconds(tmp_path: Path) -> None:
    """Sessions continue."""
    path = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=path) as running, Visitor(running, key="AKIDOWNER") as visitor:
        wrong = Api(running, ("AKIDOWNER", "wrong"))
        for _ in range(20):
            assert wrong.refused("GET", "/api/queues") == (401, "AccessDenied")
        paused = Api(running, KEY).request("GET", "/api/queues")
        assert (paused.status, paused.json()["code"], paused.headers["retry-after"]) == (429, "AccessDenied", "10")
        assert visitor.get("/api/queues").status == 200
        running.advance(9_999)
        assert Api(running, KEY).refused("GET", "/api/queues") == (429, "AccessDenied")
        running.advance(1)
        assert Api(running, KEY).get("/api/queues")["queues"] == []


def test_a_removed_key_is_unauthorized(tmp_path: Path) -> None:
    path = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=path) as running:
        api = Api(running, KEY)
        api.get("/api/queues")
        written(path, path.read_text(encoding="utf-8").replace("AKIDOWNER", "AKIDHEIR"))
        running.reload()
        assert api.refused("GET", "/api/queues") == (401, "AccessDenied")


def begun(server: RunningServer, head: str) -> socket.socket:
    """Return a connection on which ``head`` and two bytes of a body were sent."""
    connection = dial(server.admin_endpoint)
    connection.sendall(f"{head}\r\n\r\n{{}}".encode())
    return connection


def waiter(server: RunningServer) -> socket.socket:
    """Return a connection with a long poll on the queue ``waited``."""
    url = Api(server).post("/api/queues/-/waited/create", {})["url"]
    connection = dial(server.admin_endpoint)
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    head = f"POST /api/sqs/ReceiveMessage HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    server.wait_parked()
    return connection


@pytest.fixture
def waiting(open_server: RunningServer) -> Iterator[socket.socket]:
    with waiter(open_server) as connection:
        yield connection


def test_a_closed_connection_withdraws_its_long_poll(open_server: RunningServer, waiting: socket.socket) -> None:
    waiting.close()
    open_server.wait_until(lambda: open_server.parked == 0)


def test_an_incomplete_request_changes_nothing(open_server: RunningServer) -> None:
    host = urlsplit(open_server.admin_endpoint).netloc
    begun(open_server, f"POST /api/queues/-/half/create HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100").close()
    assert Api(open_server).refused("GET", "/api/queues/-/half/show") == (404, "QueueNotFound")


def test_http_1_0_needs_no_host(open_server: RunningServer) -> None:
    with begun(open_server, "POST /api/queues/-/old/create HTTP/1.0\r\nContent-Length: 2") as connection:
        assert b" 200 " in connection.recv(65_536).partition(b"\r\n")[0]
    assert Api(open_server).get("/api/queues?names=old")["queues"][0]["name"] == "old"


@pytest.mark.parametrize("end", ["timeout", "shutdown"])
def test_a_long_poll_ends_with_its_timeout_or_the_server(end: str) -> None:
    with RunningServer() as running, waiter(running) as connection:
        if end == "timeout":
            running.advance(seconds=20)
        else:
            running.request_stop()
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_only_the_root_user_of_the_servers_account_trusts_the_clock(
    server: RunningServer, open_server: RunningServer, audit_log: Path
) -> None:
    """Without credentials, every client may; the audit log records it."""
    path = "/api/clock/trust"
    unsigned = Api(server).request("POST", path)
    assert (unsigned.status, "WWW-Authenticate" in unsigned.headers) == (401, True)
    for key_id in ("AKIDCAROL", "AKIDFRIEND"):
        assert Api(server, (key_id, SECRETS[key_id])).refused("POST", path) == (403, "AccessDenied")
    for operator in (Api(server, KEY), Api(open_server)):
        assert "trusted" in operator.post(path, {})["message"]
    assert Api(open_server).request("POST", path, Origin="https://elsewhere.example").status == 403
    lines = changes(audit_log, "TrustClock")
    assert [(line["who"], line["outcome"]) for line in lines] == [(f"arn:aws:iam::{OWNER}:root", end) for end in ENDS]
