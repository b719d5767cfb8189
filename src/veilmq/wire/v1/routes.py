"""The one table of routes: method, noun and verb → what is made of the request, and which permission it needs.

A new route is a row. ``permission`` is the SQS action on which a queue's policy decides.
"""

from collections.abc import Callable
from typing import NamedTuple

from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.v1 import claims, publications
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.request import ApiRequest

_GET = b"GET"
_POST = b"POST"


class Route(NamedTuple):
    """One route; ``verb`` is empty for the noun itself. ``plan`` raises ``SqsError`` for what it cannot take."""

    method: bytes
    noun: bytes
    verb: bytes
    plan: Callable[[ApiRequest, RequestContext], ApiCall]
    permission: str

    @property
    def label(self) -> str:
        """Return the name under which requests are counted."""
        return f"{self.noun.decode()}.{self.verb.decode() or 'list'}"


_ROWS = (
    Route(_GET, b"claims", b"", claims.list_sources, "ReceiveMessage"),
    Route(_GET, b"claims", b"read", claims.read, "ReceiveMessage"),
    Route(_POST, b"claims", b"open", claims.open_source, "ReceiveMessage"),
    Route(_POST, b"claims", b"claim", claims.claim, "ReceiveMessage"),
    Route(_POST, b"claims", b"heartbeat", claims.heartbeat, "ReceiveMessage"),
    Route(_POST, b"claims", b"acknowledge", claims.acknowledge, "DeleteMessage"),
    Route(_POST, b"claims", b"release", claims.release, "ChangeMessageVisibility"),
    Route(_POST, b"claims", b"evict", claims.evict, "DeleteMessage"),
    Route(_POST, b"claims", b"close", claims.close, "DeleteMessage"),
    Route(_GET, b"publications", b"", publications.list_writers, "SendMessage"),
    Route(_POST, b"publications", b"stage", publications.stage, "SendMessage"),
    Route(_POST, b"publications", b"publish", publications.publish, "SendMessage"),
    Route(_POST, b"publications", b"abandon", publications.abandon, "SendMessage"),
)

ROUTES: dict[bytes, Route] = {b"%b %b/%b" % (row.method, row.noun, row.verb): row for row in _ROWS}
"""Every route, by method, noun and verb."""


def route_key(request: ApiRequest) -> bytes:
    """Return under which key the route of ``request`` is, if there is one."""
    return b"%b %b/%b" % (request.method, request.noun, request.verb)
