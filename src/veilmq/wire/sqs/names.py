"""Queue names, queue URLs, ARNs and paging tokens.

A queue URL is ``{base}/{account}/{name}``; the full name of the queue in the engine is ``account/name``. Only the path
of the URL is used, because clients may use different host names for the server. A bare name is a queue of the caller,
as on AWS. URLs are cached, because a client sends the same ones with every request.

A queue of another region than the server's own (``regions = "by-request"``) has the URL
``{base}/{region}/{account}/{name}`` and the full name ``account@region/name``.
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
"""Queue names of any protocol; no other name is looked up in a store."""
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
    """Return the full name of the queue at ``url``; raises MissingParameter or InvalidAddress.

    ``context.queues`` caches the results for URLs, but not for bare names, which depend on the account.
    """
    cached = context.queues.get(url)
    if cached is not None:
        return cached
    if not url:
        raise errors.missing_parameter("QueueUrl")
    if LOOSE_NAME.fullmatch(url):
        return f"{context.account}/{url}"
    parts = _path(url).strip("/").split("/")
    if parts[:-1] == ["queue"]:  # a queue of the caller at a URL of ElasticMQ
        return queue_of(parts[-1], context)
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
    """Return the namespace in the parts of a path: ``account``, ``account@region`` or ``region/account``, then a name.

    Return an empty text for any other path. Regions are valid only if ``context.by_region``.
    """
    match = _NAMESPACE.fullmatch(parts[-2])
    if match is None:
        return ""
    account, region = match.groups()
    if not context.by_region:
        return account if region is None else ""
    if region is None and len(parts) > 2 and _REGION.fullmatch(parts[-3]):
        region = parts[-3]
    return namespace(account, region or context.region, context)


def namespace(account: str, region: str, context: RequestContext) -> str:
    """Return the namespace of an account in a region: the first part of full names."""
    return account if region == context.region else f"{account}@{region}"


def account_of(queue: str) -> str:
    return queue.partition("/")[0].partition("@")[0]


def region_of(queue: str, context: RequestContext) -> str:
    return queue.partition("/")[0].partition("@")[2] or context.region


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:  # for example an unclosed bracket in the host
        return ""


def full_name(url: str) -> str:
    """Return the full name of the queue at a URL that a server returned."""
    *before, account, name = ["", *_path(url).strip("/").split("/")]
    return f"{account}@{before[-1]}/{name}" if before[1:] and _REGION.fullmatch(before[-1]) else f"{account}/{name}"


def queue_url(queue: str, context: RequestContext) -> str:
    """Return the URL of ``queue`` (a full name) at the address that the caller uses."""
    if "@" not in queue:
        return f"{context.base_url}/{queue}"
    account, _, rest = queue.partition("@")
    region, _, name = rest.partition("/")
    return f"{context.base_url}/{region}/{account}/{name}"


def queue_arn(queue: str, context: RequestContext) -> str:
    return f"arn:aws:sqs:{region_of(queue, context)}:{account_of(queue)}:{queue.partition('/')[2]}"


def queue_of_arn(arn: str, context: RequestContext) -> str | None:
    """Return the full name of the queue with ``arn``, ``None`` for an invalid ARN or an unknown region.

    Names that only SMQ can create are valid.
    """
    parts = _ARN.fullmatch(arn)
    if parts is None or len(parts[3]) > SMQ_QUEUE_NAME_CHARACTERS_MAX:
        return None
    if parts[1] != context.region and not (context.by_region and _REGION.fullmatch(parts[1])):
        return None
    return f"{namespace(parts[2], parts[1], context)}/{parts[3]}"


def is_fifo(queue: str) -> bool:
    return queue.endswith(FIFO_SUFFIX)


def required_name(name: str | None) -> str:
    """Return the queue name of a request; raises if it is absent or empty."""
    if name is None:
        raise errors.missing_parameter("QueueName")
    if not name:
        raise errors.invalid("Value for parameter QueueName is invalid. Reason: Must specify a queue name.")
    return name


def new_queue(name: str | None, context: RequestContext, *, fifo: bool = False) -> str:
    """Return the full name for a new queue; raises if ``name`` is invalid on SQS.

    ``fifo``: the request is for a FIFO queue. Its name must end in .fifo, other names must not.
    """
    name = required_name(name)
    stem = name.removesuffix(FIFO_SUFFIX) if fifo else name
    if not _NAME.fullmatch(stem) or len(name) > SQS_QUEUE_NAME_CHARACTERS_MAX or is_fifo(name) is not fifo:
        raise errors.invalid(_FIFO_NAME_RULE if fifo else _NAME_RULE)
    return f"{context.account}/{name}"


# Paging tokens. A token is a MAC and the name after which the next page begins, in URL-safe base64. The MAC covers the
# action, the account of the caller and the filter, so a token is valid only for the listing that returned it. Its key
# belongs to the store (``RequestContext.token_key``), so tokens stay valid after a restart.

_MAC_BYTES = 16


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing by ``action`` with ``filter`` for the account of ``context``."""

    action: str
    filter: str
    context: RequestContext

    def token_after(self, name: str) -> str:
        """Return the token of the page after ``name``."""
        data = name.encode()
        return urlsafe_b64encode(self._mac(data) + data).decode()

    def name_of(self, token: str | None) -> str:
        """Return the name after which the page of ``token`` begins, empty without a token."""
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
