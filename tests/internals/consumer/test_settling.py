"""Settling at the server: batches, retries, and the rule that a receipt past its deadline releases nothing."""

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
from veilmq.consumer.settling import CALL_TIMEOUT_S_MAX, TRIES_MAX, Batcher, Settler
from veilmq.core.commands import VisibilityChange

THROTTLED = ClientError("RequestThrottled", "Slower.", 403)
GONE = ClientError("ReceiptHandleIsInvalid", "Too late.", 400)


class StoppedClock(SystemClock):
    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s


class ScriptedClient:
    """Reply to deletes as scripted, then with success; changes fail while there are ``refusals``."""

    def __init__(self, *results: Exception | None) -> None:
        self.results = list(results)
        self.deleted: list[list[str]] = []
        self.changes: list[VisibilityChange] = []
        self.call_timeout_s: list[float | None] = []
        self.refusals: list[Exception] = []

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        self.deleted.append(list(receipts))
        results = [self.results.pop(0) if self.results else None for _ in receipts]
        for result in results:
            if result is not None and not isinstance(result, ClientError):
                raise result
        return results  # type: ignore[return-value]

    def delete(self, queue: str, receipt: str) -> None:
        self.deleted.append([receipt])
        if self.results and (result := self.results.pop(0)) is not None:
            raise result

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, call_timeout_s: float | None = None
    ) -> list[ClientError | None]:
        self.changes += changes
        self.call_timeout_s.append(call_timeout_s)
        if self.refusals:
            refusal = self.refusals.pop(0)
            if not isinstance(refusal, ClientError) or refusal.status >= 500:
                raise refusal
            return [refusal] * len(changes)
        return [None] * len(changes)


class Desk:
    """A settler with leases to settle."""

    def __init__(self, *results: Exception | None) -> None:
        self.clock = StoppedClock()
        self.table = LeaseTable(self.clock)
        self.client = ScriptedClient(*results)
        client: Any = self.client  # the part of a client that a settler uses
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
        self.open_in_pauses.append(len(self.table.open_leases()))

    async def _at_once(self, call: Any, *args: Any) -> Any:
        self.clock.at_s += self.queued_s
        return call(*args)


async def test_a_failed_delete_of_a_batch_is_retried_alone() -> None:
    desk = Desk(None, THROTTLED, None, THROTTLED, None)
    results = await asyncio.gather(*map(desk.settler.delete, desk.leases(3)))
    assert results == [True] * 3
    assert desk.client.deleted == [["r0", "r1", "r2"], ["r1"], ["r1"]]
    assert len(desk.pauses) == 2
    assert desk.pauses[0] < desk.pauses[1] * 2


async def test_a_lease_is_held_until_the_delete_is_confirmed() -> None:
    desk = Desk(Unreachable("http://nowhere", "made up"))
    (lease,) = desk.leases(1)
    assert await desk.settler.delete(lease)
    assert (desk.open_in_pauses, len(desk.table.open_leases())) == ([1], 0)


async def test_a_delete_is_retried_after_any_exception() -> None:
    desk = Desk(KeyError("batch"), KeyError("single"))
    (lease,) = desk.leases(1)
    assert await desk.settler.delete(lease)
    assert (desk.client.deleted, len(desk.table.open_leases())) == ([["r0"]] * 3, 0)


async def test_a_dead_receipt_is_not_retried() -> None:
    desk = Desk(GONE)
    (lease,) = desk.leases(1)
    assert not await desk.settler.delete(lease)
    assert (desk.client.deleted, len(desk.table.open_leases())) == ([["r0"]], 0)


@pytest.mark.parametrize(("error", "at_s", "stopping", "limited"), [
    (THROTTLED, 0.0, False, False), (Unreachable("http://nowhere", "it restarts"), 0.0, False, False),
    (THROTTLED, 31.0, False, True), (ClientError("AccessDenied", "No.", 403), 0.0, False, True),
    (THROTTLED, 0.0, True, True),
], ids=repr)  # fmt: skip
async def test_a_delete_is_retried_while_the_lease_is_held(
    error: Exception, at_s: float, stopping: bool, limited: bool
) -> None:
    """Otherwise an outage of some seconds would let another consumer handle the message again."""
    desk = Desk(*[error] * 3 * TRIES_MAX)
    (lease,) = desk.leases(1)
    desk.clock.at_s, desk.settler.stopping = at_s, stopping
    assert await desk.settler.delete(lease) is not limited
    assert len(desk.client.deleted) == (TRIES_MAX if limited else 3 * TRIES_MAX) + 1


async def test_a_delete_after_the_deadline_is_uncertain() -> None:
    """A service may reply 200 to a receipt that deletes nothing."""
    desk = Desk()
    (lease,) = desk.leases(1)
    desk.clock.at_s = 31.0
    assert not await desk.settler.delete(lease)
    assert desk.client.deleted == [["r0"]]


async def test_a_release_is_not_sent_after_the_deadline() -> None:
    desk = Desk()
    first, second = desk.leases(2)
    assert await desk.settler.release([first], 7) == [True]
    desk.clock.at_s = 30.0
    assert await desk.settler.release([second]) == [False]
    assert desk.client.changes == [VisibilityChange(receipt="r0", timeout_s=7)]
    assert len(desk.table.open_leases()) == 0


async def test_a_release_whose_lease_ends_in_the_queue_of_threads_is_not_sent() -> None:
    """The deadline is checked again at the send; others of the batch are sent."""
    desk = Desk()
    (first,) = desk.leases(1)
    desk.clock.at_s, desk.queued_s = 20.0, 11.0
    (second,) = desk.leases(1)
    assert await desk.settler.release([first, second]) == [False, True]
    assert len(desk.client.changes) == 1


@pytest.mark.parametrize(("at_s", "call_timeout_s"), [(25.0, 5.0), (0.0, CALL_TIMEOUT_S_MAX)])
async def test_the_timeout_of_a_release_ends_at_the_deadline(at_s: float, call_timeout_s: float) -> None:
    """A later retry could release a message that another consumer holds."""
    desk = Desk()
    (lease,) = desk.leases(1)
    desk.clock.at_s = at_s
    assert await desk.settler.release([lease]) == [True]
    assert desk.client.call_timeout_s == [call_timeout_s]


async def test_a_lease_that_is_nearly_over_is_not_released() -> None:
    """It would shorten the timeout of its batch."""
    desk = Desk()
    (first,) = desk.leases(1)
    desk.clock.at_s = 29.9
    (second,) = desk.leases(1)
    assert await desk.settler.release([first, second]) == [False, True]
    assert desk.client.call_timeout_s == [CALL_TIMEOUT_S_MAX]


OUTCOME_UNKNOWN = [
    Unreachable("http://nowhere", "made up"),
    ClientError("InternalError", "Oops.", 503),
    ClientError(UNEXPECTED_REPLY, "The reply is not that of a queue server.", 200),
    KeyError("a client of the user's"),
]


@pytest.mark.parametrize("error", OUTCOME_UNKNOWN, ids=["unreachable", "503", "nonsense", "client"])
async def test_a_release_without_a_reply_is_retried_only_before_the_message_may_be_visible(error: Exception) -> None:
    """Afterwards another consumer may hold the message. A backoff leaves time for a retry."""
    desk = Desk()
    first, second, third = desk.leases(3)
    desk.client.refusals = [error]
    assert await desk.settler.release([first]) == [False]
    assert (len(desk.client.changes), desk.pauses) == (1, [])
    desk.client.refusals = [error]
    assert await desk.settler.release([second], 7) == [True]
    assert desk.client.call_timeout_s == [10.0, 10.0, 7.0]
    desk.client.refusals, desk.queued_s = [error], 8.0
    assert await desk.settler.release([third], 7) == [False]


async def test_a_throttled_release_is_retried() -> None:
    desk = Desk()
    first, second = desk.leases(2)
    desk.client.refusals = [THROTTLED, THROTTLED]
    assert await desk.settler.release([first]) == [True]
    assert len(desk.client.changes) == 3
    desk.client.refusals = [GONE]
    assert await desk.settler.release([second]) == [False]
    assert len(desk.client.changes) == 4


async def test_a_backoff_ends_at_the_limit_of_twelve_hours() -> None:
    desk = Desk()
    desk.clock.at_s = 40_000.0
    (lease,) = desk.leases(1)
    await desk.settler.release([lease], 20_000)
    assert desk.client.changes[0].timeout_s == 3_198


async def test_a_release_waits_for_a_renewal_in_flight_and_a_delete_does_not() -> None:
    """A renewal that arrives after the release would hide the message again."""
    desk = Desk()
    first, second = desk.leases(2)
    desk.clock.at_s = 16.0
    (batch,) = desk.table.due()
    requests = desk.table.prepare(batch)
    assert await desk.settler.delete(first)
    releasing = asyncio.create_task(desk.settler.release([second]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert desk.client.changes == []
    desk.table.apply(requests, [RenewalResult.RENEWED] * len(requests))
    assert await releasing == [True]
    assert desk.client.changes == [VisibilityChange(receipt="r1", timeout_s=0)]


async def test_a_full_batch_is_sent_at_once_and_the_rest_lingers() -> None:
    batches: list[list[int]] = []

    async def take(entries: Sequence[int]) -> list[ClientError | None]:
        batches.append(list(entries))
        return [None] * len(entries)

    batcher = Batcher(take, linger_s=0.01)
    await asyncio.gather(*(batcher.put(number) for number in range(1, 13)))
    assert batches == [list(range(1, 11)), [11, 12]]


async def test_the_least_recently_handled_id_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "HANDLED_IDS_MAX", 2)
    desk = Desk()
    first, second, third = (Context(lease.message, lease) for lease in desk.leases(3))
    for delivery in (first, second, first, third):
        await desk.settler.end(delivery, DONE)
    assert list(desk.settler.handled_ids) == [first.message_id, third.message_id]
