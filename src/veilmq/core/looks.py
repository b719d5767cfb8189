"""Looking at a queue's messages without receiving them: for tests, and for whoever wants to know what is in a queue.

Nothing changes by a look: no lease begins and no receive is counted. What it shows is what the engine has at one
instant, together with the state that this instant gives each message.
"""

import enum

import msgspec

from veilmq.core.commands import Command

LOOK_MESSAGES_MAX = 1_000


class MessageState(enum.Enum):
    """Where a message is at an instant (``docs/lifecycle.md``); a claimed message is in flight."""

    VISIBLE = "visible"
    IN_FLIGHT = "in flight"
    DELAYED = "delayed"


class LookAtQueue(Command, frozen=True, kw_only=True):
    """Show up to ``count`` messages of ``queue``, those sent first first. Answers a list of ``SeenMessage``.

    Error ``QueueNotFound``.
    """

    queue: str
    count: int = LOOK_MESSAGES_MAX


class SeenMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as a look shows it; ``properties`` is ``core.properties`` encoded.

    ``visible_at_ms`` is when its last hiding ends or ended: ``None`` for one that was never hidden, or is claimed.
    """

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    receive_count: int
    state: MessageState
    visible_at_ms: int | None
