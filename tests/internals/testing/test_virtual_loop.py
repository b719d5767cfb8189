"""An event loop in virtual time: it waits for the clock, and says when it has nothing to do."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.consumer.workbench import until
from veilmq.testing import SteppedClock
from veilmq.testing.clocks import VirtualLoop


class Loop:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        """Begin to run."""
        self.clock = SteppedClock()
        self.loop = VirtualLoop(self.clock)
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def stop(self) -> None:
        """End."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def idle(self) -> None:
        """Return when it has nothing to do."""
        asyncio.run(until(lambda: self.loop.is_idle and not self.loop.in_executor))

    def move(self, at_s: float) -> None:
        """Stand at ``at_s``."""
        self.clock.set(at_s)
        self.loop.wake()


@pytest.fixture
def running() -> Iterator[Loop]:
    """Give a loop that runs."""
    made = Loop()
    yield made
    made.stop()


def test_a_sleep_ends_when_the_clock_says_so(running: Loop) -> None:
    """At its very instant."""
    woken = []

    async def sleep() -> None:
        await asyncio.sleep(600.1)
        woken.append(asyncio.get_running_loop().time())

    asyncio.run_coroutine_threadsafe(sleep(), running.loop)
    running.idle()
    assert running.loop.next_s == pytest.approx(600.1)
    running.move(600)
    running.idle()
    assert woken == []
    assert running.loop.next_s is not None
    running.move(running.loop.next_s)
    running.idle()
    assert woken == [pytest.approx(600.1)]
    assert running.loop.next_s is None


def test_it_is_not_idle_while_there_is_something_to_hear(running: Loop) -> None:
    """What another thread has told it counts from that moment on."""
    heard = threading.Event()
    go_on = threading.Event()
    running.idle()
    running.loop.call_soon_threadsafe(go_on.wait)
    running.loop.call_soon_threadsafe(heard.set)
    assert not running.loop.is_idle
    go_on.set()
    running.idle()
    assert heard.is_set()


def test_what_runs_in_its_executor_is_counted(running: Loop) -> None:
    """Until the loop has the answer."""
    go_on = threading.Event()
    done = asyncio.run_coroutine_threadsafe(asyncio.to_thread(go_on.wait), running.loop)
    asyncio.run(until(lambda: running.loop.in_executor))
    go_on.set()
    assert done.result(10)
    running.idle()
    assert running.loop.in_executor == 0
