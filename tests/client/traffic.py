"""Send test messages, count messages, and drain queues."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from veilmq.client import HttpQueueClient, NewMessage, ReceivedMessage, SentMessage

BATCH = 10
SENDERS = 4
LONG_S = 600


def send(client: HttpQueueClient, queue: str, count: int, begin: int = 0) -> list[str]:
    """Send `count` messages with distinct bodies, numbered from `begin`, in any order; return the bodies."""
    bodies = [f"message {number:03}" for number in range(begin, begin + count)]
    batches = _batches([NewMessage(body=body) for body in bodies])
    with ThreadPoolExecutor(SENDERS) as threads:
        list(threads.map(lambda batch: _send(client, queue, batch), batches))
    return bodies


def send_in_order(client: HttpQueueClient, queue: str, messages: Sequence[NewMessage]) -> None:
    """Send `messages` in sequential batches."""
    for batch in _batches(messages):
        _send(client, queue, batch)


def drained(client: HttpQueueClient, queue: str) -> list[ReceivedMessage]:
    """Receive and delete all visible messages; return them in order."""
    found: list[ReceivedMessage] = []
    while messages := client.receive(queue, count=BATCH, wait_s=0, timeout_s=LONG_S):
        assert client.delete_batch(queue, [message.receipt for message in messages]) == [None] * len(messages)
        found += messages
    return found


def left(client: HttpQueueClient, queue: str) -> tuple[int, int]:
    status = client.show(queue)
    return status.visible, status.in_flight


def _batches(messages: Sequence[NewMessage]) -> list[Sequence[NewMessage]]:
    return [messages[at : at + BATCH] for at in range(0, len(messages), BATCH)]


def _send(client: HttpQueueClient, queue: str, batch: Sequence[NewMessage]) -> None:
    assert all(isinstance(result, SentMessage) for result in client.send_batch(queue, batch))
