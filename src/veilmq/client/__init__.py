"""Clients of a queue server.

``HttpQueueClient`` is a ``QueueClient`` that speaks SQS over AWS JSON 1.0 to an endpoint. Each name is imported at its
first use (PEP 562): workers of Spark start anew with each batch, and need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilmq.client.messages import (
        ClientError,
        Move,
        NewMessage,
        QueueStatus,
        ReceivedMessage,
        SentMessage,
        Unreachable,
        traced,
    )
    from veilmq.client.sqs import HttpQueueClient, QueueClient
    from veilmq.client.transport import SigningKey

__all__ = [
    "ClientError",
    "HttpQueueClient",
    "Move",
    "NewMessage",
    "QueueClient",
    "QueueStatus",
    "ReceivedMessage",
    "SentMessage",
    "SigningKey",
    "Unreachable",
    "traced",
]

_MODULES = {
    "ClientError": "messages",
    "HttpQueueClient": "sqs",
    "Move": "messages",
    "NewMessage": "messages",
    "QueueClient": "sqs",
    "QueueStatus": "messages",
    "ReceivedMessage": "messages",
    "SentMessage": "messages",
    "SigningKey": "transport",
    "Unreachable": "messages",
    "traced": "messages",
}


def __getattr__(name: str) -> Any:
    """Import ``name`` at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
