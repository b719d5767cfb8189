"""How many messages are worth having here before a slot is free for them.

Enough that handlers do not wait for a receive, and no more: one that waits here is renewed, counts as received, and
nobody else can have it. Slow handlers need none.
"""

SLOW_S = 1.0
PREFETCH_MAX = 100
_SHARE = 0.2


class Prefetch:
    """Follows how long handlers and receives take."""

    __slots__ = ("_handle_s", "_most", "_receive_s")

    def __init__(self, most: int | None = None) -> None:
        """``most`` is the user's own maximum."""
        self._most = PREFETCH_MAX if most is None else most
        self._handle_s: float | None = None
        self._receive_s = 0.0

    def handled(self, took_s: float) -> None:
        """Take in how long one handler took."""
        self._handle_s = took_s if self._handle_s is None else self._handle_s + _SHARE * (took_s - self._handle_s)

    def received(self, took_s: float) -> None:
        """Take in how long a receive took that brought messages."""
        self._receive_s += _SHARE * (min(took_s, SLOW_S) - self._receive_s)

    def target(self, concurrency: int, *, lease_s: float) -> int:
        """Return how many to hold ready: what is handled during two receives, and within half a lease."""
        if self._handle_s is None or self._handle_s > SLOW_S:
            return 0
        per_s = concurrency / max(self._handle_s, 0.0001)
        return int(min(self._most, per_s * 2 * self._receive_s + 1, per_s * lease_s / 2))
