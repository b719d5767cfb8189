"""The rules of visibility: when a lease ends and which receipts still act.

A state is never stored: it follows from comparing ``visible_at_ms`` with ``now_ms``. A message is visible *from* its
``visible_at_ms`` on, and its lease lives strictly before it (SQS Developer Guide, "Visibility timeout"; SMQ reference
section 5, "Boundary").
"""

from veilmq.core.errors import LeaseTooLong
from veilmq.core.limits import LEASE_S_MAX, SECOND_MS
from veilmq.core.results import ReceiptState


def deadline_ms(now_ms: int, timeout_s: int) -> int:
    """Return the instant at which a message hidden now for ``timeout_s`` becomes visible."""
    return now_ms + timeout_s * SECOND_MS


def lease_end_ms_max(requested_at_ms: int, lease_s_max: int = LEASE_S_MAX) -> int:
    """Return the last instant to which a message may be hidden by a receive that was asked for at that instant."""
    return requested_at_ms + lease_s_max * SECOND_MS


def changed_deadline_ms(
    now_ms: int, timeout_s: int, requested_at_ms: int, lease_s_max: int | None = LEASE_S_MAX
) -> int:
    """Return the deadline after a change of visibility, counted from the moment of the call.

    Raises ``LeaseTooLong`` when the message would stay in flight for more than ``lease_s_max`` since its receive was
    asked for: such a change is refused, not clipped (SQS Developer Guide, "Visibility timeout"). A release keeps
    nothing in flight. Without ``lease_s_max`` (SMQ) every change may go on for as long as the first one.
    """
    visible_at_ms = deadline_ms(now_ms, timeout_s)
    if timeout_s and lease_s_max is not None and visible_at_ms > lease_end_ms_max(requested_at_ms, lease_s_max):
        raise LeaseTooLong(lease_s_max)
    return visible_at_ms


def receipt_state(*, current: bool, visible_at_ms: int, now_ms: int) -> ReceiptState:
    """Tell what a receipt of a stored message is; ``current`` when no later receive or SMQ change superseded it."""
    if not current:
        return ReceiptState.SUPERSEDED
    return ReceiptState.LIVE if now_ms < visible_at_ms else ReceiptState.EXPIRED


def receipt_acts(state: ReceiptState, *, only_live: bool) -> bool:
    """Tell whether a receipt in ``state`` changes anything; ``only_live`` is the rule of FIFO queues and of SMQ."""
    return state is ReceiptState.LIVE or (not only_live and state in (ReceiptState.EXPIRED, ReceiptState.EARLIER))
