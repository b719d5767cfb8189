"""Stores that move house at random, between folders and a database: the naive models notice nothing of it.

But for what attempts gave, which a database does not take over, and the sequence numbers of messages.
"""

from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis.stateful import precondition, rule

from tests.store import test_fifo_model, test_model
from tests.store.copied import moved_to_database, moved_to_folder
from tests.store.host import RESTLESS, Host
from tests.store.model_frame import ModelFrame, run_model
from tests.store.naive import NaiveQueue
from tests.store.postgres_host import PostgresHost
from veilmq.core import commands

UNBOUNDED = replace(RESTLESS, free_space_reserve_bytes=0)


class Moving(ModelFrame):
    """A machine with one more rule; it moves to a store of each of the kinds in turn: `database`, or a new folder."""

    kinds: ClassVar[tuple[type[Host], ...]]
    database: ClassVar[str]
    moves = 0

    @precondition(lambda self: self.host is not None)
    @rule()
    def move_house(self) -> None:
        """Go on with a copy of the store."""
        self.live.advance(10)  # sequence numbers of a folder go on from the next millisecond
        kind = self.kinds[self.moves % len(self.kinds)]
        self.moves += 1
        keeps_attempts = PostgresHost not in (type(self.live), kind)
        if kind is PostgresHost:
            self.host = moved_to_database(self.live, self.database)
        else:
            self.host = moved_to_folder(self.live, self.base / f"moved-{self.moves}" / "store", UNBOUNDED)
        self.live.check()
        self.note_move(keeps_attempts=keeps_attempts)

    def note_move(self, *, keeps_attempts: bool) -> None:
        """Have the models forget what does not move."""

    def suffer(self, kind: str) -> None:
        """Have an accident; what two nodes are sent in one millisecond has no order."""
        super().suffer(kind)
        self.live.advance(1)


class MovingStandard(Moving, test_model.EngineAndModel):
    """Standard queues."""

    def compare(self) -> None:
        """Assert the same queues, and that each is the same."""
        pages = [self.live.do(commands.ListQueues(account=account)) for account in "ab"]
        names = [f"{account}/{name}" for account, page in zip("ab", pages, strict=True) for name in page.names]
        assert names == sorted(self.models)
        for name, model in self.models.items():
            self.check_queue(name, model)


class MovingFifo(Moving, test_fifo_model.EngineAndModel):
    """A FIFO queue."""

    def note_move(self, *, keeps_attempts: bool) -> None:
        """Forget what attempts gave, and the sequence numbers of the messages that are there."""
        if not keeps_attempts:
            self.model.attempts.clear()
        self.model.terms = NaiveQueue.terms  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kinds", [(PostgresHost, Host), (Host,)], ids=["database", "folder"])
@pytest.mark.parametrize("machine", [MovingStandard, MovingFifo], ids=["standard", "fifo"])
def test_a_store_that_moves_answers_as_before(
    machine: type[Moving], kinds: tuple[type[Host], ...], postgres_url: str
) -> None:
    """At random, and reproducibly."""
    terms = {"database": postgres_url, "kinds": kinds}
    run_model(type(machine.__name__, (machine,), terms), examples=2, steps=30)
