"""Whose queues a request names, before its signature is verified or where none is: the account and the region.

Without a credentials file an access key id of twelve digits names the account, and so the sender. With ``regions =
"by-request"`` the credential scope names the region, else the host (``sqs.eu-west-1.…``, or ``eu-west-1.queue.…`` of
older SDKs). What names neither is for the server's own. (The URL of a queue has the last word: ``wire.sqs.names``.)
"""

import re

import msgspec

from veilmq.wire.exchange import REGION_PATTERN, RequestContext, caller_named
from veilmq.wire.sqs.names import namespace
from veilmq.wire.sqs.signatures import credential_of

_KEY = b"AWS4-HMAC-SHA256 Credential="
ACCOUNT_END = len(_KEY) + 12
PRESIGNED = b"X-Amz-Credential"
_ACCOUNT = re.compile(r"[0-9]{12}")
_REGION = re.compile(REGION_PATTERN)
_HOST = re.compile(rf"(?:sqs|queue)\.({REGION_PATTERN})\..*|({REGION_PATTERN})\.queue\..*".encode())
_KNOWN_MAX = 1_024


class Namespaces:
    """The contexts of requests by what they name; the last ones are remembered."""

    __slots__ = ("_by_key", "_known", "by_region")

    def __init__(self, *, by_key: bool, by_region: bool) -> None:
        """``by_key``: a key may name an account; ``by_region``: queues are in the region of each request."""
        self._by_key = by_key
        self.by_region = by_region
        self._known: dict[tuple[str, bytes], RequestContext] = {}

    def of(self, context: RequestContext, authorization: bytes, target: bytes) -> RequestContext:
        """Return ``context`` for the account and region that a request names."""
        key = context.base_url, credential_of(authorization, target)
        return self._known.get(key) or self._find(key, context)

    def _find(self, key: tuple[str, bytes], context: RequestContext) -> RequestContext:
        key_id, _, region, *_ = [*key[1].decode("latin-1").rsplit("/", 4), "", "", ""]
        caller = caller_named(key_id) if self._by_key and _ACCOUNT.fullmatch(key_id) else None
        account = context.account if caller is None else caller.account
        if not self.by_region:
            region = context.region
        elif not _REGION.fullmatch(region):
            region = _of_host(context) or context.region
        place = namespace(account, region, context)
        queues = {} if self.by_region else context.queues  # a URL means another queue in another region
        found = msgspec.structs.replace(context, account=place, by_region=self.by_region, caller=caller, queues=queues)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = found
        return found


def _of_host(context: RequestContext) -> str:
    named = _HOST.fullmatch(context.base_url.partition("://")[2].lower().encode())
    return "" if named is None else (named[1] or named[2]).decode()
