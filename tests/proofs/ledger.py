"""What the clients of a server that is killed again and again know, and whether that fits together.

A request that was answered is a fact; one that was not may have happened or not. All instants are the clients' own, and
every bound is taken so that only a certain violation counts: a lease cannot have begun before its request was sent (or
before the tick of the server's clock, of whole milliseconds, that was on then), nor after its answer came.
"""

from dataclasses import dataclass, field
from threading import Lock

TICK_S = 0.001


@dataclass(slots=True)
class Message:
    """One message, known by its body."""

    send_told: bool = False
    delete_asked: bool = False
    deleted_at_s: float | None = None  # when the delete with the current receipt was answered
    hidden_until_s: float = 0.0  # not visible before, for certain
    counts: list[int] = field(default_factory=list)  # of the receives that were answered


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt as a client holds it; certainly in force while `sure_until_s` is ahead."""

    body: str
    handle: str
    sure_until_s: float


class Ledger:
    """The facts, and the violations that they prove."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.messages: dict[str, Message] = {}
        self.violations: list[str] = []
        self.receives_untold = 0
        self._lock = Lock()

    def send_asked(self, bodies: list[str]) -> None:
        """Note that these are about to be sent."""
        with self._lock:
            for body in bodies:
                self.messages[body] = Message()

    def send_told(self, bodies: list[str]) -> None:
        """Note that these were acknowledged."""
        with self._lock:
            for body in bodies:
                self.messages[body].send_told = True

    def receive_untold(self) -> None:
        """Note a receive without an answer: it may have leased messages."""
        with self._lock:
            self.receives_untold += 1

    def received(
        self, body: str, handle: str, count: int, *, asked_s: float, told_s: float, timeout_s: float
    ) -> Receipt:
        """Note a delivery, and check it against what is known of the message."""
        with self._lock:
            known = self.messages.get(body)
            if known is None:
                self.violations.append(f"{body} was delivered and never sent")
                known = self.messages[body] = Message()
            self._check_delivery(body, known, asked_s=asked_s, told_s=told_s)
            known.counts.append(count)
            known.hidden_until_s = asked_s - TICK_S + timeout_s
            return Receipt(body=body, handle=handle, sure_until_s=asked_s - TICK_S + timeout_s)

    def _check_delivery(self, body: str, known: Message, *, asked_s: float, told_s: float) -> None:
        if known.deleted_at_s is not None and asked_s > known.deleted_at_s:
            self.violations.append(f"{body} came back after its delete was acknowledged")
        if told_s < known.hidden_until_s:
            early_ms = (known.hidden_until_s - told_s) * 1_000
            self.violations.append(f"{body} was delivered at least {early_ms:.0f} ms before its deadline")

    def change_asked(self, receipt: Receipt, *, asked_s: float, timeout_s: float) -> None:
        """Note that a deadline may move from now on."""
        with self._lock:
            known = self.messages[receipt.body]
            known.hidden_until_s = min(known.hidden_until_s, asked_s - TICK_S + timeout_s)

    def change_told(self, receipt: Receipt, *, asked_s: float, told_s: float, timeout_s: float) -> None:
        """Note that it has moved, if the receipt was in force for certain."""
        with self._lock:
            if told_s < receipt.sure_until_s:
                self.messages[receipt.body].hidden_until_s = asked_s - TICK_S + timeout_s

    def delete_asked(self, receipt: Receipt) -> None:
        """Note that the message may be gone from now on."""
        with self._lock:
            self.messages[receipt.body].delete_asked = True

    def delete_told(self, receipt: Receipt, *, told_s: float) -> None:
        """Note that it is gone, if the receipt was in force for certain."""
        with self._lock:
            if told_s < receipt.sure_until_s:
                self.messages[receipt.body].deleted_at_s = told_s

    def told(self) -> tuple[int, int, int]:
        """Return how many sends, deliveries and deletes were answered."""
        with self._lock:
            known = list(self.messages.values())
        return (
            sum(each.send_told for each in known),
            sum(len(each.counts) for each in known),
            sum(each.deleted_at_s is not None for each in known),
        )

    def settle(self, drained: set[str]) -> list[str]:
        """Return all violations, given the bodies that were found at the end, before any of them was deleted."""
        found = list(self.violations)
        for body, known in self.messages.items():
            if known.send_told and not known.delete_asked and body not in drained:
                found.append(f"{body} was acknowledged, never deleted, and is lost")
            if known.deleted_at_s is not None and body in drained:
                found.append(f"{body} was deleted and is still there")
            found += self._check_counts(body, known)
        return found

    def _check_counts(self, body: str, known: Message) -> list[str]:
        counts = sorted(known.counts)
        if len(set(counts)) < len(counts):
            return [f"{body}: two deliveries with one receive count: {counts}"]
        if counts and not len(counts) <= counts[-1] <= len(counts) + self.receives_untold:
            return [f"{body}: received {len(counts)} times, {self.receives_untold} unknown, but counted {counts[-1]}"]
        return []
