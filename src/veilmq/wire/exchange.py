"""Types of all protocols: request ids, callers and access keys, the context of a request, its plan, its reply."""

import hashlib
from base64 import b32encode
from binascii import b2a_hex
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from itertools import chain, count, repeat
from operator import attrgetter
from random import getrandbits
from struct import Struct
from typing import Any

import msgspec
from msgspec.structs import replace

from veilmq.core import Value
from veilmq.core.commands import Command
from veilmq.core.limits import SMQ_MESSAGE_BYTES
from veilmq.core.messages import Attribute, IdSource, Properties, encode_properties

md5 = hashlib.md5
with suppress(ImportError):  # OpenSSL's MD5 takes twice as long for most bodies
    md5 = import_module("_md5").md5


_parts_of_id = Struct("8s4s4s4s12s").unpack


def id_text(identifier: bytes) -> str:
    """Return 16 bytes in the format of a UUID, with C functions only: a thirtieth of the time of ``uuid.UUID``."""
    return b"-".join(_parts_of_id(b2a_hex(identifier))).decode()


# Request ids look like random UUIDs: a random prefix of the process and a 48-bit counter with a random start.


def _request_ids() -> Iterator[bytes]:
    """Return an iterator of C functions only, so servers in several threads of a process can share it."""
    prefix = id_text(IdSource().next())[:24].encode() + b"%010x"
    suffixes = [b"%02x" % number for number in range(256)]  # formatting each number would cost as much as the reply
    pages = map(attrgetter("__add__"), map(prefix.__mod__, count(getrandbits(32))))
    return chain.from_iterable(map(map, pages, repeat(suffixes)))


REQUEST_IDS = _request_ids()
"""New request ids in ASCII, for all codecs."""


def new_request_id() -> str:
    return next(REQUEST_IDS).decode()


# Callers. A caller is an account (``root``) or one of its users. Their ARNs and ids have the format of AWS IAM, because
# policies name them and messages contain them (IAM User Guide, "IAM identifiers").

SENDER_ID = "SenderId"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """One principal. ``account`` has 12 digits; ``user`` is empty for the account itself.

    ``sender_properties`` are the encoded properties of a message whose only property is its sender.
    """

    account: str
    user: str
    arn: str
    sender_id: str
    sender: Attribute
    sender_properties: bytes

    @property
    def is_root(self) -> bool:
        return not self.user


def caller_named(account: str, user: str = "") -> Caller:
    """Return the caller for ``account``, or for one of its users."""
    sender_id = account
    if user:  # the prefix of AWS and a hash, as letters and digits
        sender_id = "AIDA" + b32encode(sha256(f"{account}/{user}".encode()).digest()).decode()[:17]
    sender = Attribute("String", sender_id)
    return Caller(
        account=account,
        user=user,
        arn=f"arn:aws:iam::{account}:user/{user}" if user else root_arn(account),
        sender_id=sender_id,
        sender=sender,
        sender_properties=encode_properties(Properties(system={SENDER_ID: sender})),
    )


def caller_from_arn(arn: str) -> Caller:
    """Return the caller for the ARN of an account or a user."""
    *_, account, resource = arn.split(":", 5)
    return caller_named(account, resource.partition("/")[2])


def root_arn(account: str) -> str:
    """Return the ARN of an account as a principal."""
    return f"arn:aws:iam::{account}:root"


class AccessKey(Value):
    """An access key; ``repr()`` omits the secret.

    Requests of a temporary key must contain its ``session_token``. Any key may expire, at ``expires_at_s``.
    """

    id: str
    secret: bytes
    caller: Caller
    session_token: bytes | None = None
    expires_at_s: float | None = None

    def __repr__(self) -> str:
        return f"AccessKey(id={self.id!r}, caller={self.caller.arn!r})"


# The context of a request: all inputs of a codec except the request.

DEFAULT_ACCOUNT = "000000000000"
DEFAULT_REGION = "us-east-1"
REGION_PATTERN = r"[a-z0-9-]{1,32}"


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The context of the requests of one caller and region at one address.

    - ``base_url`` is the address that the client uses (``http://127.0.0.1:9324``, without a trailing slash).
    - ``account`` is the namespace of queues given by name only: twelve digits, followed by ``@`` and the region if
      ``by_region`` and the request is for another region than ``region``, the server's own.
    - ``token_key`` authenticates paging tokens; it belongs to the store, so tokens stay valid after a restart.
    - ``caller`` signed the request, or names the account with its key id; ``None`` for anonymous requests.
    - ``trace_header`` is the ``X-Amzn-Trace-Id`` of the request, for messages sent without an ``AWSTraceHeader``.
    - Settings of the server: over SMQ, whether a receipt superseded only by a change acts (``smq_lenient``), and the
      maximum of a queue's message size (``smq_message_bytes_max``); over SQS, whether a receipt of a standard queue
      superseded by a receive acts (``stale_receipts_act``).
    - ``queues`` caches queue names by URL (``names.queue_of``); copies of a context share it.
    """

    base_url: str
    account: str = DEFAULT_ACCOUNT
    region: str = DEFAULT_REGION
    by_region: bool = False
    token_key: bytes = b""
    caller: Caller | None = None
    trace_header: Attribute | None = None
    smq_lenient: bool = False
    stale_receipts_act: bool = False
    smq_message_bytes_max: int = SMQ_MESSAGE_BYTES.maximum
    queues: dict[str | None, str] = msgspec.field(default_factory=dict)


def with_trace_header(context: RequestContext, header: bytes) -> RequestContext:
    """Return a copy of ``context`` with the value of a header ``X-Amzn-Trace-Id``."""
    text = header.decode("latin-1")
    return replace(context, trace_header=Attribute("String", text)) if text else context


class Reply(msgspec.Struct, frozen=True, gc=False):
    """An HTTP reply; ``headers`` are lines with line ends (the server adds its own), ``code`` is the error's name."""

    status: int
    headers: bytes
    body: bytes
    code: str = "OK"


class Plan(msgspec.Struct, frozen=True, gc=False):
    """A decoded request: the ``command`` to submit, and a function from its result to the response.

    ``respond`` gets the result or the ``VeilmqError`` and raises the error of the protocol. ``wait_s`` is the wait time
    of a long poll: 0 for other requests, ``None`` for the setting of the queue.
    """

    command: Command
    respond: Callable[[Any], Any]
    wait_s: int | None = 0
