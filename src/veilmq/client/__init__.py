"""The client: what a program or a command asks of a queue server, in our own terms.

``QueueClient`` is the port; ``HttpQueueClient`` speaks SQS over AWS JSON 1.0 to an endpoint.
"""

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
