"""The record of a run of the store of cells: what the run had counted, so that the next run reads only new files.

``next_run`` finds the new files. It needs no Spark if pyarrow can read the log.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from veilmq.pipeline.closed_receipts import EventLog, Found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The state after a run. Runs below ``base`` are merged; ``listed`` is the day and the log of the last listing.

    ``positions`` are the first unread events of each node, ``ahead`` the counted files whose entries do not exist yet.
    """

    run: int = 0
    base: int = 1
    listed: str = ""
    positions: Mapping[str, int] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()


def next_run(
    last: RunRecord, log: EventLog, *, at_ms: int, counted: Callable[[], Iterable[str]]
) -> tuple[tuple[str, ...], RunRecord]:
    """Return the files of ``log`` that are new at ``at_ms``, and the record of the run that counts them.

    The record is ``last`` if there is nothing to count or to store. ``counted`` returns the names of all counted files;
    it is called only if the log is listed, which the first run of a day does.
    """
    listed = f"{datetime.fromtimestamp(at_ms / 1000, tz=UTC):%Y-%m-%d} {log.root}"
    found = log.after(last.positions) if listed == last.listed else None
    if found is None:
        found = log.listed()
        done = {log.below(name) for name in counted()}
    else:
        done = set(last.ahead)
    new = tuple(name for name in found.files if name not in done)
    record = replace(last, listed=listed, positions=found.positions, ahead=_ahead(found, last))
    if not new and (last.run == 0 or record == last):
        return (), last
    return new, replace(record, run=last.run + 1)


def _ahead(found: Found, last: RunRecord) -> tuple[str, ...]:
    """Return the files that were counted before their entries appeared."""
    return tuple(sorted({*last.ahead} - {*found.files} | {*found.ahead}))
