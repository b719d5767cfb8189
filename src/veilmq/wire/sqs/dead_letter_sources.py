"""ListDeadLetterSourceQueues: who sends dead letters here."""

from typing import Any

from veilmq.core import commands
from veilmq.core.limits import SQS_LIST_RESULTS
from veilmq.core.results import QueuePage
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.names import queue_of, queue_url
from veilmq.wire.sqs.paging import Listing
from veilmq.wire.sqs.parameters import check_number
from veilmq.wire.sqs.plan import Plan, answered
from veilmq.wire.sqs.requests import ListDeadLetterSourceQueuesRequest
from veilmq.wire.sqs.responses import ListDeadLetterSourceQueuesResult


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
