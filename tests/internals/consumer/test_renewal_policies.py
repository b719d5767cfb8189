"""Measured durations, the results of renewals, and a consumer's clock and spans."""

import math
import threading
import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumer.simulation import BEYOND, BUSY, CUT_OFF, FORBIDDEN_FOR_NOW, GONE, INVALID, THROTTLED
from veilmq.client.messages import ClientError, Hidden
from veilmq.consumer.clock import Span, SystemClock, span_s
from veilmq.consumer.renewal_policies import (
    BUCKETS,
    RATIO,
    SHORTEST_S,
    Durations,
    RenewalResult,
    bucket,
    renewal_result,
)


@given(st.lists(st.floats(min_value=0.001, max_value=43_200), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_never_too_short_and_at_most_five_percent_too_long(values: list[float], share: float) -> None:
    durations = Durations()
    for value in values:
        durations.add(value, now_s=0)
    exact_s = sorted(values)[-int(-share * len(values) // 1) - 1]
    found_s = durations.quantile(share, now_s=0)
    assert found_s is not None
    assert exact_s * (1 - 1e-6) <= found_s <= exact_s * RATIO * (1 + 1e-6)


def test_the_buckets_cover_twelve_hours_and_the_outer_ones_are_open() -> None:
    assert SHORTEST_S * RATIO ** bucket(43_200) >= 43_200
    assert bucket(1e9) == BUCKETS - 1
    assert bucket(0) == bucket(-1) == 0


def test_there_is_no_quantile_without_observations() -> None:
    assert Durations().quantile(0.99, now_s=0) is None


def test_observations_older_than_two_windows_are_dropped() -> None:
    durations = Durations(window_s=10)
    durations.add(100.0, now_s=0)
    durations.add(1.0, now_s=9)
    assert durations.quantile(0.99, now_s=9) == pytest.approx(100, rel=0.05)
    durations.add(1.0, now_s=11)
    assert durations.quantile(0.99, now_s=19) == pytest.approx(100, rel=0.05)
    assert durations.quantile(0.99, now_s=20) == pytest.approx(1, rel=0.05)
    assert durations.count == 1
    assert durations.quantile(0.99, now_s=1_000) is None
    assert durations.count == 0


def test_running_durations_count_with_their_present_length_and_are_not_stored() -> None:
    durations = Durations()
    durations.add(1.0, now_s=0)
    assert durations.quantile(1.0, now_s=0, running_s=[500.0]) == pytest.approx(500, rel=0.05)
    assert durations.quantile(1.0, now_s=0) == pytest.approx(1, rel=0.05)


NOT_IN_FLIGHT = ClientError("AWS.SimpleQueueService.MessageNotInflight", "It is not in flight.", 400)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(None, RenewalResult.RENEWED, id="success"),
        pytest.param(Hidden(30.0), RenewalResult.PROVEN, id="proof"),
        pytest.param(Hidden(0.9), RenewalResult.AGAIN, id="nothing-granted"),
        pytest.param(GONE, RenewalResult.GONE, id="gone"),
        pytest.param(INVALID, RenewalResult.GONE, id="invalid"),
        pytest.param(NOT_IN_FLIGHT, RenewalResult.GONE, id="not-in-flight"),
        pytest.param(BEYOND, RenewalResult.AT_LIMIT, id="beyond"),
        pytest.param(BUSY, RenewalResult.AGAIN, id="busy"),
        pytest.param(THROTTLED, RenewalResult.AGAIN, id="throttled-400"),
        pytest.param(FORBIDDEN_FOR_NOW, RenewalResult.AGAIN, id="throttled-403"),
        pytest.param(CUT_OFF, RenewalResult.AGAIN, id="cut-off"),
        pytest.param(ClientError("ExpiredToken", "Renew it.", 403), RenewalResult.AGAIN, id="token"),
        pytest.param(ClientError("InvalidParameterValue", "Oops.", 500), RenewalResult.AGAIN, id="servers-fault"),
        pytest.param(ValueError("a bug"), RenewalResult.AGAIN, id="bug"),
    ],
)
def test_the_result_of_a_valid_request(error: Exception | Hidden | None, expected: RenewalResult) -> None:
    assert renewal_result(error, requested_s=30, elapsed_s=100) is expected


@pytest.mark.parametrize(
    ("requested_s", "elapsed_s"),
    [(43_201, 0), (0, 0), (-5, 0), (30, 43_190)],
    ids=["range", "zero", "negative", "total"],
)
def test_an_error_after_an_invalid_request_does_not_lose_the_lease(requested_s: int, elapsed_s: float) -> None:
    assert renewal_result(GONE, requested_s=requested_s, elapsed_s=elapsed_s) is RenewalResult.AT_LIMIT


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0], ids=["back", "forward"])
def test_a_step_of_the_wall_clock_does_not_affect_the_clock(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before_s, wall_s = clock.now_s(), time.time()
    monkeypatch.setattr(time, "time", lambda: wall_s + step_s)
    monkeypatch.setattr(time, "time_ns", lambda: int((wall_s + step_s) * 1e9))
    assert 0 <= clock.now_s() - before_s < 60


def test_a_sleep_ends_at_its_instant_and_at_once_if_that_has_passed() -> None:
    clock = SystemClock()
    at_s = clock.now_s() + 0.02
    clock.alarm().wait_until(at_s)
    assert clock.now_s() >= at_s
    clock.alarm().wait_until(at_s - 10)


def test_an_alarm_wakes_a_sleep_without_an_instant_and_a_later_sleep() -> None:
    alarm = SystemClock().alarm()
    alarm.ring()
    alarm.wait_until(None)
    sleeper = threading.Thread(target=alarm.wait_until, args=(None,))
    sleeper.start()
    alarm.ring()
    sleeper.join(60)
    assert not sleeper.is_alive()


@pytest.mark.parametrize(
    ("span", "seconds"),
    [("200ms", 0.2), ("30s", 30), ("1.5 h", 5_400), ("10m", 600), ("1d", 86_400), (7, 7), (timedelta(minutes=2), 120)],
    ids=str,
)
def test_a_span_is_seconds(span: Span, seconds: float) -> None:
    assert span_s(span) == pytest.approx(seconds)


@pytest.mark.parametrize("span", ["", "10", "ten minutes", "-1s", "1w", -1, timedelta(seconds=-1), math.nan], ids=repr)
def test_an_invalid_span_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        span_s(span)
