"""CreateQueue, SetQueueAttributes, GetQueueAttributes and DeleteQueue (reference, sections 4.1 to 4.4)."""

from typing import Any

from veilmq.core import commands, redrive
from veilmq.core.errors import QueueNotFound
from veilmq.core.results import QueueView
from veilmq.wire.smq.attributes import DEFAULTS, described, read_settings
from veilmq.wire.smq.errors import invalid_argument
from veilmq.wire.smq.members import body_of, optional_body_of
from veilmq.wire.smq.names import new_queue, queue_of, queue_url, says_fifo
from veilmq.wire.smq.plan import NO_CONTENT, Answer, Plan, answered, nothing
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.xml_writing import document
from veilmq.wire.sqs.context import RequestContext


def create_queue(request: SmqRequest, context: RequestContext) -> Plan:
    """CreateQueue: makes the queue (201), or finds it when every attribute given has the value that it has (204)."""
    queue = new_queue(request, context)
    supplied = read_settings(optional_body_of(request, "Queue"), context)
    if says_fifo(queue) and not supplied.setdefault("fifo", True):
        raise invalid_argument("QueueType, which is fifo where the name ends in .fifo")
    location = queue_url(request.path[1], context)

    def respond(result: Any) -> Answer:
        view: QueueView = answered(result)
        return Answer(201 if view.is_new else 204, location=location)

    return Plan(commands.CreateQueue(queue=queue, settings=supplied, defaults=DEFAULTS, at_once=True), respond)


def set_queue_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """SetQueueAttributes: those given; the others, and leases in flight, stay as they are."""
    changes = read_settings(body_of(request, "Queue"), context)
    queue = queue_of(request, context)
    if changes.get("dead_letter_queue") == queue:
        answered(redrive.itself(queue))
    return Plan(commands.SetQueue(queue=queue, settings=changes), nothing)


def get_queue_attributes(request: SmqRequest, context: RequestContext) -> Plan:
    """GetQueueAttributes: all of them."""

    def respond(result: Any) -> Answer:
        return Answer(200, document("Queue", described(answered(result))))

    return Plan(commands.ShowQueue(queue=queue_of(request, context), counts=True), respond)


def delete_queue(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteQueue: with all its messages; a queue that is not there is as good as deleted."""

    def respond(result: Any) -> Answer:
        return NO_CONTENT if isinstance(result, QueueNotFound) else nothing(result)

    return Plan(commands.DeleteQueue(queue=queue_of(request, context)), respond)
