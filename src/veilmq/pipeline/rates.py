"""Rates: what became of receipts besides being deleted in time, duplicates and recoveries apart."""

from dataclasses import dataclass

from veilmq.pipeline.tallies import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of receipts.

    ``duplicate``: expired, and deleted late: the timeout was too short. ``recovery``: expired, and never finished.
    ``crash`` is the part of the recoveries whose consumer died, which no timeout would have spared (see ``crashes``);
    the others gave up at the deadline.
    """

    duplicate: float = 0.0
    recovery: float = 0.0
    crash: float = 0.0
    nack: float = 0.0


def rates_of(tally: Tally) -> Rates:
    """Return the rates of ``tally``; all 0 for no receipts.

    Half a crash is added: that none was seen does not mean that there are none.
    """
    receipts = tally.receipts
    if receipts <= 0:
        return Rates()
    duplicate = float(tally.corrected.sum()) / receipts
    return Rates(
        duplicate=duplicate,
        recovery=max(float(tally.expired.sum()) / receipts - duplicate, 0.0),
        crash=(float(tally.crashed.sum()) + 0.5) / (receipts + 1.0),
        nack=float(tally.nacked.sum()) / receipts,
    )
