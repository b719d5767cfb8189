"""Every story of docs/protocols/claims.md: through the engine port on both stores, and over HTTP on both."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.engines.host import hosting
from tests.stories.claim_story import STORIES, Restart
from tests.stories.claim_teller import ClaimTeller, ClientClaims, EngineClaims
from tests.stories.over_http import HttpTeller
from tests.stories.playing import Teller, play
from tests.stories.story import Story
from tests.stories.through_engine import EngineTeller, full
from veilmq.engines.embedded import EngineOptions
from veilmq.testing import RunningServer


def on_engine(folder: Path | None) -> Iterator[Teller]:
    """Yield a teller through the port."""
    with hosting(folder, options=EngineOptions()) as host:
        yield ClaimTeller(EngineTeller(host), lambda queue: EngineClaims(host, full(queue)), host.reopen)


def over_http(folder: Path | None) -> Iterator[Teller]:
    """Yield a teller over HTTP."""
    with ExitStack() as closing:
        servers = [closing.enter_context(RunningServer(data=folder))]
        told = HttpTeller(servers[0])

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(servers[-1].endpoint, told.url(queue)))

        def restart() -> None:
            servers[-1].stop()
            servers.append(closing.enter_context(RunningServer(data=folder, clock=servers[-1].clock)))
            told.go_on_with(servers[-1])

        yield ClaimTeller(told, claims_of, restart)


KINDS = {"engine": on_engine, "http": over_http}
TOLD = [
    (told, kind, store)
    for told in STORIES
    for kind in KINDS
    for store in ("memory", "folder")
    if store == "folder" or not any(isinstance(step.action, Restart) for step in told.steps)
]


@pytest.mark.parametrize(("told", "kind", "store"), TOLD, ids=[f"{t.title}, {k}, {s}" for t, k, s in TOLD])
def test_story(told: Story, kind: str, store: str, tmp_path: Path) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    with contextmanager(KINDS[kind])(tmp_path / "store" if store == "folder" else None) as teller:
        play(told, teller)
