"""TagQueue, UntagQueue, ListQueueTags, and the tags of CreateQueue.

A key has 1 to 128 characters and does not begin with ``aws:``, a value has up to 256; both are letters, digits, spaces
and ``_ . : / = + - @`` (SQS Developer Guide, "Cost allocation tags"; AWS General Reference, "Tagging").
"""

import re
from collections.abc import Mapping
from typing import Any

from veilmq.core import commands
from veilmq.core.errors import TooManyTags
from veilmq.core.limits import SQS_TAG_KEY_CHARACTERS_MAX, SQS_TAG_VALUE_CHARACTERS_MAX, SQS_TAGS_MAX
from veilmq.core.results import QueueView
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    SqsError,
    invalid_parameter,
    missing_parameter,
    too_many_tags,
)
from veilmq.wire.sqs.names import queue_of
from veilmq.wire.sqs.plan import Plan, answered, nothing
from veilmq.wire.sqs.requests import QueueRequest, TagQueueRequest, UntagQueueRequest
from veilmq.wire.sqs.responses import ListQueueTagsResult

_ALLOWED = "letters, digits, spaces and _ . : / = + - @"
_CHARACTERS = r"[\w .:/=+@-]"
_KEY = re.compile(rf"(?!(?i:aws:)){_CHARACTERS}{{1,{SQS_TAG_KEY_CHARACTERS_MAX}}}")
_VALUE = re.compile(rf"{_CHARACTERS}{{0,{SQS_TAG_VALUE_CHARACTERS_MAX}}}")


def tag_queue(request: TagQueueRequest, context: RequestContext) -> Plan:
    """TagQueue: puts tags on a queue; one that is there already gets the new value."""
    queue = queue_of(request.queue_url, context)
    if not request.tags:
        raise missing_parameter("Tags")

    def respond(result: Any) -> None:
        if isinstance(result, TooManyTags):
            raise too_many_tags(queue)
        answered(result)

    return Plan(commands.TagQueue(queue=queue, tags=read_tags(request.tags, queue)), respond)


def untag_queue(request: UntagQueueRequest, context: RequestContext) -> Plan:
    """UntagQueue: removes tags by their keys; those that are not there do not matter."""
    queue = queue_of(request.queue_url, context)
    keys = request.tag_keys or [""]
    for key in keys:
        _check_key(key)
    return Plan(commands.TagQueue(queue=queue, removed=tuple(keys)), nothing)


def list_queue_tags(request: QueueRequest, context: RequestContext) -> Plan:
    """ListQueueTags: all tags of a queue."""
    return Plan(commands.ShowQueue(queue=queue_of(request.queue_url, context)), _tell)


def read_tags(tags: Mapping[str, str], queue: str) -> dict[str, str]:
    """Return the tags that ``queue`` is to have; raises InvalidParameterValue for a bad one, or for too many."""
    if len(tags) > SQS_TAGS_MAX:
        raise too_many_tags(queue)
    for key, value in tags.items():
        _check_key(key)
        if not _VALUE.fullmatch(value):
            raise invalid_parameter(
                "Tags", value, f"A tag's value has up to {SQS_TAG_VALUE_CHARACTERS_MAX} characters: {_ALLOWED}."
            )
    return dict(tags)


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= SQS_TAG_KEY_CHARACTERS_MAX:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            f"Tag keys must be between 1 and {SQS_TAG_KEY_CHARACTERS_MAX} characters in length.",
        )
    if not _KEY.fullmatch(key):
        raise invalid_parameter(
            "TagKeys",
            key,
            f"A tag's key has 1 to {SQS_TAG_KEY_CHARACTERS_MAX} characters ({_ALLOWED}) and does not begin with aws:.",
        )


def _tell(result: Any) -> ListQueueTagsResult:
    view: QueueView = answered(result)
    return ListQueueTagsResult(tags=view.settings.tags or None)
