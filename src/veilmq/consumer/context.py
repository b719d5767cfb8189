"""What a handler may know about the message in its hands, and ask about its lease. Safe to use from any thread."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.leases import Lease, LeaseLost, LeaseState
from veilmq.consumer.outcomes import Cancelled, Cause
from veilmq.core.limits import SECOND_MS
from veilmq.core.properties import Attribute

_LOSSES = {Cause.LOST: LeaseState.LOST, Cause.ENDED: LeaseState.ENDED}


class LeaseView(Protocol):
    """How long the message is ours."""

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed, as it is by itself; negative when it has ended."""

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT, LOST, or ENDED."""

    def confirm(self) -> None:
        """Renew the lease now and return when that proved it; raises ``LeaseLost``. Blocks."""

    async def confirmed(self) -> None:
        """``confirm`` for async handlers."""


class TableLease:
    """A ``LeaseView`` of a lease of this process."""

    __slots__ = ("_lease", "_table")

    def __init__(self, lease: Lease, table: LeaseTable) -> None:
        """``table`` is where ``lease`` is kept."""
        self._lease = lease
        self._table = table

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed."""
        return self._lease.remaining_s(self._table.clock.now_s())

    @property
    def state(self) -> LeaseState:
        """The state at this instant."""
        return self._lease.state_at(self._table.clock.now_s())

    def confirm(self) -> None:
        """Renew the lease now and return when that proved it; raises ``LeaseLost``."""
        self._table.confirm(self._lease).result()

    async def confirmed(self) -> None:
        """``confirm`` for async handlers."""
        await asyncio.wrap_future(self._table.confirm(self._lease))


class Context:
    """The message apart from its body, its lease, and whether to stop."""

    __slots__ = ("_cancelled", "_cause", "lease", "message", "on_progress")

    def __init__(
        self, message: ReceivedMessage, lease: LeaseView, on_progress: Callable[[float], object] | None = None
    ) -> None:
        """``on_progress`` is told what the handler reports."""
        self.message = message
        self.lease = lease
        self._cause: Cause | None = None
        self._cancelled: threading.Event | None = None
        self.on_progress = on_progress

    @property
    def message_id(self) -> str:
        """The id of the message, the same in every delivery."""
        return self.message.id

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is: 1 for the first."""
        return self.message.receive_count

    @property
    def group(self) -> str | None:
        """The message's group, if it has one."""
        return self.message.group

    @property
    def sent_at(self) -> float:
        """When the message was sent, in seconds since the epoch."""
        return self.message.sent_at_ms / SECOND_MS

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """The message's attributes by name."""
        return self.message.attributes

    @property
    def cancelled(self) -> threading.Event:
        """Set when the handler should stop, for whatever cause; a thread may wait for it."""
        if self._cancelled is None:
            event = threading.Event()
            self._cancelled = event
            if self._cause is not None:
                event.set()
        return self._cancelled

    def check(self) -> None:
        """Return if the work may go on; raises ``LeaseLost`` or ``Cancelled``. Cheap: for loops in threads."""
        if self._cause in _LOSSES:
            raise LeaseLost(_LOSSES[self._cause])
        if self._cause is not None:
            raise Cancelled(f"The handler was cancelled: {self._cause.value}.")
        state = self.lease.state
        if state in _LOSSES.values():
            raise LeaseLost(state)

    def fence(self) -> "Fence":
        """Return a context manager, async or not, that is entered only when a fresh renewal has proved the lease.

        It raises ``LeaseLost`` otherwise. It is for the step before a side effect that must not happen twice.
        """
        return Fence(self)

    def progress(self, done: float) -> None:
        """Report that the work goes on; ``done`` is the share that is behind it. A handler with ``stall`` must."""
        if self.on_progress is not None:
            self.on_progress(done)

    def stop(self, cause: Cause) -> None:
        """Tell the handler to stop. For the runtime."""
        self._cause = cause
        if self._cancelled is not None:
            self._cancelled.set()


class Fence:
    """Entered by ``with`` or ``async with``; see ``Context.fence``."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        """Ask nothing yet."""
        self._context = context

    def __enter__(self) -> Self:
        """Confirm the lease; raises ``LeaseLost``."""
        self._context.check()
        self._context.lease.confirm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        """Confirm the lease; raises ``LeaseLost``."""
        self._context.check()
        await self._context.lease.confirmed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""
