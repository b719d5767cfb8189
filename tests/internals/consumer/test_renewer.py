"""The renewer on a faulty network: retries, proofs, lost leases, and metrics."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.consumer.simulation import (
    BEYOND,
    BUSY,
    CUT_OFF,
    FORBIDDEN_FOR_NOW,
    GONE,
    THROTTLED,
    Answer,
    Play,
    ScriptedQueue,
    message,
)
from tests.testing.advancing import AdvancingClock
from veilmq.client.messages import ClientError, Hidden, Unreachable
from veilmq.consumer.leases import (
    Lease,
    LeaseLost,
    LeaseState,
    LeaseTable,
    RenewalRequest,
    Renewer,
    Subscription,
    Watcher,
)
from veilmq.consumer.metrics import Histogram, RenewalMetrics, class_of
from veilmq.consumer.renewal_policies import Fixed, NServiceBusPolicy, RenewalResult
from veilmq.testing import SteppedClock
from veilmq.testing.clocks import SteppedAlarm

HELD, SUSPECT, LOST, ENDED = LeaseState.HELD, LeaseState.SUSPECT, LeaseState.LOST, LeaseState.ENDED


def held(**options: Any) -> tuple[Play, Lease]:
    """Return a play with one lease of 30 s, which is renewed every 20 s."""
    play = Play(Fixed(30, 20), **options)
    (lease,) = play.take(timeout_s=30)
    return play, lease


class TestFaults:
    @pytest.mark.parametrize(
        "error",
        [BUSY, THROTTLED, FORBIDDEN_FOR_NOW, CUT_OFF, ClientError("AccessDenied", "Not now.", 403)],
        ids=["503", "throttled-400", "throttled-403", "cut-off", "denied"],
    )
    @pytest.mark.parametrize("whole", [True, False], ids=["call", "entry"])
    def test_a_failure_is_retried_within_0_15_s(self, error: ClientError | Unreachable, whole: bool) -> None:
        play, lease = held(jitter=0.5)
        entries = {"r": error} if isinstance(error, ClientError) else {}
        failed = Answer(error=error) if whole or not entries else Answer(entries=entries)
        play.queue.script = [failed, Answer(), failed]
        play.until(45)
        assert play.queue.renewals == [(20, 30), (20.1, 30), (40.1, 30), (40.2, 30)]
        assert play.news == []
        assert lease.state is HELD

    def test_failures_until_the_deadline_make_the_lease_suspect(self) -> None:
        """Pauses double up to 1.6 s. A 503 does not mean that the lease is lost."""
        play, _ = held(jitter=0.5)
        play.queue.script = [Answer(error=BUSY)] * 100
        play.until(29.999)
        assert play.news == []
        tries = [at_s for at_s, _ in play.queue.renewals]
        assert tries[:7] == [20, 20.1, 20.3, 20.7, 21.5, 23.1, 24.7]
        play.until(60)
        assert play.news == [(30, "r", SUSPECT)]

    def test_a_success_after_the_deadline_is_no_proof(self) -> None:
        """The message is hidden again, but another consumer may have it."""
        play, lease = held(jitter=0.5)
        play.queue.script = [Answer(error=BUSY)] * 11
        play.until(100)
        assert play.news == [(30, "r", SUSPECT)]
        assert lease.renewals > 0
        assert lease.expires_at_s > 100
        assert play.table.withdraw(lease).result(0) is False

    def test_a_reply_after_the_deadline_is_no_proof(self) -> None:
        """The server may have processed the request late, and replied 200 to a receipt without effect."""
        play, lease = held()
        play.until(19)
        play.jump(29.9)
        assert lease.state is HELD
        play, lease = held()
        play.queue.script = [Answer(takes_s=0.4)]
        play.jump(29.8)
        assert play.news == [(30.2, "r", SUSPECT)]

    @pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
    def test_a_late_reply_that_confirms_the_lease_is_proof(self, fifo: bool) -> None:
        play, lease = held(fifo=fifo)
        play.queue.script = [Answer(entries={"r": Hidden(30.0)}, takes_s=0.4)]
        play.jump(29.8)
        assert (play.news, lease.state) == ([], HELD)
        assert lease.expires_at_s == 59.8, "counted from the request, which needs no common clock"

    def test_a_lost_lease_stays_lost_after_a_late_proof(self) -> None:
        """Its handler has been cancelled."""
        play, lease = held(strict=True)
        play.clock.set(25)
        (request,) = play.table.prepare([lease])
        play.clock.set(31)
        play.renewer.run_due()
        assert play.news == [(31, "r", LOST)]
        play.table.apply([request], [RenewalResult.PROVEN])
        assert lease.state is LOST

    def test_a_shorter_grant_counts_and_a_longer_one_does_not(self) -> None:
        for granted_s, ends_s in ((12.0, 32), (99.0, 50)):
            play, lease = held()
            play.queue.script = [Answer(entries={"r": Hidden(granted_s)})]
            play.until(20)
            assert lease.expires_at_s == ends_s

    def test_a_reply_just_before_the_deadline_is_proof(self) -> None:
        play, lease = held()
        play.queue.script = [Answer(takes_s=0.1)]
        play.jump(29.8)
        assert play.news == []
        assert (lease.renewed_at_s, lease.expires_at_s) == (29.8, 59.8)

    def test_on_a_fifo_queue_a_lease_past_its_deadline_is_lost(self) -> None:
        play, _ = held(fifo=True)
        play.queue.script = [Answer(error=BUSY)] * 100
        play.until(60)
        assert play.news == [(30, "r", LOST)]
        assert play.queue.calls[-1].at_s < 30

    def test_each_entry_of_a_call_has_its_own_result(self) -> None:
        play = Play(Fixed(30, 20), jitter=0.5)
        leases = play.take("a", "b", "c", timeout_s=30)
        play.queue.script = [Answer(entries={"a": GONE, "b": THROTTLED})]
        play.until(21)
        assert [lease.state for lease in leases] == [LOST, HELD, HELD]
        assert [[receipt for receipt, _ in call.entries] for call in play.queue.calls] == [["a", "b", "c"], ["b"]]
        assert play.news == [(20, "a", LOST)]

    def test_a_call_without_a_reply_times_out_early_enough_for_a_retry(self) -> None:
        play, lease = held(jitter=0.5)
        play.queue.script = [Answer(takes_s=1_000)]
        play.until(26)
        assert play.queue.renewals == [(20, 30), (25.1, 30)]
        assert lease.state is HELD

    def test_after_a_stall_the_state_is_right_before_the_renewer_runs(self) -> None:
        play, lease = held()
        play.clock.set(40)
        assert lease.state_at(40) is SUSPECT
        assert not lease.may_release
        play.jump(40)
        assert play.news == [(40, "r", SUSPECT)]

    def test_an_unexpected_error_is_a_failed_try(self) -> None:
        play, lease = held(jitter=0.5)
        play.queue.script = [Answer(error=ZeroDivisionError())]  # type: ignore[arg-type]
        play.until(21)
        assert len(play.queue.calls) == 2
        assert lease.state is HELD


class TestEnd:
    """The limit of twelve hours, counted from the request of the receive."""

    def test_no_renewal_exceeds_the_limit_and_the_lease_ends_with_a_warning(self) -> None:
        play = Play(Fixed(300, 200))
        play.take(timeout_s=300)
        play.until(50_000)
        assert all(1 <= for_s <= 300 and at_s + for_s <= 43_200 for at_s, for_s in play.queue.renewals)
        assert play.queue.renewals[-1:] == [(43_000, 198)]
        assert play.news == [(43_198, "r", ENDED)]
        ((at_s, _, left_s),) = play.warnings
        assert 600 < left_s <= 900
        assert at_s + left_s == 43_200

    def test_a_suspect_lease_is_not_renewed_at_the_limit(self) -> None:
        """A renewal for no time would be a release."""
        play, _ = held(jitter=0.5)
        play.until(43_170)
        play.queue.script = [Answer(error=BUSY)] * 100
        play.until(50_000)
        assert play.news[0][2] is SUSPECT
        assert min(for_s for _, for_s in play.queue.renewals) >= 1

    def test_the_time_of_the_long_poll_counts(self) -> None:
        """The server may count from the request."""
        play = Play(Fixed(300, 200))
        play.table.take(play.subscription, [message("r")], requested_at_s=-20, answered_at_s=0, timeout_s=300)
        play.until(50_000)
        assert play.news == [(43_178, "r", ENDED)]

    def test_a_timeout_of_twelve_hours_is_never_renewed(self) -> None:
        """NServiceBus would send an invalid request, whose error looks like a lost lease."""
        play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=43_200))
        play.take(timeout_s=43_200)
        play.until(50_000)
        assert play.queue.calls == []
        assert play.news == [(43_200, "r", ENDED)]

    def test_a_refusal_because_of_the_limit_ends_renewals_and_not_the_lease(self) -> None:
        play = Play(Fixed(300, 200))
        (lease,) = play.take(timeout_s=300)
        play.queue.script = [Answer(entries={"r": BEYOND})]
        play.until(299)
        assert lease.state is HELD
        assert len(play.queue.calls) == 1
        play.until(301)
        assert play.news == [(300, "r", ENDED)]


class TestRaces:
    """Settling, releasing and fencing while a renewal is in flight."""

    def test_a_settle_does_not_wait_for_a_renewal_whose_error_is_ignored(self) -> None:
        play, lease = held()
        (request,) = sent(play, at_s=20)
        play.table.settle(lease)
        assert len(play.table.open_leases()) == 0
        play.table.apply([request], [RenewalResult.GONE])
        play.until(1_000)
        assert play.news == []
        assert play.queue.calls == []

    def test_a_dead_receipt_during_our_delete_does_not_lose_the_lease(self) -> None:
        play, lease = held(jitter=0.5)
        (request,) = sent(play, at_s=20)
        lease.deleting = True
        play.table.apply([request], [RenewalResult.GONE])
        assert lease.state is HELD
        play.until(21)
        assert play.queue.renewals == [(20.1, 30)], "the delete may fail, so the lease is still renewed"

    def test_a_release_waits_for_a_renewal(self) -> None:
        """The renewal would undo the release if it arrived later."""
        play, lease = held()
        (request,) = sent(play, at_s=20)
        withdrawal = play.table.withdraw(lease)
        assert not withdrawal.done()
        play.table.apply([request], [RenewalResult.RENEWED])
        assert withdrawal.result(0) is True
        play.until(1_000)
        assert play.queue.calls == []

    def test_a_release_is_forbidden_if_the_pending_renewal_loses_the_lease(self) -> None:
        play, lease = held()
        (request,) = sent(play, at_s=20)
        withdrawal = play.table.withdraw(lease)
        play.table.apply([request], [RenewalResult.GONE])
        assert withdrawal.result(0) is False

    def test_a_release_is_forbidden_after_the_deadline(self) -> None:
        play, lease = held()
        assert play.table.withdraw(lease).result(0) is True
        assert lease.may_release
        play.clock.set(30)
        assert not lease.may_release

    def test_settling_resolves_a_pending_withdrawal(self) -> None:
        play, lease = held()
        sent(play, at_s=20)
        withdrawal = play.table.withdraw(lease)
        play.table.settle(lease)
        play.table.settle(lease)
        assert withdrawal.result(0) is False
        assert play.table.withdraw(lease) is withdrawal

    def test_a_fence_renews_at_once(self) -> None:
        play, lease = held()
        play.until(5)
        confirmation = play.table.confirm(lease)
        assert not confirmation.done()
        play.until(6)
        assert confirmation.result(0) is HELD
        assert play.queue.renewals == [(5, 30)]
        play.until(26)
        assert play.queue.renewals == [(5, 30), (25, 30)]

    def test_a_fence_renews_although_the_policy_does_not(self) -> None:
        play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=0))
        (lease,) = play.take(timeout_s=30)
        confirmation = play.table.confirm(lease)
        play.until(100)
        assert confirmation.result(0) is HELD
        assert play.queue.renewals == [(0, 60)]

    @pytest.mark.parametrize("gone", [False, True])
    def test_a_cancelled_fence_does_not_affect_others(self, gone: bool) -> None:
        play, lease = held()
        cancelled, confirmation = play.table.confirm(lease), play.table.confirm(lease)
        cancelled.cancel()
        play.queue.script = [Answer(entries={"r": GONE})] if gone else []
        play.until(1)
        assert isinstance(confirmation.exception(0), LeaseLost) if gone else confirmation.result(0) is HELD

    @pytest.mark.parametrize("answer", [Answer(entries={"r": GONE}), Answer(takes_s=0.6)], ids=["gone", "too-late"])
    def test_a_fence_fails_without_proof(self, answer: Answer) -> None:
        play, lease = held()
        play.clock.set(29.5)
        confirmation = play.table.confirm(lease)
        play.queue.script = [answer]
        play.renewer.run_due()
        assert isinstance(confirmation.exception(0), LeaseLost)

    def test_a_fence_fails_when_the_limit_forbids_a_renewal_and_the_end_is_still_reported(self) -> None:
        play, lease = held()
        while not lease.reaches_limit:
            play.until((play.table.next_due_s() or 0) + 0.001)
        assert lease.state is HELD
        with pytest.raises(LeaseLost, match="ended"):
            play.table.confirm(lease).result(0)
        play.until(lease.expires_at_s + 1)
        assert lease.known_state is LeaseState.ENDED

    def test_a_fence_on_a_lost_lease_fails_at_once(self) -> None:
        play, lease = held()
        play.jump(40)
        calls = len(play.queue.calls)
        with pytest.raises(LeaseLost, match="suspect"):
            play.table.confirm(lease).result(0)
        assert len(play.queue.calls) == calls


class TestBatches:
    def test_a_call_is_filled_up_with_leases_due_next_unless_recently_renewed(self) -> None:
        play = Play(Fixed(30, 20))
        play.take("early", timeout_s=30)
        play.until(8)
        play.take("a", "b", timeout_s=30)
        play.until(15)
        play.take("late", timeout_s=30)
        play.until(21)
        assert [[receipt for receipt, _ in call.entries] for call in play.queue.calls] == [["early", "a", "b"]]

    def test_a_suspect_lease_does_not_shorten_the_timeout_of_the_others(self) -> None:
        play = Play(Fixed(30, 20), jitter=0.5, usual_s=1.0)
        play.take("late", timeout_s=1)
        play.jump(15)
        play.take("a", timeout_s=30)
        play.until(60)
        assert play.news == [(15, "late", SUSPECT)]

    def test_queues_do_not_share_calls(self) -> None:
        play = Play(Fixed(30, 20))
        play.take("a", timeout_s=30)
        other = Subscription(play.table, "invoices", Fixed(30, 20))
        play.table.take(other, [message("b")], requested_at_s=0, answered_at_s=0, timeout_s=30)
        play.until(20)
        assert [call.entries for call in play.queue.calls] == [(("a", 30),), (("b", 30),)]

    def test_the_table_forgets_settled_leases(self) -> None:
        play = Play(Fixed(30, 20))
        play.take("open", timeout_s=30)
        for _ in range(1_000):
            for lease in play.take(*map(str, range(10)), timeout_s=30):
                play.table.settle(lease)
            play.table.next_due_s()
        assert len(play.table.open_leases()) == 1
        play.until(21)
        assert play.queue.calls[0].entries == (("open", 30),)

    def test_a_cap_ends_renewals(self) -> None:
        play, _ = held(cap_s=50)
        play.until(200)
        assert play.queue.renewals == [(20, 30), (40, 30)]
        assert play.news == [(70, "r", SUSPECT)]

    def test_a_late_renewer_does_not_renew_past_the_cap(self) -> None:
        play, _ = held(cap_s=45)
        play.until(30)
        play.jump(46)
        play.until(100)
        assert play.queue.renewals == [(20, 30)]
        assert play.news == [(50, "r", SUSPECT)]

    def test_a_lease_settled_between_due_and_prepare_is_left_out(self) -> None:
        """Or withdrawn: the renewal would undo the release."""
        play = Play(Fixed(30, 20))
        leases = play.take("a", "b", "c", timeout_s=30)
        play.clock.set(20)
        (batch,) = play.table.due()
        play.table.settle(leases[0])
        play.table.withdraw(leases[2])
        assert [request.lease.message.receipt for request in play.table.prepare(batch)] == ["b"]
        play.table.settle(leases[1])
        play.renewer._renew(batch)
        assert play.queue.calls == []


class TestThread:
    """The renewer's own thread on a stepped clock."""

    def test_a_new_lease_wakes_the_sleeping_renewer(self) -> None:
        clock = AdvancingClock()
        queue, table = ScriptedQueue(clock), LeaseTable(clock)
        renewer = Renewer(table, queue.change_visibility_batch, calls_max=1)
        subscription = Subscription(table, "orders", Fixed(30, 20))
        renewer.start()
        clock.await_sleep()
        clock.settle()
        received = [message(str(number)) for number in range(12)]
        table.take(subscription, received, requested_at_s=0, answered_at_s=0, timeout_s=30)
        clock.advance(61)
        renewer.stop()
        assert sorted(round(call.at_s) for call in queue.calls) == [20, 20, 40, 40, 60, 60]
        assert "veilmq-renewer" not in [thread.name for thread in threading.enumerate()]

    def test_a_call_without_a_reply_delays_neither_those_of_other_leases_nor_a_stop(self) -> None:
        clock, replied, sent = AdvancingClock(), threading.Event(), {"a": threading.Event(), "b": threading.Event()}

        def change(queue: str, changes: Sequence[object], **_: object) -> list[None]:
            sent[queue].set()
            assert queue == "b" or replied.wait(60)
            return [None] * len(changes)

        table = LeaseTable(clock)
        renewer = Renewer(table, change)
        renewer.start()
        clock.await_sleep()
        for queue, every_s in (("a", 20), ("b", 21)):
            subscription = Subscription(table, queue, Fixed(30, every_s))
            table.take(subscription, [message(queue)], requested_at_s=0, answered_at_s=0, timeout_s=30)
        clock.set(20)
        assert sent["a"].wait(30)
        clock.set(21)
        in_time = sent["b"].wait(30)
        stopping = threading.Thread(target=renewer.stop)
        stopping.start()
        stopping.join(10)
        in_time = in_time and not stopping.is_alive()
        replied.set()
        assert in_time

    def test_a_lease_that_a_fence_renews_while_its_call_waits_for_a_thread_is_sent_once(self) -> None:
        play, lease = held()
        play.clock.set(20)
        (batch,) = play.table.due()
        play.table.confirm(lease)
        (again,) = play.table.due()
        assert [len(play.table.prepare(each)) for each in (again, batch)] == [1, 0]

    def test_errors_of_watchers_and_metrics_are_logged_and_do_not_end_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Failing(Watcher):
            def changed(self, lease: Lease, state: LeaseState) -> object:
                raise LookupError("watching failed")

        class FailingMetrics(RenewalMetrics):
            def add(self, results: Sequence[RenewalResult], errors: Sequence[Exception], took_s: float) -> None:
                raise LookupError("measuring failed")

        clock = AdvancingClock()
        queue = ScriptedQueue(clock)
        queue.script = [Answer(entries={"a": GONE, "b": GONE})]
        table = LeaseTable(clock)
        table.metrics = FailingMetrics()
        renewer = Renewer(table, queue.change_visibility_batch, calls_max=1)
        subscription = Subscription(table, "orders", Fixed(30, 20), watcher=Failing())
        leases = table.take(subscription, list(map(message, "abc")), requested_at_s=0, answered_at_s=0, timeout_s=30)
        renewer.start()
        clock.await_sleep()
        clock.advance(41)
        renewer.stop()
        assert [lease.state for lease in leases] == [LOST, LOST, HELD]
        assert [round(call.at_s) for call in queue.calls] == [20, 40]
        assert {record.exc_text and record.exc_text.splitlines()[-1] for record in caplog.records} == {
            "LookupError: watching failed",
            "LookupError: measuring failed",
        }

    def test_only_an_earlier_due_instant_wakes_it(self) -> None:
        clock = CountingClock()
        table = LeaseTable(clock)
        subscription = Subscription(table, "orders", Fixed(30, 20))

        def take() -> None:
            now_s = clock.now_s()
            table.take(subscription, [message("r")], requested_at_s=now_s, answered_at_s=now_s, timeout_s=30)

        take()
        assert clock.rings == 1
        table.next_due_s()
        clock.set(1)
        take()
        assert clock.rings == 1
        table.confirm(table.open_leases()[1])
        assert clock.rings == 2

    def test_a_stop_before_the_start_does_nothing(self) -> None:
        clock = AdvancingClock()
        Renewer(LeaseTable(clock), ScriptedQueue(clock).change_visibility_batch).stop()


class CountingClock(SteppedClock):
    """Counts how often its alarms ring."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0

    def alarm(self) -> "CountingAlarm":
        return CountingAlarm(self, threading.Condition())


class CountingAlarm(SteppedAlarm):
    def __init__(self, clock: CountingClock, moved: threading.Condition) -> None:
        super().__init__(clock, moved)
        self._counting = clock

    def ring(self) -> None:
        self._counting.rings += 1


def sent(play: Play, *, at_s: float) -> list[RenewalRequest]:
    """Return the requests that are due at ``at_s``, as if they were in flight."""
    play.clock.set(at_s)
    return [request for batch in play.table.due() for request in play.table.prepare(batch)]


@pytest.fixture
def play() -> Play:
    return Play(Fixed(30, 20), jitter=0.5)


@pytest.fixture
def counted(play: Play) -> RenewalMetrics:
    return play.table.metrics


def observed(histogram: Histogram) -> tuple[int, float]:
    """Return the number of observations and their sum."""
    return sum(histogram.counts), round(histogram.sum_s, 6)


def test_margin_and_lateness_are_measured_at_each_renewal(play: Play, counted: RenewalMetrics) -> None:
    play.take(timeout_s=30)
    play.until(25)
    assert observed(counted.margin) == (1, 10.0)
    assert observed(counted.lateness) == (1, 0.0)
    play.until(42, late_s=1.5)
    assert observed(counted.margin) == (2, 18.5)
    assert observed(counted.lateness) == (2, 1.5)
    assert (counted.calls, counted.results.total()) == (2, 2)


def test_a_retry_has_a_margin_and_is_not_late(play: Play, counted: RenewalMetrics) -> None:
    play.take(timeout_s=30)
    play.queue.script = [Answer(error=BUSY)]
    play.until(25)
    assert observed(counted.margin) == (2, 19.9)
    assert observed(counted.lateness) == (1, 0.0)
    assert +counted.results == {"again": 1, "renewed": 1}


def test_errors_are_counted_by_entry(play: Play, counted: RenewalMetrics) -> None:
    play.take("a", "b", timeout_s=30)
    play.queue.script = [Answer(error=BUSY), Answer(entries={"a": GONE, "b": THROTTLED})]
    play.until(25)
    assert counted.errors == {"ServiceUnavailable": 2, "InvalidParameterValue": 1, "Throttling": 1}


def test_an_error_without_a_code_is_named_by_its_class() -> None:
    assert class_of(Unreachable("http://queue", "cut off")) == "Unreachable"
