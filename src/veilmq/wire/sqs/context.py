"""What a request's surroundings say: everything the translation needs that is not in the request's body."""

import msgspec

DEFAULT_ACCOUNT = "000000000000"
DEFAULT_REGION = "us-east-1"


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``base_url`` as the client reached us (``http://127.0.0.1:9324``, no slash at its end), and who asks.

    One context serves all requests of one account on one connection.
    """

    base_url: str
    account: str = DEFAULT_ACCOUNT
    region: str = DEFAULT_REGION
