"""Which server a client talks to where it is given none: the consumer, the command line and Spark ask here."""

from collections.abc import Mapping

DEFAULT_ENDPOINT = "http://127.0.0.1:9324"
ENDPOINT_VARIABLES = ("VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL")
"""The first of these environment variables that is set and not empty names the server."""


def endpoint_variable(environment: Mapping[str, str]) -> str | None:
    """Return the name of the variable that names the server, ``None`` where none does."""
    return next((name for name in ENDPOINT_VARIABLES if environment.get(name)), None)


def endpoint_of(environment: Mapping[str, str]) -> str:
    """Return the URL of the server that the variables name, else that of a server on this machine."""
    variable = endpoint_variable(environment)
    return DEFAULT_ENDPOINT if variable is None else environment[variable]
