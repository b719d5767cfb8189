"""The default policy: the length of a lease follows how long messages are held, its guard how renewals fare.

The guard is how long before its end a lease is renewed: four times the slowest percent of renewals and of the delays
with which they began, plus a second, and never less than a share of the lease. The length covers the slowest percent of
holding times, so that most messages need no renewal at all; and no less than the age of the message itself, since work
that has lasted for long tends to go on for as long again. A maximum bounds what a crash leaves hidden.
"""

import math

from veilmq.consumer.policies import Measured, Terms, expiry_s

SAMPLES_TRUSTED = 100
"""Renewals after which their measured latency replaces ``RENEWAL_S_SUPPOSED``."""
RENEWAL_S_SUPPOSED = 1.0


class Adaptive:
    """Leases that fit the work, renewed early enough for the network; durations in seconds."""

    timely_only = False
    queue_decides = False
    server_decides = False

    def __init__(
        self, *, shortest_s: int = 30, longest_s: int = 300, guard_s_min: float = 2.0, guard_share: float = 1 / 3
    ) -> None:
        """``guard_share`` of a lease is guard at least. Raises ``ValueError`` for bounds that contradict each other."""
        if not (1 <= shortest_s <= longest_s <= 43_200 and guard_s_min > 0 and 0 <= guard_share <= 0.5):
            raise ValueError("an adaptive lease needs 1 <= shortest_s <= longest_s <= 43200 and a guard below half")
        self.shortest_s = shortest_s
        self.longest_s = longest_s
        self.guard_s_min = guard_s_min
        self.guard_share = guard_share

    def guard_s(self, measured: Measured) -> float:
        """Return how long before the end of a lease its renewal begins at the latest, by what was measured."""
        renewal_s = measured.renewal_s or 0.0
        if measured.renewals < SAMPLES_TRUSTED:
            renewal_s = max(RENEWAL_S_SUPPOSED, renewal_s)
        wanted_s = 4 * (renewal_s + (measured.lateness_s or 0.0)) + 1
        return min(max(wanted_s, self.guard_s_min), self.longest_s / 3)

    def length_s(self, measured: Measured, *, age_s: float = 0.0) -> int:
        """Return how long a lease of a message that is ``age_s`` old should be."""
        guard_s = self.guard_s(measured)
        wanted_s = max(1.25 * (measured.hold_s or 0.0) + guard_s, age_s, self.shortest_s, 6 * guard_s)
        return min(math.ceil(wanted_s), self.longest_s)

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the length that fits what was held lately; ``None`` while nothing was."""
        return None if measured.hold_s is None else self.length_s(measured)

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        """Return the end as counted from the answer, less the time that it may have taken to come."""
        return expiry_s(answered_at_s=answered_at_s, timeout_s=timeout_s, measured=measured)

    def renew_at_s(self, lease: Terms, now_s: float) -> float:
        """Return an instant up to a quarter of the guard before the latest one, so that leases spread."""
        remaining_s = lease.expires_at_s - now_s
        guard_s = max(self.guard_s(lease.measured), self.guard_share * remaining_s) * (1 + lease.jitter / 4)
        return lease.expires_at_s - min(guard_s, remaining_s / 2)

    def is_over(self, lease: Terms, at_s: float) -> bool:
        """Return ``False``: it renews as long as the service allows."""
        return False

    def extension_s(self, lease: Terms, now_s: float) -> int:
        """Return the length that fits what was held lately, and the message's own age."""
        return self.length_s(lease.measured, age_s=now_s - lease.received_at_s)
