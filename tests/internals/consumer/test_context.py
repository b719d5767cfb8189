"""What the end of a handler means."""

import asyncio

import pytest

from veilmq.consumer import Cancelled, Drop, LeaseLost, LeaseState, Reject, RetryLater
from veilmq.consumer.context import TRACE_CHARACTERS_MAX, Cause, EndingKind, Undecodable, ending_of


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (None, EndingKind.DONE),
        ("anything", EndingKind.DONE),
        (Drop(), EndingKind.DROPPED),
        (Reject("no"), EndingKind.REJECT),
        (Undecodable("no"), EndingKind.REJECT),
        (RetryLater("2m"), EndingKind.RETRY),
        (ValueError("no"), EndingKind.RETRY),
        (LeaseLost(LeaseState.LOST), EndingKind.RETRY),
    ],
    ids=["nothing", "value", "drop", "reject", "undecodable", "retry", "exception", "lost"],
)
def test_what_a_result_means(result: object, kind: EndingKind) -> None:
    assert ending_of(result).kind is kind


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.SHUTDOWN, EndingKind.RELEASE),
        (Cause.LOST, EndingKind.LEFT),
        (Cause.ENDED, EndingKind.LEFT),
        (Cause.TIMEOUT, EndingKind.RETRY),
    ],
    ids=lambda value: value.value,
)
def test_a_cancelled_handler_is_judged_by_the_cause(cause: Cause, kind: EndingKind) -> None:
    assert ending_of(Cancelled("stop"), cause).kind is kind
    assert ending_of(asyncio.CancelledError(), cause).kind is kind
    assert ending_of(None, cause).kind is EndingKind.DONE
    assert ending_of(Drop(), cause).kind is EndingKind.DROPPED


def test_how_long_a_retry_waits_is_kept() -> None:
    assert ending_of(RetryLater("1.5h")).after_s == 5_400
    assert ending_of(RetryLater()).after_s is None


def test_a_trace_is_cut_to_its_end() -> None:
    ending = ending_of(ValueError("x" * 2 * TRACE_CHARACTERS_MAX))
    assert len(ending.trace) == TRACE_CHARACTERS_MAX
    assert ending.trace.rstrip().endswith("x")
