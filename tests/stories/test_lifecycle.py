"""Every story of docs/lifecycle.md, through the engine port, SQS and SMQ, each on every store."""

import re
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import EVERYTHING
from tests.stories.hosted import Place, hosted
from tests.stories.over_http import HttpTeller
from tests.stories.over_smq import SQS_ONLY, SmqTeller
from tests.stories.playing import Teller, play
from tests.stories.story import PAGE, Story, stories
from tests.stories.through_engine import EngineTeller
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))
_AT_THE_PORT = {("stale_receipts", "act"): "any_receive"}  # a setting of a server → what its commands then have


def through_engine(place: Place, told: Story) -> Iterator[Teller]:
    """Yield a teller through the port."""
    with hosted(place) as host:
        yield EngineTeller(host, **{_AT_THE_PORT[each]: True for each in told.server})


def over_http(place: Place, told: Story) -> Iterator[Teller]:
    """Yield a teller over SQS."""
    with RunningServer(**{**place, **dict(told.server)}) as server:
        yield HttpTeller(server)


def over_smq(place: Place, told: Story) -> Iterator[Teller]:
    """Yield a teller over SMQ."""
    with RunningServer(**{**place, **dict(told.server)}) as server:
        yield SmqTeller(server, told)


DOORS = {"engine": through_engine, "http": over_http, "smq": over_smq}


@pytest.mark.parametrize("store", [pytest.param("memory", marks=EVERYTHING), "folder", "postgres"])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_story(told: Story, door: str, store: str, place: Callable[[str], Place]) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    for teller in DOORS[door](place(store), told):
        play(told, teller)


def test_the_page_says_of_each_mark_what_it_means() -> None:
    """And of no other."""
    assert re.findall(r"^\| `SQS: ([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(SQS_ONLY)


@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_a_step_is_marked_where_smq_cannot_say_it(told: Story) -> None:
    """With the reason why: none is left to SQS without one."""
    for step in told.steps:
        assert not step.sqs_only or SQS_ONLY[step.sqs_only](step.action), step.text
