"""Messages: what they carry, what makes two of them the same, and which groups come first."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b, sha256

import msgspec
from msgspec.structs import replace

from veilmq.core.errors import DeduplicationIdMissing, GroupMissing, MessageTooLong
from veilmq.core.limits import (
    ATTEMPT_S,
    DEDUPLICATION_S,
    FAIR_IN_FLIGHT_MIN,
    FAIR_RECENT_S,
    FAIR_SHARE_PERCENT,
    FAIR_SILENCE_S,
    PRIORITY,
    SECOND_MS,
)
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT, QueueSettings

# What a message carries beside its body: the user's attributes and the protocol's.
#
# The engine keeps them as opaque bytes (MessagePack), empty when there are none, so that a message without any costs
# nothing. Only the wire reads them, and the engine where a message becomes a dead letter of a FIFO queue.


class Attribute(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One typed value; ``type`` is the full label with its custom suffix, for example ``Number.float``.

    Exactly one of ``text`` (string and number types) and ``data`` (binary types) is given.
    """

    type: str
    text: str | None = None
    data: bytes | None = None


class Properties(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The user's ``attributes`` by name, and the protocol's own (``system``), for example a trace header.

    ``group`` and ``dedup_id`` are the message's as they were sent; of a dead letter of a FIFO queue ``dedup_id`` is the
    text of its message id.
    """

    attributes: dict[str, Attribute] = {}
    system: dict[str, Attribute] = {}
    group: str | None = None
    dedup_id: str | None = None


NO_PROPERTIES = Properties()
"""The properties of a message that has none."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Properties)


def encode_properties(properties: Properties) -> bytes:
    """Return ``properties`` as bytes; empty bytes when there are none."""
    return b"" if properties == NO_PROPERTIES else _encoder.encode(properties)


def decode_properties(data: bytes) -> Properties:
    """Return what ``encode_properties`` was given."""
    return _decoder.decode(data) if data else NO_PROPERTIES


def attributes_bytes(attributes: Mapping[str, Attribute]) -> int:
    """Return how much ``attributes`` count towards a message's size: names, types and values."""
    return sum(
        len(name.encode()) + len(value.type.encode()) + len(_value_bytes(value)) for name, value in attributes.items()
    )


def _value_bytes(value: Attribute) -> bytes:
    return (value.text or "").encode() if value.data is None else value.data


def key_of(properties: bytes, attribute: str = ROUTING_ATTRIBUTE_DEFAULT) -> str:
    """Return the text of the message attribute ``attribute``; empty when the message has none.

    ``properties`` are encoded by ``encode_properties``.
    """
    if not properties:
        return ""
    found = decode_properties(properties).attributes.get(attribute)
    return "" if found is None else found.text or ""


# Message ids: random 128-bit UUIDs (RFC 9562, version 4), drawn from the system's source by the page.
#
# One call of ``os.urandom`` serves 256 ids, and their fixed bits are set in one number of the length of the page: each
# id alone was measured at several microseconds. A generator's ``__next__`` is called without a frame of its own.

_ID_BYTES = 16
_IDS_PER_PAGE = 256

# Bytes 6 and 8 of each id carry the version and the variant of RFC 9562.
_RANDOM_BITS = int.from_bytes(bytes.fromhex("ffffffffffff0fff3fffffffffffffff") * _IDS_PER_PAGE)
_FIXED_BITS = int.from_bytes(bytes.fromhex("00000000000040008000000000000000") * _IDS_PER_PAGE)


class IdSource:
    """An endless supply: ``next`` returns a new id of 16 bytes."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        """Start with an empty page."""
        self.next: Callable[[], bytes] = _ids().__next__


def _ids() -> Iterator[bytes]:
    while True:
        bits = int.from_bytes(os.urandom(_ID_BYTES * _IDS_PER_PAGE)) & _RANDOM_BITS | _FIXED_BITS
        page = bits.to_bytes(_ID_BYTES * _IDS_PER_PAGE)
        for start in range(0, len(page), _ID_BYTES):
            yield page[start : start + _ID_BYTES]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message to be sent.

    ``properties`` are encoded by ``encode_properties``; ``size_bytes`` counts the body in UTF-8 and the names, types
    and values of the user's attributes; ``delay_s`` is ``None`` for the queue's own delay.
    ``group`` is the message group: the unit of order in a FIFO queue, of fairness in a standard one. ``dedup_id`` means
    something in FIFO queues alone.
    """

    body: str
    size_bytes: int
    properties: bytes = b""
    delay_s: int | None = None
    priority: int = PRIORITY.default
    group: str | None = None
    dedup_id: str | None = None


def as_dead_letter(
    body: str, properties: bytes, priority: int, target: QueueSettings, reasons: Mapping[str, str]
) -> NewMessage:
    """Return a dead letter for a queue with the settings ``target``.

    It goes there whatever its size, as every dead letter does; raises ``MessageTooLong`` where ``reasons`` make it too
    long.
    """
    carried = decode_properties(properties)
    told = {name: Attribute(type="String", text=text) for name, text in reasons.items()}
    attributes = carried.attributes | told
    size_bytes = len(body.encode()) + attributes_bytes(attributes)
    if told and size_bytes > target.message_bytes_max:
        raise MessageTooLong(target.message_bytes_max)
    return NewMessage(
        body=body,
        size_bytes=size_bytes,
        properties=encode_properties(replace(carried, attributes=attributes)),
        priority=priority,
        group=carried.group,
        dedup_id=carried.dedup_id,
        delay_s=0,
    )


def as_sent(body: str, properties: bytes, priority: int, target: QueueSettings) -> NewMessage:
    """Return what is sent to a queue with the settings ``target``; raises ``MessageTooLong``."""
    carried = decode_properties(properties)
    size_bytes = len(body.encode()) + attributes_bytes(carried.attributes)
    if size_bytes > target.message_bytes_max:
        raise MessageTooLong(target.message_bytes_max)
    return NewMessage(
        body=body,
        size_bytes=size_bytes,
        properties=properties,
        priority=priority,
        group=carried.group,
        dedup_id=carried.dedup_id,
    )


# The rules of FIFO queues that need no queue: what makes a message a duplicate, and for how long.
#
# A deduplication id counts for exactly five minutes from the acceptance of the first message that had it, by itself or,
# where the queue says so, within each message group (SQS Developer Guide, "Exactly-once processing"). A queue with
# content-based deduplication takes the SHA-256 of the body, and of the body alone, for a message that brings no id.

_KEY_BYTES = 16


def content_id(body: str) -> str:
    """Return the deduplication id of a message that brings none: 64 lower hexadecimal digits."""
    return sha256(body.encode()).hexdigest()


def group_of(new: NewMessage, settings: QueueSettings) -> str:
    """Return the group of a message; raises ``MessageTooLong`` and ``GroupMissing``."""
    if new.size_bytes > settings.message_bytes_max:
        raise MessageTooLong(settings.message_bytes_max)
    if new.group is None:
        raise GroupMissing
    return new.group


def check_together(messages: Iterable[NewMessage], settings: QueueSettings) -> None:
    """Raise ``GroupMissing`` or ``DeduplicationIdMissing`` for the first of ``messages`` that has no group or no id."""
    for new in messages:
        if new.group is None:
            raise GroupMissing
        require_id(new, settings)


def require_id(new: NewMessage, settings: QueueSettings) -> None:
    """Raise ``DeduplicationIdMissing`` for a message that has no id, and gets none from its content."""
    if new.dedup_id is None and not settings.content_deduplication:
        raise DeduplicationIdMissing


def id_of(new: NewMessage, settings: QueueSettings) -> str:
    """Return what tells a message apart from others; raises ``DeduplicationIdMissing``."""
    require_id(new, settings)
    return content_id(new.body) if new.dedup_id is None else new.dedup_id


def deduplication_key(queue_number: int, group: str, dedup_id: str, settings: QueueSettings) -> bytes:
    """Return the key under which a queue stores that deduplication id; both dialects use it, so copies carry it over.

    The id counts in the whole queue or in its group, and only until the next purge.
    """
    scope = f"{len(group)} {group}" if settings.deduplication_scope == "group" else "-"
    since = f"{queue_number}.{settings.purges}" if settings.purges else f"{queue_number}"
    return blake2b(f"{since} {scope} {dedup_id}".encode(), digest_size=_KEY_BYTES).digest()


def is_duplicate(accepted_at_ms: int, now_ms: int) -> bool:
    """Tell whether a message with the same id is a duplicate of the one accepted then."""
    return now_ms < accepted_at_ms + DEDUPLICATION_S * SECOND_MS


def is_repeatable(attempted_at_ms: int, now_ms: int) -> bool:
    """Tell whether a receive may still be repeated by its attempt id; the messages have a say, too."""
    return now_ms < attempted_at_ms + ATTEMPT_S * SECOND_MS


# Fairness: which message groups of a standard queue are noisy, so that the quiet ones are served first.
#
# The thresholds are those that AWS publishes (SQS Developer Guide, "Fair queues"): a group is noisy when it has more
# than 10 % of the messages in flight and at least 30 of them, or more than 10 % of the recent processing time; it is
# quiet again when its backlog is drained or when it sent nothing for five minutes. What is *recent* AWS does not say:
# here a stretch of processing counts half after each minute. Nothing is dropped or throttled; the order alone changes.

_HALF_LIFE_MS = FAIR_RECENT_S * SECOND_MS
_SILENCE_MS = FAIR_SILENCE_S * SECOND_MS
_FORGOTTEN_MS = 1.0  # less processing time than this is none
_TENANTS_MIN = 1_024


class Decaying:
    """A sum of which half is left after each half-life."""

    __slots__ = ("_at_ms", "_sum")

    def __init__(self) -> None:
        """Begin with nothing."""
        self._sum = 0.0
        self._at_ms = 0

    def at(self, now_ms: int) -> float:
        """Return what is left of the sum."""
        age_ms = now_ms - self._at_ms
        return self._sum * 0.5 ** (age_ms / _HALF_LIFE_MS) if self._sum else 0.0

    def add(self, amount: float, now_ms: int) -> None:
        """Add ``amount``."""
        self._sum = self.at(now_ms) + amount
        self._at_ms = now_ms


class Tenant(msgspec.Struct, eq=False):
    """One message group, as far as it counts for fairness.

    ``sent_at_ms`` is when it last sent, as far as that was seen: not before it was first received from.
    """

    processed: Decaying
    in_flight: int = 0
    sent_at_ms: int = 0
    is_noisy: bool = False


class Fairness:
    """The tenants of one queue. Groups that neither work nor are noisy are forgotten in time."""

    __slots__ = ("_forget_at", "_in_flight", "_processed", "_tenants")

    def __init__(self) -> None:
        """Begin without tenants."""
        self._tenants: dict[int, Tenant] = {}
        self._in_flight = 0
        self._processed = Decaying()
        self._forget_at = _TENANTS_MIN

    def __len__(self) -> int:
        """Return how many groups are remembered."""
        return len(self._tenants)

    def sent(self, group: int, now_ms: int) -> None:
        """Note that the group sent a message; only that of a noisy one matters."""
        tenant = self._tenants.get(group)
        if tenant is not None:
            if now_ms - tenant.sent_at_ms >= _SILENCE_MS:
                tenant.is_noisy = False
            tenant.sent_at_ms = now_ms

    def heard(self, group: int, sent_at_ms: int) -> None:
        """Note that the group sent a message at that instant, which may be long known."""
        tenant = self._tenants.get(group)
        if tenant is not None:
            tenant.sent_at_ms = max(tenant.sent_at_ms, sent_at_ms)

    def received(self, group: int, now_ms: int) -> None:
        """Count a message of the group in flight."""
        tenant = self._tenants.get(group)
        if tenant is None:
            tenant = self._admit(group, now_ms)
        tenant.in_flight += 1
        self._in_flight += 1

    def ended(self, group: int, held_ms: int, ended_at_ms: int) -> None:
        """Count a message of the group out, deleted or returned after ``held_ms`` in flight."""
        tenant = self._tenants[group]
        tenant.in_flight -= 1
        self._in_flight -= 1
        tenant.processed.add(held_ms, ended_at_ms)
        self._processed.add(held_ms, ended_at_ms)

    def drained(self, group: int) -> None:
        """Note that nothing of the group is waiting any more: it is quiet."""
        tenant = self._tenants.get(group)
        if tenant is not None:
            tenant.is_noisy = False

    def was_noisy(self, group: int) -> bool:
        """Tell whether the group was noisy when that was last asked."""
        tenant = self._tenants.get(group)
        return tenant is not None and tenant.is_noisy

    def is_noisy(self, group: int, others_in_flight: int, now_ms: int) -> bool:
        """Tell whether the group is noisy now; ``others_in_flight`` are those of the queue without a group."""
        tenant = self._tenants.get(group)
        if tenant is None:
            return False
        tenant.is_noisy = self._judged(tenant, others_in_flight, now_ms)
        return tenant.is_noisy

    def would_be_noisy(self, group: int, others_in_flight: int, now_ms: int) -> bool:
        """Tell the same without a judgement: a group does not become noisy by being asked about."""
        tenant = self._tenants.get(group)
        return tenant is not None and self._judged(tenant, others_in_flight, now_ms)

    def in_flight(self, group: int) -> int:
        """Return how many messages of the group are in flight."""
        tenant = self._tenants.get(group)
        return 0 if tenant is None else tenant.in_flight

    def has_many(self, group: int) -> bool:
        """Tell whether the group has enough messages in flight to be noisy when others have few."""
        return self.in_flight(group) >= FAIR_IN_FLIGHT_MIN

    def _judged(self, tenant: Tenant, others_in_flight: int, now_ms: int) -> bool:
        if now_ms - tenant.sent_at_ms >= _SILENCE_MS:
            return False
        return tenant.is_noisy or self._takes_too_much(tenant, others_in_flight, now_ms)

    def _takes_too_much(self, tenant: Tenant, others_in_flight: int, now_ms: int) -> bool:
        in_flight = self._in_flight + others_in_flight
        if tenant.in_flight >= FAIR_IN_FLIGHT_MIN and tenant.in_flight * 100 > in_flight * FAIR_SHARE_PERCENT:
            return True
        processed = tenant.processed.at(now_ms)
        return processed >= _FORGOTTEN_MS and processed * 100 > self._processed.at(now_ms) * FAIR_SHARE_PERCENT

    def _admit(self, group: int, now_ms: int) -> Tenant:
        if len(self._tenants) >= self._forget_at:
            self._forget(now_ms)
        tenant = self._tenants[group] = Tenant(processed=Decaying(), sent_at_ms=now_ms)
        return tenant

    def _forget(self, now_ms: int) -> None:
        """Drop the tenants that stand for nothing any more; each look costs less than the admissions since the last."""
        self._tenants = {
            group: tenant
            for group, tenant in self._tenants.items()
            if tenant.in_flight or tenant.is_noisy or tenant.processed.at(now_ms) >= _FORGOTTEN_MS
        }
        self._forget_at = max(_TENANTS_MIN, 2 * len(self._tenants))
