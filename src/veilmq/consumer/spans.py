"""Spans of time as people write them in options: ``"30s"``, ``"1.5h"``, a ``timedelta``, or a number of seconds."""

import re
from datetime import timedelta

Span = str | float | timedelta
"""``"200ms"``, ``"30s"``, ``"10m"``, ``"12h"``, ``"1d"``; a ``timedelta``; seconds."""

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)")


def span_s(span: Span) -> float:
    """Return ``span`` in seconds; raises ``ValueError`` for what is none, or negative."""
    if isinstance(span, str):
        written = _WRITTEN.fullmatch(span)
        if written is None:
            raise ValueError(f"{span!r} is no span of time; write one like 200ms, 30s, 10m, 12h or 1d")
        return float(written[1]) * _UNITS_S[written[2]]
    span_seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if span_seconds < 0:
        raise ValueError(f"{span!r} is no span of time: it is negative")
    return span_seconds
