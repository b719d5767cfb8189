"""Every story of docs/lifecycle.md, through the engine port, SQS and SMQ, each on every store."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import EVERYTHING
from tests.stories.hosted import Place, hosted
from tests.stories.over_http import HttpTeller
from tests.stories.over_smq import SQS_ONLY, SmqTeller
from tests.stories.playing import play
from tests.stories.story import PAGE, UNITS_MS, Poll, Story, Wait, stories
from tests.stories.through_engine import EngineTeller
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))
_AT_THE_PORT = {("stale_receipts", "act"): "any_receive"}  # a setting of a server → what its commands then have


STORES = [pytest.param("memory", marks=EVERYTHING), "folder", "postgres"]
SERVED = [("http", "folder"), ("smq", "folder")]
"""The protocols and stores of which `make test` plays each story; the other pairs are for `make test-all`."""
OTHERS = [("http", "memory"), ("http", "postgres"), ("smq", "memory"), ("smq", "postgres")]
WOKEN = [
    told
    for told in STORIES
    if any(isinstance(step.action, Poll) for step in told.steps)
    and not any(isinstance(step.action, Wait) and step.action.time_ms >= UNITS_MS["h"] for step in told.steps)
]
"""What a server and a database do together: a notice of the one wakes a receive that waits in the other."""


def _telling(told: Story, door: str, store: str) -> Any:
    """Return a story with a protocol and a store, for `make test-all` unless the pair has something to add."""
    adds = (door, store) in SERVED or (told in WOKEN and (door, store) == ("http", "postgres"))
    return pytest.param(told, door, store, id=f"{told.title}-{door}-{store}", marks=() if adds else EVERYTHING)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_story_through_the_port(told: Story, store: str, place: Callable[[str], Place]) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    with hosted(place(store)) as host:
        play(told, EngineTeller(host, **{_AT_THE_PORT[each]: True for each in told.server}))


@pytest.mark.parametrize(
    ("told", "door", "store"), [_telling(told, *pair) for told in STORIES for pair in [*SERVED, *OTHERS]]
)
def test_story(told: Story, door: str, store: str, serve: Callable[..., RunningServer]) -> None:
    """The same over SQS and over SMQ."""
    server = serve(store, **dict(told.server))
    play(told, HttpTeller(server) if door == "http" else SmqTeller(server, told))


def test_the_page_says_of_each_mark_what_it_means() -> None:
    """And of no other."""
    assert re.findall(r"^\| `SQS: ([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(SQS_ONLY)


@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_a_step_is_marked_where_smq_cannot_say_it(told: Story) -> None:
    """With the reason why: none is left to SQS without one."""
    for step in told.steps:
        assert not step.sqs_only or SQS_ONLY[step.sqs_only](step.action), step.text
