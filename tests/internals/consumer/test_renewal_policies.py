"""What is measured lately, what the reply to a renewal means; a consumer's clock and spans of time."""

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
def test_a_quantile_is_never_too_short_and_five_percent_too_long_at_most(values: list[float], share: float) -> None:
    durations = Durations()
    for value in values:
        durations.add(value, now_s=0)
    exact_s = sorted(values)[-int(-share * len(values) // 1) - 1]
    found_s = durations.quantile(share, now_s=0)
    assert found_s is not None
    assert exact_s * (1 - 1e-6) <= found_s <= exact_s * RATIO * (1 + 1e-6)


def test_twelve_hours_have_a_bucket() -> None:
    """The longest and the shortest lie on the scale, and what is beyond lies at its ends."""
    assert SHORTEST_S * RATIO ** bucket(43_200) >= 43_200
    assert bucket(1e9) == BUCKETS - 1
    assert bucket(0) == bucket(-1) == 0


def test_nothing_has_no_quantile() -> None:
    assert Durations().quantile(0.99, now_s=0) is None


def test_what_is_older_than_two_windows_is_forgotten() -> None:
    """The windows turn with the time, also when nothing is observed for long."""
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


def test_what_is_running_counts_as_if_it_ended_now() -> None:
    """It is not kept, so that it does not count twice."""
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
def test_the_answer_to_a_legal_request(error: Exception | Hidden | None, expected: RenewalResult) -> None:
    assert renewal_result(error, requested_s=30, elapsed_s=100) is expected


@pytest.mark.parametrize(
    ("requested_s", "elapsed_s"),
    [(43_201, 0), (0, 0), (-5, 0), (30, 43_190)],
    ids=["range", "zero", "negative", "total"],
)
def test_the_answer_to_an_illegal_request_is_no_loss(requested_s: int, elapsed_s: float) -> None:
    assert renewal_result(GONE, requested_s=requested_s, elapsed_s=elapsed_s) is RenewalResult.AT_LIMIT


# The clock of a consumer, which goes forwards whatever the wall clock does, and spans of time.


@pytest.mark.parametrize("step_s", [-3_600.0, 3_600.0], ids=["back", "forth"])
def test_a_step_of_the_wall_clock_changes_nothing(step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back or forth, in between two readings, is not seen."""
    clock = SystemClock()
    before_s, wall_s = clock.now_s(), time.time()
    monkeypatch.setattr(time, "time", lambda: wall_s + step_s)
    monkeypatch.setattr(time, "time_ns", lambda: int((wall_s + step_s) * 1e9))
    assert 0 <= clock.now_s() - before_s < 60


def test_a_sleep_ends_at_its_instant() -> None:
    """Not before, and at once where that has passed."""
    clock = SystemClock()
    at_s = clock.now_s() + 0.02
    clock.alarm().wait_until(at_s)
    assert clock.now_s() >= at_s
    clock.alarm().wait_until(at_s - 10)


def test_an_alarm_wakes_the_sleeper() -> None:
    """Also one that has no instant, and one that has not gone to sleep yet."""
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
def test_what_is_no_span_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        span_s(span)
