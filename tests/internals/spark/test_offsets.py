"""Offsets, as the checkpoint has them."""

import pytest

from veilmq.spark.offsets import INITIAL, Offset, OffsetUnknown
from veilmq.spark.options import CLAIMS, SQS


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
    "json",
    [
        {},
        {"v": 2, "src": "s", "n": 1},
        {"partition-1": 3},
        {"v": 1},
        {"v": 1, "src": "s"},
        {"v": 1, "src": "s", "n": "1"},
        {"v": 1, "src": None, "n": 1},
    ],
    ids=["empty", "newer", "other", "bare", "no-number", "text", "no-source"],
)
def test_another_checkpoint_is_refused(json: dict[str, object]) -> None:
    with pytest.raises(OffsetUnknown, match="no offset of veilmq"):
        Offset.of(json)


@pytest.mark.parametrize(("kept", "other"), [(CLAIMS, SQS), (SQS, CLAIMS)])
def test_a_checkpoint_of_the_other_mode_is_refused(kept: str, other: str) -> None:
    """Its numbers mean other messages; one that is new goes with both."""
    json = Offset(source=SQS if kept == SQS else "0f5c", number=3).json()
    assert Offset.of(json, mode=kept).number == 3
    with pytest.raises(OffsetUnknown, match=f"mode={kept}"):
        Offset.of(json, mode=other)
    assert Offset.of(INITIAL.json(), mode=other) == INITIAL
