"""What holds for every page: signing in and out, the tokens of forms, headers, assets."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.visitor import Visitor
from tests.server.keys import OWNER, REGION, SECRETS, TOKEN, client, set_policy, statement, written
from veilmq.console.assets import ASSETS, address_of
from veilmq.console.pages import PAGES
from veilmq.console.security_headers import HEADERS
from veilmq.testing import RunningServer

KEY = ("AKIDOWNER", SECRETS["AKIDOWNER"])


@pytest.fixture(scope="module")
def open_server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with RunningServer(credentials=path, account=OWNER) as running:
        yield running


def test_the_way_in_is_the_list_of_queues(open_server: RunningServer) -> None:
    with Visitor(open_server) as visitor:
        assert visitor.get("/").path == visitor.get("/console").path == "/console/queues"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if not page.open and "{" not in page.path], ids=lambda page: page.path
)
def test_whoever_has_not_signed_in_is_sent_to(server: RunningServer, page: object) -> None:
    with Visitor(server) as visitor:
        seen = visitor.get(page.path)  # type: ignore[attr-defined]
        assert seen.path.startswith("/console/login?next=")
        assert "Secret access key" in seen.text


def test_one_comes_back_to_the_page_that_one_wanted(server: RunningServer) -> None:
    with Visitor(server) as visitor:
        seen = visitor.post("/console/login", next="/console/queues?search=x", key_id=KEY[0], secret=KEY[1])
        assert (seen.status, seen.path) == (200, "/console/queues?search=x")


@pytest.mark.parametrize(
    "path", ["//elsewhere.example/console/", "https://elsewhere.example/", "/metrics", "/console/\\x", ""]
)
def test_signing_in_never_leads_elsewhere(server: RunningServer, path: str) -> None:
    with Visitor(server) as visitor:
        seen = visitor.post("/console/login", next=path, key_id=KEY[0], secret=KEY[1])
        assert (seen.status, seen.path) == (200, "/console/queues")


@pytest.mark.parametrize(
    ("key_id", "secret"),
    [("AKIDOWNER", "wrong"), ("AKIDOWNER", ""), ("AKIDNOBODY", SECRETS["AKIDOWNER"]), ("", ""), ("ASIDBOB", TOKEN)],
)
def test_a_wrong_key_keeps_the_form_and_says_so(server: RunningServer, key_id: str, secret: str) -> None:
    with Visitor(server) as visitor:
        seen = visitor.post("/console/login", key_id=key_id, secret=secret)
        assert seen.status == 403
        assert "There is no key with this id and secret" in seen.text
        assert visitor.get("/console/queues").path.startswith("/console/login")


def test_signing_out_ends_the_session(server: RunningServer) -> None:
    with Visitor(server, key=KEY) as visitor:
        seen = visitor.post("/console/logout", at="/console/queues")
        assert "You have signed out" in seen.text
        assert visitor.get("/console/queues").path.startswith("/console/login")


def test_a_session_ends_when_its_key_is_gone(tmp_path: Path) -> None:
    path = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=path) as running, Visitor(running, key=KEY) as visitor:
        written(path, path.read_text().replace("AKIDOWNER", "AKIDHEIR"))
        running.reload()
        assert visitor.get("/console/queues").path.startswith("/console/login")


def test_a_session_ends_when_its_key_has_a_new_secret(tmp_path: Path) -> None:
    path = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=path) as running, Visitor(running, key=KEY) as visitor:
        written(path, path.read_text().replace(SECRETS["AKIDOWNER"], "another"))
        running.reload()
        assert visitor.get("/console/queues").path.startswith("/console/login")


def test_nothing_is_taken_without_the_token_of_the_session(server: RunningServer) -> None:
    with Visitor(server, key=KEY) as visitor, Visitor(server, key=KEY) as other:
        assert visitor.send("/console/logout", {}).status == 403
        foreign = other.get("/console/queues").html.partition('name="csrf" value="')[2].partition('"')[0]
        refused = visitor.send("/console/logout", {"csrf": foreign})
        assert (refused.status, "Nothing was changed" in refused.text) == (403, True)
        assert visitor.get("/console/queues").path == "/console/queues"


def test_the_cookie_is_for_this_console_alone(server: RunningServer) -> None:
    with Visitor(server) as visitor:
        form = visitor.get("/console/login")
        cookie = form.headers["set-cookie"]
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=28800"):
        assert attribute in cookie


@pytest.mark.parametrize(
    "path", ["/console/queues", "/console/login", "/", "/console/nothing", "/console/assets/console.css"]
)
def test_every_answer_keeps_itself_to_itself(open_server: RunningServer, path: str) -> None:
    with Visitor(open_server) as visitor:
        headers = visitor.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS


def test_pages_are_not_stored_and_assets_are(open_server: RunningServer) -> None:
    with Visitor(open_server) as visitor:
        assert visitor.get("/console/queues").headers["cache-control"] == "no-store"
        for name, asset in ASSETS.items():
            seen = visitor.get(address_of(name))
            assert "immutable" in seen.headers["cache-control"]
            assert seen.html.encode() == asset.body
        assert visitor.get("/console/assets/../app.py").status == 404


def test_health_and_metrics_are_where_they_were(server: RunningServer) -> None:
    with Visitor(server) as visitor:
        assert visitor.get("/health/live").text == "alive"
        assert "veilmq_" in visitor.get("/metrics").html


def test_policies_see_the_browser(tmp_path: Path) -> None:
    path = written(tmp_path / "credentials.toml")
    user = ("AKIDCAROL", SECRETS["AKIDCAROL"])
    with (
        RunningServer(credentials=path, account=OWNER, region=REGION) as running,
        Visitor(running, key=user) as visitor,
    ):
        sqs = client(running)
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        condition = {"StringLike": {"aws:UserAgent": "Mozilla/*"}, "IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}
        rule = statement(
            Effect="Deny", Principal="*", Action="sqs:GetQueueAttributes", Resource="*", Condition=condition
        )
        set_policy(sqs, url, rule)
        page = f"/console/queues/{OWNER}/jobs"
        agents = {"Mozilla/5.0 (X11)": 403, "reader/1.0": 200}
        assert {agent: visitor.get(page, **{"User-Agent": agent}).status for agent in agents} == agents
