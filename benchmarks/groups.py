"""Fill queues with message groups: blocked, noisy and free ones."""

from collections.abc import Iterator

from benchmarks.dialogue import Dialogue, DialogueError, converse, request
from benchmarks.sqs import Sqs
from benchmarks.stock import BATCH, BODY, handles

ROUND = 500
ROUNDS = 5
NOISY = "noisy"
NOISY_IN_FLIGHT = 40


def block_groups(*, port: int, queue_url: str, groups: int) -> None:
    """Send two messages of each group, and receive the first of each."""
    names = [f"blocked-{n}" for n in range(groups)]
    for turn in range(2):
        _send(port, queue_url, names, run=f"block-{turn}")
        if turn == 0:
            converse(port=port, dialogues=[_receiving(queue_url, groups)])


def lease(*, port: int, queue_url: str, messages: int, connections: int = 8) -> None:
    """Receive messages by ten and keep them in flight."""
    each = messages // connections
    converse(port=port, dialogues=[_receiving(queue_url, each) for _ in range(connections)], timeout_s=3_600.0)


def send_fifo(*, port: int, queue_url: str, groups: int, messages: int, run: str, connections: int = 1) -> float:
    """Send `messages` to a FIFO queue over `groups` free groups in turn; return the seconds it took."""
    names = [f"free-{n % groups}" for n in range(messages)]
    dialogues = [_sending(queue_url, names[n::connections], f"feed-{run}-{n}") for n in range(connections)]
    return converse(port=port, dialogues=dialogues, timeout_s=3_600.0)


def send_fair(*, port: int, queue_url: str, groups: int, messages: int, run: str) -> None:
    """Send `messages` to a standard queue over `groups` quiet groups in turn."""
    _send(port, queue_url, [f"quiet-{run}-{n % groups}" for n in range(messages)], run=None)


def make_noisy(*, port: int, queue_url: str, messages: int) -> None:
    """Send `messages` of one group to a standard queue, and receive enough to make the group noisy."""
    _send(port, queue_url, [NOISY] * messages, run=None)
    converse(port=port, dialogues=[_receiving(queue_url, NOISY_IN_FLIGHT)])


def quiet_is_next(sqs: Sqs, queue_url: str, turn: int) -> bool:
    """Send a message of a new group; return whether the next receive delivers it, and delete what it delivers."""
    body = f"quiet-{turn}"
    sqs.call("SendMessage", QueueUrl=queue_url, MessageBody=body, MessageGroupId=f"once-{turn}")
    (message,) = sqs.call("ReceiveMessage", QueueUrl=queue_url)["Messages"]
    sqs.call("DeleteMessage", QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
    return bool(message["Body"] == body)


def _send(port: int, queue_url: str, names: list[str], *, run: str | None) -> None:
    converse(port=port, dialogues=[_sending(queue_url, names, run)], timeout_s=3_600.0)


def _sending(queue_url: str, names: list[str], run: str | None) -> Dialogue:
    for start in range(0, len(names), BATCH):
        answer = yield request("SendMessageBatch", QueueUrl=queue_url, Entries=list(_entries(names, start, run)))
        if b'"Code"' in answer:
            raise DialogueError(f"entries of a batch failed: {answer[:300].decode(errors='replace')}")


def _entries(names: list[str], start: int, run: str | None) -> Iterator[dict[str, str]]:
    for n, name in enumerate(names[start : start + BATCH]):
        dedup = {} if run is None else {"MessageDeduplicationId": f"{run}-{start + n}"}
        yield {"Id": str(n), "MessageBody": BODY, "MessageGroupId": name, **dedup}


def _receiving(queue_url: str, messages: int) -> Dialogue:
    left = messages
    while left > 0:
        got = handles((yield request("ReceiveMessage", QueueUrl=queue_url, MaxNumberOfMessages=min(BATCH, left))))
        if not got:
            raise DialogueError(f"a receive gave nothing while {left} messages should have been there")
        left -= len(got)
