"""A request to the API, taken apart: which route, on which queue, with what.

A path is ``/v1/{noun}/{account}/{queue}/{verb}``, or without a verb what is done to the noun as a whole; ``-`` stands
for the caller's own account, ``{account}@{region}`` for an account in another region than the server's own. Without a
queue it is what is done to all that the account has of the noun. Nothing in it is escaped: neither accounts nor names
of queues have characters that would be. So what a signature covers and what is read here are the same.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX
from veilmq.wire.sqs import canonical
from veilmq.wire.sqs.context import REGION_PATTERN, RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import namespace
from veilmq.wire.v1.errors import INVALID_REQUEST

PREFIX = b"/v1/"
NAMES = rf"[A-Za-z0-9_-]{{1,{SMQ_QUEUE_NAME_CHARACTERS_MAX}}}(?:\.fifo)?"
"""What names of queues look like, whichever protocol made them."""

_PATH = re.compile(
    rf"(?P<noun>[a-z]+)/(?P<account>[0-9]{{12}}(?:@{REGION_PATTERN})?|-)(?:/(?P<name>{NAMES})(?:/(?P<verb>[a-z]+))?)?".encode()
)
_SIGNATURES = b"X-Amz-"
_NO_PARTS = b"", b"", b"", b""
_PLACE = re.compile(r"(.*) - at `\$\.?(.*)`")

_OWN = "-"

Fields = TypeVar("Fields", bound=msgspec.Struct)


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """``account`` may be ``-``; ``queue`` is the full name of one, empty for all; ``verb`` may be empty.

    Of a path that no route can have, all four parts are empty. ``query`` is as it was sent, ``headers`` are by
    lower-case name.
    """

    method: bytes
    noun: bytes
    account: str
    queue: str
    verb: bytes
    query: bytes
    headers: Mapping[bytes, bytes]
    body: bytes


def read_request(method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes) -> ApiRequest:
    """Return the request for ``target``, which begins with ``PREFIX``."""
    path, _, query = target.partition(b"?")
    parts = _PATH.fullmatch(path.removeprefix(PREFIX))
    noun, account, name, verb = parts.group("noun", "account", "name", "verb") if parts is not None else _NO_PARTS
    return ApiRequest(
        method=method,
        noun=noun,
        account=account.decode(),
        queue=f"{account.decode()}/{name.decode()}" if name else "",
        verb=verb or b"",
        query=query,
        headers=headers,
        body=body,
    )


def of_account(request: ApiRequest, context: RequestContext) -> ApiRequest:
    """Return ``request`` with its account, and the full name of its queue; raises ``SqsError`` (InvalidRequest)."""
    account, _, region = request.account.partition("@")
    if account == _OWN:
        account = context.account
    elif not region:
        return request
    elif not context.by_region:
        raise SqsError(INVALID_REQUEST, "An account of a region is known only where the setting regions is by-request.")
    else:
        account = namespace(account, region, context)
    queue = account + request.queue.removeprefix(request.account) if request.queue else ""
    return msgspec.structs.replace(request, account=account, queue=queue)


def from_json(body: bytes, kind: type[Fields]) -> Fields:
    """Return the fields of ``kind`` that the JSON object ``body`` has; raises ``SqsError`` (InvalidRequest)."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(INVALID_REQUEST, f"The body must be a JSON object in UTF-8: {error}.") from None


def from_query(query: bytes, kind: type[Fields]) -> Fields:
    """Return the fields of ``kind`` that a query string has; raises ``SqsError`` (InvalidRequest).

    A query may hold a signature, too, whose parameters are none of the request's.
    """
    given: dict[str, str] = {}
    try:
        for name, value in canonical.pairs(query):
            if name.startswith(_SIGNATURES):
                continue
            if given.setdefault(name.decode(), value.decode()) != value.decode():
                raise SqsError(INVALID_REQUEST, f"The parameter {name.decode()[:64]!r} has two values; give it once.")
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None
    except UnicodeDecodeError:
        raise SqsError(INVALID_REQUEST, "The query string must be UTF-8.") from None


def _misfit(error: msgspec.ValidationError) -> SqsError:
    match = _PLACE.fullmatch(str(error))
    what, place = match.groups() if match is not None else (str(error), "")
    return SqsError(INVALID_REQUEST, f"{place or 'The request'}: {what[:1].lower()}{what[1:]}.")
