"""Names of queues in paths, and the URLs that lead there.

A queue is made under a name of SMQ's alphabet, 1 to 256 characters; of what only SQS's names have, the end of a FIFO
queue's is allowed, so that there are FIFO queues that both protocols reach. A queue that is there is found by any name
that a listing shows, also one that only SQS could make.
"""

import re

from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX
from veilmq.wire.smq.errors import INVALID_QUEUE_NAME, QUEUE_NAME_LENGTH_ERROR, SmqError
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.sqs.context import RequestContext

_FIFO_SUFFIX = ".fifo"
_NEW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*(?:\.fifo)?")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def queue_of(request: SmqRequest, context: RequestContext) -> str:
    """Return the engine's name (``account/name``) of the queue in the path; raises ``SmqError`` for what is no name."""
    return f"{context.account}/{checked_name(request.path[1])}"


def new_queue(request: SmqRequest, context: RequestContext) -> str:
    """Return the same for a queue to be made."""
    return f"{context.account}/{checked_name(request.path[1], _NEW_NAME)}"


def says_fifo(queue: str) -> bool:
    """Tell whether the name alone makes a FIFO queue of ``queue``, as on SQS; others may be FIFO queues, too."""
    return queue.endswith(_FIFO_SUFFIX)


def queue_url(name: str, context: RequestContext) -> str:
    """Return the URL of the queue ``name``, without its account, as the caller reaches it."""
    return f"{context.base_url}/queues/{name}"


def checked_name(name: str, names: re.Pattern[str] = _NAME) -> str:
    """Return ``name``; raises ``SmqError`` (InvalidQueueName, QueueNameLengthError) unless it is one of ``names``."""
    if not 1 <= len(name) <= SMQ_QUEUE_NAME_CHARACTERS_MAX:
        raise SmqError(QUEUE_NAME_LENGTH_ERROR)
    if not names.fullmatch(name):
        raise SmqError(INVALID_QUEUE_NAME)
    return name
