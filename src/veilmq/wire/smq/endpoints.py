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

_QUEUE = re.compile(r"acs:mns:(?P<where>[A-Za-z0-9._-]{0,64}:.*?):/?queues/(?P<name>.*)", re.DOTALL)
_ACCOUNT = re.compile(r"[0-9]{12,}")
_PUSHED = re.compile(r"https?:", re.IGNORECASE)
_MAIL_OR_SMS = re.compile(r"mail(?:to)?:|sms:", re.IGNORECASE)


class Endpoint(NamedTuple):
    """Where messages go: one of the two is not empty."""

    queue: str = ""
    push_url: str = ""


def read_endpoint(text: str, context: RequestContext) -> Endpoint:
    """Return what ``text`` names; raises ``SmqError`` (EndpointInvalid, and AccessDenied for a queue of others)."""
    queue = _QUEUE.fullmatch(text)
    if queue is not None:
        account = queue["where"].partition(":")[2]
        if account != context.account and (_ACCOUNT.fullmatch(account) or queue["where"] not in _of_address(context)):
            raise SmqError(ACCESS_DENIED)
        return Endpoint(queue=f"{context.account}/{checked_name(queue['name'])}")
    if not _PUSHED.match(text):
        why = " Subscriptions by mail and SMS are not supported." if _MAIL_OR_SMS.match(text) else ""
        raise SmqError(
            ENDPOINT_INVALID,
            f"{ENDPOINT_INVALID.text}{why} Subscribe a queue (acs:mns:<region>:<account>:queues/<queue>) or a URL "
            "(http://… or https://…).",
        )
    try:
        read_push_url(text)
    except EndpointRefused as error:
        raise from_core(error) from None
    return Endpoint(push_url=text)


def _of_address(context: RequestContext) -> set[str]:
    """Return ``region:account`` as SDKs take them from the address of this server.

    They expect ``<account>.mns.<region>[-internal].aliyuncs.com``, and of ``127.0.0.1`` make the account 127 and the
    region 0; some leave the port out, some do not.
    """
    authority = context.base_url.partition("//")[2]
    return {
        f"{labels[2].partition('-internal')[0] if len(labels) > 2 else ''}:{labels[0]}"
        for labels in (authority.split("."), authority.partition(":")[0].split("."))
    }
