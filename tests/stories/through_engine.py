"""Run a story on an engine; long polls are made of `watch` and `next_due_ms`."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from tests.store.host import Host, hosting, message
from tests.store.postgres_host import hosting_postgres
from tests.stories.story import Action, Counts, ReceivedItem, Runner, Settings, StoryState
from veilmq.core import commands, errors
from veilmq.core.commands import LeaseChange, Received, Timer
from veilmq.store.postgres import PostgresOptions
from veilmq.store.sqlite.database import EngineOptions

ACCOUNT = "000000000000"
DEAD_LETTERS = "dead_letter_queue"


class Waiter:
    """A long poll, as a server implements it."""

    def __init__(self, host: Host, queue: str, action: Action, queued: "list[Waiter]") -> None:
        self.answer: Any = None
        self._host = host
        self._queued = queued
        self._wait_s = action.wait_s
        self._command = commands.Receive(queue=queue, timeout_s=action.timeout_s, requested_at_ms=host.clock.now_ms())
        self._ends_at_ms: int | None = None
        self._timer: Timer | None = None

    def receive(self) -> None:
        self._host.engine.submit(self._command, self._answered)

    def _answered(self, answer: Any) -> None:
        now_ms = self._host.clock.now_ms()
        if isinstance(answer, Received) and not answer.messages:
            if self._ends_at_ms is None:
                wait_s = answer.receive_wait_s if self._wait_s is None else self._wait_s
                self._ends_at_ms = now_ms + wait_s * 1_000
            if now_ms < self._ends_at_ms:
                self._receive_at(min(self._ends_at_ms, answer.next_due_ms or self._ends_at_ms))
                return
        self.answer = answer
        self.leave()

    def _receive_at(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._host.clock.call_at(at_ms, self.receive)

    def wake(self, due_ms: int) -> None:
        if due_ms <= self._host.clock.now_ms():
            self.receive()
        elif self._ends_at_ms is not None:
            self._receive_at(min(self._ends_at_ms, due_ms))

    def leave(self) -> None:
        if self in self._queued:
            self._queued.remove(self)
        if self._timer is not None:
            self._timer.cancel()


class EngineRunner(Runner):
    def __init__(self, host: Host, *, any_receive: bool = False) -> None:
        self._host = host
        self._any_receive = any_receive
        self._start_ms = host.clock.now_ms()
        self._state = StoryState()
        self._waiters: dict[str, Waiter] = {}
        self._polled: dict[str, str] = {}
        self._queued: dict[str, list[Waiter]] = {}

    def counts(self, queue: str) -> Counts:
        return self._host.counts(full(queue))

    def finish(self) -> None:
        assert list(self._waiters) == []

    def run_queue(self, action: Action) -> None:
        if action.too_soon:
            with pytest.raises(errors.QueueDeletedRecently):
                self._host.create(full(action.queue), **settings(action.settings))
            return
        self._host.create(full(action.queue), **settings(action.settings))
        queued = self._queued.setdefault(action.queue, [])
        self._host.engine.watch(full(action.queue), lambda due_ms: queued[0].wake(due_ms) if queued else None)

    def run_set(self, action: Action) -> None:
        self._host.do(commands.SetQueue(queue=full(action.queue), settings=settings(action.settings)))

    def run_send(self, action: Action) -> None:
        for body in action.bodies:
            new = message(body, delay_s=action.delay_s, group=action.group, dedup_id=action.dedup_id)
            (sent,) = self._host.do(commands.Send(queue=full(action.queue), messages=(new,)))
            self._state.sent(body, sent.id, action.duplicate_of)

    def run_receive(self, action: Action) -> None:
        fields = {"count": action.count or 1, "timeout_s": action.timeout_s, "attempt_id": action.attempt}
        received = self._host.do(commands.Receive(queue=full(action.queue), **fields))
        if action.items is not None:
            self._state.check(action.queue, action.items, self._got(received))

    def run_delete(self, action: Action) -> None:
        queue, text = self._state.find(action)
        (answer,) = self._host.delete(text, queue=full(queue), any_receive=self._any_receive)
        assert state(answer) == action.state

    def run_change(self, action: Action) -> None:
        queue, text = self._state.find(action)
        answer = self._host.change(text, action.timeout_s, queue=full(queue), any_receive=self._any_receive)
        assert state(answer) == action.state

    def run_wait(self, action: Action) -> None:
        self._host.advance(action.time_ms)

    def run_purge(self, action: Action) -> None:
        with pytest.raises(errors.PurgeInProgress) if action.too_soon else nullcontext():
            self._host.do(commands.PurgeQueue(queue=full(action.queue)))

    def run_drop(self, action: Action) -> None:
        self._host.do(commands.DeleteQueue(queue=full(action.queue)))

    def run_poll(self, action: Action) -> None:
        queued = self._queued[action.queue]
        waiter = Waiter(self._host, full(action.queue), action, queued)
        queued.append(waiter)
        self._waiters[action.poll] = waiter
        self._polled[action.poll] = action.queue
        self._host.in_loop(waiter.receive)

    def run_answer(self, action: Action) -> None:
        answer = self._waiters[action.poll].answer
        if action.without == "not yet":
            assert answer is None
            return
        del self._waiters[action.poll]
        if action.without == "no queue":
            assert isinstance(answer, errors.QueueNotFound)
        else:
            assert answer is not None, "no answer yet"
            self._state.check(self._polled[action.poll], action.items, self._got(answer))

    def run_hang(self, action: Action) -> None:
        self._host.in_loop(self._waiters.pop(action.poll).leave)

    def _got(self, received: Received) -> list[ReceivedItem]:
        return [
            ReceivedItem(
                each.body,
                each.receipt,
                each.receive_count,
                each.first_received_at_ms - self._start_ms,
                each.source.removeprefix(f"{ACCOUNT}/") if each.source else None,
            )
            for each in received.messages
        ]


def full(queue: str) -> str:
    return f"{ACCOUNT}/{queue}"


def settings(given: Settings) -> Settings:
    return {name: full(str(value)) if name == DEAD_LETTERS else value for name, value in given.items()}


def state(answer: object) -> str:
    match answer:
        case errors.ReceiptState():
            return answer.value
        case LeaseChange():
            return answer.state.value
        case errors.ReceiptInvalid():
            return "invalid"
        case errors.LeaseTooLong():
            return "too long"
        case _:
            raise AssertionError(answer)


StoreSettings = dict[str, Any]  # arguments of `RunningServer`, made by the fixture `store_settings`


def hosted(settings: StoreSettings) -> AbstractContextManager[Host]:
    """Open an empty engine with these settings."""
    if "store" in settings:
        return hosting_postgres(settings["store"], options=PostgresOptions())
    return hosting(settings["data"], options=EngineOptions())
