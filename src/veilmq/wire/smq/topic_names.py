"""Names of topics and subscriptions in paths, and the URLs that lead there (reference, section 9)."""

import re

from veilmq.core.limits import SMQ_SUBSCRIPTION_NAME_CHARACTERS_MAX, SMQ_TOPIC_NAME_CHARACTERS_MAX
from veilmq.wire.smq.errors import (
    SUBSCRIPTION_NAME_INVALID,
    SUBSCRIPTION_NAME_LENGTH_ERROR,
    TOPIC_NAME_INVALID,
    TOPIC_NAME_LENGTH_ERROR,
    SmqError,
)
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.sqs.context import RequestContext

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")


def topic_of(request: SmqRequest, context: RequestContext) -> str:
    """Return the engine's name (``account/name``) of the topic in the path; raises ``SmqError`` for what is no name."""
    name = request.path[1]
    if not 1 <= len(name) <= SMQ_TOPIC_NAME_CHARACTERS_MAX:
        raise SmqError(TOPIC_NAME_LENGTH_ERROR)
    if not _NAME.fullmatch(name):
        raise SmqError(TOPIC_NAME_INVALID)
    return f"{context.account}/{name}"


def subscription_of(request: SmqRequest) -> str:
    """Return the name of the subscription in the path; raises ``SmqError`` for what is no name."""
    name = request.path[3]
    if not 1 <= len(name) <= SMQ_SUBSCRIPTION_NAME_CHARACTERS_MAX:
        raise SmqError(SUBSCRIPTION_NAME_LENGTH_ERROR)
    if not _NAME.fullmatch(name):
        raise SmqError(SUBSCRIPTION_NAME_INVALID)
    return name


def own_name(full: str) -> str:
    """Return the name of a topic without its account."""
    return full.partition("/")[2]


def topic_url(topic: str, context: RequestContext) -> str:
    """Return the URL of a topic, as the caller reaches it."""
    return f"{context.base_url}/topics/{own_name(topic)}"


def subscription_url(topic: str, name: str, context: RequestContext) -> str:
    """Return the URL of a subscription, as the caller reaches it."""
    return f"{topic_url(topic, context)}/subscriptions/{name}"
