"""``veilmq events flush``."""

from veilmq.cli.connection import DEFAULT_ADMIN_ENDPOINT, AdminEndpoint, post
from veilmq.cli.failures import CommandFailed

_PATH = "/events/flush"
_DONE = 200
_GOES_ON = 202  # the server answers before its connection ends; it takes another request to wait on


def flush(*, admin_endpoint: AdminEndpoint = DEFAULT_ADMIN_ENDPOINT) -> None:
    """Have a server export the whole event log now, and wait for it."""
    answer = post(admin_endpoint, _PATH)
    while answer.status == _GOES_ON:
        answer = post(admin_endpoint, _PATH)
    if answer.status != _DONE:
        raise CommandFailed(answer.data.decode(errors="replace").strip() or f"The server answered {answer.status}.")
    told = answer.json()
    print(f"Exported {told['exported']} events in all; {told['waiting']} wait, {told['dropped']} were dropped.")
