"""How long receipts of a queue were held, counted on a logarithmic scale: what a person looks at before a timeout."""

from math import floor, log2

import msgspec

BINS_A_DOUBLING = 2


class HeldTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Receipts by outcome and bin; the newest ``receipts``, of which the first ended at ``since_ms``.

    ``deleted`` ones were held so long. ``late`` ones, too, but longer than their timeout. Of ``expired`` ones it is
    known that they took longer than that. ``is_cut`` where older ones were not read.
    """

    deleted: dict[int, int] = {}
    late: dict[int, int] = {}
    expired: dict[int, int] = {}
    receipts: int = 0
    since_ms: int | None = None
    is_cut: bool = False


def bin_of(held_ms: int) -> int:
    """Return the bin of a time; times below a millisecond are in the first."""
    return floor(log2(max(held_ms, 1)) * BINS_A_DOUBLING)


def bin_begin_ms(number: int) -> float:
    """Return where a bin begins."""
    return float(2 ** (number / BINS_A_DOUBLING))
