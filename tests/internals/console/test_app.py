"""What holds for every page: sessions, forms, headers, and error pages."""

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
from veilmq.console.page_context import FIELDS_MAX, OPEN_FORM_BYTES_MAX, PageContext, PageRoute
from veilmq.console.pages import PAGES
from veilmq.console.security_headers import HEADERS
from veilmq.console.sign_ins import ADDRESS_FAILURES, ADDRESS_REFILL_MS
from veilmq.core.commands import ChangeVisibility, Command, Delete, Done, Receive
from veilmq.core.errors import StoreUnavailable
from veilmq.server.console import shown_settings
from veilmq.server.settings import ServerSettings
from veilmq.store.sqlite import SqliteStore
from veilmq.testing import RunningServer

KEY = "AKIDOWNER"
FILLED = {"key_id": KEY, "secret": SECRETS[KEY]}
HOME = "/console/queues"
QUEUE = f"/console/queues/{OWNER}/orders"
OF_A_QUEUE = [route for route in PAGES if "{name}" in route.path]


async def _broken(page: PageContext) -> Response:
    raise ValueError("an internal detail")


async def _sly(page: PageContext) -> Response:
    """Make a change on GET."""
    await page.sqs("DeleteQueue", {"QueueUrl": f"http://localhost/{OWNER}/orders"})
    return page.redirect(HOME)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with accounts, a data folder, a queue with a message, and two defective pages."""
    folder = tmp_path_factory.mktemp("server")
    keys, wrong = (
        written(folder / "keys.toml"),
        (PageRoute("/console/broken", _broken, _broken), PageRoute("/console/sly", _sly)),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("veilmq.console.app.PAGES", (*PAGES, *wrong))
        settings: dict[str, Any] = {"data": folder / "data", "account": OWNER, "region": REGION, "drain_s_max": 3}
        with RunningServer(credentials=keys, **settings) as running:
            url = client(running).create_queue(QueueName="orders")["QueueUrl"]
            client(running).send_message(QueueUrl=url, MessageBody="gold")
            yield running


@pytest.fixture
def visitor(server: RunningServer) -> Iterator[Visitor]:
    """A user of the server's own account, signed in."""
    with Visitor(server, key=KEY) as visiting:
        yield visiting


@pytest.fixture
def stranger(server: RunningServer) -> Iterator[Visitor]:
    with Visitor(server) as visiting:
        yield visiting


def test_sign_in_returns_to_the_requested_page(stranger: Visitor) -> None:
    form = form_of(stranger.get("/console/queues?search=x").html, "/console/login")
    seen = stranger.send("/console/login", form | FILLED)
    assert (seen.status, seen.path) == (200, "/console/queues?search=x")


def raw(server: RunningServer, method: str, path: str, **headers: str) -> Any:
    """Send a request that no browser would."""
    with urllib3.PoolManager() as http:
        return http.request(method, server.admin_endpoint + path, headers=headers, retries=False)


def messages(server: RunningServer) -> int:
    """Return the number of messages of `orders`; fails if it does not exist."""
    url = client(server).get_queue_url(QueueName="orders")["QueueUrl"]
    found = client(server).get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(found["Attributes"]["ApproximateNumberOfMessages"])


def token_of(html: str) -> str:
    return str(re.findall('name="csrf" value="([^"]*)"', html)[0])


def address(route: PageRoute) -> str:
    of_queue = route.path.replace("{account}", OWNER).replace("{name}", "orders")
    return re.sub(r"\{[^}]*\}", "x", of_queue)


def is_outside(visitor: Visitor) -> bool:
    return visitor.get(HOME).path.startswith("/console/login")


# Signing in and out.


@pytest.mark.parametrize("path", [route.path for route in PAGES if not route.open and "{" not in route.path])
def test_without_a_session_pages_redirect_to_sign_in(stranger: Visitor, path: str) -> None:
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
def test_sign_in_never_redirects_elsewhere(stranger: Visitor, path: str) -> None:
    seen = stranger.post("/console/login", **FILLED, next=path)
    assert (seen.status, seen.path) == (200, HOME)


@pytest.mark.parametrize("path", ["/console/x\r\nSet-Cookie: a=b", "/console/%0d%0aSet-Cookie:%20a=b", "/console/é\0"])
def test_a_redirect_cannot_inject_headers(stranger: Visitor, path: str) -> None:
    assert stranger.post("/console/login", **FILLED, next=path).path.startswith("/console/")
    assert "a" not in stranger.cookies


@pytest.mark.parametrize(
    ("key_id", "secret"),
    [("AKIDOWNER", "wrong"), ("AKIDOWNER", ""), ("AKIDNOBODY", SECRETS["AKIDOWNER"]), ("", ""), ("ASIDBOB", TOKEN)],
)
def test_a_wrong_key_shows_the_form_with_an_error(stranger: Visitor, key_id: str, secret: str) -> None:
    seen = stranger.post("/console/login", key_id=key_id, secret=secret)
    assert (seen.status, "The key id or secret is wrong" in seen.text) == (403, True)
    kept = form_of(seen.html, "/console/login")
    assert (kept["key_id"], kept["secret"]) == (key_id, "")
    assert is_outside(stranger)


def test_sign_out_needs_a_form_and_ends_the_session(visitor: Visitor) -> None:
    visitor.get("/console/logout")
    assert visitor.send("/console/logout", {"csrf": "guessed"}).status == 403
    assert not is_outside(visitor)
    assert "You have signed out" in visitor.post("/console/logout", at=HOME).text
    assert is_outside(visitor)


@pytest.mark.parametrize(("old", "new"), [("AKIDOWNER", "AKIDHEIR"), (SECRETS["AKIDOWNER"], "another")])
def test_removing_a_key_or_changing_its_secret_ends_sessions(tmp_path: Path, old: str, new: str) -> None:
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


def test_sign_in_begins_a_new_session(stranger: Visitor, server: RunningServer) -> None:
    """A cookie planted by an attacker is not signed in, and its token is useless (session fixation)."""
    with Visitor(server) as other:
        before = token_of(stranger.get("/console/login").html)
        planted = dict(stranger.cookies)
        seen = stranger.post("/console/login", **FILLED, next="")
        assert stranger.cookies != planted
        assert before not in seen.html
        assert stranger.send(f"{QUEUE}/purge", {"csrf": before, "confirmation": "orders"}).status == 403
        other.cookies.update(planted)
        assert is_outside(other)


def test_the_cookie_is_restricted_to_this_console(stranger: Visitor) -> None:
    cookie = stranger.get("/console/login").headers["set-cookie"]
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=28800"):
        assert attribute in cookie


def test_wrong_keys_are_rate_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunningServer(credentials=written(tmp_path / "c.toml")) as running, Visitor(running) as visitor:
        with caplog.at_level(logging.WARNING):
            for _ in range(ADDRESS_FAILURES):
                assert visitor.post("/console/login", **FILLED | {"secret": "wrong"}).status == 403
            paused = visitor.post("/console/login", **FILLED)
        assert (paused.status, paused.headers["retry-after"]) == (429, "10")
        assert "Try again in 10 s" in paused.text
        assert KEY in paused.html
        assert caplog.messages.count("signing in with key 'AKIDOWNER' from 127.0.0.1 failed") == ADDRESS_FAILURES
        running.advance(ADDRESS_REFILL_MS)
        assert visitor.post("/console/login", **FILLED, next="").path == HOME


def test_the_api_and_the_form_share_the_rate_limit(tmp_path: Path) -> None:
    wrong, right = (urllib3.make_headers(basic_auth=f"{KEY}:{secret}") for secret in ("wrong", SECRETS[KEY]))
    with RunningServer(credentials=written(tmp_path / "c.toml")) as running, Visitor(running) as visitor:
        for _ in range(ADDRESS_FAILURES):
            assert raw(running, "GET", "/api/queues", **wrong).status == 401
        paused = raw(running, "GET", "/api/queues", **right)
        assert (paused.status, paused.headers["retry-after"]) == (429, "10")
        assert visitor.post("/console/login", **FILLED).status == 429
        running.advance(ADDRESS_REFILL_MS)
        assert raw(running, "GET", "/api/queues", **right).status == 200


# Forms.


def test_a_form_without_the_sessions_token_is_refused(visitor: Visitor, server: RunningServer) -> None:
    changing = [route for route in PAGES if route.change is not None]
    assert len(changing) > len(OF_A_QUEUE) // 2
    with Visitor(server, key=KEY) as other:
        foreign = token_of(other.get(HOME).html)
    for route in changing:
        for token in ("", "guessed", foreign):
            fields = {"csrf": token, "confirmation": "orders", "body": "brass", "name": "new", "do": "receive"}
            refused = visitor.send(address(route), fields)
            assert (refused.status, "Nothing was changed" in refused.text) == (403, True), route.path
    assert not is_outside(visitor)
    assert messages(server) == 1


def test_another_account_can_see_and_do_nothing(server: RunningServer) -> None:
    with Visitor(server, key="AKIDFRIEND") as friend:
        home = friend.get(HOME)
        assert "orders" not in home.text
        for route in OF_A_QUEUE:
            seen = friend.get(address(route))
            may_be_allowed = route.path.endswith("/send")  # a policy may allow only this
            assert 'role="alert"' in seen.html or may_be_allowed, route.path
            assert "gold" not in seen.html
            if route.change is not None:
                fields = {"csrf": token_of(home.html), "confirmation": "orders", "receipt": "x", "body": "brass"}
                refused = friend.send(address(route), fields)
                assert refused.status in {400, 403, 404, 422}, route.path
                assert "gold" not in refused.html
    assert messages(server) == 1


@pytest.mark.parametrize("name", ["nowhere", "%3Cscript%3E", "a%3Fb", "a%0Ab", "a%20b"])
def test_a_missing_queue_is_reported_on_each_page(visitor: Visitor, name: str) -> None:
    for route in OF_A_QUEUE:
        seen = visitor.get(address(route).replace("orders", name))
        assert seen.status in {400, 404}, route.path
        assert "<script>" not in seen.html
        assert name != "nowhere" or "Queue not found" in seen.text, route.path


@pytest.mark.parametrize("suffix", ["%3Fx", "%23x", "%2e%2e", "%00", "%0a", "%3Cscript%3E", "%C3%A9", "%FF"])
def test_escapes_in_a_path_lead_to_no_other_queue(visitor: Visitor, suffix: str) -> None:
    for route in OF_A_QUEUE:
        seen = visitor.get(address(route).replace("orders", f"orders{suffix}"))
        assert seen.status in {400, 404}, route.path
        assert "<script>" not in seen.html


def test_a_defective_page_cannot_make_a_change_on_get(server: RunningServer, visitor: Visitor) -> None:
    assert visitor.get("/console/sly").status == 500
    assert messages(server) == 1


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"])
def test_get_cannot_be_turned_into_post(server: RunningServer, visitor: Visitor, header: str) -> None:
    seen = visitor.get(f"{QUEUE}/delete?_method=POST&confirmation=orders", **{header: "POST"})
    assert "Type the queue" in seen.text
    assert messages(server) == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "multipart/form-data; boundary=x", ""])
def test_a_form_of_another_content_type_is_refused(server: RunningServer, visitor: Visitor, kind: str) -> None:
    seen = visitor.send(f"{QUEUE}/delete", {"csrf": "x", "confirmation": "orders"}, **{"Content-Type": kind})
    assert (seen.status, "Nothing was changed" in seen.text) == (415, True)
    assert messages(server) == 1


def test_the_size_of_a_form_is_limited(visitor: Visitor, stranger: Visitor) -> None:
    fields = {f"f{number}": "" for number in range(FIELDS_MAX)}
    assert visitor.send(f"{QUEUE}/delete", {"confirmation": "orders", **fields}).status == 413
    assert stranger.send("/console/login", {"next": "x" * OPEN_FORM_BYTES_MAX}).status == 413
    assert stranger.send(f"{QUEUE}/delete", {"confirmation": "x" * 100_000}).path.startswith("/console/login")


def test_conditions_of_policies_apply_to_the_browser(server: RunningServer) -> None:
    """Its address and its user agent, as for programs."""
    url = client(server).create_queue(QueueName="jobs")["QueueUrl"]
    condition = {"StringLike": {"aws:UserAgent": "Mozilla/*"}, "IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}
    rule = statement(Effect="Deny", Principal="*", Action="sqs:GetQueueAttributes", Resource="*", Condition=condition)
    set_policy(client(server), url, rule)
    agents = {"Mozilla/5.0 (X11)": 403, "reader/1.0": 200}
    with Visitor(server, key="AKIDCAROL") as carol:
        path = f"/console/queues/{OWNER}/jobs"
        assert {agent: carol.get(path, **{"User-Agent": agent}).status for agent in agents} == agents


# Responses: headers and error pages.


@pytest.mark.parametrize("path", [HOME, "/console/login", "/", "/console/nothing", "/console/assets/console.css"])
def test_every_response_has_security_headers(visitor: Visitor, path: str) -> None:
    headers = visitor.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS


def test_pages_are_not_cached_and_assets_are(visitor: Visitor) -> None:
    assert visitor.get(HOME).headers["cache-control"] == "no-store"
    for name, asset in ASSETS.items():
        seen = visitor.get(address_of(name))
        assert "immutable" in seen.headers["cache-control"]
        assert seen.html.encode() == asset.body
    assert visitor.get("/console/assets/../app.py").status == 404


def test_health_and_metrics_need_no_session(stranger: Visitor) -> None:
    assert stranger.get("/health/live").text == "alive"
    assert "veilmq_" in stranger.get("/metrics").html


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/console/nothing", 404, "Page not found"),
        ("GET", "/nothing", 404, "Page not found"),
        ("GET", "/console/assets/nothing.css", 404, "Page not found"),
        ("GET", "/console/queues/" + "x" * 3_000, 404, "Page not found"),
        ("POST", "/console/health", 405, "This page is read-only"),
        ("DELETE", QUEUE, 405, "This page is read-only"),
        ("PUT", "/console/queues/new", 405, "This page is read-only"),
    ],
)
def test_unknown_paths_and_methods_get_an_error_page(
    server: RunningServer, method: str, path: str, status: int, words: str
) -> None:
    reply = raw(server, method, path)
    assert (reply.status, words in reply.data.decode()) == (status, True)
    assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
    assert reply.headers["cache-control"] == "no-store"
    assert (reply.headers.get("allow") is not None) is (status == 405)


def test_head_is_answered_without_a_body(server: RunningServer) -> None:
    for path, status in (("/console/login", 200), (HOME, 303), ("/console/nothing", 404)):
        reply = raw(server, "HEAD", path)
        assert (reply.status, reply.data) == (status, b"")


@pytest.mark.parametrize("host", ["[::1", "::1]", "localhost:99999", "localhost:", "a b", "127.0.0.1:x", "[localhost]"])
def test_an_invalid_host_is_refused(server: RunningServer, host: str) -> None:
    assert raw(server, "GET", "/console/login", Host=host).status in {400, 403}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_that_fails_reveals_no_details(visitor: Visitor, caplog: pytest.LogCaptureFixture, method: str) -> None:
    token = token_of(visitor.get(HOME).html)
    with caplog.at_level(logging.ERROR):
        seen = visitor.get("/console/broken") if method == "GET" else visitor.send("/console/broken", {"csrf": token})
    assert (seen.status, "Internal error" in seen.text) == (500, True)
    assert "detail" not in seen.html
    assert "Traceback" not in seen.html
    assert {name: seen.headers.get(name) for name in HEADERS} == HEADERS
    assert [record.message for record in caplog.records] == ["the page /console/broken failed"]


# Settings and health.


@pytest.mark.parametrize("key", ["AKIDCAROL", "AKIDFRIEND"])
def test_settings_are_for_the_servers_own_account(server: RunningServer, key: str) -> None:
    with Visitor(server, key=key) as other:
        seen = other.get("/console/settings")
    assert (seen.status, "Only the operator may see this page" in seen.text) == (403, True)
    assert "--drain-s-max" not in seen.text


def test_passwords_and_keys_are_masked() -> None:
    settings = ServerSettings(
        data=None,
        store="postgresql://mq:hunter2@db/x?sslpassword=hunter3",
        events_to="s3://AKID:hunter4@bucket/x?secret_key=hunter5&region=eu",
    )
    values = {each.name: each.value for each in shown_settings(settings)}
    assert "hunter" not in str(values)
    assert values["store"].startswith("postgresql://mq:***@db/x")
    assert "region=eu" in values["events_to"]
    assert values["memory"] == "false"


def test_health_shows_readiness_and_to_operators_the_place_of_storage(server: RunningServer, visitor: Visitor) -> None:
    server.advance(seconds=90)
    seen = visitor.get("/console/health")
    for words in ("Ready.", "Running for 1 min 30 s", "Messages are kept in /"):
        assert words in seen.text
    assert "No events are exported" in seen.text
    assert 'href="/metrics"' in seen.html
    with Visitor(server, key="AKIDCAROL") as carol:
        shown = carol.get("/console/health").text
    assert ("Ready." in shown, "Messages are kept" in shown) == (True, False)


def test_health_counts_events_waiting_for_export(tmp_path: Path) -> None:
    with RunningServer(events_to=str(tmp_path / "events")) as running, Visitor(running) as visitor:
        assert "Recorded 0 Waiting 0 Dropped 0 Failed exports 0" in visitor.get("/console/health").text


# Every page reports an unavailable store.


NEED_NO_STORE = {"settings", "health", "audit"}


class Store:
    """Whether the store is unavailable, and after which command it becomes so."""

    is_gone = False
    goes_with: type[Command] | None = None


@pytest.fixture(scope="module")
def failing() -> Iterator[RunningServer]:
    """A server with a queue, whose store fails according to `Store`."""
    submit = SqliteStore.submit

    def submit_or_fail(engine: SqliteStore, command: Command, done: Done) -> None:
        if Store.is_gone:
            done(StoreUnavailable())
            return
        submit(engine, command, done)
        Store.is_gone = type(command) is Store.goes_with

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqliteStore, "submit", submit_or_fail)
        with RunningServer() as running:
            sqs: Any = boto.client(running.endpoint)
            url = sqs.create_queue(QueueName="orders")["QueueUrl"]
            for body in ("a body to be read", "a", "b"):
                sqs.send_message(QueueUrl=url, MessageBody=body)
            yield running
            Store.is_gone = False


@pytest.fixture
def served(failing: RunningServer) -> Iterator[Visitor]:
    with Visitor(failing) as visiting:
        yield visiting
    Store.is_gone, Store.goes_with = False, None


@pytest.mark.parametrize("name", sorted(addresses("orders").keys() - {"login", "queue-new"}))
def test_a_page_reports_an_unavailable_store(served: Visitor, name: str) -> None:
    Store.is_gone = True
    seen = served.get(addresses("orders")[name])
    if name in NEED_NO_STORE:
        assert seen.status == 200
    else:
        assert (seen.status, str(StoreUnavailable()) in seen.text) == (503, True), seen.text


def test_received_messages_are_shown_even_if_the_store_fails_then(served: Visitor) -> None:
    """They are in flight, and their receipts are nowhere else."""
    Store.goes_with = Receive
    seen = served.post(f"/console/queues/{ACCOUNT}/orders/messages", do="receive", count="1")
    assert "a body to be read" in seen.text
    assert 'name="receipt.' in seen.html


@pytest.mark.parametrize(
    ("do", "done", "last"), [("delete", "deleted", Delete), ("release", "released", ChangeVisibility)]
)
def test_the_outcomes_before_a_failure_are_shown(
    failing: RunningServer, served: Visitor, do: str, done: str, last: type[Command]
) -> None:
    name = f"many-{do}"
    queue = failing.queue(name)
    for number in range(12):
        queue.send(f"m{number}")
    for _ in range(2):
        page = served.post(f"/console/queues/{ACCOUNT}/{name}/messages", do="receive", count="10")
    Store.goes_with = last
    page = served.get(f"/console/queues/{ACCOUNT}/{name}/messages?state=in-flight")
    seen = act(served, page, do, leases=_CHOICE.findall(page.html), confirmed=True)
    assert f"{done}-10.failed-2" in seen.path, seen.text
    Store.is_gone, Store.goes_with = False, None
    text = served.get(seen.path).text
    assert f"{done.title()}: 10." in text
    assert "Not changed, or the outcome is unknown: 2." in text


def test_an_outcome_is_shown_when_the_store_is_available_again(served: Visitor) -> None:
    page = served.post(f"/console/queues/{ACCOUNT}/orders/messages", do="receive", count="2")
    Store.goes_with = Delete
    seen = act(served, page, "delete", leases=_CHOICE.findall(page.html)[:1])
    assert (seen.status, "deleted-1" in seen.path) == (503, True)
    Store.is_gone, Store.goes_with = False, None
    assert "Deleted: 1." in served.get(seen.path).text
