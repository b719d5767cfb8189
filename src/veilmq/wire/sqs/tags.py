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
from veilmq.wire.sqs.errors import from_core, invalid_parameter, missing_parameter
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
    return Plan(commands.TagQueue(queue=queue, tags=read_tags(request.tags)), nothing)


def untag_queue(request: UntagQueueRequest, context: RequestContext) -> Plan:
    """UntagQueue: removes tags by their keys; those that are not there do not matter."""
    queue = queue_of(request.queue_url, context)
    if not request.tag_keys:
        raise missing_parameter("TagKeys")
    for key in request.tag_keys:
        _check_key(key)
    return Plan(commands.TagQueue(queue=queue, removed=tuple(request.tag_keys)), nothing)


def list_queue_tags(request: QueueRequest, context: RequestContext) -> Plan:
    """ListQueueTags: all tags of a queue."""
    return Plan(commands.ShowQueue(queue=queue_of(request.queue_url, context)), _tell)


def read_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of a request; raises InvalidParameterValue where one breaks a rule, or there are too many."""
    if len(tags) > SQS_TAGS_MAX:
        raise from_core(TooManyTags(SQS_TAGS_MAX))
    for key, value in tags.items():
        _check_key(key)
        if not _VALUE.fullmatch(value):
            raise invalid_parameter(
                "Tags", value, f"A tag's value has up to {SQS_TAG_VALUE_CHARACTERS_MAX} characters: {_ALLOWED}."
            )
    return dict(tags)


def _check_key(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise invalid_parameter(
            "TagKeys",
            key,
            f"A tag's key has 1 to {SQS_TAG_KEY_CHARACTERS_MAX} characters ({_ALLOWED}) and does not begin with aws:.",
        )


def _tell(result: Any) -> ListQueueTagsResult:
    view: QueueView = answered(result)
    return ListQueueTagsResult(tags=view.settings.tags or None)
