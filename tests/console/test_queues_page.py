"""The list of queues: search, order, pages, counts and permissions."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.visitor import Seen, Visitor
from tests.server.keys import FRIEND, REGION, client, written
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

LIST = "/console/queues"
ACCOUNT = "000000000000"


@pytest.fixture(scope="module")
def many() -> Iterator[RunningServer]:
    """A server with 120 queues; the first four have 0 to 3 messages."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as queues:
        for number in range(120):
            running.queue(f"q-{number:03}")
        for number in range(4):
            for each in range(number):
                queues.send(f"q-{number:03}", f"m{each}")
        yield running


@pytest.fixture
def visitor(many: RunningServer) -> Iterator[Visitor]:
    with Visitor(many) as someone:
        yield someone


def names(seen: Seen) -> list[str]:
    return re.findall(r'<tr data-queue="([^"]*)">', seen.html)


def figures(seen: Seen, queue: str) -> dict[str, str]:
    row = seen.html.partition(f'<tr data-queue="{queue}">')[2].partition("</tr>")[0]
    return {name: text.strip() for name, text in re.findall(r'data-figure="(\w+)">([^<]*)<', row)}


def test_a_page_has_fifty_queues(visitor: Visitor) -> None:
    seen = visitor.get(LIST)
    assert names(seen) == [f"q-{number:03}" for number in range(50)]
    assert "1 to 50 of 120 queues." in seen.text
    assert "Page 1 of 3" in seen.text
    assert f'href="{LIST}?page=2" rel="next"' in seen.html


@pytest.mark.parametrize(
    ("query", "first", "count", "text"),
    [
        ("page=3", "q-100", 20, "101 to 120 of 120"),
        ("page=2&size=100", "q-100", 20, "101 to 120 of 120"),
        ("page=999", "q-100", 20, "101 to 120 of 120"),
        ("size=200", "q-000", 120, "1 to 120 of 120"),
        ("descending=true&size=25", "q-119", 25, "1 to 25 of 120"),
        ("search=q-01", "q-010", 10, "1 to 10 of 10 queues with “q-01” in the name."),
        ("search=Q-01&size=25", "q-010", 10, "1 to 10 of 10"),
    ],
)
def test_the_list_is_paged_and_searched(visitor: Visitor, query: str, first: str, count: int, text: str) -> None:
    seen = visitor.get(f"{LIST}?{query}")
    assert (names(seen)[0], len(names(seen))) == (first, count)
    assert text in seen.text


def test_all_numbers_of_a_long_list_have_separators(server: RunningServer) -> None:
    for number in range(1_001):
        server.queue(f"q-{number:04}")
    with Visitor(server) as someone:
        assert "1,001 to 1,001 of 1,001 queues." in someone.get(f"{LIST}?size=200&page=6").text


def test_the_list_is_sorted_by_counts(visitor: Visitor) -> None:
    seen = visitor.get(f"{LIST}?sort=visible&descending=true")
    assert names(seen)[:3] == ["q-003", "q-002", "q-001"]
    assert figures(seen, "q-003")["visible"] == "3"
    assert 'aria-sort="descending" class="number"><a href="/console/queues?sort=visible">Visible' in seen.html
    assert seen.html.count('aria-sort="none"') == 7


def test_a_request_of_htmx_gets_only_the_table(visitor: Visitor) -> None:
    part = visitor.get(f"{LIST}?search=q-003&size=50&sort=name&descending=false", **{"HX-Request": "true"})
    assert part.html.lstrip().startswith('<div id="queues">')
    assert names(part) == ["q-003"]
    whole = visitor.get(LIST, **{"HX-Request": "true", "HX-History-Restore-Request": "true"})
    assert "<!doctype html>" in whole.html


def test_an_empty_search_result_escapes_the_search(visitor: Visitor) -> None:
    seen = visitor.get(f"{LIST}?search=%3Cscript%3E%22'")
    assert "No queue has “<script>\"'” in its name." in seen.text
    assert '<script>"' not in seen.html
    assert 'value="&lt;script&gt;&#34;&#39;"' in seen.html


def test_the_list_has_counts_rates_and_a_history(server: RunningServer) -> None:
    server.queue("jobs.fifo")
    with HttpQueueClient(server.endpoint) as queues, Visitor(server) as visitor:
        server.queue("jobs", visibility_timeout_s=600)
        queues.send("jobs", "later", delay_s=300)
        first = visitor.get(LIST)
        assert "FIFO" in first.text
        assert figures(first, "jobs.fifo")["oldest"] == "–"
        assert figures(first, "jobs")["sent"] == "–"
        assert "<polyline" not in first.html
        for number in range(20):
            queues.send("jobs", f"m{number}")
        queues.delete("jobs", queues.receive("jobs", count=10)[0].receipt)
        server.advance(10_000)
        seen = visitor.get(LIST)
    counts = {"visible": "10", "in_flight": "9", "delayed": "1", "oldest": "10 s"}
    rates = {"sent": "2.0", "received": "1.0", "deleted": "0.1"}
    assert figures(seen, "jobs") == {**counts, **rates, "history": ""}
    assert 'aria-label="From 0 to 10 in the last 10 s"' in seen.html


def test_the_empty_list_explains_how_to_create_a_queue(server: RunningServer) -> None:
    with Visitor(server) as visitor:
        seen = visitor.get(LIST)
    assert "No queues yet." in seen.text
    assert f"aws --endpoint-url {server.endpoint} sqs create-queue" in seen.text
    assert 'href="/console/queues/new"' in seen.html


def test_the_list_has_the_queues_of_the_account_and_the_counts_that_policies_allow(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        denied = {"Effect": "Deny", "Principal": "*", "Action": "sqs:GetQueueAttributes"}
        policy = json.dumps({"Statement": [denied]})
        client(server).create_queue(QueueName="secret", Attributes={"Policy": policy})
        client(server, "AKIDFRIEND").create_queue(QueueName="friendly")
        with Visitor(server, key="AKIDFRIEND") as friend:
            seen = friend.get(LIST)
            assert names(seen) == ["friendly"]
            assert f'href="/console/queues/{FRIEND}/friendly"' in seen.html
        with Visitor(server, key="AKIDCAROL") as carol:
            assert figures(carol.get(LIST), "secret")["visible"] == "–"
