"""The mover: one slice at a time, at the instant at which it is due."""

from typing import Any

from veilmq.core.commands import Command
from veilmq.core.errors import InternalError
from veilmq.engines.embedded.mover import Mover
from veilmq.engines.embedded.moves import MoveStep, Stepped
from veilmq.engines.embedded.run import NEVER_MS
from veilmq.testing import VirtualClock


class Engine:
    """Takes commands, and answers when the test says so."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.waiting: list[Any] = []
        self.mover = Mover(step=MoveStep(), submit=self.submit, clock=self.clock)

    def submit(self, command: Command, done: Any) -> None:
        self.waiting.append(done)

    def in_ms(self, time_ms: int) -> int:
        return self.clock.now_ms() + time_ms


def test_a_slice_is_submitted_when_it_is_due_and_the_next_one_when_that_is() -> None:
    engine = Engine()
    engine.mover.look(engine.in_ms(100))
    engine.clock.advance(99)
    assert engine.waiting == []
    engine.clock.advance(1)
    (done,) = engine.waiting
    done(Stepped(due_ms=engine.in_ms(50)))
    engine.clock.advance(50)
    assert len(engine.waiting) == 2


def test_an_earlier_instant_wins_and_a_later_one_changes_nothing() -> None:
    engine = Engine()
    engine.mover.look(engine.in_ms(100))
    engine.mover.look(engine.in_ms(30))
    engine.mover.look(engine.in_ms(60))
    engine.clock.advance(30)
    assert len(engine.waiting) == 1
    engine.clock.advance(100)
    assert len(engine.waiting) == 1


def test_nothing_is_submitted_while_a_slice_is_under_way_or_nothing_is_due() -> None:
    engine = Engine()
    engine.mover.look(NEVER_MS)
    engine.mover.look(engine.in_ms(1))
    engine.clock.advance(1)
    engine.mover.look(engine.in_ms(1))
    engine.clock.advance(1_000)
    (done,) = engine.waiting
    done(Stepped(due_ms=NEVER_MS))
    engine.clock.advance(1_000_000)
    assert len(engine.waiting) == 1


def test_after_an_error_it_tries_again_in_a_second() -> None:
    engine = Engine()
    engine.mover.look(engine.in_ms(1))
    engine.clock.advance(1)
    engine.waiting[0](InternalError())
    engine.clock.advance(999)
    assert len(engine.waiting) == 1
    engine.clock.advance(1)
    assert len(engine.waiting) == 2


def test_after_the_stop_nothing_is_submitted() -> None:
    engine = Engine()
    engine.mover.look(engine.in_ms(1))
    engine.mover.stop()
    engine.mover.look(engine.in_ms(1))
    engine.clock.advance(1_000)
    assert engine.waiting == []
