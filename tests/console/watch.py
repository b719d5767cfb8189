"""Looks on while a page is used, and remembers what no page of ours may do.

Those are: an error in a script, a breach of the Content-Security-Policy, a request to another host, an answer of 500 or
more, a file of the page that is not there. What the server refuses in words (4xx to a form or an address) is no fault.
"""

from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Request, Response

_REFUSED = "Failed to load resource: the server responded with a status of 4"
_FORMS = {"document", "fetch", "xhr", "eventsource"}


class Watch:
    """The faults of one browser context, which is told of at ``origin`` alone."""

    def __init__(self, context: BrowserContext, *, origin: str) -> None:
        """Begin to look on."""
        self.faults: list[str] = []
        self._host = urlsplit(origin).netloc
        context.on("console", self._said)
        context.on("weberror", lambda error: self.faults.append(f"uncaught: {error.error}"))
        context.on("request", self._asked)
        context.on("response", self._answered)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not message.text.startswith(_REFUSED):
            self.faults.append(f"console {message.type}: {message.text} ({message.location})")

    def _asked(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in {"about", "data", "blob"} and address.netloc != self._host:
            self.faults.append(f"another host was asked: {request.url}")

    def _answered(self, response: Response) -> None:
        kind = response.request.resource_type
        if response.status >= 500 or (response.status >= 400 and kind not in _FORMS):
            self.faults.append(f"{response.status} for {kind} {response.url}")
