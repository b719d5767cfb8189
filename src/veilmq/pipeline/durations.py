"""Formatting of durations and shares."""

_UNITS = ((3600.0, "h"), (60.0, "min"))
_MINUTES_FROM_S = 600.0


def seconds(value_s: float | None) -> str:
    """Return ``value_s`` with three digits and its unit: ``0.26 s``, ``483 s``, ``35.2 min``, ``1.2 h``."""
    if value_s is None:
        return "–"
    for size_s, unit in _UNITS:
        if value_s >= max(size_s, _MINUTES_FROM_S):
            return f"{value_s / size_s:.3g} {unit}"
    return f"{value_s:.3g} s"


def share(value: float) -> str:
    """Return ``value`` as a percentage with two digits: ``0.30 %``, ``12 %``."""
    percent = 100.0 * value
    if percent == 0.0:
        return "0 %"
    return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"
