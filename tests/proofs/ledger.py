"""Check the consistency of all replies that clients got from a server that is killed again and again.

An answered request has happened, an unanswered one may have. Times are those of the clients, and all bounds are chosen
so that only certain violations count: a lease begins between the request (less one tick of the server's clock, a whole
millisecond) and its reply.
"""

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from threading import Lock
from typing import Any

CALL_S_MAX = 10.0

TICK_S = 0.001


@dataclass(slots=True)
class Message:
    """A message, identified by its body."""

    unanswered_before: int = 0  # unanswered receives before its send was requested
    send_acknowledged: bool = False
    delete_requested: bool = False
    deleted_at_s: float | None = None  # reply to the delete with the current receipt
    hidden_until_s: float = 0.0  # certainly not visible before
    claimed_at_s: float = math.inf  # certainly in an open claim from then on
    last_requested_s: float = 0.0  # request of its last delivery
    counts: list[int] = field(default_factory=list)  # receive counts of answered receives and claims


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt; certainly live before `sure_until_s`, certainly expired from `over_s` on."""

    body: str
    handle: str
    sure_until_s: float
    over_s: float
    message_id: str


class Ledger:
    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.violations: list[str] = []
        self.receives_unanswered = 0
        self._receives_pending = 0
        self._lock = Lock()

    def send_requested(self, bodies: list[str], *, hidden_until_s: float = 0.0) -> None:
        with self._lock:
            for body in bodies:
                self.messages[body] = Message(unanswered_before=self.receives_unanswered, hidden_until_s=hidden_until_s)

    def send_acknowledged(self, bodies: list[str]) -> None:
        with self._lock:
            for body in bodies:
                self.messages[body].send_acknowledged = True

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Count a receive around its call and `received`: an unanswered one may have leased messages."""
        unanswered = 0
        with self._lock:
            self._receives_pending += 1
        try:
            yield
        except Unanswered as error:
            unanswered = not isinstance(error, Unreached)
            raise
        finally:
            with self._lock:
                self._receives_pending -= 1
                self.receives_unanswered += unanswered

    def received(
        self,
        body: str,
        handle: str,
        count: int,
        *,
        requested_s: float,
        replied_s: float,
        timeout_s: float,
        message_id: str = "",
    ) -> Receipt:
        until_s = requested_s - TICK_S + timeout_s
        with self._lock:
            self._delivered(body, count, requested_s=requested_s, replied_s=replied_s).hidden_until_s = until_s
        return Receipt(body, handle, until_s, replied_s + TICK_S + timeout_s, message_id)

    def claimed(self, body: str, count: int, *, requested_s: float, replied_s: float) -> Receipt:
        """Record a claimed message, whose claim was answered at `replied_s`; return it as a receipt."""
        with self._lock:
            known = self._delivered(body, count, requested_s=requested_s, replied_s=replied_s)
            if known.last_requested_s > replied_s:
                self.violations.append(f"{body} was delivered while it was claimed")
            known.claimed_at_s = replied_s
        return Receipt(body, "", math.inf, math.inf, "")

    def _delivered(self, body: str, count: int, *, requested_s: float, replied_s: float) -> Message:
        known = self.messages.get(body)
        if known is None:
            self.violations.append(f"{body} was delivered and never sent")
            known = self.messages[body] = Message()
        if known.deleted_at_s is not None and requested_s > known.deleted_at_s:
            self.violations.append(f"{body} was delivered after its delete was acknowledged")
        if requested_s > known.claimed_at_s:
            self.violations.append(f"{body} was delivered while it was claimed")
        if replied_s < known.hidden_until_s:
            early_ms = (known.hidden_until_s - replied_s) * 1_000
            self.violations.append(f"{body} was delivered at least {early_ms:.0f} ms before its deadline")
        known.last_requested_s = max(known.last_requested_s, requested_s)
        if count in known.counts:
            self.violations.append(f"{body}: two deliveries with one receive count: {count}")
        known.counts.append(count)
        unknown = self.receives_unanswered - known.unanswered_before + self._receives_pending
        if not 1 <= count <= len(known.counts) + unknown:
            received = f"received {len(known.counts)} times, {unknown} unknown"
            self.violations.append(f"{body}: {received}, but counted {count}")
        return known

    def change_requested(self, receipt: Receipt, *, requested_s: float, timeout_s: float) -> None:
        with self._lock:
            known = self.messages[receipt.body]
            known.hidden_until_s = min(known.hidden_until_s, requested_s - TICK_S + timeout_s)
            known.claimed_at_s = math.inf

    def change_acknowledged(self, receipt: Receipt, *, requested_s: float, replied_s: float, timeout_s: float) -> None:
        """Record the new deadline if the receipt was certainly live."""
        with self._lock:
            if replied_s < receipt.sure_until_s:
                self.messages[receipt.body].hidden_until_s = requested_s - TICK_S + timeout_s

    def delete_requested(self, receipt: Receipt) -> None:
        with self._lock:
            self.messages[receipt.body].delete_requested = True

    def delete_acknowledged(self, receipt: Receipt, *, replied_s: float) -> bool:
        with self._lock:
            if certain := replied_s < receipt.sure_until_s:
                self.messages[receipt.body].deleted_at_s = replied_s
        return certain

    def totals(self) -> tuple[int, int, int]:
        """Return the numbers of acknowledged sends, of deliveries, and of certain deletes."""
        with self._lock:
            known = list(self.messages.values())
        return (
            sum(each.send_acknowledged for each in known),
            sum(len(each.counts) for each in known),
            sum(each.deleted_at_s is not None for each in known),
        )

    def settle(self, drained: set[str]) -> list[str]:
        found = list(self.violations)
        for body, known in self.messages.items():
            if known.send_acknowledged and not known.delete_requested and body not in drained:
                found.append(f"{body} was acknowledged, never deleted, and is lost")
            if known.deleted_at_s is not None and body in drained:
                found.append(f"{body} was deleted and is still there")
        return found

    def check_dead_letters(self, bodies: Iterable[str], *, receives_max: int) -> list[str]:
        """Return violations: dead letters moved too early, and messages received too often."""
        alive = [body for body, each in self.messages.items() if max(each.counts, default=0) > receives_max]
        found = [f"{body} was not dead-lettered" for body in alive]
        for body in bodies:
            known = self.messages[body]
            if len(known.counts) + self.receives_unanswered - known.unanswered_before < receives_max:
                found.append(f"{body} was dead-lettered after {len(known.counts)} receives")
        return found


class GroupOrder:
    """Check the order in which a FIFO queue delivers messages, each identified by its group and number, from 0.

    A message may be delivered once every earlier one of its group is deleted, or precedes it in the same reply. Only
    messages without a requested delete are certainly present.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._delete_requested: dict[str, set[int]] = {}
        self._first_left: dict[str, int] = {}
        self._lock = Lock()

    def delivered(self, messages: list[tuple[str, int]]) -> None:
        with self._lock:
            before: dict[str, set[int]] = {}
            for group, number in messages:
                self._check(group, number, before.setdefault(group, set()))
                before[group].add(number)

    def _check(self, group: str, number: int, before: set[int]) -> None:
        deleted = self._delete_requested.setdefault(group, set())
        first = self._first_left.get(group, 0)
        while first in deleted:
            deleted.discard(first)
            first += 1
        self._first_left[group] = first
        skipped = [each for each in range(first, number) if each not in deleted and each not in before]
        if skipped:
            self.violations.append(f"{number} of {group} was delivered before {skipped[0]}")
        if any(each > number for each in before):
            self.violations.append(f"{number} of {group} was delivered behind a later one in the same reply")

    def delete_requested(self, group: str, number: int) -> None:
        with self._lock:
            if number >= self._first_left.get(group, 0):
                self._delete_requested.setdefault(group, set()).add(number)


class Unanswered(Exception):
    """The connection broke before the reply: the outcome is unknown."""


class Unreached(Unanswered):
    """There was no connection, or the server did nothing by its own account."""


class Refused(Exception):
    """The server replied with an error; `args[0]` is its text."""


class SqsCaller:
    """Call one queue of one server; for use by one thread."""

    def __init__(self, port: int, queue: str) -> None:
        self._port = port
        self._url = f"http://127.0.0.1:{port}/000000000000/{queue}"
        self._connection: HTTPConnection | None = None

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        connection = self._connection or self._connect()
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        body = json.dumps(members if action == "CreateQueue" else {"QueueUrl": self._url, **members})
        try:
            connection.request("POST", "/", body, headers)
            reply = connection.getresponse()
            status, text = reply.status, reply.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise Unanswered from error
        if status >= 500:
            raise (Unreached if b"nothing was done" in text else Unanswered)(text)
        if status != 200:
            raise Refused(text.decode())
        answer: dict[str, Any] = json.loads(text or b"{}")
        return answer

    def _connect(self) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=CALL_S_MAX)
        try:
            connection.connect()
        except OSError as error:
            raise Unreached from error
        self._connection = connection
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class NodesCaller(SqsCaller):
    """Call one queue through a random one of several nodes; for use by one thread."""

    def __init__(self, ports: Sequence[int], queue: str, chance: random.Random) -> None:
        super().__init__(ports[0], queue)
        self._nodes = [SqsCaller(port, queue) for port in ports]
        self._chance = chance

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        return self._chance.choice(self._nodes).call(action, **members)

    def close(self) -> None:
        for node in self._nodes:
            node.close()
