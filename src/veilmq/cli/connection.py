"""The server of a command and its key: from options, environment variables, and profiles of AWS's tools."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import urllib3
from cyclopts import Parameter, Token

from veilmq.cli.command import CommandFailed
from veilmq.cli.options import ADMIN_ENDPOINT, UsageError
from veilmq.client.transport import (
    DEFAULT_ENDPOINT,
    ENDPOINT_VARIABLES,
    Transport,
    endpoint_from,
    endpoint_variable,
    key_from,
    new_pools,
    root_cause,
)

_REPLY_S_MAX = 30.0
_THIS_MACHINE = re.compile(r"http://(?:localhost|127(?:\.[0-9]+){3}|\[::1\])(?=[:/]|\Z)")

_KEY = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def _connect(_: Any, tokens: Sequence[Token]) -> Transport:
    """Return the transport to the server of ``--endpoint``, of a non-empty variable, or of the profile.

    Requests are signed with the user's key. Nothing is sent yet. Raises ``UsageError`` for an invalid URL.
    """
    (token,) = tokens
    variables = environment()
    origin, url = "--endpoint", token.value
    if token.source != "cli":
        origin = endpoint_variable(os.environ) or "endpoint_url of the profile"
        url = endpoint_from(variables)
    try:
        return Transport(url, key=key_from(variables))
    except ValueError as error:
        raise UsageError(f"{origin}: {error}") from error


Server = Annotated[
    Transport,
    Parameter(
        name="--endpoint",
        env_var=ENDPOINT_VARIABLES,
        converter=_connect,
        accepts_keys=False,
        n_tokens=1,
        required=False,  # app.py calls the converter in any case
        show_default=DEFAULT_ENDPOINT,
        metavar="URL",
        help="URL of the server.",
    ),
]


def post(admin_endpoint: str, path: str) -> urllib3.BaseHTTPResponse:
    """Send a request to the server's admin port, and return the reply.

    The secret key is the password (HTTP Basic). It is sent only over TLS or to this machine, and only if variables set
    the key or the profile, because the key of the default profile may be for Amazon.
    """
    if not admin_endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--admin-endpoint: {admin_endpoint!r} is not a URL such as {ADMIN_ENDPOINT.default}.")
    key = key_from(environment() if _profile_variable(os.environ) else os.environ)
    is_private = admin_endpoint.startswith("https://") or _THIS_MACHINE.match(admin_endpoint) is not None
    headers = None if key is None or not is_private else urllib3.make_headers(basic_auth=f"{key.id}:{key.secret}")
    try:
        url = admin_endpoint.rstrip("/") + path
        return new_pools().request("POST", url, headers=headers, timeout=_REPLY_S_MAX, retries=False)
    except urllib3.exceptions.HTTPError as error:
        text = f"No answer from {admin_endpoint}: {root_cause(error)}; --admin-endpoint names the server's admin port."
        raise CommandFailed(text) from error


def environment() -> dict[str, str]:
    """Return the environment variables, and the profile's values for missing ones."""
    return {**os.environ, **_of_profile(os.environ)}


def _of_profile(given: Mapping[str, str]) -> dict[str, str]:
    """Return the key, region and endpoint of the profile, as values of the variables that ``given`` lacks.

    The profile is ``AWS_PROFILE``, ``AWS_DEFAULT_PROFILE`` or ``default``; raises ``UsageError`` if a named one does
    not exist. Keys from a role, single sign-on or a program are not supported.
    """
    variable = _profile_variable(given)
    name = given[variable] if variable else "default"
    config = _sections(given.get("AWS_CONFIG_FILE") or "~/.aws/config")
    credentials = _sections(given.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    plain = config.get("default") if name == "default" else None  # other sections are named "profile NAME"
    parts = [each for each in (plain, config.get(f"profile {name}"), credentials.get(name)) if each is not None]
    if variable and not parts:
        raise UsageError(f"{variable}: there is no profile {name!r} in the files of AWS's tools (~/.aws/config).")
    found = {option: value for part in parts for option, value in part.items()}
    variables: dict[str, str] = {}
    if key_from(given) is None and found.get("aws_access_key_id") and found.get("aws_secret_access_key"):
        variables = {each.upper(): found.get(each, "") for each in _KEY}
    if found.get("region") and not given.get("AWS_REGION") and not given.get("AWS_DEFAULT_REGION"):
        variables["AWS_REGION"] = found["region"]
    ignored = given.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or found.get("ignore_configured_endpoint_urls", "")
    if endpoint_variable(given) is None and ignored.lower() != "true":
        # In a section of services, "sqs =" is followed by indented lines, which the parser returns as one value.
        lines = config.get(f"services {found.get('services')}", {}).get("sqs", "").splitlines()
        of_sqs = {option.strip(): value.strip() for option, _, value in (line.partition("=") for line in lines)}
        if url := of_sqs.get("endpoint_url") or found.get("endpoint_url"):
            variables["AWS_ENDPOINT_URL_SQS"] = url
    return variables


def _profile_variable(given: Mapping[str, str]) -> str | None:
    return next((name for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE") if given.get(name)), None)


def _sections(file: str) -> Mapping[str, Mapping[str, str]]:
    """Return the sections of a file of AWS's tools; none if it does not exist. Raises ``UsageError``."""
    path = os.path.expanduser(file)  # noqa: PTH111 - Path raises if the user has no home
    if not os.path.isfile(path):  # noqa: PTH113 - Path raises if a folder may not be entered
        return {}
    import shlex
    from configparser import Error, RawConfigParser

    parser = RawConfigParser(default_section="", strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (Error, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    found: dict[str, Mapping[str, str]] = {}
    for name, section in parser.items():
        with suppress(ValueError):  # the name has an unbalanced quote
            found[" ".join(shlex.split(name))] = dict(section)  # AWS's tools write [profile 'two words']
    return found
