"""Every story of docs/protocols/claims.md: through the engine port and over HTTP, each on every store."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.stories.claim_story import STORIES, Restart
from tests.stories.claim_teller import ClaimTeller, ClientClaims, EngineClaims
from tests.stories.hosted import Place, hosted
from tests.stories.over_http import HttpTeller
from tests.stories.playing import Teller, play
from tests.stories.story import Story
from tests.stories.through_engine import EngineTeller, full
from veilmq.testing import RunningServer


def on_engine(place: Place) -> Iterator[Teller]:
    """Yield a teller through the port."""
    with hosted(place) as host:
        yield ClaimTeller(EngineTeller(host), lambda queue: EngineClaims(host, full(queue)), host.reopen)


def over_http(place: Place) -> Iterator[Teller]:
    """Yield a teller over HTTP."""
    with ExitStack() as closing:
        servers = [closing.enter_context(RunningServer(**place))]
        told = HttpTeller(servers[0])

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(servers[-1].endpoint, told.url(queue)))

        def restart() -> None:
            servers[-1].stop()
            servers.append(closing.enter_context(RunningServer(**place, clock=servers[-1].clock)))
            told.go_on_with(servers[-1])

        yield ClaimTeller(told, claims_of, restart)


KINDS = {"engine": on_engine, "http": over_http}
TOLD = [
    (told, kind, store)
    for told in STORIES
    for kind in KINDS
    for store in ("memory", "folder", "postgres")
    if store != "memory" or not any(isinstance(step.action, Restart) for step in told.steps)
]


@pytest.mark.parametrize(("told", "kind", "store"), TOLD, ids=[f"{t.title}, {k}, {s}" for t, k, s in TOLD])
def test_story(told: Story, kind: str, store: str, place: Callable[[str], Place]) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    with contextmanager(KINDS[kind])(place(store)) as teller:
        play(told, teller)
