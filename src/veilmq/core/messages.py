"""Messages: their properties and ids, deduplication, and noisy message groups."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b, sha256
from heapq import heappop, heappush
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from veilmq.core import Value
from veilmq.core.errors import MessageTooLong
from veilmq.core.limits import (
    FAIR_IN_FLIGHT_MIN,
    FAIR_RECENT_S,
    FAIR_SHARE_PERCENT,
    FAIR_SILENCE_S,
    PRIORITY,
    SECOND_MS,
)
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT, QueueSettings

# Properties are the metadata of a message. The store keeps them as opaque bytes (MessagePack; empty for none), and
# decodes them only for dead letters of FIFO queues.


class Attribute(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One typed value; ``type`` includes the custom suffix, for example ``Number.float``.

    Exactly one of ``text`` (string and number types) and ``data`` (binary types) is set.
    """

    type: str
    text: str | None = None
    data: bytes | None = None


class Properties(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """User ``attributes`` and ``system`` attributes (for example a trace header) by name, group and deduplication id.

    The ``dedup_id`` of a dead letter of a FIFO queue is its message id.
    """

    attributes: dict[str, Attribute] = {}
    system: dict[str, Attribute] = {}
    group: str | None = None
    dedup_id: str | None = None


NO_PROPERTIES = Properties()
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Properties)


def encode_properties(properties: Properties) -> bytes:
    """Return ``properties`` as bytes, empty for none."""
    return b"" if properties == NO_PROPERTIES else _encoder.encode(properties)


def decode_properties(data: bytes) -> Properties:
    """Reverse ``encode_properties``."""
    return _decoder.decode(data) if data else NO_PROPERTIES


def attributes_bytes(attributes: Mapping[str, Attribute]) -> int:
    """Return the share of ``attributes`` in the size of a message: names, types and values."""
    return sum(
        len(name.encode())
        + len(value.type.encode())
        + len((value.text or "").encode() if value.data is None else value.data)
        for name, value in attributes.items()
    )


def routing_key_of(properties: bytes | None, attribute: str = ROUTING_ATTRIBUTE_DEFAULT) -> str:
    """Return the text of an attribute of encoded ``properties``, empty if it is absent."""
    if not properties:
        return ""
    found = decode_properties(properties).attributes.get(attribute)
    return "" if found is None else found.text or ""


def dead_letter_properties(properties: bytes, message_id: bytes) -> bytes:
    """Return the encoded ``properties`` of a dead letter of a FIFO queue, with the message id as deduplication id.

    This keeps two messages with one deduplication id distinct (SQS Developer Guide, "Using dead-letter queues").
    """
    return encode_properties(replace(decode_properties(properties), dedup_id=str(UUID(bytes=message_id))))


@lru_cache(maxsize=16_384)  # senders repeat the names of their groups
def group_hash(group: str, key: bytes = b"") -> int:
    """Return a positive 63-bit hash of a group name; with a secret ``key`` senders cannot produce collisions."""
    return int.from_bytes(blake2b(group.encode(), key=key, digest_size=8).digest()) >> 1


# Message ids are random UUIDs (RFC 9562, version 4). One call of ``os.urandom`` serves 256 ids, whose fixed bits are
# set in one number of that length: generated singly, an id took several microseconds.

_ID_BYTES = 16
_IDS_PER_PAGE = 256

# Bytes 6 and 8 of each id contain the version and the variant.
_RANDOM_BITS = int.from_bytes(bytes.fromhex("ffffffffffff0fff3fffffffffffffff") * _IDS_PER_PAGE)
_FIXED_BITS = int.from_bytes(bytes.fromhex("00000000000040008000000000000000") * _IDS_PER_PAGE)


class IdSource:
    """A generator of ids: ``next`` returns a new id of 16 bytes, without a Python frame of its own."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next: Callable[[], bytes] = _ids().__next__


def _ids() -> Iterator[bytes]:
    while True:
        bits = int.from_bytes(os.urandom(_ID_BYTES * _IDS_PER_PAGE)) & _RANDOM_BITS | _FIXED_BITS
        page = bits.to_bytes(_ID_BYTES * _IDS_PER_PAGE)
        for start in range(0, len(page), _ID_BYTES):
            yield page[start : start + _ID_BYTES]


class NewMessage(Value, gc=False):
    """One message to send.

    ``properties`` are encoded; ``size_bytes`` counts the body in UTF-8 and ``attributes_bytes``. ``delay_s`` of
    ``None`` is the delay of the queue. The message group ``group`` is the unit of order in a FIFO queue, of fairness in
    a standard queue. Only FIFO queues use ``dedup_id``.
    """

    body: str
    size_bytes: int
    properties: bytes = b""
    delay_s: int | None = None
    priority: int = PRIORITY.default
    group: str | None = None
    dedup_id: str | None = None


def forwarded_message(
    body: str, properties: bytes, priority: int, target: QueueSettings, reasons: Mapping[str, str] | None
) -> NewMessage:
    """Return the message that a forward stores in a queue with the settings ``target``; a dead letter with ``reasons``.

    Raises ``MessageTooLong``, except for a dead letter with empty reasons: like every dead letter it may have any size.
    """
    sent = decode_properties(properties)
    if reasons:
        texts = {name: Attribute(type="String", text=text) for name, text in reasons.items()}
        sent = replace(sent, attributes=sent.attributes | texts)
        properties = encode_properties(sent)
    size_bytes = len(body.encode()) + attributes_bytes(sent.attributes)
    if reasons != {} and size_bytes > target.message_bytes_max:
        raise MessageTooLong(target.message_bytes_max)
    return NewMessage(
        body=body,
        size_bytes=size_bytes,
        properties=properties,
        priority=priority,
        group=sent.group,
        dedup_id=sent.dedup_id,
        delay_s=None if reasons is None else 0,
    )


# Deduplication in FIFO queues. A deduplication id is in force for exactly five minutes after its first message was
# accepted, in the whole queue or in each message group (SQS Developer Guide, "Exactly-once processing"). With
# content-based deduplication, the id of a message without one is the SHA-256 of its body, without attributes.


def dedup_id_of(new: NewMessage, settings: QueueSettings) -> str | None:
    """Return the deduplication id of a message, ``None`` if it has none and the queue does not use its content."""
    if new.dedup_id is None and settings.content_deduplication:
        return sha256(new.body.encode()).hexdigest()
    return new.dedup_id


def deduplication_key(queue_number: int, group: str, dedup_id: str, settings: QueueSettings) -> bytes:
    """Return the key of a deduplication id in the log of a queue, the same in both stores; a purge changes the keys."""
    scope = f"{len(group)} {group}" if settings.deduplication_scope == "group" else "-"
    since = f"{queue_number}.{settings.purges}" if settings.purges else f"{queue_number}"
    return blake2b(f"{since} {scope} {dedup_id}".encode(), digest_size=16).digest()


# Fairness: quiet message groups of a standard queue are received before noisy ones; no message is dropped or throttled.
# The thresholds are those of AWS (SQS Developer Guide, "Fair queues"). A group is noisy if it has more than 10 % of the
# messages in flight and at least 30 of them, or more than 10 % of the recent processing time. It is quiet again when
# its backlog is empty or nothing was sent to it for five minutes. AWS does not define *recent*: here processing time
# has a half-life of one minute.

_HALF_LIFE_MS = FAIR_RECENT_S * SECOND_MS
_SILENCE_MS = FAIR_SILENCE_S * SECOND_MS
_NEGLIGIBLE_MS = 1.0  # less processing time counts as none
_TENANTS_MIN = 1_024
_ENDS_SPARE = 1_000


class Lease(NamedTuple):
    """A message in flight until it becomes visible or its retention ends; ``group`` is ``None`` without a group."""

    ends_at_ms: int
    group: int | None
    since_ms: int


class Decaying:
    """A sum that decays by half in each half-life."""

    __slots__ = ("_at_ms", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at_ms = 0

    def at(self, now_ms: int) -> float:
        """Return the sum at ``now_ms``."""
        return self._sum * 0.5 ** ((now_ms - self._at_ms) / _HALF_LIFE_MS) if self._sum else 0.0

    def add(self, amount: float, now_ms: int) -> None:
        """Add ``amount``."""
        self._sum = self.at(now_ms) + amount
        self._at_ms = now_ms


class Tenant(msgspec.Struct, eq=False):
    """The state of one message group; ``sent_at_ms`` is its last known send, or its first receive if that was later."""

    processed: Decaying
    in_flight: int = 0
    sent_at_ms: int = 0
    is_noisy: bool = False


class Fairness:
    """The groups of one queue; idle quiet groups are removed from time to time.

    ``leases`` has messages in flight by position; ``other_in_flight`` counts messages in flight that are not in it.
    """

    __slots__ = ("_ends", "_processed", "_tenants", "_tenants_max", "leases", "other_in_flight")

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        self.other_in_flight = 0
        self._ends: list[tuple[int, int]] = []  # heap of (ends_at_ms, position), with outdated deadlines
        self._tenants: dict[int, Tenant] = {}
        self._processed = Decaying()
        self._tenants_max = _TENANTS_MIN

    def __len__(self) -> int:
        return len(self._tenants)

    def record_send(self, group: int, now_ms: int) -> None:
        """Record a send to the group at ``now_ms``."""
        tenant = self._tenants.get(group)
        if tenant is not None:
            if now_ms - tenant.sent_at_ms >= _SILENCE_MS:
                tenant.is_noisy = False
            tenant.sent_at_ms = now_ms

    def record_past_send(self, group: int, sent_at_ms: int) -> None:
        """Record a send to the group that may be older than the last known one."""
        tenant = self._tenants.get(group)
        if tenant is not None:
            tenant.sent_at_ms = max(tenant.sent_at_ms, sent_at_ms)

    def begin_lease(self, position: int, lease: Lease, now_ms: int) -> None:
        """Add a lease observed at ``now_ms``; end an earlier lease of the message."""
        if position in self.leases:
            self.end_lease(position, now_ms)
        self._put_lease(position, lease)
        group = lease.group
        if group is None:
            return
        tenant = self._tenants.get(group)
        if tenant is None:
            if len(self._tenants) >= self._tenants_max:
                self._tenants = {  # without idle quiet groups; again when their number has doubled
                    group: tenant
                    for group, tenant in self._tenants.items()
                    if tenant.in_flight or tenant.is_noisy or tenant.processed.at(now_ms) >= _NEGLIGIBLE_MS
                }
                self._tenants_max = max(_TENANTS_MIN, 2 * len(self._tenants))
            tenant = self._tenants[group] = Tenant(processed=Decaying(), sent_at_ms=now_ms)
        tenant.in_flight += 1

    def change_lease(self, position: int, ends_at_ms: int) -> bool:
        """Change the deadline of a lease; return whether the lease is known."""
        lease = self.leases.get(position)
        if lease is not None:
            self._put_lease(position, lease._replace(ends_at_ms=ends_at_ms))
        return lease is not None

    def end_lease(self, position: int, at_ms: int) -> Lease | None:
        """Remove the lease of a message that was deleted or returned at ``at_ms``; return the lease, if known."""
        lease = self.leases.pop(position, None)
        if lease is not None and lease.group is not None:
            tenant, held_ms = self._tenants[lease.group], max(0, at_ms - lease.since_ms)
            tenant.in_flight -= 1
            tenant.processed.add(held_ms, at_ms)
            self._processed.add(held_ms, at_ms)
        return lease

    def expire_leases(self, now_ms: int) -> None:
        """Remove the leases that have ended by ``now_ms``."""
        while self._ends and self._ends[0][0] <= now_ms:
            ends_at_ms, position = heappop(self._ends)
            lease = self.leases.get(position)
            if lease is not None and lease.ends_at_ms == ends_at_ms:
                self.end_lease(position, ends_at_ms)

    def _put_lease(self, position: int, lease: Lease) -> None:
        self.leases[position] = lease
        if len(self._ends) > 2 * len(self.leases) + _ENDS_SPARE:  # most deadlines are outdated
            self._ends = sorted((each.ends_at_ms, at) for at, each in self.leases.items())
        else:
            heappush(self._ends, (lease.ends_at_ms, position))

    def mark_drained(self, group: int) -> None:
        """Mark the group as quiet: it has no visible messages."""
        tenant = self._tenants.get(group)
        if tenant is not None:
            tenant.is_noisy = False

    def is_noisy(self, group: int, now_ms: int) -> bool:
        """Return whether the group is noisy at ``now_ms``, and record that."""
        tenant = self._tenants.get(group)
        if tenant is None:
            return False
        tenant.is_noisy = self._exceeds_share(tenant, now_ms)
        return tenant.is_noisy

    def would_be_noisy(self, group: int, now_ms: int) -> bool:
        """Return whether the group is noisy at ``now_ms``, without recording it."""
        tenant = self._tenants.get(group)
        return tenant is not None and self._exceeds_share(tenant, now_ms)

    def in_flight(self, group: int) -> int:
        """Return the number of messages of the group in flight."""
        tenant = self._tenants.get(group)
        return 0 if tenant is None else tenant.in_flight

    def has_many_in_flight(self, group: int) -> bool:
        """Return whether the group has at least ``FAIR_IN_FLIGHT_MIN`` messages in flight."""
        return self.in_flight(group) >= FAIR_IN_FLIGHT_MIN

    def _exceeds_share(self, tenant: Tenant, now_ms: int) -> bool:
        if now_ms - tenant.sent_at_ms >= _SILENCE_MS:
            return False
        in_flight_max = (len(self.leases) + self.other_in_flight) * FAIR_SHARE_PERCENT
        if tenant.is_noisy or (tenant.in_flight >= FAIR_IN_FLIGHT_MIN and tenant.in_flight * 100 > in_flight_max):
            return True
        processed = tenant.processed.at(now_ms)
        return processed >= _NEGLIGIBLE_MS and processed * 100 > self._processed.at(now_ms) * FAIR_SHARE_PERCENT
