"""From a request to its call, by the table of routes."""

from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import ACCESS_DENIED, SqsError
from veilmq.wire.sqs.names import account_of
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import UNKNOWN_ROUTE, encode_error, encode_failure
from veilmq.wire.v1.request import ApiRequest, of_account
from veilmq.wire.v1.routes import ROUTES

__all__ = ["decode", "encode_error", "encode_failure"]

_NO_ROUTE = (
    "There is no such route. Paths are /v1/{noun}/{account}/{queue}/{verb}, with an account of twelve digits, or - for "
    "your own, and without queue and verb for what is of a whole account; reading and listing are GET, everything else "
    "is POST."
)


def decode(key: bytes, request: ApiRequest, context: RequestContext) -> ApiCall:
    """Return what ``request`` asks of the route ``key``; raises ``SqsError``, and nothing else, whatever it holds."""
    route = ROUTES.get(key)
    if route is None:
        raise SqsError(UNKNOWN_ROUTE, _NO_ROUTE)
    asked = of_account(request, context)
    if route.of_account and account_of(asked.account) != account_of(context.account):
        raise SqsError(ACCESS_DENIED, f"What an account has is for itself alone; the caller's is {context.account}.")
    return route.plan(asked, context)
