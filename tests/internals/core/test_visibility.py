"""The rules of visibility, at their boundaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmq.core.errors import LeaseTooLong, ReceiptState
from veilmq.core.limits import LEASE_S_MAX
from veilmq.core.receipts import changed_deadline_ms, deadline_ms, receipt_acts, receipt_state

NOW_MS = 1_700_000_000_000


def test_a_deadline_counts_from_now() -> None:
    """n seconds from the call, and 0 is now."""
    assert deadline_ms(NOW_MS, 30) == NOW_MS + 30_000
    assert deadline_ms(NOW_MS, 0) == NOW_MS


def test_a_change_counts_from_the_call() -> None:
    """What was left of the lease does not matter: 15 s after a receive of 60 s, 10 s end at second 25."""
    assert changed_deadline_ms(NOW_MS + 15_000, 10, NOW_MS) == NOW_MS + 25_000
    assert changed_deadline_ms(NOW_MS + 15_000, 0, NOW_MS) == NOW_MS + 15_000


def test_twelve_hours_since_the_receive_are_the_most() -> None:
    """12 h to the millisecond pass; one more is refused, not clipped."""
    assert changed_deadline_ms(NOW_MS, LEASE_S_MAX, NOW_MS) == NOW_MS + LEASE_S_MAX * 1_000
    with pytest.raises(LeaseTooLong) as refusal:
        changed_deadline_ms(NOW_MS + 1, LEASE_S_MAX, NOW_MS)
    assert refusal.value.seconds_max == LEASE_S_MAX


@given(st.integers(0, 100_000_000), st.integers(0, LEASE_S_MAX))
def test_a_change_is_kept_whole_or_refused(held_ms: int, timeout_s: int) -> None:
    """Any change either holds for exactly what was asked or raises; a release is never too late."""
    asked_ms = held_ms + timeout_s * 1_000
    if timeout_s and asked_ms > LEASE_S_MAX * 1_000:
        with pytest.raises(LeaseTooLong):
            changed_deadline_ms(NOW_MS + held_ms, timeout_s, NOW_MS)
    else:
        assert changed_deadline_ms(NOW_MS + held_ms, timeout_s, NOW_MS) == NOW_MS + asked_ms


@pytest.mark.parametrize(
    ("current", "left_ms", "state"),
    [
        pytest.param(True, 1, ReceiptState.LIVE, id="live"),
        pytest.param(True, 0, ReceiptState.EXPIRED, id="at-the-deadline"),
        pytest.param(True, -1, ReceiptState.EXPIRED, id="after-it"),
        pytest.param(False, 1, ReceiptState.SUPERSEDED, id="superseded"),
        pytest.param(False, 0, ReceiptState.SUPERSEDED, id="superseded-at-the-deadline"),
    ],
)
def test_receipt_state(*, current: bool, left_ms: int, state: ReceiptState) -> None:
    """A lease lives strictly before its deadline; superseded is superseded at any time."""
    assert receipt_state(current=current, visible_at_ms=NOW_MS + left_ms, now_ms=NOW_MS) is state


@pytest.mark.parametrize(
    ("state", "acts", "acts_only_live"),
    [
        pytest.param(ReceiptState.LIVE, True, True, id="live"),
        pytest.param(ReceiptState.EXPIRED, True, False, id="expired"),
        pytest.param(ReceiptState.SUPERSEDED, False, False, id="superseded"),
        pytest.param(ReceiptState.EARLIER, True, False, id="earlier"),
        pytest.param(ReceiptState.GONE, False, False, id="gone"),
    ],
)
def test_receipt_acts(state: ReceiptState, *, acts: bool, acts_only_live: bool) -> None:
    """The rule columns of docs/lifecycle.md."""
    assert receipt_acts(state, only_live=False) is acts
    assert receipt_acts(state, only_live=True) is acts_only_live
