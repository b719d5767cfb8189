"""What can go wrong for a client: the server said no, or there was no server to say anything."""

from collections.abc import Mapping
from typing import Any

RECEIPT_SUPERSEDED = "ReceiptSuperseded"
"""Our own code for a change that did nothing, since the message was received again."""

DEAD_RECEIPT_CODES = frozenset(
    {"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue", RECEIPT_SUPERSEDED}
)
"""What queue servers answer to a legal request about a receipt that is not the message's any more."""


class ClientError(Exception):
    """The server refused or failed; ``code`` is its word for it, for example ``QueueDoesNotExist``."""

    def __init__(self, code: str, message: str, status: int, *, fields: Mapping[str, Any] | None = None) -> None:
        """``message`` is the server's sentence, ``status`` the HTTP status (4xx: ask differently, 5xx: ask again).

        ``fields`` is what else an answer of our own API tells, for example ``current`` of ``EpochFenced``.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.fields = fields or {}


class Unreachable(Exception):
    """No usable answer came from ``endpoint``; whether the request had an effect is unknown."""

    def __init__(self, endpoint: str, reason: str) -> None:
        """``reason`` says in a few words what happened instead, for example "connection refused"."""
        super().__init__(f"No answer from {endpoint}: {reason}.")
        self.endpoint = endpoint
        self.reason = reason
