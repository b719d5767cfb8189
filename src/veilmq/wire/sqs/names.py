"""Names on the wire: queue names, queue URLs, ARNs, paging tokens.

A queue URL is ``{base}/{account}/{name}``; the engine knows the queue as ``account/name``. Only the URL's path counts,
because a client may reach the server under another host name than the one that created the queue. A bare name means
a queue of the caller, as on AWS. The last lookups are remembered: a client sends the same URL with every request.

A queue of another region than the server's own (``regions = "by-request"``) has the URL
``{base}/{region}/{account}/{name}``, and the engine knows it as ``account@region/name``.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import blake2s
from hmac import compare_digest
from urllib.parse import urlsplit

import msgspec

from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX, SQS_QUEUE_NAME_CHARACTERS_MAX
from veilmq.wire.exchange import REGION_PATTERN, RequestContext
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import INVALID_ADDRESS, SqsError, truncated

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{SQS_QUEUE_NAME_CHARACTERS_MAX}}}")
LOOSE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""What queues may be called, over any protocol: stores look for no other name."""
FIFO_SUFFIX = ".fifo"
_ARN = re.compile(r"arn:aws:sqs:([a-z0-9-]+):([0-9]{12}):([A-Za-z0-9_-]+(?:\.fifo)?)")
_REGION = re.compile(REGION_PATTERN)
_NAMESPACE = re.compile(rf"({LOOSE_NAME.pattern})(?:@({REGION_PATTERN}))?")
_NAME_RULE = (
    f"Can only include alphanumeric characters, hyphens, or underscores. 1 to {SQS_QUEUE_NAME_CHARACTERS_MAX} in length"
)
_FIFO_NAME_RULE = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo "
    f"suffix and be 1 to {SQS_QUEUE_NAME_CHARACTERS_MAX} in length."
)
_CACHED_URLS_MAX = 4_096
_CACHED_URL_CHARACTERS_MAX = 512


def queue_of(url: str | None, context: RequestContext) -> str:
    """Return the store's name of the queue at ``url``; raises MissingParameter, InvalidAddress.

    ``context.queues`` has what it returned before, of URLs that mean the same to all requests.
    """
    cached = context.queues.get(url)
    if cached is not None:
        return cached
    if not url:
        raise errors.missing_parameter("QueueUrl")
    if LOOSE_NAME.fullmatch(url):
        return f"{context.account}/{url}"
    parts = _path(url).strip("/").split("/")
    place = _namespace_in(parts, context) if len(parts) > 1 else ""
    if not place or not LOOSE_NAME.fullmatch(parts[-1]):
        raise SqsError(INVALID_ADDRESS, f"The address {truncated(url)} is not valid for this endpoint.")
    queue = f"{place}/{parts[-1]}"
    if len(url) <= _CACHED_URL_CHARACTERS_MAX:
        if len(context.queues) >= _CACHED_URLS_MAX:
            context.queues.clear()
        context.queues[url] = queue
    return queue


def _namespace_in(parts: list[str], context: RequestContext) -> str:
    """Return the namespace in a path: ``account``, ``account@region`` or ``region/account``, and a name behind it.

    Empty for what is none; without regions only an account is one.
    """
    found = _NAMESPACE.fullmatch(parts[-2])
    if found is None:
        return ""
    account, region = found.groups()
    if not context.by_region:
        return account if region is None else ""
    if region is None and len(parts) > 2 and _REGION.fullmatch(parts[-3]):
        region = parts[-3]
    return namespace(account, region or context.region, context)


def namespace(account: str, region: str, context: RequestContext) -> str:
    """Return the name under which the engine knows what an account has in a region."""
    return account if region == context.region else f"{account}@{region}"


def account_of(queue: str) -> str:
    """Return the account, twelve digits, of a queue (its engine's name) or of a namespace."""
    return queue.partition("/")[0].partition("@")[0]


def region_of(queue: str, context: RequestContext) -> str:
    """Return the region of a queue (its engine's name) or of a namespace."""
    return queue.partition("/")[0].partition("@")[2] or context.region


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:  # for example an unclosed bracket in the host
        return ""


def full_name(url: str) -> str:
    """Return the engine's name of the queue at a URL that a server has given."""
    *before, account, name = ["", *_path(url).strip("/").split("/")]
    return f"{account}@{before[-1]}/{name}" if before[1:] and _REGION.fullmatch(before[-1]) else f"{account}/{name}"


def queue_url(queue: str, context: RequestContext) -> str:
    """Return the URL under which the caller reaches ``queue`` (``account/name``)."""
    if "@" not in queue:
        return f"{context.base_url}/{queue}"
    account, _, rest = queue.partition("@")
    region, _, name = rest.partition("/")
    return f"{context.base_url}/{region}/{account}/{name}"


def queue_arn(queue: str, context: RequestContext) -> str:
    """Return the Amazon resource name of ``queue`` (``account/name``)."""
    return f"arn:aws:sqs:{region_of(queue, context)}:{account_of(queue)}:{queue.partition('/')[2]}"


def queue_of_arn(arn: str, context: RequestContext) -> str | None:
    """Return the engine's name of the queue at ``arn``; ``None`` for what is no queue's ARN, or in an unknown region.

    The name may be one that only SMQ can make.
    """
    parts = _ARN.fullmatch(arn)
    if parts is None or len(parts[3]) > SMQ_QUEUE_NAME_CHARACTERS_MAX:
        return None
    if parts[1] != context.region and not (context.by_region and _REGION.fullmatch(parts[1])):
        return None
    return f"{namespace(parts[2], parts[1], context)}/{parts[3]}"


def is_fifo(queue: str) -> bool:
    """Return whether ``queue`` is a FIFO queue: on SQS, the name alone says so."""
    return queue.endswith(FIFO_SUFFIX)


def required_name(name: str | None) -> str:
    """Return the name of a queue that a request gives; raises where there is none."""
    if name is None:
        raise errors.missing_parameter("QueueName")
    if not name:
        raise errors.invalid("Value for parameter QueueName is invalid. Reason: Must specify a queue name.")
    return name


def new_queue(name: str | None, context: RequestContext, *, fifo: bool = False) -> str:
    """Return the engine's name for a queue to be created; raises unless ``name`` keeps the rule of SQS.

    ``fifo`` is whether the request asks for a FIFO queue: then its name must end in .fifo, and only then it may.
    """
    name = required_name(name)
    stem = name.removesuffix(FIFO_SUFFIX) if fifo else name
    if not _NAME.fullmatch(stem) or len(name) > SQS_QUEUE_NAME_CHARACTERS_MAX or is_fifo(name) is not fifo:
        raise errors.invalid(_FIFO_NAME_RULE if fifo else _NAME_RULE)
    return f"{context.account}/{name}"


# Paging tokens: where the next page begins, in a form that cannot be forged.
#
# A token is a MAC and the name after which the next page begins, in URL-safe base64. The MAC covers what was listed:
# the action, the caller's account and the filter, so a token leads on only in the listing that it came from. Its key
# is the store's (``RequestContext.token_key``): a token outlives a restart.

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

    def name_of(self, token: str | None) -> str:
        """Return the name after which the page of ``token`` begins, empty for the first page."""
        if not token:
            return ""
        try:
            data = urlsafe_b64decode(token.encode("ascii"))
            name = data[_MAC_BYTES:].decode()
        except ValueError:
            data, name = b"", ""
        if not name or not compare_digest(data[:_MAC_BYTES], self._mac(name.encode())):
            why = "Invalid or expired next token; use the NextToken of the previous page, or none for the first page."
            raise errors.invalid(why)
        return name

    def _mac(self, name: bytes) -> bytes:
        listed = msgspec.json.encode((self.action, self.context.account, self.filter))
        return blake2s(listed + name, key=self.context.token_key, digest_size=_MAC_BYTES).digest()
