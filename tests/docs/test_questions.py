"""Questions of newcomers have answers within two clicks of the front page; pages for users of other libraries.

A click follows a link of a page, or a heading in the table of contents beside it. The test reads the Markdown sources,
so the menu of the site, which links to every page, does not count.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.clients.program import packages
from tests.conftest import EVERYTHING
from tests.tidy.tree import ROOT, SRC
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer, SystemClock

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
    "How do I make a backup?": ("cli.md#veilmq-backup", "To restore"),
    "How do I move my queues from Amazon SQS?": ("declared-queues.md#queues-of-amazon-sqs", "get_queue_attributes"),
    "How do I require keys?": ("security.md#accounts-and-keys", "[[accounts.keys]]"),
    "How do I turn on TLS?": ("security.md#tls", "tls_certificate"),
    "How does a client trust my certificate?": ("security.md#tls", "AWS_CA_BUNDLE"),
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
    """Yield the targets of links of `page`: pages, and pages with an anchor."""
    prose = _FENCE.sub("", text(page))
    for target in _LINK.findall(prose):
        path, _, place = target.partition("#")
        there = (INCLUDED.get(page, page).parent / path).resolve() if path else page
        yield f"{there}#{place}" if place else str(there)
    yield from (f"{page}#{anchor(heading)}" for heading in _HEADING.findall(prose))


def clicks() -> dict[str, int]:
    """Return the distance of pages and headings from the front page, up to `CLICKS_MAX`."""
    found = {str(FRONT): 0}
    for distance in range(1, CLICKS_MAX + 1):
        for place in [place for place, before in found.items() if before == distance - 1]:
            page = Path(place.partition("#")[0])
            if page.suffix == ".md" and page.is_relative_to(DOCS):
                for target in links(page):
                    found.setdefault(target, distance)
    return found


def section(page: Path, place: str) -> str:
    """Return the text below the heading, up to the next heading of the same or a higher level."""
    heading = next(each for each in re.finditer(r"^(#+) (.+)$", text(page), re.MULTILINE) if anchor(each[2]) == place)
    rest = text(page)[heading.end() :]
    following = re.search(
        rf"^#{{1,{len(heading[1])}}} ", _FENCE.sub(lambda block: "`" * len(block[0]), rest), re.MULTILINE
    )
    return rest[: following.start()] if following else rest


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_to_a_question_is_two_clicks_away(question: str) -> None:
    target, answer = QUESTIONS[question]
    path, _, place = target.partition("#")
    assert answer in section(DOCS / path, place)
    assert clicks().get(f"{DOCS / path}#{place}", CLICKS_MAX + 1) <= CLICKS_MAX


def test_every_page_is_two_clicks_away() -> None:
    found = clicks()
    pages = [page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"]
    assert [page.name for page in pages if str(page) not in found] == []


# Pages for users of other libraries: the test runs the worker, the program that sends to it, and its test.


FOLDER = ROOT / "docs" / "coming-from"
PAGES = ("boto3", "celery", "dramatiq", "nservicebus")
_FILE = re.compile(r"`(?P<name>[\w.]+)`:\n\n```python\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_page_for_users_of_another_library_is_tested() -> None:
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.md"))) == PAGES


@pytest.mark.parametrize("name", ["celery", "dramatiq", "nservicebus"])
def test_both_programs_make_as_many_attempts(name: str) -> None:
    """Retries of other libraries do not count the first attempt."""
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    (retries,) = re.findall(r"(?:max_retries=|Immediate.*NumberOfRetries\()(\d+)", page)
    assert set(re.findall(r"attempts=(\d+)", page)) == {str(int(retries) + 1)}


@pytest.mark.parametrize(
    ("name", "client"), [("celery", "celery_sqs"), pytest.param("dramatiq", "dramatiq_sqs", marks=EVERYTHING)]
)
def test_the_other_library_accepts_its_program(name: str, client: str) -> None:
    (program, *_) = re.findall(r"^```python\n(.*?)^```", (FOLDER / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    environment = os.environ | packages(client) | {"AWS_DEFAULT_REGION": "us-east-1"}
    subprocess.run([sys.executable, "-S", "-P", "-c", program], env=environment, check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_programs_for_users_of_another_library_work(name: str, tmp_path: Path) -> None:
    """The worker prints what the page shows, and no message remains."""
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    files = {found["name"]: found["text"] for found in _FILE.finditer(page)}
    assert [*files] == ["shop.py", "order.py", "test_shop.py"]
    for file, text in files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    work, order = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    (printed,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    python = {"veilmq": [sys.executable, "-m", "veilmq"], "python": [sys.executable]}

    with RunningServer(clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        environment = os.environ | dict.fromkeys(("VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS"), server.endpoint)
        environment |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any")
        environment |= {"PYTHONPATH": str(SRC), "AWS_DEFAULT_REGION": "us-east-1"}

        def command(line: str) -> list[str]:
            program, *words = line.split()
            return [*python[program], *words]

        with subprocess.Popen(
            command(work), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as worker:
            try:
                server.wait_until(lambda: "orders" in client.list_queues())
                subprocess.run(command(order), cwd=tmp_path, env=environment, check=True, timeout=60)
                assert worker.stdout is not None
                assert "".join(worker.stdout.readline() for _ in printed.splitlines()) == printed
                server.wait_until(lambda: not any(_held(client, queue) for queue in client.list_queues()))
            finally:
                worker.terminate()
                _, log = worker.communicate(timeout=60)
        assert worker.returncode == 0, log
    words = [sys.executable, "-m", "pytest", "-q", "-Werror", "-p", "no:cacheprovider", "test_shop.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout + done.stderr


def _held(client: HttpQueueClient, queue: str) -> int:
    status = client.show(queue)
    return status.visible + status.in_flight
