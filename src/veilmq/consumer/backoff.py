"""How long a message that failed stays hidden: longer with each attempt, drawn at random so that failures spread."""

import math
import random
from collections.abc import Callable

from veilmq.consumer.spans import Span, span_s
from veilmq.core.limits import LEASE_S_MAX

_DOUBLINGS_MAX = 40


class Backoff:
    """Full jitter: uniform from nothing to a ceiling that doubles with each attempt, up to ``cap``."""

    def __init__(
        self,
        base: Span = "1s",
        *,
        cap: Span = "15m",
        jitter: str = "full",
        attempts: int | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """After ``attempts`` the message is rejected; ``None``: never, the queue's own dead-letter rule decides.

        ``jitter`` is ``"full"`` or ``"none"``, ``draw`` gives numbers from 0 to 1. Raises ``ValueError``.
        """
        if jitter not in ("full", "none"):
            raise ValueError(f'jitter is {jitter!r}; use "full" or "none"')
        if attempts is not None and attempts < 1:
            raise ValueError(f"attempts is {attempts}; a message is tried once at least")
        self.base_s = span_s(base)
        self.cap_s = min(span_s(cap), float(LEASE_S_MAX))
        self.attempts = attempts
        self._draw = draw if jitter == "full" else _whole

    def after_s(self, attempt: int) -> int:
        """Return for how many whole seconds to hide a message whose attempt number ``attempt`` (1, 2, …) failed."""
        ceiling_s = min(self.cap_s, self.base_s * 2 ** float(min(attempt - 1, _DOUBLINGS_MAX)))
        return math.ceil(ceiling_s * self._draw())

    def exhausted(self, attempt: int) -> bool:
        """Tell whether attempt number ``attempt`` was the last one."""
        return self.attempts is not None and attempt >= self.attempts


def _whole() -> float:
    return 1.0
