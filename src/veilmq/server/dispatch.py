"""From a request to its reply: find the protocol and action, decode, submit to the store, encode.

No exception escapes: the protocol encodes refusals as its own errors, and a defect of veilmq is logged and answered as
an internal error. The connection and all others continue.

The account and region of a request's queues are determined before its signature is verified; unsigned requests have
them too. Without a credentials file, an access key id of twelve digits names the account, which is also the sender's.
With ``regions = "by-request"``, the credential scope names the region, else the host (``sqs.eu-west-1.…``, or
``eu-west-1.queue.…`` of older SDKs). The defaults are the server's own. (The URL of a queue overrides all: see
``wire.sqs.names``.)
"""

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from veilmq.core.claims import Claim, Publish
from veilmq.core.commands import BrowseQueues, Command, Done, Receive
from veilmq.core.errors import InternalError
from veilmq.server import origin
from veilmq.server.admission import Share
from veilmq.server.authentication import Authentication
from veilmq.server.background import BackgroundRequest, BulkRequests, OrderedReply, Publication
from veilmq.server.http_parser import TRACE, Layout, Pending, Refusal, RenderedReply, Request, share_by_address
from veilmq.server.long_polling import LongPolls
from veilmq.server.metrics import Metrics
from veilmq.server.permissions import INTERCEPTED, ParkedPermission, Permissions, PolicyUnknown
from veilmq.server.protocols import SMQ, SQS_JSON, Exchange, Protocol, protocol_of, render_refusal
from veilmq.wire.exchange import REGION_PATTERN, Caller, RequestContext, caller_named, with_trace_header
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.json import CONTENT_TYPE
from veilmq.wire.sqs.names import namespace
from veilmq.wire.sqs.signatures import credential_of
from veilmq.wire.v1.claims import BulkRead
from veilmq.wire.v1.publications import BulkStage

log = logging.getLogger(__name__)

UNKNOWN_ACTION = "unknown"
"""The label of requests without a known action."""

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_REGIONAL_HOST = re.compile(rf"(?:sqs|queue)\.({REGION_PATTERN})\..*|({REGION_PATTERN})\.queue\..*")
_REGION = re.compile(REGION_PATTERN)
_ACCOUNT = re.compile(r"[0-9]{12}")
_ACCOUNT_END = len(b"AWS4-HMAC-SHA256 Credential=") + 12
_CONTEXTS_MAX = 1_024
_POLLED = frozenset({Receive, Claim})
_WRONG_METHOD = Refusal(405, "Use POST, or GET with an Action in the query string; SMQ also uses PUT and DELETE.")
_NO_ACTION = Refusal(404, "<UnknownOperationException/>", kind=b"text/xml")
"""What AWS replies to a GET without an action."""
_COMMON_METHODS = frozenset({b"GET", b"POST"})
_WRONG_HOST = Refusal(400, "The Host header is not the address of a host; send name or name:port.")
_FOREIGN = Refusal(403, origin.FOREIGN_PAGE)
_FORGED_GET = Refusal(403, origin.FORGED_GET)
_UNKNOWN_PROTOCOL = Refusal(
    404,
    "No protocol of this server recognises the request. SQS clients send JSON with the header "
    "X-Amz-Target: AmazonSQS.<action>, or a form with the parameter Action; SMQ clients send the header "
    "x-mns-version. Set the endpoint of the SDK or the AWS CLI to this address.",
)
_COMPRESSED = Refusal(415, "The server decodes no Content-Encoding; send the body uncompressed.")
_CODINGS = frozenset({b"br", b"compress", b"deflate", b"gzip", b"x-gzip", b"zstd"})


CommandHandler = Callable[[Any, int | None, Done], Pending | None]
"""Run a command that may wait up to the given seconds, then call ``done(result)``."""


class Route(NamedTuple):
    """The protocol and action of a request; ``label`` is the action's name in metrics."""

    protocol: Protocol
    action: bytes
    label: str


class Dispatcher:
    """Route each request to its protocol and action, and write the reply."""

    def __init__(
        self,
        *,
        polls: LongPolls,
        context: RequestContext,
        host: str,
        address: str = "",
        scheme: str = "http",
        authentication: Authentication | None = None,
        permissions: Permissions | None = None,
        handlers: Mapping[type[Command], CommandHandler] = MappingProxyType({}),
        pages: Mapping[bytes, RenderedReply] = MappingProxyType({}),
    ) -> None:
        """``context`` is the context of all requests, except its base URL. The engine is that of ``polls``.

        ``host`` is the name or address that the server listens on. ``address`` (``host:port``) is used in queue URLs if
        an HTTP/1.0 client sends no ``Host``. Without ``authentication``, every request belongs to the context's account
        or the one that it names, and may do everything; with it, ``permissions`` is required. ``handlers`` handle
        further commands that are not just submitted. ``pages`` are replies to GET by target, without authentication.
        """
        self._polls = polls
        self._submit = polls.engine.submit
        bulk = BulkRequests(polls.engine)
        self._handlers: dict[type[Command], CommandHandler] = {  # commands that need more than one engine result
            Receive: polls.submit,
            Claim: polls.submit,
            BulkRead: partial(BackgroundRequest, bulk.read),
            BulkStage: partial(BackgroundRequest, bulk.stage),
            Publish: partial(Publication, polls.engine, polls.clock),
            **handlers,
        }
        self._pages = pages
        self._host = host
        self._address = address or host
        self._scheme = scheme
        self.authentication = authentication
        self._has_named = authentication is None or context.by_region  # requests that name an account or a region
        self._permissions = permissions
        self._contexts: dict[tuple[bytes, bytes | None], RequestContext] = {}  # see _context
        self._decisions: dict[tuple[bytes, Layout], tuple[Route, RequestContext]] = {}  # by credential if that varies
        self._base_context = context
        labels = SQS_JSON.labels.items()
        self._routes_by_amz_target = {
            b"AmazonSQS." + action: Route(SQS_JSON, action, label) for action, label in labels
        }
        self.metrics = Metrics()

    def handle(self, request: Request, verified_caller: Caller | None = None) -> Pending | None:
        """Handle ``request``; see ``http_parser.Handler``. With a ``verified_caller``, no signature is checked."""
        started_s = perf_counter()
        has_named, head, credential = self._has_named, request.head, b""
        if head is not None:
            layout, segment = head
            if has_named:
                credential = segment[layout.credential]
            if (decision := self._decisions.get((credential, layout))) is not None:
                return self._serve(request, decision[0], request.body, decision[1], started_s, verified_caller)
        headers = request.headers
        host, authorization = headers.get(b"host", b""), headers.get(b"authorization", b"")
        content: Any = request.body
        route = self._routes_by_amz_target.get(headers.get(b"x-amz-target", b""))
        is_json = route is not None and headers.get(b"content-type") == CONTENT_TYPE
        if not is_json:
            route, content = self._route(request, protocol_of(request), is_verified=False)
        if (request.method != b"POST" or head is None) and (refusal := self._refusal(request, route)) is not None:
            self._reply_page(request, refusal, started_s)
            return None
        if request.body and headers.get(b"content-encoding", b"").lower() in _CODINGS:
            self._refuse(request, _COMPRESSED, started_s)
            return None
        # Without by_region only a twelve-digit id has its slash at this position; other credentials are skipped.
        names_context = (
            has_named
            and route is not None
            and route.protocol is not SMQ
            and (
                self._base_context.by_region
                or authorization[_ACCOUNT_END : _ACCOUNT_END + 1] == b"/"
                or (not authorization and b"X-Amz-Credential" in request.target)
            )
        )
        key = host, credential_of(authorization, request.target) if names_context else None
        context = self._contexts.get(key) or self._context(*key)
        if context is None:
            self._refuse(request, _WRONG_HOST, started_s)
            return None
        if route is None:
            self._refuse(request, _UNKNOWN_PROTOCOL, started_s)
            return None
        # A credential that varies is whole if it has its name and the comma behind it: other heads have it elsewhere.
        is_whole = not credential or (credential.endswith(b",") and b"Credential=" in credential)
        if is_json and head is not None and not head[0].target_varies and is_whole:
            if len(self._decisions) >= _CONTEXTS_MAX:
                self._decisions.clear()
            self._decisions[credential, head[0]] = route, context
        return self._serve(request, route, content, context, started_s, verified_caller)

    def _route(self, request: Request, protocol: Protocol | None, *, is_verified: bool) -> tuple[Route | None, Any]:
        if protocol is not None and request.hold is not None and not is_verified:  # a large body
            return Route(protocol, b"", UNKNOWN_ACTION), None
        if protocol is None or (parsed := protocol.read(request)) is None:
            return None, None
        action, content = parsed
        return Route(protocol, action, protocol.labels.get(action, UNKNOWN_ACTION)), content

    def _refusal(self, request: Request, route: Route | None) -> Refusal | None:
        """Return why headers or method refuse ``request``: foreign web pages, and methods its protocol does not use."""
        if origin.is_foreign(request.headers, own_name=self._host):
            return _FOREIGN
        if request.method == b"POST":
            return None
        if route is None:
            return _NO_ACTION if request.method == b"GET" else _WRONG_METHOD
        if request.method not in route.protocol.methods:
            return _WRONG_METHOD._replace(allow=b", ".join(sorted(route.protocol.methods | _COMMON_METHODS)))
        if self.authentication is not None:
            return None  # a foreign page has no key to sign with
        forged = origin.may_be_forged(request.headers, own_name=self._host, mark=route.protocol.mark)
        return _FORGED_GET if forged else None

    def _serve(  # noqa: C901 (the path of every request: a further call costs time)
        self,
        request: Request,
        route: Route,
        content: Any,
        context: RequestContext,
        started_s: float,
        verified_caller: Caller | None,
    ) -> Pending | None:
        protocol = route.protocol
        exchange = Exchange(request, self.metrics, protocol, route.label, started_s, context.base_url)
        head = request.head
        try:
            caller_context = context
            if self.authentication is not None:
                caller_context = self.authentication.context(request, context, protocol.verifier, verified_caller)
            if content is None:  # a large body, whose signature is verified now
                large, content = self._route(request, protocol, is_verified=True)
                if large is None:
                    self._refuse(request, _UNKNOWN_PROTOCOL, started_s)
                    return None
                return self._serve(request, large, content, context, started_s, caller_context.caller)
            if (head is None or head[0].is_traced) and (trace := request.headers.get(TRACE)):
                caller_context = with_trace_header(caller_context, trace)
            plan = exchange.plan = protocol.decode(route.action, content, caller_context)
        except protocol.refused as error:
            exchange.reply(protocol.refuse(error, context.base_url))
            return None
        except Exception:
            log.exception("a request of action %s could not be decoded", exchange.action)
            exchange.reply(protocol.refuse(InternalError(), context.base_url))
            return None
        # Waiting requests keep little memory: drop the segment (authentication has built ``fields`` if it is needed),
        # and drop headers and body unless a policy may check the user agent.
        request.head = None
        if self._permissions is None:
            request.fields, request.body = None, b""
        command = plan.command
        done: Done = exchange.done
        handler = self._handlers.get(type(command))
        if self._permissions is not None and (caller := caller_context.caller) is not None:
            try:
                self._permissions.check(exchange, command, caller, started_s)
            except SqsError as denial:
                exchange.reply(protocol.refuse(denial, context.base_url))
                return None
            except PolicyUnknown as unknown:
                retry = partial(self._serve, request, route, content, context, started_s, verified_caller)
                return self._permissions.wait(unknown, retry, exchange.done, started_s)
            if type(command) is BrowseQueues:
                command = self._permissions.restricted(exchange, command, caller)
            if type(command) in INTERCEPTED:
                done = self._permissions.intercept(exchange, command, caller, done)
            if type(command) in _POLLED and self.authentication and (plan.wait_s != 0 or request.is_pipelined):
                keys = self.authentication
                permission = ParkedPermission(exchange, command, caller, context, keys, self._permissions, keys.loads)
                handler = partial(self._polls.submit, permit=permission.check, check_first=request.is_pipelined)
                done = exchange.finish
        if handler is None:
            self._submit(command, done)
            return None
        if request.is_pipelined or type(command) is BulkRead:
            return OrderedReply(request, partial(handler, command, plan.wait_s, done))
        return handler(command, plan.wait_s, done)

    def admit(self, head: Request) -> Share | None:
        """Return the share to which a large body counts, by the request's ``head``; ``None`` after refusing it.

        If requests must be signed, the head must name a known key and a current date.
        """
        if self.authentication is None:
            return share_by_address(head)
        started_s = perf_counter()
        protocol = protocol_of(head)
        if protocol is None:
            self._refuse(head, _UNKNOWN_PROTOCOL, started_s)
            return None
        base_url = self._base_url(head.headers)
        try:
            return self.authentication.admit(head, protocol.verifier)
        except protocol.refused as error:
            exchange = Exchange(head, self.metrics, protocol, UNKNOWN_ACTION, started_s, base_url)
            exchange.reply(protocol.refuse(error, base_url))
            return None

    def render_refusal(self, refusal: Refusal, headers: Mapping[bytes, bytes]) -> RenderedReply:
        """Count a request refused before it was complete (with duration 0), and return the reply."""
        self.metrics.count(UNKNOWN_ACTION, str(refusal.status), 0.0)
        return render_refusal(refusal, b"", headers, self._base_url(headers))

    def _reply_page(self, request: Request, refusal: Refusal, started_s: float) -> None:
        """Reply with the page at the target of a GET request; refuse the request if there is none."""
        page = self._pages.get(request.target) if request.method == b"GET" else None
        if page is None:
            self._refuse(request, refusal, started_s)
            return
        request.respond(200, page.headers, page.body)
        self.metrics.count(UNKNOWN_ACTION, "OK", perf_counter() - started_s)

    def _refuse(self, request: Request, refusal: Refusal, started_s: float) -> None:
        self.metrics.count(UNKNOWN_ACTION, str(refusal.status), perf_counter() - started_s)
        rendered = render_refusal(refusal, request.target, request.headers, self._base_url(request.headers))
        request.respond(refusal.status, rendered.headers, rendered.body)

    def _base_url(self, headers: Mapping[bytes, bytes]) -> str:
        return f"{self._scheme}://" + (headers.get(b"host", b"").decode("latin-1") or self._address)

    def _context(self, host: bytes, credential: bytes | None) -> RequestContext | None:
        """Return the context of requests to ``host``; ``None`` if it is not valid in a URL.

        Unless ``credential`` is ``None``, it names the account and the region, or the host names the region.
        """
        if host and not _HOST.fullmatch(host):
            return None
        context = msgspec.structs.replace(self._base_context, base_url=self._base_url({b"host": host}))
        if credential is not None:
            key_id, _, region, *_ = [*credential.decode("latin-1").rsplit("/", 4), "", "", ""]
            caller = caller_named(key_id) if self.authentication is None and _ACCOUNT.fullmatch(key_id) else None
            if not context.by_region:
                region = context.region
            elif not _REGION.fullmatch(region):
                regional = _REGIONAL_HOST.fullmatch(context.base_url.partition("://")[2].lower())
                region = context.region if regional is None else regional[1] or regional[2]
            account = namespace(context.account if caller is None else caller.account, region, context)
            context = msgspec.structs.replace(context, account=account, caller=caller)
        if len(self._contexts) >= _CONTEXTS_MAX:
            self._contexts.clear()
        self._contexts[host, credential] = context
        return context
