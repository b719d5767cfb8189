"""Offsets, as the checkpoint has them.

When a batch counts as finished, by the orders of calls that Spark 4.3 makes.
"""

import pytest

from veilmq.spark.offsets import IDLE_S, INITIAL, AsynchronousProgress, Offset, OffsetUnknown, Progress
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


def batch(progress: Progress, start: int) -> None:
    """Take one batch as Spark does ordinarily: the offset, commit of the one before, the plan."""
    progress.made(start + 1)
    if start:
        progress.committed(start)
    progress.planned(start)


def test_the_first_batch_of_a_process_is_open_until_spark_says_so() -> None:
    progress = Progress()
    batch(progress, 0)
    assert not progress.finished(1)
    progress.made(2)
    progress.committed(1)
    assert progress.finished(1)
    assert not progress.finished(2)


def test_after_the_ordinary_order_was_seen_being_asked_is_enough() -> None:
    progress = Progress()
    batch(progress, 0)
    batch(progress, 1)
    assert progress.finished(2)


def test_what_an_earlier_process_logged_is_finished() -> None:
    progress = Progress()
    assert progress.finished(7)
    progress.planned(6)  # a batch that is repeated
    assert progress.finished(7)


def test_a_trigger_that_is_never_asynchronous_is_believed() -> None:
    progress = Progress()
    progress.ordered = True
    batch(progress, 0)
    assert progress.finished(1)


@pytest.mark.parametrize("late", [False, True], ids=["never", "late"])
def test_a_plan_before_the_commit_of_what_came_before_gives_it_away(late: bool) -> None:
    progress = Progress()
    batch(progress, 0)
    progress.made(2)
    if late:
        progress.committed(0)  # asynchronously Spark commits what was logged before the last one
    with pytest.raises(AsynchronousProgress, match="asyncProgressTrackingEnabled"):
        progress.planned(1)


def test_claims_that_were_passed_over_do_not_hide_it() -> None:
    """The offset jumps from 1 to 5 when 2, 3 and 4 are lost."""
    progress = Progress()
    batch(progress, 0)
    progress.made(5)
    with pytest.raises(AsynchronousProgress):
        progress.planned(1)


def test_an_idle_stream_is_finished_after_some_seconds_of_rest() -> None:
    progress = Progress()
    batch(progress, 0)
    assert not progress.finished_when_idle(1, 100.0)
    assert not progress.finished_when_idle(1, 100.0 + IDLE_S - 0.1)
    assert progress.finished_when_idle(1, 100.0 + IDLE_S)
    assert not progress.finished_when_idle(2, 101.0 + IDLE_S), "the rest of another one does not count"
