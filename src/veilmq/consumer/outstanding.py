"""How many bytes of bodies are in our hands, and how many more messages may come before they are too many.

What a receive brings is not known before: the mean of what came so far stands for it. With nothing in our hands one
message may come, whatever its size.
"""

from veilmq.client.messages import ReceivedMessage

OUTSTANDING_BYTES_MAX = 100 * 1024 * 1024
"""Of one handler, unless told otherwise; that of the clients of Google Pub/Sub."""


class Outstanding:
    """Counts the bodies of messages from their receive to their settle."""

    __slots__ = ("_bytes_max", "_messages", "_received_bytes", "held_bytes")

    def __init__(self, bytes_max: int = OUTSTANDING_BYTES_MAX) -> None:
        """Begin with nothing."""
        self._bytes_max = bytes_max
        self._messages = 0
        self._received_bytes = 0
        self.held_bytes = 0

    def add(self, message: ReceivedMessage) -> None:
        """Count ``message``, which has come."""
        size = body_bytes(message)
        self._messages += 1
        self._received_bytes += size
        self.held_bytes += size

    def remove(self, message: ReceivedMessage) -> None:
        """Count ``message`` no more: it is settled."""
        self.held_bytes -= body_bytes(message)

    def room(self, most: int) -> int:
        """Return how many messages may come, up to ``most``: one at least until the limit is reached."""
        left = self._bytes_max - self.held_bytes
        if left <= 0:
            return 0
        if left * self._messages >= most * self._received_bytes:
            return most
        return max(1, left * self._messages // self._received_bytes)


def body_bytes(message: ReceivedMessage) -> int:
    """Return the length of the body of ``message`` in UTF-8."""
    body = message.body
    return len(body) if body.isascii() else len(body.encode())
