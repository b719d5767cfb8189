"""A newcomer's questions, and that the front page of the docs is at most two clicks from each answer.

A click follows a link of a page, or one to a heading in the contents that the site and code hosts show beside a page.
The sources are read, so that the menu of the site, which leads from everywhere to everywhere, does not count.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

DOCS = ROOT / "docs"
FRONT = DOCS / "index.md"
CLICKS_MAX = 2
INCLUDED = {DOCS / "architecture.md": ROOT / "ARCHITECTURE.md", DOCS / "contributing.md": ROOT / "CONTRIBUTING.md"}

QUESTIONS = {
    "How do I start a server?": ("tutorials/boto3.md#start-a-server", "veilmq serve"),
    "What do I set in my SQS client?": ("clients.md#what-to-set", "AWS_ENDPOINT_URL_SQS"),
    "How do I keep a message for longer?": (
        "tutorials/boto3.md#when-work-takes-longer-or-fails",
        "change_message_visibility",
    ),
    "What becomes of a message whose consumer crashes?": ("lifecycle.md#states", "the lease ends"),
    "How do I test my code without waiting for timeouts?": ("testing.md#time", "advance"),
    "How do I test that my code survives a failing server?": ("testing.md#faults", "faults"),
    "What do I lose when the server crashes?": ("stores.md#what-a-crash-may-undo", "acknowledged sends"),
    "How do I run several servers?": ("operating-postgres.md#nodes", "any number of nodes"),
    "How do I make a backup?": ("operating-postgres.md#backups", "veilmq backup"),
    "How do I require keys?": ("security.md#accounts-and-keys", "[[accounts.keys]]"),
    "How do I turn on TLS?": ("security.md#tls", "tls_certificate"),
    "Which metrics are there?": ("server.md#health-and-metrics", "veilmq_"),
    "Which settings does the server have?": ("settings.md#all-settings", "`port`"),
    "How do I retry a message later?": ("consumer.md#how-a-message-ends", "RetryLater"),
    "How do I keep messages in order?": ("fifo.md#order", "in the order in which they were sent"),
    "What happens to messages that always fail?": ("dead-letters.md#when-a-message-is-moved", "receives_max"),
    "Is an action of SQS implemented?": ("protocols/sqs.md#actions", "`ReceiveMessage`"),
    "How large may a message be?": ("limits.md#the-widest-values-of-all-protocols", "`MESSAGE_BYTES`"),
    "How do I read a queue with Spark exactly once?": ("spark.md#a-stream-exactly-once", "exactly one batch"),
    "Which visibility timeout should my queue have?": ("pipeline.md#tune", "recommend"),
    "When is another queue the better choice?": ("comparison.md#when-to-take-another", "Amazon SQS"),
    "Where in the source is a rule?": ("architecture.md#where-a-rule-is", "core/limits.py"),
}

_LINK = re.compile(r"\]\(([^)\s:]+)\)")
_HEADING = re.compile(r"^#{2,4} (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@cache
def text(page: Path) -> str:
    return INCLUDED.get(page, page).read_text(encoding="utf-8")


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> Iterator[str]:
    """Yield where `page` leads: a page, or a page with an anchor."""
    prose = _FENCE.sub("", text(page))
    for target in _LINK.findall(prose):
        path, _, place = target.partition("#")
        there = (INCLUDED.get(page, page).parent / path).resolve() if path else page
        yield f"{there}#{place}" if place else str(there)
    yield from (f"{page}#{anchor(heading)}" for heading in _HEADING.findall(prose))


def clicks() -> dict[str, int]:
    """Return how far each page, and each heading, is from the front page, up to `CLICKS_MAX`."""
    found = {str(FRONT): 0}
    for distance in range(1, CLICKS_MAX + 1):
        for place in [place for place, before in found.items() if before == distance - 1]:
            page = Path(place.partition("#")[0])
            if page.suffix == ".md" and page.is_relative_to(DOCS):
                for target in links(page):
                    found.setdefault(target, distance)
    return found


def section(page: Path, place: str) -> str:
    """Return the text below the heading, its fences too, up to the next heading of the same or a higher level."""
    heading = next(each for each in re.finditer(r"^(#+) (.+)$", text(page), re.MULTILINE) if anchor(each[2]) == place)
    rest = text(page)[heading.end() :]
    following = re.search(
        rf"^#{{1,{len(heading[1])}}} ", _FENCE.sub(lambda block: "`" * len(block[0]), rest), re.MULTILINE
    )
    return rest[: following.start()] if following else rest


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_is_two_clicks_away(question: str) -> None:
    target, answer = QUESTIONS[question]
    path, _, place = target.partition("#")
    assert answer in section(DOCS / path, place)
    assert clicks().get(f"{DOCS / path}#{place}", CLICKS_MAX + 1) <= CLICKS_MAX


def test_the_front_page_leads_to_every_page() -> None:
    found = clicks()
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"]
    assert [page.name for page in pages if str(page) not in found] == []
