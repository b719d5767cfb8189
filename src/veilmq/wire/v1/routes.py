"""The one table of routes: method, noun and verb → what is made of the request, and which permission it needs.

A new route is a row. ``permission`` is the SQS action on which a queue's policy decides.
"""

from collections.abc import Callable
from typing import NamedTuple

from veilmq.core import errors
from veilmq.core.errors import VeilmqError
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.v1 import claims, forwards, looks, publications, queue_listing, queue_settings
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.request import ApiRequest

_GET = b"GET"
_POST = b"POST"


class Route(NamedTuple):
    """One route; ``verb`` is empty for the noun itself. ``plan`` raises ``SqsError`` for what it cannot take.

    ``errors`` are those of core that it may be answered with, beside ``EVERYWHERE``. A route ``of_account`` is of all
    that the caller's own account has of the noun: its path has no queue, and no verb.
    """

    method: bytes
    noun: bytes
    verb: bytes
    plan: Callable[[ApiRequest, RequestContext], ApiCall]
    permission: str
    errors: tuple[type[VeilmqError], ...] = ()
    of_account: bool = False

    @property
    def key(self) -> bytes:
        """Return under which key it is in ``ROUTES``."""
        return _key(self.method, self.noun, self.verb, of_account=self.of_account)

    @property
    def path(self) -> str:
        """Return its path, with its parameters in braces."""
        queue = "" if self.of_account else "/{queue}"
        return f"/v1/{self.noun.decode()}/{{account}}{queue}" + (f"/{self.verb.decode()}" if self.verb else "")

    @property
    def label(self) -> str:
        """Return the name under which requests are counted."""
        return f"{self.noun.decode()}.{self.verb.decode() or 'list'}"


EVERYWHERE: tuple[type[VeilmqError], ...] = (
    errors.QueueNotFound,
    errors.StoreFull,
    errors.StoreUnavailable,
    errors.OutcomeUnknown,
    errors.ShuttingDown,
    errors.InternalError,
)
"""What every route may be answered with."""

_FENCED = (errors.SourceNotFound, errors.EpochFenced)
_SETTINGS = (errors.SettingsConflict, errors.DeadLetterQueueRefused)
_ENDED = (errors.ClaimAcknowledged, errors.ClaimLost, errors.ClaimReleased)

_ROWS = (
    Route(_GET, b"claims", b"", claims.list_sources, "ReceiveMessage"),
    Route(
        _GET,
        b"claims",
        b"read",
        claims.read,
        "ReceiveMessage",
        (*_ENDED, errors.ShardNotFound, errors.CursorInvalid),
    ),
    Route(_POST, b"claims", b"open", claims.open_source, "ReceiveMessage", (errors.ConsumerTaken,)),
    Route(_POST, b"claims", b"claim", claims.claim, "ReceiveMessage", (*_FENCED, *_ENDED, errors.ClaimGap)),
    Route(_POST, b"claims", b"heartbeat", claims.heartbeat, "ReceiveMessage", _FENCED),
    Route(_POST, b"claims", b"acknowledge", claims.acknowledge, "DeleteMessage", (*_FENCED, errors.ClaimGap)),
    Route(
        _POST,
        b"claims",
        b"release",
        claims.release,
        "ChangeMessageVisibility",
        (errors.SourceNotFound, errors.ClaimAcknowledged, errors.ClaimLost),
    ),
    Route(
        _POST,
        b"claims",
        b"evict",
        claims.evict,
        "DeleteMessage",
        (errors.SourceNotFound, *_ENDED, errors.MessageNotClaimed, errors.DeadLetterQueueRefused),
    ),
    Route(_POST, b"claims", b"close", claims.close, "DeleteMessage", (errors.SourceNotFound,)),
    Route(_GET, b"leases", b"", looks.list_leases, "ReceiveMessage"),
    Route(_GET, b"messages", b"", looks.list_messages, "ReceiveMessage"),  # with receipts PurgeQueue, too
    Route(_GET, b"messages", b"peek", looks.peek, "ReceiveMessage"),
    Route(_GET, b"publications", b"", publications.list_writers, "SendMessage"),
    Route(_POST, b"publications", b"stage", publications.stage, "SendMessage", (errors.StageRefused,)),
    Route(_POST, b"publications", b"publish", publications.publish, "SendMessage", (errors.StageMissing,)),
    Route(_POST, b"publications", b"abandon", publications.abandon, "SendMessage"),
    Route(
        _POST,
        b"queues",
        b"create",
        queue_settings.create,
        "CreateQueue",
        (errors.QueueExists, errors.QueueDeletedRecently, *_SETTINGS),
    ),
    Route(_GET, b"queues", b"", queue_listing.list_queues, "ListQueues", of_account=True),
    Route(_GET, b"queues", b"show", queue_settings.show, "GetQueueAttributes"),
    Route(_POST, b"queues", b"set", queue_settings.change, "SetQueueAttributes", _SETTINGS),
    Route(  # needs DeleteMessage too, and SendMessage on the targets (server.permissions)
        _POST,
        b"queues",
        b"forward",
        forwards.forward,
        "ReceiveMessage",
        (
            errors.ReceiptEnded,
            errors.ReceiptInvalid,
            errors.GroupHeld,
            errors.DestinationRefused,
            errors.MessageTooLong,
        ),
    ),
)


def _key(method: bytes, noun: bytes, verb: bytes, *, of_account: bool) -> bytes:
    return b"%b %b" % (method, noun) if of_account else b"%b %b/%b" % (method, noun, verb)


ROUTES: dict[bytes, Route] = {row.key: row for row in _ROWS}
"""Every route, by method, noun and verb."""


def route_key(request: ApiRequest) -> bytes:
    """Return under which key the route of ``request`` is, if there is one."""
    return _key(request.method, request.noun, request.verb, of_account=not request.queue)
