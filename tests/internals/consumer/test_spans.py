"""Spans of time as people write them."""

from datetime import timedelta

import pytest

from veilmq.consumer.clock import Span, span_s


@pytest.mark.parametrize(
    ("span", "seconds"),
    [("200ms", 0.2), ("30s", 30), ("1.5 h", 5_400), ("10m", 600), ("1d", 86_400), (7, 7), (timedelta(minutes=2), 120)],
    ids=str,
)
def test_a_span_is_seconds(span: Span, seconds: float) -> None:
    assert span_s(span) == pytest.approx(seconds)


@pytest.mark.parametrize("span", ["", "10", "ten minutes", "-1s", "1w", -1, timedelta(seconds=-1)], ids=repr)
def test_what_is_no_span_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="no span of time"):
        span_s(span)
