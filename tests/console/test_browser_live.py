"""What moves by itself on open pages, in a real browser: figures, leases as bars, moves."""

from collections.abc import Iterator
from itertools import count

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import Visit
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

_NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server, for queues with a name of their own in each test."""
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def queues(server: RunningServer) -> Iterator[HttpQueueClient]:
    """A client."""
    with HttpQueueClient(server.endpoint) as queues:
        yield queues


@pytest.fixture
def jobs(queues: HttpQueueClient) -> str:
    """The name of a queue with a timeout of half a minute, which no other test has."""
    name = f"jobs{next(_NUMBERS)}-"
    queues.create_queue(name, {"visibility_timeout_s": 30})
    return name


def place(name: str) -> str:
    """Return the address of the page of a queue."""
    return f"/console/queues/000000000000/{name}"


def connected(page: Page) -> Page:
    """Return ``page`` once it is told what happens."""
    expect(page.locator("html")).to_have_attribute("data-live", "on")
    return page


def end_of(bar: Locator) -> float:
    """Return where a bar ends, in per cent of the width in sight."""
    rect = bar.locator("rect")
    place, width = (float((rect.get_attribute(name) or "").rstrip("%")) for name in ("x", "width"))
    return place + width


def test_a_received_message_is_a_bar_until_its_timeout_ends(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str
) -> None:
    """It appears without a reload, a renewal moves its end, and it ends when the timeout does: by the queue's clock."""
    queues.send(jobs, "m")
    page = connected(visit(place(jobs)))
    bars = page.locator("svg.leases .bar")
    expect(bars).to_have_count(0)
    (held,) = queues.receive(jobs)
    server.advance(1_000)
    expect(bars).to_have_count(1)
    expect(bars).to_have_class("bar held")
    expect(bars.locator("text")).to_have_text(f"{held.id[:8]} ×1")
    expect(page.locator("dd.in-flight")).to_have_text("1")
    queues.change_visibility(jobs, held.receipt, 50)
    before = end_of(bars)
    server.advance(1_000)
    expect(bars.locator(".renewal")).to_have_count(1)
    assert end_of(bars) > before
    server.advance(48_000)
    expect(page.locator(".now")).not_to_have_attribute("x1", "0%")
    expect(bars).to_have_class("bar held")
    server.advance(2_000)
    expect(bars).to_have_class("bar expired")
    expect(page.locator("dd.visible")).to_have_text("1")
    for _ in range(11):
        server.advance(1_000)
    expect(bars).to_have_count(0)


def test_a_list_moves_where_something_happened(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str
) -> None:
    """Without a reload, and also after another page of it was exchanged for the first."""
    queues.create_queue("other")
    page = connected(visit("/console/queues"))
    cell = page.locator(f'tr[data-queue="{jobs}"] [data-figure="visible"]')
    expect(cell).to_have_text("0")
    queues.send(jobs, "m")
    server.advance(1_000)
    expect(cell).to_have_text("1")
    page.get_by_role("searchbox").fill(jobs)
    expect(page.locator("tr[data-queue]")).to_have_count(1)
    connected(page)
    queues.send(jobs, "m")
    server.advance(2_000)
    expect(cell).to_have_text("2")


def test_a_timeline_is_there_without_scripts(visit: Visit, queues: HttpQueueClient, jobs: str) -> None:
    """As a drawing, and as a table for whoever cannot see it."""
    queues.send(jobs, "m")
    (held,) = queues.receive(jobs)
    page = visit(place(jobs), java_script_enabled=False)
    expect(page.locator("svg.leases .bar.held")).to_have_count(1)
    page.get_by_text("As a table").click()
    expect(page.get_by_role("rowheader", name=held.id)).to_be_visible()


def test_a_move_goes_on_before_ones_eyes(visit: Visit, server: RunningServer, queues: HttpQueueClient) -> None:
    queues.create_queue("dead")
    queues.create_queue("failing", {"visibility_timeout_s": 1, "dead_letter_queue": "dead", "receives_max": 1})
    for _ in range(3):
        queues.send("failing", "m")
    queues.receive("failing", count=3)
    server.advance(1_000)
    queues.receive("failing", count=3)
    queues.start_move("dead", moves_per_s_max=1)
    page = connected(visit(f"{place('dead')}/dead-letters"))
    for _ in range(5):
        server.advance(1_000)
    expect(page.locator("[data-live=moves] tbody tr")).to_contain_text("3 of 3")
    expect(page.locator("[data-live=moves] tbody tr")).to_contain_text("completed")
