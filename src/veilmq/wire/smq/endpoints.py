"""Endpoints of subscriptions: a queue of the same account, or a URL that is pushed to (reference, section 9).

Which URLs may be pushed to is the server's to say: here it is seen that it is one.
"""

import re
from typing import NamedTuple

from veilmq.core.push_urls import read_push_url
from veilmq.core.topic_errors import EndpointRefused
from veilmq.wire.smq.errors import ACCESS_DENIED, ENDPOINT_INVALID, SmqError, from_core
from veilmq.wire.smq.names import checked_name
from veilmq.wire.sqs.context import RequestContext

_QUEUE = re.compile(r"acs:mns:[A-Za-z0-9._-]{0,64}:(?P<account>[^:]*):/?queues/(?P<name>.*)", re.DOTALL)
_PUSHED = re.compile(r"https?:", re.IGNORECASE)


class Endpoint(NamedTuple):
    """Where messages go: one of the two is not empty."""

    queue: str = ""
    push_url: str = ""


def read_endpoint(text: str, context: RequestContext) -> Endpoint:
    """Return what ``text`` names; raises ``SmqError`` (EndpointInvalid, and AccessDenied for a queue of others)."""
    queue = _QUEUE.fullmatch(text)
    if queue is not None:
        if queue["account"] != context.account:
            raise SmqError(ACCESS_DENIED)
        return Endpoint(queue=f"{context.account}/{checked_name(queue['name'])}")
    if not _PUSHED.match(text):
        raise SmqError(
            ENDPOINT_INVALID,
            f"{ENDPOINT_INVALID.text} It must be acs:mns:<region>:<account>:queues/<queue>, http://… or https://…; "
            "mail and text messages are not delivered here.",
        )
    try:
        read_push_url(text)
    except EndpointRefused as error:
        raise from_core(error) from None
    return Endpoint(push_url=text)
