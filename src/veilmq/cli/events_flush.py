"""``veilmq events flush``."""

from typing import Annotated

import urllib3
from cyclopts import Parameter
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from veilmq.cli.failures import CommandFailed, UsageError

_ANSWER_S_MAX = 30.0
_DONE = 200
_GOES_ON = 202  # the server answers before its connection ends; it takes another request to wait on

AdminEndpoint = Annotated[
    str, Parameter(name="--admin-endpoint", metavar="URL", help="The server's port for health and metrics.")
]


def flush(*, admin_endpoint: AdminEndpoint = "http://127.0.0.1:9325") -> None:
    """Have a server export the whole event log now, and wait for it."""
    if not admin_endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--admin-endpoint: {admin_endpoint!r} is no URL like http://127.0.0.1:9325.")
    answer = _ask(admin_endpoint)
    while answer.status == _GOES_ON:
        answer = _ask(admin_endpoint)
    if answer.status != _DONE:
        raise CommandFailed(answer.data.decode(errors="replace").strip() or f"The server answered {answer.status}.")
    told = answer.json()
    print(f"Exported {told['exported']} events in all; {told['waiting']} wait, {told['dropped']} were dropped.")


def _ask(admin_endpoint: str) -> BaseHTTPResponse:
    try:
        url = f"{admin_endpoint.rstrip('/')}/events/flush"
        return urllib3.request("POST", url, timeout=_ANSWER_S_MAX, retries=False)
    except HTTPError as error:
        raise CommandFailed(f"No server answers at {admin_endpoint}: {error}") from error
