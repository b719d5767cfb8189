"""Every story of docs/lifecycle.md, through the engine port on both stores, and over HTTP on both."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.engines.host import hosting
from tests.stories.over_http import HttpTeller
from tests.stories.story import PAGE, Action, Counts, Drop, Queue, Story, stories
from tests.stories.through_engine import EngineTeller
from veilmq.engines.embedded import EngineOptions
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))


class Teller(Protocol):
    """Something that executes steps."""

    def tell(self, action: Action) -> None:
        """Execute one step."""

    def counts(self, queue: str) -> Counts:
        """Return the counters of a queue."""

    def finish(self) -> None:
        """End the story."""


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
    queues: list[str] = []
    for number, step in enumerate(told.steps, start=1):
        try:
            teller.tell(step.action)
            if isinstance(step.action, Queue) and not step.action.too_soon:
                queues.append(step.action.queue)
            elif isinstance(step.action, Drop):
                queues.remove(step.action.queue)
            assert tuple(teller.counts(queue) for queue in queues) == step.counts
        except Exception as error:
            error.add_note(f"in step {number}: {step.text}")
            raise
    teller.finish()
