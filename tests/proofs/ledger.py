"""What the clients of a server that is killed again and again know, and whether that fits together.

A request that was answered is a fact; one that was not may have happened or not. All instants are the clients' own, and
every bound is taken so that only a certain violation counts: a lease cannot have begun before its request was sent (or
before the tick of the server's clock, of whole milliseconds, that was on then), nor after its answer came.
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
    """One message, known by its body."""

    untold_before: int = 0  # receives that had got no answer when its sending was asked for
    send_told: bool = False
    delete_asked: bool = False
    deleted_at_s: float | None = None  # when the delete with the current receipt was answered
    hidden_until_s: float = 0.0  # not visible before, for certain
    claimed_at_s: float = math.inf  # in an open claim from then on, for certain
    last_asked_s: float = 0.0  # when the last of its deliveries was asked for
    counts: list[int] = field(default_factory=list)  # of the receives that were answered, and of claims


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt as a client holds it; in force for certain before `sure_until_s`, and over from `over_s` on."""

    body: str
    handle: str
    sure_until_s: float
    over_s: float
    message_id: str


class Ledger:
    """The facts, and the violations that they prove."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.violations: list[str] = []
        self.receives_untold = 0
        self._receives_asked = 0  # that are neither answered nor known to get no answer
        self._lock = Lock()

    def send_asked(self, bodies: list[str], *, hidden_until_s: float = 0.0) -> None:
        with self._lock:
            for body in bodies:
                self.messages[body] = Message(untold_before=self.receives_untold, hidden_until_s=hidden_until_s)

    def send_told(self, bodies: list[str]) -> None:
        with self._lock:
            for body in bodies:
                self.messages[body].send_told = True

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Note a receive around its call and `received`: one without an answer may have leased messages."""
        untold = 0
        with self._lock:
            self._receives_asked += 1
        try:
            yield
        except Unanswered as error:
            untold = not isinstance(error, Unreached)
            raise
        finally:
            with self._lock:
                self._receives_asked -= 1
                self.receives_untold += untold

    def received(
        self,
        body: str,
        handle: str,
        count: int,
        *,
        asked_s: float,
        told_s: float,
        timeout_s: float,
        message_id: str = "",
    ) -> Receipt:
        until_s = asked_s - TICK_S + timeout_s
        with self._lock:
            self._delivered(body, count, asked_s=asked_s, told_s=told_s).hidden_until_s = until_s
        return Receipt(body, handle, until_s, told_s + TICK_S + timeout_s, message_id)

    def claimed(self, body: str, count: int, *, asked_s: float, told_s: float) -> Receipt:
        """Note that a claim, whose binding was answered at `told_s`, has a message; return what a receipt would be."""
        with self._lock:
            known = self._delivered(body, count, asked_s=asked_s, told_s=told_s)
            if known.last_asked_s > told_s:
                self.violations.append(f"{body} was delivered while it was claimed")
            known.claimed_at_s = told_s
        return Receipt(body, "", math.inf, math.inf, "")

    def _delivered(self, body: str, count: int, *, asked_s: float, told_s: float) -> Message:
        known = self.messages.get(body)
        if known is None:
            self.violations.append(f"{body} was delivered and never sent")
            known = self.messages[body] = Message()
        if known.deleted_at_s is not None and asked_s > known.deleted_at_s:
            self.violations.append(f"{body} came back after its delete was acknowledged")
        if asked_s > known.claimed_at_s:
            self.violations.append(f"{body} was delivered while it was claimed")
        if told_s < known.hidden_until_s:
            early_ms = (known.hidden_until_s - told_s) * 1_000
            self.violations.append(f"{body} was delivered at least {early_ms:.0f} ms before its deadline")
        known.last_asked_s = max(known.last_asked_s, asked_s)
        if count in known.counts:
            self.violations.append(f"{body}: two deliveries with one receive count: {count}")
        known.counts.append(count)
        unknown = self.receives_untold - known.untold_before + self._receives_asked
        if not 1 <= count <= len(known.counts) + unknown:
            received = f"received {len(known.counts)} times, {unknown} unknown"
            self.violations.append(f"{body}: {received}, but counted {count}")
        return known

    def change_asked(self, receipt: Receipt, *, asked_s: float, timeout_s: float) -> None:
        with self._lock:
            known = self.messages[receipt.body]
            known.hidden_until_s = min(known.hidden_until_s, asked_s - TICK_S + timeout_s)
            known.claimed_at_s = math.inf

    def change_told(self, receipt: Receipt, *, asked_s: float, told_s: float, timeout_s: float) -> None:
        """Note that it has moved, if the receipt was in force for certain."""
        with self._lock:
            if told_s < receipt.sure_until_s:
                self.messages[receipt.body].hidden_until_s = asked_s - TICK_S + timeout_s

    def delete_asked(self, receipt: Receipt) -> None:
        with self._lock:
            self.messages[receipt.body].delete_asked = True

    def delete_told(self, receipt: Receipt, *, told_s: float) -> bool:
        with self._lock:
            if certain := told_s < receipt.sure_until_s:
                self.messages[receipt.body].deleted_at_s = told_s
        return certain

    def told(self) -> tuple[int, int, int]:
        """Return how many sends were acknowledged, how many deliveries came, and how many deletes count as done."""
        with self._lock:
            known = list(self.messages.values())
        return (
            sum(each.send_told for each in known),
            sum(len(each.counts) for each in known),
            sum(each.deleted_at_s is not None for each in known),
        )

    def settle(self, drained: set[str]) -> list[str]:
        found = list(self.violations)
        for body, known in self.messages.items():
            if known.send_told and not known.delete_asked and body not in drained:
                found.append(f"{body} was acknowledged, never deleted, and is lost")
            if known.deleted_at_s is not None and body in drained:
                found.append(f"{body} was deleted and is still there")
        return found

    def died(self, bodies: Iterable[str], *, receives_max: int) -> list[str]:
        """Return which of the dead letters `bodies` died too early, and what did not die in time."""
        alive = [body for body, each in self.messages.items() if max(each.counts, default=0) > receives_max]
        found = [f"{body} did not die" for body in alive]
        for body in bodies:
            known = self.messages[body]
            if len(known.counts) + self.receives_untold - known.untold_before < receives_max:
                found.append(f"{body} died after {len(known.counts)} receives")
        return found


class GroupOrder:
    """In which order a FIFO queue gave the messages of its groups, each known by group and number there, from 0.

    A message may be given when every earlier one of its group is deleted, or comes before it in the same answer. Only
    one whose delete was not asked for is there for certain.
    """

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._delete_asked: dict[str, set[int]] = {}
        self._first_left: dict[str, int] = {}
        self._lock = Lock()

    def given(self, messages: list[tuple[str, int]]) -> None:
        with self._lock:
            before: dict[str, set[int]] = {}
            for group, number in messages:
                self._check(group, number, before.setdefault(group, set()))
                before[group].add(number)

    def _check(self, group: str, number: int, before: set[int]) -> None:
        gone = self._delete_asked.setdefault(group, set())
        first = self._first_left.get(group, 0)
        while first in gone:
            gone.discard(first)
            first += 1
        self._first_left[group] = first
        skipped = [each for each in range(first, number) if each not in gone and each not in before]
        if skipped:
            self.violations.append(f"{number} of {group} was given before {skipped[0]}")
        if any(each > number for each in before):
            self.violations.append(f"{number} of {group} was given behind a later one in the same answer")

    def delete_asked(self, group: str, number: int) -> None:
        with self._lock:
            if number >= self._first_left.get(group, 0):
                self._delete_asked.setdefault(group, set()).add(number)


class Unanswered(Exception):
    """The connection broke before the answer was there: nobody knows what happened."""


class Unreached(Unanswered):
    """There was no connection, or the server says so: nothing happened, for certain."""


class Refused(Exception):
    """The server answered with an error; `args[0]` is its text."""


class SqsCaller:
    """Calls one queue of one server; belongs to one thread."""

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
    """Calls one queue that several servers have, each time through any of them; belongs to one thread."""

    def __init__(self, ports: Sequence[int], queue: str, chance: random.Random) -> None:
        super().__init__(ports[0], queue)
        self._nodes = [SqsCaller(port, queue) for port in ports]
        self._chance = chance

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        return self._chance.choice(self._nodes).call(action, **members)

    def close(self) -> None:
        for node in self._nodes:
            node.close()
