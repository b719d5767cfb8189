"""The clients that a command talks through.

They sign with the key that AWS's variables name, if they name one. Nothing is sent when they are made; an endpoint
that is no URL raises ``UsageError``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from veilmq.cli.failures import UsageError
from veilmq.cli.options import ENDPOINT_VARIABLE
from veilmq.client import HttpQueueClient
from veilmq.client.claims import Claims
from veilmq.client.forwards import Forwards
from veilmq.client.settings import Settings
from veilmq.client.signing import key_of


def connect(endpoint: str) -> HttpQueueClient:
    """Return a client of ``endpoint``."""
    with _named(endpoint):
        return HttpQueueClient(endpoint, key=key_of(os.environ))


def connect_claims(endpoint: str, queue: str) -> Claims:
    """Return a client for the claims of ``queue`` at ``endpoint``."""
    with _named(endpoint):
        return Claims(endpoint, queue, key=key_of(os.environ))


def connect_forwards(endpoint: str, intake: str) -> Forwards:
    """Return a client for the forwards of the queue ``intake`` at ``endpoint``."""
    with _named(endpoint):
        return Forwards(endpoint, intake, key=key_of(os.environ))


def connect_settings(endpoint: str, queue: str) -> Settings:
    """Return a client for the settings of ``queue`` at ``endpoint``, through our own API."""
    with _named(endpoint):
        return Settings(endpoint, queue, key=key_of(os.environ))


@contextmanager
def _named(endpoint: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        # An option with the same text beats it, and is as wrong.
        origin = ENDPOINT_VARIABLE if os.environ.get(ENDPOINT_VARIABLE) == endpoint else "--endpoint"
        raise UsageError(f"{origin}: {error}") from error
