"""The event log outside the store: exporter, Parquet files, processing times (``docs/events.md``). Needs no pyarrow."""

from math import floor, log2

import msgspec

BINS_A_DOUBLING = 2


class EventsError(Exception):
    """Events cannot be exported there; the text says why and what to do."""


class ProcessingTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long the newest ``receipts`` of a queue were held, by outcome and bin of a logarithmic scale.

    The first of them ended at ``since_ms``. ``deleted`` and ``late`` receipts were held that long, ``late`` ones longer
    than their timeout. ``expired`` receipts took at least that long. ``is_cut``: older receipts were not read.
    """

    deleted: dict[int, int] = {}
    late: dict[int, int] = {}
    expired: dict[int, int] = {}
    receipts: int = 0
    since_ms: int | None = None
    is_cut: bool = False


def bin_of(held_ms: int) -> int:
    """Return the bin of a time; times below a millisecond are in the first bin."""
    return floor(log2(max(held_ms, 1)) * BINS_A_DOUBLING)


def bin_begin_ms(number: int) -> float:
    """Return where a bin begins."""
    return float(2 ** (number / BINS_A_DOUBLING))
