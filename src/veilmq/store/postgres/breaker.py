"""The circuit breaker of one server: while it cannot be reached, commands hear so at once, and do not queue for it.

After a failure nobody asks for a while, which doubles with each failure in a row; then one command tries, and the
others wait for what it finds. Queues on other servers go on meanwhile.
"""

from veilmq.core.errors import StoreUnavailable
from veilmq.core.ports import Clock

_PAUSE_MS_MIN = 100
_PAUSE_MS_MAX = 5_000


class Breaker:
    """Whether it is worth asking for a connection."""

    def __init__(self, *, clock: Clock) -> None:
        """Begin in good hope."""
        self._clock = clock
        self._pause_ms = 0
        self._rests_until_ms = 0
        self.failures = 0
        """How often there was no connection to be had."""

    @property
    def is_open(self) -> bool:
        """Whether the last attempt to get a connection failed."""
        return self._pause_ms > 0

    def check(self) -> None:
        """Raise ``StoreUnavailable`` unless it is worth it; who may try keeps others from it for as long as a pause."""
        if not self._pause_ms:
            return
        if self._clock.now_ms() < self._rests_until_ms:
            raise StoreUnavailable
        self._rests_until_ms = self._clock.now_ms() + _PAUSE_MS_MAX

    def failed(self) -> None:
        """Take note that there was no connection to be had."""
        self.failures += 1
        self._pause_ms = min(_PAUSE_MS_MAX, max(_PAUSE_MS_MIN, 2 * self._pause_ms))
        self._rests_until_ms = self._clock.now_ms() + self._pause_ms

    def worked(self) -> None:
        """Take note that there was one."""
        self._pause_ms = 0
