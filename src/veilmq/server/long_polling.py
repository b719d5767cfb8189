"""Long polls: receives and claims that wait for a message, in the order in which they came.

A poll is submitted to the store at once. If it comes back empty and may wait, it parks at the end of its queue's line.
While a line has polls, the store notifies it, between two commands, when the queue has or will have a message; then the
first poll of the line is submitted again, as the next command of the same batch, so no later receive overtakes it. A
poll that gets nothing returns to its place; one that gets something has the next one submitted if there is more. A poll
that ends without a result (its client has gone) has the next one submitted, so no message waits beside a waiter.

The first of a line is submitted a second time before it parks: what was sent between its first result and the beginning
of the watch would be missed otherwise. Polls that do not wait pay one look-up in a table.

Receives and claims share one line. A receive that gets nothing because too many messages are in flight waits for
something else than claims do, which have no such quota: then the first claim of the line is submitted. A claim that
gets nothing and no due instant may be at the limit of claimed messages, which does not concern receives: then the first
receive is submitted.

While unread replies fill their half of the budget (``admission``), new polls park before they are submitted, for a
second at least, and parked polls stay parked.

Each line has one timer (the next instant at which the queue has something by itself) and each poll one for its
deadline; nothing runs periodically.
"""

from bisect import insort
from collections.abc import Callable
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from veilmq.core.claims import Bound, Claim
from veilmq.core.commands import Clock, Command, Done, Engine, Receive, Received, Timer
from veilmq.core.errors import QueueNotFound
from veilmq.core.limits import HTTP_BYTES, SECOND_MS
from veilmq.server.admission import ByteBudget
from veilmq.server.background import shown_due
from veilmq.server.http_parser import Pending

HELD_S_MIN = 1


Permit = Callable[[Done], object]
"""Calls back with ``None`` if a poll may go on, or with what refuses it: at once, or when the policy is known."""


class LongPolls:
    """All receives and claims of a server, those that wait and those that do not."""

    def __init__(self, *, engine: Engine, clock: Clock, budget: ByteBudget | None = None) -> None:
        """Use ``engine``, on its event loop and by its ``clock``; answers count in ``budget``."""
        self.engine = engine
        self.budget = budget or ByteBudget(HTTP_BYTES.default)
        self.clock = clock
        self.closing = False
        self._queues: dict[str, _WaiterQueue] = {}
        self.tickets = count()  # the places in all lines

    def ask(
        self,
        command: Receive | Claim,
        wait_s: int | None,
        answer: Done,
        permit: Permit | None = None,
        *,
        late: bool = False,
    ) -> Pending:
        """Receive or claim; ``answer`` is called once, after ``wait_s`` at the latest (``None``: the queue's own).

        ``permit`` decides before each attempt, the first only if it is ``late``; its refusal is the answer.
        """
        line = self._queues.get(command.queue)
        if line is not None:
            line.inspect()
        poll = _KINDS[type(command)](self, command, wait_s, answer, permit=permit)
        if self.budget.answers_full:
            poll.wait(max(wait_s or 0, HELD_S_MIN)).park(poll, self.clock.now_ms())
        elif late and permit is not None:
            poll.attempt(poll.first_done, permit)
        else:
            self.engine.submit(command, poll.first_done)
        return poll

    def close(self) -> None:
        """Park no poll from now on; the server is closing, and its connections hurry the parked ones."""
        self.closing = True

    @property
    def parked(self) -> int:
        """Return how many polls wait."""
        return sum(len(line.parked) for line in self._queues.values())

    @property
    def asking(self) -> int:
        """Return how many polls that waited, or are about to, are submitted to the store."""
        return sum(line.asking for line in self._queues.values())

    def waiters(self, queue: str) -> "_WaiterQueue":
        """Return the line of ``queue``, made if it is missing."""
        line = self._queues.get(queue)
        if line is None:
            line = self._queues[queue] = _WaiterQueue(self, queue)
            self.engine.watch(queue, line.wake)
        return line

    def drop(self, queue: str) -> None:
        """End an empty line."""
        del self._queues[queue]
        self.engine.unwatch(queue)

    def inspect(self) -> None:
        """Submit the first of each line: there is room for answers again."""
        for line in list(self._queues.values()):
            line.inspect()


class Poll(msgspec.Struct, eq=False):
    """One receive, from its first submit to its answer; ``answer`` is ``None`` once given or withdrawn."""

    result_type: ClassVar[type[Any]] = Received

    polls: LongPolls
    command: Any
    wait_s: int | None
    answer: Done | None
    permit: Permit | None = None
    waiters: "_WaiterQueue | None" = None
    timer: Timer | None = None
    deadline_ms: int = 0
    ticket: int = 0
    instead: bool = False  # it is submitted in place of one of the other kind

    def withdraw(self) -> None:
        """Forget it: what is not begun does not happen."""
        if self.answer is None:
            return
        self.answer = None
        if self.waiters is None:
            self.polls.engine.withdraw(self.first_done)
        elif not (line := self._end_waiting()).remove(self):
            self.polls.engine.withdraw(self.done)
            line.let_go(None)

    def hurry(self) -> None:
        """Answer with what there is."""
        self.wait_s = 0
        self.deadline_ms = 0
        self._expire()

    def wait(self, wait_s: int) -> "_WaiterQueue":
        """Begin to wait, for so many seconds at most; return the line to stand in."""
        clock = self.polls.clock
        self.deadline_ms = clock.now_ms() + wait_s * SECOND_MS
        self.ticket = next(self.polls.tickets)
        self.timer = clock.call_at(self.deadline_ms, self._expire)
        self.waiters = self.polls.waiters(self.command.queue)
        return self.waiters

    def first_done(self, result: Any) -> None:
        """Take the first answer of the engine: pass it on, or begin to wait."""
        answer = self.answer
        if answer is None:
            return
        wait_s: int | None = 0
        if isinstance(result, self.result_type) and not result.messages and not self.polls.closing:
            wait_s = result.receive_wait_s if self.wait_s is None else self.wait_s
        if wait_s:
            self.note_result()
            self.wait(wait_s).join(self, result.next_due_ms)
        else:
            self.answer = None
            answer(result)

    def attempt(self, done: Done, permit: Permit | None) -> None:
        """Submit the command, once ``permit`` has decided where there is one."""

        def go_on(refusal: Any) -> None:
            if refusal is None and self.answer is not None:
                self.polls.engine.submit(self.command, done)
            elif self.answer is not None:  # else it was withdrawn meanwhile
                done(refusal)

        if permit is not None:
            permit(go_on)
        else:
            go_on(None)

    def done(self, result: Any) -> None:
        """Take another answer: pass it on, or go back to the line."""
        line = self.waiters
        if line is None:
            return  # withdrawn after it was begun
        in_vain = isinstance(result, self.result_type) and not result.messages
        if in_vain and not self.polls.closing and self.polls.clock.now_ms() < self.deadline_ms:
            self.note_result()
            line.keep(self, result)
        else:
            self.finish(self.nothing() if in_vain else result)  # a long poll does not report a quota
            line.let_go(result)

    def note_result(self) -> None:
        """Pass the instant of the first result with later attempts: the longest lease counts from it."""
        if self.command.requested_at_ms is None:
            self.command = replace(self.command, requested_at_ms=self.polls.clock.now_ms())

    def lacks_a_place(self, result: Any) -> bool:
        """Tell whether an empty result is for want of a place, as too many messages are in flight."""
        return bool(result.over_limit)

    def nothing(self) -> Received | Bound:
        """Return the result of having waited in vain."""
        return Received(messages=[], next_due_ms=None, receive_wait_s=0)

    def finish(self, result: Any) -> None:
        """Answer; it is in no line any more."""
        answer, self.answer = self.answer, None
        self._end_waiting()
        assert answer is not None, "a poll is answered once"
        answer(result)

    def _expire(self) -> None:
        if self.waiters is not None and self.waiters.remove(self):
            self.finish(self.nothing())

    def _end_waiting(self) -> "_WaiterQueue":
        line, timer, self.waiters, self.timer = self.waiters, self.timer, None, None
        assert line is not None, "it is in a line"
        assert timer is not None, "in a line it has a deadline"
        timer.cancel()
        return line


class ClaimPoll(Poll, eq=False):
    """A claim; a large one is bound in slices, and submitted again until it is whole."""

    result_type = Bound
    bound_before: bool | None = None
    """What the first answer said: the later slices of a claim find it bound by the earlier ones."""

    def __post_init__(self) -> None:
        """Answer with the instant that users see."""
        answer, clock = self.answer, self.polls.clock
        assert answer is not None, "it is there until it is given"
        self.answer = lambda result: answer(shown_due(result, clock))

    def note_result(self) -> None:
        """Do nothing: a claim has no lease."""

    def lacks_a_place(self, result: Any) -> bool:
        """Tell whether too many messages may be claimed: then no instant is known at which there is something."""
        return result.next_due_ms is None

    def nothing(self) -> Bound:
        """Return that nothing was bound."""
        return Bound(number=self.command.number, messages=0, shards=0)

    def first_done(self, result: Any) -> None:
        """Take the first answer, or have the next slice bound."""
        result = self._seen_whole(result)
        if self.answer is not None and isinstance(result, Bound) and result.more:
            self.polls.engine.submit(self.command, self.first_done)
            return
        if isinstance(result, Bound) and result.shards:
            self.wait_s = 0  # a claim may be bound and have no messages: all may be evicted since
        super().first_done(result)

    def done(self, result: Any) -> None:
        """Take another answer, or have the next slice bound."""
        result, line = self._seen_whole(result), self.waiters
        if line is not None and isinstance(result, Bound) and result.more:
            self.polls.engine.submit(self.command, self.done)
        elif line is not None and isinstance(result, Bound) and result.shards:
            self.finish(result)
            line.let_go(result)
        else:
            super().done(result)

    def _seen_whole(self, result: Any) -> Any:
        if not isinstance(result, Bound):
            return result
        if self.bound_before is None:
            self.bound_before = result.again
        return replace(result, again=self.bound_before)


_KINDS: dict[type[Command], type[Poll]] = {Receive: Poll, Claim: ClaimPoll}


class _WaiterQueue:
    """The polls that wait on one queue, in order, and what is known of its next message."""

    def __init__(self, polls: LongPolls, queue: str) -> None:
        self._polls = polls
        self._queue = queue
        self._due_ms: int | None = None
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self.parked: list[Poll] = []
        self.asking = 0

    def wake(self, due_ms: int) -> None:
        """Take the engine's note, perhaps between two commands, that there may be a message at ``due_ms``."""
        self._note(due_ms)
        self.inspect()

    def inspect(self) -> None:
        """Submit the first of the line if there should be something by now; if later, inspect it then."""
        due_ms = self._due_ms
        if due_ms is None or not self.parked:
            return
        if self._polls.budget.answers_full:
            self._polls.budget.on_room(self._polls.inspect)
            return
        if due_ms <= self._polls.clock.now_ms():
            self._ask(self.parked.pop(0))
        elif self._timer is None or due_ms < self._timer_at_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_ms = due_ms
            self._timer = self._polls.clock.call_at(due_ms, self._ring)

    def join(self, poll: Poll, due_ms: int | None) -> None:
        """Add a new poll: at the end, or, where it is the only one, submitted again now that there is a watch."""
        if self.parked or self.asking:
            self.park(poll, due_ms)
        else:
            self._ask(poll)

    def park(self, poll: Poll, due_ms: int | None) -> None:
        """Add a poll at its place; there may be something for it at ``due_ms``."""
        insort(self.parked, poll, key=attrgetter("ticket"))
        self._note(due_ms)
        self.inspect()

    def keep(self, poll: Poll, result: Received | Bound) -> None:
        """Park a poll that was submitted and got nothing, at its old place."""
        self.asking -= 1
        was_instead, poll.instead = poll.instead, False
        self.park(poll, result.next_due_ms)
        if not was_instead and poll.lacks_a_place(result):
            for other in self.parked:
                if other.result_type is not poll.result_type:
                    self.parked.remove(other)
                    other.instead = True
                    self._ask(other)
                    return

    def let_go(self, result: Any) -> None:
        """Go on after the result of a poll that has left the line."""
        self.asking -= 1
        if isinstance(result, Received) or (isinstance(result, Bound) and not result.messages):
            self._note(result.next_due_ms)
            self.inspect()
        elif isinstance(result, QueueNotFound):
            parked, self.parked = self.parked, []
            for poll in parked:
                poll.finish(QueueNotFound(self._queue))
        elif self.parked:  # it ended without a result
            self._ask(self.parked.pop(0))
        self._leave_if_empty()

    def remove(self, poll: Poll) -> bool:
        """Take out a poll that is parked; return whether it was."""
        if poll not in self.parked:
            return False
        self.parked.remove(poll)
        self._leave_if_empty()
        return True

    def _ask(self, poll: Poll) -> None:
        self._due_ms = None  # its answer says it anew
        self.asking += 1
        poll.attempt(poll.done, poll.permit)

    def _note(self, due_ms: int | None) -> None:
        if due_ms is not None and (self._due_ms is None or due_ms < self._due_ms):
            self._due_ms = due_ms

    def _ring(self) -> None:
        self._timer = None
        self.inspect()

    def _leave_if_empty(self) -> None:
        if self.parked or self.asking:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._polls.drop(self._queue)
