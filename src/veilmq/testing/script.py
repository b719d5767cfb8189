"""When faults happen: rows of an action, a fault and how often, played in order on the requests as they come."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from veilmq.core.ports import Clock
from veilmq.server.http_parser import Handler, Pending, Request
from veilmq.server.protocols import PROTOCOLS, Protocol, protocol_of
from veilmq.testing.faults import Fault, Scene

ANY = "*"
"""Every action."""

ACTIONS = frozenset(label for protocol in PROTOCOLS for label in protocol.labels.values())
"""The names of all actions: those of Amazon SQS, of SMQ (``smq.SendMessage``), and of the API under ``/v1/``."""


class Happened(NamedTuple):
    """A fault that was played, and the action on which."""

    action: str
    fault: Fault


@dataclass(slots=True)
class _Row:
    action: str
    fault: Fault
    left: int | None

    def is_for(self, action: str) -> bool:
        return self.action in (ANY, action)


class Script:
    """The faults of one server. Tests may write it from any thread while the server plays it."""

    def __init__(self, clock: Clock) -> None:
        """``clock`` is the server's."""
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: list[_Row] = []
        self._happened: list[Happened] = []

    def script(self, action: str, fault: Fault, *, times: int | None = 1) -> None:
        """Play ``fault`` on the next ``times`` requests of ``action``, behind what is scripted for it already.

        ``None`` plays it until ``clear``. ``action`` is as clients name it, ``ANY`` for each. Raises ``ValueError``.
        """
        if action != ANY and action not in ACTIONS:
            raise ValueError(f"no action is called {action!r}; there are {', '.join(sorted(ACTIONS))}")
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for always, not {times}")
        with self._lock:
            self._rows.append(_Row(action, fault, times))

    def clear(self, action: str = ANY) -> None:
        """Forget what is scripted for ``action``, or all; requests that are held or late stay so."""
        with self._lock:
            self._rows = [row for row in self._rows if action not in (ANY, row.action)]

    @property
    def happened(self) -> list[Happened]:
        """Return what was played so far, in order.

        A late answer, or one that never comes, is listed once the request is carried out, a late request once it waits:
        then ``RunningServer.advance`` finds it.
        """
        with self._lock:
            return list(self._happened)

    @property
    def left(self) -> list[str]:
        """Return what is still to be played, a line each: for assertions, and their messages."""
        with self._lock:
            return [f"{row.action}: {row.fault} × {row.left or 'always'}" for row in self._rows]

    # What the server calls.

    def around(self, handler: Handler) -> Handler:
        """Return the handler that plays this script in front of ``handler``."""

        def handle(request: Request) -> Pending | None:
            return self._play(request, handler) if self._rows else handler(request)

        return handle

    def _play(self, request: Request, handler: Handler) -> Pending | None:
        for protocol, action in _recognised(request):
            fault = self._next(action)
            if fault is not None:
                happened = partial(self._note, Happened(action, fault))
                return fault.play(Scene(request, handler, self._clock, protocol, happened))
        return handler(request)

    def _next(self, action: str) -> Fault | None:
        with self._lock:
            row = next((row for row in self._rows if row.is_for(action)), None)
            if row is None:
                return None
            if row.left is not None:
                row.left -= 1
                if not row.left:
                    self._rows.remove(row)
            return row.fault

    def _note(self, happened: Happened) -> None:
        with self._lock:
            self._happened.append(happened)


def _recognised(request: Request) -> Iterator[tuple[Protocol, str]]:
    """Yield the protocol of ``request`` and its action, if it has one that can be scripted."""
    protocol = protocol_of(request)
    found = None if protocol is None else protocol.read(request)
    if protocol is not None and found is not None and found.action in protocol.labels:
        yield protocol, protocol.labels[found.action]
