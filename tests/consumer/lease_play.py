"""Leases in virtual time, against a queue that plays a script: no thread, no socket, every instant chosen.

``Play`` stands for the process: it moves the clock to what is due next, as the renewer's thread would, as late as it is
told. ``ScriptedQueue`` is the other side: it notes what it was asked, takes its time and answers what the script says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from veilmq.client.messages import ClientError, Hidden, ReceivedMessage, Unreachable
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable, Subscription, Watcher
from veilmq.consumer.renewal_policies import RenewalPolicy
from veilmq.consumer.renewer import Renewer
from veilmq.core.commands import VisibilityChange
from veilmq.testing import SteppedClock

BUSY = ClientError("ServiceUnavailable", "Later.", 503)
THROTTLED = ClientError("ThrottlingException", "Rate exceeded.", 400)
FORBIDDEN_FOR_NOW = ClientError("RequestThrottled", "Request is throttled.", 403)
GONE = ClientError(
    "InvalidParameterValueException", "Message does not exist or is not available for visibility timeout change.", 400
)
INVALID = ClientError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.", 404)
BEYOND = ClientError(
    "InvalidParameterValue", "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]", 400
)
CUT_OFF = Unreachable("http://queue", "connection reset by peer")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call gets: ``error`` for the whole of it, or for its entries by receipt, after ``takes_s`` seconds."""

    error: ClientError | Unreachable | None = None
    entries: Mapping[str, ClientError | Hidden] = field(default_factory=dict)
    takes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """What one call asked for: (receipt, seconds) of each entry."""

    at_s: float
    entries: tuple[tuple[str, int], ...]


class ScriptedQueue:
    """``VisibilityChanger``: plays ``script`` answer by answer, then says yes after ``usual_s``."""

    def __init__(self, clock: SteppedClock, *, usual_s: float = 0.0) -> None:
        """Begin with an empty script."""
        self.calls: list[Call] = []
        self.script: list[Answer] = []
        self._clock = clock
        self._usual_s = usual_s

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> list[ClientError | Hidden | None]:
        """Answer as the script says; a call that takes longer than ``patience_s`` is given up then."""
        self.calls.append(Call(self._clock.now_s(), tuple((change.receipt, change.timeout_s) for change in changes)))
        answer = self.script.pop(0) if self.script else Answer(takes_s=self._usual_s)
        assert patience_s is not None
        self._clock.set(self._clock.now_s() + min(answer.takes_s, patience_s))
        if answer.takes_s > patience_s:
            raise Unreachable("http://queue", "no answer in time")
        if answer.error is not None:
            raise answer.error
        return [answer.entries.get(change.receipt) for change in changes]

    @property
    def asked(self) -> list[tuple[float, int]]:
        """Return (instant, seconds) of every entry of every call, in order."""
        return [(round(call.at_s, 7), for_s) for call in self.calls for _, for_s in call.entries]


class Play(Watcher):
    """A lease table, its renewer and what the watcher was told: ``news`` holds (instant, receipt, state)."""

    def __init__(
        self,
        policy: RenewalPolicy,
        *,
        fifo: bool = False,
        strict: bool = False,
        cap_s: float | None = None,
        jitter: float = 0.0,
        usual_s: float = 0.0,
    ) -> None:
        """``jitter`` is what every draw gives; answers take ``usual_s``."""
        self.clock = SteppedClock()
        self.queue = ScriptedQueue(self.clock, usual_s=usual_s)
        self.news: list[tuple[float, str, LeaseState]] = []
        self.warnings: list[tuple[float, str, float]] = []
        self.table = LeaseTable(self.clock, watcher=self, draw=lambda: jitter)
        self.renewer = Renewer(self.table, self.queue, calls_max=1)
        self.subscription: Subscription = self.table.subscribe("orders", policy, fifo=fifo, strict=strict, cap_s=cap_s)

    def changed(self, lease: Lease, state: LeaseState) -> None:
        """Note it."""
        self.news.append((round(self.clock.now_s(), 7), lease.message.receipt, state))

    def ending(self, lease: Lease, left_s: float) -> None:
        """Note it."""
        self.warnings.append((round(self.clock.now_s(), 7), lease.message.receipt, left_s))

    def take(self, *receipts: str, timeout_s: int, received_at_s: float | None = None) -> list[Lease]:
        """Take messages with these receipts, received now unless told otherwise, and start their handlers now."""
        at_s = self.clock.now_s() if received_at_s is None else received_at_s
        leases = self.table.take(
            self.subscription,
            [message(receipt) for receipt in receipts or ("r",)],
            requested_at_s=at_s,
            answered_at_s=at_s,
            timeout_s=timeout_s,
        )
        for lease in leases:
            self.table.start(lease)
        return leases

    def until(self, at_s: float, *, late_s: float = 0.0) -> None:
        """Go to ``at_s``, renewing what is due on the way; each time the thread wakes ``late_s`` too late."""
        clock = self.clock
        while (due_s := self.table.next_due_s()) is not None and max(due_s, clock.now_s()) + late_s <= at_s:
            clock.set(max(due_s, clock.now_s()) + late_s)
            self.renewer.run_due()
        clock.set(max(at_s, clock.now_s()))

    def jump(self, at_s: float) -> None:
        """Go to ``at_s`` at one stroke, as after a stop of the whole process, and renew what is due then."""
        self.clock.set(at_s)
        self.renewer.run_due()


def message(receipt: str) -> ReceivedMessage:
    """Return a message that was received with ``receipt``."""
    return ReceivedMessage(
        id=f"id of {receipt}",
        receipt=receipt,
        body="",
        attributes={},
        sent_at_ms=0,
        first_received_at_ms=0,
        receive_count=1,
    )
