"""The heartbeat, the adaptive policy, and what all policies may ask for."""

from datetime import timedelta

import pytest

from tests.consumer.lease_play import Answer, Play
from veilmq.consumer import Adaptive, LeaseState
from veilmq.consumer.renewal_policies import Fixed, Measured, allowed_s

QUICK = Measured(hold_s=1.2, renewal_s=0.05, renewals=100, lateness_s=0.02)


def measured(hold_s: float, renewal_s: float = 0.05, lateness_s: float = 0.02) -> Measured:
    """Return measurements that are trusted."""
    return Measured(hold_s=hold_s, renewal_s=renewal_s, renewals=100, lateness_s=lateness_s)


class TestFixed:
    """Leases of one length, renewed at one interval."""

    def test_two_minutes_every_minute(self) -> None:
        """Changes at 60, 120 and 180 s, ends at 180, 240 and 300 s; a crash at 130 s leaves it hidden until 240 s."""
        play = Play(Fixed(timedelta(minutes=2), every=timedelta(minutes=1)))
        (lease,) = play.take(timeout_s=120)
        ends = []
        for at_s in (60, 120, 180):
            play.until(at_s)
            ends.append(lease.expires_at_s)
        assert play.queue.asked == [(60, 120), (120, 120), (180, 120)]
        assert ends == [180, 240, 300]
        play = Play(Fixed(120, 60))
        (lease,) = play.take(timeout_s=120)
        play.until(130)
        assert lease.expires_at_s == 240

    def test_its_first_deadline_is_that_of_an_adaptive_lease(self) -> None:
        """The answer may have been on its way for as long as a short call takes, which was measured."""
        for seen in (QUICK, measured(1.2, renewal_s=3.0), measured(1.2, renewal_s=100.0), Measured()):
            first_s = Fixed(60).first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=seen)
            assert first_s == Adaptive().first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=seen)
        assert Fixed(60).first_expiry_s(answered_at_s=1_000.0, timeout_s=60, measured=measured(1, renewal_s=3)) == 1_057

    def test_its_length_is_sent_with_every_receive(self) -> None:
        """Half of it is the interval unless one is given."""
        assert Fixed(120).receive_timeout_s(QUICK) == 120
        assert Fixed(120).every_s == 60

    @pytest.mark.parametrize(
        ("lease", "every"),
        [(0, None), (43_201, None), (1.5, None), (30, 30), (30, 0), (30, -1)],
        ids=["zero", "too-long", "fraction", "no-gap", "no-interval", "negative"],
    )
    def test_what_keeps_no_lease_is_refused(self, lease: float, every: float | None) -> None:
        """At once, not when the first message comes."""
        with pytest.raises(ValueError, match=r"lease is whole seconds|cannot be kept"):
            Fixed(lease, every)


class TestAdaptive:
    """The length follows the work, the guard follows the network."""

    @pytest.mark.parametrize(
        ("seen", "guard_s", "length_s"),
        [
            pytest.param(measured(1.2), 2, 30, id="short"),
            pytest.param(measured(1.2, renewal_s=60), 100, 300, id="slow-network"),
            pytest.param(measured(45), 2, 59, id="some-work"),
            pytest.param(measured(200), 2, 252, id="long"),
            pytest.param(measured(1_000), 2, 300, id="longer-than-the-longest"),
            pytest.param(measured(1.2, lateness_s=5), 21.2, 128, id="stalls"),
        ],
    )
    def test_guard_and_length(self, seen: Measured, guard_s: float, length_s: int) -> None:
        """The worked examples of the design."""
        policy = Adaptive()
        assert policy.guard_s(seen) == pytest.approx(guard_s)
        assert policy.length_s(seen) == length_s

    def test_a_second_is_supposed_until_a_hundred_renewals_were_seen(self) -> None:
        """Few samples prove no speed, but they prove slowness."""
        assert Adaptive().guard_s(Measured()) == 5
        assert Adaptive().guard_s(Measured(renewal_s=0.01, renewals=99)) == 5
        assert Adaptive().guard_s(Measured(renewal_s=3.0, renewals=1)) == 13

    def test_the_queues_own_timeout_applies_until_something_was_held(self) -> None:
        """Then the length that fits is sent with each receive."""
        assert Adaptive().receive_timeout_s(Measured()) is None
        assert Adaptive().receive_timeout_s(measured(45)) == 59

    def test_work_that_has_lasted_long_is_held_for_as_long_again(self) -> None:
        """Up to the longest lease, whatever most messages need."""
        assert [Adaptive().length_s(QUICK, age_s=age_s) for age_s in (0, 20, 100, 5_000)] == [30, 30, 100, 300]

    def test_a_third_of_the_lease_is_guard(self) -> None:
        """And up to a quarter of that more, so that leases which were taken together come apart."""
        for jitter, first_s in [(0.0, 20.0), (1.0, 17.5)]:
            play = Play(Adaptive(), jitter=jitter)
            play.take(timeout_s=30)
            assert play.table.next_due_s() == pytest.approx(first_s)

    @pytest.mark.parametrize("timeout_s", [1, 2, 5])
    def test_a_short_timeout_is_renewed_at_its_half_at_the_latest(self, timeout_s: int) -> None:
        """The guard never swallows the whole lease; the second lease is a proper one."""
        play = Play(Adaptive())
        play.take(timeout_s=timeout_s)
        play.until(100)
        ((at_s, for_s),) = play.queue.asked[:1]
        assert timeout_s / 2 - 0.01 <= at_s <= timeout_s * 2 / 3
        assert for_s == 30
        assert play.news == []

    def test_a_slow_network_widens_the_guard_and_calls_are_given_time(self) -> None:
        """Leases live on although each renewal takes 4 s, the first one too."""
        play = Play(Adaptive(), usual_s=4.0)
        (lease,) = play.take(timeout_s=30)
        play.until(1_000)
        assert play.news == []
        assert lease.state is LeaseState.HELD
        assert lease.measured.renewal_s == pytest.approx(4, rel=0.06)

    def test_a_renewer_that_stalls_is_seen_in_the_guard(self) -> None:
        """How late renewals began is measured."""
        play = Play(Adaptive())
        (lease,) = play.take(timeout_s=30)
        play.until(500, late_s=3.0)
        assert lease.measured.lateness_s == pytest.approx(3, rel=0.06)
        assert Adaptive().guard_s(lease.measured) > 13

    def test_the_length_of_running_work_is_seen(self) -> None:
        """Nothing has ended yet, and messages that come now are held for longer than those that came first."""
        play = Play(Adaptive())
        play.take(timeout_s=30)
        play.until(150)
        assert play.table.receive_timeout_s(play.subscription) == pytest.approx(150 * 1.25 + 5, rel=0.06)

    def test_what_was_held_is_remembered_over_idle_hours(self) -> None:
        """The windows are empty then, and the latest value stands."""
        play = Play(Adaptive())
        (lease,) = play.take(timeout_s=300)
        play.until(100)
        play.table.receive_timeout_s(play.subscription)
        play.table.settle(lease)
        play.until(110)
        known = play.table.receive_timeout_s(play.subscription)
        play.until(20_000)
        assert play.table.receive_timeout_s(play.subscription) == known

    @pytest.mark.parametrize(
        "options",
        [{"shortest_s": 0}, {"shortest_s": 60, "longest_s": 30}, {"guard_share": 0.6}, {"guard_s_min": 0}],
        ids=["no-lease", "crossed", "all-guard", "no-guard"],
    )
    def test_bounds_that_contradict_each_other_are_refused(self, options: dict[str, float]) -> None:
        """At once."""
        with pytest.raises(ValueError, match="adaptive lease needs"):
            Adaptive(**options)  # type: ignore[arg-type]

    def test_an_outage_of_seconds_is_survived_by_the_shortest_lease(self) -> None:
        """Eight seconds of silence from just before the first renewal on."""
        play = Play(Adaptive(), jitter=0.5)
        play.take(timeout_s=30)
        play.queue.script = [Answer(takes_s=100)] * 2
        play.until(60)
        assert play.news == []


@pytest.mark.parametrize(
    ("wanted_s", "elapsed_s", "allowed"),
    [(30, 0, 30), (300, 43_000, 198), (30, 43_197.5, 0), (30, 50_000, -6_802), (43_200, 0, 43_198)],
    ids=["plain", "clamped", "nothing", "past", "whole"],
)
def test_nothing_beyond_the_twelve_hours_is_asked_for(wanted_s: int, elapsed_s: float, allowed: int) -> None:
    """Two seconds stay free; below one there is nothing to ask for."""
    assert allowed_s(wanted_s, elapsed_s=elapsed_s) == allowed
