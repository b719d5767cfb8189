"""ListQueue: the caller's queues by name, a page at a time (reference, section 4.5)."""

from typing import Any

from veilmq.core.commands import ListQueues
from veilmq.core.results import QueuePage
from veilmq.wire.smq.attributes import described
from veilmq.wire.smq.listing import next_marker, read_listing
from veilmq.wire.smq.names import queue_url
from veilmq.wire.smq.plan import Answer, Plan, answered
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.xml_writing import container, document, element
from veilmq.wire.sqs.context import RequestContext


def list_queue(request: SmqRequest, context: RequestContext) -> Plan:
    """ListQueue: their URLs, and with ``x-mns-with-meta`` what GetQueueAttributes tells of each to the caller."""
    asked = read_listing(request.headers)

    def respond(result: Any) -> Answer:
        page: QueuePage = answered(result)
        details = {view.queue.partition("/")[2]: described(view) for view in page.views}
        queues = "".join(
            container("Queue", element("QueueURL", queue_url(name, context)) + details.get(name, ""))
            for name in page.names
        )
        last = page.names[-1] if page.names else ""
        return Answer(200, document("Queues", queues + next_marker(last, more=page.more)))

    command = ListQueues(
        account=context.account, prefix=asked.prefix, after=asked.after, count=asked.count, views=asked.detailed
    )
    return Plan(command, respond)
