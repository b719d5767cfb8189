"""The exported event log: exporter, Parquet files, processing times (``docs/events.md``). Needs no pyarrow."""

from math import floor, log2

import msgspec

BINS_A_DOUBLING = 2


class EventsError(Exception):
    """The target of events cannot be used; the text has the reason and the remedy."""


class ProcessingTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Processing times of the newest ``receipts`` of a queue: counts by outcome and bin of a logarithmic scale.

    ``late`` receipts were deleted after their timeout; ``expired`` ones took at least their timeout. The first receipt
    ended at ``since_ms``. ``is_cut``: older receipts were not read.
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
    """Return the lower bound of a bin."""
    return float(2 ** (number / BINS_A_DOUBLING))
