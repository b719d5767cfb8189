"""The policy of NServiceBus.AmazonSQS, to the tick.

Its rule, with V the visibility timeout: wake ``min(half of what remains, 10 s)`` before the end, at once when less than
0.4 s remain; then ask for ``V + |W|`` seconds, W being the whole seconds that remain or have passed since. On time that
moves the old end by V; too late it asks for more than V on purpose. Its arithmetic is in ticks of 100 ns, so ours is.

The renewals end a fixed time after processing began, and that does not cancel the handler. What this project does
otherwise on purpose is around the policy, in the renewer (``docs/leases.md`` lists it).
"""

from datetime import timedelta

from veilmq.consumer.policies import Duration, Measured, Terms, checked_timeout_s, seconds
from veilmq.core.limits import LEASE_S_MAX

TICKS_PER_S = 10_000_000
AT_ONCE_TICKS = 4_000_000
BUFFER_TICKS_MAX = 100_000_000
RENEWAL_DURATION = timedelta(minutes=5)


def renew_after_s(remaining_s: float) -> float:
    """Return how long to wait before renewing a lease of which ``remaining_s`` remain; exact to 100 ns."""
    remaining = _ticks(remaining_s)
    if remaining < AT_ONCE_TICKS:
        return 0.0
    return (remaining - min(remaining // 2, BUFFER_TICKS_MAX)) / TICKS_PER_S


def extension_s(remaining_s: float, timeout_s: int) -> int:
    """Return for how long to renew a lease of ``timeout_s`` of which ``remaining_s`` remain (negative: are over)."""
    return abs(_ticks(remaining_s)) // TICKS_PER_S + timeout_s


class NServiceBusPolicy:
    """Renews each lease by NServiceBus's formula, for at most five minutes of processing unless told otherwise."""

    timely_only = True
    queue_decides = True
    server_decides = True

    def __init__(
        self,
        *,
        max_auto_message_visibility_renewal_duration: Duration = RENEWAL_DURATION,
        message_visibility_timeout: Duration | None = None,
    ) -> None:
        """Raise ``ValueError`` for durations outside 0 to 12 hours, and for a timeout below one second.

        A renewal duration of 0 turns renewals off. ``message_visibility_timeout`` is sent with every receive, in whole
        seconds; ``None`` has the queue's own be read once, and nothing sent.
        """
        self.renewal_s = _within(
            "max_auto_message_visibility_renewal_duration", max_auto_message_visibility_renewal_duration
        )
        self.timeout_s: int | None = None
        if message_visibility_timeout is not None:
            self.timeout_s = checked_timeout_s(int(_within("message_visibility_timeout", message_visibility_timeout)))

    def receive_timeout_s(self, measured: Measured) -> int | None:
        """Return the timeout that was set, if any."""
        return self.timeout_s

    def first_expiry_s(self, *, answered_at_s: float, timeout_s: int, measured: Measured) -> float:
        """Return the end as counted from the answer."""
        return answered_at_s + timeout_s

    def renew_at_s(self, lease: Terms, now_s: float) -> float:
        """Return the instant of the formula."""
        return now_s + renew_after_s(lease.expires_at_s - now_s)

    def is_over(self, lease: Terms, at_s: float) -> bool:
        """Tell whether the renewal duration, counted from the handler's begin, has passed at ``at_s``."""
        if lease.started_at_s is None:
            return not self.renewal_s
        return at_s >= lease.started_at_s + self.renewal_s

    def extension_s(self, lease: Terms, now_s: float) -> int:
        """Return what the formula asks for at ``now_s``."""
        return extension_s(lease.expires_at_s - now_s, lease.timeout_s)


def _ticks(duration_s: float) -> int:
    return round(duration_s * TICKS_PER_S)


def _within(name: str, duration: Duration) -> float:
    duration_s = seconds(duration)
    if not 0 <= duration_s <= LEASE_S_MAX:
        raise ValueError(f"{name} is {duration_s:g} s; it must be from 0 to {LEASE_S_MAX} seconds (12 hours)")
    return duration_s
