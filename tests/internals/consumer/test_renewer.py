"""The renewer against a network that fails: what is tried again, what is believed, what is lost, what is counted."""

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
    """One lease of 30 s, renewed every 20 s, and a script."""

    @pytest.mark.parametrize(
        "error",
        [BUSY, THROTTLED, FORBIDDEN_FOR_NOW, CUT_OFF, ClientError("AccessDenied", "Not now.", 403)],
        ids=["503", "throttled-400", "throttled-403", "cut-off", "denied"],
    )
    @pytest.mark.parametrize("whole", [True, False], ids=["call", "entry"])
    def test_one_failure_is_tried_again_at_once(self, error: ClientError | Unreachable, whole: bool) -> None:
        """The next try comes within 0.15 s, and the lease was never in doubt."""
        play, lease = held(jitter=0.5)
        entries = {"r": error} if isinstance(error, ClientError) else {}
        play.queue.script = [Answer(error=error) if whole or not entries else Answer(entries=entries)]
        play.until(45)
        assert play.queue.renewals == [(20, 30), (20.1, 30), (40.1, 30)]
        assert play.news == []
        assert lease.state is HELD

    def test_failures_until_the_end_leave_the_lease_in_doubt(self) -> None:
        """Pauses double up to 1.6 s; at the deadline it is SUSPECT, and not before; no 503 makes it LOST."""
        play, _ = held(jitter=0.5)
        play.queue.script = [Answer(error=BUSY)] * 100
        play.until(29.999)
        assert play.news == []
        tries = [at_s for at_s, _ in play.queue.renewals]
        assert tries[:7] == [20, 20.1, 20.3, 20.7, 21.5, 23.1, 24.7]
        play.until(60)
        assert play.news == [(30, "r", SUSPECT)]

    def test_a_success_after_the_end_proves_nothing(self) -> None:
        """The message is hidden again, which may save it, but whether somebody else has it is not known."""
        play, lease = held(jitter=0.5)
        play.queue.script = [Answer(error=BUSY)] * 11
        play.until(100)
        assert play.news == [(30, "r", SUSPECT)]
        assert lease.renewals > 0
        assert lease.expires_at_s > 100
        assert play.table.withdraw(lease).result(0) is False

    def test_an_answer_that_comes_after_the_end_proves_nothing(self) -> None:
        """It was sent in time; but a server that took it late may have said yes to a receipt that does nothing."""
        play, lease = held()
        play.until(19)
        play.jump(29.9)
        assert lease.state is HELD
        play, lease = held()
        play.queue.script = [Answer(takes_s=0.4)]
        play.jump(29.8)
        assert play.news == [(30.2, "r", SUSPECT)]

    @pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
    def test_a_server_that_says_what_it_did_is_believed_however_late(self, fifo: bool) -> None:
        """It answers after the end that nobody else has had the message: it was ours all the time."""
        play, lease = held(fifo=fifo)
        play.queue.script = [Answer(entries={"r": Hidden(30.0)}, takes_s=0.4)]
        play.jump(29.8)
        assert (play.news, lease.state) == ([], HELD)
        assert lease.expires_at_s == 59.8, "it counts from the request, so that no clocks have to agree"

    def test_a_lease_that_was_lost_stays_lost(self) -> None:
        """Its handler was cancelled: no proof comes back from that."""
        play, lease = held(strict=True)
        (asked,) = play.table.prepare([lease])
        play.clock.set(31)
        play.renewer.run_due()
        assert play.news == [(31, "r", LOST)]
        play.table.apply([asked], [RenewalResult.PROVEN])
        assert lease.state is LOST

    def test_a_server_that_grants_less_is_believed(self) -> None:
        """Less than was asked for counts, more does not."""
        for granted_s, ends_s in ((12.0, 32), (99.0, 50)):
            play, lease = held()
            play.queue.script = [Answer(entries={"r": Hidden(granted_s)})]
            play.until(20)
            assert lease.expires_at_s == ends_s

    def test_an_answer_just_in_time_is_proof(self) -> None:
        """And the new deadline counts from when it was sent."""
        play, lease = held()
        play.queue.script = [Answer(takes_s=0.1)]
        play.jump(29.8)
        assert play.news == []
        assert lease.expires_at_s == 59.8

    def test_in_a_fifo_queue_doubt_is_loss(self) -> None:
        play, _ = held(fifo=True)
        play.queue.script = [Answer(error=BUSY)] * 100
        play.until(60)
        assert play.news == [(30, "r", LOST)]
        assert play.queue.calls[-1].at_s < 30

    def test_a_failed_entry_fails_alone(self) -> None:
        """One is gone, one is throttled, the others are renewed: each by what was said about it."""
        play = Play(Fixed(30, 20), jitter=0.5)
        leases = play.take("a", "b", "c", timeout_s=30)
        play.queue.script = [Answer(entries={"a": GONE, "b": THROTTLED})]
        play.until(21)
        assert [lease.state for lease in leases] == [LOST, HELD, HELD]
        assert [[receipt for receipt, _ in call.entries] for call in play.queue.calls] == [["a", "b", "c"], ["b"]]
        assert play.news == [(20, "a", LOST)]

    def test_a_swallowed_call_costs_a_try_and_not_the_lease(self) -> None:
        """The first call gets no answer; it is given up in time for others."""
        play, lease = held(jitter=0.5)
        play.queue.script = [Answer(takes_s=1_000)]
        play.until(26)
        assert play.queue.renewals == [(20, 30), (25.1, 30)]
        assert lease.state is HELD

    def test_a_stop_of_the_process_is_noticed_at_the_first_look(self) -> None:
        """Stopped for 40 s and woken: the state is in doubt for whoever looks, before the renewer does."""
        play, lease = held()
        play.clock.set(40)
        assert lease.state_at(40) is SUSPECT
        assert not lease.may_release
        play.jump(40)
        assert play.news == [(40, "r", SUSPECT)]

    def test_nothing_ends_the_renewers_thread(self) -> None:
        """An error that nobody thought of is a failed try."""
        play, lease = held(jitter=0.5)
        play.queue.script = [Answer(error=ZeroDivisionError())]  # type: ignore[arg-type]
        play.until(21)
        assert len(play.queue.calls) == 2
        assert lease.state is HELD


class TestEnd:
    """The twelve hours of a message, counted from when its receive was sent."""

    def test_the_last_renewals_ask_for_less_and_then_for_nothing(self) -> None:
        """No request goes beyond; there is a warning; and the end is no loss."""
        play = Play(Fixed(300, 200))
        play.take(timeout_s=300)
        play.until(50_000)
        assert all(1 <= for_s <= 300 and at_s + for_s <= 43_200 for at_s, for_s in play.queue.renewals)
        assert play.queue.renewals[-1:] == [(43_000, 198)]
        assert play.news == [(43_198, "r", ENDED)]
        ((at_s, _, left_s),) = play.warnings
        assert 600 < left_s <= 900
        assert at_s + left_s == 43_200

    def test_the_time_of_the_long_poll_counts(self) -> None:
        """The server counts from the request, for all that is known."""
        play = Play(Fixed(300, 200))
        play.table.take(play.subscription, [message("r")], requested_at_s=-20, answered_at_s=0, timeout_s=300)
        play.until(50_000)
        assert play.news == [(43_178, "r", ENDED)]

    def test_a_timeout_of_twelve_hours_is_never_renewed(self) -> None:
        """There is nothing to win; the request that NServiceBus would send is illegal, and would read as a loss."""
        play = Play(NServiceBusPolicy(max_auto_message_visibility_renewal_duration=43_200))
        play.take(timeout_s=43_200)
        play.until(50_000)
        assert play.queue.calls == []
        assert play.news == [(43_200, "r", ENDED)]

    def test_a_server_that_counts_earlier_ends_renewals_and_not_the_lease(self) -> None:
        """Its refusal of the total is no loss: what was granted before still holds."""
        play = Play(Fixed(300, 200))
        (lease,) = play.take(timeout_s=300)
        play.queue.script = [Answer(entries={"r": BEYOND})]
        play.until(299)
        assert lease.state is HELD
        assert len(play.queue.calls) == 1
        play.until(301)
        assert play.news == [(300, "r", ENDED)]


class TestRaces:
    """Settling, releasing and fencing while a renewal is on its way."""

    def test_a_delete_does_not_wait_for_a_renewal(self) -> None:
        """It is settled at once, and the late error of the renewal means nothing."""
        play, lease = held()
        (asked,) = sent(play, at_s=20)
        play.table.settle(lease)
        assert len(play.table) == 0
        play.table.apply([asked], [RenewalResult.GONE])
        play.until(1_000)
        assert play.news == []
        assert play.queue.calls == []

    def test_a_renewal_that_meets_our_own_delete_is_no_loss(self) -> None:
        """The message is gone because we deleted it, and the answer to that is still on its way."""
        play, lease = held(jitter=0.5)
        (asked,) = sent(play, at_s=20)
        lease.deleting = True
        play.table.apply([asked], [RenewalResult.GONE])
        assert lease.state is HELD
        play.until(21)
        assert play.queue.renewals == [(20.1, 30)], "should the delete have failed, the lease is still kept"

    def test_a_release_waits_for_a_renewal(self) -> None:
        """Sent before the renewal has arrived, it would be undone by it."""
        play, lease = held()
        (asked,) = sent(play, at_s=20)
        withdrawal = play.table.withdraw(lease)
        assert not withdrawal.done()
        play.table.apply([asked], [RenewalResult.RENEWED])
        assert withdrawal.result(0) is True
        play.until(1_000)
        assert play.queue.calls == []

    def test_a_release_after_a_loss_is_forbidden(self) -> None:
        """The renewal that was waited for brought the bad news."""
        play, lease = held()
        (asked,) = sent(play, at_s=20)
        withdrawal = play.table.withdraw(lease)
        play.table.apply([asked], [RenewalResult.GONE])
        assert withdrawal.result(0) is False

    def test_a_release_past_the_deadline_is_forbidden(self) -> None:
        """Allowed when it was asked for, not any more when it is to be sent."""
        play, lease = held()
        assert play.table.withdraw(lease).result(0) is True
        assert lease.may_release
        play.clock.set(30)
        assert not lease.may_release

    def test_a_withdrawn_lease_that_is_settled_tells_so(self) -> None:
        """Nobody waits for ever, and settling twice is harmless."""
        play, lease = held()
        sent(play, at_s=20)
        withdrawal = play.table.withdraw(lease)
        play.table.settle(lease)
        play.table.settle(lease)
        assert withdrawal.result(0) is False
        assert play.table.withdraw(lease) is withdrawal

    def test_a_fence_is_a_renewal_at_once(self) -> None:
        play, lease = held()
        play.until(5)
        fence = play.table.confirm(lease)
        assert not fence.done()
        play.until(6)
        assert fence.result(0) is HELD
        assert play.queue.renewals == [(5, 30)]
        play.until(26)
        assert play.queue.renewals == [(5, 30), (25, 30)]

    @pytest.mark.parametrize("gone", [False, True])
    def test_a_fence_that_nobody_waits_for_harms_nobody(self, gone: bool) -> None:
        """The handler was cancelled in it. The other one, which waits for the same answer, has it."""
        play, lease = held()
        given_up, fence = play.table.confirm(lease), play.table.confirm(lease)
        given_up.cancel()
        play.queue.script = [Answer(entries={"r": GONE})] if gone else []
        play.until(1)
        assert isinstance(fence.exception(0), LeaseLost) if gone else fence.result(0) is HELD

    @pytest.mark.parametrize("answer", [Answer(entries={"r": GONE}), Answer(takes_s=0.6)], ids=["gone", "too-late"])
    def test_a_fence_fails_without_proof(self, answer: Answer) -> None:
        play, lease = held()
        play.clock.set(29.5)
        fence = play.table.confirm(lease)
        play.queue.script = [answer]
        play.renewer.run_due()
        assert isinstance(fence.exception(0), LeaseLost)

    def test_a_fence_fails_when_the_twelve_hours_leave_no_renewal_and_their_end_is_noticed(self) -> None:
        play, lease = held()
        while not lease.final:
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
    """What shares a call."""

    def test_a_call_is_filled_with_what_is_due_next(self) -> None:
        """Each with its own timeout; what was renewed lately stays out."""
        play = Play(Fixed(30, 20))
        play.take("early", timeout_s=30)
        play.until(8)
        play.take("a", "b", timeout_s=30)
        play.until(15)
        play.take("late", timeout_s=30)
        play.until(21)
        assert [[receipt for receipt, _ in call.entries] for call in play.queue.calls] == [["early", "a", "b"]]

    def test_queues_do_not_share_calls(self) -> None:
        """A call is for one queue, whatever is due together."""
        play = Play(Fixed(30, 20))
        play.take("a", timeout_s=30)
        other = Subscription(play.table, "invoices", Fixed(30, 20))
        play.table.take(other, [message("b")], requested_at_s=0, answered_at_s=0, timeout_s=30)
        play.until(20)
        assert [call.entries for call in play.queue.calls] == [(("a", 30),), (("b", 30),)]

    def test_the_table_does_not_keep_what_is_settled(self) -> None:
        """Thousands of messages that were settled at once leave next to nothing behind, whatever is open."""
        play = Play(Fixed(30, 20))
        play.take("open", timeout_s=30)
        for _ in range(1_000):
            for lease in play.take(*map(str, range(10)), timeout_s=30):
                play.table.settle(lease)
            play.table.next_due_s()
        assert len(play.table) == 1
        play.until(21)
        assert play.queue.calls[0].entries == (("open", 30),)

    def test_a_cap_ends_renewals(self) -> None:
        """A handler may hold its message for so long and no longer."""
        play, _ = held(cap_s=50)
        play.until(200)
        assert play.queue.renewals == [(20, 30), (40, 30)]
        assert play.news == [(70, "r", SUSPECT)]

    def test_a_cap_that_passes_while_nobody_looks_counts(self) -> None:
        """Woken late, the renewer lets be what it may not renew any more, and notices the end."""
        play, _ = held(cap_s=45)
        play.until(30)
        play.jump(46)
        play.until(100)
        assert play.queue.renewals == [(20, 30)]
        assert play.news == [(50, "r", SUSPECT)]

    def test_what_is_settled_on_the_way_to_the_call_stays_out(self) -> None:
        """Between being found due and being sent, and an empty call is not made."""
        play = Play(Fixed(30, 20))
        leases = play.take("a", "b", timeout_s=30)
        play.clock.set(20)
        (batch,) = play.table.due()
        play.table.settle(leases[0])
        assert [asked.lease.message.receipt for asked in play.table.prepare(batch)] == ["b"]
        play.table.settle(leases[1])
        play.renewer._renew(batch)
        assert play.queue.calls == []


class TestThread:
    """The renewer's own thread, on a clock that stands still until it is moved."""

    def test_it_renews_what_others_take_and_stops(self) -> None:
        """A lease that is taken while it sleeps without a date wakes it."""
        clock = SteppedClock()
        queue, table = ScriptedQueue(clock), LeaseTable(clock)
        renewer = Renewer(table, queue.change_visibility_batch, calls_max=2)
        subscription = Subscription(table, "orders", Fixed(30, 20))
        renewer.start()
        clock.settle()
        received = [message(str(number)) for number in range(12)]
        table.take(subscription, received, requested_at_s=0, answered_at_s=0, timeout_s=30)
        clock.advance(61)
        renewer.stop()
        assert sorted(round(call.at_s) for call in queue.calls) == [20, 20, 40, 40, 60, 60]
        assert "veilmq-renewer" not in [thread.name for thread in threading.enumerate()]

    def test_whoever_watches_and_fails_does_not_end_it(self, caplog: pytest.LogCaptureFixture) -> None:
        """Leases, and all who wait for them, depend on it; what failed is logged."""

        class Failing(Watcher):
            def changed(self, lease: Lease, state: LeaseState) -> object:
                raise LookupError("watching failed")

        class FailingMetrics(RenewalMetrics):
            def called(self, results: Sequence[RenewalResult], errors: Sequence[Exception], took_s: float) -> None:
                raise LookupError("measuring failed")

        clock = SteppedClock()
        queue = ScriptedQueue(clock)
        queue.script = [Answer(entries={"a": GONE, "b": GONE})]
        table = LeaseTable(clock)
        table.metrics = FailingMetrics()
        renewer = Renewer(table, queue.change_visibility_batch, calls_max=1)
        subscription = Subscription(table, "orders", Fixed(30, 20), watcher=Failing())
        leases = table.take(subscription, list(map(message, "abc")), requested_at_s=0, answered_at_s=0, timeout_s=30)
        renewer.start()
        clock.advance(41)
        renewer.stop()
        assert [lease.state for lease in leases] == [LOST, LOST, HELD]
        assert [round(call.at_s) for call in queue.calls] == [20, 40]
        assert {record.exc_text and record.exc_text.splitlines()[-1] for record in caplog.records} == {
            "LookupError: watching failed",
            "LookupError: measuring failed",
        }

    def test_it_is_woken_for_nothing_that_can_wait(self) -> None:
        """A lease that is due after what it waits for anyway lets it sleep."""
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

    def test_stopping_before_the_start_is_harmless(self) -> None:
        """As it is for whoever cleans up after a failed start."""
        clock = SteppedClock()
        Renewer(LeaseTable(clock), ScriptedQueue(clock).change_visibility_batch).stop()


class CountingClock(SteppedClock):
    """Counts how often its alarms ring."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0

    def alarm(self) -> "CountingAlarm":
        return CountingAlarm(self, threading.Condition())


class CountingAlarm(SteppedAlarm):
    """Counts on its clock."""

    def __init__(self, clock: CountingClock, moved: threading.Condition) -> None:
        super().__init__(clock, moved)
        self._counting = clock

    def ring(self) -> None:
        self._counting.rings += 1


def sent(play: Play, *, at_s: float) -> list[RenewalRequest]:
    """Have everything that is due at ``at_s`` be on its way."""
    play.clock.set(at_s)
    return [asked for batch in play.table.due() for asked in play.table.prepare(batch)]


def test_a_timeout_of_zero_is_refused() -> None:
    """NServiceBus would renew it in a loop without a pause."""
    play = Play(NServiceBusPolicy())
    with pytest.raises(ValueError, match="visibility timeout of 0 s cannot be kept"):
        play.take(timeout_s=0)


@pytest.fixture
def play() -> Play:
    return Play(Fixed(30, 20), jitter=0.5)


@pytest.fixture
def counted(play: Play) -> RenewalMetrics:
    return play.table.metrics


def observed(spread: Histogram) -> tuple[int, float]:
    """Return how many observations there were, and their sum."""
    return sum(spread.counts), round(spread.sum_s, 6)


def test_the_margin_is_what_was_left_and_the_lateness_what_was_missed(play: Play, counted: RenewalMetrics) -> None:
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


def test_why_renewals_fail_is_counted_by_entry(play: Play, counted: RenewalMetrics) -> None:
    play.take("a", "b", timeout_s=30)
    play.queue.script = [Answer(error=BUSY), Answer(entries={"a": GONE, "b": THROTTLED})]
    play.until(25)
    assert counted.errors == {"ServiceUnavailable": 2, "InvalidParameterValue": 1, "Throttling": 1}


def test_what_is_no_answer_of_a_server_is_named_by_its_kind() -> None:
    assert class_of(Unreachable("http://queue", "cut off")) == "Unreachable"
