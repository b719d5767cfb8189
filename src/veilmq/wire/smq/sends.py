"""SendMessage and BatchSendMessage (reference, sections 4.6 and 4.7).

A batch is stored as a whole or not at all: what is wrong with one message is the error of the request.
"""

from typing import Any

import msgspec

from veilmq.core import properties
from veilmq.core.commands import NewMessage, Send, SendTerms
from veilmq.core.limits import (
    PRIORITY,
    SMQ_BATCH_BYTES_MAX,
    SMQ_BATCH_ENTRIES_MAX,
    SMQ_DELAY_S,
    SMQ_GROUP_ID_CHARACTERS_MAX,
)
from veilmq.core.properties import Attribute, Properties, attributes_bytes
from veilmq.core.results import SentMessage
from veilmq.wire.smq.bodies import body_md5, decoded
from veilmq.wire.smq.errors import SmqError, invalid_argument
from veilmq.wire.smq.members import SECONDS, body_of, children, texts, whole_number
from veilmq.wire.smq.names import queue_of
from veilmq.wire.smq.plan import Answer, Plan, answered, only
from veilmq.wire.smq.properties import read_system_properties, read_user_properties
from veilmq.wire.smq.request import SmqRequest
from veilmq.wire.smq.xml_reading import Element
from veilmq.wire.smq.xml_writing import container, document, optional
from veilmq.wire.sqs.callers import SENDER_ID, Caller
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.parameters import GROUP, checked_id

_ONE = SendTerms(receipts=True, together=True, unrepeated=True, decode=decoded)
_SEVERAL = SendTerms(together=True, unrepeated=True, decode=decoded)
_UNSET = "0"
_BODY = "MessageBody"


class _Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to send, the digest of its body, and how many bytes that has, on the wire."""

    message: NewMessage
    body_md5: str
    body_bytes: int


def send_message(request: SmqRequest, context: RequestContext) -> Plan:
    """SendMessage: one message; of a delayed one the sender gets a receipt, too."""
    outgoing = _outgoing(body_of(request, "Message"), context.caller)

    def respond(results: Any) -> Answer:
        sent: SentMessage = only(results)
        group = outgoing.message.group if sent.sequence is not None else None
        told = _told(sent, outgoing) + optional("ReceiptHandle", sent.receipt or "") + optional(GROUP, group or "")
        return Answer(201, document("Message", told))

    return Plan(Send(queue=queue_of(request, context), messages=(outgoing.message,), terms=_ONE), respond)


def batch_send_message(request: SmqRequest, context: RequestContext) -> Plan:
    """BatchSendMessage: up to sixteen messages, all or none of them."""
    entries = children(body_of(request, "Messages"), "Message")
    if not 1 <= len(entries) <= SMQ_BATCH_ENTRIES_MAX:
        raise invalid_argument(f"Messages, of which there are 1 to {SMQ_BATCH_ENTRIES_MAX}")
    outgoing = [_outgoing(entry, context.caller) for entry in entries]
    bytes_max = max(SMQ_BATCH_BYTES_MAX, context.smq_message_bytes_max)
    if sum(each.body_bytes for each in outgoing) > bytes_max:
        raise invalid_argument(f"Messages, which may have {bytes_max} bytes together")

    def respond(results: Any) -> Answer:
        sent: list[SentMessage] = [answered(each) for each in answered(results)]
        told = [container("Message", _told(*pair)) for pair in zip(sent, outgoing, strict=True)]
        return Answer(201, document("Messages", "".join(told)))

    messages = tuple(each.message for each in outgoing)
    return Plan(Send(queue=queue_of(request, context), messages=messages, terms=_SEVERAL), respond)


def _told(sent: SentMessage, outgoing: _Outgoing) -> str:
    return f"<MessageId>{sent.id.hex().upper()}</MessageId>\n<MessageBodyMD5>{outgoing.body_md5}</MessageBodyMD5>\n"


def _outgoing(message: Element, caller: Caller | None) -> _Outgoing:
    given = texts(message)
    body = given.get(_BODY)
    if not body:
        raise no_body(message)
    body_bytes = len(body) if body.isascii() else len(body.encode())
    delay, priority = given.get("DelaySeconds"), given.get("Priority")
    group = read_group(given.get(GROUP))
    carried, carried_bytes = carried_by(message, group, caller)
    new = NewMessage(
        body=body,
        size_bytes=body_bytes + carried_bytes,
        properties=carried,
        delay_s=None if delay is None else whole_number("DelaySeconds", delay, SMQ_DELAY_S, SECONDS),
        priority=PRIORITY.default if priority is None else _read_priority(priority),
        group=group,
    )
    return _Outgoing(new, body_md5(body), body_bytes)


def _read_priority(text: str) -> int:
    """Return a priority; an SDK writes 0 where its user set none."""
    return PRIORITY.default if text.strip() == _UNSET else whole_number("Priority", text, PRIORITY)


def no_body(message: Element) -> SmqError:
    """Return the error for a message without a text as its body; one SDK sends markup as its user wrote it."""
    if any(body.children for body in children(message, _BODY)):
        return invalid_argument(f"{_BODY}, which is a text: write < as &lt; and & as &amp; in it")
    return invalid_argument(f"{_BODY}, which is required")


def read_group(value: str | None) -> str | None:
    """Return the message group, which is as the other protocol has them."""
    try:
        return checked_id(GROUP, value or None)
    except SqsError:
        raise invalid_argument(
            f"{GROUP}, which has 1 to {SMQ_GROUP_ID_CHARACTERS_MAX} letters, digits and punctuation characters"
        ) from None


def carried_by(message: Element, group: str | None, caller: Caller | None) -> tuple[bytes, int]:
    """Return what the message carries beside its body, and how many bytes of it count towards its size."""
    user: dict[str, Attribute] = {}
    system: dict[str, Attribute] = {}
    if len(message.children) > 1 and any(member.children for member in message.children):
        user, system = read_user_properties(message), read_system_properties(message)
    if not user and not system and group is None:
        return (b"" if caller is None else caller.sent), 0
    kept = system if caller is None else system | {SENDER_ID: caller.sender}
    carried = Properties(attributes=user, system=kept, group=group)
    return properties.encode(carried), attributes_bytes(user) + attributes_bytes(system)
