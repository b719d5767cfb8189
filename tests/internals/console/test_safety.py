"""What somebody would try who wants more than he may: forms, sessions, addresses, and pages that fail."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from starlette.responses import Response

from tests.console.visitor import Visitor
from tests.server.keys import OWNER, REGION, SECRETS, TEXT, client, written
from veilmq.console.page import Page
from veilmq.console.pages import PAGES
from veilmq.console.security_headers import HEADERS
from veilmq.console.sign_ins import ADDRESS_FAILURES, ADDRESS_REST_MS
from veilmq.console.visit import FIELDS_MAX, OPEN_FORM_BYTES_MAX, Visit
from veilmq.testing import RunningServer

KEY = ("AKIDOWNER", SECRETS["AKIDOWNER"])
QUEUE = f"/console/queues/{OWNER}/orders"


async def _broken(visit: Visit) -> Response:
    raise ValueError("a detail that is nobody's business")


async def _sly(visit: Visit) -> Response:
    """Change something though one only looks."""
    await visit.sqs("DeleteQueue", {"QueueUrl": f"http://localhost/{OWNER}/orders"})
    return visit.go("/console/queues")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "veilmq.console.app.PAGES", (*PAGES, Page("/console/broken", _broken, _broken), Page("/console/sly", _sly))
        )
        with RunningServer(credentials=path, account=OWNER, region=REGION) as running:
            client(running).create_queue(QueueName="orders")
            yield running


@pytest.fixture
def visitor(server: RunningServer) -> Iterator[Visitor]:
    """Somebody who has signed in."""
    with Visitor(server, key=KEY) as visiting:
        yield visiting


def raw(server: RunningServer, method: str, path: str, body: bytes | str = b"", **headers: str) -> Any:
    with urllib3.PoolManager() as http:
        return http.request(method, server.admin_endpoint + path, body=body, headers=headers, retries=False)


def queues(server: RunningServer) -> int:
    return len(client(server).list_queues().get("QueueUrls", []))


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/console/nothing", 404, "No such page"),
        ("GET", "/nothing", 404, "No such page"),
        ("GET", "/console/assets/nothing.css", 404, "No such page"),
        ("GET", "/console/queues/" + "x" * 3_000, 404, "No such page"),
        ("POST", "/console/health", 405, "This page is only looked at"),
        ("DELETE", QUEUE, 405, "This page is only looked at"),
        ("PUT", "/console/queues/new", 405, "This page is only looked at"),
    ],
)
def test_what_no_page_answers_is_said_in_words(
    server: RunningServer, method: str, path: str, status: int, words: str
) -> None:
    answer = raw(server, method, path)
    assert (answer.status, words in answer.data.decode()) == (status, True)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.headers.get("allow") is not None) is (status == 405)


def test_head_is_answered_without_a_body(server: RunningServer) -> None:
    for path, status in (("/console/login", 200), ("/console/queues", 303), ("/console/nothing", 404)):
        answer = raw(server, "HEAD", path)
        assert (answer.status, answer.data) == (status, b"")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_that_fails_says_nothing_but_that(
    server: RunningServer, visitor: Visitor, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    token = re.findall('name="csrf" value="([^"]*)"', visitor.get("/console/queues").html)[0]
    with caplog.at_level(logging.ERROR):
        seen = visitor.get("/console/broken") if method == "GET" else visitor.send("/console/broken", {"csrf": token})
    assert (seen.status, "This went wrong" in seen.text) == (500, True)
    assert "detail" not in seen.html
    assert "Traceback" not in seen.html
    assert {name: seen.headers.get(name) for name in HEADERS} == HEADERS
    assert [record.message for record in caplog.records] == ["the page /console/broken failed"]


def test_looking_changes_nothing_whoever_wrote_the_page(server: RunningServer, visitor: Visitor) -> None:
    assert visitor.get("/console/sly").status == 500
    assert queues(server) == 1


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"])
def test_no_header_and_no_field_makes_a_change_of_a_look(server: RunningServer, visitor: Visitor, header: str) -> None:
    seen = visitor.get(f"{QUEUE}/delete?_method=POST&confirmation=orders", **{header: "POST"})
    assert "Type the queue" in seen.text
    assert queues(server) == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=x", ""])
def test_a_form_of_another_kind_is_not_read(server: RunningServer, visitor: Visitor, kind: str) -> None:
    fields = {"csrf": "x", "confirmation": "orders"}
    seen = visitor.send(f"{QUEUE}/delete", fields, **{"Content-Type": kind})
    assert (seen.status, "Nothing was changed" in seen.text) == (415, True)
    assert queues(server) == 1


def test_a_form_of_ever_so_many_fields_is_not_read(server: RunningServer, visitor: Visitor) -> None:
    fields = {f"f{number}": "" for number in range(FIELDS_MAX)}
    assert visitor.send(f"{QUEUE}/delete", {"confirmation": "orders", **fields}).status == 413
    assert queues(server) == 1


def test_a_stranger_sends_no_long_form(server: RunningServer) -> None:
    with Visitor(server) as stranger:
        assert stranger.send("/console/login", {"next": "x" * OPEN_FORM_BYTES_MAX}).status == 413
        assert stranger.send(f"{QUEUE}/delete", {"confirmation": "x" * 100_000}).path.startswith("/console/login")


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "///evil.example",
        r"\\evil.example",
        r"/\evil.example",
        "https://evil.example/console/",
        "javascript:alert(1)//console/",
        "%2F%2Fevil.example",
        "/%2Fevil.example",
        "/console",
        "/consolex/",
        " /console/x",
        "\t//evil.example",
        "/api/queues",
    ],
)
def test_after_signing_in_one_is_at_the_console(server: RunningServer, path: str) -> None:
    with Visitor(server) as visitor:
        seen = visitor.post("/console/login", key_id=KEY[0], secret=KEY[1], next=path)
        assert (seen.status, seen.path) == (200, "/console/queues")


@pytest.mark.parametrize("path", ["/console/x\r\nSet-Cookie: a=b", "/console/%0d%0aSet-Cookie:%20a=b", "/console/é\0"])
def test_no_address_puts_lines_into_the_answer(server: RunningServer, path: str) -> None:
    with Visitor(server) as visitor:
        seen = visitor.post("/console/login", key_id=KEY[0], secret=KEY[1], next=path)
        assert seen.path.startswith("/console/")
        assert "a" not in visitor.cookies


def test_signing_in_begins_a_new_session(server: RunningServer) -> None:
    """Whoever has put a cookie of his own into somebody's browser is not signed in with it, and knows no token."""
    with Visitor(server) as visitor, Visitor(server) as other:
        visitor.get("/console/login")
        planted = dict(visitor.cookies)
        before = re.findall('name="csrf" value="([^"]*)"', visitor.get("/console/login").html)[0]
        seen = visitor.post("/console/login", key_id=KEY[0], secret=KEY[1], next="")
        assert visitor.cookies != planted
        assert before not in seen.html
        assert visitor.send(f"{QUEUE}/purge", {"csrf": before, "confirmation": "orders"}).status == 403
        other.cookies.update(planted)
        assert other.get("/console/queues").path.startswith("/console/login")


def test_signing_out_takes_a_form(server: RunningServer, visitor: Visitor) -> None:
    visitor.get("/console/logout")
    assert visitor.get("/console/queues").path == "/console/queues"
    assert visitor.send("/console/logout", {"csrf": "guessed"}).status == 403
    assert visitor.get("/console/queues").path == "/console/queues"


def test_a_session_ends_when_its_key_expires(tmp_path: Path) -> None:
    now_s = [1_700_000_000.0]
    path = written(tmp_path / "credentials.toml", TEXT.replace('user = "carol"', "expires = 2023-11-14T23:00:00Z"))
    key = ("AKIDCAROL", SECRETS["AKIDCAROL"])
    with RunningServer(credentials=path, wall_s=lambda: now_s[0]) as running, Visitor(running, key=key) as carol:
        assert carol.get("/console/queues").path == "/console/queues"
        now_s[0] += 3_600
        assert carol.get("/console/queues").path.startswith("/console/login")


def test_wrong_keys_are_slowed_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunningServer(credentials=written(tmp_path / "c.toml")) as running, Visitor(running) as visitor:
        with caplog.at_level(logging.WARNING):
            for _ in range(ADDRESS_FAILURES):
                assert visitor.post("/console/login", key_id=KEY[0], secret="wrong").status == 403
            paused = visitor.post("/console/login", key_id=KEY[0], secret=KEY[1])
        assert (paused.status, paused.headers["retry-after"]) == (429, "10")
        assert "Try again in 10 s" in paused.text
        assert KEY[0] in paused.html
        assert caplog.messages.count("signing in with key 'AKIDOWNER' from 127.0.0.1 failed") == ADDRESS_FAILURES
        running.advance(ADDRESS_REST_MS)
        assert visitor.post("/console/login", key_id=KEY[0], secret=KEY[1], next="").path == "/console/queues"


def test_wrong_passwords_of_the_api_are_counted_with_those_of_the_form(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "c.toml")) as running, Visitor(running) as visitor:
        for _ in range(ADDRESS_FAILURES):
            wrong = urllib3.make_headers(basic_auth="AKIDOWNER:wrong")
            assert raw(running, "GET", "/api/queues", **wrong).status == 401
        right = urllib3.make_headers(basic_auth=f"{KEY[0]}:{KEY[1]}")
        paused = raw(running, "GET", "/api/queues", **right)
        assert (paused.status, paused.headers["retry-after"]) == (429, "10")
        assert visitor.post("/console/login", key_id=KEY[0], secret=KEY[1]).status == 429
        running.advance(ADDRESS_REST_MS)
        assert raw(running, "GET", "/api/queues", **right).status == 200


@pytest.mark.parametrize("host", ["[::1", "::1]", "localhost:99999", "localhost:", "a b", "127.0.0.1:x", "[localhost]"])
def test_a_host_that_is_none_breaks_nothing(server: RunningServer, host: str) -> None:
    assert raw(server, "GET", "/console/login", Host=host).status in {400, 403}


@pytest.mark.parametrize("suffix", ["%3Fx", "%23x", "%2e%2e", "%00", "%0a", "%3Cscript%3E", "%C3%A9", "%FF"])
def test_a_name_in_an_address_is_no_other_queues(server: RunningServer, visitor: Visitor, suffix: str) -> None:
    for path in ("", "/delete", "/purge", "/edit", "/messages", "/dead-letters"):
        seen = visitor.get(f"{QUEUE}{suffix}{path}")
        assert seen.status in {400, 404}, path
        assert "<script>" not in seen.html
    assert visitor.get(f"/console/claims/{OWNER}/orders{suffix}").status in {400, 404}
