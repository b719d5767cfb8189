"""Requests of SMQ for tests of its codec: what they become, and what is answered."""

from collections.abc import Mapping

from veilmq.wire.exchange import RequestContext
from veilmq.wire.smq import SmqRequest, decode, read_request, route_of
from veilmq.wire.smq.routes import SmqCall

BASE = "http://127.0.0.1:9324"
CONTEXT = RequestContext(base_url=BASE, token_key=bytes(32))
ACCOUNT = CONTEXT.account


def request(method: str, target: str, body: str = "", headers: Mapping[str, str] | None = None) -> SmqRequest:
    """Return a request as the server takes it apart."""
    given = {name.encode(): value.encode() for name, value in (headers or {}).items()}
    return read_request(method.encode(), target.encode(), given, body.encode())


def ask(method: str, target: str, body: str = "", headers: Mapping[str, str] | None = None) -> SmqCall:
    """Return the call that a request becomes; raises ``SmqError``."""
    asked = request(method, target, body, headers)
    return decode(route_of(asked), asked, CONTEXT)
