"""The clients that a command talks through.

They sign with the key that AWS's variables name, if they name one. Nothing is sent when they are made; an endpoint
that is no URL raises ``UsageError``.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import urllib3
from cyclopts import Parameter
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from veilmq.cli.command import CommandFailed, UsageError
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims, Forwards, Settings
from veilmq.client.transport import endpoint_variable, key_of

DEFAULT_ADMIN_ENDPOINT = "http://127.0.0.1:9325"
AdminEndpoint = Annotated[
    str, Parameter(name="--admin-endpoint", metavar="URL", help="The server's port for health and metrics.")
]

_ANSWER_S_MAX = 30.0
_THIS_MACHINE = re.compile(r"http://(?:localhost|127(?:\.[0-9]+){3}|\[::1\])(?=[:/]|\Z)")


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


def post(admin_endpoint: str, path: str) -> BaseHTTPResponse:
    """Return the answer of the operator's port.

    The key that signs elsewhere is the password here (HTTP Basic): it is sent over TLS, or to this machine, alone.
    """
    if not admin_endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--admin-endpoint: {admin_endpoint!r} is no URL like {DEFAULT_ADMIN_ENDPOINT}.")
    key = key_of(os.environ)
    is_private = admin_endpoint.startswith("https://") or _THIS_MACHINE.match(admin_endpoint) is not None
    headers = None if key is None or not is_private else urllib3.make_headers(basic_auth=f"{key.id}:{key.secret}")
    try:
        url = admin_endpoint.rstrip("/") + path
        return urllib3.request("POST", url, headers=headers, timeout=_ANSWER_S_MAX, retries=False)
    except HTTPError as error:
        raise CommandFailed(f"No server answers at {admin_endpoint}: {error}") from error


@contextmanager
def _named(endpoint: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        # An option with the same text beats it, and is as wrong.
        variable = endpoint_variable(os.environ)
        origin = variable if variable is not None and os.environ[variable] == endpoint else "--endpoint"
        raise UsageError(f"{origin}: {error}") from error
