"""What commands print: aligned lines for people, one JSON document for machines."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from veilmq.core.limits import SECOND_MS


def print_json(value: Any) -> None:
    """Print ``value`` as one JSON document on one line."""
    print(msgspec.json.encode(value).decode())


def print_aligned(rows: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns; further lines of a value stay in its column."""
    pairs = [(name, str(value)) for name, value in rows]
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        print(name.ljust(width) + value.replace("\n", "\n" + " " * width))


def instant(at_ms: int) -> str:
    """Return an instant as a date and a time of day in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // SECOND_MS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
