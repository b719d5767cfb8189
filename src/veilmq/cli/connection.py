"""The client that a command talks through."""

from veilmq.cli.failures import UsageError
from veilmq.client import HttpQueueClient


def connect(endpoint: str) -> HttpQueueClient:
    """Return a client of ``endpoint``; nothing is sent yet. Raises ``UsageError`` when that is no URL."""
    try:
        return HttpQueueClient(endpoint)
    except ValueError as error:
        raise UsageError(f"--endpoint: {error}") from error
