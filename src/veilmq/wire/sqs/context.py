"""What a request's surroundings say: everything the translation needs that is not in the request's body."""

from os import urandom

import msgspec
from msgspec.structs import replace

from veilmq.core.limits import SMQ_MESSAGE_BYTES
from veilmq.core.properties import Attribute
from veilmq.wire.sqs.callers import Caller

DEFAULT_ACCOUNT = "000000000000"
DEFAULT_REGION = "us-east-1"
REGION_PATTERN = r"[a-z0-9-]{1,32}"
PROCESS_KEY = urandom(32)
"""A key for the tokens of a server that has none of its own."""


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``base_url`` as the client reached us (``http://127.0.0.1:9324``, no slash at its end), and who asks.

    ``region`` is the server's own. ``account`` is the namespace of the queues that a request names without more: twelve
    digits, and where ``by_region`` holds and the request is for another region, that behind an ``@``.

    ``token_key`` is what paging tokens are made with, the store's own, so that they outlive a restart.

    ``caller`` signed the request, or names the account with its key id; ``None`` for anybody.

    ``trace_header`` is the request's own ``X-Amzn-Trace-Id``; messages sent without an ``AWSTraceHeader`` get it.

    ``smq_lenient`` and ``smq_message_bytes_max`` are settings of the server: whether a receipt that only a change
    superseded still acts, and how large a queue's messages may be made, over SMQ. So is ``stale_receipts_act``: whether
    a receipt that a later receive superseded acts, on standard queues over SQS.

    One context serves all requests of one account on one connection.
    """

    base_url: str
    account: str = DEFAULT_ACCOUNT
    region: str = DEFAULT_REGION
    by_region: bool = False
    token_key: bytes = PROCESS_KEY
    caller: Caller | None = None
    trace_header: Attribute | None = None
    smq_lenient: bool = False
    stale_receipts_act: bool = False
    smq_message_bytes_max: int = SMQ_MESSAGE_BYTES.maximum


def traced(context: RequestContext, header: bytes) -> RequestContext:
    """Return ``context`` for one request with the header ``X-Amzn-Trace-Id``."""
    text = header.decode("latin-1")
    return replace(context, trace_header=Attribute("String", text)) if text else context
