"""The actions on queues: making, finding, listing and deleting them, PurgeQueue, Get- and SetQueueAttributes."""

from collections.abc import Callable
from typing import Any

from veilmq.core import commands
from veilmq.core.errors import QueueExists
from veilmq.core.limits import SQS_LIST_RESULTS
from veilmq.core.results import QueuePage, QueueView
from veilmq.wire.sqs import settings
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import QUEUE_NAME_EXISTS, SqsError, missing_parameter, missing_queue_name
from veilmq.wire.sqs.names import account_of, new_queue, queue_of, queue_url
from veilmq.wire.sqs.paging import Listing
from veilmq.wire.sqs.parameters import check_number
from veilmq.wire.sqs.plan import Plan, answered, nothing
from veilmq.wire.sqs.requests import (
    CreateQueueRequest,
    GetQueueAttributesRequest,
    GetQueueUrlRequest,
    ListDeadLetterSourceQueuesRequest,
    ListQueuesRequest,
    QueueRequest,
    SetQueueAttributesRequest,
)
from veilmq.wire.sqs.responses import (
    GetQueueAttributesResult,
    ListDeadLetterSourceQueuesResult,
    ListQueuesResult,
    QueueUrlResult,
)
from veilmq.wire.sqs.tags import read_tags


def create_queue(request: CreateQueueRequest, context: RequestContext) -> Plan:
    """CreateQueue: makes the queue, or finds it when every attribute given has the value that it has."""
    attributes = request.attributes or {}
    queue = new_queue(request.queue_name, context, fifo=attributes.get(settings.FIFO_QUEUE, "").lower() == "true")
    changes = settings.read_settings(attributes, queue, context)
    tags = read_tags(request.tags or {}, queue)
    tell_url = _tell_url(context)

    def respond(result: Any) -> QueueUrlResult:
        if isinstance(result, QueueExists):
            raise _exists(result)
        return tell_url(settings.accepted(result, attributes, queue))

    return Plan(commands.CreateQueue(queue=queue, settings=changes, tags=tags), respond)


def get_queue_url(request: GetQueueUrlRequest, context: RequestContext) -> Plan:
    """GetQueueUrl: of a queue of the caller, or of the account that the request names."""
    name = request.queue_name
    if name is None:
        raise missing_parameter("QueueName")
    if not name:
        raise missing_queue_name()
    owner = request.queue_owner_aws_account_id
    account = context.account if not owner else owner + context.account.removeprefix(account_of(context.account))
    return Plan(commands.ShowQueue(queue=f"{account}/{name}"), _tell_url(context))


def list_queues(request: ListQueuesRequest, context: RequestContext) -> Plan:
    """ListQueues: the caller's queues by name; pages only when asked for by MaxResults, as on AWS."""
    check_number("MaxResults", request.max_results)
    prefix = request.queue_name_prefix or ""
    listing = Listing("ListQueues", prefix, context)

    def respond(result: Any) -> ListQueuesResult:
        page: QueuePage = answered(result)
        urls = [queue_url(f"{context.account}/{name}", context) for name in page.names]
        more = page.more and request.max_results is not None
        return ListQueuesResult(
            queue_urls=urls or None, next_token=listing.token_after(page.names[-1]) if more else None
        )

    command = commands.ListQueues(
        account=context.account,
        prefix=prefix,
        after=listing.name_before(request.next_token),
        count=request.max_results or SQS_LIST_RESULTS.default,
    )
    return Plan(command, respond)


def list_dead_letter_source_queues(request: ListDeadLetterSourceQueuesRequest, context: RequestContext) -> Plan:
    """ListDeadLetterSourceQueues: the queues whose RedrivePolicy names this one; pages only when asked to."""
    queue = queue_of(request.queue_url, context)
    check_number("MaxResults", request.max_results)
    listing = Listing("ListDeadLetterSourceQueues", queue, context)

    def respond(result: Any) -> ListDeadLetterSourceQueuesResult:
        page: QueuePage = answered(result)
        more = page.more and request.max_results is not None
        return ListDeadLetterSourceQueuesResult(
            queue_urls=[queue_url(name, context) for name in page.names],
            next_token=listing.token_after(page.names[-1]) if more else None,
        )

    command = commands.ListDeadLetterSources(
        queue=queue,
        after=listing.name_before(request.next_token),
        count=request.max_results or SQS_LIST_RESULTS.default,
    )
    return Plan(command, respond)


def delete_queue(request: QueueRequest, context: RequestContext) -> Plan:
    """DeleteQueue: with all its messages."""
    return Plan(commands.DeleteQueue(queue=queue_of(request.queue_url, context)), nothing)


def purge_queue(request: QueueRequest, context: RequestContext) -> Plan:
    """PurgeQueue: deletes all messages, those in flight too."""
    return Plan(commands.PurgeQueue(queue=queue_of(request.queue_url, context)), nothing)


def get_queue_attributes(request: GetQueueAttributesRequest, context: RequestContext) -> Plan:
    """GetQueueAttributes: those named, or All."""
    queue = queue_of(request.queue_url, context)
    names = request.attribute_names or []
    settings.check_names(names)

    def respond(result: Any) -> GetQueueAttributesResult:
        view: QueueView = answered(result)
        return GetQueueAttributesResult(attributes=settings.describe(view, names, context) or None)

    counts = not settings.COUNTED.union([settings.ALL]).isdisjoint(names)
    return Plan(commands.ShowQueue(queue=queue, counts=counts), respond)


def set_queue_attributes(request: SetQueueAttributesRequest, context: RequestContext) -> Plan:
    """SetQueueAttributes: those given; the others, and leases in flight, stay as they are."""
    queue = queue_of(request.queue_url, context)
    attributes = request.attributes
    if not attributes:
        raise missing_parameter("Attribute.Name")

    def respond(result: Any) -> None:
        settings.accepted(result, attributes, queue)

    changes = settings.read_settings(attributes, queue, context)
    return Plan(commands.SetQueue(queue=queue, settings=changes), respond)


def _tell_url(context: RequestContext) -> Callable[[Any], QueueUrlResult]:
    def respond(result: Any) -> QueueUrlResult:
        view: QueueView = answered(result)
        return QueueUrlResult(queue_url=queue_url(view.queue, context))

    return respond


def _exists(error: QueueExists) -> SqsError:
    attribute = settings.attribute_of(error.setting)
    return SqsError(
        QUEUE_NAME_EXISTS,
        f"A queue already exists with the same name and a different value for attribute {attribute}",
    )
