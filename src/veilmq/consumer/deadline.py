"""The time that a handler may take: warned of at four fifths, then over; and the time it may take without progress."""

import asyncio
import logging

from veilmq.consumer.delivery import Delivery
from veilmq.consumer.handlers import Options
from veilmq.consumer.logged import about
from veilmq.consumer.outcomes import Cause

WARNED_SHARE = 0.8

_log = logging.getLogger("veilmq.consumer")


class Deadline:
    """Armed while the handler of ``delivery`` runs."""

    __slots__ = ("_delivery", "_loop", "_options", "_stall", "_timer")

    def __init__(self, delivery: Delivery, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        """Begin now."""
        self._delivery = delivery
        self._options = options
        self._loop = loop
        self._timer = loop.call_later(options.timeout_s * WARNED_SHARE, self._warn)
        self._stall: asyncio.TimerHandle | None = None
        if options.stall_s is not None:
            self._stall = loop.call_later(options.stall_s, self._expire)

    def progress(self, done: float) -> None:
        """Begin anew to wait for progress; from any thread."""
        self._loop.call_soon_threadsafe(self._progressed)

    def cancel(self) -> None:
        """Be of no effect any more."""
        self._timer.cancel()
        if self._stall is not None:
            self._stall.cancel()

    def _progressed(self) -> None:
        if self._stall is not None and self._options.stall_s is not None and not self._stall.cancelled():
            self._stall.cancel()
            self._stall = self._loop.call_later(self._options.stall_s, self._expire)

    def _warn(self) -> None:
        timeout_s = self._options.timeout_s
        _log.warning(
            "message %s: the handler has used %.0f of its %.0f s",
            self._delivery.message.id,
            timeout_s * WARNED_SHARE,
            timeout_s,
            extra=about(self._delivery.lease),
        )
        self._timer = self._loop.call_later(timeout_s * (1 - WARNED_SHARE), self._expire)

    def _expire(self) -> None:
        text = "message %s: the handler's time is over"
        _log.error(text, self._delivery.message.id, extra=about(self._delivery.lease))
        self._delivery.cancel(Cause.TIMEOUT)
