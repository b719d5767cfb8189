"""Publications in slices: asked for until all is in, at the pace of the rate, and for some seconds at the most."""

from typing import Any

from tests.internals.server.scripted_engine import ScriptedEngine
from veilmq.core.errors import StageMissing
from veilmq.core.publications import Publish, Published
from veilmq.server.background import PUBLISH_S_MAX, OnePublication, Publishing
from veilmq.testing import VirtualClock

COMMAND = Publish(queue="000000000000/q", writer="w", batch=1, attempts=(("a", 9),))
ALL = Published(messages=9)
SOME = Published(messages=9, more=True)


class Bench:
    """Publishing on a scripted engine."""

    def __init__(self) -> None:
        """Nobody publishes."""
        self.engine = ScriptedEngine()
        self.clock = VirtualClock()
        self.heard: list[Any] = []

    def publish(self) -> OnePublication:
        """Begin."""
        return Publishing(engine=self.engine, clock=self.clock).ask(COMMAND, 0, self.heard.append)

    def some(self, *, in_ms: int) -> Published:
        """Return the answer that there is more, in a while."""
        return Published(messages=9, more=True, next_due_ms=self.clock.now_ms() + in_ms)


def test_slices_follow_each_other_until_all_is_in() -> None:
    """What is answered is whether the first found the batch published."""
    bench = Bench()
    bench.publish()
    bench.engine.answer(SOME)
    bench.engine.answer(Published(messages=9, again=True, more=True))
    assert bench.heard == []
    bench.engine.answer(Published(messages=9, again=True, duplicates=2))
    assert bench.heard == [Published(messages=9, duplicates=2)]
    bench.publish()
    bench.engine.answer(Published(messages=9, again=True))
    assert bench.heard[1:] == [Published(messages=9, again=True)]


def test_a_rate_is_waited_for() -> None:
    bench = Bench()
    bench.publish()
    bench.engine.answer(bench.some(in_ms=100))
    bench.clock.advance(99)
    assert bench.engine.asked == []
    bench.clock.advance(1)
    assert bench.engine.answer(ALL) == COMMAND
    assert bench.heard == [ALL]


def test_an_answer_comes_after_some_seconds() -> None:
    """Also where the next slice is due behind them; there is more then, and somebody may ask again."""
    bench = Bench()
    bench.publish()
    late = bench.some(in_ms=PUBLISH_S_MAX * 1_000)
    bench.engine.answer(late)
    assert bench.heard == [late]
    bench.publish()
    bench.clock.advance(PUBLISH_S_MAX * 1_000)
    bench.engine.answer(SOME)
    assert bench.heard[1:] == [SOME]


def test_an_error_is_the_answer() -> None:
    bench = Bench()
    missing = StageMissing("a", 0, 9)
    bench.publish()
    bench.engine.answer(missing)
    assert bench.heard == [missing]


def test_who_is_hurried_answers_with_the_next_slice() -> None:
    """One that waits asks at once, one that is being asked has that answer."""
    bench = Bench()
    waiting, asking = bench.publish(), bench.publish()
    bench.engine.answer(bench.some(in_ms=100))
    for each in (waiting, asking):
        each.hurry()
    assert len(bench.engine.asked) == 2
    for _ in range(2):
        bench.engine.answer(SOME)
    assert bench.heard == [SOME, SOME]
    bench.clock.advance(100)
    assert bench.engine.asked == []


def test_who_has_gone_asks_for_nothing_more() -> None:
    """Neither what it has asked already, nor when its time comes, nor after an answer that was on its way."""
    bench = Bench()
    bench.publish().withdraw()
    assert bench.engine.asked == []
    waiting = bench.publish()
    bench.engine.answer(bench.some(in_ms=100))
    waiting.withdraw()
    bench.clock.advance(100)
    assert bench.engine.asked == []
    begun = bench.publish()
    ((_, done),) = bench.engine.asked
    begun.withdraw()
    done(SOME)
    assert (bench.engine.asked, bench.heard) == ([], [])
