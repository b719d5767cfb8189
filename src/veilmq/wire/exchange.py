"""A request and its reply, the same for every protocol: caller, context, plan, reply, and the request's id."""

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
with suppress(ImportError):  # OpenSSL's takes twice as long for the body of most messages
    md5 = import_module("_md5").md5


_parts_of_id = Struct("8s4s4s4s12s").unpack


def id_text(identifier: bytes) -> str:
    """Return 16 bytes as a UUID is written; in functions of C, which costs a thirtieth of ``uuid.UUID``."""
    return b"-".join(_parts_of_id(b2a_hex(identifier))).decode()


# The id of a request, with which its reply can be found again in a log.
#
# It looks like a random UUID: the process's own beginning, and 48 bits counted on from a random number.


def _request_ids() -> Iterator[bytes]:
    """Count in functions of C alone: servers in several threads of a process may take ids at once."""
    beginning = id_text(IdSource().next())[:24].encode() + b"%010x"
    endings = [b"%02x" % ending for ending in range(256)]  # to write a number for each costs as much as the reply
    pages = map(attrgetter("__add__"), map(beginning.__mod__, count(getrandbits(32))))
    return chain.from_iterable(map(map, pages, repeat(endings)))


REQUEST_IDS = _request_ids()
"""The ids of requests to come, in ASCII; all codecs take theirs from here."""


def new_request_id() -> str:
    """Return the id of another request."""
    return next(REQUEST_IDS).decode()


# Callers: the access key with which requests are signed, and the caller that holds it.
#
# A caller is an account itself (``root``) or one of its users. Their names and ids have the form of those of AWS IAM,
# because queue policies name them and messages carry them (IAM User Guide, "IAM identifiers").

SENDER_ID = "SenderId"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """One principal: ``account`` has 12 digits, ``user`` is empty for the account itself.

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
        """Whether this is the account itself."""
        return not self.user


def caller_named(account: str, user: str = "") -> Caller:
    """Return the caller that ``account``, or a ``user`` of it, is."""
    sender_id = account
    if user:  # the prefix of AWS, and letters and digits that account and name decide
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
    """Return the caller that an account's or a user's name as a principal stands for."""
    *_, account, resource = arn.split(":", 5)
    return caller_named(account, resource.partition("/")[2])


def root_arn(account: str) -> str:
    """Return the name of an account as a principal."""
    return f"arn:aws:iam::{account}:root"


class AccessKey(Value):
    """A key: its secret is known here and shown nowhere. Instants are seconds since the epoch.

    ``session_token`` must come with each request of a temporary key, ``expires_at_s`` ends any key.
    """

    id: str
    secret: bytes
    caller: Caller
    session_token: bytes | None = None
    expires_at_s: float | None = None

    def __repr__(self) -> str:
        """Show the id and the caller, without the secret."""
        return f"AccessKey(id={self.id!r}, caller={self.caller.arn!r})"


# What a request's surroundings say: everything the translation needs that is not in the request's body.

DEFAULT_ACCOUNT = "000000000000"
DEFAULT_REGION = "us-east-1"
REGION_PATTERN = r"[a-z0-9-]{1,32}"


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``base_url`` as the client reached us (``http://127.0.0.1:9324``, no slash at its end).

    ``region`` is the server's own. ``account`` is the namespace of the queues that a request names without more: twelve
    digits, and where ``by_region`` holds and the request is for another region, that behind an ``@``.

    ``token_key`` is what a server makes paging tokens with, the store's own, so that they outlive a restart.

    ``caller`` signed the request, or names the account with its key id; ``None`` for anonymous requests.

    ``trace_header`` is the request's own ``X-Amzn-Trace-Id``; messages sent without an ``AWSTraceHeader`` get it.

    ``smq_lenient`` and ``smq_message_bytes_max`` are settings of the server: whether a receipt that only a change
    superseded still acts, and how large a queue's messages may be made, over SMQ. So is ``stale_receipts_act``: whether
    a receipt that a later receive superseded acts, on standard queues over SQS.

    ``queues`` are those whose URLs were read, by URL (``names.queue_of``); contexts made of one another share them.

    One context serves all requests of one caller and region at one address.
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
    """Return ``context`` for one request with the header ``X-Amzn-Trace-Id``."""
    text = header.decode("latin-1")
    return replace(context, trace_header=Attribute("String", text)) if text else context


# What goes back to the client, ready to be written.


class Reply(msgspec.Struct, frozen=True, gc=False):
    """Status, headers as whole lines with their line ends (the server adds its own), body, and the error's name."""

    status: int
    headers: bytes
    body: bytes
    code: str = "OK"


# What a codec makes of a request that it has understood; the same to the server whatever the protocol.


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What an action makes of a request: the ``command`` to submit, and what makes the response of its result.

    ``respond`` gets the result or the ``VeilmqError`` and raises the error of the protocol. ``wait_s`` is how long an
    empty result may wait for a message: 0 unless this is a receive, ``None`` for as long as the queue itself says.
    """

    command: Command
    respond: Callable[[Any], Any]
    wait_s: int | None = 0
