"""The client: what a program or a command asks of a queue server, in our own terms.

``QueueClient`` is the port; ``HttpQueueClient`` speaks SQS over AWS JSON 1.0 to an endpoint. Each name is imported when
it is first asked for (PEP 562): workers of Spark begin anew with each batch, and need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilmq.client.errors import ClientError, Unreachable
    from veilmq.client.http import HttpQueueClient
    from veilmq.client.messages import NewMessage, ReceivedMessage, SentMessage
    from veilmq.client.moves import Move
    from veilmq.client.port import QueueClient
    from veilmq.client.signing import SigningKey
    from veilmq.client.status import QueueStatus

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
]

_MODULES = {
    "ClientError": "errors",
    "HttpQueueClient": "http",
    "Move": "moves",
    "NewMessage": "messages",
    "QueueClient": "port",
    "QueueStatus": "status",
    "ReceivedMessage": "messages",
    "SentMessage": "messages",
    "SigningKey": "signing",
    "Unreachable": "errors",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, once."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
