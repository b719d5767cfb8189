"""Rendering of pages with Jinja templates, which escape all values."""

from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from veilmq.console.assets import address_of
from veilmq.core.limits import SECOND_MS

_MINUTE_S = 60
_UNITS = ((86_400, "d"), (3_600, "h"), (_MINUTE_S, "min"), (1, "s"))


def html(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    """Return the environment, cached: compiling a template takes some milliseconds."""
    environment = Environment(
        loader=PackageLoader("veilmq.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "number": number,
        "counted": counted,
        "duration": duration,
        "instant": instant,
        "time": time,
        "path_of": path_of,
        "claims_path": claims_path,
        "plain_name": plain_name,
    }
    environment.globals |= {"asset": address_of}
    return environment


def number(value: float | None) -> str:
    """Format a number with thousands separators; an en dash for ``None``."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def counted(count: int, unit: str) -> str:
    """Format a number with its unit, a plural: ``2 messages per second``, ``1 message per second``."""
    what, space, rest = unit.partition(" ")
    return f"{count:,} {what.removesuffix('s') if count == 1 else what}{space}{rest}"


def duration(seconds: float | None) -> str:
    """Format seconds in at most two units, such as ``1 h 30 min``."""
    if seconds is None:
        return "–"
    if 0 < seconds < 1:
        return f"{seconds * SECOND_MS:.0f} ms"
    remaining, words = int(seconds), []
    for unit_s, unit in _UNITS:
        count, remaining = divmod(remaining, unit_s)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words[:2]) or "0 s"


def age(seconds: float | None) -> str:
    """Format an age: below a minute in seconds, then in minutes and larger units.

    Otherwise the ages of all old queues would change every second, and each change is sent to open pages.
    """
    if seconds is None:
        return duration(None)
    return duration(seconds // _MINUTE_S * _MINUTE_S if seconds >= _MINUTE_S else max(int(seconds), 0))


def instant(at_ms: int | None) -> str:
    """Format an instant as ISO 8601 in UTC, to the second."""
    if at_ms is None:
        return "–"
    return datetime.fromtimestamp(at_ms / SECOND_MS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time(at_ms: int) -> Markup:
    return Markup('<time datetime="{0}">{0}</time>').format(instant(at_ms))


def path_of(queue: str) -> str:
    return f"/console/queues/{quote(queue)}"


def claims_path(queue: str) -> str:
    """Return the path of the page of a queue's claims, by its full name."""
    return f"/console/claims/{quote(queue)}"


def plain_name(queue: str) -> str:
    return queue.rpartition("/")[2]
