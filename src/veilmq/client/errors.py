"""What can go wrong for a client: the server said no, or there was no server to say anything."""


class ClientError(Exception):
    """The server refused or failed; ``code`` is its word for it, for example ``QueueDoesNotExist``."""

    def __init__(self, code: str, message: str, status: int, *, index: int | None = None) -> None:
        """``message`` is the server's sentence, ``status`` the HTTP status (4xx: ask differently, 5xx: ask again).

        ``index`` tells which of several messages was refused (``StageRefused``), counted from 0.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.index = index


class Unreachable(Exception):
    """No usable answer came from ``endpoint``; whether the request had an effect is unknown."""

    def __init__(self, endpoint: str, reason: str) -> None:
        """``reason`` says in a few words what happened instead, for example "connection refused"."""
        super().__init__(f"No answer from {endpoint}: {reason}.")
        self.endpoint = endpoint
        self.reason = reason
