"""The pages of the documentation: their code runs, and their tables match the product."""

import ast
import asyncio
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import urllib3

import pytest_veilmq
from tests.conftest import need
from tests.consumer import acting
from tests.consumer.simulation import received
from tests.consumer.workbench import until
from tests.server.push_receiver import receiving
from tests.store.postgres_host import connected
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient
from veilmq.consumer import Consumer, HandlerOptions, Running, clock
from veilmq.consumer.forwarding_rules import read_rules
from veilmq.consumer.handlers import HOOKS, Hooks
from veilmq.consumer.metrics import EVENTS
from veilmq.consumer.status import consumer_metrics
from veilmq.core import limits
from veilmq.core.claims import Published, WriterView
from veilmq.core.settings import QueueSettings
from veilmq.server.settings import AllowList
from veilmq.testing import RunningServer, SystemClock, faults
from veilmq.testing.faults import Fault
from veilmq.wire.smq.errors import CODES
from veilmq.wire.smq.queues import ATTRIBUTES
from veilmq.wire.smq.routes import ROUTES as SMQ_ROUTES
from veilmq.wire.sqs.queue_attributes import SETTINGS
from veilmq.wire.v1.publications import OutgoingRow
from veilmq.wire.v1.queues import (
    RANGES,
    InspectFields,
    Lease,
    LeaseFields,
    ListedMessage,
    PeekedRow,
    PeekFields,
    SettingFields,
)
from veilmq.wire.v1.routes import ROUTES

SITE = ROOT / "build" / "docs"
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The resources, links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if place := given.get("id"):
            self.places.add(place)
        if tag == "a" and (target := given.get("href")):
            self.links.append(target)
        if (attribute := LOADED.get(tag)) and (source := given.get(attribute)):
            self.loaded.append(source)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    need((SITE / "index.html").exists(), "the site (make docs)")
    return {path: Page(path) for path in SITE.rglob("*.html")}


def dead(pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc and not _leads(pages, path, unquote(parts.path), parts.fragment):
                yield f"{path.name}: {link}"


def _leads(pages: dict[Path, Page], path: Path, target: str, place: str) -> bool:
    there = (path.parent / target).resolve() if target else path
    return there.exists() and (not place or there not in pages or unquote(place) in pages[there].places)


def test_the_site_has_every_page(pages: dict[Path, Page]) -> None:
    expected = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert expected <= {path.relative_to(SITE) for path in pages}


def test_the_site_has_no_dead_links(pages: dict[Path, Page]) -> None:
    assert list(dead(pages)) == []


def test_the_site_loads_no_external_resources(pages: dict[Path, Page]) -> None:
    assert [source for page in pages.values() for source in page.loaded if urlsplit(source).netloc] == []


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(language: str, text: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def section_of(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server with the queues of the examples."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("jobs")
        client.create_queue("jobs-1h")
        yield running


# docs/consumer.md


CONSUMER = read("docs/consumer.md")


def test_the_first_program_of_the_consumer_page_works() -> None:
    program = next(block for block in blocks("python", CONSUMER) if block.startswith("from veilmq"))
    program, run = program.rstrip().rsplit("\n", 1)
    assert run == "raise SystemExit(app.run())"
    with RunningServer(clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders", {"receive_wait_s": 1})
        client.send("orders", "hello")
        names: dict[str, Consumer] = {}
        exec(program.replace("http://127.0.0.1:9324", server.endpoint), names)

        async def scenario() -> None:
            async with names["app"].running() as running:
                await until(lambda: running.runners[0].counts.events["acked"])
                for _ in range(2):
                    running.request_stop()

        asyncio.run(scenario())
        assert client.show("orders").in_flight == 0


def test_the_table_has_every_option_of_a_handler() -> None:
    named = re.findall(r"^\| `(\w+)` \|", section_of(CONSUMER, "Options of a handler"), re.MULTILINE)
    assert sorted(named) == sorted(HandlerOptions.__annotations__)


def test_the_consumer_page_has_every_metric_event_and_hook() -> None:
    app = Consumer("orders", endpoint="http://127.0.0.1:1")
    app.declare(acting.act_async)

    async def names() -> list[str]:
        connect = partial(HttpQueueClient, "http://127.0.0.1:1")
        running = Running(app, connect, clock.SystemClock(), hooks=Hooks(), grace_s=0)
        return [metric.name for metric in consumer_metrics(running.runners, running.renewals)]

    page = section_of(CONSUMER, "Watching")
    table = page.partition("**Spans.**")[0]
    for name in (*asyncio.run(names()), *EVENTS):
        assert f"`{name.removeprefix('veilmq_consumer_')}`" in table
    for name in HOOKS:
        assert f"`{name}`" in page


def test_the_test_of_handlers_passes(pytester: pytest.Pytester) -> None:
    (program,) = blocks("python", section_of(CONSUMER, "Tests without a server"))
    pytester.makepyfile(program)
    pytester.runpytest("-Werror").assert_outcomes(passed=program.count("def test_"))


# docs/forwarding.md


FORWARDING = read("docs/forwarding.md")


@pytest.mark.parametrize("source", ["page", "examples"])
def test_the_example_rules_route_messages(source: str) -> None:
    rules = read_rules(blocks("toml", FORWARDING)[0] if source == "page" else read("examples/routes.toml"))
    pages = json.dumps({"job": {"pages": 100}})
    assert rules.route(received(kind="video")).queue == "jobs-1h"
    assert rules.route(received(pages)).queue == "jobs-10min"
    assert rules.route(received(pages + " " * 65_536)).queue == "jobs-30s"
    assert rules.route(received(kind="text")).queue == "jobs-30s"
    assert rules.targets["jobs-1h"] == 3_600
    if source == "examples":
        assert rules.route(received(group="nightly-7")).queue == "jobs-10min"


def test_the_example_of_a_forward_request_works(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as client:
        client.send("jobs", "a")
        (message,) = client.receive("jobs")
    (body,) = blocks("json", FORWARDING)
    body = body.replace("…", message.receipt)
    reply = urllib3.request("POST", f"{server.endpoint}/v1/queues/000000000000/jobs/forward", body=body)
    forwarded, refused = reply.json()["entries"]
    (shown,) = re.findall(r'`(\{"id": .*?\})`', FORWARDING)
    assert forwarded == json.loads(shown) | {"id": message.id}
    assert refused["code"] == "ReceiptEnded"
    assert set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", FORWARDING, re.MULTILINE)) >= {("ReceiptEnded", "")}


# docs/known-failures-of-others.md: one section for each test of test_known_failures.py, in the same order.


FAILURES = re.split(r"^## ", read("docs/known-failures-of-others.md"), flags=re.MULTILINE)[1:]


def test_each_known_failure_has_a_section_and_a_test_of_the_same_number() -> None:
    nodes = ast.parse(read("tests/consumer/test_known_failures.py")).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    tests = [function for function in functions if function.name.startswith("test_")]
    named = [re.findall(r"^Test: `(\w+)`$", section, re.MULTILINE) for section in FAILURES]
    assert named == [[test.name] for test in tests]
    numbers = [int(section.partition(".")[0]) for section in FAILURES]
    in_tests = [int((ast.get_docstring(test) or "").partition(":")[0]) for test in tests]
    assert numbers == in_tests == [*range(1, 16)]


def test_each_known_failure_has_a_source_a_reason_and_a_remedy() -> None:
    for section in FAILURES:
        parts = re.findall(r"^\*\*(\w+)\*\*: ", section, re.MULTILINE)
        assert parts == ["Seen", "Why", "Here"], section.splitlines()[0]
        assert "https://github.com/" in section.partition("**Why**")[0], section.splitlines()[0]


# Generated pages.


def test_the_page_of_limits_is_generated_and_complete() -> None:
    text = read("docs/limits.md")
    assert text == runpy.run_path(str(ROOT / "scripts" / "limits_page.py"))["page"]()
    names = [name for name in vars(limits) if name.isupper() and name != "SECOND_MS"]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_tables_of_spark_options_are_generated() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "spark_options.py"))
    text = read("docs/spark.md")
    assert script["written"](text) == text
    assert [name for name in script["TABLES"] if f"<!-- options: {name} -->" not in text] == []


# docs/protocols/inspection.md


INSPECTION = [line for line in read("docs/protocols/inspection.md").splitlines() if line.startswith("| `")]
FIELDS = {"/v1/messages/{account}/{queue}": InspectFields, "/v1/leases/{account}/{queue}": LeaseFields}


@pytest.mark.parametrize("key", [key for key in ROUTES if b" messages/" in key or b" leases/" in key], ids=bytes.decode)
def test_the_page_has_every_inspection_route_with_its_parameters(key: bytes) -> None:
    route = ROUTES[key]
    (row,) = [row for row in INSPECTION if row.startswith(f"| `GET {route.path}` | {route.permission} |")]
    for field in FIELDS.get(route.path, PeekFields).__struct_fields__:
        assert f"`{field}`" in row


def test_the_page_has_every_field_of_an_inspection_reply() -> None:
    first = "".join(row.split(" | ")[0] for row in INSPECTION)
    for shown in (ListedMessage, PeekedRow, Lease):
        for field in shown.__struct_fields__:
            assert f"`{field}`" in first


# docs/operating-postgres.md


OPERATING = read("docs/operating-postgres.md")


def test_the_queries_for_operators_run(postgres_url: str) -> None:
    queries = blocks("sql", OPERATING)
    assert len(queries) > 4

    async def run() -> None:
        async with connected(postgres_url) as connection:
            for query in queries:
                await connection.fetch(query)

    asyncio.run(run())


def test_the_metrics_and_targets_for_operators_exist() -> None:
    for metric in set(re.findall(r"veilmq_store_[a-z_]+[a-z]", OPERATING)):
        assert metric in read("docs/server.md")
    for target in set(re.findall(r"`make ([a-z-]+)", OPERATING)):
        assert re.search(rf"^{target}:", read("Makefile"), re.MULTILINE)


# docs/protocols/publications.md


PUBLICATIONS = read("docs/protocols/publications.md")


def test_the_python_example_publishes_once(server: RunningServer) -> None:
    (example,) = blocks("python", PUBLICATIONS)
    exec(compile(example, "publications.md", "exec"), {"endpoint": server.endpoint})
    with HttpQueueClient(server.endpoint) as client:
        assert [message.body for message in client.receive("jobs", count=10, wait_s=0)] == ["a", "b", "c"]
        server.advance(60_000)
        assert "d" in [message.body for message in client.receive("jobs", count=10, wait_s=0)]


def test_the_curl_examples_of_publications_work(server: RunningServer) -> None:
    (console,) = blocks("console", PUBLICATIONS)
    calls = re.findall(r"\$ (curl .*?)\n(\{.*?\})\n", console.replace("\\\n", ""), re.DOTALL)
    assert len(calls) == 2
    for command, shown in calls:
        words = shlex.split(command.replace("$endpoint", server.endpoint))
        url, header, body = words[2], words[4], words[6]
        name, _, value = header.partition(": ")
        reply = urllib3.request("POST", url, body=body, headers={name: value})
        assert (reply.status, reply.json()) == (200, json.loads(shown))


def test_the_page_has_every_field_and_limit_of_publications() -> None:
    for struct in (OutgoingRow, Published, WriterView):
        for field in struct.__struct_fields__:
            assert f"`{field}`" in PUBLICATIONS, field
    assert f"up to {limits.STAGE_MESSAGES_MAX:,}" in PUBLICATIONS
    assert f"up to {limits.PUBLISH_ATTEMPTS_MAX:,}" in PUBLICATIONS
    assert f"{limits.WRITER_SILENCE_S // 86_400} days" in PUBLICATIONS


# docs/protocols/queues.md


QUEUES = read("docs/protocols/queues.md")


def test_the_example_creates_a_fifo_queue_with_a_name_of_smq() -> None:
    (example,) = blocks("python", QUEUES)
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("failed.fifo", {"fifo": True})
        exec(compile(example, "queues.md", "exec"), {"endpoint": server.endpoint})
        assert client.list_queues() == ["failed.fifo", "orders-in-order"]


def test_the_table_has_every_setting_with_its_range_and_attribute() -> None:
    rows = [line for line in QUEUES.splitlines() if line.startswith("| `")]
    for field in SettingFields.__struct_fields__:
        (row,) = [line for line in rows if f"`{field}`" in line.split(" | ")[0]]
        allowed = RANGES.get(field)
        if allowed is not None and "stored" not in row:
            least = 1 if field == "receives_max" else allowed.minimum  # 0 stands for no limit
            assert f"{least} to {allowed.maximum}" in row
            default = getattr(QueueSettings(), field)
            assert f"| {'`null`' if default is None else default} |" in row
    for name in SETTINGS:
        assert name in QUEUES or name.startswith("Kms"), name


def test_the_page_has_every_route_and_error_of_queues() -> None:
    for route in ROUTES.values():
        if route.noun == b"queues" and route.verb != b"forward":
            assert f"| `{route.method.decode()} {route.path}` | {route.permission} |" in QUEUES
            for error in route.errors:
                assert f"| `{error.__name__}` |" in QUEUES


# docs/protocols/smq.md


SMQ = read("docs/protocols/smq.md")
OTHERS = [read("docs/security.md"), read("docs/topics.md")]
NEVER = {"QueueDeletedRecently"}
"""Codes of the reference that no reply has."""


def smq_rows(name: str) -> list[str]:
    return re.findall(r"^\| `?(\w+)`? \|", section_of(SMQ, name), re.MULTILINE)[1:]


def test_the_smq_page_has_every_operation_on_queues_and_every_attribute() -> None:
    named = {route.name for route in SMQ_ROUTES.values() if not route.path.startswith("topics")}
    assert set(smq_rows("Operations")) == named
    assert smq_rows("Attributes of queues") == list(ATTRIBUTES)


def test_every_smq_code_is_documented() -> None:
    """With its status, or on the pages of signatures and topics."""
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", section_of(SMQ, "Errors"), re.MULTILINE))
    for code in CODES:
        pages = (table.get(str(code.status), ""), *OTHERS)
        assert any(f"`{code.name}`" in page for page in pages) is (code.name not in NEVER), code.name


def test_the_choices_of_the_smq_page_are_numbered() -> None:
    numbers = re.findall(r"^(\d+)\. \*\*", section_of(SMQ, "What was chosen"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 14))


# docs/testing.md


pytest_plugins = ["pytester"]

TESTING = read("docs/testing.md")


def test_the_test_suites_of_the_testing_page_pass(pytester: pytest.Pytester) -> None:
    programs = blocks("python", TESTING + read("packages/pytest-veilmq/README.md"))
    tests = sum(program.count("\ndef test_") + program.startswith("def test_") for program in programs)
    assert tests == len(programs)
    pytester.makepyfile(**{f"test_program_{number}": program for number, program in enumerate(programs)})
    pytester.runpytest("-Werror").assert_outcomes(passed=tests)


def test_the_testing_page_has_every_fixture_and_fault() -> None:
    named = set(re.findall(r"^\| `(veilmq_\w+)` \|", TESTING, re.MULTILINE))
    assert named == {name for name in vars(pytest_veilmq) if name.startswith("veilmq_")}
    named = set(re.findall(r"^\| `(\w+)[^`]*` \| (?:no|yes|later,.*|at once|the others) \|", TESTING, re.MULTILINE))
    values = {name for name, value in vars(faults).items() if isinstance(value, Fault)}
    factories = {
        name for name, value in vars(faults).items() if getattr(value, "__annotations__", {}).get("return") is Fault
    }
    assert named == values | factories


# docs/topics.md


TOPICS = read("docs/topics.md")


def test_the_topics_page_has_every_operation_on_topics() -> None:
    named = {route.name for route in SMQ_ROUTES.values() if route.path.startswith("topics")}
    assert set(re.findall(r"^\| `(\w+)` \| (?:`[A-Z]+ |the same)", TOPICS, re.MULTILINE)) == named


def test_the_example_publishes_to_a_queue_and_to_a_service(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python", TOPICS)
    with receiving() as receiver, RunningServer(push_allow=f"127.0.0.1:{receiver.port}") as server:
        program = example.replace("http://127.0.0.1:9324", server.endpoint).replace(":8080", f":{receiver.port}")
        names: dict[str, Any] = {}
        exec(program, names)
        server.wait_until(lambda: receiver.pushes)
        names["account"].mns_client.close_connection()
    assert "<Message>hello</Message>" in capsys.readouterr().out
    assert "<SubscriptionName>to-a-service</SubscriptionName>" in receiver.pushes[0].body


def test_the_example_of_allowed_hosts_is_valid() -> None:
    (text,) = re.findall(r'push_allow = "(.*)"', blocks("toml", TOPICS)[0])
    allowed = AllowList(text)
    assert allowed.allows_name("hooks.example.com", 80)
    assert allowed.allows_name("partner.example", 8443)
    assert not allowed.allows_name("partner.example", 80)
