"""``veilmq clock trust``."""

from veilmq.cli.connection import DEFAULT_ADMIN_ENDPOINT, AdminEndpoint, post
from veilmq.cli.failures import CommandFailed

_DONE = 200


def trust(*, admin_endpoint: AdminEndpoint = DEFAULT_ADMIN_ENDPOINT) -> None:
    """Have a server take its clock's present time for right.

    What it held back because it doubted the clock is applied. A server with
    accounts wants the key of its own account's root user, in AWS's variables.
    """
    answer = post(admin_endpoint, "/api/clock/trust")
    try:
        message = answer.json()["message"]
    except (ValueError, LookupError, TypeError):
        message = f"{admin_endpoint} is not the admin port of a veilmq server: it answered {answer.status}."
        raise CommandFailed(message) from None
    if answer.status != _DONE:
        raise CommandFailed(message)
    print(message)
