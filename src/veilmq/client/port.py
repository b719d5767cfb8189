"""The port of all clients: queues by name, messages by receipt.

A batch call is one request, and each of its entries succeeds or fails alone: the answer has one item for each entry, in
order, and an error is an item instead of being raised. Every call raises ``ClientError`` when the server says no and
``Unreachable`` when nothing usable came back.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from veilmq.client.errors import ClientError
from veilmq.client.messages import Hidden, NewMessage, ReceivedMessage, SentMessage
from veilmq.client.moves import Move
from veilmq.client.status import QueueStatus
from veilmq.core.commands import VisibilityChange
from veilmq.core.properties import Attribute
from veilmq.core.settings import SettingValue


class MessageClient(Protocol):
    """What a consumer asks of a queue server; implementations may be shared by threads."""

    def close(self) -> None:
        """Close the idle connections."""

    def hang_up(self) -> None:
        """End the receives that wait for messages: the server answers them now, with what it has.

        For a client that stops. Where the connections are not ours, they are left alone and wait on.
        """

    def create_queue(
        self,
        queue: str,
        settings: Mapping[str, SettingValue] | None = None,
        *,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Create ``queue``, or find it with the same settings (fields of ``QueueSettings``); answers its URL.

        Settings name other queues by their plain names. ``tags`` are those of a new queue.
        """

    def show(self, queue: str) -> QueueStatus:
        """Return the settings and the counters of ``queue``; its tags are told by ``tags``."""

    def send(
        self,
        queue: str,
        body: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        delay_s: int | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
    ) -> SentMessage:
        """Store one message."""

    def send_batch(self, queue: str, messages: Sequence[NewMessage]) -> list[SentMessage | ClientError]:
        """Store up to ten messages."""

    def receive(
        self,
        queue: str,
        *,
        count: int = 1,
        timeout_s: int | None = None,
        wait_s: int | None = None,
        attempt_id: str | None = None,
    ) -> list[ReceivedMessage]:
        """Take up to ``count`` messages and hide them for ``timeout_s``, waiting up to ``wait_s`` for the first.

        ``None`` stands for the queue's own setting. On a FIFO queue a receive whose answer was lost can be repeated
        with the same ``attempt_id``.
        """

    def delete(self, queue: str, receipt: str) -> None:
        """Delete the message of ``receipt``."""

    def dead_letter(self, queue: str, receipt: str, target: str, reasons: Mapping[str, str]) -> bool:
        """Move the message of ``receipt`` to the queue ``target`` as a dead letter of ``queue``, by the server itself.

        ``reasons`` become attributes of the message. False, with nothing done, where the server cannot do that: it is
        not veilmq's, or the queues are of different types.
        """

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        """Delete the messages of up to ten receipts; ``None`` for each that succeeded."""

    def change_visibility(self, queue: str, receipt: str, timeout_s: int) -> None:
        """Hide the message of ``receipt`` for ``timeout_s`` from now on; 0 makes it visible at once."""

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> Sequence[ClientError | Hidden | None]:
        """Make up to ten changes; no error for each that succeeded: ``Hidden`` where the server says more than SQS.

        With ``patience_s`` the request is tried once and given up after so many seconds.
        """


class QueueClient(MessageClient, Protocol):
    """What can be asked of a queue server; implementations may be shared by threads."""

    def queue_url(self, queue: str) -> str:
        """Return the URL of ``queue``."""

    def list_queues(self, prefix: str = "") -> list[str]:
        """Return the names of all queues that begin with ``prefix``, in order."""

    def set(self, queue: str, settings: Mapping[str, SettingValue]) -> None:
        """Change the supplied settings of ``queue``; messages in flight keep their deadlines."""

    def purge(self, queue: str) -> None:
        """Delete all messages of ``queue``."""

    def delete_queue(self, queue: str) -> None:
        """Delete ``queue`` and all its messages."""

    def tags(self, queue: str) -> dict[str, str]:
        """Return the tags of ``queue``."""

    def tag(self, queue: str, tags: Mapping[str, str]) -> None:
        """Put ``tags`` on ``queue``, beside those that are there."""

    def untag(self, queue: str, keys: Sequence[str]) -> None:
        """Remove the tags with these ``keys`` from ``queue``."""

    def dead_letter_sources(self, queue: str) -> list[str]:
        """Return the names of the queues whose dead letters go to ``queue``, in order."""

    def start_move(self, queue: str, *, destination: str | None = None, moves_per_s_max: int | None = None) -> str:
        """Begin to move the dead letters of ``queue`` to ``destination`` (``None``: to where each one came from).

        Answers the handle that cancels it.
        """

    def cancel_move(self, handle: str) -> int:
        """Stop a move, and return how many messages it has moved."""

    def moves(self, queue: str) -> list[Move]:
        """Return the latest moves of the dead letters of ``queue``, newest first."""
