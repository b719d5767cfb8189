"""A ``QueueClient`` over HTTP: SQS, AWS JSON 1.0.

Requests are signed with a key where one is given. ``transport`` says what is tried again.
"""

from collections.abc import Callable
from time import time

from veilmq.client.signing import SigningKey
from veilmq.client.sqs import SqsQueueClient
from veilmq.client.transport import Transport


class HttpQueueClient(SqsQueueClient):
    """A client of one endpoint; close it, or use it as a context manager. Threads may share it.

    A queue is named by its plain name, or by its URL, as one of another account must be.
    """

    def __init__(self, endpoint: str, *, key: SigningKey | None = None, wall_s: Callable[[], float] = time) -> None:
        """``endpoint`` is like ``http://127.0.0.1:9324``; raises ``ValueError`` for anything else.

        A server with a credentials file wants a ``key``, and its region; ``wall_s`` dates the signatures, in seconds
        since the epoch.
        """
        super().__init__(Transport(endpoint, key=key, wall_s=wall_s))
