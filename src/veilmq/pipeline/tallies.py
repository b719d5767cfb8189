"""Tallies: the cells of one queue or one routing key as arrays over the buckets, on the driver."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from veilmq.core.events import Outcome
from veilmq.pipeline.histograms import BUCKETS, HELD, RATIO, VISIBILITY

Array = npt.NDArray[np.float64]

EDGES_S: Array = np.power(RATIO, np.arange(1, BUCKETS + 1, dtype=np.float64)) / 1000.0
"""The upper edge of each bucket, in seconds."""

MIDDLES_S: Array = EDGES_S / RATIO**0.5
"""The (geometric) middle of each bucket, in seconds."""


def _zeros() -> Array:
    return np.zeros(BUCKETS)


@dataclass(slots=True)
class Tally:
    """Receipts by bucket; tallies are added, and scaled to weigh less.

    ``deleted``, ``late`` and ``nacked`` lie where the receipt was held so long; an earlier receipt deleted the message
    of ``by_earlier`` of the ``nacked`` ones. The others lie where the timeout was so long: ``in_force`` are all
    receipts, ``expired`` those that expired, ``corrected`` those of them that were deleted late, ``crashed`` those of
    the rest that ``crashes`` takes out. ``extended``, ``extensions`` and ``extended_held_s`` are of the receipts that
    were extended and deleted in time.
    """

    deleted: Array = field(default_factory=_zeros)
    late: Array = field(default_factory=_zeros)
    nacked: Array = field(default_factory=_zeros)
    expired: Array = field(default_factory=_zeros)
    corrected: Array = field(default_factory=_zeros)
    in_force: Array = field(default_factory=_zeros)
    crashed: Array = field(default_factory=_zeros)
    by_earlier: float = 0.0
    extended: float = 0.0
    extensions: float = 0.0
    extended_held_s: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        """Return both together."""
        return Tally(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Tally)})

    def scaled(self, weight: float) -> "Tally":
        """Return this tally with every count multiplied by ``weight``."""
        return Tally(**{each.name: getattr(self, each.name) * weight for each in fields(Tally)})

    def shifted(self, buckets: int) -> "Tally":
        """Return this tally so many ``buckets`` later; what would fall off an end stays there."""
        places = np.clip(np.arange(BUCKETS) + buckets, 0, BUCKETS - 1)
        arrays = {each.name: getattr(self, each.name) for each in fields(Tally)}
        moved: dict[str, Any] = {
            name: np.bincount(places, weights=array, minlength=BUCKETS).astype(np.float64)
            for name, array in arrays.items()
            if isinstance(array, np.ndarray)
        }
        return dataclasses.replace(self, **moved)

    @property
    def receipts(self) -> float:
        """How many receipts there were."""
        return float(self.in_force.sum())

    @property
    def deaths(self) -> Array:
        """Receipts whose work is known to have ended, by how long it took."""
        return self.deleted + self.late

    @property
    def censored(self) -> Array:
        """Receipts of which only "longer than this" is known."""
        return self.nacked + np.maximum(self.expired - self.corrected - self.crashed, 0.0)

    @property
    def longest_s(self) -> float:
        """The longest timeout that was in force; 0 for no receipts."""
        return _last_s(self.in_force)

    @property
    def usual_s(self) -> float:
        """The timeout that most receipts had; 0 for no receipts."""
        return float(MIDDLES_S[np.argmax(self.in_force)]) if self.receipts > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTally:
    """What is known of one routing key: its first receipts, and all of them."""

    queue: str
    key: str
    first: Tally
    all: Tally


def tallies(cells: Any) -> Iterator[KeyTally]:
    """Yield the tallies of each queue and key in ``cells``, a pandas frame of decayed cells, in order."""
    ordered = cells.sort_values(["queue", "key"], kind="stable")
    for (queue, key), part in ordered.groupby(["queue", "key"], sort=False):
        first = tally(part[part["first"]])
        yield KeyTally(queue=queue, key=key, first=first, all=first + tally(part[~part["first"]]))


def tally(cells: Any) -> Tally:
    """Return the sum of ``cells``, a pandas frame."""
    found = Tally()
    for (outcome, axis), part in cells.groupby(["outcome", "axis"], sort=False):
        for array in _counted_in(found, outcome, axis):
            np.add.at(array, part["bucket"].to_numpy(), part["n"].to_numpy())
        if outcome == Outcome.DELETED_BY_EARLIER.value and axis == HELD:
            found.by_earlier += float(part["n"].sum())
        if outcome == Outcome.DELETED.value and axis == HELD:
            found.extended += float(part["extended"].sum())
            found.extensions += float(part["extensions"].sum())
            found.extended_held_s += float(part["extended_held_ms"].sum()) / 1000.0
    return found


def _counted_in(found: Tally, outcome: str, axis: str) -> tuple[Array, ...]:
    """Return the arrays in which receipts of that ``outcome`` count on that ``axis``; dead letters are no receipts."""
    places: dict[tuple[str, str], tuple[Array, ...]] = {
        (Outcome.DELETED.value, HELD): (found.deleted,),
        (Outcome.LATE_DELETED.value, HELD): (found.late,),
        (Outcome.NACKED.value, HELD): (found.nacked,),
        (Outcome.DELETED_BY_EARLIER.value, HELD): (found.nacked,),
        (Outcome.DELETED.value, VISIBILITY): (found.in_force,),
        (Outcome.DELETED_BY_EARLIER.value, VISIBILITY): (found.in_force,),
        (Outcome.NACKED.value, VISIBILITY): (found.in_force,),
        (Outcome.EXPIRED.value, VISIBILITY): (found.expired, found.in_force),
        (Outcome.LATE_DELETED.value, VISIBILITY): (found.corrected,),
    }
    return places.get((outcome, axis), ())


def _last_s(counts: Array) -> float:
    """Return the upper edge of the highest bucket that holds anything; 0 for none."""
    held = np.flatnonzero(counts > 0)
    return float(EDGES_S[held[-1]]) if held.size else 0.0
