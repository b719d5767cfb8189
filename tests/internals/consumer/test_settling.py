"""Messages ended at the server: batches, tries, and the rule that a receipt past its deadline sets nothing free."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.consumer.simulation import message
from veilmq.client import ClientError, Unreachable
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.consumer import settling
from veilmq.consumer.clock import SystemClock
from veilmq.consumer.context import DONE, Context
from veilmq.consumer.handlers import Options
from veilmq.consumer.leases import Lease, LeaseTable, Subscription
from veilmq.consumer.metrics import Counters
from veilmq.consumer.renewal_policies import Fixed, RenewalResult
from veilmq.consumer.settling import PATIENCE_S_MAX, TRIES_MAX, Batcher, Settler
from veilmq.core.commands import VisibilityChange

THROTTLED = ClientError("RequestThrottled", "Slower.", 403)
GONE = ClientError("ReceiptHandleIsInvalid", "Too late.", 400)


class StoppedClock(SystemClock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s


class ScriptedClient:
    """Answers deletes and changes by a script; what is left out succeeds."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.deleted: list[list[str]] = []
        self.changes: list[VisibilityChange] = []
        self.patience_s: list[float | None] = []
        self.refusals: list[Exception] = []

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        self.deleted.append(list(receipts))
        answers = [self.answers.pop(0) if self.answers else None for _ in receipts]
        for answer in answers:
            if answer is not None and not isinstance(answer, ClientError):
                raise answer
        return answers  # type: ignore[return-value]

    def delete(self, queue: str, receipt: str) -> None:
        self.deleted.append([receipt])
        if self.answers and (answer := self.answers.pop(0)) is not None:
            raise answer

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> list[ClientError | None]:
        """Note the changes, and refuse all of a request, or answer none of it, while there are ``refusals``."""
        self.changes += changes
        self.patience_s.append(patience_s)
        if self.refusals:
            refusal = self.refusals.pop(0)
            if not isinstance(refusal, ClientError) or refusal.status >= 500:
                raise refusal
            return [refusal] * len(changes)
        return [None] * len(changes)


class Desk:
    """A settler with leases to settle."""

    def __init__(self, *answers: Exception | None) -> None:
        self.clock = StoppedClock()
        self.table = LeaseTable(self.clock)
        self.client = ScriptedClient(*answers)
        client: Any = self.client  # as much of a client as a settler needs
        self.settler = Settler(client, Options(queue="q"), self.table, Counters(), self._at_once, pause=self._pause)
        self.queued_s = 0.0
        self.pauses: list[float] = []
        self.open_in_pauses: list[int] = []
        self._subscription = Subscription(self.table, "q", Fixed(30))

    def leases(self, count: int) -> list[Lease]:
        messages = [message(f"r{number}") for number in range(count)]
        return self.table.take(
            self._subscription, messages, requested_at_s=0, answered_at_s=self.clock.at_s, timeout_s=30
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.open_in_pauses.append(len(self.table))

    async def _at_once(self, call: Any, *args: Any) -> Any:
        self.clock.at_s += self.queued_s
        return call(*args)


async def test_an_entry_that_failed_is_tried_again_alone() -> None:
    desk = Desk(None, THROTTLED, None, THROTTLED, None)
    answers = await asyncio.gather(*map(desk.settler.delete, desk.leases(3)))
    assert answers == [True] * 3
    assert desk.client.deleted == [["r0", "r1", "r2"], ["r1"], ["r1"]]
    assert len(desk.pauses) == 2
    assert desk.pauses[0] < desk.pauses[1] * 2


async def test_a_message_is_leased_until_its_delete_is_confirmed() -> None:
    desk = Desk(Unreachable("http://nowhere", "made up"))
    (lease,) = desk.leases(1)
    assert await desk.settler.delete(lease)
    assert (desk.open_in_pauses, len(desk.table)) == ([1], 0)


async def test_a_delete_is_tried_again_whatever_the_client_raised() -> None:
    desk = Desk(KeyError("batch"), KeyError("single"))
    (lease,) = desk.leases(1)
    assert await desk.settler.delete(lease)
    assert (desk.client.deleted, len(desk.table)) == ([["r0"]] * 3, 0)


async def test_a_receipt_that_is_no_good_is_not_tried_again() -> None:
    desk = Desk(GONE)
    (lease,) = desk.leases(1)
    assert not await desk.settler.delete(lease)
    assert (desk.client.deleted, len(desk.table)) == ([["r0"]], 0)


async def test_a_delete_is_given_up_in_the_end() -> None:
    desk = Desk(*[THROTTLED] * (TRIES_MAX + 1))
    (lease,) = desk.leases(1)
    assert not await desk.settler.delete(lease)
    assert len(desk.client.deleted) == TRIES_MAX + 1


async def test_a_late_delete_is_certain_of_nothing() -> None:
    """The service may answer 200 to a receipt that deletes nothing."""
    desk = Desk()
    (lease,) = desk.leases(1)
    desk.clock.at_s = 31.0
    assert not await desk.settler.delete(lease)
    assert desk.client.deleted == [["r0"]]


async def test_a_release_is_never_sent_after_the_deadline() -> None:
    """Another consumer may work on the message by then."""
    desk = Desk()
    first, second = desk.leases(2)
    assert await desk.settler.release([first], 7) == [True]
    desk.clock.at_s = 30.0
    assert await desk.settler.release([second]) == [False]
    assert desk.client.changes == [VisibilityChange(receipt="r0", timeout_s=7)]
    assert len(desk.table) == 0


async def test_a_release_that_waited_for_a_thread_past_the_deadline_is_not_sent() -> None:
    """What was so when it was asked for is looked at again when it is sent; others of the batch are."""
    desk = Desk()
    (first,) = desk.leases(1)
    desk.clock.at_s, desk.queued_s = 20.0, 11.0
    (second,) = desk.leases(1)
    assert await desk.settler.release([first, second]) == [False, True]
    assert len(desk.client.changes) == 1


@pytest.mark.parametrize(("at_s", "patience_s"), [(25.0, 5.0), (0.0, PATIENCE_S_MAX)])
async def test_a_release_is_given_up_at_the_deadline(at_s: float, patience_s: float) -> None:
    """A client that tried it again later would set free what somebody else has."""
    desk = Desk()
    (lease,) = desk.leases(1)
    desk.clock.at_s = at_s
    assert await desk.settler.release([lease]) == [True]
    assert desk.client.patience_s == [patience_s]


async def test_a_lease_that_is_nearly_over_returns_by_itself() -> None:
    """And takes no time for an answer from the others of its batch."""
    desk = Desk()
    (first,) = desk.leases(1)
    desk.clock.at_s = 29.9
    (second,) = desk.leases(1)
    assert await desk.settler.release([first, second]) == [False, True]
    assert desk.client.patience_s == [PATIENCE_S_MAX]


UNANSWERED = [
    Unreachable("http://nowhere", "made up"),
    ClientError("InternalError", "Oops.", 503),
    ClientError(UNEXPECTED_REPLY, "The reply is not that of a queue server.", 200),
    KeyError("a client of the user's"),
]


@pytest.mark.parametrize("error", UNANSWERED, ids=["unreachable", "503", "nonsense", "client"])
async def test_a_release_without_an_answer_is_not_sent_again(error: Exception) -> None:
    """It may have made the message visible: by now another consumer may work on it. A backoff has time for it."""
    desk = Desk()
    first, second, third = desk.leases(3)
    desk.client.refusals = [error]
    assert await desk.settler.release([first]) == [False]
    assert (len(desk.client.changes), desk.pauses) == (1, [])
    desk.client.refusals = [error]
    assert await desk.settler.release([second], 7) == [True]
    assert desk.client.patience_s == [10.0, 10.0, 7.0]
    desk.client.refusals, desk.queued_s = [error], 8.0
    assert await desk.settler.release([third], 7) == [False]


async def test_a_release_that_was_refused_for_now_is_sent_again() -> None:
    """Nothing was done, and the lease is held: until its end."""
    desk = Desk()
    first, second = desk.leases(2)
    desk.client.refusals = [THROTTLED, THROTTLED]
    assert await desk.settler.release([first]) == [True]
    assert len(desk.client.changes) == 3
    desk.client.refusals = [GONE]
    assert await desk.settler.release([second]) == [False]
    assert len(desk.client.changes) == 4


async def test_a_backoff_ends_with_the_twelve_hours() -> None:
    desk = Desk()
    desk.clock.at_s = 40_000.0
    (lease,) = desk.leases(1)
    await desk.settler.release([lease], 20_000)
    assert desk.client.changes[0].timeout_s == 3_198


async def test_a_release_waits_for_a_renewal_on_its_way_and_a_delete_does_not() -> None:
    """A renewal that came after the release would hide the message again."""
    desk = Desk()
    first, second = desk.leases(2)
    desk.clock.at_s = 16.0
    (batch,) = desk.table.due()
    asked = desk.table.prepare(batch)
    assert await desk.settler.delete(first)
    releasing = asyncio.create_task(desk.settler.release([second]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert desk.client.changes == []
    desk.table.apply(asked, [RenewalResult.RENEWED] * len(asked))
    assert await releasing == [True]
    assert desk.client.changes == [VisibilityChange(receipt="r1", timeout_s=0)]


async def test_ten_are_sent_at_once_and_the_rest_a_moment_later() -> None:
    batches: list[list[int]] = []

    async def take(entries: Sequence[int]) -> list[ClientError | None]:
        batches.append(list(entries))
        return [None] * len(entries)

    batcher = Batcher(take, linger_s=0.01)
    await asyncio.gather(*(batcher.put(number) for number in range(1, 13)))
    assert batches == [list(range(1, 11)), [11, 12]]


async def test_the_one_untouched_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "HANDLED_IDS_MAX", 2)
    desk = Desk()
    first, second, third = (Context(lease.message, lease) for lease in desk.leases(3))
    for delivery in (first, second, first, third):
        await desk.settler.end(delivery, DONE)
    assert list(desk.settler.handled_ids) == [first.message_id, third.message_id]
