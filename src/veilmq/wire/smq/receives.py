"""ReceiveMessage, PeekMessage and their batches (reference, sections 4.8, 4.9 and 4.12).

There being nothing is an error here, also where too many messages are in flight.
"""

from collections.abc import Callable
from typing import Any

from veilmq.core import properties
from veilmq.core.commands import Receive
from veilmq.core.limits import SMQ_RECEIVE_COUNT, SMQ_RECEIVE_WAIT_S
from veilmq.core.looks import Peek, Peeked, PeekedMessage
from veilmq.core.properties import Attribute
from veilmq.core.results import Received, ReceivedMessage
from veilmq.wire.smq.bodies import body_md5, wire_text
from veilmq.wire.smq.errors import MESSAGE_NOT_EXIST, SmqError
from veilmq.wire.smq.members import SECONDS, whole_number
from veilmq.wire.smq.names import queue_of
from veilmq.wire.smq.plan import Answer, Plan, answered
from veilmq.wire.smq.properties import (
    DEAD_LETTER_TYPE,
    ORIGIN_MESSAGE_ID,
    SOURCE_ARN,
    written_system_properties,
    written_user_properties,
)
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.xml_writing import container, document, element, optional
from veilmq.wire.sqs.context import RequestContext

_Wrap = Callable[[list[str]], Answer]
"""Messages as they are written → the answer."""

_RECEIVED_TOO_OFTEN = "MaxReceiveCountExceeded"


def receive_message(request: SmqRequest, context: RequestContext) -> Plan:
    """ReceiveMessage: one message, hidden for as long as its queue says; waits for one if asked to."""
    return _receive(request, context, 1, _one)


def batch_receive_message(request: SmqRequest, context: RequestContext) -> Plan:
    """BatchReceiveMessage: up to sixteen messages, as soon as there is one."""
    return _receive(request, context, _count(request), _several)


def peek_message(request: SmqRequest, context: RequestContext) -> Plan:
    """PeekMessage: the message that a receive would give now, which stays as it is."""
    return _peek(request, context, 1, _one)


def batch_peek_message(request: SmqRequest, context: RequestContext) -> Plan:
    """BatchPeekMessage: up to sixteen of them."""
    return _peek(request, context, _count(request), _several)


def _receive(request: SmqRequest, context: RequestContext, count: int, wrap: _Wrap) -> Plan:
    wait = request.query.get("waitseconds")
    wait_s = None if wait is None else whole_number("waitseconds", wait, SMQ_RECEIVE_WAIT_S, SECONDS)

    def respond(result: Any) -> Answer:
        received: Received = answered(result)
        return wrap([_received(message, received.smq_base64, context) for message in received.messages])

    return Plan(Receive(queue=queue_of(request, context), count=count, lease_s_max=None), respond, wait_s)


def _peek(request: SmqRequest, context: RequestContext, count: int, wrap: _Wrap) -> Plan:
    def respond(result: Any) -> Answer:
        peeked: Peeked = answered(result)
        return wrap([_peeked(message, peeked.smq_base64, context) for message in peeked.messages])

    return Plan(Peek(queue=queue_of(request, context), count=count), respond)


def _count(request: SmqRequest) -> int:
    return whole_number("numOfMessages", request.query["numofmessages"], SMQ_RECEIVE_COUNT)


def _one(messages: list[str]) -> Answer:
    return Answer(200, document("Message", _present(messages)[0]))


def _several(messages: list[str]) -> Answer:
    inner = "".join([container("Message", message) for message in _present(messages)])
    return Answer(200, document("Messages", inner))


def _present(messages: list[str]) -> list[str]:
    if not messages:
        raise SmqError(MESSAGE_NOT_EXIST)
    return messages


def _received(message: ReceivedMessage, smq_base64: bool, context: RequestContext) -> str:
    return (
        f"<MessageId>{message.id.hex().upper()}</MessageId>\n<ReceiptHandle>{message.receipt}</ReceiptHandle>\n"
        f"{_body(message, smq_base64)}<EnqueueTime>{message.sent_at_ms}</EnqueueTime>\n"
        f"<NextVisibleTime>{message.visible_at_ms}</NextVisibleTime>\n"
        f"<FirstDequeueTime>{message.first_received_at_ms}</FirstDequeueTime>\n"
        f"<DequeueCount>{message.receive_count}</DequeueCount>\n<Priority>{message.priority}</Priority>\n"
        f"{_more(message, context)}"
    )


def _peeked(message: PeekedMessage, smq_base64: bool, context: RequestContext) -> str:
    """Return a message that nobody received by this; one that nobody received at all was first received when sent."""
    first_ms = message.first_received_at_ms
    return (
        f"<MessageId>{message.id.hex().upper()}</MessageId>\n"
        f"{_body(message, smq_base64)}<EnqueueTime>{message.sent_at_ms}</EnqueueTime>\n"
        f"<FirstDequeueTime>{message.sent_at_ms if first_ms is None else first_ms}</FirstDequeueTime>\n"
        f"<DequeueCount>{message.receive_count}</DequeueCount>\n<Priority>{message.priority}</Priority>\n"
        f"{_more(message, context)}"
    )


def _body(message: ReceivedMessage | PeekedMessage, smq_base64: bool) -> str:
    text = wire_text(message.body, smq_base64=smq_base64)
    return f"<MessageBodyMD5>{body_md5(text)}</MessageBodyMD5>\n{element('MessageBody', text)}"


def _more(message: ReceivedMessage | PeekedMessage, context: RequestContext) -> str:
    """Return the elements that most messages do not have; the SDK for PHP reads none behind ``UserProperties``."""
    if not message.properties and message.source is None:
        return ""
    carried = properties.decode(message.properties)
    system = carried.system if message.source is None else carried.system | _dead_letter(message, context)
    return (
        optional("MessageGroupId", carried.group or "")
        + written_system_properties(system)
        + written_user_properties(carried.attributes)
    )


def _dead_letter(message: ReceivedMessage | PeekedMessage, context: RequestContext) -> dict[str, Attribute]:
    """Return what a dead letter tells of itself; it has kept its id."""
    account, _, name = (message.source or "").partition("/")
    told = {
        DEAD_LETTER_TYPE: _RECEIVED_TOO_OFTEN,
        SOURCE_ARN: f"acs:mns:{context.region}:{account}:/queues/{name}",
        ORIGIN_MESSAGE_ID: message.id.hex().upper(),
    }
    return {name: Attribute(type="String", text=text) for name, text in told.items()}
