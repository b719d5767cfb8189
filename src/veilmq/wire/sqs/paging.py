"""Paging tokens: where the next page begins, in a form that nobody can make up.

A token is a MAC and the name after which the next page begins, in URL-safe base64. The MAC covers what was listed: the
action, the caller's account and the filter, so a token leads on only in the listing that it came from. Its key is the
store's (``RequestContext.token_key``): a token outlives a restart.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import blake2s
from hmac import compare_digest

import msgspec

from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import INVALID_PARAMETER_VALUE, SqsError

_MAC_BYTES = 16


@dataclass(frozen=True, slots=True)
class Listing:
    """What is listed: by which ``action``, narrowed by which ``filter``, for whom (the account of ``context``)."""

    action: str
    filter: str
    context: RequestContext

    def token_after(self, name: str) -> str:
        """Return the token of the page that begins after ``name``."""
        data = name.encode()
        return urlsafe_b64encode(self._mac(data) + data).decode()

    def name_before(self, token: str | None) -> str:
        """Return the name after which the page of ``token`` begins, empty for the first page."""
        if not token:
            return ""
        try:
            data = urlsafe_b64decode(token.encode("ascii"))
            name = data[_MAC_BYTES:].decode()
        except ValueError:
            data, name = b"", ""
        if not name or not compare_digest(data[:_MAC_BYTES], self._mac(name.encode())):
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                "Invalid or expired next token; use the NextToken of the previous page, or none for the first page.",
            )
        return name

    def _mac(self, name: bytes) -> bytes:
        listed = msgspec.json.encode((self.action, self.context.account, self.filter))
        return blake2s(listed + name, key=self.context.token_key, digest_size=_MAC_BYTES).digest()
