"""Move tasks beyond their errors."""

import json
from base64 import b64decode, b64encode

import pytest

from tests.internals.wire.sqs.asking import CONTEXT, ID, ID_TEXT, QUEUE, answer, ask, refusal
from veilmq.core.commands import QUEUE_MISSING, SOURCE_UNKNOWN, CancelMove, ListMoves, MoveStatus, MoveTask, StartMove
from veilmq.core.errors import QueueNotFound
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.moves import task_handle, task_of

ARN = "arn:aws:sqs:us-east-1:000000000000:orders"


def task(status: MoveStatus = MoveStatus.RUNNING, failure: str | None = None) -> MoveTask:
    """Return a task as the engine tells it."""
    return MoveTask(
        id=ID,
        source=QUEUE,
        destination=None,
        moves_per_s_max=None,
        status=status,
        messages_moved=3,
        messages_to_move=7,
        started_at_ms=1_700_000_000_123,
        failure=failure,
    )


HANDLE = task_handle(task(), CONTEXT)


def test_a_start_that_says_only_where_from() -> None:
    """Back to the sources, as fast as it goes."""
    assert ask("StartMessageMoveTask", SourceArn=ARN).command == StartMove(source=QUEUE)
    assert answer("StartMessageMoveTask", task(), SourceArn=ARN) == {"TaskHandle": HANDLE}


def test_a_handle_is_what_that_of_aws_is() -> None:
    """Base64 of JSON with the task's id and the source."""
    assert json.loads(b64decode(HANDLE, validate=True)) == {"taskId": ID_TEXT, "sourceArn": ARN}
    assert ask("CancelMessageMoveTask", TaskHandle=HANDLE).command == CancelMove(source=QUEUE, task=ID)
    assert answer("CancelMessageMoveTask", task(), TaskHandle=HANDLE) == {"ApproximateNumberOfMessagesMoved": 3}


def handle(**members: object) -> str:
    """Return a handle that holds ``members``."""
    return b64encode(json.dumps(members).encode()).decode()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "é",
        "!" + HANDLE,
        HANDLE + "\n",
        b64encode(b"\xff").decode(),
        b64encode(b"[" * 50_000).decode(),
        handle(taskId=ID_TEXT),
        handle(sourceArn=ARN),
        handle(taskId="x", sourceArn=ARN),
        handle(taskId=1, sourceArn=ARN),
    ],
)
def test_what_is_no_handle(text: str) -> None:
    """Is an invalid value."""
    with pytest.raises(SqsError, match=r"^Value for parameter TaskHandle is invalid\.$") as caught:
        task_of(text, CONTEXT)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize("arn", ["arn:aws:sqs:invalid:x:y", ARN.replace("000000000000", "111111111111")])
def test_a_handle_of_elsewhere(arn: str) -> None:
    """Its source is not there; another account's is not there for us."""
    with pytest.raises(SqsError, match="specified for the SourceArn parameter doesn't exist") as caught:
        task_of(handle(taskId=ID_TEXT, sourceArn=arn), CONTEXT)
    assert caught.value.code is errors.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    ("action", "member", "others"),
    [
        ("StartMessageMoveTask", "SourceArn", {}),
        ("StartMessageMoveTask", "DestinationArn", {"SourceArn": ARN}),
        ("ListMessageMoveTasks", "SourceArn", {}),
    ],
)
def test_a_queue_of_another_account(action: str, member: str, others: dict[str, str]) -> None:
    """Is not there: moves stay within an account."""
    error = refusal(action, **others | {member: ARN.replace("000000000000", "111111111111")})
    assert error.code is errors.RESOURCE_NOT_FOUND
    assert f"specified for the {member} parameter doesn't exist" in error.message


def test_a_task_that_runs_has_a_handle() -> None:
    """And no member for what nobody chose."""
    assert ask("ListMessageMoveTasks", SourceArn=ARN).command == ListMoves(source=QUEUE, count=1)
    (told,) = answer("ListMessageMoveTasks", [task()], SourceArn=ARN)["Results"]
    assert told == {
        "TaskHandle": HANDLE,
        "Status": "RUNNING",
        "SourceArn": ARN,
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 7,
        "StartedTimestamp": 1_700_000_000_123,
    }


@pytest.mark.parametrize("status", [MoveStatus.COMPLETED, MoveStatus.CANCELLED])
def test_a_task_that_ended_has_none(status: MoveStatus) -> None:
    """And no reason for a failure."""
    (told,) = answer("ListMessageMoveTasks", [task(status)], SourceArn=ARN)["Results"]
    assert told["Status"] == status.name
    assert not {"TaskHandle", "FailureReason"} & set(told)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (SOURCE_UNKNOWN, "CouldNotDetermineMessageSource"),
        (QUEUE_MISSING, "AWS.SimpleQueueService.NonExistentQueue"),
    ],
)
def test_a_task_that_failed_says_why_as_aws_does(failure: str, reason: str) -> None:
    """A closed set of reasons."""
    (told,) = answer("ListMessageMoveTasks", [task(MoveStatus.FAILED, failure)], SourceArn=ARN)["Results"]
    assert (told["Status"], told["FailureReason"]) == ("FAILED", reason)
    assert "TaskHandle" not in told


def test_a_task_whose_queue_is_gone_cannot_be_cancelled() -> None:
    """It is the source that does not exist."""
    reply = ask("CancelMessageMoveTask", TaskHandle=HANDLE).encode(QueueNotFound(QUEUE))
    assert reply.code == errors.RESOURCE_NOT_FOUND.name
    assert b"specified for the SourceArn parameter doesn't exist" in reply.body


def test_a_queue_without_tasks_has_an_empty_list() -> None:
    """Clients rely on its being there."""
    assert answer("ListMessageMoveTasks", [], SourceArn=ARN, MaxResults=10) == {"Results": []}
