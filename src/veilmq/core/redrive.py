"""The rules of dead letters: which queue may serve which as its dead-letter queue, and what a message keeps.

A message of a standard queue keeps the time at which it was first sent, and its retention goes on counting from there;
in FIFO queues both begin anew. Its receive count and its first receive go on either way, for whoever looks at the
message; a limit of the dead-letter queue itself counts from the move (SQS Developer Guide, "Using dead-letter queues";
``docs/decisions/0006-moved-messages.md`` has what that page leaves open).
"""

from veilmq.core.errors import DeadLetterQueueRefused
from veilmq.core.limits import SECOND_MS
from veilmq.core.settings import QueueSettings

SLICE_MESSAGES = 200
"""How many messages a slice of a move task moves: some 10 ms."""
SLICE_BYTES = 1_048_576
_SLICES_PER_S = 10
_PAUSE_MS = 10

SOURCE_UNKNOWN = "source unknown"
"""The failure of a move task: a message was sent to the dead-letter queue directly, so there is no way back."""
QUEUE_MISSING = "queue missing"
"""The failure of a move task: the queue that a message should go to is gone, or cannot take messages of this kind."""

NOT_ALLOWED = "not allowed"
"""The failure of a move task: its starter may not send to the queue that a message should go to, or not any more."""


def refusal(source: str, ours: QueueSettings, target: str, theirs: QueueSettings | None) -> str | None:
    """Return why the queue ``target`` cannot be the dead-letter queue of ``source``, a sentence; ``None`` if it can.

    Both are full names. ``ours`` are the settings of the source, ``theirs`` those of the target, ``None`` when it
    does not exist.
    """
    if target == source and theirs is not None:
        return str(itself(source))
    if account_of(target) != account_of(source):
        return f"The dead-letter queue {target} is of another account than {source}; name one of the same account."
    if theirs is None:
        return f"The dead-letter queue {target} does not exist; create it first."
    if theirs.fifo != ours.fifo:
        return f"The dead-letter queue {target} is of another type than {source}; both are FIFO queues, or neither is."
    if not allows(theirs, source):
        return f"The queue {target} does not allow {source} to use it as a dead-letter queue; change its permission."
    return None


def itself(queue: str) -> DeadLetterQueueRefused:
    """Return the error for a queue that names itself, through a protocol that does not allow it."""
    return DeadLetterQueueRefused(queue, f"The queue {queue} cannot be its own dead-letter queue; name another one.")


def check(source: str, ours: QueueSettings, target: str, theirs: QueueSettings | None) -> None:
    """Raise ``DeadLetterQueueRefused`` unless ``target`` may be set as the dead-letter queue of ``source``.

    Amazon SQS lets a queue name itself. Its messages then stay in it, whatever their receive count.
    """
    why = None if target == source and theirs is not None else refusal(source, ours, target, theirs)
    if why is not None:
        raise DeadLetterQueueRefused(target, why, missing=theirs is None)


def allows(target: QueueSettings, source: str) -> bool:
    """Tell whether a queue with the settings ``target`` lets ``source`` use it as its dead-letter queue."""
    if target.redrive_permission == "listed":
        return source in target.redrive_sources
    return target.redrive_permission != "none"


def destination_refusal(source: str, ours: QueueSettings, target: str, theirs: QueueSettings) -> str | None:
    """Return why messages of ``source`` cannot be moved to ``target``, a sentence; ``None`` if they can.

    Both are full names of queues that exist, with their settings.
    """
    if target == source:
        return f"Messages of {target} cannot be moved to itself; name another destination."
    if account_of(target) != account_of(source):
        return f"The destination {target} is of another account than {source}."
    if theirs.fifo != ours.fifo:
        return f"The destination {target} is of another type than {source}."
    return None


def moved_at_once(per_s_max: int | None) -> int:
    """Return how many messages a slice of a move task may move: with a rate, about a tenth of a second's worth."""
    return SLICE_MESSAGES if per_s_max is None else max(1, per_s_max // _SLICES_PER_S)


def pause_ms(per_s_max: int | None, moved: int) -> int:
    """Return the time until the next slice: what so many messages take at the rate, never less than a pause."""
    return _PAUSE_MS if per_s_max is None else max(_PAUSE_MS, -(-moved * SECOND_MS // per_s_max))


def account_of(queue: str) -> str:
    """Return the account in a full name."""
    return queue.partition("/")[0]
