"""A request to the API and its reply: path, fields, errors.

A path is ``/v1/{noun}/{account}/{queue}/{verb}``, or without a verb what is done to the noun as a whole; ``-`` stands
for the caller's own account, ``{account}@{region}`` for an account in another region than the server's own. Without a
queue it is what is done to all that the account has of the noun. Nothing in it is escaped: neither accounts nor names
of queues have characters that would be. So what a signature covers and what is read here are the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
from msgspec.structs import asdict

from veilmq.core import Value
from veilmq.core import errors as core
from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX
from veilmq.wire.exchange import REGION_PATTERN, Plan, Reply, RequestContext
from veilmq.wire.sqs.errors import Code, SqsError
from veilmq.wire.sqs.names import namespace
from veilmq.wire.sqs.signatures import query_pairs

DEAD_LETTER_QUEUE_REFUSED = Code("veilmq#DeadLetterQueueRefused", "DeadLetterQueueRefused")
INVALID_REQUEST = Code("veilmq#InvalidRequest", "InvalidRequest")
UNKNOWN_ROUTE = Code("veilmq#UnknownRoute", "UnknownRoute", 404)
STAGE_REFUSED = Code("veilmq#StageRefused", "StageRefused")
ARROW_MISSING = Code("veilmq#ArrowMissing", "ArrowMissing", 501, "Receiver")

CODES = (INVALID_REQUEST, UNKNOWN_ROUTE, STAGE_REFUSED, ARROW_MISSING)
"""What any request may be answered with, beside the errors of authentication and permissions."""


class RowRefused(SqsError):
    """One of several messages cannot be sent, so none is taken: ``core.errors.StageRefused``, seen on the wire."""

    def __init__(self, index: int, reason: SqsError) -> None:
        """``index`` counts the messages of the request from 0."""
        super().__init__(STAGE_REFUSED, f"Message {index} was refused, and nothing staged: {reason.message}")
        self.index = index
        self.reason = reason

    def behind(self, count: int) -> Self:
        """Return the error for the same message behind ``count`` others."""
        return type(self)(self.index + count, self.reason)


CORE_ERRORS: dict[type[VeilmqError], tuple[int, tuple[str, ...]]] = {
    core.QueueNotFound: (404, ("queue",)),
    core.SourceNotFound: (404, ("source",)),
    core.ShardNotFound: (404, ("shard", "shards")),
    core.MessageNotClaimed: (404, ("number",)),
    core.EpochFenced: (409, ("epoch", "current")),
    core.ClaimGap: (409, ("number", "last")),
    core.ConsumerTaken: (409, ("consumer", "source")),
    core.StageMissing: (409, ("attempt", "messages", "wanted")),
    core.ClaimAcknowledged: (410, ("number", "acknowledged")),
    core.ClaimLost: (410, ("number",)),
    core.ClaimReleased: (410, ("number",)),
    core.GroupHeld: (409, ()),
    core.ReceiptEnded: (410, ("state",)),
    core.ReceiptInvalid: (400, ()),
    core.DestinationRefused: (400, ("queue",)),
    core.MessageTooLong: (400, ("bytes_max",)),
    core.StageRefused: (400, ("index", "why", "bytes_max")),
    core.CursorInvalid: (400, ()),
    core.DeadLetterQueueRefused: (400, ("queue",)),
    core.SettingsConflict: (400, ("setting",)),
    core.QueueExists: (409, ("queue", "setting")),
    core.QueueDeletedRecently: (409, ("queue", "pause_s")),
    core.StoreFull: (503, ()),
    core.StoreUnavailable: (503, ()),
    core.OutcomeUnknown: (503, ()),
    core.ShuttingDown: (503, ()),
    core.InternalError: (500, ()),
}
"""Error of core → the status of its answer, and the attributes that are fields of it."""

_JSON = b"Content-Type: application/json\r\n"
_encode = msgspec.json.Encoder().encode


def json_reply(status: int, value: Any, *, code: str = "OK") -> Reply:
    """Return ``value`` as a reply; ``code`` is the name under which it is counted."""
    return Reply(status, _JSON, _encode(value), code)


def failure(error: VeilmqError) -> tuple[int, dict[str, Any]]:
    """Return status and members of an error of core; one that no row knows is a defect, and says no more than that."""
    known = CORE_ERRORS.get(type(error))
    if known is None:
        error, known = core.InternalError(), CORE_ERRORS[core.InternalError]
    status, fields = known
    members = {"code": type(error).__name__, "message": str(error)}
    return status, members | {field: getattr(error, field) for field in fields}


def encode_error(error: SqsError | VeilmqError) -> Reply:
    """Return the reply for a request that was refused."""
    if isinstance(error, VeilmqError):
        status, members = failure(error)
    else:
        status, members = error.code.status, {"code": error.code.query, "message": error.message}
        if isinstance(error, RowRefused):
            members |= {"index": error.index, "why": error.reason.code.query}
    return json_reply(status, members, code=members["code"])


PREFIX = b"/v1/"
NAMES = rf"[A-Za-z0-9_-]{{1,{SMQ_QUEUE_NAME_CHARACTERS_MAX}}}(?:\.fifo)?"
"""The pattern of names of queues, of any protocol."""

_PATH = re.compile(
    rf"(?P<noun>[a-z]+)/(?P<account>[0-9]{{12}}(?:@{REGION_PATTERN})?|-)(?:/(?P<name>{NAMES})(?:/(?P<verb>[a-z]+))?)?".encode()
)
_SIGNATURES = b"X-Amz-"
_NO_PARTS = b"", b"", b"", b""
_PLACE = re.compile(r"(.*) - at `\$\.?(.*)`")

_OWN = "-"

Fields = TypeVar("Fields", bound=msgspec.Struct)


class ApiRequest(Value, gc=False):
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
        raise SqsError(INVALID_REQUEST, "An account can have a region only if the setting regions is by-request.")
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
        for name, value in query_pairs(query):
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


# What a route makes of a request: the command, and the way from its result to the reply.


def as_json(result: Any) -> Reply:
    """Answer with ``result``, a struct without ids, as a JSON object; with an empty one for ``None``."""
    return json_reply(200, {} if result is None else result)


class ApiCall(Plan, frozen=True, gc=False):
    """A call of the API; ``respond`` encodes a result that is no error."""

    respond: Callable[[Any], Reply] = as_json

    def encode(self, result: Any) -> Reply:
        """Return the reply for the command's result, its ``VeilmqError``, or the ``SqsError`` of a body read later."""
        return encode_error(result) if isinstance(result, VeilmqError | SqsError) else self.respond(result)


def with_arrow(name: str, *arguments: Any, instead: str) -> Callable[[], Any]:
    """Return a call of ``name`` of ``wire.v1.arrow``; the first one imports pyarrow, which takes its time.

    Raises ``SqsError`` where this extra is missing; ``instead`` says what to do then.
    """
    if find_spec("pyarrow") is None:
        text = f"This server has no pyarrow: {instead}, or have its operator pip install 'veilmq[arrow]'."
        raise SqsError(ARROW_MISSING, text)
    return lambda: getattr(import_module("veilmq.wire.v1.arrow"), name)(*arguments)


# A route: what is made of a request, and what the description of the API says of it.

MakeCall = Callable[[ApiRequest, Any, RequestContext], ApiCall]
"""Request, its fields and context → its call; raises ``SqsError`` for what it cannot take."""


def fields_of(command: type[Command], *, without: tuple[str, ...] = (), **others: Any) -> type[msgspec.Struct]:
    """Return the type of a request's fields: those of ``command``, but the queue, and ``others``, type and default.

    What is out of range or unknown is refused by it, so that an engine may rely on it.
    """
    own = [each for each in msgspec.structs.fields(command) if each.name not in ("queue", *without, *others)]
    fields = [(each.name, each.type) if each.required else (each.name, each.type, each.default) for each in own]
    fields += [(name, *each) for name, each in others.items()]
    return fields_type(f"{command.__name__}Fields", fields)


def fields_type(name: str, fields: Iterable[Any]) -> type[msgspec.Struct]:
    """Return the type of a request's fields, which refuses those that it does not know."""
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


class NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a list that takes none."""


class Nothing(msgspec.Struct, frozen=True):
    """Nothing."""


class Route(NamedTuple):
    """One route; ``verb`` is empty for the noun itself.

    ``permission`` is the SQS action on which a queue's policy decides. ``query`` is the type of the parameters,
    ``body`` that of the body, ``answer`` that of the reply; ``arrow`` where body or reply may be Arrow, too.
    ``errors`` are those of core that it may be answered with, beside ``EVERYWHERE``. A route ``of_account`` is of all
    that the caller's own account has of the noun: its path has no queue, and no verb.
    """

    method: bytes
    noun: bytes
    verb: bytes
    permission: str
    summary: str
    plan: MakeCall
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] = Nothing
    errors: tuple[type[VeilmqError], ...] = ()
    arrow: bool = False
    of_account: bool = False

    @property
    def key(self) -> bytes:
        """Return under which key it is in ``ROUTES``."""
        return b"%b %b" % (self.method, self.noun) + (b"" if self.of_account else b"/" + self.verb)

    @property
    def path(self) -> str:
        """Return its path, with its parameters in braces."""
        queue = "" if self.of_account else "/{queue}"
        return f"/v1/{self.noun.decode()}/{{account}}{queue}" + (f"/{self.verb.decode()}" if self.verb else "")

    @property
    def label(self) -> str:
        """Return the name under which requests are counted."""
        return f"{self.noun.decode()}.{self.verb.decode() or 'list'}"


def making(command: Callable[..., Command], respond: Callable[[Any], Reply] = as_json) -> MakeCall:
    """Return the plan of a route whose fields are those of ``command``, beside the queue."""
    return lambda request, fields, context: ApiCall(command(queue=request.queue, **asdict(fields)), respond)
