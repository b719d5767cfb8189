"""A queue of a running server, as a test sees it: made by name, looked at from outside, at no receive's expense."""

from collections.abc import Callable
from typing import Any

from veilmq.core.commands import Command, ShowQueue
from veilmq.core.looks import LOOK_MESSAGES_MAX, LookAtQueue, MessageState, SeenMessage
from veilmq.core.results import QueueCounts

Do = Callable[[Command], Any]
"""Has the server's engine carry out a command, once all that the server received before is done."""


class RunningQueue:
    """A queue and its ``name`` and ``url``. ``str()`` is the URL."""

    def __init__(self, *, name: str, url: str, account: str, do: Do) -> None:
        """Made by ``RunningServer.queue``."""
        self.name = name
        self.url = url
        self.full_name = f"{account}/{name}"
        self._do = do

    def __str__(self) -> str:
        """Return the URL."""
        return self.url

    def __repr__(self) -> str:
        """Return name and counts, for messages of failed assertions."""
        counts = self.counts
        return f"<queue {self.name}: {counts.visible} visible, {counts.in_flight} in flight, {counts.delayed} delayed>"

    @property
    def counts(self) -> QueueCounts:
        """Return how many messages are visible, in flight and delayed now, and the instant of the oldest."""
        counts: QueueCounts = self._do(ShowQueue(queue=self.full_name, counts=True)).counts
        return counts

    def messages(self, state: MessageState | None = None, *, count: int = LOOK_MESSAGES_MAX) -> list[SeenMessage]:
        """Return up to ``count`` messages in the order of sending, in ``state`` or in any; nothing is received."""
        seen: list[SeenMessage] = self._do(LookAtQueue(queue=self.full_name, count=count))
        return [message for message in seen if state in (None, message.state)]

    @property
    def bodies(self) -> list[str]:
        """Return the bodies of all messages, in the order of sending."""
        return [message.body for message in self.messages()]

    @property
    def visible(self) -> list[SeenMessage]:
        """Return the messages that a receive may get now."""
        return self.messages(MessageState.VISIBLE)

    @property
    def in_flight(self) -> list[SeenMessage]:
        """Return the messages that somebody holds, each with the instant at which it becomes visible."""
        return self.messages(MessageState.IN_FLIGHT)

    @property
    def delayed(self) -> list[SeenMessage]:
        """Return the messages that were sent with a delay and were never visible."""
        return self.messages(MessageState.DELAYED)
