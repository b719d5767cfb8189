"""The rules of FIFO queues: ids by content, and five minutes to the millisecond."""

import pytest

from veilmq.core.messages import content_id, is_duplicate, is_repeatable


def test_the_id_by_content_is_the_bodys_sha_256() -> None:
    """The example of FIPS 180-2."""
    assert content_id("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(("age_ms", "counts"), [(0, True), (299_999, True), (300_000, False)])
def test_five_minutes(age_ms: int, *, counts: bool) -> None:
    """Counted from the first one, which is at 0 of an age."""
    assert is_duplicate(1_000, 1_000 + age_ms) is counts
    assert is_repeatable(1_000, 1_000 + age_ms) is counts
