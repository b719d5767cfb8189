"""A consumer under test: its handlers, a server of its own, and one virtual time for both.

The handlers run on an event loop whose time stands still (``virtual_loop``), the leases on the same clock, and the
clients reach the server without a socket (``direct_transport``). ``advance`` goes from one instant at which anything
is due, anywhere, to the next, and each time waits until nobody has anything left to do at that instant.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from weakref import finalize

import msgspec

from veilmq.client.messages import NewMessage
from veilmq.consumer.app import Consumer
from veilmq.consumer.spans import Span, span_s
from veilmq.core.properties import Attribute
from veilmq.core.settings import SettingValue
from veilmq.testing.bench_time import BenchTime, Renewal
from veilmq.testing.running_queue import RunningQueue
from veilmq.testing.running_server import RunningServer
from veilmq.testing.script import Script
from veilmq.testing.virtual_clock import VirtualClock

_SETTLED = ("acked", "dropped", "rejected")


class ConsumerBench:
    """Made by ``Consumer.testing``. Receiving begins with the first ``advance``.

    ``async with`` stops it in order. Without that it stops when nobody has it any more.
    """

    def __init__(self, app: Consumer, clock: VirtualClock | None = None) -> None:
        """Start a server with ``clock``."""
        self.server = RunningServer(clock=clock or VirtualClock()).__enter__()
        self._app = app
        self._time = BenchTime(app, self.server)
        self._closed = finalize(self, self._time.close)
        self._closed.atexit = False  # by then nobody can stop in order any more: its threads are daemons

    async def __aenter__(self) -> Self:
        """Return it."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the consumer as a program would, and then the server."""
        await asyncio.to_thread(self._closed)

    @property
    def faults(self) -> Script:
        """Return the script of what happens to requests."""
        return self.server.faults

    @property
    def now_s(self) -> float:
        """Return the seconds since the test began."""
        return self._time.clock.now_s()

    @property
    def events(self) -> Counter[str]:
        """Return how often which event has happened, of all handlers."""
        return sum((runner.counts.events for runner in self._time.runners), Counter())

    @property
    def deleted(self) -> int:
        """Return how many messages were deleted: done, dropped or rejected."""
        return sum(self.events[name] for name in _SETTLED)

    @property
    def renewals(self) -> list[Renewal]:
        """Return the renewals that succeeded, in order; equal to tuples of when and for how long."""
        return list(self._time.renewals)

    def queue(self, name: str | None = None, **settings: SettingValue) -> RunningQueue:
        """Return the first handler's queue, or the one called ``name``, made with ``settings`` if there is none."""
        return self.server.queue(name or self._app.handlers[0].options.queue, **settings)

    def send(
        self,
        payload: object,
        *,
        queue: str | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        delay: Span | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
    ) -> str:
        """Send ``payload``, past all faults, and return the message's id; it is visible when the time is moved.

        A ``str`` is the body, ``bytes`` its UTF-8, anything else its JSON, as handlers read it.
        """
        message = NewMessage(
            body=body_of(payload),
            attributes=attributes or {},
            delay_s=None if delay is None else int(span_s(delay)),
            group=group,
            dedup_id=dedup_id,
        )
        return self.server.send(self.queue(queue), message)

    async def advance(self, span: Span) -> None:
        """Let so much time pass; when it returns, nobody has anything left to do.

        Raises what made a queue impossible to consume, and ``TimeoutError`` if a handler in a thread or a process is
        at work for so long: time stands still for that.
        """
        await asyncio.to_thread(self._time.advance, span_s(span))


def body_of(payload: Any) -> str:
    """Return the body that a handler reads ``payload`` from."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, bytes):
        return payload.decode()
    dump = getattr(payload, "model_dump_json", None)  # pydantic's
    return dump() if dump is not None else msgspec.json.encode(payload).decode()
