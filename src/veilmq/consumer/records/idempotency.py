"""Which record is a message's, and for how long it is remembered that its work was done."""

from collections.abc import Callable
from typing import Protocol

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.records.port import RecordStore
from veilmq.consumer.spans import Span, span_s

TTL = "1d"


class Idempotency(Protocol):
    """What the option ``idempotency`` of a handler takes."""

    @property
    def store(self) -> RecordStore:
        """Where the records are."""

    @property
    def ttl_s(self) -> float:
        """How long it is remembered that work was done."""

    def key(self, message: ReceivedMessage) -> str:
        """Return the name of the work that ``message`` asks for."""


class ByMessageId:
    """One piece of work is one message: deliveries of it after the first that was done are deleted."""

    def __init__(self, store: RecordStore, ttl: Span = TTL) -> None:
        """``ttl`` should be longer than a message may take to come back; its retention at the most."""
        self.store = store
        self.ttl_s = _positive_s(ttl)

    def key(self, message: ReceivedMessage) -> str:
        """Return the message's id."""
        return message.id


class ByKey:
    """Messages with the same key ask for the same work: it is done for the first of them, and the others deleted."""

    def __init__(self, store: RecordStore, key: Callable[[ReceivedMessage], str], ttl: Span = TTL) -> None:
        """``key`` takes the message, whatever the handler takes; ``ttl`` is for how long a repetition is one."""
        self.store = store
        self.ttl_s = _positive_s(ttl)
        self._key = key

    def key(self, message: ReceivedMessage) -> str:
        """Return what the user's function says."""
        return self._key(message)


def _positive_s(ttl: Span) -> float:
    ttl_s = span_s(ttl)
    if not ttl_s:
        raise ValueError("ttl is 0: nothing would be remembered; give a span like 1d")
    return ttl_s
