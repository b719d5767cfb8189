"""Stores of the engine before that are converted at random, and killed before: the naive models notice nothing of it.

But for the sequence numbers of messages in FIFO queues that are there.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.internals.store.converted import converted
from tests.store import test_claims_model, test_events_model, test_fifo_model, test_model
from tests.store.host import Host
from tests.store.model_frame import ModelFrame, run_model
from tests.store.naive import NaiveQueue


class Converting(ModelFrame):
    """A machine with one more rule, which it follows once."""

    @precondition(lambda self: type(self.host) is Host)
    @rule(was_killed=st.booleans())
    def convert(self, *, was_killed: bool) -> None:
        """Go on with the store in the new format."""
        if was_killed:
            self.live.crash()
        self.host = converted(self.live)
        self.note()

    def note(self) -> None:
        """Have the models forget what changes."""


class ConvertingStandard(Converting, test_model.EngineAndModel):
    """Standard queues."""


class ConvertingFifo(Converting, test_fifo_model.EngineAndModel):
    """A FIFO queue."""

    def note(self) -> None:
        """Forget the sequence numbers."""
        self.model.terms = NaiveQueue.terms  # type: ignore[misc]


class ConvertingClaims(Converting, test_claims_model.EngineAndModel):
    """Claims of either kind of queue."""


class ConvertingEvents(Converting, test_events_model.EventModel):
    """Two queues that are logged."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [ConvertingStandard, ConvertingFifo, ConvertingClaims, ConvertingEvents])
def test_a_store_that_is_converted_answers_as_before(machine: type[Converting]) -> None:
    """At random, and reproducibly."""
    run_model(machine, examples=15, steps=30)
