"""The queues of an account, however many: a page of them in any order, with counts and rates."""

from typing import Annotated

import msgspec

from veilmq.core.browsing import BROWSED_MAX, BrowseQueues, QueueOrder
from veilmq.core.limits import SMQ_QUEUE_NAME_CHARACTERS_MAX
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import INVALID_REQUEST
from veilmq.wire.v1.request import ApiRequest, from_query


class ListFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a listing: ``names``, apart by commas, are asked for instead of what ``search`` finds."""

    search: Annotated[str, msgspec.Meta(max_length=SMQ_QUEUE_NAME_CHARACTERS_MAX)] = ""
    names: str | None = None
    sort: QueueOrder = QueueOrder.NAME
    descending: bool = False
    first: Annotated[int, msgspec.Meta(ge=0)] = 0
    count: Annotated[int, msgspec.Meta(ge=1, le=BROWSED_MAX)] = 50
    history: bool = True


def list_queues(request: ApiRequest, context: RequestContext) -> ApiCall:
    """List queues of the caller's account, with what is in them and how it moves."""
    fields = from_query(request.query, ListFields)
    return ApiCall(
        BrowseQueues(
            account=request.account,
            search=fields.search,
            names=None if fields.names is None else _named(fields.names),
            order=fields.sort,
            descending=fields.descending,
            first=fields.first,
            count=fields.count,
            history=fields.history,
        )
    )


def _named(names: str) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(name for name in names.split(",") if name))
    if len(named) > BROWSED_MAX:
        raise SqsError(INVALID_REQUEST, f"names: may be {BROWSED_MAX} at once.")
    return named
