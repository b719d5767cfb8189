"""Amazon SQS, API version 2012-11-05: one table of actions, one codec per protocol.

``json`` turns bytes into a ``Call`` and its result into a ``Reply``; ``ACTIONS`` is the table behind it. An error of
any kind is a ``SqsError`` before it is bytes.
"""

from veilmq.wire.sqs.actions import ACTIONS, Action
from veilmq.wire.sqs.call import Call
from veilmq.wire.sqs.context import DEFAULT_ACCOUNT, DEFAULT_REGION, RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.json import decode, encode_error
from veilmq.wire.sqs.reply import Reply

__all__ = [
    "ACTIONS",
    "DEFAULT_ACCOUNT",
    "DEFAULT_REGION",
    "Action",
    "Call",
    "Reply",
    "RequestContext",
    "SqsError",
    "decode",
    "encode_error",
]
