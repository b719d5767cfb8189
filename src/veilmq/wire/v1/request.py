"""Requests and replies of the API: paths, fields, errors, routes.

A path is ``/v1/{noun}/{account}/{queue}/{verb}``, for a list without a verb, for a list of the whole account without a
queue. ``-`` is the caller's account; ``{account}@{region}`` is an account in another region than the server's own.
Paths are not escaped, as accounts and names need no escapes: signatures cover exactly the path that is parsed here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

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


class RowRefused(SqsError):
    """The message at ``index`` (from 0) is invalid, so no message is staged; the counterpart of ``StageRefused``."""

    def __init__(self, index: int, reason: SqsError) -> None:
        super().__init__(STAGE_REFUSED, f"Message {index} was refused, and nothing staged: {reason.message}")
        self.index = index
        self.reason = reason


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
"""Error of core → the status of the reply, and the attributes of the error that are members of it."""

_JSON = b"Content-Type: application/json\r\n"
_encode = msgspec.json.Encoder().encode


def json_reply(status: int, value: Any, *, code: str = "OK") -> Reply:
    """Return ``value`` as a reply; ``code`` is its label in metrics."""
    return Reply(status, _JSON, _encode(value), code)


def error_members(error: VeilmqError) -> tuple[int, dict[str, Any]]:
    """Return the status and the members for an error of core; one without a row is a bug and becomes InternalError."""
    known = CORE_ERRORS.get(type(error))
    if known is None:
        error, known = core.InternalError(), CORE_ERRORS[core.InternalError]
    status, fields = known
    members = {"code": type(error).__name__, "message": str(error)}
    return status, members | {field: getattr(error, field) for field in fields}


def encode_error(error: SqsError | VeilmqError) -> Reply:
    """Return an error reply."""
    if isinstance(error, VeilmqError):
        status, members = error_members(error)
    else:
        status, members = error.code.status, {"code": error.code.query, "message": error.message}
        if isinstance(error, RowRefused):
            members |= {"index": error.index, "why": error.reason.code.query}
    return json_reply(status, members, code=members["code"])


PREFIX = b"/v1/"
NAMES = rf"[A-Za-z0-9_-]{{1,{SMQ_QUEUE_NAME_CHARACTERS_MAX}}}(?:\.fifo)?"
"""The pattern of queue names of any protocol."""

_PATH = re.compile(
    rf"(?P<noun>[a-z]+)/(?P<account>[0-9]{{12}}(?:@{REGION_PATTERN})?|-)(?:/(?P<name>{NAMES})(?:/(?P<verb>[a-z]+))?)?".encode()
)
_SIGNATURES = b"X-Amz-"
_NO_PARTS = b"", b"", b"", b""
_LOCATION = re.compile(r"(.*) - at `\$\.?(.*)`")

_OWN = "-"

Fields = TypeVar("Fields", bound=msgspec.Struct)


class ApiRequest(Value, gc=False):
    """A parsed request; for an invalid path, ``noun``, ``account``, ``queue`` and ``verb`` are empty.

    ``account`` may be ``-``. ``queue`` is ``account/name``, empty for the whole account. ``query`` is undecoded;
    ``headers`` are by lower-case name.
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
    """Parse a request; ``target`` begins with ``PREFIX``."""
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


def resolve_account(request: ApiRequest, context: RequestContext) -> ApiRequest:
    """Replace the account of ``request`` by its namespace; raises ``SqsError`` (InvalidRequest)."""
    account = namespace_of(request.account, context)
    if account == request.account:
        return request
    queue = account + request.queue.removeprefix(request.account) if request.queue else ""
    return msgspec.structs.replace(request, account=account, queue=queue)


def namespace_of(account: str, context: RequestContext) -> str:
    """Return the namespace of an account with a region, if any, or of ``-``; raises ``SqsError`` (InvalidRequest)."""
    account, _, region = account.partition("@")
    if account == _OWN:
        return context.account
    if region and not context.by_region:
        raise SqsError(INVALID_REQUEST, "An account can have a region only if the setting regions is by-request.")
    return namespace(account, region or context.region, context)


def from_json(body: bytes, kind: type[Fields]) -> Fields:
    """Decode the JSON object ``body`` to ``kind``; raises ``SqsError`` (InvalidRequest)."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _validation_error(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(INVALID_REQUEST, f"The body must be a JSON object in UTF-8: {error}.") from None


def from_query(query: bytes, kind: type[Fields]) -> Fields:
    """Decode a query string to ``kind``, ignoring signature parameters; raises ``SqsError`` (InvalidRequest)."""
    parameters: dict[str, str] = {}
    try:
        for name, value in query_pairs(query):
            if name.startswith(_SIGNATURES):
                continue
            if parameters.setdefault(name.decode(), value.decode()) != value.decode():
                raise SqsError(INVALID_REQUEST, f"The parameter {name.decode()[:64]!r} has two values; give it once.")
        return msgspec.convert(parameters, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _validation_error(error) from None
    except UnicodeDecodeError:
        raise SqsError(INVALID_REQUEST, "The query string must be UTF-8.") from None


def _validation_error(error: msgspec.ValidationError) -> SqsError:
    match = _LOCATION.fullmatch(str(error))
    what, place = match.groups() if match is not None else (str(error), "")
    return SqsError(INVALID_REQUEST, f"{place or 'The request'}: {what[:1].lower()}{what[1:]}.")


def as_json(result: Any) -> Reply:
    """Return a reply with ``result``, a struct without binary ids, as JSON; an empty object for ``None``."""
    return json_reply(200, {} if result is None else result)


class ApiCall(Plan, frozen=True, gc=False):
    """The plan of a request; ``respond`` encodes a result that is not an error."""

    respond: Callable[[Any], Reply] = as_json

    def encode(self, result: Any) -> Reply:
        """Return the reply for a result, a ``VeilmqError``, or the ``SqsError`` of a body that is decoded later."""
        return encode_error(result) if isinstance(result, VeilmqError | SqsError) else self.respond(result)


def with_arrow(name: str, *arguments: Any, instead: str) -> Callable[[], Any]:
    """Return a call of ``name`` in ``wire.v1.arrow``; the first call imports pyarrow, which takes time.

    Raises ``SqsError`` without pyarrow; ``instead`` is the alternative for the error.
    """
    if find_spec("pyarrow") is None:
        text = f"This server has no pyarrow: {instead}, or have its operator pip install 'veilmq[arrow]'."
        raise SqsError(ARROW_MISSING, text)
    return lambda: getattr(import_module("veilmq.wire.v1.arrow"), name)(*arguments)


MakeCall = Callable[[ApiRequest, Any, RequestContext], ApiCall]
"""(request, its fields, context) → its plan; raises ``SqsError``."""


def fields_of(command: type[Command], *, without: tuple[str, ...] = (), **others: Any) -> type[msgspec.Struct]:
    """Return a struct with the fields of ``command``, except the queue, and ``others`` (type and default).

    Decoding refuses unknown fields and values out of range, so an engine can rely on them.
    """
    own = [field for field in msgspec.structs.fields(command) if field.name not in ("queue", *without, *others)]
    fields = [(field.name, field.type) if field.required else (field.name, field.type, field.default) for field in own]
    fields += [(name, *definition) for name, definition in others.items()]
    return fields_type(f"{command.__name__}Fields", fields)


def fields_type(name: str, fields: Iterable[Any]) -> type[msgspec.Struct]:
    """Return a struct for the fields of a request; decoding refuses unknown fields."""
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


class NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a list without parameters."""


class Nothing(msgspec.Struct, frozen=True):
    """An empty object."""


class Route(NamedTuple):
    """One route; lists have an empty ``verb``.

    ``permission`` is the SQS action to check in the policy of the queue. ``query``, ``body`` and ``result`` are the
    types of the parameters, the body and the reply; with ``arrow``, body or reply may be Arrow. ``errors`` are the
    errors of core beside ``COMMON_ERRORS``, ``codes`` those of SQS. A route ``of_account`` lists the whole account of
    the caller: its path has no queue and no verb.
    """

    method: bytes
    noun: bytes
    verb: bytes
    permission: str
    summary: str
    plan: MakeCall
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    result: type[msgspec.Struct] = Nothing
    errors: tuple[type[VeilmqError], ...] = ()
    codes: tuple[Code, ...] = ()
    arrow: bool = False
    of_account: bool = False

    @property
    def key(self) -> bytes:
        return b"%b %b" % (self.method, self.noun) + (b"" if self.of_account else b"/" + self.verb)

    @property
    def path(self) -> str:
        """The path, with parameters in braces."""
        queue = "" if self.of_account else "/{queue}"
        return f"/v1/{self.noun.decode()}/{{account}}{queue}" + (f"/{self.verb.decode()}" if self.verb else "")

    @property
    def label(self) -> str:
        return f"{self.noun.decode()}.{self.verb.decode() or 'list'}"


def command_plan(command: Callable[..., Command], respond: Callable[[Any], Reply] = as_json) -> MakeCall:
    """Return the ``plan`` of a route that submits ``command`` with its fields."""
    return lambda request, fields, context: ApiCall(command(queue=request.queue, **asdict(fields)), respond)
