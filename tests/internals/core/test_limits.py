"""The limits fit together: the engine's are the widest, and every default is allowed."""

import pytest

from veilmq.core import limits
from veilmq.core.limits import Range

RANGES = {name: value for name, value in vars(limits).items() if isinstance(value, Range)}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_holds_its_ends_and_its_default(name: str) -> None:
    """Both ends are allowed, what lies beyond is not."""
    each = RANGES[name]
    assert each.holds(each.minimum)
    assert each.holds(each.maximum)
    assert each.holds(each.default)
    assert not each.holds(each.minimum - 1)
    assert not each.holds(each.maximum + 1)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        pytest.param(limits.SQS_DELAY_S, limits.DELAY_S, id="delay"),
        pytest.param(limits.SQS_RECEIVE_WAIT_S, limits.RECEIVE_WAIT_S, id="wait"),
    ],
)
def test_a_protocol_narrows_the_engine(narrow: Range, wide: Range) -> None:
    """What a protocol allows, the engine takes."""
    assert wide.holds(narrow.minimum)
    assert wide.holds(narrow.maximum)


def test_the_ranges_of_the_sqs_documentation() -> None:
    """Amazon SQS quotas: 12 hours, 15 minutes, 1 minute to 14 days, 20 s, 10 a call, 1 MiB."""
    assert (limits.VISIBILITY_TIMEOUT_S.minimum, limits.VISIBILITY_TIMEOUT_S.maximum) == (0, 12 * 3_600)
    assert (limits.SQS_DELAY_S.minimum, limits.SQS_DELAY_S.maximum) == (0, 15 * 60)
    assert (limits.RETENTION_S.minimum, limits.RETENTION_S.maximum) == (60, 14 * 86_400)
    assert limits.SQS_RECEIVE_WAIT_S.maximum == 20
    assert (limits.SQS_RECEIVE_COUNT.minimum, limits.SQS_RECEIVE_COUNT.maximum) == (1, 10)
    assert limits.MESSAGE_BYTES.maximum == limits.SQS_BATCH_BYTES_MAX == 1_048_576
    assert limits.VISIBILITY_TIMEOUT_S.maximum == limits.LEASE_S_MAX


def test_the_largest_request_fits_through_http() -> None:
    """A batch of the largest size fits into a body even if JSON escapes each of its bytes as six."""
    assert limits.HTTP_BODY_BYTES_MAX > 6 * limits.SQS_BATCH_BYTES_MAX
    assert limits.BATCH_BYTES_MAX >= limits.SQS_BATCH_BYTES_MAX
