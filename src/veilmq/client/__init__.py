"""Clients of a queue server; ``HttpQueueClient`` speaks SQS (AWS JSON 1.0).

Names are imported at their first use (PEP 562), because Spark starts new workers for each batch, which need few of
them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilmq.client.messages import ClientError as ClientError
    from veilmq.client.messages import Move as Move
    from veilmq.client.messages import NewMessage as NewMessage
    from veilmq.client.messages import QueueStatus as QueueStatus
    from veilmq.client.messages import ReceivedMessage as ReceivedMessage
    from veilmq.client.messages import SentMessage as SentMessage
    from veilmq.client.messages import Unreachable as Unreachable
    from veilmq.client.messages import traced as traced
    from veilmq.client.sqs import HttpQueueClient as HttpQueueClient
    from veilmq.client.sqs import QueueClient as QueueClient
    from veilmq.client.transport import SigningKey as SigningKey

_MESSAGES = "ClientError Move NewMessage QueueStatus ReceivedMessage SentMessage Unreachable traced"
_MODULES = dict.fromkeys(_MESSAGES.split(), "messages")
_MODULES |= {"HttpQueueClient": "sqs", "QueueClient": "sqs", "SigningKey": "transport"}
__all__ = [*_MODULES]  # noqa: PLE0604 (of strings)


def __getattr__(name: str) -> Any:
    """Import ``name`` at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
