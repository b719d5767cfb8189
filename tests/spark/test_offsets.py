"""Offsets, as the checkpoint has them."""

import pytest

from veilmq.spark.offsets import INITIAL, Offset, OffsetUnknown


def test_an_offset_outlives_the_checkpoint() -> None:
    for offset in (INITIAL, Offset(source="s", number=7), Offset(source="s", number=7, first=5)):
        assert Offset.of(offset.json()) == offset


def test_the_first_is_always_the_same_as_spark_never_logs_it() -> None:
    assert INITIAL.json() == {"v": 1, "src": "", "n": 0}


def test_a_batch_has_the_claims_between_two_offsets() -> None:
    start = Offset(source="s", number=4)
    assert list(start.claims_to(Offset(source="s", number=6))) == [5, 6]
    assert list(start.claims_to(start)) == []
    assert list(start.claims_to(Offset(source="s", number=9, first=8))) == [8, 9], "the others are lost"


@pytest.mark.parametrize(
    "json", [{}, {"v": 2, "src": "s", "n": 1}, {"partition-1": 3}], ids=["empty", "newer", "other"]
)
def test_another_checkpoint_is_refused(json: dict[str, object]) -> None:
    with pytest.raises(OffsetUnknown, match="no offset of veilmq"):
        Offset.of(json)
