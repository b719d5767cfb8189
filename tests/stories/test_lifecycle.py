"""Every story of docs/lifecycle.md, through the engine port, SQS and SMQ, each on every store."""

import re
from collections.abc import Callable

import pytest

from tests.conftest import EVERYTHING
from tests.stories.hosted import Place, hosted
from tests.stories.over_http import HttpTeller
from tests.stories.over_smq import SQS_ONLY, SmqTeller
from tests.stories.playing import play
from tests.stories.story import PAGE, Story, stories
from tests.stories.through_engine import EngineTeller
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))
_AT_THE_PORT = {("stale_receipts", "act"): "any_receive"}  # a setting of a server → what its commands then have


STORES = [pytest.param("memory", marks=EVERYTHING), "folder", "postgres"]
SERVED = [("http", "folder"), ("http", "postgres"), ("smq", "folder")]
"""The protocols and stores of which `make test` plays each story; the other pairs are for `make test-all`."""
OTHERS = [("http", "memory"), ("smq", "memory"), ("smq", "postgres")]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_story_through_the_port(told: Story, store: str, place: Callable[[str], Place]) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    with hosted(place(store)) as host:
        play(told, EngineTeller(host, **{_AT_THE_PORT[each]: True for each in told.server}))


@pytest.mark.parametrize(("door", "store"), [*SERVED, *(pytest.param(*each, marks=EVERYTHING) for each in OTHERS)])
@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
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
