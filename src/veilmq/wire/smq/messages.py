"""The actions on messages (reference, sections 4.6 to 4.13)."""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from veilmq.core import limits
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
from veilmq.core.messages import (
    Attribute,
    NewMessage,
    Properties,
    attributes_bytes,
    decode_properties,
    encode_properties,
)
from veilmq.wire.exchange import SENDER_ID, Caller, Plan, Reply, RequestContext, md5
from veilmq.wire.smq import errors
from veilmq.wire.smq import request as smq
from veilmq.wire.smq.errors import SmqError, invalid_argument
from veilmq.wire.smq.request import Element, SmqRequest, body_of, children, element, queue_of, texts, unwrap
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import GROUP, ILLEGAL, checked_id, is_number


def body_md5(text: str) -> str:
    """Return the MD5 of a body in the format of the protocol."""
    return md5(text.encode(), usedforsecurity=False).hexdigest().upper()


def decoded(message: NewMessage) -> NewMessage:
    """Return ``message`` with its body decoded from base64; raises ``BodyUnreadable``."""
    try:
        data = b64decode(message.body, validate=True)
        body = data.decode()
    except (Base64Error, ValueError):
        raise BodyUnreadable from None
    if not body or ILLEGAL.search(body):
        raise BodyUnreadable
    wire_bytes = len(message.body.encode())
    return replace(message, body=body, size_bytes=message.size_bytes - wire_bytes + len(data))


# Message properties (reference, section 6): those of users, which are message attributes over SQS, and of the system.
#
# A boolean is a string over SQS, with a suffix to its type by which it is recognised. Other suffixes of types are not
# written to SMQ.

SOURCE_ARN = "DLQSourceArn"
ORIGIN_MESSAGE_ID = "DLQOriginMessageId"
DEAD_LETTER_TYPE = "DLQMessageType"

SYSTEM_NAMES = frozenset({"traceparent", "tracestate", "baggage", DEAD_LETTER_TYPE, SOURCE_ARN, ORIGIN_MESSAGE_ID})
"""The system properties of the SDKs; one SDK fails on any other."""

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_STRING = "String"
_ENTRIES = {"User": "PropertyValue", "System": "SystemPropertyValue"}
"""Kind of properties → the element of each."""

_TYPES = {"STRING": _STRING, "NUMBER": "Number", "BOOLEAN": "String.boolean", "BINARY": "Binary"}
"""Type of SMQ → type of SQS."""

_TYPE_OF_LABEL = {label: name for name, label in _TYPES.items()}


def read_properties(message: Element, kind: str) -> dict[str, Attribute]:
    """Return the properties of a ``kind`` (``User`` or ``System``) of ``message``, in order.

    Raises ``SmqError`` (InvalidArgument), also for a system property that is not in ``SYSTEM_NAMES`` or not a STRING.
    """
    containers = children(message, f"{kind}Properties")
    entries = [texts(entry) for container in containers for entry in children(container, _ENTRIES[kind])]
    if len(entries) > limits.SMQ_PROPERTIES_MAX:
        raise invalid_argument(f"{kind}Properties: there may be {limits.SMQ_PROPERTIES_MAX} of them")
    read: dict[str, Attribute] = {}
    for entry in entries:
        name = entry.get("Name", "")
        if len(name) > limits.SMQ_PROPERTY_NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
            raise invalid_argument(
                f"the name of the property '{name[:64]}': it has 1 to {limits.SMQ_PROPERTY_NAME_CHARACTERS_MAX} "
                "letters, digits, _, - and ., no dot at an end or beside another"
            )
        if name in read:
            raise _invalid(name, "was given twice")
        read[name] = _value(name, entry)
    for name, value in read.items() if kind == "System" else ():
        if name not in SYSTEM_NAMES:
            raise _invalid(name, f"is none of the SystemProperties {', '.join(sorted(SYSTEM_NAMES))}")
        if value.type != _STRING:
            raise _invalid(name, "must have the type STRING")
    return read


def properties_xml(attributes: Mapping[str, Attribute], kind: str) -> str:
    """Return the element with ``attributes``, in order, without system properties that SDKs do not have."""
    entries = [
        smq.container(_ENTRIES[kind], _entry(name, value))
        for name, value in attributes.items()
        if kind == "User" or name in SYSTEM_NAMES
    ]
    return smq.container(f"{kind}Properties", "".join(entries)) if entries else ""


def _value(name: str, entry: Mapping[str, str]) -> Attribute:
    text, characters_max = entry.get("Value", ""), limits.SMQ_PROPERTY_VALUE_CHARACTERS_MAX
    if not 1 <= len(text) <= characters_max:
        raise _invalid(name, f"must have a Value of 1 to {characters_max} characters")
    kind = entry.get("Type", "").strip()
    if kind not in _TYPES:
        raise _invalid(name, f"must have a Type, one of {', '.join(_TYPES)}")
    if kind == "BINARY":
        try:
            return Attribute(type=_TYPES[kind], data=b64decode(text, validate=True))
        except (Base64Error, ValueError):
            raise _invalid(name, "is BINARY and no base64") from None
    if (kind == "NUMBER" and not is_number(text)) or (kind == "BOOLEAN" and text.lower() not in ("true", "false")):
        raise _invalid(name, f"is no {kind}")
    return Attribute(type=_TYPES[kind], text=text)


def _entry(name: str, value: Attribute) -> str:
    text = (value.text or "") if value.data is None else b64encode(value.data).decode()
    kind = _TYPE_OF_LABEL.get(value.type) or _TYPE_OF_LABEL[value.type.partition(".")[0]]
    return smq.elements({"Name": name, "Value": text, "Type": kind})


def _invalid(name: str, why: str) -> SmqError:
    return invalid_argument(f"the property '{name}', which {why}")


# SendMessage and BatchSendMessage (reference, sections 4.6 and 4.7). A batch is stored as a whole or not at all: an
# error of one message is the error of the request.

_ONE = SendOptions(receipts=True, all_or_nothing=True, dedup_id_optional=True, decode=decoded)
_SEVERAL = SendOptions(all_or_nothing=True, dedup_id_optional=True, decode=decoded)
_UNSET = "0"
"""The priority that an SDK sends if its user set none."""
_BODY = "MessageBody"


class _PreparedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to send, with the digest and the size of its body in the request."""

    message: NewMessage
    body_md5: str
    body_bytes: int


def send(request: SmqRequest, context: RequestContext) -> Plan:
    """SendMessage: stores one message; the reply for a delayed message has a receipt."""
    prepared = _prepare(body_of(request, "Message"), context.caller)

    def respond(results: Any) -> Reply:
        sent: SentMessage = smq.unwrap_single(results)
        group = prepared.message.group if sent.sequence is not None else None
        content = (
            _sent_elements(sent, prepared) + smq.optional("ReceiptHandle", sent.receipt) + smq.optional(GROUP, group)
        )
        return smq.reply(201, smq.document("Message", content))

    return Plan(Send(queue=queue_of(request, context), messages=(prepared.message,), options=_ONE), respond)


def send_batch(request: SmqRequest, context: RequestContext) -> Plan:
    """BatchSendMessage: stores up to sixteen messages, all or none."""
    entries = children(body_of(request, "Messages"), "Message")
    if not 1 <= len(entries) <= limits.SMQ_BATCH_ENTRIES_MAX:
        raise invalid_argument(f"Messages, of which there are 1 to {limits.SMQ_BATCH_ENTRIES_MAX}")
    prepared = [_prepare(entry, context.caller) for entry in entries]
    bytes_max = max(limits.SMQ_BATCH_BYTES_MAX, context.smq_message_bytes_max)
    if sum(each.body_bytes for each in prepared) > bytes_max:
        raise invalid_argument(f"Messages, which may have {bytes_max} bytes together")

    def respond(results: Any) -> Reply:
        sent: list[SentMessage] = [unwrap(result) for result in unwrap(results)]
        content = [smq.container("Message", _sent_elements(*pair)) for pair in zip(sent, prepared, strict=True)]
        return smq.reply(201, smq.document("Messages", "".join(content)))

    messages = tuple(each.message for each in prepared)
    return Plan(Send(queue=queue_of(request, context), messages=messages, options=_SEVERAL), respond)


def _sent_elements(sent: SentMessage, prepared: _PreparedMessage) -> str:
    return f"<MessageId>{sent.id.hex().upper()}</MessageId>\n<MessageBodyMD5>{prepared.body_md5}</MessageBodyMD5>\n"


def _prepare(message: Element, caller: Caller | None) -> _PreparedMessage:
    members = texts(message)
    body = members.get(_BODY)
    if not body:
        raise missing_body(message)
    body_bytes = len(body) if body.isascii() else len(body.encode())
    delay, priority = members.get("DelaySeconds"), members.get("Priority", _UNSET)
    group = read_group(members.get(GROUP))
    properties, properties_bytes = message_properties(message, group, caller)
    new = NewMessage(
        body=body,
        size_bytes=body_bytes + properties_bytes,
        properties=properties,
        delay_s=None if delay is None else smq.whole_number("DelaySeconds", delay, limits.SMQ_DELAY_S, smq.SECONDS),
        priority=limits.PRIORITY.default
        if priority.strip() == _UNSET
        else smq.whole_number("Priority", priority, limits.PRIORITY),
        group=group,
    )
    return _PreparedMessage(new, body_md5(body), body_bytes)


def missing_body(message: Element) -> SmqError:
    """Return the error for a message without a body, or with elements in it: one SDK does not escape bodies."""
    if any(body.children for body in children(message, _BODY)):
        return invalid_argument(f"{_BODY}, which is a text: write < as &lt; and & as &amp; in it")
    return invalid_argument(f"{_BODY}, which is required")


def read_group(value: str | None) -> str | None:
    """Return the message group, checked by the rules of SQS."""
    try:
        return checked_id(GROUP, value or None)
    except SqsError:
        raise invalid_argument(
            f"{GROUP}, which has 1 to {limits.SMQ_GROUP_ID_CHARACTERS_MAX} letters, digits and punctuation characters"
        ) from None


def message_properties(message: Element, group: str | None, caller: Caller | None) -> tuple[bytes, int]:
    """Return the encoded properties of the message, and how many bytes of them count towards its size."""
    user: dict[str, Attribute] = {}
    system: dict[str, Attribute] = {}
    if len(message.children) > 1 and any(member.children for member in message.children):
        user, system = read_properties(message, "User"), read_properties(message, "System")
    if not user and not system and group is None:
        return (b"" if caller is None else caller.sender_properties), 0
    stored = system if caller is None else system | {SENDER_ID: caller.sender}
    properties = Properties(attributes=user, system=stored, group=group)
    return encode_properties(properties), attributes_bytes(user) + attributes_bytes(system)


# ReceiveMessage, PeekMessage and their batches (reference, sections 4.8, 4.9 and 4.12). Without a message the reply is
# the error MessageNotExist, also if too many messages are in flight.

_RECEIVED_TOO_OFTEN = "MaxReceiveCountExceeded"


def receive(request: SmqRequest, context: RequestContext, *, several: bool = False) -> Plan:
    """ReceiveMessage: returns one message, hidden for the timeout of its queue; may wait for it.

    With ``several``, BatchReceiveMessage: up to sixteen messages, as soon as there is one.
    """
    count, wait = _count(request) if several else 1, request.query.get("waitseconds")
    wait_s = None if wait is None else smq.whole_number("waitseconds", wait, limits.SMQ_RECEIVE_WAIT_S, smq.SECONDS)
    command = Receive(queue=queue_of(request, context), count=count, lease_s_max=None)
    return Plan(command, _messages_response(context, several), wait_s)


def peek(request: SmqRequest, context: RequestContext, *, several: bool = False) -> Plan:
    """PeekMessage: returns the message that a receive would return now, unchanged.

    With ``several``, BatchPeekMessage: up to sixteen messages.
    """
    count = _count(request) if several else 1
    return Plan(Peek(queue=queue_of(request, context), count=count), _messages_response(context, several))


def _count(request: SmqRequest) -> int:
    return smq.whole_number("numOfMessages", request.query["numofmessages"], limits.SMQ_RECEIVE_COUNT)


def _messages_response(context: RequestContext, several: bool) -> Callable[[Any], Reply]:
    def respond(result: Any) -> Reply:
        received: Received | Peeked = unwrap(result)
        messages = [_message(message, received.smq_base64, context) for message in received.messages]
        if not messages:
            raise SmqError(errors.MESSAGE_NOT_EXIST)
        if not several:
            return smq.reply(200, smq.document("Message", messages[0]))
        return smq.reply(
            200, smq.document("Messages", "".join([smq.container("Message", message) for message in messages]))
        )

    return respond


def _message(message: ReceivedMessage | PeekedMessage, smq_base64: bool, context: RequestContext) -> str:
    """Return the elements of a message; before its first receive, ``FirstDequeueTime`` is the time of sending.

    ``UserProperties`` are last, because the SDK for PHP ignores all elements after them.
    """
    receipt = visible = more = ""
    if isinstance(message, ReceivedMessage):
        receipt = f"<ReceiptHandle>{message.receipt}</ReceiptHandle>\n"
        visible = f"<NextVisibleTime>{message.visible_at_ms}</NextVisibleTime>\n"
    first_ms = message.sent_at_ms if message.first_received_at_ms is None else message.first_received_at_ms
    if message.properties or message.source is not None:
        properties = decode_properties(message.properties)
        system = properties.system
        if message.source is not None:  # a dead letter keeps its id
            account, _, name = message.source.partition("/")
            content = {
                DEAD_LETTER_TYPE: _RECEIVED_TOO_OFTEN,
                SOURCE_ARN: f"acs:mns:{context.region}:{account}:/queues/{name}",
                ORIGIN_MESSAGE_ID: message.id.hex().upper(),
            }
            system = system | {name: Attribute(type=_STRING, text=text) for name, text in content.items()}
        more = smq.optional(GROUP, properties.group) + properties_xml(system, "System")
        more += properties_xml(properties.attributes, "User")
    text = b64encode(message.body.encode()).decode() if smq_base64 else message.body
    return (
        f"<MessageId>{message.id.hex().upper()}</MessageId>\n{receipt}"
        f"<MessageBodyMD5>{body_md5(text)}</MessageBodyMD5>\n{element('MessageBody', text)}"
        f"<EnqueueTime>{message.sent_at_ms}</EnqueueTime>\n{visible}<FirstDequeueTime>{first_ms}</FirstDequeueTime>\n"
        f"<DequeueCount>{message.receive_count}</DequeueCount>\n<Priority>{message.priority}</Priority>\n"
        f"{more}"
    )


# DeleteMessage, BatchDeleteMessage and ChangeMessageVisibility (reference, sections 4.10, 4.11, 4.13 and 5).
#
# A receipt acts only until its message is visible. Each receive and each change issues a new receipt and invalidates
# the previous one. A lenient server also accepts earlier receipts of the same receive, superseded only by changes.

RECEIPT = "receipthandle"


def delete(request: SmqRequest, context: RequestContext) -> Plan:
    """DeleteMessage: takes a live receipt of a receive, of a change, or of the send of a message still delayed."""

    def respond(results: Any) -> Reply:
        _check(smq.unwrap_single(results))
        return smq.reply(204)

    return Plan(_delete_command(request, context, (_receipt(request),)), respond)


def delete_batch(request: SmqRequest, context: RequestContext) -> Plan:
    """BatchDeleteMessage: takes up to sixteen receipts, each alone; the reply lists those that failed."""
    if not request.body:
        raise SmqError(errors.MISSING_RECEIPT_HANDLE)
    receipts = tuple(handle.text for handle in children(body_of(request, "ReceiptHandles"), "ReceiptHandle"))
    if not all(receipts) or not 1 <= len(receipts) <= limits.SMQ_BATCH_ENTRIES_MAX:
        raise invalid_argument(f"ReceiptHandles, of which there are 1 to {limits.SMQ_BATCH_ENTRIES_MAX}")

    def respond(results: Any) -> Reply:
        failed = []
        for receipt, outcome in zip(receipts, unwrap(results), strict=True):
            try:
                _check(unwrap(outcome))
            except SmqError as error:
                code = error.code.name
                content = {"ErrorCode": code, "ErrorMessage": error.message, "ReceiptHandle": receipt}
                failed.append(smq.container("Error", smq.elements(content)))
        if not failed:
            return smq.reply(204)
        return smq.reply(404, smq.document("Errors", "".join(failed)), code=errors.MESSAGE_NOT_EXIST.name)

    return Plan(_delete_command(request, context, receipts), respond)


def change_visibility(request: SmqRequest, context: RequestContext) -> Plan:
    """ChangeMessageVisibility: changes the timeout of a lease, from now, and issues a new receipt."""
    receipt = _receipt(request)
    timeout = request.query.get("visibilitytimeout")
    if not timeout:
        raise SmqError(errors.MISSING_VISIBILITY_TIMEOUT)
    timeout_s = smq.whole_number("VisibilityTimeout", timeout, limits.SMQ_VISIBILITY_TIMEOUT_S, smq.SECONDS)

    def respond(results: Any) -> Reply:
        change: LeaseChange = smq.unwrap_single(results)
        _check(change.state)
        content = {"ReceiptHandle": str(change.receipt), "NextVisibleTime": str(change.visible_at_ms)}
        return smq.reply(200, smq.document("ChangeVisibility", smq.elements(content)))

    command = ChangeVisibility(
        queue=queue_of(request, context),
        changes=(VisibilityChange(receipt=receipt, timeout_s=timeout_s),),
        only_live=True,
        any_epoch=context.smq_lenient,
        renew_receipt=True,
        lease_s_max=None,
    )
    return Plan(command, respond)


def _delete_command(request: SmqRequest, context: RequestContext, receipts: tuple[str, ...]) -> Delete:
    return Delete(queue=queue_of(request, context), receipts=receipts, only_live=True, any_epoch=context.smq_lenient)


def _receipt(request: SmqRequest) -> str:
    receipt = request.query.get(RECEIPT)
    if not receipt:
        raise SmqError(errors.MISSING_RECEIPT_HANDLE)
    return receipt


def _check(state: ReceiptState) -> None:
    if state is not ReceiptState.LIVE:
        raise SmqError(errors.MESSAGE_NOT_EXIST)
