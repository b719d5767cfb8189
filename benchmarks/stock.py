"""Fill, drain and release a queue with dialogues that together move an exact number of messages.

The dialogues of one task share a `Budget`; each takes its next piece from it until nothing is left.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.dialogue import Dialogue, DialogueError, converse, framed, request

BODY = "x" * 256
BATCH = 10
EMPTY_MAX = 1000


@dataclass(slots=True, kw_only=True)
class Budget:
    """The number of messages still to move, and the number of replies that moved none."""

    left: int
    empty: int = 0

    def take(self, most: int) -> int:
        """Take up to `most` of the rest; 0 at the end."""
        taken = min(most, self.left)
        self.left -= taken
        return taken

    def put_back(self, messages: int) -> None:
        """Return messages that a reply did not move. Raises if that never stops."""
        self.left += messages
        self.empty += 1
        if self.empty > EMPTY_MAX:
            raise DialogueError(f"{EMPTY_MAX} receives gave fewer messages than were waiting")


def fill(*, port: int, queue_url: str, messages: int, delay_s: int = 0, connections: int = 8) -> float:
    """Send `messages` of 256 bytes in batches of ten; return the seconds it took."""
    budget = Budget(left=messages)
    return _all(port, connections, lambda: _filling(budget, queue_url, delay_s))


def drain(*, port: int, queue_url: str, messages: int, connections: int) -> float:
    """Receive and delete `messages` one by one; return the seconds it took."""
    budget = Budget(left=messages)
    return _all(port, connections, lambda: _draining(budget, queue_url))


def release(*, port: int, queue_url: str, messages: int, connections: int = 8) -> float:
    """Receive `messages` by ten and make each visible again at once; return the seconds it took."""
    budget = Budget(left=messages)
    return _all(port, connections, lambda: _releasing(budget, queue_url))


def handles(answer: bytes) -> list[str]:
    """Return the receipt handles in the reply to a receive."""
    found = json.loads(answer).get("Messages") if answer else None
    return [message["ReceiptHandle"] for message in found or ()]


def first_handle(answer: bytes) -> bytes | None:
    """Return the first receipt handle in the reply to a receive, without decoding it."""
    name = answer.find(b'"ReceiptHandle"')
    if name < 0:
        return None
    opening = answer.find(b'"', name + 15) + 1
    return answer[opening : answer.find(b'"', opening)]


def _all(port: int, connections: int, dialogue: Callable[[], Dialogue]) -> float:
    return converse(port=port, dialogues=[dialogue() for _ in range(connections)])


def _filling(budget: Budget, queue_url: str, delay_s: int) -> Dialogue:
    entries = [{"Id": str(i), "MessageBody": BODY} for i in range(BATCH)]
    delayed = [{**entry, "DelaySeconds": delay_s} for entry in entries] if delay_s else entries
    batch = [request("SendMessageBatch", QueueUrl=queue_url, Entries=delayed[:n]) for n in range(1, BATCH + 1)]
    while taken := budget.take(BATCH):
        answer = yield batch[taken - 1]
        if b'"Code"' in answer:
            raise DialogueError(f"entries of a batch failed: {answer[:300].decode(errors='replace')}")


def _draining(budget: Budget, queue_url: str) -> Dialogue:
    receive = request("ReceiveMessage", QueueUrl=queue_url, MaxNumberOfMessages=1)
    opening = b'{"QueueUrl":' + json.dumps(queue_url).encode() + b',"ReceiptHandle":"'
    while budget.take(1):
        handle = first_handle((yield receive))
        if handle is None:
            budget.put_back(1)
        else:
            yield framed("DeleteMessage", opening + handle + b'"}')


def _releasing(budget: Budget, queue_url: str) -> Dialogue:
    while taken := budget.take(BATCH):
        got = handles((yield request("ReceiveMessage", QueueUrl=queue_url, MaxNumberOfMessages=taken)))
        if len(got) < taken:
            budget.put_back(taken - len(got))
        if got:
            yield request("ChangeMessageVisibilityBatch", QueueUrl=queue_url, Entries=_to_zero(got))


def _to_zero(got: list[str]) -> list[dict[str, object]]:
    return [{"Id": str(i), "ReceiptHandle": handle, "VisibilityTimeout": 0} for i, handle in enumerate(got)]
