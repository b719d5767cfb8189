"""The pages of claims: sources, claims and writers, and the changes of an operator, confirmed by the queue's name."""

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.console.visitor import Seen, Visitor, form_of
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims, Publications
from veilmq.testing import RunningServer
from veilmq.wire.v1.publications import OutgoingRow

URL = "{}/000000000000/jobs"
PAGE = "/console/claims/000000000000/jobs"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server with a queue of three messages, two of them in a claim."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("dead")
        client.create_queue("jobs", {"dead_letter_queue": "dead", "receives_max": 5})
        client.create_queue("idle")
        for body in ("a1", "<script>a2</script>", "a3"):
            client.send("jobs", body)
        with Claims(running.endpoint, client.queue_url("jobs")) as claims:
            claims.open("s-1", consumer="daily report", hold_s=3_600, lease_s=60)
            claims.claim("s-1", epoch=1, number=1, messages_max=2)
        yield running


def change(visitor: Visitor, verb: str, *, confirmation: str = "jobs", **fields: str) -> Seen:
    """Open the form of ``verb``, fill in the queue's name and submit it."""
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    form = form_of(visitor.get(f"{PAGE}/{verb}?{query}").html, f"{PAGE}/{verb}")
    return visitor.send(f"{PAGE}/{verb}", {**form, "confirmation": confirmation})


def test_the_list_has_the_queues_with_sources(visitor: Visitor) -> None:
    seen = visitor.get("/console/claims")
    assert (seen.status, "idle" in seen.text) == (200, False)
    assert "jobs daily report s-1 alive 1 2" in seen.text
    assert "daily report" in visitor.get("/console/claims?search=jo").text
    assert "No sources or writers in 1 queue." in visitor.get("/console/claims?search=idle").text
    assert visitor.get("/console/claims?search=%3Cb%3E").status == 200


def test_the_page_of_a_queue_has_its_sources_and_claims(server: RunningServer, visitor: Visitor) -> None:
    seen = visitor.get(PAGE)
    assert "daily report s-1" in seen.text
    assert "Reader alive Acknowledged 0 of 1 Epoch 1" in seen.text
    assert "open 2 1" in seen.text
    assert "in 1 h" in seen.text
    server.advance(seconds=61)
    assert "Reader silent" in visitor.get(PAGE).text
    server.advance(seconds=3_600)
    assert "lost" in visitor.get(PAGE).text


def test_the_pages_have_writers(server: RunningServer, visitor: Visitor) -> None:
    assert "This queue has no writers" in visitor.get(PAGE).text
    with Publications(server.endpoint, URL.format(server.endpoint)) as jobs:
        jobs.stage("w-1", batch=7, attempt="a", part=0, messages=[OutgoingRow(body="x"), OutgoingRow(body="y")])
    assert "w-1 none yet 0 0 2" in visitor.get(PAGE).text
    assert "jobs writer w-1 – – 2 staged" in visitor.get("/console/claims").text


def test_releasing_a_claim_makes_its_messages_visible(server: RunningServer, visitor: Visitor) -> None:
    seen = change(visitor, "release", source="s-1", number="1")
    assert (seen.status, seen.path) == (200, f"{PAGE}?done=claim-released")
    assert "The claim was released" in seen.text
    assert "claims/release jobs 000000000000 source: s-1 number: 1 done" in visitor.get("/console/audit").text
    with HttpQueueClient(server.endpoint) as client:
        assert client.show("jobs").visible == 3


@pytest.mark.parametrize(("verb", "number"), [("release", "1"), ("evict", "1"), ("close", "")])
def test_changes_require_the_name_of_the_queue(server: RunningServer, visitor: Visitor, verb: str, number: str) -> None:
    seen = change(visitor, verb, confirmation="job", source="s-1", number=number)
    assert seen.status == 422
    assert "so nothing was changed" in seen.text
    with Claims(server.endpoint, URL.format(server.endpoint)) as claims:
        ((source,),) = [claims.sources()]
        assert [claim.messages for claim in source.claims] == [2]


def test_evicting_a_message_moves_it_to_the_dead_letter_queue(server: RunningServer, visitor: Visitor) -> None:
    form = visitor.get(f"{PAGE}/evict?source=s-1&number=1")
    assert "<script>a2</script>" in form.text
    assert "<script>a2" not in form.html
    link = form.html.partition("&amp;message=")[2].partition('"')[0]
    seen = change(visitor, "evict", source="s-1", number="1", message=link)
    assert "The message was moved from the claim" in seen.text
    with HttpQueueClient(server.endpoint) as client:
        assert client.show("dead").visible == 1
    invalid = change(visitor, "evict", source="s-1", number="1", message="nothing")
    assert (invalid.status, "Message id" in invalid.text) == (400, True)


def test_closing_deletes_a_source(server: RunningServer, visitor: Visitor) -> None:
    assert "The source was closed" in change(visitor, "close", source="s-1").text
    assert "This queue has no sources" in visitor.get(PAGE).text


@pytest.mark.parametrize("path", ["release?source=s-2&number=1", "evict?source=s-2&number=1", "close?source=%3Cb%3E"])
def test_a_missing_source_is_an_error(visitor: Visitor, path: str) -> None:
    seen = visitor.get(f"{PAGE}/{path}")
    assert "The source does not exist" in seen.text
    assert "<b>" not in seen.html


@pytest.mark.parametrize("number", ["", "x", "-1", "9" * 40, "٣"])
def test_an_invalid_number_is_refused(visitor: Visitor, number: str) -> None:
    token = form_of(visitor.get(f"{PAGE}/release?source=s-1&number=1").html, f"{PAGE}/release")["csrf"]
    fields = {"csrf": token, "confirmation": "jobs", "source": "s-1", "number": number}
    assert visitor.send(f"{PAGE}/release", fields).status == 422
    for verb in ("release", "evict"):
        assert "None" not in visitor.get(f"{PAGE}/{verb}?source=s-1&{urlencode({'number': number})}").text
