"""Long polls: receives and claims that wait for a message, in arrival order.

A poll is submitted to the store at once. If its result is empty and it may wait, it parks at the end of its queue's
waiters. While a queue has waiters, the store notifies it, between two commands, when the queue has or will have a
message. The first waiter is then submitted again. SQLite applies it as the next command of the same batch, so no later
receive overtakes it; on PostgreSQL, receives that already wait for a statement precede it. A poll that gets nothing
returns to its position; after one that gets something, the next is submitted if there is more. After a poll that ends
without a result (its client disconnected) the next is submitted too, so that no message stays available while a poll
waits.

The first waiter of a queue is submitted a second time before it parks: otherwise a message sent between its first
result and the start of the watch would be missed. Polls that do not wait cost one dict look-up.

Receives and claims wait together. A receive may get nothing because too many messages are in flight, a quota that
claims do not have: then the first waiting claim is submitted. A claim without messages and due time may be at the limit
of claimed messages, which does not concern receives: then the first waiting receive is submitted.

While unread replies fill their half of the budget (``admission``), new polls, and receives that have not begun, park
for at least a second, and parked polls stay parked.

Each queue with waiters has one timer (for the next message that becomes visible) and each poll one for its deadline;
nothing runs periodically.
"""

from bisect import insort
from collections.abc import Callable
from functools import partial
from itertools import count
from operator import attrgetter, eq
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

PARKED_S_MIN = 1


Permit = Callable[[Done], object]
"""Calls back with ``None`` if a poll may continue, else with the refusal; at once, or when the policy is read."""


class LongPolls:
    """All receives and claims of a server, waiting or not."""

    def __init__(self, *, engine: Engine, clock: Clock, budget: ByteBudget | None = None) -> None:
        """Run on the event loop of ``engine``; parked polls observe the unread replies of ``budget``."""
        self.engine = engine
        self.budget = budget or ByteBudget(HTTP_BYTES.default)
        self.budget.on_replies_full = self._park_submitted
        self.clock = clock
        self.closing = False  # if set, no more polls park, and connections hurry the parked ones
        self._queues: dict[str, _WaiterQueue] = {}
        self.tickets = count()  # positions of waiters

    def submit(
        self,
        command: Receive | Claim,
        wait_s: int | None,
        on_result: Done,
        permit: Permit | None = None,
        *,
        check_first: bool = False,
    ) -> Pending:
        """Submit a receive or claim; call ``on_result`` once, after at most ``wait_s`` (``None``: the queue's default).

        While unread replies fill their limit, the poll waits for at least ``PARKED_S_MIN`` instead. ``permit`` is
        called before each attempt (before the first only if ``check_first``); a refusal is the result.
        """
        waiters = self._queues.get(command.queue)
        if waiters is not None:
            waiters.inspect()
        poll = _POLL_TYPES[type(command)](self, command, wait_s, on_result, permit=permit)
        if self.budget.replies_full:
            self._park(poll)
        elif check_first and permit is not None:
            poll.attempt(poll.first_done, permit)
        else:
            self.engine.submit(command, poll.first_done)
        return poll

    def _park(self, poll: "Poll") -> None:
        poll.wait(max(poll.wait_s or 0, PARKED_S_MIN)).park(poll, self.clock.now_ms())

    def _park_submitted(self) -> None:
        """Park the receives that the store has not begun."""
        withdrawn: list[Any] = self.engine.withdraw(lambda done: getattr(done, "__func__", None) is Poll.first_done)
        for done in withdrawn:
            self._park(done.__self__)

    @property
    def parked(self) -> int:
        return sum(len(waiters.parked) for waiters in self._queues.values())

    @property
    def submitted(self) -> int:
        return sum(waiters.submitted for waiters in self._queues.values())

    def waiters(self, queue: str) -> "_WaiterQueue":
        """Return the waiters of ``queue``, and watch it if they are new."""
        waiters = self._queues.get(queue)
        if waiters is None:
            waiters = self._queues[queue] = _WaiterQueue(self, queue)
            self.engine.watch(queue, waiters.wake)
        return waiters

    def drop(self, queue: str) -> None:
        """Stop watching a queue without waiters."""
        del self._queues[queue]
        self.engine.unwatch(queue)

    def inspect(self) -> None:
        """Inspect the waiters of every queue; called when unread replies have fallen below their limit."""
        for waiters in list(self._queues.values()):
            waiters.inspect()


class Poll(msgspec.Struct, eq=False):
    """One receive, until its result; ``on_result`` is ``None`` once it was called or the poll was withdrawn."""

    result_type: ClassVar[type[Any]] = Received

    polls: LongPolls
    command: Any
    wait_s: int | None
    on_result: Done | None
    permit: Permit | None = None
    waiters: "_WaiterQueue | None" = None
    timer: Timer | None = None
    deadline_ms: int = 0
    ticket: int = 0
    is_substitute: bool = False  # submitted because a poll of the other kind hit its quota

    def withdraw(self) -> None:
        """Drop the poll; a command that has not begun does not run."""
        if self.on_result is None:
            return
        self.on_result = None
        if self.waiters is None:
            self.polls.engine.withdraw(partial(eq, self.first_done))
        elif not (waiters := self._end_waiting()).remove(self):
            self.polls.engine.withdraw(partial(eq, self.done))
            waiters.poll_ended(None)

    def hurry(self) -> None:
        """End the wait at once."""
        self.wait_s = 0
        self.deadline_ms = 0
        self._expire()

    def wait(self, wait_s: int) -> "_WaiterQueue":
        """Begin to wait, at most ``wait_s``; return the queue's waiters."""
        clock = self.polls.clock
        self.deadline_ms = clock.now_ms() + wait_s * SECOND_MS
        self.ticket = next(self.polls.tickets)
        self.timer = clock.call_at(self.deadline_ms, self._expire)
        self.waiters = self.polls.waiters(self.command.queue)
        return self.waiters

    def first_done(self, result: Any) -> None:
        """Pass the first result on, or begin to wait."""
        on_result = self.on_result
        if on_result is None:
            return
        wait_s: int | None = 0
        if isinstance(result, self.result_type) and not result.messages and not self.polls.closing:
            wait_s = result.receive_wait_s if self.wait_s is None else self.wait_s
        if wait_s:
            self.record_first_result()
            self.wait(wait_s).add(self, result.next_due_ms)
        else:
            self.on_result = None
            on_result(result)

    def attempt(self, done: Done, permit: Permit | None) -> None:
        """Submit the command, if ``permit`` allows it."""

        def proceed(refusal: Any) -> None:
            if refusal is None and self.on_result is not None:
                self.polls.engine.submit(self.command, done)
            elif self.on_result is not None:  # not withdrawn meanwhile
                done(refusal)

        if permit is not None:
            permit(proceed)
        else:
            proceed(None)

    def done(self, result: Any) -> None:
        """Pass the result of a later attempt on, or park again."""
        waiters = self.waiters
        if waiters is None:
            return  # withdrawn while the command ran
        is_empty = isinstance(result, self.result_type) and not result.messages
        if is_empty and not self.polls.closing and self.polls.clock.now_ms() < self.deadline_ms:
            self.record_first_result()
            waiters.repark(self, result)
        else:
            self.finish(self.empty_result() if is_empty else result)  # a long poll does not report quotas
            waiters.poll_ended(result)

    def record_first_result(self) -> None:
        """Keep the time of the first result for later attempts: the maximum lease counts from it."""
        if self.command.requested_at_ms is None:
            self.command = replace(self.command, requested_at_ms=self.polls.clock.now_ms())

    def over_quota(self, result: Any) -> bool:
        """Return whether a result is empty because too many messages are in flight."""
        return bool(result.over_limit)

    def empty_result(self) -> Received | Bound:
        return Received(messages=[], next_due_ms=None, receive_wait_s=0)

    def finish(self, result: Any) -> None:
        """Pass the result on and stop waiting."""
        on_result, self.on_result = self.on_result, None
        self._end_waiting()
        assert on_result is not None, "a poll has one result"
        on_result(result)

    def _expire(self) -> None:
        if self.waiters is not None and self.waiters.remove(self):
            self.finish(self.empty_result())

    def _end_waiting(self) -> "_WaiterQueue":
        waiters, timer, self.waiters, self.timer = self.waiters, self.timer, None, None
        assert waiters is not None, "it waits"
        assert timer is not None, "a waiting poll has a deadline"
        timer.cancel()
        return waiters


class ClaimPoll(Poll, eq=False):
    """A claim; a large one is bound in slices, by repeated submits."""

    result_type = Bound
    bound_before: bool | None = None
    """``again`` of the first result: later slices always find the claim bound."""

    def __post_init__(self) -> None:
        on_result, clock = self.on_result, self.polls.clock
        assert on_result is not None, "a new poll has its callback"
        self.on_result = lambda result: on_result(shown_due(result, clock))

    def record_first_result(self) -> None:
        """Do nothing: a claim has no lease."""

    def over_quota(self, result: Any) -> bool:
        """Return whether too many messages may be claimed: then the result has no due time."""
        return result.next_due_ms is None

    def empty_result(self) -> Bound:
        return Bound(number=self.command.number, messages=0, shards=0)

    def first_done(self, result: Any) -> None:
        """Handle the first result, or bind the next slice."""
        result = self._with_first_again(result)
        if self.on_result is not None and isinstance(result, Bound) and result.more:
            self.polls.engine.submit(self.command, self.first_done)
            return
        if isinstance(result, Bound) and result.shards:
            self.wait_s = 0  # a bound claim may have no messages: all may be evicted since
        super().first_done(result)

    def done(self, result: Any) -> None:
        """Handle a later result, or bind the next slice."""
        result, waiters = self._with_first_again(result), self.waiters
        if waiters is not None and isinstance(result, Bound) and result.more:
            self.polls.engine.submit(self.command, self.done)
        elif waiters is not None and isinstance(result, Bound) and result.shards:
            self.finish(result)
            waiters.poll_ended(result)
        else:
            super().done(result)

    def _with_first_again(self, result: Any) -> Any:
        if not isinstance(result, Bound):
            return result
        if self.bound_before is None:
            self.bound_before = result.again
        return replace(result, again=self.bound_before)


_POLL_TYPES: dict[type[Command], type[Poll]] = {Receive: Poll, Claim: ClaimPoll}


class _WaiterQueue:
    """The waiters of one queue, in order, and when its next message may be visible."""

    def __init__(self, polls: LongPolls, queue: str) -> None:
        self._polls = polls
        self._queue = queue
        self._due_ms: int | None = None
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self.parked: list[Poll] = []
        self.submitted = 0

    def wake(self, due_ms: int) -> None:
        """Called by the engine, perhaps between two commands: there may be a message at ``due_ms``."""
        self._set_due(due_ms)
        self.inspect()

    def inspect(self) -> None:
        """Submit the first waiter if a message may be due, else set the timer."""
        due_ms = self._due_ms
        if due_ms is None or not self.parked:
            return
        if self._polls.budget.replies_full:
            self._polls.budget.add_waiter(self._polls.inspect)
            return
        if due_ms <= self._polls.clock.now_ms():
            self._submit(self.parked.pop(0))
        elif self._timer is None or due_ms < self._timer_at_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_ms = due_ms
            self._timer = self._polls.clock.call_at(due_ms, self._on_timer)

    def add(self, poll: Poll, due_ms: int | None) -> None:
        """Park a new poll at the end; if it is the only one, submit it again instead, now that the queue is watched."""
        if self.parked or self.submitted:
            self.park(poll, due_ms)
        else:
            self._submit(poll)

    def park(self, poll: Poll, due_ms: int | None) -> None:
        """Add a poll at its position; there may be a message for it at ``due_ms``."""
        insort(self.parked, poll, key=attrgetter("ticket"))
        self._set_due(due_ms)
        self.inspect()

    def repark(self, poll: Poll, result: Received | Bound) -> None:
        """Park a poll that got nothing again, at its old position."""
        self.submitted -= 1
        was_substitute, poll.is_substitute = poll.is_substitute, False
        self.park(poll, result.next_due_ms)
        if not was_substitute and poll.over_quota(result):
            for other in self.parked:
                if other.result_type is not poll.result_type:
                    self.parked.remove(other)
                    other.is_substitute = True
                    self._submit(other)
                    return

    def poll_ended(self, result: Any) -> None:
        """Continue after the result of a poll that stopped waiting."""
        self.submitted -= 1
        if isinstance(result, Received) or (isinstance(result, Bound) and not result.messages):
            self._set_due(result.next_due_ms)
            self.inspect()
        elif isinstance(result, QueueNotFound):
            parked, self.parked = self.parked, []
            for poll in parked:
                poll.finish(QueueNotFound(self._queue))
        elif self.parked:  # the poll ended without a result
            self._submit(self.parked.pop(0))
        self._drop_if_empty()

    def remove(self, poll: Poll) -> bool:
        if poll not in self.parked:
            return False
        self.parked.remove(poll)
        self._drop_if_empty()
        return True

    def _submit(self, poll: Poll) -> None:
        self._due_ms = None  # the result sets it again
        self.submitted += 1
        poll.attempt(poll.done, poll.permit)

    def _set_due(self, due_ms: int | None) -> None:
        if due_ms is not None and (self._due_ms is None or due_ms < self._due_ms):
            self._due_ms = due_ms

    def _on_timer(self) -> None:
        self._timer = None
        self.inspect()

    def _drop_if_empty(self) -> None:
        if self.parked or self.submitted:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._polls.drop(self._queue)
