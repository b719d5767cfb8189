"""What a node can do is what the embedded engine can."""

from typing import Any

from tests.store.host import hosting
from tests.store.postgres_host import hosting_postgres
from veilmq.engines.embedded.claims import ClaimStep
from veilmq.engines.embedded.janitor import Sweep
from veilmq.engines.embedded.moves import MoveStep
from veilmq.engines.embedded.publications import PublicationStep
from veilmq.store.cold import STEPS
from veilmq.store.queue_commands import SurveyQueues

OF_ITSELF: set[Any] = {ClaimStep, MoveStep, PublicationStep, Sweep}
"""What the embedded engine asks of itself; the node has steps of its own."""


def test_it_knows_every_command(postgres_url: str) -> None:
    """And each of them once."""
    with hosting_postgres(postgres_url) as node, hosting(None) as embedded:
        machine = node.engine.machine  # type: ignore[attr-defined]
        engine: Any = embedded.engine
        assert set(machine.alone) & set(machine.together) == set()
        own = {*STEPS, SurveyQueues}
        assert set(engine._machine.handlers) - OF_ITSELF == {*machine.alone, *machine.together} - own
