"""The actions on messages: send, receive, peek, delete, change (reference, sections 4.6 to 4.13)."""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping
from hashlib import md5
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from veilmq.core.commands import (
    ChangeVisibility,
    Delete,
    LeaseChange,
    Peek,
    Peeked,
    PeekedMessage,
    Receive,
    Received,
    ReceivedMessage,
    Send,
    SendOptions,
    SentMessage,
    VisibilityChange,
)
from veilmq.core.errors import BodyUnreadable, ReceiptState
from veilmq.core.limits import (
    PRIORITY,
    SMQ_BATCH_BYTES_MAX,
    SMQ_BATCH_ENTRIES_MAX,
    SMQ_DELAY_S,
    SMQ_GROUP_ID_CHARACTERS_MAX,
    SMQ_PROPERTIES_MAX,
    SMQ_PROPERTY_NAME_CHARACTERS_MAX,
    SMQ_PROPERTY_VALUE_CHARACTERS_MAX,
    SMQ_RECEIVE_COUNT,
    SMQ_RECEIVE_WAIT_S,
    SMQ_VISIBILITY_TIMEOUT_S,
)
from veilmq.core.messages import (
    Attribute,
    NewMessage,
    Properties,
    attributes_bytes,
    decode_properties,
    encode_properties,
)
from veilmq.wire.exchange import SENDER_ID, Caller, Plan, RequestContext
from veilmq.wire.smq.errors import (
    MESSAGE_NOT_EXIST,
    MISSING_RECEIPT_HANDLE,
    MISSING_VISIBILITY_TIMEOUT,
    SmqError,
    invalid_argument,
)
from veilmq.wire.smq.request import (
    NO_CONTENT,
    SECONDS,
    Answer,
    Element,
    SmqRequest,
    answered,
    body_of,
    children,
    container,
    document,
    element,
    only,
    optional,
    queue_of,
    texts,
    whole_number,
)
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import GROUP, ILLEGAL, checked_id, is_number


def body_md5(text: str) -> str:
    """Return the digest of a body as it is on the wire."""
    return md5(text.encode(), usedforsecurity=False).hexdigest().upper()


def wire_text(body: str, *, smq_base64: bool) -> str:
    """Return a body that is kept as it is on the wire."""
    return b64encode(body.encode()).decode() if smq_base64 else body


def decoded(message: NewMessage) -> NewMessage:
    """Return what to keep of ``message`` where the queue keeps bodies decoded; raises ``BodyUnreadable``."""
    try:
        data = b64decode(message.body, validate=True)
        body = data.decode()
    except (Base64Error, ValueError):
        raise BodyUnreadable from None
    if not body or ILLEGAL.search(body):
        raise BodyUnreadable
    wire_bytes = len(message.body.encode())
    return replace(message, body=body, size_bytes=message.size_bytes - wire_bytes + len(data))


# Message properties: those of users, which SQS knows as message attributes, and the system's (reference, section 6).
#
# One table says how the types of both protocols become each other. Three types are the same on both sides; a truth
# value is text for SQS, with a suffix to its type by which it is known again. A suffix that only SQS knows is not
# written to SMQ.


SOURCE_ARN = "DLQSourceArn"
ORIGIN_MESSAGE_ID = "DLQOriginMessageId"
DEAD_LETTER_TYPE = "DLQMessageType"

SYSTEM_NAMES = frozenset({"traceparent", "tracestate", "baggage", DEAD_LETTER_TYPE, SOURCE_ARN, ORIGIN_MESSAGE_ID})
"""The system properties that SDKs know; one of them fails on any other."""

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TRUTH = "String.boolean"
_STRING = "String"


class _Type(NamedTuple):
    """A type of SMQ: what it is for SQS, and how the text of a value is read."""

    label: str
    read: Callable[[str, str], Attribute]


class _Container(NamedTuple):
    """How properties of one kind are written: the element around all of them, and the one around each."""

    name: str
    entry: str


_USER = _Container("UserProperties", "PropertyValue")
_SYSTEM = _Container("SystemProperties", "SystemPropertyValue")


def _number(name: str, text: str) -> Attribute:
    if not is_number(text):
        raise _invalid(name, "is no NUMBER")
    return Attribute(type="Number", text=text)


def _truth(name: str, text: str) -> Attribute:
    if text.lower() not in ("true", "false"):
        raise _invalid(name, "is no BOOLEAN")
    return Attribute(type=_TRUTH, text=text)


def _binary(name: str, text: str) -> Attribute:
    try:
        return Attribute(type="Binary", data=b64decode(text, validate=True))
    except (Base64Error, ValueError):
        raise _invalid(name, "is BINARY and no base64") from None


_TYPES: dict[str, _Type] = {
    "STRING": _Type(_STRING, lambda name, text: Attribute(type=_STRING, text=text)),
    "NUMBER": _Type("Number", _number),
    "BOOLEAN": _Type(_TRUTH, _truth),
    "BINARY": _Type("Binary", _binary),
}
_TYPE_OF_LABEL = {kind.label: name for name, kind in _TYPES.items()}


def read_user_properties(message: Element) -> dict[str, Attribute]:
    """Return the properties of users that ``message`` has, in order; raises ``SmqError`` (InvalidArgument)."""
    return _read(message, _USER)


def read_system_properties(message: Element) -> dict[str, Attribute]:
    """Return the system's; a name that SDKs do not know, and a type but STRING, is refused."""
    read = _read(message, _SYSTEM)
    for name, value in read.items():
        if name not in SYSTEM_NAMES:
            raise _invalid(name, f"is none of the SystemProperties {', '.join(sorted(SYSTEM_NAMES))}")
        if value.type != _STRING:
            raise _invalid(name, "must have the type STRING")
    return read


def written_user_properties(attributes: Mapping[str, Attribute]) -> str:
    """Return the element with ``attributes``, in their order; nothing where there are none."""
    return _written(_USER, attributes.items())


def written_system_properties(attributes: Mapping[str, Attribute]) -> str:
    """Return the element with those of ``attributes`` that SDKs know."""
    return _written(_SYSTEM, [pair for pair in attributes.items() if pair[0] in SYSTEM_NAMES])


def _read(message: Element, kind: _Container) -> dict[str, Attribute]:
    entries = [texts(entry) for outer in children(message, kind.name) for entry in children(outer, kind.entry)]
    if len(entries) > SMQ_PROPERTIES_MAX:
        raise invalid_argument(f"{kind.name}: there may be {SMQ_PROPERTIES_MAX} of them")
    read: dict[str, Attribute] = {}
    for entry in entries:
        name = _checked_name(entry.get("Name", ""))
        if name in read:
            raise _invalid(name, "was given twice")
        read[name] = _value(name, entry)
    return read


def _checked_name(name: str) -> str:
    if len(name) > SMQ_PROPERTY_NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise invalid_argument(
            f"the name of the property '{name[:64]}': it has 1 to {SMQ_PROPERTY_NAME_CHARACTERS_MAX} letters, digits, "
            "_, - and ., no dot at an end or beside another"
        )
    return name


def _value(name: str, entry: Mapping[str, str]) -> Attribute:
    text = entry.get("Value", "")
    if not 1 <= len(text) <= SMQ_PROPERTY_VALUE_CHARACTERS_MAX:
        raise _invalid(name, f"must have a Value of 1 to {SMQ_PROPERTY_VALUE_CHARACTERS_MAX} characters")
    kind = _TYPES.get(entry.get("Type", "").strip())
    if kind is None:
        raise _invalid(name, f"must have a Type, one of {', '.join(_TYPES)}")
    return kind.read(name, text)


def _written(kind: _Container, attributes: Iterable[tuple[str, Attribute]]) -> str:
    entries = "".join(container(kind.entry, _entry(*pair)) for pair in attributes)
    return container(kind.name, entries) if entries else ""


def _entry(name: str, value: Attribute) -> str:
    text = (value.text or "") if value.data is None else b64encode(value.data).decode()
    kind = _TYPE_OF_LABEL.get(value.type) or _TYPE_OF_LABEL[value.type.partition(".")[0]]
    return element("Name", name) + element("Value", text) + element("Type", kind)


def _invalid(name: str, why: str) -> SmqError:
    return invalid_argument(f"the property '{name}', which {why}")


# SendMessage and BatchSendMessage (reference, sections 4.6 and 4.7).
#
# A batch is stored as a whole or not at all: what is wrong with one message is the error of the request.


_ONE = SendOptions(receipts=True, all_or_nothing=True, dedup_id_optional=True, decode=decoded)
_SEVERAL = SendOptions(all_or_nothing=True, dedup_id_optional=True, decode=decoded)
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
        content = (
            _sent_elements(sent, outgoing)
            + optional("ReceiptHandle", sent.receipt or "")
            + optional(GROUP, group or "")
        )
        return Answer(201, document("Message", content))

    return Plan(Send(queue=queue_of(request, context), messages=(outgoing.message,), options=_ONE), respond)


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
        content = [container("Message", _sent_elements(*pair)) for pair in zip(sent, outgoing, strict=True)]
        return Answer(201, document("Messages", "".join(content)))

    messages = tuple(each.message for each in outgoing)
    return Plan(Send(queue=queue_of(request, context), messages=messages, options=_SEVERAL), respond)


def _sent_elements(sent: SentMessage, outgoing: _Outgoing) -> str:
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
    return encode_properties(carried), attributes_bytes(user) + attributes_bytes(system)


# ReceiveMessage, PeekMessage and their batches (reference, sections 4.8, 4.9 and 4.12).
#
# There being nothing is an error here, also where too many messages are in flight.


_Wrap = Callable[[list[str]], Answer]
"""Messages as they are written → the answer."""

_RECEIVED_TOO_OFTEN = "MaxReceiveCountExceeded"


def receive_message(request: SmqRequest, context: RequestContext) -> Plan:
    """ReceiveMessage: one message, hidden for as long as its queue says; waits for one as long as the request says."""
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
    """Return a peeked message; its first receive is its sending if it was never received."""
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
    carried = decode_properties(message.properties)
    system = carried.system if message.source is None else carried.system | _dead_letter(message, context)
    return (
        optional("MessageGroupId", carried.group or "")
        + written_system_properties(system)
        + written_user_properties(carried.attributes)
    )


def _dead_letter(message: ReceivedMessage | PeekedMessage, context: RequestContext) -> dict[str, Attribute]:
    """Return the properties of a dead letter, which has kept its id."""
    account, _, name = (message.source or "").partition("/")
    content = {
        DEAD_LETTER_TYPE: _RECEIVED_TOO_OFTEN,
        SOURCE_ARN: f"acs:mns:{context.region}:{account}:/queues/{name}",
        ORIGIN_MESSAGE_ID: message.id.hex().upper(),
    }
    return {name: Attribute(type="String", text=text) for name, text in content.items()}


# DeleteMessage, BatchDeleteMessage and ChangeMessageVisibility (reference, sections 4.10, 4.11, 4.13 and 5).
#
# A receipt acts once, and only until its message is visible: each receive and each change issues a new one, and the
# one before is dead. A server that is lenient still takes the receipts of the same receive that only a change
# superseded.


RECEIPT = "receipthandle"


def delete_message(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteMessage: with a live receipt, of a receive, a change, or the send of a message that is still delayed."""

    def respond(results: Any) -> Answer:
        _check(only(results))
        return NO_CONTENT

    return Plan(_delete(request, context, (_receipt(request),)), respond)


def batch_delete_message(request: SmqRequest, context: RequestContext) -> Plan:
    """BatchDeleteMessage: up to sixteen receipts, each alone; those that did not act are answered."""
    if not request.body:
        raise SmqError(MISSING_RECEIPT_HANDLE)
    receipts = tuple(each.text for each in children(body_of(request, "ReceiptHandles"), "ReceiptHandle"))
    if not all(receipts) or not 1 <= len(receipts) <= SMQ_BATCH_ENTRIES_MAX:
        raise invalid_argument(f"ReceiptHandles, of which there are 1 to {SMQ_BATCH_ENTRIES_MAX}")

    def respond(results: Any) -> Answer:
        failed = [
            failure for pair in zip(receipts, answered(results), strict=True) if (failure := _failure(*pair)) != ""
        ]
        if not failed:
            return NO_CONTENT
        return Answer(404, document("Errors", "".join(failed)), code=MESSAGE_NOT_EXIST.name)

    return Plan(_delete(request, context, receipts), respond)


def change_message_visibility(request: SmqRequest, context: RequestContext) -> Plan:
    """ChangeMessageVisibility: hides a message for that long from now on, and issues another receipt."""
    receipt = _receipt(request)
    timeout = request.query.get("visibilitytimeout")
    if not timeout:
        raise SmqError(MISSING_VISIBILITY_TIMEOUT)
    timeout_s = whole_number("VisibilityTimeout", timeout, SMQ_VISIBILITY_TIMEOUT_S, SECONDS)

    def respond(results: Any) -> Answer:
        change: LeaseChange = only(results)
        _check(change.state)
        content = element("ReceiptHandle", str(change.receipt)) + element("NextVisibleTime", str(change.visible_at_ms))
        return Answer(200, document("ChangeVisibility", content))

    command = ChangeVisibility(
        queue=queue_of(request, context),
        changes=(VisibilityChange(receipt=receipt, timeout_s=timeout_s),),
        only_live=True,
        any_epoch=context.smq_lenient,
        renew_receipt=True,
        lease_s_max=None,
    )
    return Plan(command, respond)


def _delete(request: SmqRequest, context: RequestContext, receipts: tuple[str, ...]) -> Delete:
    return Delete(queue=queue_of(request, context), receipts=receipts, only_live=True, any_epoch=context.smq_lenient)


def _receipt(request: SmqRequest) -> str:
    receipt = request.query.get(RECEIPT)
    if not receipt:
        raise SmqError(MISSING_RECEIPT_HANDLE)
    return receipt


def _check(state: ReceiptState) -> None:
    if state is not ReceiptState.LIVE:
        raise SmqError(MESSAGE_NOT_EXIST)


def _failure(receipt: str, outcome: Any) -> str:
    """Return the element of a receipt that did not act, nothing for one that did."""
    try:
        _check(answered(outcome))
    except SmqError as error:
        content = {"ErrorCode": error.code.name, "ErrorMessage": error.message, "ReceiptHandle": receipt}
        return container("Error", "".join(element(name, text) for name, text in content.items()))
    return ""
