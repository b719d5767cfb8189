"""What each route is given and what it answers, as types: what the description of the API is made of.

The planners decode into these types and encode them; here they are put beside the routes, by their labels.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from veilmq.core.browsing import BrowsedQueues
from veilmq.core.claims import Acknowledged, Bound, SourceView
from veilmq.core.publications import Published, Staged, WriterView
from veilmq.wire.sqs.responses import BatchResultErrorEntry
from veilmq.wire.sqs.shapes import Shape
from veilmq.wire.v1 import claims, forwards, looks, publications, queue_listing, queue_settings
from veilmq.wire.v1.messages import MessageRow


class Nothing(msgspec.Struct, frozen=True):
    """Nothing."""


class Sources(msgspec.Struct, frozen=True):
    """The sources of a queue."""

    sources: list[SourceView]


class Writers(msgspec.Struct, frozen=True):
    """The writers of a queue."""

    writers: list[WriterView]


class ClaimedMessages(msgspec.Struct, frozen=True):
    """Messages of a claim; where there are more, the header ``x-veilmq-cursor`` tells where they begin."""

    messages: list[MessageRow]


class EntryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message: its ``id`` in its target, or the ``code`` and ``status`` of why it is not there."""

    id: str | UnsetType = UNSET
    sequence_number: str | UnsetType | None = UNSET
    duplicate: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    status: int | UnsetType = UNSET


class EntryAnswers(msgspec.Struct, frozen=True):
    """What became of each message, in order."""

    entries: list[EntryAnswer]


class BatchAnswer(Shape, frozen=True, kw_only=True):
    """The answer to a batch action of SQS; what a success tells depends on the action."""

    successful: list[dict[str, Any]] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class RouteShape(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters, the body and the answer of a route; ``arrow`` where a body or answer may be Arrow, too."""

    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] = Nothing
    arrow: bool = False


SHAPES: dict[str, RouteShape] = {
    "claims.list": RouteShape(answer=Sources),
    "claims.read": RouteShape(query=claims.ReadFields, answer=ClaimedMessages, arrow=True),
    "claims.open": RouteShape(body=claims.OpenFields, answer=SourceView),
    "claims.claim": RouteShape(body=claims.ClaimFields, answer=Bound),
    "claims.heartbeat": RouteShape(body=claims.HeartbeatFields, answer=SourceView),
    "claims.acknowledge": RouteShape(body=claims.AcknowledgeFields, answer=Acknowledged),
    "claims.release": RouteShape(body=claims.ReleaseFields, answer=SourceView),
    "claims.evict": RouteShape(body=claims.EvictFields, answer=SourceView),
    "claims.close": RouteShape(body=claims.Fields),
    "leases.list": RouteShape(query=looks.LeaseFields, answer=looks.ListedLeases),
    "messages.list": RouteShape(query=looks.LookFields, answer=looks.ListedMessages),
    "messages.peek": RouteShape(query=looks.PeekFields, answer=looks.PeekedMessages),
    "publications.list": RouteShape(answer=Writers),
    "publications.stage": RouteShape(
        query=publications.StageFields, body=publications.MessagesFields, answer=Staged, arrow=True
    ),
    "publications.publish": RouteShape(body=publications.PublishFields, answer=Published),
    "publications.abandon": RouteShape(body=publications.BatchFields),
    "queues.list": RouteShape(query=queue_listing.ListFields, answer=BrowsedQueues),
    "queues.create": RouteShape(body=queue_settings.CreateFields, answer=queue_settings.CreatedQueue),
    "queues.show": RouteShape(answer=queue_settings.ShownQueue),
    "queues.set": RouteShape(body=queue_settings.SettingFields),
    "queues.forward": RouteShape(body=forwards.ForwardFields, answer=EntryAnswers),
}
"""Every route's, by its label."""
