"""Every story of docs/lifecycle.md, through the engine port, SQS and SMQ, each on both stores."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.host import hosting
from tests.stories.over_http import HttpTeller
from tests.stories.over_smq import SQS_ONLY, SmqTeller
from tests.stories.playing import Teller, play
from tests.stories.story import PAGE, Story, stories
from tests.stories.through_engine import EngineTeller
from veilmq.engines.embedded import EngineOptions
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))


def through_engine(folder: Path | None, told: Story) -> Iterator[Teller]:
    """Yield a teller through the port."""
    with hosting(folder, options=EngineOptions()) as host:
        yield EngineTeller(host)


def over_http(folder: Path | None, told: Story) -> Iterator[Teller]:
    """Yield a teller over SQS."""
    with RunningServer(data=folder) as server:
        yield HttpTeller(server)


def over_smq(folder: Path | None, told: Story) -> Iterator[Teller]:
    """Yield a teller over SMQ."""
    with RunningServer(data=folder) as server:
        yield SmqTeller(server, told)


DOORS = {"engine": through_engine, "http": over_http, "smq": over_smq}


@pytest.mark.parametrize("store", ["memory", "folder"])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_story(told: Story, door: str, store: str, tmp_path: Path) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    folder = tmp_path / "store" if store == "folder" else None
    for teller in DOORS[door](folder, told):
        play(told, teller)


def test_the_page_says_of_each_mark_what_it_means() -> None:
    """And of no other."""
    assert re.findall(r"^\| `SQS: ([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(SQS_ONLY)


@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_a_step_is_marked_where_smq_cannot_say_it(told: Story) -> None:
    """With the reason why: none is left to SQS without one."""
    for step in told.steps:
        assert not step.sqs_only or SQS_ONLY[step.sqs_only](step.action), step.text
