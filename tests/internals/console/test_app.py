"""What holds for every page: who comes in, whose form is taken, which headers, what a page that fails says."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from starlette.responses import Response

from tests.clients import boto
from tests.console.every_page import ACCOUNT, addresses
from tests.console.test_messages_page import _CHOICE, act
from tests.console.visitor import Visitor, form_of
from tests.server.keys import OWNER, REGION, SECRETS, TEXT, TOKEN, client, set_policy, statement, written
from veilmq.console.assets import ASSETS, address_of
from veilmq.console.pages import PAGES
from veilmq.console.security_headers import HEADERS
from veilmq.console.sign_ins import ADDRESS_FAILURES, ADDRESS_REST_MS
from veilmq.console.visit import FIELDS_MAX, OPEN_FORM_BYTES_MAX, Page, Visit
from veilmq.core.commands import Command, Delete, Done, Receive
from veilmq.core.errors import StoreUnavailable
from veilmq.server.console import shown_settings
from veilmq.server.settings import ServerSettings
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import RunningServer

KEY = "AKIDOWNER"
FILLED = {"key_id": KEY, "secret": SECRETS[KEY]}
HOME = "/console/queues"
QUEUE = f"/console/queues/{OWNER}/orders"
OF_A_QUEUE = [page for page in PAGES if "{name}" in page.path]


async def _broken(visit: Visit) -> Response:
    raise ValueError("a detail that is nobody's business")


async def _sly(visit: Visit) -> Response:
    """Change something though one only looks."""
    await visit.sqs("DeleteQueue", {"QueueUrl": f"http://localhost/{OWNER}/orders"})
    return visit.go(HOME)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with accounts, in a folder, a queue with a message, and two pages that should not be."""
    folder = tmp_path_factory.mktemp("server")
    keys, wrong = written(folder / "keys.toml"), (Page("/console/broken", _broken, _broken), Page("/console/sly", _sly))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("veilmq.console.app.PAGES", (*PAGES, *wrong))
        settings: dict[str, Any] = {"data": folder / "data", "account": OWNER, "region": REGION, "drain_s_max": 3}
        with RunningServer(credentials=keys, **settings) as running:
            url = client(running).create_queue(QueueName="orders")["QueueUrl"]
            client(running).send_message(QueueUrl=url, MessageBody="gold")
            yield running


@pytest.fixture
def visitor(server: RunningServer) -> Iterator[Visitor]:
    """Somebody who has signed in with the key of the server's own account."""
    with Visitor(server, key=KEY) as visiting:
        yield visiting


@pytest.fixture
def stranger(server: RunningServer) -> Iterator[Visitor]:
    with Visitor(server) as visiting:
        yield visiting


def test_one_comes_back_to_the_page_that_one_wanted(stranger: Visitor) -> None:
    form = form_of(stranger.get("/console/queues?search=x").html, "/console/login")
    seen = stranger.send("/console/login", form | FILLED)
    assert (seen.status, seen.path) == (200, "/console/queues?search=x")


def raw(server: RunningServer, method: str, path: str, **headers: str) -> Any:
    """Send what no browser would."""
    with urllib3.PoolManager() as http:
        return http.request(method, server.admin_endpoint + path, headers=headers, retries=False)


def messages(server: RunningServer) -> int:
    """Return how many messages `orders` has; fails if it is gone."""
    url = client(server).get_queue_url(QueueName="orders")["QueueUrl"]
    found = client(server).get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(found["Attributes"]["ApproximateNumberOfMessages"])


def token_of(html: str) -> str:
    return str(re.findall('name="csrf" value="([^"]*)"', html)[0])


def address(page: Page) -> str:
    of_queue = page.path.replace("{account}", OWNER).replace("{name}", "orders")
    return re.sub(r"\{[^}]*\}", "x", of_queue)


def is_outside(visitor: Visitor) -> bool:
    return visitor.get(HOME).path.startswith("/console/login")


# Signing in and out.


@pytest.mark.parametrize("path", [page.path for page in PAGES if not page.open and "{" not in page.path])
def test_whoever_has_not_signed_in_is_sent_to(stranger: Visitor, path: str) -> None:
    seen = stranger.get(path)
    assert seen.path.startswith("/console/login?next=")
    assert "Secret access key" in seen.text


@pytest.mark.parametrize(
    "path",
    [
        *("", "/metrics", "/console", "/consolex/", "/api/queues", " /console/x", "/console/\\x", "/%2Fevil.example"),
        *("//evil.example", "//evil.example/console/", "///evil.example", r"\\evil.example", r"/\evil.example"),
        *("https://evil.example/", "https://evil.example/console/", "javascript:alert(1)//console/"),
        *("%2F%2Fevil.example", "\t//evil.example"),
    ],
)
def test_signing_in_never_leads_elsewhere(stranger: Visitor, path: str) -> None:
    seen = stranger.post("/console/login", **FILLED, next=path)
    assert (seen.status, seen.path) == (200, HOME)


@pytest.mark.parametrize("path", ["/console/x\r\nSet-Cookie: a=b", "/console/%0d%0aSet-Cookie:%20a=b", "/console/é\0"])
def test_no_address_puts_lines_into_the_answer(stranger: Visitor, path: str) -> None:
    assert stranger.post("/console/login", **FILLED, next=path).path.startswith("/console/")
    assert "a" not in stranger.cookies


@pytest.mark.parametrize(
    ("key_id", "secret"),
    [("AKIDOWNER", "wrong"), ("AKIDOWNER", ""), ("AKIDNOBODY", SECRETS["AKIDOWNER"]), ("", ""), ("ASIDBOB", TOKEN)],
)
def test_a_wrong_key_keeps_the_form_and_says_so(stranger: Visitor, key_id: str, secret: str) -> None:
    seen = stranger.post("/console/login", key_id=key_id, secret=secret)
    assert (seen.status, "There is no key with this id and secret" in seen.text) == (403, True)
    kept = form_of(seen.html, "/console/login")
    assert (kept["key_id"], kept["secret"]) == (key_id, "")
    assert is_outside(stranger)


def test_signing_out_ends_the_session_and_takes_a_form(visitor: Visitor) -> None:
    visitor.get("/console/logout")
    assert visitor.send("/console/logout", {"csrf": "guessed"}).status == 403
    assert not is_outside(visitor)
    assert "You have signed out" in visitor.post("/console/logout", at=HOME).text
    assert is_outside(visitor)


@pytest.mark.parametrize(("old", "new"), [("AKIDOWNER", "AKIDHEIR"), (SECRETS["AKIDOWNER"], "another")])
def test_a_session_ends_when_its_key_is_gone_or_has_a_new_secret(tmp_path: Path, old: str, new: str) -> None:
    path = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=path) as running, Visitor(running, key=KEY) as visitor:
        written(path, path.read_text().replace(old, new))
        running.reload()
        assert is_outside(visitor)


def test_a_session_ends_when_its_key_expires(tmp_path: Path) -> None:
    now_s = [1_700_000_000.0]
    path = written(tmp_path / "credentials.toml", TEXT.replace('user = "carol"', "expires = 2023-11-14T23:00:00Z"))
    with (
        RunningServer(credentials=path, wall_s=lambda: now_s[0]) as running,
        Visitor(running, key="AKIDCAROL") as carol,
    ):
        assert not is_outside(carol)
        now_s[0] += 3_600
        assert is_outside(carol)


def test_signing_in_begins_a_new_session(stranger: Visitor, server: RunningServer) -> None:
    """Whoever has put a cookie of his own into somebody's browser is not signed in with it, and knows no token."""
    with Visitor(server) as other:
        before = token_of(stranger.get("/console/login").html)
        planted = dict(stranger.cookies)
        seen = stranger.post("/console/login", **FILLED, next="")
        assert stranger.cookies != planted
        assert before not in seen.html
        assert stranger.send(f"{QUEUE}/purge", {"csrf": before, "confirmation": "orders"}).status == 403
        other.cookies.update(planted)
        assert is_outside(other)


def test_the_cookie_is_for_this_console_alone(stranger: Visitor) -> None:
    cookie = stranger.get("/console/login").headers["set-cookie"]
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=28800"):
        assert attribute in cookie


def test_wrong_keys_are_slowed_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunningServer(credentials=written(tmp_path / "c.toml")) as running, Visitor(running) as visitor:
        with caplog.at_level(logging.WARNING):
            for _ in range(ADDRESS_FAILURES):
                assert visitor.post("/console/login", **FILLED | {"secret": "wrong"}).status == 403
            paused = visitor.post("/console/login", **FILLED)
        assert (paused.status, paused.headers["retry-after"]) == (429, "10")
        assert "Try again in 10 s" in paused.text
        assert KEY in paused.html
        assert caplog.messages.count("signing in with key 'AKIDOWNER' from 127.0.0.1 failed") == ADDRESS_FAILURES
        running.advance(ADDRESS_REST_MS)
        assert visitor.post("/console/login", **FILLED, next="").path == HOME


def test_wrong_passwords_of_the_api_are_counted_with_those_of_the_form(tmp_path: Path) -> None:
    wrong, right = (urllib3.make_headers(basic_auth=f"{KEY}:{secret}") for secret in ("wrong", SECRETS[KEY]))
    with RunningServer(credentials=written(tmp_path / "c.toml")) as running, Visitor(running) as visitor:
        for _ in range(ADDRESS_FAILURES):
            assert raw(running, "GET", "/api/queues", **wrong).status == 401
        paused = raw(running, "GET", "/api/queues", **right)
        assert (paused.status, paused.headers["retry-after"]) == (429, "10")
        assert visitor.post("/console/login", **FILLED).status == 429
        running.advance(ADDRESS_REST_MS)
        assert raw(running, "GET", "/api/queues", **right).status == 200


# Forms, and who may send them.


def test_no_form_is_taken_without_the_token_of_the_session(visitor: Visitor, server: RunningServer) -> None:
    changing = [page for page in PAGES if page.change is not None]
    assert len(changing) > len(OF_A_QUEUE) // 2
    with Visitor(server, key=KEY) as other:
        foreign = token_of(other.get(HOME).html)
    for page in changing:
        for token in ("", "guessed", foreign):
            fields = {"csrf": token, "confirmation": "orders", "body": "brass", "name": "new", "do": "receive"}
            refused = visitor.send(address(page), fields)
            assert (refused.status, "Nothing was changed" in refused.text) == (403, True), page.path
    assert not is_outside(visitor)
    assert messages(server) == 1


def test_another_account_sees_and_does_nothing(server: RunningServer) -> None:
    with Visitor(server, key="AKIDFRIEND") as friend:
        home = friend.get(HOME)
        assert "orders" not in home.text
        for page in OF_A_QUEUE:
            seen = friend.get(address(page))
            may_be_allowed = page.path.endswith("/send")  # to others who may not look: the form is empty
            assert 'role="alert"' in seen.html or may_be_allowed, page.path
            assert "gold" not in seen.html
            if page.change is not None:
                fields = {"csrf": token_of(home.html), "confirmation": "orders", "receipt": "x", "body": "brass"}
                refused = friend.send(address(page), fields)
                assert refused.status in {400, 403, 404, 422}, page.path
                assert "gold" not in refused.html
    assert messages(server) == 1


@pytest.mark.parametrize("name", ["nowhere", "%3Cscript%3E", "a%3Fb", "a%0Ab", "a%20b"])
def test_a_queue_that_is_not_there_is_said_on_each_page(visitor: Visitor, name: str) -> None:
    for page in OF_A_QUEUE:
        seen = visitor.get(address(page).replace("orders", name))
        assert seen.status in {400, 404}, page.path
        assert "<script>" not in seen.html
        assert name != "nowhere" or "No such queue" in seen.text, page.path


@pytest.mark.parametrize("suffix", ["%3Fx", "%23x", "%2e%2e", "%00", "%0a", "%3Cscript%3E", "%C3%A9", "%FF"])
def test_a_name_in_an_address_is_no_other_queues(visitor: Visitor, suffix: str) -> None:
    for page in OF_A_QUEUE:
        seen = visitor.get(address(page).replace("orders", f"orders{suffix}"))
        assert seen.status in {400, 404}, page.path
        assert "<script>" not in seen.html


def test_looking_changes_nothing_whoever_wrote_the_page(server: RunningServer, visitor: Visitor) -> None:
    assert visitor.get("/console/sly").status == 500
    assert messages(server) == 1


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"])
def test_no_header_and_no_field_makes_a_change_of_a_look(server: RunningServer, visitor: Visitor, header: str) -> None:
    seen = visitor.get(f"{QUEUE}/delete?_method=POST&confirmation=orders", **{header: "POST"})
    assert "Type the queue" in seen.text
    assert messages(server) == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=x", ""])
def test_a_form_of_another_kind_is_not_read(server: RunningServer, visitor: Visitor, kind: str) -> None:
    seen = visitor.send(f"{QUEUE}/delete", {"csrf": "x", "confirmation": "orders"}, **{"Content-Type": kind})
    assert (seen.status, "Nothing was changed" in seen.text) == (415, True)
    assert messages(server) == 1


def test_a_form_of_ever_so_many_fields_or_bytes_is_not_read(visitor: Visitor, stranger: Visitor) -> None:
    fields = {f"f{number}": "" for number in range(FIELDS_MAX)}
    assert visitor.send(f"{QUEUE}/delete", {"confirmation": "orders", **fields}).status == 413
    assert stranger.send("/console/login", {"next": "x" * OPEN_FORM_BYTES_MAX}).status == 413
    assert stranger.send(f"{QUEUE}/delete", {"confirmation": "x" * 100_000}).path.startswith("/console/login")


def test_policies_see_the_browser(server: RunningServer) -> None:
    """Where it is and what it is, as they do of programs."""
    url = client(server).create_queue(QueueName="jobs")["QueueUrl"]
    condition = {"StringLike": {"aws:UserAgent": "Mozilla/*"}, "IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}
    rule = statement(Effect="Deny", Principal="*", Action="sqs:GetQueueAttributes", Resource="*", Condition=condition)
    set_policy(client(server), url, rule)
    agents = {"Mozilla/5.0 (X11)": 403, "reader/1.0": 200}
    with Visitor(server, key="AKIDCAROL") as carol:
        page = f"/console/queues/{OWNER}/jobs"
        assert {agent: carol.get(page, **{"User-Agent": agent}).status for agent in agents} == agents


# Answers: headers, what is no page, a page that fails.


@pytest.mark.parametrize("path", [HOME, "/console/login", "/", "/console/nothing", "/console/assets/console.css"])
def test_every_answer_keeps_itself_to_itself(visitor: Visitor, path: str) -> None:
    headers = visitor.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS


def test_pages_are_not_stored_and_assets_are(visitor: Visitor) -> None:
    assert visitor.get(HOME).headers["cache-control"] == "no-store"
    for name, asset in ASSETS.items():
        seen = visitor.get(address_of(name))
        assert "immutable" in seen.headers["cache-control"]
        assert seen.html.encode() == asset.body
    assert visitor.get("/console/assets/../app.py").status == 404


def test_health_and_metrics_are_where_they_were(stranger: Visitor) -> None:
    assert stranger.get("/health/live").text == "alive"
    assert "veilmq_" in stranger.get("/metrics").html


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
    for path, status in (("/console/login", 200), (HOME, 303), ("/console/nothing", 404)):
        answer = raw(server, "HEAD", path)
        assert (answer.status, answer.data) == (status, b"")


@pytest.mark.parametrize("host", ["[::1", "::1]", "localhost:99999", "localhost:", "a b", "127.0.0.1:x", "[localhost]"])
def test_a_host_that_is_none_breaks_nothing(server: RunningServer, host: str) -> None:
    assert raw(server, "GET", "/console/login", Host=host).status in {400, 403}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_that_fails_says_nothing_but_that(
    visitor: Visitor, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    token = token_of(visitor.get(HOME).html)
    with caplog.at_level(logging.ERROR):
        seen = visitor.get("/console/broken") if method == "GET" else visitor.send("/console/broken", {"csrf": token})
    assert (seen.status, "This went wrong" in seen.text) == (500, True)
    assert "detail" not in seen.html
    assert "Traceback" not in seen.html
    assert {name: seen.headers.get(name) for name in HEADERS} == HEADERS
    assert [record.message for record in caplog.records] == ["the page /console/broken failed"]


# Settings and health: what is of the whole server, without a secret, for its own account.


@pytest.mark.parametrize("key", ["AKIDCAROL", "AKIDFRIEND"])
def test_settings_are_for_the_servers_own_account(server: RunningServer, key: str) -> None:
    with Visitor(server, key=key) as other:
        seen = other.get("/console/settings")
    assert (seen.status, "only its own account sees it" in seen.text) == (403, True)
    assert "--drain-s-max" not in seen.text


def test_passwords_and_keys_are_stars() -> None:
    settings = ServerSettings(
        data=None,
        store="postgresql://mq:hunter2@db/x?sslpassword=hunter3",
        events_to="s3://AKID:hunter4@bucket/x?secret_key=hunter5&region=eu",
    )
    told = {each.name: each.value for each in shown_settings(settings)}
    assert "hunter" not in str(told)
    assert told["store"].startswith("postgresql://mq:***@db/x")
    assert "region=eu" in told["events_to"]
    assert told["memory"] == "false"


def test_health_says_that_a_server_is_ready_and_to_its_account_where_messages_are(
    server: RunningServer, visitor: Visitor
) -> None:
    server.advance(seconds=90)
    seen = visitor.get("/console/health")
    for words in ("Ready: requests are answered.", "Running for 1 min 30 s", "Messages are kept in /"):
        assert words in seen.text
    assert "Nothing is exported" in seen.text
    assert 'href="/metrics"' in seen.html
    with Visitor(server, key="AKIDCAROL") as carol:
        shown = carol.get("/console/health").text
    assert ("Ready: requests are answered." in shown, "Messages are kept" in shown) == (True, False)


def test_health_counts_what_waits_to_be_exported(tmp_path: Path) -> None:
    with RunningServer(events_to=str(tmp_path / "events")) as running, Visitor(running) as visitor:
        assert "Recorded 0 Waiting 0 Dropped 0 Failed exports 0" in visitor.get("/console/health").text


# Where the store does not answer each page says so, and nothing that it cannot know.


NEED_NO_STORE = {"settings", "health", "audit"}


class Store:
    """What is in the way of the store, if anything is."""

    is_gone = False
    goes_with: type[Command] | None = None


@pytest.fixture(scope="module")
def leaving() -> Iterator[RunningServer]:
    """A server with a queue, whose store goes as `Store` says."""
    submit = SqliteStore.submit

    def asked(engine: SqliteStore, command: Command, done: Done) -> None:
        if Store.is_gone:
            done(StoreUnavailable())
            return
        submit(engine, command, done)
        Store.is_gone = type(command) is Store.goes_with

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqliteStore, "submit", asked)
        with RunningServer() as running:
            sqs: Any = boto.client(running.endpoint)
            url = sqs.create_queue(QueueName="orders")["QueueUrl"]
            for body in ("a body to be read", "a", "b"):
                sqs.send_message(QueueUrl=url, MessageBody=body)
            yield running
            Store.is_gone = False


@pytest.fixture
def served(leaving: RunningServer) -> Iterator[Visitor]:
    with Visitor(leaving) as visiting:
        yield visiting
    Store.is_gone, Store.goes_with = False, None


@pytest.mark.parametrize("page", sorted(addresses("orders").keys() - {"login", "queue-new"}))
def test_a_page_says_so(served: Visitor, page: str) -> None:
    Store.is_gone = True
    seen = served.get(addresses("orders")[page])
    if page in NEED_NO_STORE:
        assert seen.status == 200
    else:
        assert (seen.status, str(StoreUnavailable()) in seen.text) == (503, True), seen.text


def test_what_was_received_is_shown_though_the_store_went_then(served: Visitor) -> None:
    """It is held by whoever received it: nobody else gets it for a while, and its receipt is nowhere else."""
    Store.goes_with = Receive
    seen = served.post(f"/console/queues/{ACCOUNT}/orders/messages", do="receive", count="1")
    assert "a body to be read" in seen.text
    assert 'name="receipt.' in seen.html


def test_what_was_done_is_told_when_the_store_is_there_again(served: Visitor) -> None:
    page = served.post(f"/console/queues/{ACCOUNT}/orders/messages", do="receive", count="2")
    Store.goes_with = Delete
    seen = act(served, page, "delete", leases=_CHOICE.findall(page.html)[:1])
    assert (seen.status, "deleted-1" in seen.path) == (503, True)
    Store.is_gone, Store.goes_with = False, None
    assert "Deleted: 1." in served.get(seen.path).text
