"""Every story of docs/protocols/claims.md: through the engine port and over HTTP, each on every store."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.conftest import EVERYTHING
from tests.stories.claim_story import STORIES, Restart
from tests.stories.claim_teller import ClaimTeller, ClientClaims, EngineClaims
from tests.stories.hosted import Place, hosted
from tests.stories.over_http import HttpTeller
from tests.stories.playing import play
from tests.stories.story import Story
from tests.stories.through_engine import EngineTeller, full
from veilmq.testing import RunningServer

STORES = ("memory", "folder", "postgres")
RESTARTED = [told for told in STORIES if any(isinstance(step.action, Restart) for step in told.steps)]
TOLD = [(told, store) for told in STORIES for store in STORES if store != "memory" or told not in RESTARTED]


SERVED = [pytest.param("memory", marks=EVERYTHING), "folder", pytest.param("postgres", marks=EVERYTHING)]
"""The stores of servers; on a database `make test` plays the story of a restart."""


def name(value: Story | str) -> str:
    """Return a story or a store in the output of pytest."""
    return value if isinstance(value, str) else value.title


@pytest.mark.parametrize(("told", "store"), TOLD, ids=name)
def test_story_through_the_port(told: Story, store: str, place: Callable[[str], Place]) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    with hosted(place(store)) as host:
        play(told, ClaimTeller(EngineTeller(host), lambda queue: EngineClaims(host, full(queue)), host.reopen))


@pytest.mark.parametrize("store", SERVED)
@pytest.mark.parametrize("told", [told for told in STORIES if told not in RESTARTED], ids=name)
def test_story(told: Story, store: str, serve: Callable[[str], RunningServer]) -> None:
    """The same over HTTP."""
    server = serve(store)
    with ExitStack() as closing:
        teller = HttpTeller(server)

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(server.endpoint, teller.url(queue)))

        play(told, ClaimTeller(teller, claims_of, restart=pytest.fail))


@pytest.mark.parametrize("store", STORES[1:])
@pytest.mark.parametrize("told", RESTARTED, ids=name)
def test_story_of_a_restart(told: Story, store: str, place: Callable[[str], Place]) -> None:
    """Over HTTP, on a server of its own, that begins again with the same clock."""
    settings = place(store)
    with ExitStack() as closing:
        servers = [closing.enter_context(RunningServer(**settings))]
        teller = HttpTeller(servers[0])

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(servers[-1].endpoint, teller.url(queue)))

        def restart() -> None:
            servers[-1].stop()
            servers.append(closing.enter_context(RunningServer(**settings, clock=servers[-1].clock)))
            teller.go_on_with(servers[-1])

        play(told, ClaimTeller(teller, claims_of, restart))
