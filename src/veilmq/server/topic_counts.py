"""What the server counts of topics: pushes by how they ended, and messages that a queue did not get."""

import enum


class PushOutcome(enum.Enum):
    """How an attempt to push a message ended."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    """Another try follows."""
    GIVEN_UP = "given_up"
    """It was the last one: the message is gone."""


class TopicCounts:
    """The counters of one server."""

    __slots__ = ("pushes", "pushes_running", "undeliverable")

    def __init__(self) -> None:
        """Begin with none."""
        self.pushes = dict.fromkeys(PushOutcome, 0)
        self.pushes_running = 0
        self.undeliverable = 0
