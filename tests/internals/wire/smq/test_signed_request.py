"""The dates of signed requests."""

import pytest

from tests.clients.smq.signing import DATE, NOW_S
from veilmq.wire.smq.errors import INVALID_DATE_HEADER, MISSING_DATE_HEADER, SmqError
from veilmq.wire.smq.signatures import Dates, dates_of


def test_a_date_is_read() -> None:
    """In GMT, in whatever offset it names, and in UTC where it names none."""
    assert Dates().read(DATE.encode()) == (NOW_S, b"20260304T050607Z")
    assert Dates().read(b"Wed, 04 Mar 2026 13:06:07 +0800") == (NOW_S, b"20260304T050607Z")
    assert Dates().read(b"Wed, 04 Mar 2026 05:06:07 -0000") == (NOW_S, b"20260304T050607Z")


@pytest.mark.parametrize(
    "date", [b"", b"yesterday", b"\xff", b"Wed, 99 Mar 2026 05:06:07 GMT", b"20260304T050607Z", b"1" * 30_000]
)
def test_what_is_no_date_is_refused(date: bytes) -> None:
    with pytest.raises(SmqError) as caught:
        Dates().read(date)

    assert caught.value.code is INVALID_DATE_HEADER


def test_what_is_remembered_does_not_grow() -> None:
    dates = Dates()
    for second in range(1_000):
        dates.read(f"Wed, 04 Mar 2026 05:{second // 60:02}:{second % 60:02} GMT".encode())

    assert len(dates._known) <= 256


def test_the_date_of_smq_comes_before_the_one_of_http() -> None:
    assert dates_of({b"date": b"a"}) == (b"a",)
    assert dates_of({b"x-mns-date": b"b"}) == (b"b",)
    assert dates_of({b"date": b"a", b"x-mns-date": b"b"}) == (b"b", b"a")
    assert dates_of({b"date": b"a", b"x-mns-date": b"a"}) == (b"a",)
    with pytest.raises(SmqError) as caught:
        dates_of({b"date": b""})
    assert caught.value.code is MISSING_DATE_HEADER
