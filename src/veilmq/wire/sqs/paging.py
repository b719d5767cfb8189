"""Paging tokens: where the next page begins, in a form that invites nobody to make one up.

A token is the name after which the next page begins, in URL-safe base64. It gives no access that its bearer does not
have anyway, so it carries no signature.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode

from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, SqsError


def token_after(name: str) -> str:
    """Return the token of the page that begins after ``name``."""
    return urlsafe_b64encode(name.encode()).decode()


def name_before(token: str | None) -> str:
    """Return the name after which the page of ``token`` begins, empty for the first page."""
    if not token:
        return ""
    try:
        name = urlsafe_b64decode(token.encode("ascii")).decode()
    except ValueError:
        name = ""
    if not name or token_after(name) != token:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "Invalid or expired next token; use the NextToken of the previous page, or none for the first page.",
        )
    return name
