"""Fairness: which message groups of a standard queue are noisy, so that the quiet ones are served first.

The thresholds are those that AWS publishes (SQS Developer Guide, "Fair queues"): a group is noisy when it has more than
10 % of the messages in flight and at least 30 of them, or more than 10 % of the recent processing time; it is quiet
again when its backlog is drained or when it sent nothing for five minutes. What is *recent* AWS does not say: here a
stretch of processing counts half after each minute. Nothing is dropped or throttled; the order alone changes.
"""

import msgspec

from veilmq.core.limits import (
    FAIR_IN_FLIGHT_MIN,
    FAIR_RECENT_S,
    FAIR_SHARE_PERCENT,
    FAIR_SILENCE_S,
    SECOND_MS,
)

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

    def last_sent(self, group: int, sent_at_ms: int) -> None:
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
