"""Turns of the event loop: what one connection has more of than others is done piece by piece, others between.

A turn takes a few milliseconds at most, whatever is queued. Reading from a client that is not known yet takes its turn
by a timer: at most one segment (some 256 KB) in ``PACE_S``, of all such clients together. What refused clients still
send is dropped in every other of these turns, so that however many leave half of the turns to others.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

TURN_S_MAX = 0.002
PACE_S = 0.002

Work = Callable[[], object]


class Turns:
    """The queues of work of one event loop."""

    __slots__ = ("_dropping", "_is_drop_next", "_loop", "_soon", "_unhurried")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Queue nothing yet."""
        self._loop = loop
        self._soon: deque[Work] = deque()
        self._unhurried: deque[Work] = deque()
        self._dropping: deque[Work] = deque()
        self._is_drop_next = False

    def soon(self, work: Work) -> None:
        """Do ``work`` in one of the next turns of the loop."""
        self._soon.append(work)
        if len(self._soon) == 1:
            self._loop.call_soon(self._take_turn)

    def unhurried(self, work: Work) -> None:
        """Do ``work`` when the clients that are not known have their turn."""
        self._queue_paced(self._unhurried, work)

    def dropping(self, work: Work) -> None:
        """Do ``work``, which drops what a refused client sent, in a turn that leaves the next one to others."""
        self._queue_paced(self._dropping, work)

    def _take_turn(self) -> None:
        end_s = perf_counter() + TURN_S_MAX
        try:
            for _ in range(len(self._soon)):
                _do_first(self._soon)
                if perf_counter() >= end_s:
                    break
        finally:  # a defect in one connection's work leaves that of others
            if self._soon:
                self._loop.call_soon(self._take_turn)

    def _queue_paced(self, queue: deque[Work], work: Work) -> None:
        queue.append(work)
        if len(self._unhurried) + len(self._dropping) == 1:
            self._loop.call_later(PACE_S, self._pace)

    def _pace(self) -> None:
        drops = self._dropping and (self._is_drop_next or not self._unhurried)
        self._is_drop_next = not drops
        try:
            _do_first(self._dropping if drops else self._unhurried)
        finally:
            if self._unhurried or self._dropping:
                self._loop.call_later(PACE_S, self._pace)


def _do_first(queue: deque[Work]) -> None:
    try:
        queue[0]()
    finally:
        queue.popleft()  # after it: what it queues must not begin a second turn
