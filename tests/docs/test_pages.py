"""What pages of the site promise: their code runs, their tables are those of the product."""

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
from veilmq.consumer.forwarding_rules import Rules, read_rules
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
    """What a page loads and links to, and the places in it."""

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


def test_every_page_is_there(pages: dict[Path, Page]) -> None:
    told = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert told <= {path.relative_to(SITE) for path in pages}


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    assert list(dead(pages)) == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    outside = {source for page in pages.values() for source in page.loaded if urlsplit(source).netloc}
    assert outside == set()


# The page of consumers says what there is: its first program works, its tables are the options, hooks and endings.


CONSUMER = (ROOT / "docs" / "consumer.md").read_text(encoding="utf-8")


def of_consumer(title: str) -> str:
    return CONSUMER.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_whole_program_works() -> None:
    (program,) = re.findall(r"```python\n(from veilmq.*?)```", CONSUMER.partition("\n## ")[0], re.DOTALL)
    program, run = program.rstrip().rsplit("\n", 1)
    assert run == "app.run()"
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


def test_the_table_of_options_is_complete() -> None:
    named = re.findall(r"^\| `(\w+)` \|", of_consumer("Options of a handler"), re.MULTILINE)
    assert sorted(named) == sorted(HandlerOptions.__annotations__)


def test_the_metrics_and_events_are_named() -> None:
    app = Consumer("orders", endpoint="http://127.0.0.1:1")
    app.declare(acting.act_async)

    async def names() -> list[str]:
        connect = partial(HttpQueueClient, "http://127.0.0.1:1")
        running = Running(app, connect, clock.SystemClock(), hooks=Hooks(), grace_s=0)
        return [metric.name for metric in consumer_metrics(running.runners, running.renewals)]

    table = of_consumer("Watching").partition("**Spans.**")[0]
    for name in (*asyncio.run(names()), *EVENTS):
        assert f"`{name.removeprefix('veilmq_consumer_')}`" in table


def test_the_test_of_handlers_passes(pytester: pytest.Pytester) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", of_consumer("Tests without a server"), re.DOTALL)
    pytester.makepyfile(program)
    pytester.runpytest("-Werror").assert_outcomes(passed=program.count("def test_"))


def test_the_hooks_are_named() -> None:
    for name in HOOKS:
        assert f"`{name}`" in of_consumer("Watching")


# The rules on the page of forwarding and in the examples are rules, and the call by hand answers as the page says.


FORWARDING = (ROOT / "docs" / "forwarding.md").read_text(encoding="utf-8")


def on_the_page() -> Rules:
    (shown,) = re.findall(r"```toml\n(.*?)```", FORWARDING, re.DOTALL)
    return read_rules(shown)


def in_the_examples() -> Rules:
    return read_rules((ROOT / "examples" / "routes.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("rules", [on_the_page, in_the_examples])
def test_the_rules_route_as_they_say(rules: object) -> None:
    assert callable(rules)
    chosen = rules()
    pages = json.dumps({"job": {"pages": 100}})
    assert chosen.route(received(kind="video")).queue == "jobs-1h"
    assert chosen.route(received(pages)).queue == "jobs-10min"
    assert chosen.route(received(pages + " " * 65_536)).queue == "jobs-30s"
    assert chosen.route(received(kind="text")).queue == "jobs-30s"
    assert chosen.targets["jobs-1h"] == 3_600


def test_the_examples_have_a_rule_for_a_group() -> None:
    assert in_the_examples().route(received(group="nightly-7")).queue == "jobs-10min"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("jobs")
        client.create_queue("jobs-1h")
        yield running


def test_the_call_by_hand_has_the_members_of_the_page(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as client:
        client.send("jobs", "a")
        (message,) = client.receive("jobs")
    (body,) = re.findall(r"```json\n(.*?)```", FORWARDING, re.DOTALL)
    body = body.replace("…", message.receipt)
    answer = urllib3.request("POST", f"{server.endpoint}/v1/queues/000000000000/jobs/forward", body=body)
    forwarded, refused = answer.json()["entries"]
    (shown,) = re.findall(r'`(\{"id": .*?\})`', FORWARDING)
    assert forwarded == json.loads(shown) | {"id": message.id}
    assert refused["code"] == "ReceiptEnded"
    assert set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", FORWARDING, re.MULTILINE)) >= {("ReceiptEnded", "")}


# The page of what others' users complain about, and the tests of it: one section for each test, in the same order.


COMPLAINED = ROOT / "docs" / "known-failures-of-others.md"
OF_COMPLAINTS = ROOT / "tests" / "consumer" / "test_known_failures.py"
COMPLAINTS = 15


def sections() -> list[str]:
    return re.split(r"^## ", COMPLAINED.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def functions() -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(OF_COMPLAINTS.read_text(encoding="utf-8"))
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def test_each_section_names_its_test_and_no_test_is_without() -> None:
    named = [re.findall(r"^Test: `(\w+)`$", section, re.MULTILINE) for section in sections()]
    assert named == [[test.name] for test in functions()]
    assert len(named) == COMPLAINTS


def test_sections_and_tests_have_the_same_numbers() -> None:
    numbers = [int(section.partition(".")[0]) for section in sections()]
    told = [int((ast.get_docstring(test) or "").partition(":")[0]) for test in functions()]
    assert numbers == told == [*range(1, COMPLAINTS + 1)]


def test_each_section_says_what_was_seen_where_and_why_and_what_is_done() -> None:
    for section in sections():
        parts = re.findall(r"^\*\*(\w+)\*\*: ", section, re.MULTILINE)
        assert parts == ["Seen", "Why", "Here"], section.splitlines()[0]
        assert "https://github.com/" in section.partition("**Why**")[0], section.splitlines()[0]


# The page of limits is written from the file of limits.


def test_the_page_is_what_the_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "limits_page.py"))
    assert (ROOT / "docs" / "limits.md").read_text(encoding="utf-8") == script["page"]()


def test_every_limit_is_on_the_page() -> None:
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    names = [name for name in vars(limits) if name.isupper() and name != "SECOND_MS"]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in text] == []


# The page of looks has every route, with its permission, its parameters and the fields of its answer.


LOOKS = ROOT / "docs" / "protocols" / "inspection.md"
LOOKS_ROWS = [line for line in LOOKS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
FIELDS = {"/v1/messages/{account}/{queue}": InspectFields, "/v1/leases/{account}/{queue}": LeaseFields}


@pytest.mark.parametrize("key", [key for key in ROUTES if b" messages/" in key or b" leases/" in key], ids=bytes.decode)
def test_every_route_is_there_with_its_parameters(key: bytes) -> None:
    route = ROUTES[key]
    (row,) = [row for row in LOOKS_ROWS if row.startswith(f"| `GET {route.path}` | {route.permission} |")]
    for field in FIELDS.get(route.path, PeekFields).__struct_fields__:
        assert f"`{field}`" in row


def test_every_field_of_an_answer_is_there() -> None:
    first = "".join(row.split(" | ")[0] for row in LOOKS_ROWS)
    for shown in (ListedMessage, PeekedRow, Lease):
        for field in shown.__struct_fields__:
            assert f"`{field}`" in first


# The page for operators of databases: its queries run, and what it names is there.


OPERATING = (ROOT / "docs" / "operating-postgres.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```sql\n(.*?)^```", OPERATING, re.MULTILINE | re.DOTALL)
METRICS = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_queries_run(query: str, postgres_url: str) -> None:
    async def ask() -> list[Any]:
        async with connected(postgres_url) as connection:
            rows: list[Any] = await connection.fetch(query)
            return rows

    asyncio.run(ask())


def test_there_are_queries() -> None:
    assert len(QUERIES) > 4


@pytest.mark.parametrize("metric", sorted(set(re.findall(r"veilmq_store_[a-z_]+[a-z]", OPERATING))))
def test_metrics_are_those_of_the_server(metric: str) -> None:
    assert metric in METRICS


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)", OPERATING))))
def test_targets_are_there(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


# The examples of the page of publications do what they say.


PUBLICATIONS = ROOT / "docs" / "protocols" / "publications.md"
PUBLICATIONS_TEXT = PUBLICATIONS.read_text(encoding="utf-8")


@pytest.fixture
def publishing() -> Iterator[RunningServer]:
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("jobs")
        yield running


def test_the_python_example_publishes_once(publishing: RunningServer) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PUBLICATIONS_TEXT, re.DOTALL)
    exec(compile(example, str(PUBLICATIONS), "exec"), {"endpoint": publishing.endpoint})
    with HttpQueueClient(publishing.endpoint) as client:
        assert [message.body for message in client.receive("jobs", count=10, wait_s=0)] == ["a", "b", "c"]
        publishing.advance(60_000)
        assert "d" in [message.body for message in client.receive("jobs", count=10, wait_s=0)]


def test_the_calls_by_hand_answer_what_the_page_shows(publishing: RunningServer) -> None:
    (console,) = re.findall(r"```console\n(.*?)```", PUBLICATIONS_TEXT, re.DOTALL)
    calls = re.findall(r"\$ (curl .*?)\n(\{.*?\})\n", console.replace("\\\n", ""), re.DOTALL)
    assert len(calls) == 2
    for command, answer in calls:
        words = shlex.split(command.replace("$endpoint", publishing.endpoint))
        url, header, body = words[2], words[4], words[6]
        name, _, value = header.partition(": ")
        reply = urllib3.request("POST", url, body=body, headers={name: value})
        assert (reply.status, json.loads(reply.data)) == (200, json.loads(answer))


def test_the_tables_name_every_field_and_limit() -> None:
    for struct in (OutgoingRow, Published, WriterView):
        for field in struct.__struct_fields__:
            assert f"`{field}`" in PUBLICATIONS_TEXT, field
    assert f"up to {limits.STAGE_MESSAGES_MAX:,}" in PUBLICATIONS_TEXT
    assert f"up to {limits.PUBLISH_ATTEMPTS_MAX:,}" in PUBLICATIONS_TEXT
    assert f"{limits.WRITER_SILENCE_S // 86_400} days" in PUBLICATIONS_TEXT


# The page of queues' settings: its example does what it says, its table has every setting with its range.


QUEUES = ROOT / "docs" / "protocols" / "queues.md"
QUEUES_TEXT = QUEUES.read_text(encoding="utf-8")


def test_the_example_makes_a_fifo_queue_that_sqs_cannot_name() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", QUEUES_TEXT, re.DOTALL)
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("failed.fifo", {"fifo": True})
        exec(compile(example, str(QUEUES), "exec"), {"endpoint": server.endpoint})
        assert client.list_queues() == ["failed.fifo", "orders-in-order"]


def test_the_table_names_every_setting_its_range_and_its_attribute() -> None:
    rows = [line for line in QUEUES_TEXT.splitlines() if line.startswith("| `")]
    for field in SettingFields.__struct_fields__:
        (row,) = [line for line in rows if f"`{field}`" in line.split(" | ")[0]]
        allowed = RANGES.get(field)
        if allowed is not None and "stored" not in row:
            least = 1 if field == "receives_max" else allowed.minimum  # and 0 for none
            assert f"{least} to {allowed.maximum}" in row
            default = getattr(QueueSettings(), field)
            assert f"| {'`null`' if default is None else default} |" in row
    for name in SETTINGS:
        assert name in QUEUES_TEXT or name.startswith("Kms"), name


def test_every_route_and_every_error_is_on_the_page() -> None:
    for route in ROUTES.values():
        if route.noun == b"queues" and route.verb != b"forward":
            place = f"`{route.method.decode()} {route.path}`"
            assert f"| {place} | {route.permission} |" in QUEUES_TEXT
            for error in route.errors:
                assert f"| `{error.__name__}` |" in QUEUES_TEXT


# The page of SMQ names all that there is: operations, attributes, codes.


SMQ = (ROOT / "docs" / "protocols" / "smq.md").read_text(encoding="utf-8")
OTHERS = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("security.md", "topics.md")]
NEVER = {"QueueDeletedRecently"}
"""Codes of the reference that nothing is answered with."""


def of_smq(name: str) -> str:
    return SMQ.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def rows(name: str) -> list[str]:
    return re.findall(r"^\| `?(\w+)`? \|", of_smq(name), re.MULTILINE)[1:]


def test_every_operation_on_queues_has_a_row() -> None:
    named = {route.name for route in SMQ_ROUTES.values() if not route.path.startswith("topics")}
    assert set(rows("Operations")) == named


def test_every_attribute_has_a_row() -> None:
    assert rows("Attributes of queues") == list(ATTRIBUTES)


def test_every_code_is_on_a_page() -> None:
    """With its status; those of signatures and topics are on theirs."""
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", of_smq("Errors"), re.MULTILINE))
    for code in CODES:
        told = f"`{code.name}`" in table.get(str(code.status), "") or any(f"`{code.name}`" in page for page in OTHERS)
        assert told is (code.name not in NEVER), code.name


def test_each_choice_of_the_reference_is_told() -> None:
    numbers = re.findall(r"^(\d+)\. \*\*", of_smq("What was chosen"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 14))


# The tables of options on the page of Spark are written from the code.


def test_the_tables_are_what_the_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "spark_options.py"))
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert script["written"](text) == text
    assert [name for name in script["TABLES"] if f"<!-- options: {name} -->" not in text] == []


# The page on testing: its programs are suites that pass, and its tables name what there is.


pytest_plugins = ["pytester"]

TESTING = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
KIT = (ROOT / "packages" / "pytest-veilmq" / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TESTING + KIT, re.MULTILINE | re.DOTALL)


def test_programs(pytester: pytest.Pytester) -> None:
    tests = sum(program.count("\ndef test_") + program.startswith("def test_") for program in PROGRAMS)
    assert tests == len(PROGRAMS)
    pytester.makepyfile(**{f"test_program_{number}": program for number, program in enumerate(PROGRAMS)})
    pytester.runpytest("-Werror").assert_outcomes(passed=tests)


def test_fixtures() -> None:
    told = set(re.findall(r"^\| `(veilmq_\w+)` \|", TESTING, re.MULTILINE))
    assert told == {name for name in vars(pytest_veilmq) if name.startswith("veilmq_")}


def test_faults() -> None:
    told = set(re.findall(r"^\| `(\w+)[^`]*` \| (?:no|yes|later,.*|at once|the others) \|", TESTING, re.MULTILINE))
    values = {name for name, value in vars(faults).items() if isinstance(value, Fault)}
    makers = {
        name for name, value in vars(faults).items() if getattr(value, "__annotations__", {}).get("return") is Fault
    }
    assert told == values | makers


# The page of topics: its example runs, and it names every operation and every header.


TOPICS = (ROOT / "docs" / "topics.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", TOPICS, re.DOTALL)
    assert isinstance(text, str)
    return text


def test_every_operation_on_topics_has_a_row() -> None:
    named = {route.name for route in SMQ_ROUTES.values() if route.path.startswith("topics")}
    assert set(re.findall(r"^\| `(\w+)` \| (?:`[A-Z]+ |the same)", TOPICS, re.MULTILINE)) == named


def test_the_example_publishes_to_a_queue_and_to_a_service() -> None:
    with receiving() as receiver, RunningServer(push_allow=f"127.0.0.1:{receiver.port}") as server:
        program = (
            block("python").replace("http://127.0.0.1:9324", server.endpoint).replace(":8080", f":{receiver.port}")
        )
        names: dict[str, Any] = {}
        exec(program, names)
        server.wait_until(lambda: receiver.pushes)
        with HttpQueueClient(server.endpoint) as queues:
            (got,) = queues.receive("jobs")
        names["account"].mns_client.close_connection()
    assert "<Message>hello</Message>" in got.body
    assert "<SubscriptionName>to-a-service</SubscriptionName>" in receiver.pushes[0].body


def test_the_list_of_the_page_is_one() -> None:
    (text,) = re.findall(r'push_allow = "(.*)"', block("toml"))
    allowed = AllowList(text)
    assert allowed.allows_name("hooks.example.com", 80)
    assert allowed.allows_name("partner.example", 8443)
    assert not allowed.allows_name("partner.example", 80)
