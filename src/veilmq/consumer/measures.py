"""What the consumer observes of itself: how long messages are held, how long renewals take, how late they begin.

Quantiles are read often and change slowly, so they are computed at most once in ``FRESH_S``.
"""

from collections.abc import Callable, Iterable

from veilmq.consumer.histogram import Durations
from veilmq.consumer.policies import Measured

SHARE = 0.99
FRESH_S = 5.0


class Renewing:
    """How renewals fare, of one renewer: ``call``, ``lateness`` and ``renewal`` as ``Measured`` has them."""

    __slots__ = ("call", "lateness", "renewal")

    def __init__(self) -> None:
        """Begin with no observation."""
        self.call = Durations()
        self.renewal = Durations()
        self.lateness = Durations()


class Measures:
    """What was observed of one handler's messages, with the renewer's observations: gives ``Measured``.

    Guarded by the lock of the lease table.
    """

    __slots__ = ("_fresh_until_s", "_measured", "_renewing", "_running_s", "hold")

    def __init__(self, renewing: Renewing, running_s: Callable[[float], Iterable[float]]) -> None:
        """``running_s`` gives, for an instant, how long each message in work has been held."""
        self.hold = Durations()
        self._renewing = renewing
        self._running_s = running_s
        self._measured = Measured()
        self._fresh_until_s = float("-inf")

    def at(self, now_s: float) -> Measured:
        """Return what is known at ``now_s``."""
        if now_s >= self._fresh_until_s:
            self._measured = self._look(now_s)
            self._fresh_until_s = now_s + FRESH_S
        return self._measured

    def _look(self, now_s: float) -> Measured:
        renewing = self._renewing
        hold_s = self.hold.quantile(SHARE, now_s=now_s, running_s=self._running_s(now_s))
        return Measured(
            hold_s=self._measured.hold_s if hold_s is None else hold_s,
            renewal_s=renewing.renewal.quantile(SHARE, now_s=now_s),
            renewals=renewing.renewal.count,
            lateness_s=renewing.lateness.quantile(SHARE, now_s=now_s),
            call_s=renewing.call.quantile(SHARE, now_s=now_s),
        )
