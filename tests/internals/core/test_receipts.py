"""Receipts: their format, the states in which they act, and the maximum of a lease."""

import re
from os import urandom

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from veilmq.core.errors import LeaseTooLong, ReceiptInvalid, ReceiptState
from veilmq.core.limits import LEASE_S_MAX
from veilmq.core.receipts import (
    KEY_BYTES,
    Receipt,
    ReceiptCodec,
    changed_deadline_ms,
    receipt_acts,
    receipt_state,
)

KEY = bytes(range(KEY_BYTES))
CODEC = ReceiptCodec(key=KEY)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
RECEIPTS = st.builds(
    Receipt,
    queue=st.integers(0, 2**32 - 1),
    position=st.integers(0, 2**63 - 1),
    generation=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**32 - 1),
    visible_at_ms=st.integers(0, 2**63 - 1),
)
FIELDS = Receipt(7, 2, 0xFFFEFDFC, 4, 1_700_000_030_000)
TEXT = CODEC.issue(*FIELDS)
OLD_TEXT = "AQAAAAcAAAAAAAAAAv_-_fwAAAAEAAABi8_l3TAbsCBPg236VPZk"
"""The same receipt in the older format, URL-safe base64."""


@given(RECEIPTS)
def test_issued_receipts_are_read_back(receipt: Receipt) -> None:
    """The text has only hexadecimal digits: AWS's extended clients split at `-`."""
    text = CODEC.issue(*receipt)
    assert CODEC.read(text) == receipt
    assert re.fullmatch(r"[0-9a-f]{78}", text)


def test_a_receipt_in_the_older_format_is_read() -> None:
    """Receipts issued before an upgrade stay valid."""
    assert "-" in OLD_TEXT
    assert "_" in OLD_TEXT
    assert CODEC.read(OLD_TEXT) == FIELDS
    with pytest.raises(ReceiptInvalid):
        ReceiptCodec(key=bytes(KEY_BYTES)).read(OLD_TEXT)


@pytest.mark.parametrize(("text", "alphabet"), [(TEXT, "0123456789abcdefABCDEF"), (OLD_TEXT, ALPHABET)])
@given(st.data())
def test_one_changed_character_makes_it_invalid(text: str, alphabet: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(alphabet).filter(lambda character: character != text[index]))
    with pytest.raises(ReceiptInvalid):
        CODEC.read(text[:index] + other + text[index + 1 :])


@given(
    st.text(max_size=80)
    | st.sampled_from([TEXT, OLD_TEXT]).flatmap(
        lambda text: st.text(alphabet=ALPHABET + "=+/", min_size=len(text), max_size=len(text))
    )
)
def test_any_other_text_is_invalid(text: str) -> None:
    """No other exception is raised."""
    with pytest.raises(ReceiptInvalid):
        CODEC.read(text)


@pytest.mark.parametrize("text", [
    pytest.param("", id="empty"), pytest.param(TEXT[:-1], id="short"), pytest.param(TEXT + "A", id="long"),
    pytest.param(TEXT[:-1] + "g", id="no-hex-digit"), pytest.param(TEXT.upper(), id="upper-case"),
    pytest.param(TEXT[:-1] + "é", id="not-ascii"), pytest.param(TEXT[:-1] + "\n", id="line-break"),
    pytest.param(" " + TEXT[:-1], id="space"), pytest.param(OLD_TEXT[:-1], id="old-short"),
    pytest.param(OLD_TEXT + "=", id="old-padded"), pytest.param(OLD_TEXT[:-1] + "=", id="old-padding-inside"),
    pytest.param(OLD_TEXT[:-1] + "é", id="old-not-ascii"),
    pytest.param(OLD_TEXT.replace("-", "+").replace("_", "/"), id="old-standard-alphabet"),
])  # fmt: skip
def test_malformed_receipts_are_invalid(text: str) -> None:
    with pytest.raises(ReceiptInvalid):
        CODEC.read(text)


def test_a_receipt_of_another_key_is_invalid() -> None:
    with pytest.raises(ReceiptInvalid):
        ReceiptCodec(key=urandom(KEY_BYTES)).read(TEXT)


@pytest.mark.parametrize("field", Receipt._fields)
def test_every_field_is_signed(field: str) -> None:
    """The MAC of two receipts that differ in one field differs."""
    receipt = Receipt(1, 2, 3, 4, 5)
    other = receipt._replace(**{field: 77})
    assert CODEC.issue(*receipt)[-10:] != CODEC.issue(*other)[-10:]


NOW_MS = 1_700_000_000_000


def test_a_lease_ends_at_most_12_hours_after_the_receive() -> None:
    """12 h to the millisecond are accepted; one millisecond more is refused, not shortened."""
    assert changed_deadline_ms(NOW_MS, LEASE_S_MAX, NOW_MS) == NOW_MS + LEASE_S_MAX * 1_000
    with pytest.raises(LeaseTooLong) as raised:
        changed_deadline_ms(NOW_MS + 1, LEASE_S_MAX, NOW_MS)
    assert raised.value.seconds_max == LEASE_S_MAX


@given(st.integers(0, 100_000_000), st.integers(0, LEASE_S_MAX))
@example(50_000_000, 0)
def test_a_change_has_full_effect_or_is_refused(held_ms: int, timeout_s: int) -> None:
    """A timeout of 0 is always accepted."""
    end_ms = held_ms + timeout_s * 1_000
    if timeout_s and end_ms > LEASE_S_MAX * 1_000:
        with pytest.raises(LeaseTooLong):
            changed_deadline_ms(NOW_MS + held_ms, timeout_s, NOW_MS)
    else:
        assert changed_deadline_ms(NOW_MS + held_ms, timeout_s, NOW_MS) == NOW_MS + end_ms


@pytest.mark.parametrize(("current", "left_ms", "state"), [
    pytest.param(True, 1, ReceiptState.LIVE, id="live"),
    pytest.param(True, 0, ReceiptState.EXPIRED, id="at-the-deadline"),
    pytest.param(True, -1, ReceiptState.EXPIRED, id="after-it"),
    pytest.param(False, 1, ReceiptState.SUPERSEDED, id="superseded"),
    pytest.param(False, 0, ReceiptState.SUPERSEDED, id="superseded-at-the-deadline"),
])  # fmt: skip
def test_receipt_state(*, current: bool, left_ms: int, state: ReceiptState) -> None:
    """A receipt is live before its deadline, and expired at it."""
    assert receipt_state(current=current, visible_at_ms=NOW_MS + left_ms, now_ms=NOW_MS) is state


@pytest.mark.parametrize(("state", "acts", "acts_only_live"), [
    pytest.param(ReceiptState.LIVE, True, True, id="live"),
    pytest.param(ReceiptState.EXPIRED, True, False, id="expired"),
    pytest.param(ReceiptState.SUPERSEDED, False, False, id="superseded"),
    pytest.param(ReceiptState.EARLIER, True, False, id="earlier"),
    pytest.param(ReceiptState.GONE, False, False, id="gone"),
])  # fmt: skip
def test_receipt_acts(state: ReceiptState, *, acts: bool, acts_only_live: bool) -> None:
    assert receipt_acts(state, only_live=False) is acts
    assert receipt_acts(state, only_live=True) is acts_only_live
