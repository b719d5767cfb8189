"""The client that a command talks through."""

import os

from veilmq.cli.failures import UsageError
from veilmq.client import HttpQueueClient
from veilmq.client.signing import key_of


def connect(endpoint: str) -> HttpQueueClient:
    """Return a client of ``endpoint``; nothing is sent yet. Raises ``UsageError`` when that is no URL.

    It signs with the key that AWS's variables name, if they name one.
    """
    try:
        return HttpQueueClient(endpoint, key=key_of(os.environ))
    except ValueError as error:
        raise UsageError(f"--endpoint: {error}") from error
