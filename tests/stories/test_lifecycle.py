"""Every story of docs/lifecycle.md, through the engine port on both stores, and over HTTP on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.host import hosting
from tests.stories.over_http import HttpTeller
from tests.stories.playing import Teller, play
from tests.stories.story import PAGE, Story, stories
from tests.stories.through_engine import EngineTeller
from veilmq.engines.embedded import EngineOptions
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))


@pytest.fixture(params=["engine in memory", "engine in a folder", "http in memory", "http in a folder"])
def teller(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Teller]:
    """Return each runner on each store, empty."""
    folder = tmp_path / "store" if request.param.endswith("folder") else None
    if request.param.startswith("engine"):
        with hosting(folder, options=EngineOptions()) as host:
            yield EngineTeller(host)
    else:
        with RunningServer(data=folder) as server:
            yield HttpTeller(server)


@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_story(told: Story, teller: Teller) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    play(told, teller)
