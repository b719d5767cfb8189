"""Rejected messages: what a dead letter says of itself, and a copy of the message where the server cannot move it.

A queue takes ten attributes of a message: ours that matter less are left out where there is no room.
"""

from veilmq.client.messages import NewMessage, ReceivedMessage
from veilmq.consumer.outcomes import Ending
from veilmq.core.properties import Attribute

ATTRIBUTES_MAX = 10
FIFO_SUFFIX = ".fifo"
_REASON_CHARACTERS_MAX = 500
_TRACE_CHARACTERS_MAX = 1_000


def dead_letter(message: ReceivedMessage, ending: Ending, *, source: str, target: str) -> NewMessage:
    """Return the copy of ``message`` of the queue ``source`` that goes to the queue ``target``, ended by ``ending``."""
    attributes = dict(message.attributes)
    for name, text in _reasons(message, ending, source).items():
        if text and (name in attributes or len(attributes) < ATTRIBUTES_MAX):
            attributes[name] = Attribute(type="String", text=text)
    fifo = target.endswith(FIFO_SUFFIX)
    return NewMessage(
        body=message.body,
        attributes=attributes,
        group=(message.group or message.id) if fifo else message.group,
        dedup_id=message.id if fifo else None,
    )


def reasons(message: ReceivedMessage, ending: Ending, *, source: str) -> dict[str, str]:
    """Return what is added to a message that the server moves, which keeps all that it has: at least the reason."""
    told = {name: text for name, text in _reasons(message, ending, source).items() if text}
    room = max(1, ATTRIBUTES_MAX - len(message.attributes.keys() - told.keys()))
    return dict(list(told.items())[:room])


def _reasons(message: ReceivedMessage, ending: Ending, source: str) -> dict[str, str]:
    """Return name → text, the most important first."""
    return {
        "veilmq-reason": _sendable(ending.reason)[:_REASON_CHARACTERS_MAX],
        "veilmq-message-id": message.id,
        "veilmq-error": ending.error,
        "veilmq-attempt": str(message.receive_count),
        "veilmq-queue": source.rpartition("/")[2],
        "veilmq-trace": _sendable(ending.trace)[-_TRACE_CHARACTERS_MAX:],
    }


def _sendable(text: str) -> str:
    """Return ``text`` without the control characters that no message may have."""
    return "".join(character for character in text if character in "\t\n\r" or 0x20 <= ord(character) < 0xD800)
